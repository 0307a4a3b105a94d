"""Stream: a lane on a CUDA stream, launched into without waiting."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import torch

from autopar.clock import device_clock
from autopar.device import gpu, present
from autopar.handle import Handle, wait_for_event
from autopar.lane import Lane
from autopar.task import Task

T = TypeVar("T")

_numbers = itertools.count(1)


def cuda_lane(
    device: torch.device | str | int | None = None,
    *,
    name: str | None = None,
    kind: str = "compute",
    priority: int = 0,
) -> Lane:
    """A lane on a CUDA stream of its own.

    Args:
        device: The GPU; the first one if not given.
        name: Its name; `cuda:I lane N` if not given.
        kind: What its tasks are in a timeline: `compute`, `copy` or `host`.
        priority: The stream's priority; lower numbers go first.

    Raises:
        ValueError: The device is not a GPU, or not on this machine; or an unknown kind.
    """
    found = present(gpu(0) if device is None else device)
    if found.type != "cuda":
        msg = f"device is {found}; expected a CUDA GPU. For work on the CPU take cpu_lane()."
        raise ValueError(msg)
    return CudaLane(found, name or f"{found} lane {next(_numbers)}", kind, priority)


class CudaLane(Lane):
    """One stream.

    Tasks are launched by the thread that submits them, unless they wait for a task that is not
    issued yet: then by the thread that issues it.
    """

    _maker = "cuda_lane"

    def __init__(self, device: torch.device, name: str, kind: str, priority: int) -> None:
        super().__init__(name, device, kind)
        self.stream = torch.cuda.Stream(device, priority=priority)
        self._pending: deque[Task[Any]] = deque()
        self._launching = threading.Lock()
        self._launcher: int | None = None  # ident of the thread that holds the lock

    def __enter__(self) -> Self:
        device_clock(self.device, max_age_s=1.0)  # while there is no work to disturb
        return super().__enter__()

    def _accept(self, task: Task[Any]) -> None:
        task.handle.runner = lambda: self._launcher
        self._pending.append(task)
        self._launch_ready()

    def _launch_ready(self, _: Future[Any] | None = None) -> None:
        """Launch from the head of the queue as long as nothing unissued is in the way.

        Whoever holds the lock launches for all, and looks again after letting go of it: so a
        task that another thread appended meanwhile, finding the lock taken, is not left behind.
        """
        while self._pending and self._launching.acquire(blocking=False):
            try:
                self._launcher = threading.get_ident()
                blocker = self._launch_until_blocked()
            finally:
                self._launcher = None
                self._launching.release()
            if blocker is not None:
                # Called at once if it is done by now.
                blocker.issued.add_done_callback(self._launch_ready)
                return

    def _launch_until_blocked(self) -> Handle[Any] | None:
        while self._pending:
            task = self._pending[0]
            for before in task.after:
                if not before.issued.done():
                    return before
            self._run(task, self._launch)
            self._pending.popleft()
        return None

    def _launch(self, task: Task[T]) -> T:
        handle = task.handle
        handle.clock = device_clock(self.device)
        with torch.cuda.stream(self.stream):
            for event in task.ready.values():
                self.stream.wait_event(event)
            for before in task.after:
                if isinstance(before.end, torch.cuda.Event):
                    self.stream.wait_event(before.end)
            handle.start = self.stream.record_event(torch.cuda.Event(enable_timing=True))
            try:
                return task.call(task.arguments())
            finally:
                handle.end = self.stream.record_event(torch.cuda.Event(enable_timing=True))

    def _drain(self) -> None:
        super()._drain()
        wait_for_event(self.stream.record_event())  # after all kernels, those of failed tasks too
