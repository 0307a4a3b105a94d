"""Time GPU code: one function in plain PyTorch, one with autopar."""

import statistics
import time

import torch

import autopar as ap


def median_time_s(fn, device, repeats=20):
    """The median time of a call and of all that it queues on a GPU, in seconds."""
    times_s = []
    for _ in range(3 + repeats):  # the first ones load kernels and allocate memory
        torch.cuda.synchronize(device)  # older work is done
        start_s = time.perf_counter()
        fn()
        torch.cuda.synchronize(device)  # so is this
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s[3:])


def measured_time_s(fn, device):
    """The same; the measurement has all samples, and what they vary by."""
    return ap.measure(fn, label="fn", devices=[device]).median_s
