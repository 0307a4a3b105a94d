"""To host: tensors that go to the host as loads, large ones alone and small ones together."""

from __future__ import annotations

import bisect
import operator
import sys
from collections.abc import Iterator

import torch
from typing_extensions import override

from autopar.device import cpu
from autopar.torch_private import InferenceMode, has_internal_overlap
from autopar.transfer.copy_plan import packs
from autopar.transfer.layout import (
    PLAIN,
    Block,
    alike,
    check_tensor,
    dense,
    is_dense,
    is_plain,
    joined,
    what_else,
)
from autopar.transfer.load import Load, Part
from autopar.transfer.parcel import Parcels
from autopar.transfer.ring import Ring
from autopar.transfer.source import next_owned

Targeted = list[torch.Tensor | None]  # where results go, if not to fresh memory

_CPU = cpu()
_FIRST_TOGETHER = 256  # of a list

_kind_of = operator.attrgetter("dtype", "device", "requires_grad")


class ToHostParcels(Parcels):
    """Loads that bring tensors to the host, to `out` or to fresh memory, which may be pinned."""

    ahead_at_first = sys.maxsize  # all that there may be: it is computed meanwhile
    _tiny_bytes = 1 << 18

    def __init__(
        self,
        ring: Ring,
        source: Iterator[torch.Tensor],
        given: bool,
        out: Iterator[torch.Tensor] | None = None,
        pin: bool = False,
        verb: str = "to_host",
    ) -> None:
        super().__init__(f"{verb} from {ring.stream.device}", ring, source, given)
        self._maps = verb == "map"
        self._out = out
        self._targets = Targets()
        self._pin = pin
        self._caller = self._stream.caller()  # the stream that the first of a group was computed on
        if given:  # nobody waits for those that are there already
            self._together = _FIRST_TOGETHER

    @override
    def _arrive(self, load: Load) -> None:
        load.wait()

    @override
    def _take(self, group: list[torch.Tensor]) -> int:
        """The next tensor, or a clone if anybody could write to it before it is copied."""
        tensor: torch.Tensor
        tensor, owned = (next(self._source), True) if self._given else next_owned(self._source)
        if not group:
            self._caller = self._stream.caller()
        if isinstance(tensor, torch.Tensor) and not self._given:
            if not (owned or tensor.requires_grad) and what_else(tensor) is None:
                tensor = tensor.clone()
            if group:
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
        together = len(group) > 1 and self._out is None
        if together and (stack := self._stacked(group)) is not None:
            self._block_load(alike(stack), group, [None] * len(group))
            return
        good, targets = self._checked(group)
        if len(good) == 1:
            self._load_of_each(good, targets)
            return
        sizes = [tensor.nbytes for tensor in good]
        for pack in packs(sizes, self._slot_bytes, alone_above_bytes=self._small_bytes):
            chosen, into = [good[i] for i in pack.members], [targets[i] for i in pack.members]
            if len(chosen) == 1 or self._any_pinned(into):
                self._load_of_each(chosen, into)
            elif self._out is not None and (stack := self._stacked(chosen)) is not None:
                self._block_load(alike(stack), chosen, into)
            else:
                laid_out = list(map(_laid_out, chosen, into))
                self._block_load(joined(laid_out, pack), laid_out, into)

    def _checked(self, group: list[torch.Tensor]) -> tuple[list[torch.Tensor], Targeted]:
        """The tensors before the first that can't be copied, and where to copy them."""
        targets: Targeted = []
        for number, tensor in enumerate(group, self._number):
            name = f"what fn returned for item {number}" if self._maps else f"tensors[{number}]"
            try:
                check_tensor(tensor, name, self._stream.device)
                targets.append(None if self._out is None else self._target(tensor, number))
            except Exception as error:
                self._end_by(error)
                break
        return group[: len(targets)], targets

    def _stacked(self, group: list[torch.Tensor]) -> torch.Tensor | None:
        """All in one block, if they are alike: 2 µs of the host's for each of many, not 17."""
        try:
            are_alike = set(map(_kind_of, group)) == {(group[0].dtype, self._stream.device, False)}
            are_dense = len(set(map(torch.Tensor.stride, group))) == 1 and group[0].is_contiguous()
            are_plain = set(map(type, group)) <= PLAIN
            if are_alike and group[0].dim() and are_dense and are_plain and _have_memory(group):
                stack = check_tensor(torch.stack(group), "", self._stream.device)
                # Those of one element in some dimension may have any strides there.
                if stack.numel() and stack.stride()[1:] == group[0].stride():
                    return stack
        except (AttributeError, TypeError, ValueError, RuntimeError):
            pass  # something is not as it should be: they are looked at one by one
        return None

    def _block_load(self, block: Block, tensors: list[torch.Tensor], targets: Targeted) -> None:
        """Several tensors in one block, and their results in another, or where they go."""
        with InferenceMode(False):  # results outlive the mode in which they are taken ahead
            if self._out is None:
                host = torch.empty_like(block.device, device="cpu", pin_memory=self._pin)
                part = Part(block.device, ((0, host),), staged=not self._pin)
                self._load(len(block.offsets), [part], lambda: _split(block, host))
                return
            hosts = list(map(self._landing, tensors, targets))
            part = Part(block.device, tuple(zip(block.offsets, hosts, strict=True)), staged=True)
            self._load(len(hosts), [part], lambda: self._settled(hosts, targets))

    def _load_of_each(self, tensors: list[torch.Tensor], targets: Targeted) -> None:
        """Tensors that are copied each by itself."""
        parts, hosts = [], []
        with InferenceMode(False):
            for tensor, target in zip(tensors, targets, strict=True):
                own = _laid_out(tensor, target)
                host = self._landing(own, target)
                if self._given and own is tensor:
                    own = own.clone()
                pinned = self._pin or (host is target and self._stream.is_pinned(host))
                parts.append(Part(own, ((0, host),), staged=not pinned))
                hosts.append(host)
            if self._out is None:
                self._load(len(parts), parts, lambda: hosts)
                return
            load = self._load(len(parts), parts, lambda: self._settled(hosts, targets))
        load.writes_to_out = bool(load.pinned)

    def _landing(self, tensor: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
        """Where to copy a dense tensor: to its target itself, if that lies just so."""
        if target is None or not is_plain(target) or target.stride() != tensor.stride():
            return torch.empty_like(tensor, device="cpu", pin_memory=self._pin)
        torch.autograd.graph.increment_version(target)  # a graph may have saved it
        return target

    def _any_pinned(self, into: Targeted) -> bool:
        return any(target is not None and self._stream.is_pinned(target) for target in into)

    def _target(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """The next tensor of `out`, checked to fit."""
        assert self._out is not None
        name = f"out[{number}]"
        try:
            target = next(self._out)
        except StopIteration:
            msg = f"out has only {number} tensors; expected one for each of tensors."
            raise ValueError(msg) from None
        check_tensor(target, name, _CPU)
        if target.shape != tensor.shape or target.dtype != tensor.dtype:
            msg = (
                f"{name} is {tuple(target.shape)} of {target.dtype}; expected "
                f"{tuple(tensor.shape)} of {tensor.dtype}, as the tensor to copy has."
            )
            raise ValueError(msg)
        if not target.is_contiguous() and has_internal_overlap(target) == 1:
            msg = f"{name} has elements that share memory, as in an expanded tensor. Clone it."
            raise ValueError(msg)
        self._targets.take(target, name)
        return target

    def _settled(self, hosts: list[torch.Tensor], targets: Targeted) -> list[torch.Tensor]:
        """The results: the targets, once what did not land in them was copied there."""
        results = []
        for host, target in zip(hosts, targets, strict=True):
            assert target is not None
            if target is not host:
                with InferenceMode(True):  # it may have been made in that mode
                    target.copy_(host)
            self._targets.give_back(target)
            results.append(target)
        return results


def _laid_out(tensor: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
    """The tensor, or a copy on its device that is dense and lies as its target does."""
    tensor = dense(tensor)
    if target is None or not is_plain(target) or target.stride() == tensor.stride():
        return tensor
    return torch.empty_like(target, device=tensor.device).copy_(tensor)


def _split(block: Block, host: torch.Tensor) -> list[torch.Tensor]:
    with InferenceMode(False):  # results outlive the mode in which they are taken
        return block.split(host)


def _have_memory(group: list[torch.Tensor]) -> bool:
    """Whether tensors that may be alike lie in their memory; where not so it may be, even so."""
    last = max(map(torch.Tensor.storage_offset, group)) * group[0].itemsize + group[0].nbytes
    return last <= min(map(torch.UntypedStorage.nbytes, map(torch.Tensor.untyped_storage, group)))


class Targets:
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

    def give_back(self, target: torch.Tensor) -> None:
        """Forget one whose item is there."""
        if target.numel():
            start = target.data_ptr()
            del self._stops[start]
            del self._starts[bisect.bisect_left(self._starts, start)]
