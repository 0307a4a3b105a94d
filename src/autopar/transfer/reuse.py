"""Reuse: ordinary host memory for results, first that of earlier ones which nobody has."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable

import torch

from autopar.transfer.layout import like
from autopar.transfer.source import is_only_memory

_LEAST_BYTES = 1 << 20  # of what the system takes back when it is freed, and gives page by page
_HUGE_BYTES = 4 << 20  # of what it is asked for in pages of 2 MiB, as by numpy


class ReusedMemory:
    """Gives memory out, and again once all that led to it is gone: its pages are there by then.

    Of what nobody has it keeps so many bytes; `most` are how many are in use at once.
    """

    def __init__(self, room_bytes: int, most: int) -> None:
        self._room_bytes, self._most = room_bytes, most
        self._given: tuple[torch.Tensor, ...] = ()  # a new one each time: garbage may be collected

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Host memory for one like a dense tensor."""
        again = self._unused_like(tensor)
        self.trim(in_use=True)
        if again is not None or tensor.nbytes < _LEAST_BYTES:
            return torch.empty_like(tensor, device="cpu") if again is None else again
        block = torch.empty(tensor.nbytes, dtype=torch.uint8, device="cpu")
        if block.nbytes >= _HUGE_BYTES:
            _ask_for_huge_pages(block)
        self._given = (*self._given, block)[-self._most :]
        return like(tensor, block).data  # no view, as what is fresh is none

    def _unused_like(self, tensor: torch.Tensor) -> torch.Tensor | None:
        for block in self._given:
            if block.nbytes == tensor.nbytes and _is_whole(block) and is_only_memory(block):
                again = like(tensor, block).data
                if is_only_memory(block, others=1):  # else garbage was collected in between
                    return again
        return None

    def trim(self, *, in_use: bool = False) -> None:
        """Keep of what nobody has no more than there is room for, and what is in use or not."""
        kept, room_bytes = [], self._room_bytes
        for block in filter(_is_whole, reversed(self._given)):
            if not is_only_memory(block):
                kept += [block] * in_use
            elif room_bytes >= block.nbytes:
                kept.append(block)
                room_bytes -= block.nbytes
        self._given = tuple(reversed(kept))


def _ask_for_huge_pages(block: torch.Tensor) -> None:
    """Let Linux give memory in large pages, if it has them: each costs a fault, as a small one."""
    if advise := _madvise():
        start = -(-block.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(start, block.data_ptr() + block.nbytes - start, mmap.MADV_HUGEPAGE)


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    advise = getattr(ctypes.CDLL(None), "madvise", None) if hasattr(mmap, "MADV_HUGEPAGE") else None
    if advise is not None:
        advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return advise


def _is_whole(block: torch.Tensor) -> bool:
    """Whether it is as it was: of its size, and not fixed for arrays or for other processes."""
    storage = block.untyped_storage()
    return storage.nbytes() == block.nbytes and storage.resizable()
