"""Traces: anyone's profiler trace, read, checked and explained.

Read `read` first: files of torch.profiler (`event_text`, `chrome`) and Nsight Systems (`nsys`)
become a `trace`, which `check` looks through. Of it `utilization` and `idle` take the figures,
`findings` the causes and `report` the pages. `communication` knows what communicates by its name,
`collectives` matches it across processes, and `ranks` compares these. `profiler` makes such a file
of some work, and `command` is the command line.
"""
