"""Substitutes: what traced code finds in place of some functions, in its own thread alone."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from autopar.graph.refused import COMPILED

_IN_THREADS = (
    "it starts a thread, or gives work to one, whose operators are not seen, and the graph has its "
    "own lanes. Call them one after another."
)
_REFUSED = (
    (threading.Thread, "start", _IN_THREADS),
    (concurrent.futures.ThreadPoolExecutor, "submit", _IN_THREADS),
    # It would go on, in later calls too, with what it has learned of tensors without memory.
    (torch, "compile", COMPILED),
)


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
def refusing(refuse: Callable[[str], Callable[..., NoReturn]]) -> Iterator[None]:
    """Refuse code that calls operators where they are not seen; `refuse` is told why."""
    with contextlib.ExitStack() as back:
        for home, name, why in _REFUSED:
            back.enter_context(_substituted(home, name, refuse(why)))
        yield


@contextlib.contextmanager
def _substituted(home: Any, name: str, substitute: Callable[..., Any]) -> Iterator[None]:
    """Call another function where this thread calls one by its name."""
    function, substitutes = getattr(home, name), {threading.get_ident(): substitute}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return substitutes.get(threading.get_ident(), function)(*args, **kwargs)

    setattr(home, name, call)
    try:
        yield
    finally:
        setattr(home, name, function)
        substitutes.clear()  # as another thread may still be in `call`, and hold it
