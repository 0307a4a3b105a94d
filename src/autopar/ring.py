"""Ring: pinned slots, the stream that copies, and the CPU lanes that fill or empty them.

    to the host      leader: queue copy 0 1 2, wait for copy 0, hand it out, queue copy 3, ...
    (3 slots)        stream:  0 -> slot 0   1 -> slot 1   2 -> slot 2   3 -> slot 0 ...
                     movers:                slot 0 -> x   slot 1 -> x   slot 2 -> x ...

One thread, the leader, does a chunk's two steps as the copy plan has them, as soon as they can be
done; the other threads, the movers, only copy from host memory to host memory, in pieces.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Self

import torch

from autopar.copyplan import Chunk, End, Step, slot_of, to_device_steps, to_host_steps
from autopar.copystream import CopyStream, Past, Waitable
from autopar.lane import Lane
from autopar.load import Latch, Load, Part, Piece
from autopar.worker import cpu_lane

_MOST_MOVERS = 3  # with several threads each: more of them wait for their turn in Python
_TOO_SMALL_TO_SHARE_BYTES = 128 << 10  # below this, waking a mover takes longer than copying
_KEPT_ROUNDS = 2  # rounds of the ring after which nothing waits for a chunk's steps any more

Pair = tuple[torch.Tensor, torch.Tensor]  # to, from


class Move(NamedTuple):
    """A chunk on its way."""

    load: Load
    device: torch.Tensor
    host: list[Piece]
    slot: torch.Tensor
    first: bool
    steps: tuple[Step, Step]


class Ring(ABC):
    """Slots for one direction; a context manager, and leaving it waits for what was sent.

    Args:
        name: What it does, in words.
        stream: Where the copies queue.
        slots: How many slots.
        slot_bytes: The size of each.
        threads: CPU threads of all movers together; with one the leader moves by itself.

    Raises:
        RuntimeError: There is no memory for the slots.
    """

    direction: str

    def __init__(
        self, name: str, stream: CopyStream, slots: int, slot_bytes: int, threads: int
    ) -> None:
        self.name = name
        self.stream = stream
        self.slot_bytes = slot_bytes
        self._slots = [stream.pinned(slot_bytes) for _ in range(slots)]
        self._movers, self._threads_each = movers_of(threads, slots)
        # A chunk in so many pieces keeps all movers busy while another is being copied.
        self._pieces_of_slot = -(-self._movers // max(1, slots - 1))
        # One step may be waited for while the chunk after it is handed over already.
        self._ahead = slots - 1 if slots < 3 else slots - 2
        self._ends: dict[End, Waitable] = {}
        self._chunks, self._items = itertools.count(), itertools.count()
        self._inbox: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._pieces: queue.SimpleQueue[tuple[torch.Tensor, torch.Tensor, Latch, Load] | None]
        self._pieces = queue.SimpleQueue()
        self._dropping = self._left = False
        self._lanes = contextlib.ExitStack()

    def send(self, load: Load) -> None:
        """Queue a load; copies that need no slot go to the stream at once."""
        pinned = [part for part in load.parts if not part.staged]
        if pinned:
            self._copy_pinned(load, pinned)
        chunks = sum(part.chunks(self.slot_bytes) for part in load.parts)
        load.expect(chunks)
        if not load.over:
            self._inbox.put(load)
            if self._left:
                self._refuse()

    def drop(self) -> None:
        """Do no more than what is under way."""
        self._dropping = True

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as lanes:
            each = self._threads_each
            movers = [self._lane(lanes, f"mover {i}", each) for i in range(self._movers)]
            lanes.callback(self._stop_movers)
            leader = self._lane(lanes, "leader", 1)
            lanes.callback(self._inbox.put, None)
            for mover in movers:
                mover.submit(self._move_pieces)
            self._leading = leader.submit(self._lead)
            self._lanes = lanes.pop_all()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            self.drop()
        self._inbox.put(None)
        try:
            self._leading.wait()  # Ctrl-C ends this wait
        except BaseException:
            self.drop()
            raise
        finally:
            self._leave()

    def _leave(self) -> None:
        try:
            self._lanes.close()
        finally:
            self._left = True
            self._refuse()
            self._slots.clear()
            self._ends.clear()

    def _refuse(self) -> None:
        """Fail what was sent too late, by a thread that did not know that the ring was left."""
        with contextlib.suppress(queue.Empty):
            while True:
                load = self._inbox.get_nowait()
                if load is not None:
                    load.fail(RuntimeError("the pipeline was left meanwhile"))

    def _lane(self, lanes: contextlib.ExitStack, role: str, threads: int) -> Lane:
        lane = cpu_lane(threads, name=f"{self.name}: {role}", kind="copy")
        return lanes.enter_context(lane)

    def _stop_movers(self) -> None:
        for _ in range(self._movers):
            self._pieces.put(None)

    def _lead(self) -> None:
        begun: deque[Move] = deque()
        try:
            self.stream.begin()
            with torch.inference_mode():  # so that it may write to tensors made in that mode, too
                self._run(begun)
        except BaseException as error:  # nobody must wait for what will not come
            for move in begun:
                move.load.fail(error)
            for load in iter(self._inbox.get, None):
                load.fail(error)
            raise

    def _run(self, begun: deque[Move]) -> None:
        for move in self._moves(begun):
            if move is None:
                self._end(begun.popleft())
            else:
                while len(begun) > self._ahead:
                    self._end(begun.popleft())
                self._begin(move)
                begun.append(move)
            del move  # or its tensors would stay until the next one comes

    def _moves(self, begun: deque[Move]) -> Iterator[Move | None]:
        """Chunks as they come; None while there is none but some wait for their second step."""
        while True:
            try:
                load = self._inbox.get(block=not begun)
            except queue.Empty:
                yield None
                continue
            if load is None:
                self._inbox.put(None)  # still there, should the rest fail
                yield from itertools.repeat(None, len(begun))
                return
            yield from self._chunks_of(load)
            del load

    def _chunks_of(self, load: Load) -> Iterator[Move]:
        item = next(self._items)
        first = True
        for part in (part for part in load.parts if part.staged):
            for device, host in part.cut(self.slot_bytes):
                if self._dropping:
                    load.abandon()
                if load.over:
                    return
                chunk = Chunk(next(self._chunks), item, first)
                slot = self._slots[slot_of(chunk, len(self._slots))]
                if len(device) < len(slot):
                    slot = slot[: len(device)]
                yield Move(load, device, host, slot, first, self._steps(chunk))
                first = False

    def _begin(self, move: Move) -> None:
        self._do(move, move.steps[0])

    def _end(self, move: Move) -> None:
        self._do(move, move.steps[1])

    def _do(self, move: Move, step: Step) -> None:
        """Wait for what the plan says, act, and keep the end for those that wait for it."""
        load = move.load
        ended: Waitable = Past()
        try:
            for end in step.waits:
                before = load.before.get(end.name) or self._ends[end]
                if step.lane == "stream":
                    self.stream.wait(before)
                else:
                    before.synchronize()
            if not load.over:
                ended = self._copy(move) if step.name == "copy" else self._move(move)
        except BaseException as error:
            load.fail(error)
        self._ends[step.end] = ended
        self._ends.pop(End(step.name, step.number - _KEPT_ROUNDS * len(self._slots)), None)

    def _copy(self, move: Move) -> Waitable:
        if move.first:
            move.load.begin()
        self._copy_between(move.device, move.slot)
        return self.stream.mark()

    def _copy_pinned(self, load: Load, parts: list[Part]) -> None:
        """Queue copies between the device and pinned memory of the caller's, without a slot."""
        try:
            with self.stream.current():
                self.stream.wait(load.before["ready"])
                load.begin()
                for part in parts:
                    self._copy_between(part.device, part.host[0][1])
        except Exception as error:
            load.fail(error)  # raised where its items are waited for

    def _move(self, move: Move) -> Waitable:
        """Give a chunk's pieces to the movers, or move it here if that is quicker."""
        load, slot = move.load, move.slot
        pairs = [
            self._pair(slot[at : at + len(host)] if len(host) < len(slot) else slot, host)
            for at, host in move.host
        ]
        shared = self._movers and len(slot) > _TOO_SMALL_TO_SHARE_BYTES
        if shared:
            most = max(_TOO_SMALL_TO_SHARE_BYTES, -(-len(slot) // self._pieces_of_slot))
            pairs = [piece for pair in pairs for piece in _split(*pair, most)]
        if not pairs:  # nothing but the gap between two tensors
            self._moved(load)
            return Past()
        latch = Latch(len(pairs), lambda: self._moved(load))
        if not load.moves(latch):
            return Past()
        for to, source in pairs:
            if shared:
                self._pieces.put((to, source, latch, load))
            else:
                _move_piece(to, source, latch, load)
        return latch

    def _move_pieces(self) -> None:
        """What each mover does."""
        with torch.inference_mode():
            for piece in iter(self._pieces.get, None):
                _move_piece(*piece)
                del piece

    @abstractmethod
    def _steps(self, chunk: Chunk) -> tuple[Step, Step]:
        """A chunk's two steps."""

    @abstractmethod
    def _copy_between(self, device: torch.Tensor, host: torch.Tensor) -> None:
        """Queue a copy, in this ring's direction."""

    @abstractmethod
    def _pair(self, slot: torch.Tensor, host: torch.Tensor) -> Pair:
        """Where to move to, and from where."""

    @abstractmethod
    def _moved(self, load: Load) -> None:
        """Count a chunk that was moved."""


class ToHostRing(Ring):
    """Slots that the device copies to, and that are emptied into the caller's memory."""

    direction = "to host"

    def _steps(self, chunk: Chunk) -> tuple[Step, Step]:
        return to_host_steps(chunk, len(self._slots))

    def _copy_between(self, device: torch.Tensor, host: torch.Tensor) -> None:
        self.stream.copy(host, device)

    def _pair(self, slot: torch.Tensor, host: torch.Tensor) -> Pair:
        return host, slot

    def _moved(self, load: Load) -> None:
        load.chunk_copied()


class ToDeviceRing(Ring):
    """Slots that are filled from the caller's memory, and that the device copies from."""

    direction = "from host"

    def _steps(self, chunk: Chunk) -> tuple[Step, Step]:
        return to_device_steps(chunk, len(self._slots))

    def _copy_between(self, device: torch.Tensor, host: torch.Tensor) -> None:
        self.stream.copy(device, host)

    def _pair(self, slot: torch.Tensor, host: torch.Tensor) -> Pair:
        return slot, host

    def _copy(self, move: Move) -> Waitable:
        ended = super()._copy(move)
        move.load.chunk_copied()
        return ended

    def _moved(self, load: Load) -> None:
        load.chunk_read()


def movers_of(threads: int, slots: int) -> tuple[int, int]:
    """How many movers there are, and how many threads each of them has.

    A few with several threads each: they copy as fast as many, and wait for each other's turn in
    Python far less often.
    """
    if threads == 1:
        return 0, 1
    movers = min(slots, _MOST_MOVERS, threads)
    return movers, threads // movers


def _move_piece(to: torch.Tensor, source: torch.Tensor, latch: Latch, load: Load) -> None:
    try:
        to.copy_(source)
    except BaseException as error:
        load.fail(error)
    latch.count_down()


def _split(to: torch.Tensor, source: torch.Tensor, most: int) -> Iterator[Pair]:
    if to.numel() <= most:
        return iter([(to, source)])
    return zip(to.split(most), source.split(most), strict=True)
