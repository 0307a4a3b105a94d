"""Layout: how a tensor lies in memory, so that it can travel as bytes and come out the same."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch.autograd import forward_ad

from autopar.refusal import what
from autopar.torch_private import CONJUGATE, NEGATIVE, dispatch_keys, has_internal_overlap

PLAIN = {torch.Tensor, torch.nn.Parameter}  # subclasses may be more than their memory


class Layout(NamedTuple):
    """Element type, shape and strides of a tensor without gaps or overlaps.

    Args:
        dtype: Its element type.
        shape: Its sizes.
        strides: Elements from one index to the next, in every dimension.
        size_bytes: What it takes.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size_bytes: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """The layout of a dense tensor."""
        return cls(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.nbytes)

    def within(self, block: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """The tensor that lies in a block of bytes, from an offset on."""
        own = block[offset : offset + self.size_bytes].view(self.dtype)
        return own.as_strided(self.shape, self.strides)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie without gaps or overlaps, in whatever order."""
    if tensor.is_contiguous():
        return True
    # torch keeps the strides of exactly such tensors.
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory of a dense tensor holds its values as they are."""
    return is_dense(tensor) and not _is_put_off(tensor)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor as one row of bytes."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with conjugation and negation done, where torch had put them off."""
    return tensor.resolve_conj().resolve_neg() if _is_put_off(tensor) else tensor


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where its elements lie apart or are still to be conjugated."""
    tensor = resolved(tensor)
    return tensor if is_dense(tensor) else tensor.clone()


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether all that there is of a tensor lies in its own memory, dense or with gaps.

    It does not for subclasses, which may be made of other tensors, for what torch wraps inside of
    its transforms, for compressed and nested ones, and where the memory was taken away.
    """
    return _what_else(tensor) is None


def check_tensor(tensor: object, name: str, device: torch.device) -> torch.Tensor:
    """Refuse what a pipeline can't copy.

    Args:
        tensor: What came.
        name: What to call it in errors.
        device: Where it must be.

    Raises:
        TypeError: It is not a tensor, or not one that lies in memory of its own.
        ValueError: It is on another device, or requires grad.
    """
    if not isinstance(tensor, torch.Tensor):
        msg = f"{name} is {what(tensor)}; expected a tensor on {device}."
        raise TypeError(msg)
    else_ = _what_else(tensor)
    if else_ is not None and not tensor.is_meta:
        kind, instead = else_
        msg = f"{name} is {kind}; expected a dense one in memory of its own. {instead}"
        raise TypeError(msg)
    if tensor.device != device:
        msg = f"{name} is on {tensor.device}; expected it on {device}. Move it there first."
        raise ValueError(msg)
    if tensor.requires_grad or _has_tangent(tensor):
        which = "requires grad" if tensor.requires_grad else "has a tangent"
        msg = (
            f"{name} {which}; a pipeline's copies are no part of the autograd graph. "
            f"Pass x.detach(), or compute it under torch.no_grad()."
        )
        raise ValueError(msg)
    return tensor


def check_no_overlap(tensor: torch.Tensor, name: str) -> None:
    """Refuse a tensor of which several elements share their memory, as in an expanded one.

    Raises:
        ValueError: It is one.
    """
    if not tensor.is_contiguous() and has_internal_overlap(tensor) == 1:
        msg = (
            f"{name} has elements that share memory; expected one that can be written to. Clone it."
        )
        raise ValueError(msg)


def _is_put_off(tensor: torch.Tensor) -> bool:
    """Whether its elements are still to be conjugated or negated."""
    keys = dispatch_keys(tensor)
    return keys.has(NEGATIVE) or (tensor.dtype.is_complex and keys.has(CONJUGATE))


def _what_else(tensor: torch.Tensor) -> tuple[str, str] | None:
    """What a tensor is, if not one that lies in its own memory, and what to do then."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else "sparse"
        if tensor.is_mkldnn:
            kind = "mkldnn"
        instead = "Copy it with .to(), or make it dense first, as with x.to_dense()."
        article = "an" if tensor.is_mkldnn else "a"
        return f"{article} {kind} tensor ({tensor.layout})", instead
    if type(tensor) not in PLAIN:
        return (
            f"a {type(tensor).__name__}, a subclass of torch.Tensor",
            "Pass the tensors that it is made of, as x.to_local() gives one, or "
            "x.as_subclass(torch.Tensor) if its own memory is all.",
        )
    if not _has_memory(tensor):
        return (
            "a tensor without memory of its own",
            "Compute it outside of transforms such as vmap, or give it its memory back.",
        )
    return None


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor has all the memory that its shape says."""
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:
        return False
    count = tensor.numel()
    if count and not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        count = 1 + sum((size - 1) * stride for size, stride in steps)
    if not count:
        return True
    needed = (tensor.storage_offset() + count) * tensor.itemsize
    return needed <= storage.nbytes() and tensor.data_ptr() != 0


def _has_tangent(tensor: torch.Tensor) -> bool:
    """Whether forward-mode differentiation follows it; most often nobody is in that mode."""
    if forward_ad._current_level < 0:
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None
