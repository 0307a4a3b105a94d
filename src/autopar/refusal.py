"""Refusal: how a message says what came in place of what was expected."""

import sys
from types import BuiltinFunctionType, FunctionType

_PLAIN = {
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    type(None),
    FunctionType,
    BuiltinFunctionType,
}
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


def at_least_one(name: str, value: int, most: int = sys.maxsize, *, of: str = "") -> int:
    """The value, unless it is no whole number from 1 up: then a ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        up_to = f", and at most {most:,}" if most < sys.maxsize else ""
        msg = f"{name} is {what(value)}; expected a whole number of at least 1{up_to}{of}."
        raise ValueError(msg)
    return value
