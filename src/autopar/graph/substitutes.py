"""Substitutes: what traced code finds in place of some functions, in its own thread alone."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn


@contextlib.contextmanager
def answering(
    questions: dict[str, str], answer: Callable[[], bool], asked: list[bool]
) -> Iterator[None]:
    """Give code that asks whether it is traced another answer, and note in `asked` that it did.

    So it does what it does in a call, which may be slower, and equal but for rounding.

    Args:
        questions: By module, the name of a function that is asked, if the module is loaded.
        answer: Tells what it returns.
        asked: Gets an entry for each question.
    """

    def answered(*values: Any, **options: Any) -> bool:
        asked.append(True)  # and no values, which nobody is to hold
        return answer()

    with contextlib.ExitStack() as back:
        for module, name in questions.items():
            library = sys.modules.get(module)
            if hasattr(library, name):
                back.enter_context(_substituted(library, name, answered))
        yield


@contextlib.contextmanager
def refusing_threads(refuse: Callable[..., NoReturn]) -> Iterator[None]:
    """Refuse code that starts a thread, or gives work to a pool of them."""
    pool = concurrent.futures.ThreadPoolExecutor
    with _substituted(threading.Thread, "start", refuse), _substituted(pool, "submit", refuse):
        yield


@contextlib.contextmanager
def _substituted(home: Any, name: str, substitute: Callable[..., Any]) -> Iterator[None]:
    """Call another function where this thread calls one by its name."""
    me, function = threading.get_ident(), getattr(home, name)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        called = substitute if threading.get_ident() == me else function
        return called(*args, **kwargs)

    setattr(home, name, call)
    try:
        yield
    finally:
        setattr(home, name, function)
