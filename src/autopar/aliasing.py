"""Aliasing: where a tensor's bytes lie, and whether a function's results may lie there, too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autopar.access import Stretch
from autopar.task import reached_by

# Operators made of others declare nothing of their own; these are known to return fresh memory.
_FRESH = {"matmul", "linear", "softmax", "log_softmax", "conv1d", "conv2d", "conv3d"}
# These declare nothing, and may give their argument back, or a part of it.
_NOT_FRESH = {"dequantize", "to_dense", "conj_physical", "to_mkldnn"}


def stretches_of(values: object) -> Iterator[Stretch]:
    """The memory of the tensors in nested containers, by address."""
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and leaf.numel():
            steps = zip(leaf.shape, leaf.stride(), strict=True)
            last = sum((int(size) - 1) * int(stride) for size, stride in steps)
            start = leaf.data_ptr()
            yield Stretch(str(leaf.device), start, start + (last + 1) * leaf.itemsize)


def reached_tensors(fn: Callable[..., Any]) -> Iterator[torch.Tensor]:
    """Tensors that a function can use without being given them, as far as it shows.

    Those of its closure, defaults and named globals, what it is bound to, and a module's own.
    """
    if isinstance(fn, torch._ops.OpOverload):
        return
    for found in pytree.tree_leaves([fn, getattr(fn, "__self__", None), *reached_by(fn)]):
        if isinstance(found, torch.Tensor):
            yield found
        elif isinstance(found, torch.nn.Module):
            yield from found.parameters()
            yield from found.buffers()


def returns_fresh(fn: Callable[..., Any]) -> bool:
    """Whether results of a function never lie in the memory of its arguments, as far as is known.

    That is known of torch's operators, which declare it, unless called with `out`; of other
    functions, and of operators made of others, it is not.

    >>> returns_fresh(torch.mm), returns_fresh(torch.t), returns_fresh(lambda x: x)
    (True, False, False)
    """
    if isinstance(fn, functools.partial):
        return "out" not in fn.keywords and returns_fresh(fn.func)
    name, schemas = _schemas_of(fn)
    if name in _FRESH:
        return True
    if name in _NOT_FRESH or "unsafe" in name or "dropout" in name:
        return False
    made_of_others = name and torch._C._dispatch_has_kernel_for_dispatch_key(
        _operator(schemas), "CompositeImplicitAutograd"
    )
    return (
        not made_of_others
        and any(schema.returns for schema in schemas)
        and all(each.alias_info is None for schema in schemas for each in schema.returns)
    )


def written_by(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """Which arguments one of torch's operators changes in place, by its own declaration.

    >>> x = torch.ones(2)
    >>> written_by(torch.Tensor.add_, (x, 1))[0] is x, written_by(torch.add, (x, 1))
    (True, [])
    """
    name, schemas = _schemas_of(fn)
    changes = isinstance(fn, torch._ops.OpOverload) or name.endswith("_")
    if not changes or name.endswith("__"):
        return []
    declared = [
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in schemas[0].arguments[: len(args)]
    ]
    return [value for value, is_written in zip(args, declared, strict=False) if is_written]


def _operator(schemas: list[Any]) -> str:
    """The name that torch dispatches the first of some overloads by."""
    overload = schemas[0].overload_name
    return f"{schemas[0].name}.{overload}" if overload else str(schemas[0].name)


def _schemas_of(fn: Callable[..., Any]) -> tuple[str, list[Any]]:
    """The name of one of torch's operators and its declarations; nothing for other functions."""
    if isinstance(fn, torch._ops.OpOverload):
        return fn._schema.name.partition("::")[2], [fn._schema]
    name = getattr(fn, "__name__", "")
    homes = (torch, torch.Tensor, torch._C._nn, torch.linalg)
    if not name or all(getattr(home, name, None) is not fn for home in homes):
        return "", []
    found = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    schemas = [each for each in found if not any(argument.is_out for argument in each.arguments)]
    return (name, schemas) if schemas else ("", [])
