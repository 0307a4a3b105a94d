"""Refusal: how a message says what came in place of what was expected."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from inspect import CO_VARKEYWORDS
from numbers import Integral, Real
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

_PLAIN = {bool, int, float, complex, str, bytes, type, type(None)}
_PLAIN |= {FunctionType, BuiltinFunctionType}
_MOST_CHARACTERS = 60
_PACKAGE = __name__.partition(".")[0]


def what(value: object) -> str:
    """A value in a few words: itself where it is short, otherwise its type, never its numbers.

    >>> what("abc"), what([1.0] * 1000)
    ("'abc'", 'of type list')
    """
    kind = type(value)
    if kind not in _PLAIN and kind.__module__.partition(".")[0] != _PACKAGE:
        return f"of type {kind.__name__}"
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


class NoValue:
    """What stands for a result: operators and torch's functions refuse it, and say what to do."""

    __slots__ = ()
    __array_ufunc__ = None  # so that NumPy asks the operators here
    __iter__ = None  # or Python would make an iterator of `__getitem__`
    _HOW = ""  # how to get the result

    @classmethod
    def __torch_function__(cls, fn: Any, *_: object) -> Any:
        """Refuse to be an argument of one of torch's functions, or an operand of a tensor."""
        return refuse_no_value(cls, getattr(fn, "__name__", "a function of torch"))

    def __eq__(self, other: object) -> bool:
        """Whether it is the other one; what may be a result is refused."""
        if other is not None and not isinstance(other, NoValue):
            refuse_no_value(type(self), "eq")
        return self is other

    __hash__ = object.__hash__

    def __format__(self, spec: str) -> str:
        """Refuse the formats of numbers."""
        return refuse_no_value(type(self), "format") if spec else str(self)

    if not TYPE_CHECKING:  # which is to find what is no attribute

        def __getattr__(self, name: str) -> object:
            kind = type(self)
            msg = f"a {kind.__name__} has no attribute {name!r}, being no result; {kind._HOW}"
            raise AttributeError(msg, name=name, obj=self)


def refuse_no_value(kind: type[NoValue], operation: str) -> Any:
    """Refuse what stands for a result where an operation is to have the result."""
    msg = f"{operation!r} got a {kind.__name__}, which is no result; {kind._HOW}"
    raise TypeError(msg)


_TWO = ["add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"]
_OTHERS = ["lt", "le", "gt", "ge", "getitem", "neg", "pos", "abs", "invert", "int", "float"]
_OTHERS += ["bool", "len", "index", "round", "array"]
for _name in (*_TWO, *(f"r{name}" for name in _TWO), *_OTHERS):
    setattr(NoValue, f"__{_name}__", lambda self, *_, name=_name: refuse_no_value(type(self), name))


def whole_number(
    argument: str, value: int, least: int = 1, most: int = sys.maxsize, *, of: str = ""
) -> int:
    """The value, unless it is no whole number of that range: then a ValueError."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= value <= most:
        up_to = f", and at most {most:,}" if most < sys.maxsize else ""
        expected = f"expected a whole number of at least {least}{up_to}{of}."
        msg = f"{argument} is {what(value)}; {expected}"
        raise ValueError(msg)
    return int(value)


def positive(
    argument: str, value: float, expected: str, below: float = sys.float_info.max
) -> float:
    """The value, unless it is no number above zero and below the other: then a ValueError."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < value < below:
        msg = f"{argument} is {what(value)}; expected {expected}"
        raise ValueError(msg)
    return float(value)


def check_type(argument: str, thing: object, kind: Any, expected: str) -> None:
    """Refuse what is of another type."""
    if not isinstance(thing, kind):
        msg = f"{argument} is of type {type(thing).__name__}; expected {expected}"
        raise TypeError(msg)


def check_words(argument: str, words: str, expected: str) -> None:
    """Refuse what is no text, or blank: then a ValueError."""
    if not isinstance(words, str) or not words.strip():
        msg = f"{argument} is {what(words)}; expected {expected}"
        raise ValueError(msg)


def check_work(argument: str, work: object) -> None:
    """Refuse what can't be called."""
    expected = "a function of no arguments. Pass it without calling it, or wrap it: lambda: x @ x."
    check_type(argument, work, Callable, expected)


def check_keywords(fn: Any, given: Iterable[str], own: str) -> None:
    """Refuse keywords that a function written in Python doesn't take; `own` are the caller's."""
    if not given:
        return
    from torch.nn import Module  # slow to import, and not needed to read traces

    if issubclass(type(fn), Module) and type(fn).__call__ is Module.__call__:
        if vars(fn).get("_forward_pre_hooks_with_kwargs"):  # which may change them
            return
        fn = fn.forward
    fn = fn.__func__ if type(fn) is MethodType else fn
    if type(fn) is not FunctionType or fn.__code__.co_flags & CO_VARKEYWORDS:
        return
    taken = fn.__code__.co_varnames[: fn.__code__.co_argcount + fn.__code__.co_kwonlyargcount]
    for name in given:
        if name not in taken:
            msg = (
                f"{name}= is no argument of {fn.__name__!r}, nor one of {own}; expected one of "
                f"{', '.join(taken) or '(none)'}. Mend its name, or leave it out."
            )
            raise TypeError(msg)


def several(
    argument: str, things: Iterable[Any], expected: str, kind: type = object
) -> tuple[Any, ...]:
    """Things as a tuple; neither a string, which would be taken for its letters, nor one alone."""
    if isinstance(things, (str, bytes)) or not isinstance(things, Iterable):
        msg = f"{argument} is {what(things)}; expected {expected}"
        raise TypeError(msg)
    chosen = tuple(things)
    for i, thing in enumerate(chosen):
        if not isinstance(thing, kind):
            check_type(f"{argument}[{i}]", thing, kind, f"a {kind.__name__}: {expected}")
    return chosen


class Turns:
    """One user at a time; others are refused, whatever thread they are in."""

    def __init__(self) -> None:
        self._holder: dict[None, tuple[int]] = {}

    def take(self, refusal: str, *, again: bool = False) -> Iterator[None]:
        """Have a turn in a `for` loop, which ends it at once; a RuntimeError says why not.

        With `again` a thread that has a turn may have another within it. Ctrl-C may come after any
        call, so each step is one of the interpreter's, and nothing of contextlib is used.
        """
        turn = (threading.get_ident(),)
        try:
            holder = self._holder.setdefault(None, turn)
            if holder is not turn and not (again and holder == turn):
                raise RuntimeError(refusal)
            yield
        finally:
            if None in self._holder and self._holder[None] is turn:
                del self._holder[None]  # without a call, which Ctrl-C might cut off
