"""Refused: what traced code can't do: its line, the reason in plain words, and the next step.

What is refused where it is called is in tables, for the thread that traces alone.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import random
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from autopar.graph.ctrl_c import hear
from autopar.torch_private import DATA_DEPENDENT

_TORCH, _OWN = Path(torch.__file__).parent, Path(__file__).parents[1]
_PYTHON = Path(random.__file__).parent
_TRACER = Path(__file__).with_name("tracing.py")  # which calls the code
_DATA = (
    "what it does depends on the data, which only a run has. Compute both ways, split the code "
    "there, or let that part be a task of its own, by graph.add()."
)
_COMPILED = (
    "it calls compiled code, as torch.compile makes it, torch.cond and flex_attention too, whose "
    "operators are not seen. Call what was compiled, or let it be a task, by graph.add()."
)
_PRINTS = (
    "it prints or formats a tensor, whose numbers only a run has. Print what run[...] returns."
)
_READS = "it reads a tensor's numbers by {}, which only a run has. Use torch's operators."
_OF_TENSORS: dict[Any, str] = {
    torch.Tensor.__repr__: _PRINTS,
    torch.Tensor.__format__: _PRINTS,
    torch.Tensor.numpy: _READS.format("NumPy"),
    torch.Tensor.__array__: _READS.format("NumPy"),
    torch.Tensor.__dlpack__: _READS.format("DLPack"),
    torch.Tensor.tolist: _READS.format("tolist()"),
    torch.Tensor.__deepcopy__: _READS.format("deepcopy"),
    torch.Tensor.__reduce_ex__: _READS.format("pickle"),
    torch.Tensor.data.__set__: (  # type: ignore[attr-defined]
        "it assigns the `data` of a tensor, whose memory the graph knows. Under torch.no_grad(), "
        "write x.copy_(new)."
    ),
}
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
_ROUNDS = (
    "it rounds a whole number that depends on the data, which only a run has. Leave it as it is, "
    "or use torch.round."
)
# What stands for numbers from data, as `x.sum().item()` and shapes of `x[x > 0]`; by the type that
# they have in a call.
_NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_REFUSED: list[tuple[Any, str, str]] = [
    (threading.Thread, "start", _IN_THREADS),
    (threading.Event, "wait", _IN_THREADS),  # until a thread has done its work, or has started
    (threading.Condition, "wait", _IN_THREADS),
    (concurrent.futures.ThreadPoolExecutor, "submit", _IN_THREADS),
    # It would go on, in later calls too, with what it has learned of tensors without memory.
    (torch, "compile", _COMPILED),
    *((torch.UntypedStorage, name, _STORAGE) for name in ("resize_", "copy_", "fill_")),
    (torch.UntypedStorage, "__setitem__", _STORAGE),
    *((kind, name, _TEXT) for kind in _NUMBERS for name in ("__repr__", "__format__", "__hash__")),
    (torch.SymInt, "__round__", _ROUNDS),
]
# Modules of torch's that may call those: they make messages, and tensors without memory.
_ALLOWED = {torch.UntypedStorage: "torch._subclasses.", **dict.fromkeys(_NUMBERS, "torch")}


class Refused(ValueError):
    """Why code can't be traced, and what to do instead."""


def line_of(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The line of the code that is traced, which is the first that isn't torch's, from inside."""
    for frame in traceback.StackSummary.extract(frames):
        path = Path(frame.filename)
        if path == _TRACER:
            return ""
        libraries = {_TORCH, _OWN} if "site-packages" in path.parts else {_OWN, _PYTHON}
        if path.is_file() and libraries.isdisjoint(path.parents):
            return f"line {frame.lineno} of {path.name}, `{frame.line}`: "
    return ""


def _by_torch(frame: FrameType) -> bool:
    return _TORCH in Path(frame.f_code.co_filename).parents


def raised_in(error: Exception) -> list[tuple[FrameType, int]]:
    """The frames that an error went through, from inside."""
    return [*traceback.walk_tb(error.__traceback__)][::-1]


def reason(error: Exception) -> str:
    """What an error says, and what to do; torch's own may say little of the code."""
    if isinstance(error, Refused):
        return str(error)
    text = "".join(traceback.format_exception_only(error)).replace("FakeTensor", "Tensor")
    # Of a SyntaxError the code comes first, indented.
    first, *more = re.sub(r"\A( .*\n)*|(?<=: )\n", "", text).splitlines()
    if "TorchScript interpreter" in first:  # which puts the error behind the code
        first = next((line for line in more if re.search(r"Error: \S", line)), first)
    if isinstance(error, DATA_DEPENDENT) or "data-dependent" in first:
        return _DATA
    if "dynamo-optimized" in first:
        return _COMPILED
    raised_by = Path(raised_in(error)[0][0].f_code.co_filename)
    if {_TORCH, _OWN / "graph"}.isdisjoint(raised_by.parents):
        return first  # as in a plain call
    return (
        f"{first.rstrip('.')}. If a plain call raises that as well, mend it; if not, torch has "
        f"stricter rules for tensors that have no numbers yet, as here: compute it in another way, "
        f"or let it be a task of its own, by graph.add()."
    )


class Refusals(TorchFunctionMode):
    """Refuses what would read or change tensors without an operator that could be noted."""

    def __init__(self, refuse: Callable[[str], NoReturn]) -> None:
        super().__init__()
        self._refuse = refuse

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        hear()
        if func in _OF_TENSORS:
            self._refuse(_OF_TENSORS[func])
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def answering(questions: dict[str, str], answer: Callable[[], object]) -> Iterator[None]:
    """Give code that asks whether it is traced another answer.

    So it does what it does in a call, which may be slower, and equal but for rounding. `questions`
    are names of functions by module; the answer gets no values, which nobody is to hold.
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
    with Refusals(refuse), contextlib.ExitStack() as back:
        for home, name, why in _REFUSED:
            refused = functools.partial(refuse, why)
            substitute = functools.partial(
                _refused, getattr(home, name), _ALLOWED.get(home), refused
            )
            back.enter_context(_substituted(home, name, substitute))
        for kind in _NUMBERS:
            attribute = functools.partial(_attribute, functools.partial(refuse, _BY_NUMPY))
            back.enter_context(_substituted(kind, "__getattribute__", attribute))
        yield


def _refused(function: Any, allowed: str | None, refused: Any, *args: Any, **_: Any) -> Any:
    """What some of torch's modules call, if any may, and other code may not."""
    frame = sys._getframe(2)
    module = str(frame.f_globals.get("__name__"))
    may = allowed is not None and _by_torch(frame) and module.startswith(allowed)
    return function(*args) if may else refused()


def _attribute(refused: Callable[[], NoReturn], number: Any, name: str) -> Any:
    """An attribute of a number from data, whose class is Python's where `isinstance` asks."""
    if name == "__class__" and not _by_torch(sys._getframe(2)):
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
