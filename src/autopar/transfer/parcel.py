"""Parcel: how a pipeline's items become loads, large ones alone, small ones together, and back."""

from __future__ import annotations

import bisect
import itertools
import operator
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from typing_extensions import override

from autopar.device import cpu
from autopar.effects.hidden import require_none_hidden
from autopar.lanes.outcome import note
from autopar.torch_private import pytree
from autopar.transfer.copy_plan import ALIGNMENT, Pack, packs
from autopar.transfer.copy_stream import CopyStream, Past, Waitable
from autopar.transfer.layout import (
    PLAIN,
    Layout,
    check_no_overlap,
    check_tensor,
    flat,
    is_dense,
    is_ordinary,
    is_plain,
    resolved,
)
from autopar.transfer.load import Load, Part, wait_for_end
from autopar.transfer.owner import next_owned

# Small tensors of a batch share a block of up to this size. Not more: they are freed together.
_BLOCK_BYTES = 1 << 20
# Items up to this size travel together: by themselves they would take longer to queue than to copy.
_SMALL_BYTES = 1 << 18
# Of small items, more travel together next time if these came soon, else fewer.
_SOON_S, _FASTER = 5e-3, 4
_FIRST_TOGETHER = 256

_flatten = pytree.tree_flatten
_memory_bytes = torch.UntypedStorage.nbytes
_WHOLE = {torch.Size, torch.nn.utils.rnn.PackedSequence}
_kind_of = operator.attrgetter("dtype", "requires_grad")


class Parcels(ABC):
    """The loads of an iterable's items, in order, made when they are asked for.

    An error ends them. It is kept, to be raised once the items before it have been taken.

    Args:
        verb: What is being done, in words.
        stream: The stream that will copy them.
        source: The items.
        given: Whether all are there already, so that none changes when the next one is taken.

    Attributes:
        ahead_at_first: Half of how many items to have under way before the first is yielded.
    """

    ahead_at_first = 1  # what is to be worked on should be there soon

    def __init__(self, verb: str, stream: CopyStream, source: Iterator[Any], given: bool) -> None:
        self._verb = verb
        self._stream = stream
        self._source = source
        self._given = given
        self._number = 0  # of the next item to make a load for
        self._failure: Exception | None = None
        self._reading: Waitable = Past()  # of the last item, where its memory is pinned

    def __iter__(self) -> Iterator[Load]:
        try:
            yield from self._loads()
        except Exception as error:
            self._failure = error
            note(error, f"in item {self._number} of {self._verb}")

    def raise_failure(self) -> None:
        """Raise the error that ended them, if one did."""
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # or it and this frame would keep each other

    def give_back(self) -> None:
        """Wait until the items that were yielded may be overwritten."""
        wait_for_end(self._reading)

    @abstractmethod
    def _loads(self) -> Iterator[Load]:
        """Take items from the source and make their loads."""

    @abstractmethod
    def unpack(self, load: Load) -> list[Any]:
        """The items of a load, once they are copied."""

    def _count(self, items: int) -> str:
        """Count items that a load is made for, and name them."""
        first, self._number = self._number, self._number + items
        items_ = f"item {first}" if items == 1 else f"items {first} to {self._number - 1}"
        return f"{items_} of {self._verb}"


class ToHostParcels(Parcels):
    """Loads that bring tensors to the host.

    Args:
        stream: The stream that will copy them.
        slot_bytes: How much fits into a slot.
        source: The tensors.
        given: Whether they are all there already.
        out: Where to copy to, if not to fresh memory.
        pin: Whether fresh memory is to be pinned.
        verb: What the program called, for errors.
    """

    ahead_at_first = sys.maxsize  # all that there may be: it is computed meanwhile

    def __init__(
        self,
        stream: CopyStream,
        slot_bytes: int,
        source: Iterator[torch.Tensor],
        *,
        given: bool = False,
        out: Iterator[torch.Tensor] | None = None,
        pin: bool = False,
        verb: str = "to_host",
    ) -> None:
        super().__init__(f"{verb} from {stream.device}", stream, source, given)
        self._slot_bytes = slot_bytes
        self._maps = verb == "map"
        self._out = out
        self._targets = _Targets()
        self._pin = pin
        self._ended = False
        self._caller = stream.caller()  # the stream that the first of a group was computed on
        # How many small ones travel in one load. Nobody waits for those that are there already.
        self._together = _FIRST_TOGETHER if given else 1

    def _loads(self) -> Iterator[Load]:
        while True:
            start_s = time.perf_counter()
            group, failure = self._pull(until_s=start_s + _SOON_S)
            loads = self._loads_of(group)
            while True:
                with self._stream.caller_on(self._caller):
                    load = next(loads, None)
                if load is None:
                    break
                load.made_in_s = time.perf_counter() - start_s
                yield load
                del load  # it holds its tensors
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # or it and this frame would keep each other
            if self._ended:
                return

    @override
    def unpack(self, load: Load) -> list[torch.Tensor]:
        start_s = time.perf_counter()
        load.wait()
        soon = load.made_in_s + time.perf_counter() - start_s < _SOON_S
        together = self._together * _FASTER if soon else self._together // _FASTER
        self._together = min(max(1, together), self._slot_bytes)
        results: list[torch.Tensor] = load.unpack()
        if self._out is not None:
            self._targets.give_back(results)
        return results

    def _pull(self, until_s: float) -> tuple[list[torch.Tensor], Exception | None]:
        """The next item, small ones to travel with it if they come soon, and the source's error."""
        group: list[torch.Tensor] = []
        try:
            group.append(self._take())
            self._caller = self._stream.caller()
            more = self._company(group[0])
            if self._given:
                group.extend(itertools.islice(self._source, more))
            else:
                room_bytes = self._slot_bytes
                while len(group) <= more and _is_small(group[-1]):
                    if time.perf_counter() > until_s:
                        break
                    room_bytes -= group[-1].nbytes
                    if room_bytes < 0:
                        break
                    group.append(self._take())
                    if isinstance(group[-1], torch.Tensor):
                        self._stream.caller_follows(self._caller, group[-1])
        except StopIteration:
            self._ended = True
        except Exception as failure:
            return group, failure
        return group, None

    def _company(self, first: torch.Tensor) -> int:
        """How many more are to travel with an item."""
        if not _is_small(first):
            return 0
        return max(0, min(self._together, self._slot_bytes // max(1, first.nbytes)) - 1)

    def _take(self) -> torch.Tensor:
        """The next tensor, or a clone if anybody could write to it before it is copied."""
        tensor, owned = next_owned(self._source)
        if owned or self._given or not isinstance(tensor, torch.Tensor) or tensor.requires_grad:
            return tensor
        return tensor.clone() if is_ordinary(tensor) else tensor  # which is refused later

    def _loads_of(self, group: list[torch.Tensor]) -> Iterator[Load]:
        block = self._stacked(group)
        if block is not None:
            yield self._block_load(_Alike(block), None)
            return
        if len(group) == 1:
            yield self._single_load(*self._checked_one(group[0], self._number))
            return
        good, targets, refusals = self._checked(group)
        sizes = [tensor.nbytes for tensor in good]
        for pack in packs(sizes, self._slot_bytes, alone_above_bytes=_SMALL_BYTES):
            chosen = [good[i] for i in pack.members]
            into = [targets[i] for i in pack.members] if targets else None
            if len(chosen) == 1:
                yield self._single_load(chosen[0], into[0] if into else None)
            else:
                yield self._block_load(_Joined(list(map(_dense, chosen)), pack), into)
        if refusals:
            raise refusals.pop()

    def _checked(
        self, group: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Exception]]:
        """The tensors before the first that can't be copied, where to, and why that one can't."""
        good: list[torch.Tensor] = []
        targets: list[torch.Tensor] = []
        for number, tensor in enumerate(group, self._number):
            try:
                _, target = self._checked_one(tensor, number)
            except Exception as refusal:
                return good, targets, [refusal]
            good.append(tensor)
            if target is not None:
                targets.append(target)
        return good, targets, []

    def _checked_one(
        self, tensor: torch.Tensor, number: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A tensor that can be copied, and where to, if that is given."""
        name = f"what fn returned for item {number}" if self._maps else f"tensors[{number}]"
        check_tensor(tensor, name, self._stream.device)
        return tensor, None if self._out is None else self._target(tensor, number)

    def _stacked(self, group: list[torch.Tensor]) -> torch.Tensor | None:
        """All in one block of the device's memory, if they are alike: the quick way for many."""
        if len(group) < 2 or self._out is not None:
            return None
        try:
            alike = set(map(_kind_of, group)) == {(group[0].dtype, False)}
            plain = set(map(type, group)) <= PLAIN and all(map(torch.Tensor.is_contiguous, group))
            if alike and group[0].dim() and plain and _have_memory(group):
                block = check_tensor(torch.stack(group), "", self._stream.device)
                # Those of one element in some dimension may have any strides there.
                if block.numel() and {block.stride()[1:]} == set(map(torch.Tensor.stride, group)):
                    return block
        except (AttributeError, TypeError, ValueError, RuntimeError):
            pass  # something is not as it should be: they are looked at one by one
        return None

    @torch.inference_mode(False)  # results outlive the mode in which they are taken ahead
    def _block_load(self, block: _Alike | _Joined, targets: list[torch.Tensor] | None) -> Load:
        host = torch.empty_like(block.device, device="cpu", pin_memory=self._pin)
        load = self._load_of(block.count, block.device, host, staged=not self._pin)
        if targets is None:
            load.unpack = lambda: block.split(host)
        else:
            load.unpack = lambda: _copy_into(targets, block.split(host))
        return load

    @torch.inference_mode(False)
    def _single_load(self, tensor: torch.Tensor, target: torch.Tensor | None) -> Load:
        dense = _dense(tensor)
        if target is not None and is_plain(target):
            if dense.stride() != target.stride():
                dense = torch.empty_like(target, device=tensor.device).copy_(tensor)
            host, staged = target, not self._stream.is_pinned(target)
            torch.autograd.graph.increment_version(target)  # a graph may have saved it
        else:
            host = torch.empty_like(dense, device="cpu", pin_memory=self._pin)
            staged = not self._pin
        if self._given and dense is tensor:
            dense = tensor.clone()
        load = self._load_of(1, dense, host, staged=staged)
        load.writes_to_out = host is target and not staged
        if target is not None and target is not host:
            load.unpack = lambda: _copy_into([target], [host])
        return load

    def _load_of(
        self, count: int, device: torch.Tensor, host: torch.Tensor, *, staged: bool
    ) -> Load:
        part = Part(device, ((0, host),), staged)
        return Load(self._count(count), self._stream, (part,), host)

    def _target(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """The next tensor of `out`, checked to fit."""
        assert self._out is not None
        name = f"out[{number}]"
        try:
            target = next(self._out)
        except StopIteration:
            msg = f"out has only {number} tensors; expected one for each of tensors."
            raise ValueError(msg) from None
        check_tensor(target, name, cpu())
        if target.shape != tensor.shape or target.dtype != tensor.dtype:
            msg = (
                f"{name} is {tuple(target.shape)} of {target.dtype}; expected "
                f"{tuple(tensor.shape)} of {tensor.dtype}, as the tensor to copy has."
            )
            raise ValueError(msg)
        check_no_overlap(target, name)
        self._targets.take(target, name)
        return target


class ToDeviceParcels(Parcels):
    """Loads that bring batches to the device.

    Args:
        stream: The stream that will copy them.
        source: The batches.
        given: Whether they are all there already.
    """

    def __init__(self, stream: CopyStream, source: Iterator[Any], *, given: bool = False) -> None:
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
        self._reading = load.reading()
        self._stream.caller_receives(load.copied, load.device_tensors())
        return load.unpack()

    @torch.inference_mode(False)  # results outlive the mode in which they are taken ahead
    def _batch_load(self, batch: Any) -> Load:
        if type(batch) is torch.Tensor:
            part, result = self._lone_part(self._host_tensor(batch, 0))
            return Load(self._count(1), self._stream, (part,), result)
        # To put these together anew would make other objects of them, or fail.
        leaves, structure = _flatten(batch, is_leaf=lambda part: type(part) in _WHOLE)
        where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        name = f"batches[{self._number}]"
        require_none_hidden(batch, others, torch.Tensor, name, "tensors")
        tensors = [self._host_tensor(leaves[i], i) for i in where]
        parts: list[Part] = []
        for pack in packs([tensor.nbytes for tensor in tensors], _BLOCK_BYTES):
            sources = [tensors[i] for i in pack.members]
            part, arriving = self._part(sources, pack)
            parts.append(part)
            for i, tensor in zip(pack.members, arriving, strict=True):
                leaves[where[i]] = tensor
        value = pytree.tree_unflatten(leaves, structure)
        return Load(self._count(1), self._stream, tuple(parts), value)

    def _part(self, sources: list[torch.Tensor], pack: Pack) -> tuple[Part, list[torch.Tensor]]:
        """How some tensors of a batch travel, and the device tensors that they arrive in."""
        if len(sources) == 1:
            part, arriving = self._lone_part(sources[0])
            return part, [arriving]
        block = torch.empty(pack.size_bytes, dtype=torch.uint8, device=self._stream.device)
        pieces = zip(pack.offsets, sources, strict=True)
        layouts = [Layout.of(source) for source in sources]
        return Part(block, tuple(pieces), staged=True), _within(block, layouts, pack)

    def _lone_part(self, source: torch.Tensor) -> tuple[Part, torch.Tensor]:
        """How a tensor travels by itself, and the device tensor that it arrives in."""
        arriving = torch.empty_like(source, device=self._stream.device)
        staged = not self._stream.is_pinned(source)
        return Part(arriving, ((0, source),), staged), arriving

    def _host_tensor(self, leaf: torch.Tensor, i: int) -> torch.Tensor:
        return _dense(check_tensor(leaf, f"tensor {i} of batches[{self._number}]", cpu()))


def lone_load(
    stream: CopyStream, tensor: torch.Tensor, name: str, *, pin: bool
) -> tuple[Load, torch.Tensor]:
    """The load of one tensor, cloned first and copied to pinned memory, and where it belongs."""
    source = _dense(tensor)
    source = source.clone() if source is tensor else source
    result = torch.empty_like(source, device="cpu", pin_memory=pin)
    landing = result if pin else Layout.of(source).within(stream.pinned(source.nbytes))
    part = Part(source, ((0, landing),), staged=False)
    return Load(name, stream, (part,), landing), result


class _Targets:
    """Memory of the caller's that copies may be under way to, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: dict[int, tuple[int, str]] = {}  # and the names, by start

    def take(self, target: torch.Tensor, name: str) -> None:
        """Note one more, and refuse it if another lies there, too."""
        start, stop = target.data_ptr(), target.data_ptr() + target.nbytes
        if not target.numel():
            return
        at = bisect.bisect_left(self._starts, start)
        beside = self._starts[max(0, at - 1) : at + 1]
        dense = is_dense(target)
        for other in beside:
            other_stop, other_name = self._stops[other]
            if other == start or (dense and other < stop and start < other_stop):
                msg = (
                    f"{name} shares memory with {other_name}, whose item is still under way; "
                    f"expected memory of its own. Give one tensor for each, or as many in turn as "
                    f"are on their way at once, and one more."
                )
                raise ValueError(msg)
        self._starts.insert(at, start)
        self._stops[start] = (stop if dense else start), name

    def give_back(self, targets: list[torch.Tensor]) -> None:
        """Forget those whose items are there."""
        for target in filter(torch.Tensor.numel, targets):
            start = target.data_ptr()
            del self._stops[start]
            del self._starts[bisect.bisect_left(self._starts, start)]


class _Alike:
    """Tensors of one dtype and shape, stacked."""

    def __init__(self, block: torch.Tensor) -> None:
        self.device = block
        self.count = len(block)

    def split(self, host: torch.Tensor) -> list[torch.Tensor]:
        count, size, *rest = host.shape
        # Unlike what `split` gives, these may be written to in place, each by itself.
        return list(host.view(count * size, *rest).unsafe_split_with_sizes([size] * count))


class _Joined:
    """Tensors of any dtypes and shapes in one block, with gaps that keep them aligned."""

    def __init__(self, tensors: list[torch.Tensor], pack: Pack) -> None:
        self._layouts = [Layout.of(each) for each in tensors]
        self._pack = pack
        self.count = len(tensors)
        gap = torch.zeros(ALIGNMENT, dtype=torch.uint8, device=tensors[0].device)
        pieces, stop = [], 0
        for tensor, offset in zip(tensors, pack.offsets, strict=True):
            pieces += [gap[: offset - stop], flat(tensor)]
            stop = offset + tensor.nbytes
        self.device = torch.cat(pieces)

    def split(self, host: torch.Tensor) -> list[torch.Tensor]:
        return _within(host, self._layouts, self._pack)


def _within(block: torch.Tensor, layouts: list[Layout], pack: Pack) -> list[torch.Tensor]:
    """The tensors in a block; `.data`, so that each counts its own changes, as autograd does."""
    pairs = zip(layouts, pack.offsets, strict=True)
    return [layout.within(block, offset).data for layout, offset in pairs]


def _have_memory(group: list[torch.Tensor]) -> bool:
    """Whether tensors that may be alike lie in their memory; where not so it may be, even so."""
    last = max(map(torch.Tensor.storage_offset, group)) * group[0].itemsize + group[0].nbytes
    return last <= min(map(_memory_bytes, map(torch.Tensor.untyped_storage, group)))


def _is_small(tensor: object) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.nbytes <= _SMALL_BYTES


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where its elements lie apart or are still to be conjugated."""
    tensor = resolved(tensor)
    return tensor if is_dense(tensor) else tensor.clone()


def _copy_into(targets: list[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    with torch.inference_mode():  # some may have been made in that mode
        for target, result in zip(targets, results, strict=True):
            target.copy_(result)
    return targets
