"""Lane: an in-order queue of work, on a CUDA stream or on a CPU worker thread.

    lane.submit(fn) -- returns at once --> Handle -- result() --> the value, once it is there

A task waits for the handles among its arguments and in `after=`:

    waits on     for a CPU task                       for a CUDA task
    CPU lane     the worker waits for its future      the worker waits for its end event
    CUDA lane    launched by whoever finishes it      the stream waits for its end event
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from autopar.effects.calls import name_of
from autopar.lanes.handle import Handle
from autopar.lanes.outcome import forget_own_locals, note
from autopar.lanes.submission import Submission
from autopar.refusal import check_type, several, what

T = TypeVar("T")

_KINDS = ("compute", "copy", "host")  # what lanes do
OPEN, CLOSING, LEFT = "is open", "is being left", "was left"
_MOST_NOTES = 5  # on one error: more would bury it


class Lane(ABC):
    """An in-order queue of work; a context manager, and leaving it waits for all of it.

    Make one with `cpu_lane` or `cuda_lane`. What its tasks submit to it is run, too, also while it
    is being left. If the block is left by an exception, tasks that have not begun are dropped and
    the rest is waited for. Errors that nobody has seen come out on leaving: the first is raised,
    and others are noted on it, or on the exception by which the block was left.

    Attributes:
        name: Shown in errors, timelines and profilers.
        device: Where its tasks run.
        kind: What its tasks are in a timeline: `compute`, `copy` or `host`.

    >>> import autopar as ap
    >>> with ap.cpu_lane() as lane:
    ...     six = lane.submit(max, 6, 4)
    >>> six.result()
    6
    """

    def __init__(self, name: str, device: torch.device, kind: str) -> None:
        if not isinstance(kind, str) or kind not in _KINDS:
            msg = f"kind is {what(kind)}; expected one of {', '.join(_KINDS)}."
            raise ValueError(msg)
        require_text("name", name)
        self.name = name
        self.device = device
        self.kind = kind
        self._state = "is not open yet"
        # Results belong to the caller: a lane holds on to handles until they are issued, no longer,
        # and to those of failed tasks until their errors were seen.
        self._waiting: dict[Handle[Any], None] = {}
        self._unseen: dict[Handle[Any], None] = {}

    def submit(
        self,
        fn: Callable[..., T],
        *args: Any,
        name: str | None = None,
        after: Iterable[Handle[Any]] = (),
        **kwargs: Any,
    ) -> Handle[T]:
        """Queue `fn(*args, **kwargs)` behind what this lane was given before.

        A handle among the arguments, also in lists, tuples and dicts, stands for its result. CUDA
        tensors that the task reaches may still be under way on the caller's current streams: the
        task waits for those. It reaches its arguments, what `fn` is bound to, its closure and
        defaults, and the global tensors it names; what it finds in other ways, such as a module's
        parameters, must be an argument.

        What holds in the calling thread holds in the task: grad and inference mode, autocast, the
        default device, other modes of PyTorch, hooks for saved tensors, the values of context
        variables and, on a CPU lane, the current GPU.

        Args:
            fn: The task.
            *args: Its arguments.
            name: The task's name; if not given, the function's, or that of the module's class.
            after: Tasks that must be done before, on any lane.
            **kwargs: Its keyword arguments.

        Raises:
            RuntimeError: The lane is not open, or the caller is inside a transform of `torch.func`.
            TypeError: `fn` can't be called, `name` is no text, or `after` is, or holds, something
                other than handles.
            KeyboardInterrupt: Ctrl-C came meanwhile; the task is dropped, if it has not begun.
        """
        self._require_open()
        check_type("fn", fn, Callable, "a function. Write submit(fn, x), not submit(fn(x)).")
        if name is not None:
            require_text("name", name)
        after = several("after", after, "a list of handles, as Lane.submit returns them.", Handle)
        handle: Handle[T] = Handle(
            *(name or name_of(fn), self.name, self.device, self.kind),
            waits_for=self._waits_for,
            urge=self._go_on,
        )
        submission = Submission(handle, fn, args, kwargs, after)
        try:
            self._waiting[handle] = None  # before the look: who closes the lane looks here after it
            self._require_open()
            self._queue(submission)
            self._go_on()
            return handle
        except BaseException:
            handle.issued.drop()
            if handle.issued.dropped():
                self._waiting.pop(handle, None)
            raise
        finally:  # if the task has failed by now, its traceback keeps this frame
            del fn, args, kwargs, after, submission, handle

    def wait(self) -> None:
        """Wait for everything submitted so far; raise the first error that nobody has seen."""
        self._drain()
        self._raise_first()

    def _run(self, submission: Submission[Any]) -> None:
        """Issue a task and settle its handle, unless it was dropped."""
        handle = submission.handle
        try:
            submission.wait_for_dependencies()
            if handle.issued.begin():
                submission.require_dependencies()
                handle.issued.set_result(self._issue(submission))
        except BaseException as error:
            late = handle.issued.done()  # what its settling has set off was cut off
            if not late:
                self._fail(handle, error)
            in_main = threading.current_thread() is threading.main_thread()  # where signals come
            if late or (in_main and isinstance(error, KeyboardInterrupt)):
                handle.mark_seen()
                raise
        finally:
            self._waiting.pop(handle, None)
            del submission, handle  # an error's traceback has this frame

    def _fail(self, handle: Handle[Any], error: BaseException) -> None:
        """Settle a handle with its task's error, and keep it until somebody has seen that."""
        note(error, f"in {handle}")
        forget_own_locals(error)
        handle.unseen_in = self._unseen
        self._unseen[handle] = None  # before anybody can know that it has failed
        handle.issued.set_exception(error)

    def _raise_first(self, *, last: bool = False) -> None:
        """Raise the first error that nobody has seen, with the others noted on it if at last."""
        for handle in tuple(self._unseen):
            error = handle.issued.error()
            try:
                if last and error is not None:
                    self._tell(error)
                handle.wait()
            finally:
                del handle, error  # the error's traceback has this frame

    def _tell(self, error: BaseException) -> None:
        """Note on an error that is on its way what else has failed, unseen."""
        others = []
        for handle in tuple(self._unseen):
            other = handle.issued.error()
            handle.mark_seen()
            if handle.blocked_by is None and other is not error:
                others.append(f"{handle} failed, too: {other!r}")
        for text in others[:_MOST_NOTES]:
            note(error, text)
        if len(others) > _MOST_NOTES:
            note(error, f"{len(others) - _MOST_NOTES} more tasks of lane {self.name!r} failed, too")

    def _drop(self) -> None:
        """Drop tasks that have not begun."""
        for handle in tuple(self._waiting):
            handle.issued.drop()

    def _drain(self) -> None:
        """Wait until everything is done or dropped."""
        for handle in tuple(self._waiting):
            handle.wait_until_issued()
            self._waiting.pop(handle, None)

    def __enter__(self) -> Self:
        if self._state != "is not open yet":
            raise RuntimeError(self._not_open())
        self._state = OPEN
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            while error is None and self._state == OPEN:  # until tasks submit no more meanwhile
                self._drain()
                self._state = CLOSING
                self._state = OPEN if self._waiting else LEFT
        except BaseException as broken_off:
            self._close()
            self._tell(broken_off)
            raise
        self._close()
        if error is not None and not isinstance(error, GeneratorExit):  # which nobody sees
            self._tell(error)
        else:
            self._raise_first(last=True)

    def _close(self) -> None:
        """Take no more tasks, drop those that have not begun, and wait for the rest."""
        self._state = LEFT
        self._drop()
        self._drain()

    def _require_open(self) -> None:
        while self._state == CLOSING:
            time.sleep(0)  # two steps of another thread
        if self._state != OPEN:
            raise RuntimeError(self._not_open())

    def _not_open(self) -> str:
        return (
            f"lane {self.name!r} ({self.device}) {self._state}; a lane takes work inside one "
            f"`with` block. Make a new one: with {self._maker}(...) as lane: ..."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name!r} ({self.device}), {self._state}>"

    _maker: str

    @abstractmethod
    def _queue(self, submission: Submission[Any]) -> None:
        """Put a task behind the others, in one step."""

    @abstractmethod
    def _waits_for(self) -> int | Handle[Any] | None:
        """The thread that has to come to what is queued, or what must be issued before."""

    @abstractmethod
    def _issue(self, submission: Submission[T]) -> T:
        """Do a task, or launch it, behind what it waits for, which is issued."""

    @abstractmethod
    def _go_on(self) -> None:
        """Do what the calling thread can do for what is queued."""


def require_text(argument: str, value: object) -> None:
    """Refuse a name that is no text, with a TypeError."""
    check_type(argument, value, str, "text. Leave it out for a name by itself.")
