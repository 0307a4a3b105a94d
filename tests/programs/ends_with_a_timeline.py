"""A timeline is the last act on a GPU: the profiler waits for a call in which it can let go."""

import os

import torch

import autopar

x = torch.ones(9, device="cuda")
for _ in range(5):
    autopar.timeline_of(lambda: x + 1)
assert "TEARDOWN_CUPTI" not in os.environ
