"""To host: tensors that go to the host as loads, large ones alone and small ones together."""

from __future__ import annotations

import itertools
import operator
import sys
import time
from collections.abc import Iterator

import torch
from typing_extensions import override

from autopar.device import cpu
from autopar.transfer.block import Alike, Joined, have_memory
from autopar.transfer.copy_plan import packs
from autopar.transfer.copy_stream import CopyStream
from autopar.transfer.layout import (
    PLAIN,
    Layout,
    check_no_overlap,
    check_tensor,
    dense,
    is_ordinary,
    is_plain,
)
from autopar.transfer.load import Load, Part
from autopar.transfer.owner import next_owned
from autopar.transfer.parcel import Parcels
from autopar.transfer.targets import Targets

# Items up to this size travel together: by themselves they would take longer to queue than to copy.
_SMALL_BYTES = 1 << 18
# Of small items, more travel together next time if these came soon, else fewer.
_SOON_S, _FASTER = 5e-3, 4
_FIRST_TOGETHER = 256

_kind_of = operator.attrgetter("dtype", "requires_grad")


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
        self._targets = Targets()
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
            yield self._block_load(Alike(block), None)
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
                yield self._block_load(Joined(list(map(dense, chosen)), pack), into)
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
            dense = len(set(map(torch.Tensor.stride, group))) == 1 and group[0].is_contiguous()
            plain = set(map(type, group)) <= PLAIN
            if alike and group[0].dim() and dense and plain and have_memory(group):
                block = check_tensor(torch.stack(group), "", self._stream.device)
                # Those of one element in some dimension may have any strides there.
                if block.numel() and block.stride()[1:] == group[0].stride():
                    return block
        except (AttributeError, TypeError, ValueError, RuntimeError):
            pass  # something is not as it should be: they are looked at one by one
        return None

    @torch.inference_mode(False)  # results outlive the mode in which they are taken ahead
    def _block_load(self, block: Alike | Joined, targets: list[torch.Tensor] | None) -> Load:
        host = torch.empty_like(block.device, device="cpu", pin_memory=self._pin)
        load = self._load_of(block.count, block.device, host, staged=not self._pin)
        if targets is None:
            load.unpack = lambda: block.split(host)
        else:
            load.unpack = lambda: _copy_into(targets, block.split(host))
        return load

    @torch.inference_mode(False)
    def _single_load(self, tensor: torch.Tensor, target: torch.Tensor | None) -> Load:
        laid_out = dense(tensor)
        if target is not None and is_plain(target):
            if laid_out.stride() != target.stride():
                laid_out = torch.empty_like(target, device=tensor.device).copy_(tensor)
            host, staged = target, not self._stream.is_pinned(target)
            torch.autograd.graph.increment_version(target)  # a graph may have saved it
        else:
            host = torch.empty_like(laid_out, device="cpu", pin_memory=self._pin)
            staged = not self._pin
        if self._given and laid_out is tensor:
            laid_out = tensor.clone()
        load = self._load_of(1, laid_out, host, staged=staged)
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


def lone_load(
    stream: CopyStream, tensor: torch.Tensor, name: str, *, pin: bool
) -> tuple[Load, torch.Tensor]:
    """The load of one tensor, cloned first and copied to pinned memory, and where it belongs."""
    source = dense(tensor)
    source = source.clone() if source is tensor else source
    result = torch.empty_like(source, device="cpu", pin_memory=pin)
    landing = result if pin else Layout.of(source).within(stream.pinned(source.nbytes))
    part = Part(source, ((0, landing),), staged=False)
    return Load(name, stream, (part,), landing), result


def _is_small(tensor: object) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.nbytes <= _SMALL_BYTES


def _copy_into(targets: list[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    with torch.inference_mode():  # some may have been made in that mode
        for target, result in zip(targets, results, strict=True):
            target.copy_(result)
    return targets
