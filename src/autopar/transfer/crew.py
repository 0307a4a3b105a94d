"""Crew: the threads of a ring, which Ctrl-C can't interrupt and no process waits for at its end."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable

from typing_extensions import override

from autopar.machine import settle_threads
from autopar.transfer.load import Latch

_LOOK_S = 1e-3  # between two looks at a thread that is waited for no longer than so long


class Member(threading.Thread):
    """A thread that works once, with a number of intra-op threads of its own.

    A daemon: Python waits for other threads before it closes what would tell them to end.

    Args:
        name: What it is called, as in profilers.
        work: What it does.
        torch_threads: Threads that one operator of it may use.
    """

    def __init__(self, name: str, work: Callable[[], None], torch_threads: int = 1) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._torch_threads = torch_threads
        self._settled, self.ended = Latch(1), Latch(1)
        self._failure: BaseException | None = None

    @override
    def run(self) -> None:
        try:
            settle_threads(self._torch_threads)
        except BaseException as failure:
            self._failure = failure
        failed = self._failure is not None
        self._settled.open()
        try:
            if not failed:
                self._work()
        finally:
            del self._work
            self.ended.open()

    def wait_until_settled(self) -> None:
        """Wait until it has its number of intra-op threads.

        Raises:
            Exception: It can't have so many.
        """
        self._settled.synchronize()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


class Crew:
    """Threads that are started together.

    Another thread starts them: `Thread.start` and `Thread.join` are not made for the exception
    that Ctrl-C raises in the main thread, and lose threads by it, or wait for ever.

    Args:
        *members: The threads.
    """

    def __init__(self, *members: Member) -> None:
        self._members = members
        self._starting = self._dismissed = False
        self._started = Latch(1)
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start them, and wait until each has its number of intra-op threads.

        Raises:
            RuntimeError: There can't be so many; some run already.
        """
        _thread.start_new_thread(self._start, ())
        self._started.synchronize()
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # or it and this frame would keep each other

    def dismiss(self) -> None:
        """Start no more of them, and know who runs."""
        self._dismissed = True
        if self._starting:
            self._started.synchronize()

    def wait(self, at_most_s: float | None = None) -> bool:
        """Wait until those that run have ended, and tell whether they have; Ctrl-C ends the wait.

        One of them does not wait: it may be who collects the garbage that they belong to.
        """
        if threading.current_thread() in self._members:
            return False
        until_s = time.monotonic() + (at_most_s or 0)
        for member in self._members:
            if member.ident is None:
                continue
            if at_most_s is None:
                member.ended.synchronize()
                member.join()
            while not member.ended.query() and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
        return all(member.ident is None or member.ended.query() for member in self._members)

    def _start(self) -> None:
        self._starting = True
        try:
            for member in self._members:
                if self._dismissed:
                    break
                member.start()
                member.wait_until_settled()
        except BaseException as failure:
            self._failure = failure
        self._started.open()
