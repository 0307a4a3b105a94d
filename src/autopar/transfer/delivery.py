"""Delivery: copies of single tensors, which arrive whether or not anybody asks for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError

import torch

from autopar.lanes.clock import device_clock
from autopar.lanes.handle import Handle
from autopar.lanes.outcome import note
from autopar.transfer.copy_stream import Waitable, time_of
from autopar.transfer.layout import dense, like
from autopar.transfer.load import Load, Part, is_over, wait_for_end
from autopar.transfer.ring import Ring, move_bytes
from autopar.transfer.workers import Workers

_LEAST_BYTES = 1 << 15  # what the smallest tensor counts as: its handle takes memory, too


class Delivery:
    """A tensor that the stream copies to pinned memory, and a worker from there on.

    Whoever waits for it does what no worker has begun, so it needs none.
    """

    def __init__(
        self, load: Load, result: torch.Tensor, piece_bytes: int, workers: Workers
    ) -> None:
        self._load: Load | None = load  # None once it is over
        self._result = result
        self._piece_bytes = piece_bytes  # how much is moved between two looks whether to go on
        self._workers = workers
        self._dropping = False
        self._working = threading.Lock()
        self.handle = _handle(load, self.synchronize)

    def synchronize(self) -> None:
        """Move it, or wait for who does; Ctrl-C ends the wait, and somebody else moves it."""
        if not self._workers.is_one_calling():  # as they collect garbage: they wait for nobody
            with self._working:
                self._deliver()

    def work(self) -> None:
        """What a worker does: move it, unless somebody does already."""
        if self._working.acquire(blocking=False):
            try:
                self._deliver()
            finally:
                self._working.release()

    def query(self) -> bool:
        """Whether it is over."""
        return self._load is None

    def drop(self) -> None:
        """Begin with it no more, and do no more than the piece under way."""
        self._dropping = True
        if self._working.acquire(blocking=False):
            try:
                if self._load is not None:
                    self.handle._issued.drop()
                    self._forget()
            finally:
                self._working.release()

    def _deliver(self) -> None:
        load = self._load
        if load is None:
            return
        try:
            load.wait()
            self._move(*load.unpack())
            self.handle._end = time.perf_counter()
            self.handle._issued.set_result(self._result)
        except Exception as error:
            note(error, f"in {load.name}")
            self.handle._issued.set_exception(error)
        self._forget()

    def _move(self, landed: torch.Tensor) -> None:
        to, source = self._result.data_ptr(), landed.data_ptr()
        for start in range(0, landed.nbytes, self._piece_bytes):
            if self._dropping:
                msg = "dropped, as the pipeline was left by an exception"
                raise CancelledError(msg)
            size_bytes = min(self._piece_bytes, landed.nbytes - start)
            move_bytes(to + start, source + start, size_bytes)

    def _forget(self) -> None:
        """Let go of memory; the handle leads here, so that this goes as it does."""
        self._load = None
        del self._result, self.handle


class Deliveries:
    """Those of a pipeline, in bounded memory: `room_bytes` or one tensor are under way at most."""

    def __init__(self, room_bytes: int, piece_bytes: int, workers: Workers) -> None:
        self._left_bytes = room_bytes
        self._piece_bytes = piece_bytes
        self._workers = workers
        self._under_way: deque[tuple[int, Waitable | None]] = deque()

    def start(self, ring: Ring, tensor: torch.Tensor, *, pin: bool) -> Handle[torch.Tensor]:
        """Clone a tensor, copy it to pinned memory, and from there to its result, if need be."""
        size_bytes = max(tensor.nbytes, min(_LEAST_BYTES, self._piece_bytes))
        self._make_room(size_bytes)
        stream, name = ring.stream, f"item 0 of to_host_async from {tensor.device}"
        try:
            load, result = _load(ring, tensor, name, pin=pin)
            start = time_of(stream.mark(timed=True))
            stream.outlives(load.parts[0].device)
            ring.advance(load)
        except Exception as error:
            note(error, f"in {name}")
            raise
        self._left_bytes -= size_bytes
        if pin and not load.failed:  # it lands where it belongs
            handle = _handle(load)
            handle._end = time_of(load.copied)
            handle._issued.set_result(result)
            self._under_way.append((size_bytes, load.copied))
        else:
            delivery = Delivery(load, result, self._piece_bytes, self._workers)
            handle = delivery.handle
            self._under_way.append((size_bytes, delivery))
            self._workers.submit(delivery.work)
        handle._start = start
        handle._clock = device_clock(stream.device) if stream.device.type == "cuda" else None
        return handle

    def drop(self) -> None:
        """Do no more than what is under way."""
        for _, end in tuple(self._under_way):  # to which another thread may add
            if isinstance(end, Delivery):
                end.drop()

    def wait(self) -> None:
        """Wait for all of them."""
        for _, end in tuple(self._under_way):
            wait_for_end(end)

    def _make_room(self, size_bytes: int) -> None:
        """Wait until so much more may be under way, for what was there first."""
        while self._under_way:
            first_bytes, end = self._under_way[0]
            if not is_over(end):
                if self._left_bytes >= size_bytes:
                    return
                wait_for_end(end)
            self._left_bytes += first_bytes
            self._under_way.popleft()


def _load(ring: Ring, tensor: torch.Tensor, name: str, *, pin: bool) -> tuple[Load, torch.Tensor]:
    """The load of one tensor, cloned first and copied to pinned memory, and where it belongs."""
    source = dense(tensor)
    source = source.clone() if source is tensor else source
    result = torch.empty_like(source, device="cpu", pin_memory=pin)
    landing = result if pin else like(source, ring.stream.pinned(source.nbytes))
    load = Load(name, ring.stream, [Part(source, ((0, landing),), False)], lambda: [landing])
    load.timed = True
    return load, result


def _handle(load: Load, urge: Callable[[], None] = lambda: None) -> Handle[torch.Tensor]:
    device = load.parts[0].device.device
    return Handle("copy", f"{device} to host", device, "copy", urge=urge)
