"""To host: tensors that go to the host as loads, large ones alone and small ones together."""

from __future__ import annotations

import bisect
import copy
import itertools
import operator
import sys
from collections.abc import Iterator
from typing import Any

import torch
from typing_extensions import override

from autopar.device import cpu
from autopar.torch_private import InferenceMode
from autopar.transfer.copy_plan import packs
from autopar.transfer.layout import (
    Block,
    are_alike,
    check_tensor,
    dense,
    is_put_off,
    joined,
    stacked,
    what_else,
)
from autopar.transfer.load import Part
from autopar.transfer.parcel import Parcels
from autopar.transfer.reuse import ReusedMemory
from autopar.transfer.ring import Ring
from autopar.transfer.source import next_owned

_CPU = cpu()
# How many small items travel together at first. Of a list, the next are taken while these are
# moved. A generator queues the kernels of some before the host is busy with the first load.
_FIRST_OF_LIST, _FIRST = 128, 16

_kind, _nbytes = operator.attrgetter("shape", "dtype"), operator.attrgetter("nbytes")


class ToHostParcels(Parcels):
    """Loads that bring tensors to the host, to `out` or to fresh memory, which may be pinned."""

    ahead_at_first = sys.maxsize  # all that there may be: it is computed meanwhile

    def __init__(
        self,
        ring: Ring,
        source: Iterator[torch.Tensor],
        given: bool,
        memory: ReusedMemory,
        out: Iterator[torch.Tensor] | None = None,
        pin: bool = False,
        verb: str = "to_host",
    ) -> None:
        super().__init__(f"{verb} from {ring.stream.device}", ring, source, given)
        self._maps = verb == "map"
        self._out = out
        self._direct = False  # whether the last tensor of `out` was pinned
        self._taken: list[tuple[int, int, str]] = []  # memory of `out`'s, by address, under way
        self._pin = pin
        self._memory = memory
        self._caller = self._stream.caller()  # the stream that the first of a group was computed on
        self._together = _FIRST_OF_LIST if given else _FIRST

    @override
    def _gather(self, group: list[torch.Tensor], until_s: float) -> bool:
        """The next of a list are taken at once if all have one size, else one by one."""
        ahead = copy.copy(self._source) if self._given else iter(())  # others may take from it, too
        some = list(itertools.islice(ahead, 1))
        size_bytes = _one_size(some)
        if 0 < size_bytes <= self._small_bytes:
            more = min(self._together, self._most_bytes // size_bytes) - 1
            some += itertools.islice(ahead, max(0, more))
            if _one_size(some) == size_bytes:
                self._caller = self._stream.caller()
                group += itertools.islice(self._source, len(some))
                return False
        return super()._gather(group, until_s)

    @override
    def _take(self, group: list[torch.Tensor]) -> int:
        """The next tensor, or a clone if anybody could write to it before it is copied."""
        tensor: torch.Tensor
        tensor, owned = (next(self._source), True) if self._given else next_owned(self._source)
        if not group:
            self._caller = self._stream.caller()
        if isinstance(tensor, torch.Tensor):
            if not (owned or tensor.requires_grad) and what_else(tensor) is None:
                tensor = tensor.clone()
            if group and not self._given:
                self._stream.caller_follows(self._caller, tensor)
        group.append(tensor)
        return tensor.nbytes if isinstance(tensor, torch.Tensor) else sys.maxsize  # refused later

    @override
    def _make(self, group: list[torch.Tensor]) -> None:
        if self._caller == self._stream.caller():
            self._make_here(group)
        else:  # the source has changed it since, be it by ending
            with torch.cuda.stream(self._caller):
                self._make_here(group)

    def _make_here(self, group: list[torch.Tensor]) -> None:
        device = self._stream.device
        block = None if self._direct or len(group) == 1 else stacked(group, device)
        tensors, targets = self._taken_of(group, block is not None or are_alike(group, device))
        if not tensors:
            return
        self._direct = bool(targets) and self._stream.is_pinned(targets[0])
        if self._direct or len(tensors) == 1:
            self._make_of([Block(tensor, [0]) for tensor in tensors], tensors, targets)
        elif block is not None and len(tensors) == len(group):
            self._make_of([block], tensors, targets)
        else:
            sizes = [tensor.nbytes for tensor in tensors]
            found = packs(sizes, self._most_bytes, alone_above_bytes=self._small_bytes)
            chosen = ([tensors[i] for i in pack.members] for pack in found)
            self._make_of(list(map(joined, chosen, found)), tensors, targets)

    def _taken_of(
        self, group: list[torch.Tensor], alike: bool
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The tensors before the first that can't be copied, laid out, and those of `out`."""
        if alike and self._out is None:
            return list(group), []
        tensors: list[torch.Tensor] = []
        targets: list[torch.Tensor] = []
        try:
            for number, tensor in enumerate(group, self._number):
                if not alike:
                    kind = f"what fn returned for item {number}"
                    name = kind if self._maps else f"tensors[{number}]"
                    tensor = dense(check_tensor(tensor, name, self._stream.device))
                if self._out is not None:
                    tensor = tensor.contiguous()
                    targets.append(self._next_target(number))
                tensors.append(tensor)
        except Exception as error:
            self._end_by(error)
        fit = are_alike(targets, _CPU) and alike and _kind(targets[0]) == _kind(tensors[0])
        done = 0
        try:
            for target in targets:
                name = f"out[{self._number + done}]"
                if not fit:
                    _check_target(target, tensors[done], name)
                self._occupy(target, name)
                done += 1
        except Exception as error:  # which comes before the one above
            self._end_by(error)
            del tensors[done:], targets[done:]
        torch.autograd.graph.increment_version(targets)  # a graph may have saved them
        return tensors, targets

    def _make_of(
        self, blocks: list[Block], tensors: list[torch.Tensor], targets: list[torch.Tensor]
    ) -> None:
        """Make the load of tensors in blocks, that land in others, or in the tensors of `out`."""
        parts: list[Part] = []
        landed: list[torch.Tensor] = []
        left = iter(targets)
        with InferenceMode(False):  # results outlive the mode in which they are taken ahead
            for block in blocks:
                if self._out is not None:
                    hosts = list(itertools.islice(left, len(block.offsets)))
                elif self._pin:
                    hosts = [torch.empty_like(block.device, device="cpu", pin_memory=True)]
                else:
                    hosts = [self._memory.like(block.device)]
                landed += hosts
                # `.data`, so that moves are no changes: rows of one tensor count them together.
                into = tuple((at, it.data) for at, it in zip(block.offsets, hosts, strict=False))
                pinned = self._pin or (bool(targets) and self._stream.is_pinned(into[0][1]))
                staged = len(into) > 1 or not pinned
                parts.append(Part(block.device, into, staged))
        if self._out is not None:
            self._load(len(tensors), parts, lambda: self._free(targets))
        elif len(blocks) == len(tensors):
            self._load(len(tensors), parts, lambda: landed)
        else:
            self._load(len(tensors), parts, lambda: _split(blocks, landed))

    def _next_target(self, number: int) -> torch.Tensor:
        assert self._out is not None
        try:
            return next(self._out)
        except StopIteration:
            msg = f"out has only {number} tensors; expected one for each of tensors."
            raise ValueError(msg) from None

    def _occupy(self, target: torch.Tensor, name: str) -> None:
        """Refuse memory of `out` that an item under way has, and note the rest."""
        start, stop = target.data_ptr(), target.data_ptr() + target.nbytes
        if start == stop:
            return
        at = bisect.bisect(self._taken, (start, stop, name))
        for low, high, other in self._taken[max(0, at - 1) : at + 1]:
            if low < stop and start < high:
                msg = (
                    f"{name} shares memory with {other}, whose item is still under way; "
                    f"expected memory of its own. Give one tensor for each item."
                )
                raise ValueError(msg)
        self._taken.insert(at, (start, stop, name))

    @override
    def drop(self) -> None:
        super().drop()
        self._memory.trim()

    def _free(self, targets: list[torch.Tensor]) -> list[torch.Tensor]:
        """The results of a load that went to `out`, which may be given for others now."""
        for target in targets:
            if target.numel():
                del self._taken[bisect.bisect(self._taken, (target.data_ptr(),))]
        return targets


def _one_size(tensors: list[Any]) -> int:
    """The size in bytes of each, or 0 if they have several, or are not all tensors of torch's."""
    try:
        sizes = set(map(_nbytes, tensors)) if {*map(type, tensors)} == {torch.Tensor} else {0}
    except RuntimeError:  # sparse ones have none
        return 0
    return sizes.pop() if len(sizes) == 1 else 0


def _check_target(target: torch.Tensor, tensor: torch.Tensor, name: str) -> None:
    """Refuse a tensor of `out` that another can't be copied to."""
    check_tensor(target, name, _CPU)
    if _kind(target) != _kind(tensor):
        msg = (
            f"{name} is {tuple(target.shape)} of {target.dtype}; expected "
            f"{tuple(tensor.shape)} of {tensor.dtype}, as the tensor to copy has."
        )
        raise ValueError(msg)
    if not target.is_contiguous() or is_put_off(target):
        msg = (
            f"{name} is a view whose elements don't lie in order; expected a contiguous "
            f"tensor. Give one that torch.empty has made, or rows of one."
        )
        raise ValueError(msg)


def _split(blocks: list[Block], hosts: list[torch.Tensor]) -> list[torch.Tensor]:
    with InferenceMode(False):  # results outlive the mode in which they are taken
        pairs = zip(blocks, hosts, strict=True)
        return [x for block, host in pairs for x in block.split(host)]
