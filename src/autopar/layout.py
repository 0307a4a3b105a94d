"""Layout: how a tensor lies in memory, so that it can travel as bytes and come out the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

_NEGATIVE, _CONJUGATE = torch._C.DispatchKey.Negative, torch._C.DispatchKey.Conjugate


@dataclass(frozen=True)
class Layout:
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


def check_tensor(tensor: object, name: str, device: torch.device) -> torch.Tensor:
    """Refuse what a pipeline can't copy.

    Args:
        tensor: What came.
        name: What to call it in errors.
        device: Where it must be.

    Raises:
        TypeError: It is not a tensor, or is sparse, nested or quantized.
        ValueError: It is on another device, or requires grad.
    """
    if not isinstance(tensor, torch.Tensor):
        msg = f"{name} is {_what(tensor)}; expected a tensor on {device}."
        raise TypeError(msg)
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else "sparse"
        msg = (
            f"{name} is a {kind} tensor ({tensor.layout}); expected a dense one. Copy it with "
            f".to(), or make it dense first, as with x.to_dense()."
        )
        raise TypeError(msg)
    if tensor.device != device:
        msg = f"{name} is on {tensor.device}; expected it on {device}. Move it there first."
        raise ValueError(msg)
    if tensor.requires_grad:
        msg = (
            f"{name} requires grad; a pipeline's copies are no part of the autograd graph. "
            f"Pass x.detach(), or compute it under torch.no_grad()."
        )
        raise ValueError(msg)
    return tensor


def check_no_overlap(tensor: torch.Tensor, name: str) -> None:
    """Refuse a tensor of which several elements share their memory, as in an expanded one.

    Raises:
        ValueError: It is one.
    """
    if not tensor.is_contiguous() and torch._debug_has_internal_overlap(tensor) == 1:
        msg = (
            f"{name} has elements that share memory; expected one that can be written to. Clone it."
        )
        raise ValueError(msg)


def _is_put_off(tensor: torch.Tensor) -> bool:
    """Whether its elements are still to be conjugated or negated."""
    # Its keys tell so as well as is_neg() and is_conj(), which give way to other threads.
    keys = torch._C._dispatch_keys(tensor)
    return keys.has(_NEGATIVE) or (tensor.dtype.is_complex and keys.has(_CONJUGATE))


def _what(value: object) -> str:
    text = repr(value)
    return f"{text[:60]}{'...' * (len(text) > 60)} of type {type(value).__name__}"
