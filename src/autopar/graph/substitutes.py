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

from autopar.graph.refused import COMPILED, by_torch

_IN_THREADS = (
    "it starts a thread, or gives work to one, whose operators are not seen, and the graph has its "
    "own lanes. Call them one after another."
)
_TEXT = (
    "it prints or formats a number that depends on the data, or has it as a key; only a run has "
    "it. Print what run[...] returns."
)
_BY_NUMPY = (
    "it computes by NumPy with a number that depends on the data, which only a run has. Use "
    "torch's operators."
)
_STORAGE = "it changes a tensor's storage, which no operator shows. Write x.copy_(new)."
_ROUNDS = "it rounds a whole number that depends on the data. Leave it as it is."
# What stands for numbers from data, as `x.sum().item()` and shapes of `x[x > 0]`; by the type that
# they have in a call.
_NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_REFUSED: list[tuple[Any, str, str]] = [
    (threading.Thread, "start", _IN_THREADS),
    (threading.Event, "wait", _IN_THREADS),  # until a thread has done its work, or has started
    (threading.Condition, "wait", _IN_THREADS),
    (concurrent.futures.ThreadPoolExecutor, "submit", _IN_THREADS),
    # It would go on, in later calls too, with what it has learned of tensors without memory.
    (torch, "compile", COMPILED),
    *((torch.UntypedStorage, name, _STORAGE) for name in ("resize_", "copy_", "fill_")),
    (torch.UntypedStorage, "__setitem__", _STORAGE),
    *((kind, name, _TEXT) for kind in _NUMBERS for name in ("__repr__", "__format__", "__hash__")),
    (torch.SymInt, "__round__", _ROUNDS),
]
_TORCHS = {torch.UntypedStorage, *_NUMBERS}  # which torch's own code may use


@contextlib.contextmanager
def answering(questions: dict[str, str], answer: Callable[[], object]) -> Iterator[None]:
    """Give code that asks whether it is traced another answer.

    So it does what it does in a call, which may be slower, and equal but for rounding.

    Args:
        questions: By module, the name of a function that is asked, if the module is loaded.
        answer: Tells what it returns, and gets no values, which nobody is to hold.
    """
    with contextlib.ExitStack() as back:
        for module, name in questions.items():
            if hasattr(library := sys.modules.get(module), name):
                back.enter_context(_substituted(library, name, lambda *_, **__: answer()))
        yield


@contextlib.contextmanager
def refusing(refuse: Callable[..., NoReturn]) -> Iterator[None]:
    """Refuse code that calls operators where they are not seen; `refuse` is told why.

    Numbers that depend on the data have no text either, and say that they are of Python's types.
    """
    with contextlib.ExitStack() as back:
        for home, name, why in _REFUSED:
            function = getattr(home, name) if home in _TORCHS else None
            substitute = functools.partial(_refused, function, functools.partial(refuse, why))
            back.enter_context(_substituted(home, name, substitute))
        for kind in _NUMBERS:
            attribute = functools.partial(_attribute, functools.partial(refuse, _BY_NUMPY))
            back.enter_context(_substituted(kind, "__getattribute__", attribute))
        yield


def _refused(function: Any, refused: Callable[[], NoReturn], *args: Any, **_: Any) -> Any:
    """What torch's own code calls, if it may, and other code may not."""
    return function(*args) if function and by_torch(sys._getframe(2)) else refused()


def _attribute(refused: Callable[[], NoReturn], number: Any, name: str) -> Any:
    """An attribute of a number from data, whose class is Python's where `isinstance` asks."""
    if name == "__class__" and not by_torch(sys._getframe(2)):
        return _NUMBERS[type(number)]
    if name.startswith("__array"):  # for which NumPy asks
        refused()
    return object.__getattribute__(number, name)


@contextlib.contextmanager
def _substituted(home: Any, name: str, substitute: Callable[..., Any]) -> Iterator[None]:
    """Call another function where this thread calls one by its name."""
    function, substitutes = getattr(home, name), {threading.get_ident(): substitute}
    inherited = name not in vars(home)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return substitutes.get(threading.get_ident(), function)(*args, **kwargs)

    setattr(home, name, call)
    try:
        yield
    finally:
        delattr(home, name) if inherited else setattr(home, name, function)
        substitutes.clear()  # as another thread may still be in `call`, and hold it
