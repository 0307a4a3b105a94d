"""Clock: a GPU's event times on the host's clock, with the error of saying so."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import RLock

import torch

from autopar.device import new_stream

# Event times are float32 milliseconds: 1 µs coarse after 10 s, 4 µs after a minute.
_REBASE_AFTER_S = 10.0
_DRIFT = 10e-6  # of a GPU's clock against the host's; 4 µs in a second were seen
_RESOLUTION_S = 1e-6  # of a difference between two events; each is known to 0.5 µs
_TRIES = 50  # on an H200 the best of them was good to 4 µs, and they take a millisecond

_clocks: dict[torch.device, DeviceClock] = {}
_lock = RLock()  # collecting garbage, which may happen while it is held, may ask for a clock


@dataclass(frozen=True)
class DeviceClock:
    """A finished event of a device, and its time: events of two devices can't be compared."""

    base: torch.cuda.Event
    base_s: float  # by `time.perf_counter`
    error_s: float  # by how much a time just after `base_s` can be off, either way

    def time_s(self, event: torch.cuda.Event) -> float:
        """When a finished timing event of the same device happened, by `time.perf_counter`."""
        elapsed_ms: float = self.base.elapsed_time(event)
        return self.base_s + elapsed_ms / 1e3

    def error_at(self, event: torch.cuda.Event) -> float:
        """By how much `time_s` of an event can be off, either way, in seconds."""
        return self.error_s + _DRIFT * abs(self.time_s(event) - self.base_s)


def device_clock(device: torch.device, max_age_s: float = _REBASE_AFTER_S) -> DeviceClock:
    """The device's clock, calibrated now if it is older than `max_age_s` seconds."""
    with _lock:
        clock = _clocks.get(device)
        if clock is None or time.perf_counter() - clock.base_s > max_age_s:
            clock = _clocks[device] = _calibrated(device)
        return clock


def _calibrated(device: torch.device) -> DeviceClock:
    """Narrowest of several windows in which the host saw an event of an idle stream happen."""
    stream = new_stream(device, priority=-1)  # don't queue behind the work to be timed
    clocks = []
    for _ in range(_TRIES):
        event = torch.cuda.Event(enable_timing=True)
        before_s = time.perf_counter()
        event.record(stream)
        event.synchronize()
        half_s = (time.perf_counter() - before_s) / 2
        clocks.append(DeviceClock(event, before_s + half_s, half_s + _RESOLUTION_S))
    return min(clocks, key=lambda clock: clock.error_s)
