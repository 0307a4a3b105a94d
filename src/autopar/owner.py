"""Owner: whether anybody else can still reach the memory of a tensor that was just handed over."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache

import torch


def next_owned(source: Iterator[torch.Tensor]) -> tuple[torch.Tensor, bool]:
    """The next tensor of an iterator, and whether its taker is its memory's only owner.

    If so, nothing can write to it later. Any name, container, view, array or saved tensor that
    still leads to it makes it false, as for `y` in `y = f(x); yield y`, but not in `yield f(x)`.

    Raises:
        StopIteration: There is none.
    """
    tensor = next(source)
    return tensor, _references(tensor) == _of_sole_owner()


@cache
def _of_sole_owner() -> tuple[int, ...]:
    """The references to a tensor that nobody else has, counted on one taken in the same way.

    How many they are depends on the version of Python.
    """
    tensor = next(iter(torch.empty(1) for _ in range(1)))
    return _references(tensor)


def _references(tensor: torch.Tensor) -> tuple[int, ...]:
    """How many refer to the Python object, to torch's tensor behind it, and to its memory."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        return ()
    storage = tensor.untyped_storage()
    return (
        sys.getrefcount(tensor),
        tensor._use_count(),  # type: ignore[attr-defined]
        torch._C._storage_Use_Count(storage._cdata),
    )
