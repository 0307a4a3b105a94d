"""Traces: anyone's profiler trace, read, checked and explained.

Read `read` first: files of torch.profiler and Nsight Systems become a `Trace`, of which
`utilization` and `idle` take the figures, `findings` the causes and `report` the pages.
"""
