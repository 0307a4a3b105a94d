"""Streams and events that are done at once, where there is no GPU, and note what they wait for."""

import contextlib
import threading
import time

import torch

from autopar import torch_private
from autopar.lanes import cuda
from autopar.lanes.clock import DeviceClock


class Event:
    def __init__(self, enable_timing=False):
        self.recorded_s = time.perf_counter()

    def elapsed_time(self, other):
        return (other.recorded_s - self.recorded_s) * 1e3

    def query(self):
        return True

    def synchronize(self):
        pass


class Stream:
    def __init__(self, device=None, priority=0):
        self.device = device
        self.waited = []
        self.idle = True

    def record_event(self, event=None):
        event = event or Event()
        event.recorded_s = time.perf_counter()
        return event

    def wait_event(self, event):
        self.waited.append(event)

    def query(self):
        return self.idle


def stand_in(patch):
    """Let a machine have two GPUs, with a pytest monkeypatch; return the callers' stream."""
    current, here, base = Stream(), threading.local(), Event()

    @contextlib.contextmanager
    def stream(chosen):
        here.stream = chosen
        yield
        del here.stream

    def current_stream(device=None):
        return getattr(here, "stream", current)

    clock = DeviceClock(base, base.recorded_s, 1e-6)
    patch.setattr(torch.cuda, "device_count", lambda: 2)
    patch.setattr(torch.cuda, "is_initialized", lambda: False)  # keeps real GPUs out of it
    patch.setattr(torch_private, "exchange_gpu", lambda device: device)  # CPU builds lack it
    patch.setattr(torch.cuda, "Event", Event)
    patch.setattr(torch.cuda, "Stream", Stream)
    patch.setattr(torch.cuda, "stream", stream)
    patch.setattr(torch.cuda, "current_stream", current_stream)
    patch.setattr(cuda, "device_clock", lambda device, **_: clock)
    return current
