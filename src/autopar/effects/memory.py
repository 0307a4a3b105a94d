"""Memory: tensors, arrays and storages, where they are held, and where their bytes lie."""

from __future__ import annotations

import gc
import itertools
import math
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from autopar.effects.access import ByteRange
from autopar.effects.task import Task
from autopar.torch_private import is_traceable_wrapper_subclass, pytree

MEMORY = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)
_ORDINARY = {torch.Tensor, torch.nn.Parameter}
_PLAIN = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}
# What nothing is hidden in, so that most leaves cost no more than a look at their type.
_OPEN = {*_PLAIN, range, type, types.FunctionType}
_ONCE = (types.GeneratorType, map, filter, zip)  # made as they are iterated over
_PARTS = 1_000  # of an object: more would take longer than to copy what is beside it
_DICTS = (dict, OrderedDict, defaultdict)


class Closed:
    """Whose insides are no business of a task that holds it, such as a graph's."""


_CLOSED = (*MEMORY, Closed, Task, type, types.ModuleType, types.FrameType, types.BuiltinMethodType)


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


def require_none_hidden(
    values: object, leaves: Iterable[object], kind: type | tuple[type, ...], name: str, what: str
) -> None:
    """Refuse containers that hold something of a kind where nobody looks for it, and generators.

    `leaves` are those that are not of that kind; `name` says where they are from, `what` what is
    looked for.
    """
    for leaf in itertools.chain(leaves, _keys_in(values)):
        if type(leaf) in _OPEN:
            continue
        if type(leaf) in _ONCE:
            msg = (
                f"{name} holds a {type(leaf).__name__}; expected containers whose {what} are there "
                f"already. Pass list(x) of it."
            )
            raise TypeError(msg)
        if any(issubclass(type(part), kind) for part in itertools.islice(held_by(leaf), _PARTS)):
            msg = (
                f"{name} holds a {type(leaf).__name__} with {what} in it; expected {what} in "
                f"lists, tuples and values of dicts, as others are not looked into. Pass them so, "
                f"or register the class: torch.utils._pytree.register_pytree_node."
            )
            raise TypeError(msg)


def _keys_in(values: Any) -> Iterator[object]:
    """Keys of the dicts among nested containers, each time as something that holds them."""
    if type(values) in _DICTS:
        if not {*map(type, values)} <= _OPEN:
            yield {*values}
        values = values.values()
    elif issubclass(type(values), (list, tuple, deque)):
        values = gc.get_referents(values)  # as a class may iterate in a way of its own
    else:
        return
    for value in values:
        yield from _keys_in(value)


def is_size(value: object) -> bool:
    """Whether something is a shape, which torch makes anew as a mere tuple once it has traced."""
    return type(value) is torch.Size


def tensors_of(values: Any) -> list[torch.Tensor]:
    """The tensors in nested containers, and nowhere else."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def ranges_of(values: Any, *, whole: bool = False) -> Iterator[ByteRange]:
    """Where tensors, storages and arrays in nested containers lie; a range of bytes is its own.

    What has no address, as an empty tensor, counts as a memory of its own. With `whole` a tensor
    stands for all memory that it is a part of.
    """
    one = isinstance(values, (*MEMORY, ByteRange))  # pytree would take a range apart
    for leaf in [values] if one else pytree.tree_leaves(values):
        if isinstance(leaf, ByteRange):
            yield leaf
        elif isinstance(leaf, torch.Generator):
            yield random_numbers(leaf)
        elif isinstance(leaf, torch.Tensor):
            lies = _range_of(leaf)
            whole_of = whole and lies.stop < math.inf  # else it has no address
            yield from ranges_of(leaf.untyped_storage()) if whole_of else (lies,)
        elif isinstance(leaf, (torch.UntypedStorage, torch.TypedStorage)):
            start = leaf.data_ptr()
            yield ByteRange(str(leaf.device), start, start + leaf.nbytes())
        elif is_array(leaf):
            start = stop = leaf.__array_interface__["data"][0]
            for size, stride in zip(leaf.shape, leaf.strides, strict=True):
                reach = (size - 1) * stride
                start, stop = start + min(0, reach), stop + max(0, reach)
            yield ByteRange("cpu", start, stop + leaf.itemsize if leaf.size else start)


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


def has_place(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in one memory: a sparse one doesn't, nor one that stands for others."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return False
    return type(tensor) in _ORDINARY or not is_traceable_wrapper_subclass(tensor)


def memory_key(part: Any) -> object:
    """What all tensors of one storage, or objects of a generator, have in common; else a number."""
    try:
        storage = part.untyped_storage() if isinstance(part, torch.Tensor) else part
        return storage._cdata
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return ("object", id(part))  # an array, a sparse tensor, some that stand for others


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor shows all bytes of its memory, so that nobody else may write others."""
    lies = _range_of(tensor)
    return has_place(tensor) and lies.stop - lies.start >= tensor.untyped_storage().nbytes()


def _range_of(tensor: torch.Tensor) -> ByteRange:
    if not has_place(tensor):
        return ByteRange(("tensor", id(tensor)))
    try:
        start, count = tensor.data_ptr(), tensor.numel()
        if not count:  # a change of it counts as one of all that it is a view of, and of each part
            start = tensor.untyped_storage().data_ptr()
    except (RuntimeError, ValueError):  # without memory, as FakeTensors, or yet without shape
        start = count = 0
    if not start:
        return ByteRange(("storage", memory_key(tensor)))
    if count and not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        count = 1 + sum((int(size) - 1) * int(stride) for size, stride in steps)
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    return ByteRange(device, start, start + (count * tensor.itemsize or 1))
