"""Aliasing: where a tensor's bytes lie, and whether a function's results may lie there, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from autopar.effects.access import Stretch
from autopar.effects.calls import plain, qualified, schemas_of
from autopar.effects.memory import MEMORY, is_array

_ORDINARY = {torch.Tensor, torch.nn.Parameter}
# Operators made of others declare nothing of their own; these are known to return fresh memory.
_FRESH = {"matmul", "linear", "softmax", "log_softmax", "conv1d", "conv2d", "conv3d"}
# These declare nothing, and may give their argument back, or a part of it.
_NOT_FRESH = {"dequantize", "to_dense", "conj_physical", "to_mkldnn", "lift"}
_NOT_FRESH_PARTS = ("unsafe", "dropout", "sparse", "nested")


def stretches_of(values: object) -> Iterator[Stretch]:
    """The memory of tensors, storages and arrays in nested containers, by address.

    What has no address, as an empty tensor, counts as a memory of its own.
    """
    for leaf in [values] if isinstance(values, MEMORY) else pytree.tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            yield from map(_stretch, parts_of(leaf))
        elif isinstance(leaf, (torch.UntypedStorage, torch.TypedStorage)):
            start = leaf.data_ptr()
            yield Stretch(str(leaf.device), start, start + leaf.nbytes())
        elif is_array(leaf):
            yield _stretch_of_array(leaf)


def parts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with memory that one is made of: itself, or a sparse one's indices and values."""
    if tensor.is_nested and tensor.layout == torch.strided:
        yield tensor.values()
    elif _is_plain(tensor):
        yield tensor
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor, tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor, tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor, tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif is_traceable_wrapper_subclass(tensor):
        yield tensor
        for name in tensor.__tensor_flatten__()[0]:
            yield from parts_of(getattr(tensor, name))
    else:
        yield tensor


def keys_of(value: object) -> Iterator[object]:
    """What all tensors of one storage have in common, for each part of a tensor or an array."""
    if isinstance(value, torch.Tensor):
        yield from map(memory_key, parts_of(value))
    elif isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
        yield value._cdata
    elif is_array(value):
        yield ("array", id(value))


def memory_key(tensor: torch.Tensor) -> object:
    """What all tensors of one storage have in common; its own number if it has none."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse ones, and some wrappers
        return ("tensor", id(tensor))


def extent_of(part: Any) -> Stretch:
    """All bytes of the memory that a part of a tensor, an array or a storage lies in."""
    try:
        storage = part.untyped_storage() if isinstance(part, torch.Tensor) else part
        return next(stretches_of(storage))
    except (NotImplementedError, RuntimeError):
        return Stretch(memory_key(part))


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor shows all bytes of its memory, so that nobody else may write others."""
    if tensor.layout != torch.strided:
        return True
    try:
        size = tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        return True
    stretch = _stretch(tensor)
    return stretch.stop - stretch.start >= size


def returns_fresh(fn: Callable[..., Any]) -> bool:
    """Whether results of a function never lie in the memory of its arguments, as far as is known.

    That is known of torch's operators, which declare it, unless called with `out`; of other
    functions, and of operators made of others, it is not.

    >>> returns_fresh(torch.mm), returns_fresh(torch.t), returns_fresh(lambda x: x)
    (True, False, False)
    """
    fn, _, kwargs = plain(fn, (), {})
    operators, schemas = schemas_of(fn)
    name = operators.rpartition("::")[2]
    if name in _FRESH:
        return "out" not in kwargs
    if "out" in kwargs or name in _NOT_FRESH or any(part in name for part in _NOT_FRESH_PARTS):
        return False
    if not operators.startswith("aten::"):
        return False
    made_of_others = torch._C._dispatch_has_kernel_for_dispatch_key(
        qualified(schemas[0]), "CompositeImplicitAutograd"
    )
    return (
        not made_of_others
        and any(schema.returns for schema in schemas)
        and all(each.alias_info is None for schema in schemas for each in schema.returns)
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in one memory, as nearly all do: the others cost a closer look."""
    return type(tensor) in _ORDINARY and tensor.layout is torch.strided


def _stretch(tensor: torch.Tensor) -> Stretch:
    if not _is_plain(tensor) and (
        tensor.layout != torch.strided or is_traceable_wrapper_subclass(tensor)
    ):
        return Stretch(("tensor", id(tensor)))
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # without memory, as FakeTensors
        start = 0
    count = tensor.numel()
    if not start or not count:
        return Stretch(("storage", memory_key(tensor)))
    if not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        count = 1 + sum((int(size) - 1) * int(stride) for size, stride in steps)
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    return Stretch(device, start, start + count * tensor.itemsize)


def _stretch_of_array(array: Any) -> Stretch:
    start = stop = array.__array_interface__["data"][0]
    for size, stride in zip(array.shape, array.strides, strict=True):
        start, stop = start + min(0, (size - 1) * stride), stop + max(0, (size - 1) * stride)
    return Stretch("cpu", start, stop + array.itemsize if array.size else start)
