"""Owner: whether anybody else can still reach the memory of a tensor that was just handed over."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from weakref import getweakrefcount

import torch

from autopar.torch_private import storage_use_count


def next_owned(source: Iterator[torch.Tensor]) -> tuple[torch.Tensor, bool]:
    """The next tensor of an iterator, and whether its taker is its memory's only owner.

    If so, nothing can write to it later. Any name, container, view, array, weak reference or saved
    tensor that still leads to it makes it false, as for `y` in `y = f(x); yield y`, but not in
    `yield f(x)`.

    Raises:
        StopIteration: There is none.
    """
    tensor = next(source)
    owned = sys.getrefcount(tensor) == _names_of_a_sole_owner() and _is_only_tensor(tensor)
    return tensor, owned


@cache
def _names_of_a_sole_owner() -> int:
    """References to a Python object that nobody else has; how many depends on Python's version."""
    tensor = next(iter(torch.empty(1) for _ in range(1)))
    return sys.getrefcount(tensor)


def _is_only_tensor(tensor: torch.Tensor) -> bool:
    """Whether nothing else leads to torch's tensor behind it, nor to its memory."""
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
        return False
    if tensor._use_count() > 1 or getweakrefcount(tensor):  # type: ignore[attr-defined]
        return False
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # as inside of vmap
        return False
    if getweakrefcount(storage):
        return False
    # Memory that torch can't resize is an array's, or somebody else's.
    return storage.resizable() and _users(storage) == _users_of_own_memory()


@cache
def _users_of_own_memory() -> tuple[int, int]:
    tensor = torch.empty(1)
    storage = tensor.untyped_storage()
    return _users(storage)


def _users(storage: torch.UntypedStorage) -> tuple[int, int]:
    """References to Python's object for a tensor's memory, and of torch's tensors to it."""
    return sys.getrefcount(storage), storage_use_count(storage._cdata)
