"""Pipeline: copies through pinned memory between a device and the host, in bounded memory."""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from autopar.device import present
from autopar.lanes.handle import Handle
from autopar.lanes.outcome import note
from autopar.refusal import what, whole_number
from autopar.transfer.copy_plan import TO_DEVICE, TO_HOST, Rule
from autopar.transfer.copy_stream import copy_stream
from autopar.transfer.delivery import Deliveries
from autopar.transfer.layout import check_tensor
from autopar.transfer.load import Load
from autopar.transfer.parcel import Parcels
from autopar.transfer.reuse import ReusedMemory
from autopar.transfer.ring import Ring
from autopar.transfer.source import is_given, iterated
from autopar.transfer.to_device import ToDeviceParcels
from autopar.transfer.to_host import ToHostParcels
from autopar.transfer.use import LEFT, Use
from autopar.transfer.workers import Workers

T = TypeVar("T")

_QUEUED = 2  # items that wait for a slot, so that none has to wait for the next item
_LAST_WAIT_S = 5.0  # for a copy under way, where nobody leaves the pipeline that it belongs to
_SLOTS = 6  # for the bus, for each of three workers, and two in between
_MOST_SLOTS = 1024  # 16 GiB of them
SLOT_BYTES = 16 << 20  # copies of this size run within 1 % of the bus's rate
_MOST_THREADS = 24  # more than this seldom copy faster from memory to memory


class CopyPipeline:
    """Copies between a device and the host that run beside the computing, in bounded memory.

    A context manager. Each direction has a ring of pinned slots, allocated at its first use. Host
    tensors that are pinned already are copied without one. Any dtype, shape and stride comes out
    bit for bit as from `.cpu()` or `.to(device)`. On the CPU the same calls copy there.

    Whoever handed an item over may overwrite or free it once the next one is asked for: a generator
    when it goes on after its `yield`, the owner of a list when the next result is there or the
    iterator has ended or was closed, who called `to_host_async` at once. Names, views, arrays and
    weak references that still lead to a tensor are taken into account.

    Refused are tensors that require grad, as autograd is kept out, and those that are more, or
    less, than plain memory: sparse, nested and quantized ones, subclasses such as DTensor. One
    thread may use a pipeline at a time, inside its `with`; others get a RuntimeError. Several
    pipelines run at once, on one device or on many.

    A process that ends, or forgets a pipeline, ends what that has under way, and needs no `close`
    of a generator that holds it.

    Args:
        device: A GPU, or the CPU.
        slots: Slots in a ring; two more items than those are under way at once.
        slot_bytes: The size of a slot, at most: pinned memory comes in powers of two. Larger
            tensors are copied in chunks, small ones share a slot.
        threads: CPU threads that move large tensors within host memory; all that the machine has
            if not given, 24 at most. With one the caller moves them, by torch's threads.

    Attributes:
        device: The device.
        slots: Slots in a ring.
        slot_bytes: The size that a slot really has.

    Raises:
        ValueError: The device is not on this machine, or there are no slots or far too many, no
            bytes in them or no threads.

    >>> import torch
    >>> import autopar as ap
    >>> with ap.CopyPipeline("cpu") as pipeline:
    ...     [x.sum().item() for x in pipeline.to_host(torch.ones(3) * i for i in range(3))]
    [0.0, 3.0, 6.0]
    """

    def __init__(
        self,
        device: torch.device | str | int,
        *,
        slots: int = _SLOTS,
        slot_bytes: int = SLOT_BYTES,
        threads: int | None = None,
    ) -> None:
        self.device = present(device)
        of = f" in a ring, such as {_SLOTS}"
        self.slots = whole_number("slots", slots, most=_MOST_SLOTS, of=of)
        slot_bytes = whole_number("slot_bytes", slot_bytes, of=f", such as {SLOT_BYTES}")
        self.slot_bytes = 1 << (slot_bytes.bit_length() - 1)
        most = min(_MOST_THREADS, os.cpu_count() or 1)
        threads = most if threads is None else whole_number("threads", threads)
        self._rings: dict[tuple[Rule, Rule], Ring] = {}
        self._workers = Workers(threads, self.slots)
        # Where nobody leaves it, as when a generator that holds it is never closed.
        self._forgotten = weakref.finalize(self, _give_up, self._rings, os.getpid())
        self._use = Use(self.device)
        self._most_ahead = self.slots + _QUEUED
        room_bytes = self._most_ahead * self.slot_bytes
        self._deliveries = Deliveries(room_bytes)
        # Beside those under way the caller has one, and has just given one up.
        self._memory = ReusedMemory(room_bytes, self._most_ahead + 2)

    def to_host(
        self,
        tensors: Iterable[torch.Tensor],
        out: Iterable[torch.Tensor] | None = None,
        pin: bool = False,
    ) -> Iterator[torch.Tensor]:
        """Copy tensors to the host, while later ones are still computed.

        Up to `slots` + 1 items are asked for ahead of the one that is yielded, or as many times
        16 MiB of small ones, which may be thousands. If anything else still leads to a tensor's
        memory, as in `y = f(x); yield y`, it is cloned on the device first, which `yield f(x)` and
        lists do without.

        Results belong to the caller. Small ones (up to 8 MiB) that travelled together share one
        block (up to 16 MiB), as the parts of `torch.split` do: clone one to keep it by itself, to
        give it another size, or to share it with another process. Memory of results that nobody
        has any more is used for later ones; as much of it as `slots` + 2 slots have is kept until
        the pipeline is left.

        Args:
            tensors: Tensors on the device; a generator may compute them as it goes.
            out: Contiguous host tensors to copy into, one for each; none is touched again once its
                item was yielded. Fresh memory costs page faults that memory used before does not.
            pin: Return pinned tensors from torch's pool, which the copies land in directly.

        Yields:
            Host tensors in order, with dtypes, shapes and strides as of `clone()`; or `out`'s.

        Raises:
            ValueError: Both `out` and `pin` are given; a tensor is on another device or requires
                grad; a tensor of `out` is missing, not contiguous, has another shape, dtype or
                device, or shares memory with that of another item under way.
            TypeError: An item is not a tensor, or not plain memory.
            Exception: What `tensors` raised, after the items before. Errors name their item.
        """
        return self._to_host(tensors, out, pin, "to_host")

    def _to_host(
        self,
        tensors: Iterable[torch.Tensor],
        out: Iterable[torch.Tensor] | None,
        pin: bool,
        verb: str,
    ) -> Iterator[torch.Tensor]:
        if pin and out is not None:
            msg = "out and pin are both given; expected one: results go to out, or are allocated."
            raise ValueError(msg)
        source = iterated(tensors, "tensors", "to_host_async(x), or [x], for a single tensor")
        if not isinstance(pin, bool):
            msg = f"pin is {what(pin)}; expected True or False."
            raise TypeError(msg)
        if out is not None:  # the rows of a single tensor will do
            rows = isinstance(out, torch.Tensor) and out.dim()
            out = iter(out) if rows else iterated(out, "out", "a list")
        for _ in self._use.turn():
            ring = self._ring(TO_HOST)
            pin = pin and self.device.type == "cuda"
            given = is_given(tensors)
            parcels = ToHostParcels(ring, source, given, self._memory, out, pin, verb)
        return self._relay(ring, parcels)

    def prefetch(self, batches: Iterable[T]) -> Iterator[T]:
        """Copy batches to the device, the next ones while the caller works on this one.

        Up to `slots` + 1 batches are asked for ahead of the one that is yielded, or as many times
        16 MiB of small ones that come quickly, which may be thousands.

        Results belong to the caller. Small ones (up to 8 MiB) that travelled together share one
        block of memory (up to 16 MiB): clone one to keep it without the others.

        Args:
            batches: Host tensors, and tuples, lists, dicts and named tuples of them, as a
                DataLoader gives. What else is in them is passed on as it is; objects that hide
                tensors in sets, keys or attributes are refused.

        Yields:
            The same, on the device, in order, for use on the caller's current stream.

        Raises:
            ValueError: A tensor is not on the host, or requires grad.
            TypeError: A tensor is not plain memory, or hidden where nobody looks.
            Exception: What `batches` raised, after the items before. Errors name their item.
        """
        source = iterated(batches, "batches", "[x] for a single batch")
        for _ in self._use.turn():
            ring = self._ring(TO_DEVICE)
            parcels = ToDeviceParcels(ring, source, is_given(batches))
        return self._relay(ring, parcels)

    def map(
        self,
        fn: Callable[[T], torch.Tensor],
        batches: Iterable[T],
        out: Iterable[torch.Tensor] | None = None,
        pin: bool = False,
    ) -> Iterator[torch.Tensor]:
        """Copy batches to the device, call `fn` on each, and copy the results to the host.

        All three run at once.

        Args:
            fn: Called with each batch on the device; returns a tensor there.
            batches: As for `prefetch`, and twice as many ahead: results are under way as well.
            out: As for `to_host`.
            pin: As for `to_host`.

        Yields:
            Results on the host, in order.

        Raises:
            Exception: As `prefetch` and `to_host` do, and what `fn` raised.
        """
        if not callable(fn):
            msg = f"fn is {what(fn)}; expected a function. Write map(fn, batches), not map(fn(x))."
            raise TypeError(msg)
        return self._to_host((fn(batch) for batch in self.prefetch(batches)), out, pin, "map")

    def to_host_async(self, tensor: torch.Tensor) -> Handle[torch.Tensor]:
        """Start the copy of one tensor, without waiting for it.

        The tensor is cloned on the device first, and lands in pinned memory of torch's pool, as
        with `.to("cpu", non_blocking=True)`. Up to `slots` + 2 slots full of them, or a larger one,
        are under way; the next call waits until the oldest is done.

        Args:
            tensor: On the device.

        Returns:
            A handle whose `result()` waits for the tensor on the host.

        Raises:
            ValueError: It is on another device, or requires grad.
            TypeError: It is not a tensor, or not plain memory.
        """
        for _ in self._use.turn():
            check_tensor(tensor, "tensor", self.device)
            handle = self._deliveries.start(self._ring(TO_HOST), tensor)
        return handle

    def __repr__(self) -> str:
        return f"<CopyPipeline: {self.device}, {self.slots} slots, {self._use.state}>"

    def __enter__(self) -> Self:
        self._use.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._use.state = LEFT
        rings = list(self._rings.values()) if self._use.is_here() else []
        try:
            for ring in rings:
                ring.stop()
        finally:
            for ring in rings:  # also those that Ctrl-C has kept from it
                ring.stop()
            if rings:
                self._workers.stop()
            self._rings.clear()
            self._memory = ReusedMemory(0, 1)
            self._forgotten.detach()

    def _relay(self, ring: Ring, parcels: Parcels) -> Iterator[Any]:
        """Keep items under way, and yield them in order."""
        moving: deque[Load] = deque()
        coming = iter(parcels)
        ahead = parcels.ahead_at_first
        try:
            while True:
                for _ in self._use.turn():
                    ahead = min(2 * ahead, self._most_ahead)
                    for load in itertools.islice(coming, ahead - len(moving)):
                        moving.append(load)
                        ring.advance(load)
                        del load
                    if not moving:
                        return
                    items = deque(parcels.unpack(moving[0]))
                    moving.popleft()  # not before, or nobody would give it up after Ctrl-C
                while items:
                    yield items.popleft()  # and keep none, so that the caller can free it
        finally:
            if self._use.is_here():  # else nobody is there to be waited for
                for load in moving:
                    load.abandon()
                parcels.drop()

    def _ring(self, rules: tuple[Rule, Rule]) -> Ring:
        ring = self._rings.get(rules)
        if ring is None:
            try:
                stream = copy_stream(self.device)
                ring = Ring(rules, stream, self.slots, self.slot_bytes, self._workers)
            except (RuntimeError, MemoryError) as error:
                size = f"{self.slots} slots of {self.slot_bytes:,} bytes"
                note(error, f"while pinning {size}; give fewer slots or a smaller slot_bytes")
                raise
            self._rings[rules] = ring
            if self._use.state == LEFT:  # meanwhile, by another thread
                del self._rings[rules]
                raise RuntimeError(self._use.refusal())
        return ring


def _give_up(rings: dict[tuple[Rule, Rule], Ring], process: int) -> None:
    if process == os.getpid():
        for ring in list(rings.values()):
            ring.stop(_LAST_WAIT_S)
