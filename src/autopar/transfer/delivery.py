"""Delivery: copies of single tensors, which arrive whether or not anybody asks for them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError

import torch

from autopar.lanes.handle import Handle
from autopar.lanes.outcome import note
from autopar.transfer.copy_stream import Waitable, time_of
from autopar.transfer.load import Load, wait_for_end
from autopar.transfer.ring import move_bytes
from autopar.transfer.workers import Workers

_LEAST_BYTES = 1 << 15  # what the smallest tensor counts as: its handle takes memory, too


class Delivery:
    """A tensor that the stream copies to pinned memory, and a worker from there on.

    Whoever waits for it does what no worker has begun, so it needs none.

    Args:
        load: Sent, to pinned memory.
        result: Where it belongs.
        piece_bytes: How much is moved between two looks whether to go on.
        workers: Who moves it, if they come to it.
        lane: What its handle calls the way that it takes.
    """

    def __init__(
        self, load: Load, result: torch.Tensor, piece_bytes: int, workers: Workers, lane: str
    ) -> None:
        self._load: Load | None = load  # None once it is over
        self._result = result
        self._piece_bytes = piece_bytes
        self._workers = workers
        self._dropping = False
        self._name, self._process = load.name, os.getpid()
        self._working = threading.Lock()
        self.handle = _handle(load, lane, self.synchronize)

    def synchronize(self) -> None:
        """Move it, or wait for who does; Ctrl-C ends the wait, and somebody else moves it."""
        if self._process != os.getpid():
            msg = f"{self._name} was under way in another process; expected the one that began it"
            raise RuntimeError(msg)
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
                    self.handle.issued.drop()
                    self._forget()
            finally:
                self._working.release()

    def _deliver(self) -> None:
        load = self._load
        if load is None:
            return
        try:
            load.wait()
            self._move(load.value)
            self.handle.end = time.perf_counter()
            self.handle.issued.set_result(self._result)
        except Exception as error:
            note(error, f"in {load.name}")
            self.handle.issued.set_exception(error)
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
    """Those of a pipeline, in bounded memory.

    Args:
        room_bytes: How much may be under way; one tensor always may.
        piece_bytes: As `Delivery` takes it.
        workers: Who moves them.
    """

    def __init__(self, room_bytes: int, piece_bytes: int, workers: Workers) -> None:
        self._left_bytes = room_bytes
        self._piece_bytes = piece_bytes
        self._workers = workers
        self._under_way: deque[tuple[int, Waitable]] = deque()

    def make_room(self, size_bytes: int) -> None:
        """Wait until so much more may be under way, for what was there first."""
        size_bytes = self._counted(size_bytes)
        while self._under_way:
            first_bytes, end = self._under_way[0]
            if self._left_bytes >= size_bytes and not end.query():
                return
            wait_for_end(end)
            self._left_bytes += first_bytes
            self._under_way.popleft()

    def start(self, load: Load, result: torch.Tensor, lane: str) -> Handle[torch.Tensor]:
        """Deliver what was sent, at once if it lands where it belongs."""
        size_bytes = self._counted(result.nbytes)
        self._left_bytes -= size_bytes
        if load.value is result and not load.failed:
            handle = _handle(load, lane)
            handle.end = time_of(load.copied)
            handle.issued.set_result(result)
            self._under_way.append((size_bytes, load.copied))
            return handle
        delivery = Delivery(load, result, self._piece_bytes, self._workers, lane)
        handle = delivery.handle
        self._under_way.append((size_bytes, delivery))
        self._workers.submit(delivery.work)
        return handle

    def _counted(self, size_bytes: int) -> int:
        return max(size_bytes, min(_LEAST_BYTES, self._piece_bytes))

    def drop(self) -> None:
        """Do no more than what is under way."""
        for _, end in tuple(self._under_way):  # to which another thread may add
            if isinstance(end, Delivery):
                end.drop()

    def wait(self) -> None:
        """Wait for all of them."""
        for _, end in tuple(self._under_way):
            wait_for_end(end)


def _handle(load: Load, lane: str, urge: Callable[[], None] = lambda: None) -> Handle[torch.Tensor]:
    return Handle("copy", lane, load.parts[0].device.device, "copy", urge=urge)
