"""Slot: a stretch of pinned memory, and the chunk of a load that travels through it."""

from __future__ import annotations

import torch

from autopar.lanes.outcome import Outcome
from autopar.transfer.copy_stream import Waitable
from autopar.transfer.layout import Layout
from autopar.transfer.load import Load, Stretch


class Slot:
    """Pinned memory, what lies in it, and the ends of its last steps by the rules' names."""

    __slots__ = ("_last", "_view", "address", "chunk", "ends", "memory")

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.address = memory.data_ptr()
        self.ends: dict[str, Waitable] = {}
        self.chunk: Chunk | None = None
        self._last: Layout | None = None

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its first bytes as a tensor like another; kept, as what comes next is often alike."""
        layout = Layout.of(tensor)
        if layout != self._last:
            self._view, self._last = layout.within(self.memory), layout
        return self._view


class Chunk:
    """What of a load travels through a slot at a time."""

    __slots__ = ("device", "first", "host", "load", "moving", "slot")

    def __init__(self, load: Load, device: torch.Tensor, host: list[Stretch], first: bool) -> None:
        self.load = load
        self.device = device
        self.host = host
        self.first = first
        self.slot: Slot
        self.moving: Outcome[None] | None = None  # of its step on the host, if a worker may do it
