"""Memory: tensors, arrays and storages, and where their bytes lie."""

from __future__ import annotations

import gc
import math
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from autopar.effects.access import ByteRange
from autopar.effects.task import Task
from autopar.torch_private import is_traceable_wrapper_subclass, pytree

MEMORY = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)
_ORDINARY = {torch.Tensor, torch.nn.Parameter}
_PLAIN = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}


class Closed:
    """Whose insides are no business of a task that holds it, such as a graph's."""


_CLOSED = (
    *MEMORY,
    Closed,
    Task,
    type,
    types.ModuleType,
    types.FrameType,
    types.BuiltinFunctionType,
)


def is_array(value: object) -> bool:
    """Whether something is a NumPy array, without importing NumPy."""
    kind = getattr(sys.modules.get("numpy"), "ndarray", ())
    return issubclass(type(value), kind)


def held_by(*values: object) -> Iterator[Any]:
    """All that values hold, in containers, attributes and closures; not what classes hold."""
    seen, left = dict[int, Any](), [*values]
    while left:
        value: Any = left.pop()
        kind: Any = type(value)
        if kind in _PLAIN or id(value) in seen:
            continue
        seen[id(value)] = value  # kept, as its number would be used again
        yield value
        if kind is types.FunctionType:
            left += [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
        elif issubclass(kind, weakref.ref):
            left.append(weakref.ref.__call__(value))
        elif is_array(value):
            left += value.ravel().tolist() if value.dtype.hasobject else ()
        elif not issubclass(kind, _CLOSED):
            left += gc.get_referents(value)


def memory_in(*values: object) -> Iterator[Any]:
    """Tensors, arrays and storages in values: in containers, objects' attributes and closures."""
    if all(issubclass(type(value), MEMORY) for value in values):  # as most results are
        yield from values
        return
    for value in held_by(*values):
        if issubclass(type(value), MEMORY) or is_array(value):
            yield value


def ranges_of(values: object, *, whole: bool = False) -> Iterator[ByteRange]:
    """Where tensors, storages and arrays in nested containers lie; a range of bytes is its own.

    What has no address, as an empty tensor, counts as a memory of its own.

    Args:
        values: What lies somewhere.
        whole: Whether a tensor stands for all memory that it is a part of.
    """
    if isinstance(values, ByteRange):
        yield values
        return
    if isinstance(values, torch.Generator):
        yield random_numbers(values)
        return
    for leaf in [values] if isinstance(values, MEMORY) else pytree.tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            for part in parts_of(leaf):
                lies = _range_of(part)
                whole_of = whole and lies.stop < math.inf  # else it has no address
                yield from ranges_of(part.untyped_storage()) if whole_of else (lies,)
        elif isinstance(leaf, (torch.UntypedStorage, torch.TypedStorage)):
            start = leaf.data_ptr()
            yield ByteRange(str(leaf.device), start, start + leaf.nbytes())
        elif is_array(leaf):
            yield _range_of_array(leaf)
            mask = getattr(leaf, "_mask", None)  # of a masked array
            yield from [_range_of_array(mask)] if is_array(mask) else ()


def random_numbers(source: str | torch.Generator) -> ByteRange:
    """What stands for the state of a device's random numbers, or a generator's: draws change it."""
    if isinstance(source, torch.Generator):
        if not is_default(source):
            return ByteRange(("state", memory_key(source)))
        source = str(source.device)
    return ByteRange(("random numbers", source))


def is_default(generator: torch.Generator) -> bool:
    """Whether operators draw from a generator if they are given none; it may be another object."""
    return memory_key(generator) in map(memory_key, default_generators())


def default_generators() -> list[torch.Generator]:
    """Those that tasks draw from if they are given none, of the devices that are in use."""
    return [torch.default_generator, *torch.cuda.default_generators]


def parts_of(tensor: Any) -> Iterator[Any]:
    """What has memory of its own: itself, or the indices and values of a sparse tensor."""
    if not isinstance(tensor, torch.Tensor):
        yield tensor
    elif tensor.is_nested and tensor.layout == torch.strided:
        yield tensor.values()
    elif _is_plain(tensor):
        yield tensor
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor, tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor, tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor, tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor
        if is_traceable_wrapper_subclass(tensor):
            for name in tensor.__tensor_flatten__()[0]:
                yield from parts_of(getattr(tensor, name))


def keys_of(value: object) -> Iterator[object]:
    """What all tensors of one storage have in common, for each part of a tensor or an array."""
    if isinstance(value, MEMORY) or is_array(value):
        yield from map(memory_key, parts_of(value))


def memory_key(part: Any) -> object:
    """What all tensors of one storage, or objects of a generator, have in common; else a number."""
    try:
        storage = part.untyped_storage() if isinstance(part, torch.Tensor) else part
        return storage._cdata
    except (NotImplementedError, RuntimeError, ValueError):  # sparse ones, and some wrappers
        return ("tensor", id(part))
    except AttributeError:
        return ("array", id(part))


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor shows all bytes of its memory, so that nobody else may write others."""
    if tensor.layout != torch.strided:
        return True
    try:
        size_bytes = tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError, ValueError):  # the last from lazy modules
        return True
    lies = _range_of(tensor)
    return lies.stop - lies.start >= size_bytes


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in one memory, as nearly all do: the others cost a closer look."""
    return type(tensor) in _ORDINARY and tensor.layout is torch.strided


def _range_of(tensor: torch.Tensor) -> ByteRange:
    if not _is_plain(tensor) and (
        tensor.layout != torch.strided or is_traceable_wrapper_subclass(tensor)
    ):
        return ByteRange(("tensor", id(tensor)))
    try:
        start = tensor.data_ptr()
        count = tensor.numel()
    except (RuntimeError, ValueError):  # without memory, as FakeTensors, or yet without shape
        start = count = 0
    if not start or not count:
        return ByteRange(("storage", memory_key(tensor)))
    if not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        count = 1 + sum((int(size) - 1) * int(stride) for size, stride in steps)
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    return ByteRange(device, start, start + count * tensor.itemsize)


def _range_of_array(array: Any) -> ByteRange:
    start = stop = array.__array_interface__["data"][0]
    for size, stride in zip(array.shape, array.strides, strict=True):
        start, stop = start + min(0, (size - 1) * stride), stop + max(0, (size - 1) * stride)
    return ByteRange("cpu", start, stop + array.itemsize if array.size else start)
