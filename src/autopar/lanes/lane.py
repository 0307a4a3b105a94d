"""Lane: an in-order queue of work, on a CUDA stream or on a CPU worker thread.

    lane.submit(fn) -- returns at once --> Handle -- result() --> the value, once it is there

A task waits for the handles among its arguments and in `after=`:

    waits on     for a CPU task                       for a CUDA task
    CPU lane     the worker waits for its future      the worker waits for its end event
    CUDA lane    launched by whoever finishes it      the stream waits for its end event

A lane's state is its queue, whose head leaves it once it is issued, and the handles of tasks whose
errors nobody has seen; all else that becomes of a task is in its handle.
"""

from __future__ import annotations

import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

import torch

from autopar.effects.calls import name_of
from autopar.lanes.handle import Handle
from autopar.lanes.outcome import note
from autopar.lanes.submission import Submission
from autopar.refusal import check_keywords, check_type, several, what

T = TypeVar("T")

_KINDS = ("compute", "copy", "host")  # what lanes do
_NEW, OPEN, LEFT = "is not open yet", "is open", "was left"
ENDED = "has ended with the process"
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
        self._state = _NEW
        self._admitting = threading.RLock()  # between the look at the state and what follows
        # Results belong to the caller: a lane holds on to tasks until they are issued, no longer,
        # and to handles of failed ones until their errors were seen.
        self._pending: deque[Submission[Any]] = deque()
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
        variables and, on a CPU lane, the current GPU. What a task leaves switched reaches no other,
        but for the number of PyTorch's threads, and for what PyTorch has once for the process, as
        the default dtype.

        Args:
            fn: The task.
            *args: Its arguments.
            name: The task's name; if not given, the function's, or that of the module's class.
            after: Tasks that must be done before, on any lane.
            **kwargs: Its keyword arguments.

        Raises:
            RuntimeError: The lane is not open, or the caller is inside a transform of `torch.func`.
            TypeError: `fn` can't be called, or takes no such keyword, `name` is no text, or `after`
                is, or holds, something other than handles.
            KeyboardInterrupt: Ctrl-C came meanwhile; the task is dropped, if it has not begun.
        """
        check_type("fn", fn, Callable, "a function. Write submit(fn, x), not submit(fn(x)).")
        check_keywords(fn, kwargs, "submit's own: name=, after=")
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
            with self._admitting:
                self._require(OPEN)
                self._pending.append(submission)
            self._go_on()
            return handle
        except BaseException:
            handle._issued.drop()
            raise

    def wait(self) -> None:
        """Wait for everything submitted so far; raise the first error that nobody has seen."""
        self._drain()
        self._raise_first()

    def _do_pending(self) -> None:
        """Issue tasks in order, until one waits for what is not issued."""
        while self._pending and self._blocker() is None:
            try:
                self._run(self._pending[0])
            except BaseException as error:
                if self._comes_out(self._pending[0].handle, error):
                    raise
            self._pending.popleft()  # not before: then what is cut off would be lost

    def _run(self, submission: Submission[Any]) -> None:
        """Issue a task and settle its handle, unless it was dropped."""
        submission.wait_for_dependencies()
        issued = submission.handle._issued
        if issued.begin():
            submission.require_dependencies()
            issued.set_result(self._issue(submission))
        elif not issued.done():  # nobody else runs tasks of this lane at the same time
            msg = f"{submission.handle} was cut off as it began"
            raise KeyboardInterrupt(msg)

    def _comes_out(self, handle: Handle[Any], error: BaseException) -> bool:
        """Settle a handle with its task's error; whether the error comes out here, too.

        That are Ctrl-C, and what has cut off the calls that the handle's settling has set off.
        """
        cut_off = handle._issued.done()
        if not cut_off:
            self._fail(handle, error)
        in_main = threading.current_thread() is threading.main_thread()  # where signals come
        if cut_off or (in_main and isinstance(error, KeyboardInterrupt)):
            handle._mark_seen()
            return True
        return False

    def _fail(self, handle: Handle[Any], error: BaseException) -> None:
        """Settle a handle with its task's error, and keep it until somebody has seen that."""
        note(error, f"in {handle}")
        handle._unseen_in = self._unseen
        self._unseen[handle] = None  # before anybody can know that it has failed
        handle._issued.set_exception(error)

    def _raise_first(self) -> None:
        """Raise the first error that nobody has seen."""
        for handle in tuple(self._unseen):
            handle.wait()

    def _tell(self, error: BaseException) -> None:
        """Note on an error that is on its way what else has failed, unseen."""
        others = []
        for handle in tuple(self._unseen):
            other = handle._issued.error()
            handle._mark_seen()
            if handle._blocked_by is None and other is not None and other is not error:
                said = traceback.format_exception_only(other)[0].strip()
                others.append(f"{handle} failed, too: {said}")
        texts = [*dict.fromkeys(others)][:_MOST_NOTES]
        for text in texts:
            note(error, text)
        if more := len(others) - len(texts):
            note(error, f"{more} more tasks of lane {self.name!r} failed, too")

    def _drop(self, state: str = LEFT) -> None:
        """Take no more tasks, and drop those that have not begun."""
        with self._admitting:
            self._state = state
        for handle in self._unissued():
            handle._issued.drop()

    def _drain(self) -> None:
        """Wait until everything is issued or dropped."""
        for handle in self._unissued():
            handle._wait_until_issued()

    def _unissued(self) -> list[Handle[Any]]:
        """Tasks that are neither issued nor dropped, in order."""
        handles = [submission.handle for submission in tuple(self._pending)]
        return [handle for handle in handles if not handle._issued.done()]

    def __enter__(self) -> Self:
        self._require(_NEW)
        self._state = OPEN
        return self

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        try:
            while error is None and self._state == OPEN:  # until tasks submit no more meanwhile
                self._drain()
                with self._admitting:
                    self._state = OPEN if self._unissued() else LEFT
            self._close()
            if error is None or isinstance(error, GeneratorExit):  # which nobody sees
                self._raise_first()
            else:
                self._tell(error)
        except BaseException as first:
            self._close()
            self._tell(first)
            raise

    def _close(self) -> None:
        """Take no more tasks, drop those that have not begun, and wait for the rest."""
        self._drop()
        self._drain()

    def _require(self, state: str) -> None:
        if self._state != state:
            msg = (
                f"lane {self.name!r} ({self.device}) {self._state}; a lane takes work inside one "
                f"`with` block. Make a new one: with {self._maker}(...) as lane: ..."
            )
            raise RuntimeError(msg)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name!r} ({self.device}), {self._state}>"

    _maker: str

    @abstractmethod
    def _waits_for(self) -> int | Handle[Any] | None:
        """The thread that has to come to what is pending, or what must be issued before."""

    @abstractmethod
    def _blocker(self) -> Handle[Any] | None:
        """What must be issued before the first pending task can be begun with, if anything."""

    @abstractmethod
    def _issue(self, submission: Submission[T]) -> T:
        """Do a task, or launch it, behind what it waits for, which is issued."""

    @abstractmethod
    def _go_on(self) -> None:
        """Do what the calling thread can do for what is pending."""


def require_text(argument: str, value: object) -> None:
    """Refuse a name that is no text, with a TypeError."""
    check_type(argument, value, str, "text. Leave it out for a name by itself.")
