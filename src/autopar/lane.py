"""Lane: an in-order queue of work, on a CUDA stream or on a CPU worker thread.

    lane.submit(fn) -- returns at once --> Handle -- result() --> the value, once it is there

A task waits for the handles among its arguments and in `after=`:

    waits on     for a CPU task                       for a CUDA task
    CPU lane     the worker waits for its future      the worker waits for its end event
    CUDA lane    launched by whoever finishes it      the stream waits for its end event
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from autopar.handle import Handle
from autopar.span import KINDS
from autopar.task import Task

T = TypeVar("T")


class Lane(ABC):
    """An in-order queue of work; a context manager, and leaving it waits for all of it.

    Make one with `cpu_lane` or `cuda_lane`. If the block is left by an exception, tasks that
    have not begun are dropped and the rest is waited for. If a task failed and nobody has seen
    its error, leaving the lane raises it.

    Attributes:
        name: Shown in errors, timelines and profilers.
        device: Where its tasks run.
        kind: What its tasks are in a timeline: `compute`, `copy` or `host`.
    """

    def __init__(self, name: str, device: torch.device, kind: str) -> None:
        if kind not in KINDS:
            msg = f"kind is {kind!r}; expected one of {', '.join(KINDS)}"
            raise ValueError(msg)
        self.name = name
        self.device = device
        self.kind = kind
        self._open = False
        self._left = False
        self._handles: deque[Handle[Any]] = deque()  # not known to be done, in order
        self._failures: list[Handle[Any]] = []

    def submit(
        self,
        fn: Callable[..., T],
        *args: Any,
        name: str | None = None,
        after: Iterable[Handle[Any]] = (),
        **kwargs: Any,
    ) -> Handle[T]:
        """Queue `fn(*args, **kwargs)` behind what this lane was given before.

        A handle among the arguments stands for its result. What the caller has queued on its
        current streams comes before the task: on this lane's GPU, on those of CUDA tensors among
        the arguments, and for what a CPU lane's task does on any GPU. A tensor of another GPU
        must be an argument for that, not just be used by `fn`.

        Args:
            fn: The task.
            *args: Its arguments.
            name: The task's name; the function's if not given.
            after: Tasks that must be done before, on any lane.
            **kwargs: Its keyword arguments.

        Raises:
            RuntimeError: The lane is not open.
            TypeError: `fn` can't be called, or `after` holds something other than handles.
        """
        self._require_open()
        if not callable(fn):
            msg = f"fn is {fn!r}; expected a function. Write submit(fn, x), not submit(fn(x))."
            raise TypeError(msg)
        after = tuple(after)
        for before in after:
            if not isinstance(before, Handle):
                msg = f"after holds {before!r}; expected handles, as Lane.submit returns them"
                raise TypeError(msg)
        given = tuple(arg for arg in (*args, *kwargs.values()) if isinstance(arg, Handle))
        task_name = name or str(getattr(fn, "__name__", "task"))
        handle: Handle[T] = Handle(task_name, self.name, self.device, self.kind)
        ready = _queued_work(self._gpus((args, kwargs)))
        task = Task(handle, fn, args, kwargs, (*after, *given), ready, torch.is_grad_enabled())
        self._forget_done()
        self._handles.append(handle)
        self._accept(task)
        return handle

    def wait(self) -> None:
        """Wait for everything submitted so far; raise the first error that nobody has seen."""
        self._forget_done()
        for handle in (*self._failures, *self._handles):
            if not handle.seen:
                handle.wait()
        self._handles.clear()

    def _forget_done(self) -> None:
        """Let go of results that belong to the caller; keep errors until they are seen."""
        while self._handles and self._handles[0].done():
            handle = self._handles.popleft()
            if handle.failed():
                self._failures.append(handle)
        self._failures = [handle for handle in self._failures if not handle.seen]

    def __enter__(self) -> Self:
        if self._open or self._left:
            raise RuntimeError(self._not_open())
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            self._open, self._left = False, True
            self._drop()
            self._drain()

    def _require_open(self) -> None:
        if not self._open:
            raise RuntimeError(self._not_open())

    def _not_open(self) -> str:
        state = "was left" if self._left else "is open" if self._open else "is not open yet"
        return (
            f"lane {self.name!r} ({self.device}) {state}; a lane takes work inside one `with` "
            f"block. Make a new one: with {self._maker}(...) as lane: ..."
        )

    _maker: str

    @abstractmethod
    def _gpus(self, arguments: object) -> Iterable[torch.device]:
        """The GPUs on which a task must not overtake what its submitter has queued."""

    @abstractmethod
    def _accept(self, task: Task[Any]) -> None:
        """Queue a task."""

    @abstractmethod
    def _drop(self) -> None:
        """Cancel tasks that have not begun."""

    @abstractmethod
    def _drain(self) -> None:
        """Wait for those that have."""


def _queued_work(gpus: Iterable[torch.device]) -> dict[torch.device, torch.cuda.Event]:
    """An event after what the calling thread has queued on each GPU, where that is not done."""
    streams = {device: torch.cuda.current_stream(device) for device in gpus}
    return {
        device: stream.record_event() for device, stream in streams.items() if not stream.query()
    }
