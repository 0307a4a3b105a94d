"""To device: batches that go to a device as loads, with small tensors of theirs in one block."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from typing_extensions import override

from autopar.device import cpu
from autopar.effects.memory import require_none_hidden
from autopar.torch_private import InferenceMode, pytree
from autopar.transfer.copy_plan import packs
from autopar.transfer.layout import are_alike, check_tensor, dense, layout_of, within
from autopar.transfer.load import Load, Part
from autopar.transfer.parcel import Parcels
from autopar.transfer.ring import Ring
from autopar.transfer.source import next_owned

# What is pinned is copied without a slot from this size on, and so are the few tensors beside it;
# less is moved to one in shorter time than its copy takes to queue.
_DIRECT_BYTES, _FEW = 1 << 16, 4
# A batch of up to this size is copied if its owner may overwrite it, so that others can join it;
# to copy more, or what is pinned, takes longer than to send it by itself.
_ASIDE_BYTES = 1 << 20
_WHOLE = {torch.Size, torch.nn.utils.rnn.PackedSequence}

_CPU = cpu()
_nbytes_of = operator.attrgetter("nbytes")
_device_of = operator.attrgetter("device")


class _Batch(NamedTuple):
    """The tensors of a batch, and how it is put together of others."""

    tensors: list[torch.Tensor]  # dense ones on the host
    sizes: list[int]  # of each in bytes; very large if it is copied without a slot
    join: Callable[[Iterator[torch.Tensor]], Any]  # takes as many
    lent: bool  # whether its owner may overwrite it when the next one is asked for


class ToDeviceParcels(Parcels):
    """Loads that bring batches to the device."""

    def __init__(self, ring: Ring, source: Iterator[Any], given: bool) -> None:
        super().__init__(f"prefetch to {ring.stream.device}", ring, source, given)
        self._device = ring.stream.device
        self._aside_bytes = min(_ASIDE_BYTES, self._small_bytes, self._most_bytes)

    @override
    def unpack(self, load: Load) -> list[Any]:
        batches = super().unpack(load)
        if load.copied is not None:
            self._stream.caller_receives(load.copied, map(_device_of, load.parts))
        return batches

    @override
    def _take(self, group: list[Any]) -> int:
        batch, owned = (next(self._source), True) if self._given else next_owned(self._source)
        if owned and type(batch) is torch.Tensor:
            group.append(batch)  # looked at later, together with others
            return batch.nbytes
        opened = self._batch(batch, owned, self._number + len(group))
        group.append(opened)
        return sys.maxsize if opened.lent else sum(map(_nbytes_of, opened.tensors))

    def _batch(self, batch: Any, owned: bool, number: int) -> _Batch:
        tensors, join = self._opened(batch, f"batches[{number}]")
        sizes = list(map(_nbytes_of, tensors))
        size_bytes = sum(sizes)
        least = 1 if len(tensors) <= _FEW and size_bytes >= _DIRECT_BYTES else _DIRECT_BYTES
        for i, tensor in enumerate(tensors):
            if sizes[i] >= least and self._stream.is_pinned(tensor):
                sizes[i] = sys.maxsize
        if not owned and size_bytes <= self._aside_bytes and sys.maxsize not in sizes:
            tensors, owned = list(map(torch.clone, tensors)), True
        return _Batch(tensors, sizes, join, lent=not owned)

    def _opened(
        self, batch: Any, name: str
    ) -> tuple[list[torch.Tensor], Callable[[Iterator[torch.Tensor]], Any]]:
        """The tensors of a batch, and how it is put together of others."""
        kind = type(batch)
        if kind is torch.Tensor:
            return [_host_tensor(batch, 0, name)], next
        if kind in (list, tuple) and {*map(type, batch)} == {torch.Tensor}:  # most often, and soon
            tensors = [_host_tensor(leaf, i, name) for i, leaf in enumerate(batch)]
            return tensors, lambda arriving: kind(itertools.islice(arriving, len(tensors)))
        # To put these together anew would make other objects of them, or fail.
        leaves, structure = pytree.tree_flatten(batch, is_leaf=lambda part: type(part) in _WHOLE)
        where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        require_none_hidden(batch, others, torch.Tensor, name, "tensors")

        def join(arriving: Iterator[torch.Tensor]) -> Any:
            for i in where:
                leaves[i] = next(arriving)
            return pytree.tree_unflatten(leaves, structure)

        return [_host_tensor(leaves[i], i, name) for i in where], join

    @override
    def _make(self, group: list[Any]) -> None:
        """Make the load of some batches, with their small tensors in blocks."""
        alike = are_alike(group, _CPU)
        batches = [] if alike else self._batches(group)
        if alike:
            tensors, size_bytes = group, group[0].nbytes
            direct = size_bytes >= _DIRECT_BYTES and self._stream.is_pinned(group[0])
            sizes = [sys.maxsize if direct else size_bytes] * len(group)
        elif batches:
            tensors = [tensor for batch in batches for tensor in batch.tensors]
            sizes = [size_bytes for batch in batches for size_bytes in batch.sizes]
        else:
            return
        parts: list[Part] = []
        arriving: list[torch.Tensor] = []
        with InferenceMode(False):  # results outlive the mode in which they are taken ahead
            for pack in packs(sizes, self._most_bytes, alone_above_bytes=self._small_bytes):
                first = pack.members[0]
                sources = tensors[first : first + len(pack.members)]
                if len(sources) == 1:
                    block = torch.empty_like(sources[0], device=self._device)
                    arriving.append(block)
                else:
                    block = torch.empty(pack.size_bytes, dtype=torch.uint8, device=self._device)
                    arriving += within(block, list(map(layout_of, sources)), pack.offsets)
                host = tuple(zip(pack.offsets, sources, strict=True))
                parts.append(Part(block, host, staged=sizes[first] < sys.maxsize))
        rest = iter(arriving)
        values = arriving if alike else [batch.join(rest) for batch in batches]
        load = self._load(len(values), parts, lambda: values)
        load.lent = bool(batches) and batches[-1].lent

    def _batches(self, group: list[Any]) -> list[_Batch]:
        """Those before the first that can't be copied."""
        batches: list[_Batch] = []
        try:
            for number, item in enumerate(group, self._number):
                is_opened = isinstance(item, _Batch)
                batches.append(item if is_opened else self._batch(item, True, number))
        except Exception as error:
            self._end_by(error)
        return batches


def _host_tensor(leaf: torch.Tensor, i: int, name: str) -> torch.Tensor:
    return dense(check_tensor(leaf, f"tensor {i} of {name}", _CPU))
