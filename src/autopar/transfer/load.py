"""Load: what a pipeline's items need copied, its chunks, and the slots that these go through."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from autopar.lanes.handle import wait_for_event
from autopar.lanes.outcome import Outcome, note
from autopar.transfer.copy_stream import CopyStream, Waitable
from autopar.transfer.layout import as_moved, flat, layout_of, like, within

Piece = tuple[int, torch.Tensor]  # an offset, and a dense tensor of the host's from there on


class Part(NamedTuple):
    """One stretch of device memory, and the host memory that it is copied from or to.

    Only what is staged goes through slots. Where the host memory is pinned it need not: then there
    is one tensor on either side, and they are copied as such.
    """

    device: torch.Tensor  # dense
    host: tuple[Piece, ...]  # each with the offset of its first byte in `device`
    staged: bool

    def cut(self, slot_bytes: int) -> list[tuple[torch.Tensor, list[Piece]]]:
        """Its chunks: the device's part, and the host's tensors or bytes, with offsets in it."""
        stop = self.device.nbytes
        if stop <= slot_bytes:
            return [(self.device, [(at, as_moved(it)) for at, it in self.host])] if stop else []
        host = [(at, flat(tensor)) for at, tensor in self.host]
        parts = enumerate(flat(self.device).split(slot_bytes))
        cut = [(part, _inside(host, i * slot_bytes, part.nbytes)) for i, part in parts]
        return [(part, inside) for part, inside in cut if inside]  # else it is a gap


def _inside(host: list[Piece], start: int, size_bytes: int) -> list[Piece]:
    """What of some bytes lies in a chunk, from its first byte on."""
    inside = []
    for offset, whole in host:
        low, high = max(start, offset), min(start + size_bytes, offset + len(whole))
        if low < high:
            inside.append((low - start, whole[low - offset : high - offset]))
    return inside


class Load:
    """Everything that some items need copied; `unpack` gives them, once they are."""

    # Given by the ring that it is sent to: do what comes next, and forget what has failed.
    step: Callable[[], None] = staticmethod(lambda: None)
    clear: Callable[[], None] = staticmethod(lambda: None)
    made_in_s = 0.0  # what taking its items from their source took
    copied: Waitable | None = None  # the end of its last copy, once that is queued
    lent = False  # whether its owner may overwrite its items once the next one is asked for
    timed = False  # whether the ends of its copies tell when they were
    left = 0  # chunks whose last step is to be done
    failed = False  # then nothing more is to be done for it

    def __init__(
        self, name: str, stream: CopyStream, parts: list[Part], unpack: Callable[[], list[Any]]
    ) -> None:
        self.name = name  # the items, and what is done to them, in words
        self.parts = parts
        self.pinned = [part for part in parts if not part.staged]  # copied without a slot
        self.unpack = unpack
        ready = stream.caller_mark() if parts else None
        # What its steps wait for on the caller's side, by the plan's names.
        self.before = {None: None, "given": None, "ready": ready, "room": ready}
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
        if self.pinned:
            wait_for_end(self._stream.mark())

    def wait(self, *, raising: bool = True) -> None:
        """Wait until the host's part is done, or it has failed; Ctrl-C ends the wait.

        Its host memory may be overwritten then. What went wrong is raised once, if it is asked for.
        """
        while self.left and not self.failed:
            self.step()
        if self.pinned:  # else its steps on the host have waited for what they need
            wait_for_end(self.copied)
        if raising and self._errors:
            raise self._errors.pop()  # a local for it would keep its frames, and they the local


@dataclass(eq=False, slots=True)
class Chunk:
    """What of a load travels through a slot at a time."""

    load: Load
    device: torch.Tensor
    host: list[Piece]
    first: bool  # of its load
    aside: bool  # whether a worker may do its step on the host
    slot: Slot = field(init=False)
    pieces: tuple[list[torch.Tensor], list[torch.Tensor]] = field(init=False)  # there, and beside
    moving: Outcome[None] | None = None  # of that step, then


class Slot:
    """A stretch of pinned memory."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.ends: dict[str, Waitable | None] = {}  # of its last steps, by the rules' names
        self._view = memory

    def beside(self, host: list[Piece]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Its memory and the host's, piece by piece."""
        offsets, far = [at for at, _ in host], [piece for _, piece in host]
        return within(self.memory, list(map(layout_of, far)), offsets), far

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its first bytes as a tensor like another; kept, as what comes next is often alike."""
        view = self._view
        if (
            view.dtype != tensor.dtype
            or view.shape != tensor.shape
            or view.stride() != tensor.stride()
        ):
            view = self._view = like(tensor, self.memory)
        return view


def wait_for_end(end: Waitable | None) -> None:
    """Wait for an end so that Ctrl-C is heard."""
    if isinstance(end, torch.cuda.Event):
        wait_for_event(end)
    elif end is not None:
        end.synchronize()


def is_over(end: Waitable | None) -> bool:
    """Whether nobody has to wait for an end."""
    return end is None or end.query()
