"""Lane: an in-order queue of work, on a CUDA stream or on a CPU worker thread.

    lane.submit(fn) -- returns at once --> Handle -- result() --> the value, once it is there

A task waits for the handles among its arguments and in `after=`:

    waits on     for a CPU task                       for a CUDA task
    CPU lane     the worker waits for its future      the worker waits for its end event
    CUDA lane    launched by whoever finishes it      the stream waits for its end event
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from autopar.handle import Handle, cuda_tensors
from autopar.modes import caller_modes
from autopar.span import KINDS
from autopar.task import Task, reached_by

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
        # Results belong to the caller: a lane holds on to handles until they are issued, no longer.
        self._waiting: dict[Handle[Any], None] = {}
        self._failures: list[Handle[Any]] = []
        self._noting = threading.Lock()

    def submit(
        self,
        fn: Callable[..., T],
        *args: Any,
        name: str | None = None,
        after: Iterable[Handle[Any]] = (),
        **kwargs: Any,
    ) -> Handle[T]:
        """Queue `fn(*args, **kwargs)` behind what this lane was given before.

        A handle among the arguments stands for its result. CUDA tensors that the task reaches may
        still be under way on the caller's current streams: the task waits for those. It reaches
        its arguments, what `fn` is bound to, its closure and defaults, and the global tensors it
        names; what it finds in other ways, such as a module's parameters, must be an argument.

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
        modes = caller_modes()
        if self.device.type == "cuda":
            modes = modes._replace(gpu=self.device.index)
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
        captured = tuple(cuda_tensors(reached_by(fn)))
        devices = {tensor.device for tensor in (*captured, *cuda_tensors((args, kwargs)))}
        if self.device.type == "cuda":
            devices.add(self.device)
        ready = _queued_work(devices)
        task = Task(handle, fn, args, kwargs, captured, (*after, *given), ready, modes)
        self._waiting[handle] = None
        self._accept(task)
        return handle

    def wait(self) -> None:
        """Wait for everything submitted so far; raise the first error that nobody has seen."""
        self._drain()
        for handle in tuple(self._failures):
            if not handle.seen:
                handle.wait()

    def _run(self, task: Task[T], run: Callable[[Task[T]], T]) -> None:
        """Issue a task and resolve its handle, unless it was dropped."""
        handle = task.handle
        if handle.issued.set_running_or_notify_cancel():
            try:
                task.require_dependencies()
                value = run(task)
            except BaseException as error:
                error.add_note(f"in {handle}")
                self._note_failure(handle)  # before anybody can know that it has failed
                handle.issued.set_exception(error)
            else:
                handle.issued.set_result(value)
        self._waiting.pop(handle)

    def _note_failure(self, handle: Handle[Any]) -> None:
        """Keep a failed task until its error was seen, and no longer than to the next failure."""
        with self._noting:
            self._failures = [each for each in self._failures if not each.seen]
            self._failures.append(handle)

    def _drop(self) -> None:
        """Cancel tasks that have not begun."""
        for handle in tuple(self._waiting):
            handle.issued.cancel()

    def _drain(self) -> None:
        """Wait until everything is done or dropped."""
        for handle in tuple(self._waiting):
            handle.wait_until_issued()

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
    def _accept(self, task: Task[Any]) -> None:
        """Queue a task."""


def _queued_work(gpus: Iterable[torch.device]) -> dict[torch.device, torch.cuda.Event]:
    """An event after what the calling thread has queued on each GPU, where that is not done."""
    streams = {device: torch.cuda.current_stream(device) for device in gpus}
    return {
        device: stream.record_event() for device, stream in streams.items() if not stream.query()
    }
