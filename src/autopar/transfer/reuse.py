"""Reuse: ordinary host memory for results, first that of earlier ones which nobody has."""

from __future__ import annotations

import torch

from autopar.transfer.layout import like
from autopar.transfer.source import is_only_tensor

_LEAST_BYTES = 1 << 20  # of what the system takes back when it is freed, and gives page by page
_KEPT = 8  # of what has been given out last; more than are under way by default


class ReusedMemory:
    """Gives memory out, and again once all that led to it is gone: its pages are there by then."""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._given: tuple[torch.Tensor, ...] = ()  # a new one each time: garbage may be collected

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Host memory for one like a dense tensor."""
        size_bytes = tensor.nbytes
        if size_bytes < _LEAST_BYTES:
            return torch.empty_like(tensor, device="cpu")
        for block in self._given:
            if len(block) == size_bytes and is_only_tensor(block):
                break
        else:
            block = torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
            self._given = (*self._given, block)[-_KEPT:]
        return like(tensor, block).data  # no view, as what is fresh is none

    def trim(self) -> None:
        """Keep no more than there is room for, where nothing is under way any more."""
        while sum(map(len, self._given)) > self._room_bytes:
            self._given = self._given[1:]
