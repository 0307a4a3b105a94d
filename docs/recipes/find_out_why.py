"""Find out why nothing overlaps: one function in plain PyTorch, one with autopar."""

import torch
from torch.profiler import profile, record_function

import autopar as ap


def trace_of(step, path, devices):
    """Write what ran when in one step to a file, such as `trace.json.gz`."""
    for _ in range(3):  # without the first calls, which load kernels and allocate memory
        step()
    with profile() as session:
        with record_function("step"):
            step()
        for device in devices:
            torch.cuda.synchronize(device)  # or the trace lacks the end
    session.export_chrome_trace(path)


def drawing_of(step):
    """The same in a program or a notebook, as a picture with its overlap in words."""
    step()
    return ap.draw(ap.timeline_of(ap.annotate("step")(step)), title="One step")
