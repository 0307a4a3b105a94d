"""Load: what a pipeline's item needs copied, and how far that has come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

import torch

from autopar.lanes.handle import Handle, wait_for_event
from autopar.lanes.outcome import note
from autopar.transfer.copy_stream import CopyStream, Past, Waitable, time_of


def _nothing() -> None:
    pass


class Latch:
    """Opens when it has been counted down.

    Args:
        count: How often it must be counted down, at least once.
        then: Called by the thread that counts the last one, before it opens.
    """

    __slots__ = ("_closed", "_counting", "_left", "_then")

    def __init__(self, count: int, then: Callable[[], None] = _nothing) -> None:
        self._left = count
        self._then = then
        self._counting = threading.Lock()
        self._closed = threading.Lock()
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

    def query(self) -> bool:
        """Whether it is open."""
        return not self._closed.locked()


Piece = tuple[int, torch.Tensor]  # an offset, and a dense tensor of the host's from there on
Stretch = tuple[int, int, int]  # an offset, the address of the host's first byte there, and bytes


class Part(NamedTuple):
    """One stretch of device memory, and the host memory that it is copied from or to.

    Args:
        device: Bytes on the device.
        host: Dense tensors on the host, each with the offset of its first byte in `device`.
        staged: Whether they travel through slots. Where the host memory is pinned they need not:
            then these are one tensor on either side, of any dtype, and copied as such.
    """

    device: torch.Tensor
    host: tuple[Piece, ...]
    staged: bool

    def chunks(self, slot_bytes: int) -> int:
        """In how many chunks it travels through slots."""
        return -(-self.device.numel() // slot_bytes) if self.staged else 0

    def cut(self, slot_bytes: int) -> Iterator[tuple[torch.Tensor, int, list[Stretch]]]:
        """Its chunks: the device's bytes, how many, and the host's, with their offsets in it."""
        stop = self.device.numel()
        host = [(at, each.data_ptr(), size) for at, each in self.host if (size := each.nbytes)]
        if stop <= slot_bytes:
            if stop:
                yield self.device, stop, host
            return
        starts = range(0, stop, slot_bytes)
        for start, device in zip(starts, self.device.split(slot_bytes), strict=True):
            size = min(slot_bytes, stop - start)
            yield device, size, list(_within(host, start, start + size))


def _within(host: list[Stretch], start: int, stop: int) -> Iterator[Stretch]:
    """What of some stretches lies in a chunk, from its first byte on."""
    for offset, address, size in host:
        low, high = max(start, offset), min(stop, offset + size)
        if low < high:
            yield low - start, address + low - offset, high - low


class Load:
    """Everything that some items need copied.

    Args:
        name: The items, and what is done to them, in words.
        stream: The stream of its copies.
        parts: What to copy.
        value: What is there once it is copied.
        ends_on_host: Whether the last step of what is staged is one of the movers', and not a
            copy on the stream.

    Attributes:
        unpack: Gives its items, once it is copied.
        made_in_s: Seconds that taking its items from their source took.
        handle: Resolved when it is copied, if somebody holds one.
        before: What its steps wait for on the caller's side, by the plan's names.
        copied: The end of its last copy on the stream, once that is queued.
        writes_to_out: Whether copies on the stream land in memory of the caller's.
        over: Whether nothing more is to be done for it.
        settling: Held to say that it is over, and while host memory is moved at once.
    """

    __slots__ = (
        *("_error", "_left", "_moving", "_name", "_stream", "_unread", "before", "copied"),
        *("ends_on_host", "handle", "made_in_s", "over", "parts", "settling", "unpack", "value"),
        "writes_to_out",
    )

    def __init__(
        self,
        name: str,
        stream: CopyStream,
        parts: tuple[Part, ...],
        value: Any,
        *,
        ends_on_host: bool = False,
    ) -> None:
        self._name = name
        self._stream = stream
        self.parts = parts
        self.value = value
        self.ends_on_host = ends_on_host
        self.unpack: Callable[[], list[Any]] = lambda: [value]
        self.made_in_s = 0.0
        self.handle: Handle[Any] | None = None
        ready = stream.caller_mark()
        self.before: dict[str, Waitable] = {"ready": ready, "room": ready, "given": Past()}
        self.copied: Waitable = Past()
        self.writes_to_out = False
        self.over = False
        self._error: BaseException | None = None
        self._left: Latch | None = None  # staged chunks that are to be copied
        self._moving: list[Latch] = []  # pieces that movers have in hand, or had
        self._unread: Latch | None = None  # those of them whose host memory is to be read
        # Garbage may be collected while it is held, by this very thread, and this be part of that.
        self.settling = threading.RLock()

    def expect(self, chunks: int) -> None:
        """Count the staged chunks that it has to wait for; with none it is over."""
        if self.over:  # it has failed
            return
        if chunks:
            self._left = Latch(chunks, self._arrive)
            if not self.ends_on_host:  # else nothing of the host's is read
                self._unread = Latch(chunks)
        else:
            self._arrive()

    def begin(self) -> None:
        """Note that its first copy is about to be queued on the stream."""
        if self.handle is not None:
            self.handle.start = time_of(self._stream.mark(timed=True))

    def moves(self, latch: Latch) -> bool:
        """Note that host memory is about to be moved; false if nothing is to be any more."""
        with self.settling:
            if not self.over:
                self._moving.append(latch)
            return not self.over

    def chunk_read(self) -> None:
        """Count a chunk of host memory that was read."""
        if self._unread is not None:
            self._unread.count_down()

    def chunk_copied(self) -> None:
        """Count a chunk that is copied, or whose copy is queued if that is its last step."""
        if self._left is not None:
            self._left.count_down()

    def fail(self, error: BaseException) -> bool:
        """Hand an error to whoever waits for it, and tell whether it counts, as the first one."""
        with self.settling:
            if self.over:
                return False
            self.over, self._error = True, error
        self._outlive()
        note(error, f"in {self._name}")
        if self.handle is not None:
            self.handle.issued.set_exception(error)
        for latch in (self._left, self._unread):
            if latch is not None:
                latch.open()
        return True

    def abandon(self) -> None:
        """Give up on it: once this returns, nothing more is written to the caller's memory."""
        if not self.fail(CancelledError("dropped before it was copied")):
            self._outlive()
        with self.settling:
            moving, self._moving = self._moving, []
        for latch in moving:
            latch.synchronize()
        if self.writes_to_out:
            wait_for_end(self.copied)

    def wait(self) -> None:
        """Wait until it is copied; Ctrl-C ends the wait.

        Raises:
            Exception: What went wrong, with a note that names the items; only once.
        """
        self.wait_until_queued()
        wait_for_end(self.copied)

    def wait_until_queued(self) -> None:
        """Wait until it is copied, or its last step is queued on the stream.

        Raises:
            Exception: As `wait` does.
        """
        if self._left is not None:
            self._left.synchronize()
        error, self._error = self._error, None  # or it, its frames and this would keep each other
        if error is not None:
            try:
                raise error
            finally:
                del error

    def wait_until_read(self) -> None:
        """Wait until its host memory may be overwritten, or it has failed."""
        if self._unread is not None:
            self._unread.synchronize()
        if self.has_pinned():
            if self._left is not None:
                self._left.synchronize()
            wait_for_end(self.copied)

    def end(self) -> Waitable:
        """The end of its copies, once it was sent; nothing of what they need is kept by it."""
        return self.copied if self._left is None else self._left

    def reading(self) -> Waitable:
        """The end of what reads its host memory, once all of that is queued."""
        return self.copied if self.has_pinned() else Past()

    def has_pinned(self) -> bool:
        """Whether some of its host memory is copied without a slot."""
        return not all(part.staged for part in self.parts)

    def device_tensors(self) -> Iterator[torch.Tensor]:
        """The device memory of its parts."""
        return (part.device for part in self.parts)

    def _outlive(self) -> None:
        """Keep its device memory for the copies that may be under way."""
        for part in self.parts:
            self._stream.outlives(part.device)

    def _arrive(self) -> None:
        try:
            if not (self.ends_on_host and self._left is not None):
                self.copied = self._stream.mark(timed=self.handle is not None)
            if self.handle is not None:
                self.handle.end = time_of(self.copied)
                self.handle.start = self.handle.start or self.handle.end
        except Exception as error:
            self.fail(error)
        with self.settling:
            if self.over:
                return
            self.over = True
            self._moving.clear()
        if self.handle is not None:
            self.handle.issued.set_result(self.value)


def wait_for_end(end: Waitable) -> None:
    """Wait for an end so that Ctrl-C is heard."""
    if isinstance(end, torch.cuda.Event):
        wait_for_event(end)
    else:
        end.synchronize()
