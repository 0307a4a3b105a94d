"""Tasks that are the first of a process to use some function, at once, and once more.

Usage: python first_calls.py PROCESSES
"""

import contextlib
import os
import sys

import torch

import autopar as ap

_LANES = 4


def differs(fn):
    values = [torch.full((3,), 1.8657 + i / 7) for i in range(_LANES)]
    with contextlib.ExitStack() as lanes:
        opened = [lanes.enter_context(ap.cpu_lane()) for _ in values]
        handles = [lane.submit(fn, x) for lane, x in zip(opened, values, strict=True)]
        first = [handle.result() for handle in handles]
    return not all(torch.equal(y, fn(x)) for y, x in zip(first, values, strict=True))


for number in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        os._exit(differs([torch.exp, torch.sin, torch.tanh][number % 3]))
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"process {number}: {status}"
