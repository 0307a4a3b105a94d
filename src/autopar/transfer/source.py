"""Source: the iterable that items come from, and whether anybody else can reach one's memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar
from weakref import getweakrefcount

import torch

from autopar.refusal import what
from autopar.torch_private import storage_use_count

T = TypeVar("T")

_PLAIN = (bool, int, float, str, bytes, type(None))  # have no memory that changes
_GIVEN = {list, tuple, type(iter([])), type(iter(()))}  # whose items are there already


def iterated(values: Iterable[T], name: str, instead: str) -> Iterator[T]:
    """An iterator, refused for what could only be a mistake."""
    if isinstance(values, torch.Tensor):
        msg = f"{name} is a single tensor; expected an iterable of them. Pass {instead}."
        raise TypeError(msg)
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        msg = f"{name} is {what(values)}; expected an iterable of tensors. Pass {instead}."
        raise TypeError(msg)
    return iter(values)


def is_given(values: Iterable[Any]) -> bool:
    """Whether all items are there already; a subclass may make them as it is iterated over."""
    return type(values) in _GIVEN


def next_owned(source: Iterator[T]) -> tuple[T, bool]:
    """The next item of an iterator, and whether its taker is the only owner of its memory.

    If so, nothing can write to it later. Any name, container, view, array, weak reference or saved
    tensor that still leads to a tensor makes it false, as for `y` in `y = f(x); yield y`, but not
    in `yield f(x)`. An item may be a tensor, or lists, tuples and dicts of tensors.

    Raises:
        StopIteration: There is none.
    """
    item = next(source)
    owned = sys.getrefcount(item) == _of_one_owner()[0] and _is_only_owner(item)
    return item, owned


def _is_only_owner(item: object) -> bool:
    """Whether what leads to an item is all that leads to its memory."""
    if isinstance(item, torch.Tensor):
        return is_only_tensor(item)
    if type(item) not in (list, tuple, dict):
        return isinstance(item, _PLAIN)
    for part in item.values() if isinstance(item, dict) else item:  # type: ignore[attr-defined]
        if isinstance(part, _PLAIN):
            continue
        if sys.getrefcount(part) > _of_one_owner()[1] or not _is_only_owner(part):
            return False
    return True


def is_only_tensor(tensor: torch.Tensor) -> bool:
    """Whether nothing else leads to torch's tensor behind it, nor to its memory."""
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
        return False
    if tensor._use_count() > 1 or getweakrefcount(tensor):  # type: ignore[attr-defined]
        return False
    try:
        # Memory that torch can't resize is an array's, or somebody else's.
        return tensor.untyped_storage().resizable() and is_only_memory(tensor)
    except NotImplementedError:  # as inside of vmap
        return False


def is_only_memory(tensor: torch.Tensor, others: int = 0) -> bool:
    """Whether nothing but a tensor, and so many others of torch's, leads to its memory."""
    weak, names, users = _users_of(tensor)
    return (weak, names, users - others) == _of_one_owner()[2]


def _users_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    storage = tensor.untyped_storage()
    users = storage_use_count(storage._cdata)
    return getweakrefcount(storage), sys.getrefcount(storage), users


@cache
def _of_one_owner() -> tuple[int, int, tuple[int, int, int]]:
    """References to what nobody else has: an item, a part of one, and memory, in Python and torch.

    How many these are depends on the version of Python.
    """
    item = next(iter(torch.empty(1) for _ in range(1)))
    for part in [torch.empty(1)]:
        names = sys.getrefcount(part)
    return sys.getrefcount(item), names, _users_of(item)
