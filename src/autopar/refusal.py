"""Refusal: how a message says what came in place of what was expected."""

import math
import sys
from collections.abc import Callable, Iterable
from inspect import CO_VARKEYWORDS
from numbers import Integral, Real
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NoReturn

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
    """What stands for a result: what Python or NumPy would do with it as it is, is refused.

    Other operators and torch's functions refuse it by themselves, and name its type.
    """

    __slots__ = ()
    __array_ufunc__ = None  # so that NumPy asks the operators here
    _HOW = ""  # how to get the result

    def __eq__(self, other: object) -> bool:
        """Whether it is the other one; what may be a result is refused."""
        if other is not None and not isinstance(other, NoValue):
            refuse_no_value(type(self), "==")
        return self is other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        """Refuse to be a condition."""
        return refuse_no_value(type(self), "bool")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """Refuse to be an array."""
        refuse_no_value(type(self), "array")


def refuse_no_value(kind: type[NoValue], operation: str) -> NoReturn:
    """Refuse what stands for a result where an operation is to have the result."""
    msg = f"{operation!r} got a {kind.__name__}, which is no result; {kind._HOW}"
    raise TypeError(msg)


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


def positive(argument: str, value: float, expected: str, below: float = math.inf) -> float:
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


def check_work(argument: str, work: object) -> None:
    """Refuse what can't be called."""
    expected = "a function of no arguments. Pass it without calling it, or wrap it: lambda: x @ x."
    check_type(argument, work, Callable, expected)


def check_keywords(fn: Any, given: Iterable[str], own: str) -> None:
    """Refuse keywords that a function written in Python doesn't take; `own` are the caller's."""
    if not given:
        return
    from torch.nn import Module  # slow to import, and not needed to read traces

    if issubclass(type(fn), Module) and type(fn).__call__ is Module.__call__ and not _hooks(fn):
        fn = fn.forward
    fn = fn.__func__ if type(fn) is MethodType else fn
    if type(fn) is FunctionType and not fn.__code__.co_flags & CO_VARKEYWORDS:
        code = fn.__code__
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        check_taken(fn.__name__, given, taken, own)


def check_taken(fn: str, given: Iterable[str], taken: Iterable[str], own: str) -> None:
    """Refuse keywords that a function doesn't take."""
    for name in given:
        if name not in taken:
            msg = (
                f"{name}= is no argument of {fn!r}, nor one of {own}; expected one of "
                f"{', '.join(taken) or '(none)'}. Mend its name, or leave it out."
            )
            raise TypeError(msg)


def _hooks(module: object) -> object:
    """What may change a module's keywords before it is called."""
    return vars(module).get("_forward_pre_hooks_with_kwargs")


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
