"""Layout: how tensors lie in memory, so that they travel as bytes, alone or in one block."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from autopar.refusal import what
from autopar.torch_private import MORE_THAN_MEMORY, PUT_OFF, InferenceMode, dispatch_keys
from autopar.transfer.copy_plan import ALIGNMENT, Pack

_NO_MEMORY = "a tensor without memory of its own"
# In the memory of other types a CPU's `copy_` changes bits, as of bool, or it has none for them.
_COPIED_AS_IS = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8}
_COPIED_AS_IS |= {torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64}
_STACKED = _COPIED_AS_IS | {torch.bool, torch.complex128}  # of others torch may have no stack
PLAIN = {torch.Tensor, torch.nn.Parameter}  # subclasses may be more than their memory

_type_of = operator.attrgetter("dtype")
_place_of = operator.attrgetter("shape", "device", "requires_grad")


Layout = tuple[torch.dtype, torch.Size, tuple[int, ...]]  # of a dense tensor


def layout_of(tensor: torch.Tensor) -> Layout:
    """Element type, shape and strides."""
    return tensor.dtype, tensor.shape, tensor.stride()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie without gaps or overlaps, in whatever order."""
    if tensor.is_contiguous():
        return True
    # torch keeps the strides of exactly such tensors.
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def is_put_off(tensor: torch.Tensor) -> bool:
    """Whether its elements are still to be conjugated or negated."""
    return bool(dispatch_keys(tensor).raw_repr() & PUT_OFF)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where its elements lie apart or are still to be conjugated."""
    if is_put_off(tensor):
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if is_dense(tensor) else tensor.clone()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor as one row of bytes."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def as_moved(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor as what a CPU copies bit for bit."""
    return tensor if tensor.dtype in _COPIED_AS_IS else flat(tensor)


def like(tensor: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """The beginning of a block of bytes as a tensor like a dense one."""
    return block[: tensor.nbytes].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


# -- several tensors in one block -----------------------------------------------------------------


class Block(NamedTuple):
    """Tensors as one stretch of a device's memory."""

    device: torch.Tensor
    offsets: list[int]  # where each begins, in bytes
    # Each of them, in a block that has come.
    split: Callable[[torch.Tensor], list[torch.Tensor]] = lambda block: [block]


def are_alike(tensors: Sequence[Any], device: torch.device) -> bool:
    """Whether all lie alike in memory of their own on a device; told in 1 µs each.

    If not, some may still be what a pipeline can copy: they are looked at one by one.
    """
    if not tensors or not _are_plain(tensors):
        return False
    if any(keys.raw_repr() & MORE_THAN_MEMORY for keys in map(dispatch_keys, tensors)):
        return False
    places = {(tensors[0].shape, device, False)}
    return set(map(_place_of, tensors)) == places and _lie_alike(tensors)


def stacked(tensors: Sequence[Any], device: torch.device) -> Block | None:
    """The block of several that lie alike in memory of their own on a device, or None.

    Told in 0.4 µs each. What else a tensor may be, say conjugated, torch resolves in the stack, or
    carries over to it.
    """
    try:
        if not _are_plain(tensors) or not tensors[0].dim() or tensors[0].dtype not in _STACKED:
            return None
        if not _lie_alike(tensors) or not all(map(torch.Tensor.data_ptr, tensors)):
            return None
        with InferenceMode(False), torch.enable_grad():  # it requires grad if any of them does
            stack = torch.stack(tensors)  # type: ignore[arg-type]
    except RuntimeError:  # their shapes or devices differ, or they have no strides or memory
        return None
    first = tensors[0]
    more = type(stack) not in PLAIN or dispatch_keys(stack).raw_repr() & MORE_THAN_MEMORY
    if more or stack.requires_grad or stack.device != device or not stack.numel():
        return None
    # Those of one element in some dimension may have any strides there.
    if stack.stride()[1:] != first.stride():
        return None
    offsets = list(range(0, stack.nbytes, first.nbytes))
    layouts = [layout_of(first)] * len(tensors)
    return Block(stack, offsets, partial(within, layouts=layouts, offsets=offsets))


def _are_plain(tensors: Sequence[Any]) -> bool:
    """Whether all are torch's own tensors, and none can have a tangent."""
    return set(map(type, tensors)) <= PLAIN and forward_ad._current_level < 0


def _lie_alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether those of one shape are contiguous, of one type, and lie in memory of their own."""
    first = tensors[0]
    if set(map(_type_of, tensors)) != {first.dtype}:
        return False
    if not all(map(torch.Tensor.is_contiguous, tensors)):
        return False
    if 1 in first.shape and len(set(map(torch.Tensor.stride, tensors))) > 1:
        return False
    last = max(map(torch.Tensor.storage_offset, tensors)) * first.itemsize + first.nbytes
    storages = map(torch.Tensor.untyped_storage, tensors)
    return bool(last <= min(map(torch.UntypedStorage.nbytes, storages)))


def joined(tensors: list[torch.Tensor], pack: Pack) -> Block:
    """The block of dense tensors of any dtypes and shapes, with gaps that keep them aligned."""
    if len(tensors) == 1:
        return Block(tensors[0], [0])
    layouts = list(map(layout_of, tensors))
    gap = torch.zeros(ALIGNMENT, dtype=torch.uint8, device=tensors[0].device)
    pieces, stop = [], 0
    for tensor, offset in zip(tensors, pack.offsets, strict=True):
        pieces += [gap[: offset - stop], flat(tensor)]
        stop = offset + tensor.nbytes
    block = torch.cat([*pieces, gap[: pack.size_bytes - stop]])
    return Block(block, pack.offsets, partial(within, layouts=layouts, offsets=pack.offsets))


def within(block: torch.Tensor, layouts: list[Layout], offsets: list[int]) -> list[torch.Tensor]:
    """The tensors in a contiguous block; each counts its own changes, as autograd does."""
    row = block.view(-1)
    as_type = {dtype: row.view(dtype) for dtype in {dtype for dtype, _, _ in layouts}}
    count, (dtype, shape, strides) = len(layouts), layouts[0]
    size, step = shape.numel(), shape.numel() * dtype.itemsize
    if (
        step
        and shape
        and layouts.count(layouts[0]) == count > 1
        and offsets[-1] - offsets[0] == step * (count - 1)
    ):  # without gaps: in a fifth of the time
        start = offsets[0] // dtype.itemsize
        rows = as_type[dtype][start : start + size * count].view(count * shape[0], *shape[1:])
        # Unlike what `split` gives, these may be written to in place, each by itself.
        tensors = list(rows.unsafe_split_with_sizes([shape[0]] * count))
        if tensors[0].stride() == strides:
            return tensors
    return [
        as_type[dtype].as_strided(shape, strides, offset // dtype.itemsize).data
        for (dtype, shape, strides), offset in zip(layouts, offsets, strict=True)
    ]


# -- what has memory of its own -------------------------------------------------------------------


def check_tensor(tensor: object, name: str, device: torch.device) -> torch.Tensor:
    """Refuse what a pipeline can't copy.

    Raises:
        TypeError: It is not a tensor, or not one that lies in memory of its own.
        ValueError: It is on another device, or requires grad.
    """
    if not isinstance(tensor, torch.Tensor):
        msg = f"{name} is {what(tensor)}; expected a tensor on {device}."
        raise TypeError(msg)
    kind = what_else(tensor)
    if kind is not None and not tensor.is_meta:
        msg = (
            f"{name} is {kind}; expected a dense one in memory of its own. Copy it with .to(), "
            f"make it dense, as with x.to_dense(), or pass the tensors that it is made of."
        )
        raise TypeError(msg)
    if tensor.device != device:
        msg = f"{name} is on {tensor.device}; expected it on {device}. Move it there first."
        raise ValueError(msg)
    follows = forward_ad._current_level >= 0  # in that mode hardly anybody ever is
    if tensor.requires_grad or (follows and forward_ad.unpack_dual(tensor).tangent is not None):
        which = "requires grad" if tensor.requires_grad else "has a tangent"
        msg = (
            f"{name} {which}; a pipeline's copies are no part of the autograd graph. "
            f"Pass x.detach(), or compute it under torch.no_grad()."
        )
        raise ValueError(msg)
    return tensor


def what_else(tensor: torch.Tensor) -> str | None:
    """What a tensor is, if not one that lies in its own memory, dense or with gaps.

    Subclasses may be made of other tensors, and so may what torch wraps inside of its transforms.
    """
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_quantized:
        return "a quantized tensor"
    if tensor.layout != torch.strided:
        return f"a {tensor.layout} tensor"
    if type(tensor) not in PLAIN:
        return f"a {type(tensor).__name__}, a subclass of torch.Tensor"
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:
        return _NO_MEMORY
    count = tensor.numel()
    if count and not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        count = 1 + sum((size - 1) * stride for size, stride in steps)
    needed = (tensor.storage_offset() + count) * tensor.itemsize
    if count and (needed > storage.nbytes() or tensor.data_ptr() == 0):
        return _NO_MEMORY  # not all of it, or none
    return None
