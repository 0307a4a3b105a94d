"""Memory: the tensors, arrays and storages that a value holds, wherever it holds them."""

from __future__ import annotations

import contextlib
import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch

MEMORY = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)
# What leads to no memory, or to that of the whole program.
_CLOSED = (str, bytes, int, float, complex, type(None), range, type, types.ModuleType)


def memory_in(*values: object) -> Iterator[Any]:
    """Tensors, arrays and storages in values: in containers, objects' attributes and closures.

    This is what a task hands on with its result, whatever the code names that uses it.
    """
    left, seen = [*values], dict[int, object]()  # by number, and kept, as numbers are used again
    while left:
        value = left.pop()
        if isinstance(value, _CLOSED) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, MEMORY) or is_array(value):
            yield value
        elif isinstance(value, (list, tuple, Set, deque)):
            left += value
        else:
            with contextlib.suppress(Exception):  # what objects do when they are asked
                left += _held_by(value)


def _held_by(value: Any) -> Iterator[object]:
    """What an object leads to, but for its class."""
    if isinstance(value, Mapping):
        yield from (*value.keys(), *value.values())
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.FunctionType):
        yield from (value.__closure__, value.__defaults__, value.__kwdefaults__)
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield value.__self__
    elif isinstance(value, types.CellType):
        yield value.cell_contents  # an error where it is empty still
    for kind in type(value).__mro__:
        own = vars(kind).get("__slots__", ())
        yield from (getattr(value, each, None) for each in ([own] if own is str(own) else own))
        if "__dict__" in vars(kind):
            yield from vars(value).values()


def is_array(value: object) -> bool:
    """Whether something is a NumPy array, without importing NumPy."""
    return type(value).__module__ == "numpy" and hasattr(value, "__array_interface__")
