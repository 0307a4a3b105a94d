"""Ctrl-C: held back while code is traced, and heard between its functions.

Torch's C++ asks tensors without memory in Python where no error may come out: for their sizes, say.
A KeyboardInterrupt that is raised there aborts the process.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_heard: list[Callable[[], object]] = []


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold it back until the end, or until code asks; a second one comes at once."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return

    def note(number: int, frame: Any) -> None:
        # Without its frame, in which are tensors of the trace.
        _heard.append(functools.partial(handler, number, None))
        if len(_heard) > 1:
            _heard.clear()
            for _ in range(2):
                handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        hear()


def hear() -> None:
    """Let it come if it was held back; called where an error may come out."""
    if _heard and threading.current_thread() is threading.main_thread():
        _heard.pop()()
