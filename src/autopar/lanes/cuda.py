"""Cuda: a lane on a CUDA stream, launched into without waiting."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any, Self, TypeVar

import torch

from autopar.device import gpu, new_stream, present
from autopar.lanes.clock import device_clock
from autopar.lanes.handle import Handle, wait_for_event
from autopar.lanes.lane import Lane
from autopar.lanes.submission import Submission

T = TypeVar("T")

_numbers = itertools.count(1)


def cuda_lane(
    device: torch.device | str | int | None = None,
    *,
    name: str | None = None,
    kind: str = "compute",
) -> Lane:
    """A lane on a CUDA stream of its own.

    Args:
        device: The GPU; the first one if not given.
        name: Its name; `cuda:I lane N` if not given.
        kind: What its tasks are in a timeline: `compute`, `copy` or `host`.

    Raises:
        ValueError: The device is not a GPU, or not on this machine, or the kind is unknown.
        TypeError: The name is no text.

    >>> import autopar as ap
    >>> import torch
    >>> if ap.num_gpus():
    ...     with ap.cuda_lane() as lane:
    ...         two = lane.submit(torch.ones, 2, device="cuda").result()
    """
    device = present(gpu(0) if device is None else device)
    if device.type != "cuda":
        msg = f"device is {device}; expected a CUDA GPU. For work on the CPU take cpu_lane()."
        raise ValueError(msg)
    name = f"{device} lane {next(_numbers)}" if name is None else name
    return CudaLane(device, name, kind)


class CudaLane(Lane):
    """One stream.

    Tasks are launched by the thread that submits them, unless they wait for a task that is not
    issued yet: then by the thread that issues it.
    """

    _maker = "cuda_lane"

    def __init__(self, device: torch.device, name: str, kind: str) -> None:
        super().__init__(name, device, kind)
        self._stream = new_stream(device)
        self._launcher: dict[str, int] = {}  # ident of the thread that launches, if one does

    def __enter__(self) -> Self:
        device_clock(self.device, max_age_s=1.0)  # while there is no work to disturb
        return super().__enter__()

    def _waits_for(self) -> int | Handle[Any] | None:
        launcher = self._launcher.get("ident")
        return self._blocker() if launcher is None else launcher

    def _go_on(self) -> None:
        """Launch from the head of the queue as long as nothing unissued is in the way.

        One thread launches for all, and looks again once another may: so a task that is appended
        meanwhile, by a thread that finds this one launching, is not left behind.
        """
        me = threading.get_ident()
        if self._launcher.get("ident") == me:
            return  # for a task that submits: who launches it goes on with what it has submitted
        try:
            while self._pending and self._launcher.setdefault("ident", me) == me:
                self._do_pending()
                self._launcher.clear()
                blocker = self._blocker()
                if blocker is not None:
                    blocker._issued.call_when_done(self._go_on)
                    return
        finally:  # without calls, as a signal comes out of those
            if "ident" in self._launcher and self._launcher["ident"] == me:
                del self._launcher["ident"]

    def _blocker(self) -> Handle[Any] | None:
        """What the head of the queue waits for, unless it was dropped."""
        with contextlib.suppress(IndexError):  # launched meanwhile
            head = self._pending[0]
            if not head.handle._issued.done():
                return next((before for before in head.after if not before._issued.done()), None)
        return None

    def _issue(self, submission: Submission[T]) -> T:
        handle = submission.handle
        handle._clock = device_clock(self.device)
        with torch.cuda.stream(self._stream):
            for event in submission.ready.values():
                self._stream.wait_event(event)
            for before in submission.after:
                if isinstance(before._end, torch.cuda.Event):
                    self._stream.wait_event(before._end)
            handle._start = self._stream.record_event(torch.cuda.Event(enable_timing=True))
            try:
                return submission.call()
            finally:
                handle._end = self._stream.record_event(torch.cuda.Event(enable_timing=True))

    def _drain(self) -> None:
        super()._drain()
        self._go_on()  # lets go of what was dropped
        wait_for_event(self._stream.record_event())  # after all kernels, those of failed tasks too
