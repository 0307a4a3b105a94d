"""Load: what a pipeline's item needs copied, and how far that has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any, NamedTuple, Protocol

import torch

from autopar.lanes.handle import wait_for_event
from autopar.lanes.outcome import note
from autopar.transfer.copy_stream import CopyStream, Past, Waitable
from autopar.transfer.layout import flat

Piece = tuple[int, torch.Tensor]  # an offset, and a dense tensor of the host's from there on
Stretch = tuple[int, int, int]  # an offset, the address of the host's first byte there, and bytes


class Part(NamedTuple):
    """One stretch of device memory, and the host memory that it is copied from or to.

    Args:
        device: A dense tensor on the device.
        host: Dense tensors on the host, each with the offset of its first byte in `device`.
        staged: Whether they travel through slots. Where the host memory is pinned they need not:
            then these are one tensor on either side, and copied as such.
    """

    device: torch.Tensor
    host: tuple[Piece, ...]
    staged: bool

    def cut(self, slot_bytes: int) -> Iterator[tuple[torch.Tensor, list[Stretch]]]:
        """Its chunks: the device's part, and the host's stretches, with their offsets in it."""
        stop = self.device.nbytes
        host = [(at, each.data_ptr(), size) for at, each in self.host if (size := each.nbytes)]
        if stop <= slot_bytes:
            if stop:
                yield self.device, host
            return
        starts = range(0, stop, slot_bytes)
        for start, device in zip(starts, flat(self.device).split(slot_bytes), strict=True):
            yield device, list(_within(host, start, min(stop, start + slot_bytes)))


def _within(host: list[Stretch], start: int, stop: int) -> Iterator[Stretch]:
    """What of some stretches lies in a chunk, from its first byte on."""
    for offset, address, size in host:
        low, high = max(start, offset), min(stop, offset + size)
        if low < high:
            yield low - start, address + low - offset, high - low


class Carrier(Protocol):
    """What a load is sent to: a ring."""

    def step(self) -> None:
        """Do what comes next, and wait for what that needs."""

    def clear(self) -> None:
        """Forget what has failed."""


class Load:
    """Everything that some items need copied.

    Args:
        name: The items, and what is done to them, in words.
        stream: The stream of its copies.
        parts: What to copy.
        value: What is there once it is copied.

    Attributes:
        unpack: Gives its items, once it is copied.
        made_in_s: Seconds that taking its items from their source took.
        before: What its steps wait for on the caller's side, by the plan's names.
        copied: The end of its last copy on the stream, once that is queued.
        writes_to_out: Whether copies on the stream land in memory of the caller's.
        unread: Chunks whose host memory is to be read.
        left: Chunks that are to be copied.
        failed: Whether nothing more is to be done for it, as something went wrong.
        ring: Where it was sent.
    """

    __slots__ = (
        *("_error", "_stream", "before", "copied", "failed", "left", "made_in_s", "name"),
        *("parts", "ring", "unpack", "unread", "value", "writes_to_out"),
    )

    def __init__(self, name: str, stream: CopyStream, parts: tuple[Part, ...], value: Any) -> None:
        self.name = name
        self._stream = stream
        self.parts = parts
        self.value = value
        self.unpack: Callable[[], list[Any]] = lambda: [value]
        self.made_in_s = 0.0
        ready = stream.caller_mark()
        self.before: dict[str, Waitable] = {"ready": ready, "room": ready, "given": Past()}
        self.copied: Waitable = Past()
        self.writes_to_out = False
        self.unread = self.left = 0
        self.failed = False
        self.ring: Carrier | None = None
        self._error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Keep an error for whoever waits for it; the first one counts."""
        if self.failed:
            return
        self.failed, self._error = True, error
        note(error, f"in {self.name}")
        for part in self.parts:  # for the copies that may be under way
            self._stream.outlives(part.device)

    def abandon(self) -> None:
        """Give up on it: once this returns, nothing more is written to the caller's memory."""
        self.fail(CancelledError("dropped before it was copied"))
        if self.ring is not None:
            self.ring.clear()
        if self.writes_to_out:
            wait_for_end(self._stream.mark())

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
        while self.left and not self.failed:
            self._step()
        error, self._error = self._error, None  # or it, its frames and this would keep each other
        if error is not None:
            try:
                raise error
            finally:
                del error

    def wait_until_read(self) -> None:
        """Wait until its host memory may be overwritten, or it has failed."""
        while self.unread and not self.failed:
            self._step()
        if self.has_pinned():
            wait_for_end(self.copied)

    def reading(self) -> Waitable:
        """The end of what reads its host memory, once all of that is queued."""
        return self.copied if self.has_pinned() else Past()

    def has_pinned(self) -> bool:
        """Whether some of its host memory is copied without a slot."""
        return not all(part.staged for part in self.parts)

    def device_tensors(self) -> Iterator[torch.Tensor]:
        """The device memory of its parts."""
        return (part.device for part in self.parts)

    def _step(self) -> None:
        assert self.ring is not None
        self.ring.step()


def wait_for_end(end: Waitable) -> None:
    """Wait for an end so that Ctrl-C is heard."""
    if isinstance(end, torch.cuda.Event):
        wait_for_event(end)
    else:
        end.synchronize()
