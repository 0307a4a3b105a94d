"""Load: what a pipeline's item needs copied, and how far that has come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

import torch

from autopar.copystream import CopyStream, Past, Waitable, time_of
from autopar.handle import Handle, wait_for_event


def _nothing() -> None:
    pass


class Latch:
    """Opens when it has been counted down, or at once for a count of none.

    Args:
        count: How often it must be counted down.
        then: Called by the thread that opens it.
    """

    def __init__(self, count: int, then: Callable[[], None] = _nothing) -> None:
        self._left = count
        self._then = then
        self._counting = threading.Lock()
        self._closed = threading.Lock()
        if count:
            self._closed.acquire()

    def count_down(self) -> None:
        """Count one; the last one opens it."""
        with self._counting:
            self._left -= 1
            opens = self._left == 0
        if opens:
            then, self._then = self._then, _nothing
            then()
            self._closed.release()

    def open(self) -> None:
        """Open it, whatever the count."""
        with self._counting:
            opens, self._left = self._left > 0, 0
            self._then = _nothing
        if opens:
            self._closed.release()

    def synchronize(self) -> None:
        """Wait until it is open."""
        with self._closed:
            pass


class Part(NamedTuple):
    """One stretch of device memory, and the host memory that it is copied from or to.

    Args:
        device: Bytes on the device.
        host: Bytes on the host, each with the offset of its first in `device`.
        staged: Whether they travel through slots; host memory that is pinned needs none.
    """

    device: torch.Tensor
    host: tuple[tuple[int, torch.Tensor], ...]
    staged: bool

    def ranges(self, slot_bytes: int) -> Iterator[tuple[int, int]]:
        """From where to where each chunk goes."""
        size = self.device.numel()
        step = slot_bytes if self.staged else max(1, size)
        return ((start, min(start + step, size)) for start in range(0, size, step))

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, torch.Tensor]]:
        """What host memory of a range there is, with its offset from the range's start."""
        for offset, bytes_ in self.host:
            low, high = max(start, offset), min(stop, offset + bytes_.numel())
            if low < high:
                yield low - start, bytes_[low - offset : high - offset]


class Load:
    """Everything that an item needs copied.

    Args:
        name: The item, in words.
        lane: What copies it, in words.
        device: Its device.
        parts: What to copy.
        value: What its handle's result is.
        ready: What the copies wait for, on the caller's stream.

    Attributes:
        unpack: Gives its items, once it is copied.
        made_in_s: Seconds that taking its items from their source took.
    """

    def __init__(
        self,
        name: str,
        lane: str,
        device: torch.device,
        parts: tuple[Part, ...],
        value: Any,
        ready: Waitable,
    ) -> None:
        self.handle: Handle[Any] = Handle(name, lane, device, "copy")
        self.parts = parts
        self.value = value
        self.unpack: Callable[[], list[Any]] = lambda: [value]
        self.made_in_s = 0.0
        # What its steps wait for on the caller's side, by the plan's names.
        self.before = {"ready": ready, "room": ready, "given": Past()}
        # The end of its last copy on the stream, where nothing comes after that.
        self.copied: Waitable = Past()
        self.begun = False
        self._settling = threading.Lock()

    def count(self, slot_bytes: int) -> None:
        """Count the chunks that it has to wait for."""
        chunks = sum(sum(1 for _ in part.ranges(slot_bytes)) for part in self.parts)
        self.left = Latch(chunks, self._arrive)
        self.unread = Latch(chunks)  # chunks of host memory yet to be read
        if chunks == 0:
            self.take_up()
            self._arrive()

    @property
    def over(self) -> bool:
        """Whether nothing more is to be done for it."""
        return self.handle.issued.done()

    def take_up(self) -> bool:
        """Take it out of the queue; false if it was dropped meanwhile."""
        return self.handle.issued.set_running_or_notify_cancel()

    def fail(self, error: BaseException) -> None:
        """Hand an error to whoever waits for it."""
        with self._settling:
            if not self.over:
                error.add_note(f"in {self.handle}")
                self.handle.issued.set_exception(error)
        self.left.open()
        self.unread.open()

    def drop(self) -> None:
        """Do no more for it than is under way."""
        if not self.handle.issued.cancel():
            self.fail(CancelledError("dropped"))
        self.left.open()
        self.unread.open()

    def abandon(self, stream: CopyStream) -> None:
        """Give up on it; what is under way may end after its tensors were dropped."""
        for part in self.parts:
            stream.outlives(part.device)
        self.drop()

    def device_tensors(self) -> Iterator[torch.Tensor]:
        """The device memory of its parts."""
        return (part.device for part in self.parts)

    def wait_until_read(self) -> None:
        """Wait until its host memory may be overwritten."""
        self.unread.synchronize()
        if isinstance(self.copied, torch.cuda.Event) and not all(p.staged for p in self.parts):
            wait_for_event(self.copied)

    def _arrive(self) -> None:
        with self._settling:
            if not self.over:
                self.handle.end = time_of(self.copied)
                self.handle.start = self.handle.start or self.handle.end
                self.handle.issued.set_result(self.value)
