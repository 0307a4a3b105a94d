"""To device: batches that go to a device as loads, with the small tensors of each in one block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from typing_extensions import override

from autopar.device import cpu
from autopar.effects.hidden import require_none_hidden
from autopar.torch_private import pytree
from autopar.transfer.copy_plan import Pack, packs
from autopar.transfer.copy_stream import CopyStream, Past
from autopar.transfer.layout import Layout, check_tensor, dense, within
from autopar.transfer.load import Load, Part
from autopar.transfer.parcel import Parcels

# Small tensors of a batch share a block of up to this size. Not more: they are freed together.
_BLOCK_BYTES = 1 << 20
_WHOLE = {torch.Size, torch.nn.utils.rnn.PackedSequence}


class ToDeviceParcels(Parcels):
    """Loads that bring batches to the device."""

    def __init__(self, stream: CopyStream, source: Iterator[Any], given: bool) -> None:
        super().__init__(f"prefetch to {stream.device}", stream, source, given)

    def _loads(self) -> Iterator[Load]:
        for batch in self._source:
            load = self._batch_load(batch)
            del batch
            yield load
            if not self._given:  # it may overwrite the batch when it is asked for the next one
                load.wait_until_read()
            del load

    @override
    def unpack(self, load: Load) -> list[Any]:
        load.wait_until_queued()
        self.give_back()  # long done: it was queued some batches ago
        self._reading = load.copied if load.has_pinned() else Past()
        self._stream.caller_receives(load.copied, [part.device for part in load.parts])
        return load.unpack()

    @torch.inference_mode(False)  # results outlive the mode in which they are taken ahead
    def _batch_load(self, batch: Any) -> Load:
        if type(batch) is torch.Tensor:
            part, result = self._lone_part(self._host_tensor(batch, 0))
            return Load(self._count(1), self._stream, (part,), lambda: [result])
        # To put these together anew would make other objects of them, or fail.
        leaves, structure = pytree.tree_flatten(batch, is_leaf=lambda part: type(part) in _WHOLE)
        where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        name = f"batches[{self._number}]"
        require_none_hidden(batch, others, torch.Tensor, name, "tensors")
        tensors = [self._host_tensor(leaves[i], i) for i in where]
        parts: list[Part] = []
        for pack in packs([tensor.nbytes for tensor in tensors], _BLOCK_BYTES):
            part, arriving = self._part([tensors[i] for i in pack.members], pack)
            parts.append(part)
            for i, tensor in zip(pack.members, arriving, strict=True):
                leaves[where[i]] = tensor
        value = pytree.tree_unflatten(leaves, structure)
        return Load(self._count(1), self._stream, tuple(parts), lambda: [value])

    def _part(self, sources: list[torch.Tensor], pack: Pack) -> tuple[Part, list[torch.Tensor]]:
        """How some tensors of a batch travel, and the device tensors that they arrive in."""
        if len(sources) == 1:
            part, arriving = self._lone_part(sources[0])
            return part, [arriving]
        block = torch.empty(pack.size_bytes, dtype=torch.uint8, device=self._stream.device)
        pieces = zip(pack.offsets, sources, strict=True)
        layouts = [Layout.of(source) for source in sources]
        return Part(block, tuple(pieces), staged=True), within(block, layouts, pack.offsets)

    def _lone_part(self, source: torch.Tensor) -> tuple[Part, torch.Tensor]:
        """How a tensor travels by itself, and the device tensor that it arrives in."""
        arriving = torch.empty_like(source, device=self._stream.device)
        staged = not self._stream.is_pinned(source)
        return Part(arriving, ((0, source),), staged), arriving

    def _host_tensor(self, leaf: torch.Tensor, i: int) -> torch.Tensor:
        return dense(check_tensor(leaf, f"tensor {i} of batches[{self._number}]", cpu()))
