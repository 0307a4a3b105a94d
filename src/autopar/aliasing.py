"""Aliasing: where a tensor's bytes lie, and whether a function's results may lie there, too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autopar.access import Stretch


def stretches_of(values: object) -> Iterator[Stretch]:
    """The memory of the tensors in nested containers, by address."""
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and leaf.numel():
            first = int(leaf.storage_offset())
            steps = zip(leaf.shape, leaf.stride(), strict=True)
            last = first + sum((int(size) - 1) * int(stride) for size, stride in steps)
            memory = (str(leaf.device), leaf.untyped_storage().data_ptr())
            yield Stretch(memory, first * leaf.itemsize, (last + 1) * leaf.itemsize)


def returns_fresh(fn: Callable[..., Any]) -> bool:
    """Whether results of a function never lie in the memory of its arguments, as far as is known.

    That is known of torch's operators, which declare it, unless called with `out`; of other
    functions it is not.

    >>> returns_fresh(torch.mm), returns_fresh(torch.t), returns_fresh(lambda x: x)
    (True, False, False)
    """
    if isinstance(fn, functools.partial):
        return "out" not in fn.keywords and returns_fresh(fn.func)
    schemas = _schemas_of(fn)
    return bool(schemas) and all(
        each.alias_info is None for schema in schemas for each in schema.returns
    )


def _schemas_of(fn: Callable[..., Any]) -> list[Any]:
    if isinstance(fn, torch._ops.OpOverload):
        return [fn._schema]
    name = getattr(fn, "__name__", "")
    homes = (torch, torch.Tensor, torch._C._nn, torch.linalg)
    if not name or all(getattr(home, name, None) is not fn for home in homes):
        return []
    if "dropout" in name:  # out of training it gives its argument back, and doesn't declare it
        return []
    found = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return [each for each in found if not any(argument.is_out for argument in each.arguments)]
