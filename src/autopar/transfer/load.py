"""Load: what a pipeline's items need copied, its chunks, and the slots that these go through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from autopar.lanes.handle import wait_for_event
from autopar.lanes.outcome import Outcome, note
from autopar.transfer.copy_stream import CopyStream, Past, Waitable
from autopar.transfer.layout import Layout, flat

Piece = tuple[int, torch.Tensor]  # an offset, and a dense tensor of the host's from there on
Stretch = tuple[int, int, int]  # an offset, the address of the host's first byte there, and bytes


class Part(NamedTuple):
    """One stretch of device memory, and the host memory that it is copied from or to.

    Only what is staged goes through slots. Where the host memory is pinned it need not: then there
    is one tensor on either side, and they are copied as such.
    """

    device: torch.Tensor  # dense
    host: tuple[Piece, ...]  # each with the offset of its first byte in `device`
    staged: bool

    def cut(self, slot_bytes: int) -> Iterator[tuple[torch.Tensor, list[Stretch]]]:
        """Its chunks: the device's part, and the host's stretches, with their offsets in it."""
        stop = self.device.nbytes
        host = [(at, tensor.data_ptr(), tensor.nbytes) for at, tensor in self.host if tensor.nbytes]
        if stop <= slot_bytes:
            if stop:
                yield self.device, host
            return
        starts = range(0, stop, slot_bytes)
        for start, device in zip(starts, flat(self.device).split(slot_bytes), strict=True):
            yield device, list(_within(host, start, min(stop, start + slot_bytes)))


def _within(host: list[Stretch], start: int, stop: int) -> Iterator[Stretch]:
    """What of some stretches lies in a chunk, from its first byte on."""
    for offset, address, size_bytes in host:
        low, high = max(start, offset), min(stop, offset + size_bytes)
        if low < high:
            yield low - start, address + low - offset, high - low


class Load:
    """Everything that some items need copied; `unpack` gives them, once they are."""

    def __init__(
        self,
        name: str,
        stream: CopyStream,
        parts: tuple[Part, ...],
        unpack: Callable[[], list[Any]],
    ) -> None:
        self.name = name  # the items, and what is done to them, in words
        self.parts = parts
        self.unpack = unpack
        self.made_in_s = 0.0  # what taking its items from their source took
        ready = stream.caller_mark() if parts else Past()
        # What its steps wait for on the caller's side, by the plan's names.
        self.before: dict[str, Waitable] = {"ready": ready, "room": ready, "given": Past()}
        self.copied: Waitable = Past()  # the end of its last copy, once that is queued
        self.writes_to_out = False  # whether copies on the stream land in memory of the caller's
        self.left = 0  # chunks whose last step is to be done
        self.failed = False  # then nothing more is to be done for it
        # Given by the ring that it is sent to: do what comes next, and forget what has failed.
        self.step: Callable[[], None] = lambda: None
        self.clear: Callable[[], None] = lambda: None
        self._stream = stream
        self._errors: list[BaseException] = []  # at most one, until somebody has raised it

    def fail(self, error: BaseException) -> None:
        """Keep an error for whoever waits for it; the first one counts."""
        if self.failed:
            return
        self._errors, self.failed = [error], True  # one step: Ctrl-C does not come between
        if not any(str(line).startswith("in items ") for line in getattr(error, "__notes__", ())):
            note(error, f"in {self.name}")  # else it is one of those, from a pipeline before
        for part in self.parts:  # for the copies that may be under way
            self._stream.outlives(part.device)

    def abandon(self) -> None:
        """Give up on it: once this returns, nothing more is written to the caller's memory."""
        self.fail(CancelledError("dropped before it was copied"))
        self._errors.clear()  # nobody raises it, and its frames may lead to this load
        self.clear()
        if self.writes_to_out:
            wait_for_end(self._stream.mark())

    def wait(self) -> None:
        """Wait until it is copied, or raise what went wrong, once; Ctrl-C ends the wait."""
        self.wait_until_queued()
        wait_for_end(self.copied)

    def wait_until_queued(self) -> None:
        """Wait until it is copied, or its last step is queued on the stream; raise as `wait`."""
        self._do_steps()
        if self._errors:
            raise self._errors.pop()  # a local for it would keep its frames, and they the local

    def wait_until_read(self) -> None:
        """Wait until its host memory may be overwritten, or it has failed."""
        self._do_steps()
        if self.has_pinned():
            wait_for_end(self.copied)

    def _do_steps(self) -> None:
        while self.left and not self.failed:
            self.step()

    def has_pinned(self) -> bool:
        """Whether some of its host memory is copied without a slot."""
        return not all(part.staged for part in self.parts)


@dataclass(eq=False)
class Chunk:
    """What of a load travels through a slot at a time."""

    load: Load
    device: torch.Tensor
    host: list[Stretch]
    first: bool
    slot: Slot = field(init=False)
    moving: Outcome[None] | None = None  # of its step on the host, if a worker may do it


class Slot:
    """A stretch of pinned memory."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.address = memory.data_ptr()
        self.ends: dict[str, Waitable] = {}  # of its last steps, by the rules' names
        self._layout: Layout | None = None
        self._view = memory

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its first bytes as a tensor like another; kept, as what comes next is often alike."""
        layout = Layout.of(tensor)
        if layout != self._layout:
            self._view, self._layout = layout.within(self.memory), layout
        return self._view


def wait_for_end(end: Waitable) -> None:
    """Wait for an end so that Ctrl-C is heard."""
    if isinstance(end, torch.cuda.Event):
        wait_for_event(end)
    else:
        end.synchronize()
