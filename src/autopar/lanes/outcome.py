"""Outcome: what becomes of a task, and the error that it ends in, just as it was raised.

Ctrl-C may come between any two steps in the main thread. So whatever is decided here is decided by
one step of the interpreter (a list's `append`, an attribute's assignment) and nothing else has to
follow for others to see it; and who waits looks again from time to time: a wake-up that was cut off
is late then, and nobody waits for ever.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")

_LOOK_AGAIN_S = 0.1  # only for wake-ups that were cut off: seldom enough to cost nothing
_DROPPED = object()  # in place of a value


class Outcome(Generic[T]):
    """A value, an error, or dropped; settled once, and by one thread."""

    __slots__ = ("_calls", "_claims", "_settled")

    def __init__(self) -> None:
        self._claims: list[object] = []  # the first one counts: to run it, or to drop it
        self._settled: tuple[object, BaseException | None, TracebackType | None] | None = None
        self._calls: list[Callable[[], object]] = []  # once settled

    def done(self) -> bool:
        """Whether it is settled."""
        return self._settled is not None or self.dropped()

    def dropped(self) -> bool:
        """Whether it is settled without a value or an error."""
        return bool(self._claims) and self._claims[0] is _DROPPED

    def begin(self) -> bool:
        """Whether to run the task: it was not dropped, and can't be any more."""
        claim = object()
        self._claims.append(claim)
        return self._claims[0] is claim

    def drop(self) -> None:
        """Settle it without a value, if the task has not begun."""
        self._claims.append(_DROPPED)
        if self.dropped():
            self._call()

    def set_result(self, value: T | None, error: BaseException | None = None) -> None:
        """Settle it with a value, or with an error."""
        if self._settled is None:
            self._settled = value, error, None if error is None else error.__traceback__
        self._call()

    def set_exception(self, error: BaseException) -> None:
        """Settle it with an error."""
        self.set_result(None, error)

    def value(self) -> T:
        """The value that it was settled with."""
        assert self._settled is not None
        return cast(T, self._settled[0])

    def error(self) -> BaseException | None:
        """The error that it was settled with, if it was."""
        return None if self._settled is None else self._settled[1]

    def raise_error(self) -> None:
        """Raise the error with the task's traceback, also if it was raised again meanwhile."""
        assert self._settled is not None
        _, error, raised_at = self._settled
        if error is not None:
            raise error.with_traceback(raised_at)

    def wait(self, urge: Callable[[], object] = lambda: None) -> None:
        """Wait until it is settled, and call `urge` before each look; Ctrl-C ends the wait.

        Raises:
            RuntimeError: The process ends, and other threads have stopped.
        """
        woken = threading.Lock()
        woken.acquire()
        self._calls.append(woken.release)
        urge()
        while not self.done() and not woken.acquire(timeout=_LOOK_AGAIN_S):
            if sys.is_finalizing():
                msg = "the process ends, and no other thread goes on, so nothing can be awaited"
                raise RuntimeError(msg)
            urge()

    def call_when_done(self, call: Callable[[], object]) -> None:
        """Call something once it is settled, in the thread that settles it; at once if it is.

        What is to be called already is called once all the same.
        """
        if call not in self._calls:
            self._calls.append(call)
        if self.done():
            self._call()

    def _call(self) -> None:
        try:
            while (call := self._next_call()) is not None:
                call()
        except BaseException:
            self._call()  # the others, before it goes its way
            raise

    def _next_call(self) -> Callable[[], object] | None:
        try:
            return self._calls.pop(0)
        except IndexError:  # also if another thread has taken it
            return None


def note(error: BaseException, text: str) -> None:
    """Add a note to an error that takes one, once; others stay as they are."""
    with contextlib.suppress(Exception):  # a frozen one, or its notes are no list
        if text not in getattr(error, "__notes__", ()):
            BaseException.add_note(error, text)


def noting(text: str, fn: Callable[..., T], *args: Any) -> T:
    """Call a function, and note on an error of it where it was called."""
    try:
        return fn(*args)
    except BaseException as error:
        note(error, text)
        raise
