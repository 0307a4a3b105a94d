"""Traces: anyone's profiler trace, read, checked and explained.

Read `read` first: files of torch.profiler (`chrome`) and Nsight Systems (`nsys`) become one table
of records, which `check` makes a `trace` of. Of it `utilization` takes the figures, `idle` and
`findings` tell which causes there are of a known list, and `report` makes the pages.
`communication` knows what communicates by its name, and `ranks` matches it across processes, which
it compares. `profiler` makes such a file of some work, and `command` is the command line, which
compares two traces too.
"""
