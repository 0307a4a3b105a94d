"""Ring: pinned slots, the stream that copies, and the threads that fill or empty them.

    to the host      leader: queue copy 0 1 2, wait for copy 0, hand it out, queue copy 3, ...
    (3 slots)        stream:  0 -> slot 0   1 -> slot 1   2 -> slot 2   3 -> slot 0 ...
                     movers:                slot 0 -> x   slot 1 -> x   slot 2 -> x ...

One thread, the leader, does a chunk's two steps as the copy plan's rules have them, as soon as they
can be done; the other threads, the movers, only copy within host memory, in pieces.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import queue
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch

from autopar.transfer.copy_plan import TO_DEVICE, TO_HOST, Rule
from autopar.transfer.copy_stream import CopyStream, Past, Waitable
from autopar.transfer.crew import Crew, Member
from autopar.transfer.load import Latch, Load, Part, Stretch

_TOO_SMALL_TO_SHARE_BYTES = 128 << 10  # below this, waking a mover takes longer than copying
_MOST_SHARING = 3  # movers that share chunks: more of them wait for their turn in Python
_LAST_WAIT_S = 5.0  # for a copy under way, where nobody leaves the pipeline that it belongs to

Piece = tuple[int, int, int]  # the addresses to copy to and from, and bytes
_PAST = Past()


class Slot:
    """Pinned memory, and the ends of what was last done with it, by the rules' names."""

    __slots__ = ("_first", "address", "ends", "memory")

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.address = memory.data_ptr()
        self.ends: dict[str, Waitable] = {}
        self._first = memory

    def first(self, size_bytes: int) -> torch.Tensor:
        """Its first bytes; kept, as the chunk that comes next is often as large."""
        if self._first.numel() != size_bytes:
            self._first = self.memory[:size_bytes]
        return self._first


class Move(NamedTuple):
    """A chunk on its way."""

    load: Load
    device: torch.Tensor
    size_bytes: int
    host: list[Stretch]
    slot: Slot
    first: bool


class Ring(ABC):
    """Slots for one direction, and the threads that work on them once it is started.

    Whoever makes one stops it, also where `start` did not come to its end.

    Args:
        name: What it does, in words.
        stream: Where the copies queue.
        slots: How many slots.
        slot_bytes: The size of each.
        threads: CPU threads of all movers together; with one the leader moves by itself.

    Attributes:
        started: Whether all of its threads run.

    Raises:
        RuntimeError: There is no memory for the slots.
    """

    direction: str
    rules: tuple[Rule, Rule]

    def __init__(
        self, name: str, stream: CopyStream, slots: int, slot_bytes: int, threads: int
    ) -> None:
        self.name = name
        self.stream = stream
        self.slot_bytes = slot_bytes
        self.started = False
        self._slots = [Slot(stream.pinned(slot_bytes)) for _ in range(slots)]
        self._movers, self._threads_each = movers_of(threads, slots)
        # A chunk in so many pieces keeps all movers busy while another is being copied.
        self._pieces_of_slot = -(-self._movers // max(1, slots - 1))
        self._next_slot = itertools.cycle(self._slots)
        # What ends a queue stays in it, so that it need not be put there once for each reader.
        self._inbox: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._pieces: queue.SimpleQueue[tuple[Piece, Latch, Load] | None] = queue.SimpleQueue()
        self._dropping = self._left = self._given_up = False
        self._cutting: Load | None = None  # the load whose chunks are begun
        self._leader = Member(f"{name}: leader", self._lead)
        self._crew = Crew(
            *(
                Member(f"{name}: mover {i}", self._move_pieces, self._threads_each)
                for i in range(self._movers)
            ),
            self._leader,
        )

    def start(self) -> None:
        """Start its threads.

        Raises:
            RuntimeError: There can't be so many.
        """
        self._crew.start()
        self.started = True

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

    def finish(self) -> None:
        """Take nothing more, and let the threads end once all is done."""
        self._inbox.put(None)

    def stop(self) -> None:
        """Wait for all that was sent, or, from Ctrl-C on, for what is under way; free the slots."""
        try:
            self._end_threads()
        except BaseException:
            self.drop()
            self._end_threads()
            raise

    def give_up(self) -> None:
        """Stop without anybody to wait: its pipeline is forgotten, or the process ends."""
        self.drop()
        self._end_threads(_LAST_WAIT_S)
        self._given_up = True

    def _end_threads(self, at_most_s: float | None = None) -> None:
        """End the threads, which can be done again and again, and whatever they have come to."""
        self.finish()
        self._crew.dismiss()
        if not self.started:  # the leader may not be there to tell the movers
            self._pieces.put(None)
        gone = not self._given_up and self._crew.wait(at_most_s)
        self._left = True
        self._refuse()
        if gone:
            self._slots.clear()
            self._next_slot = itertools.cycle(())

    def _refuse(self) -> None:
        """Fail what was sent too late, by a thread that did not know that the ring was left."""
        with contextlib.suppress(queue.Empty):
            while True:
                load = self._inbox.get_nowait()
                if load is not None:
                    load.fail(RuntimeError("the pipeline was left meanwhile"))
        self.finish()  # again, for a thread that has not come to it yet

    def _lead(self) -> None:
        begun: deque[Move] = deque()
        try:
            self.stream.begin()
            with torch.inference_mode():  # so that it may write to tensors made in that mode, too
                self._run(begun)
        except BaseException as error:  # nobody must wait for what will not come
            for move in begun:
                move.load.fail(error)
            if self._cutting is not None:
                self._cutting.fail(error)
            for load in iter(self._inbox.get, None):
                load.fail(error)
            self.finish()
        finally:
            self._pieces.put(None)

    def _run(self, begun: deque[Move]) -> None:
        for move in self._moves(begun):
            if move is None:
                self._end(begun)
            else:
                while begun and self._comes_first(begun, move):
                    self._end(begun)
                begun.append(move)
                self._do(move, self.rules[0])
            del move  # or its tensors would stay until the next one comes

    def _moves(self, begun: deque[Move]) -> Iterator[Move | None]:
        """Chunks as they come; None while there is none but some wait for their second step."""
        while True:
            try:
                load = self._cutting = self._inbox.get(block=not begun)
            except queue.Empty:
                yield None
                continue
            if load is None:
                self.finish()  # it is still there, should the rest fail
                yield from itertools.repeat(None, len(begun))
                return
            try:
                yield from self._chunks_of(load)
            except Exception as error:
                load.fail(error)
            load = self._cutting = None

    def _chunks_of(self, load: Load) -> Iterator[Move]:
        first = True
        for part in (part for part in load.parts if part.staged):
            for device, size, host in part.cut(self.slot_bytes):
                if self._dropping:
                    load.abandon()
                if load.over:
                    return
                yield Move(load, device, size, host, next(self._next_slot), first)
                first = False

    def _comes_first(self, begun: deque[Move], move: Move) -> bool:
        """Whether to end the oldest chunk before another one begins.

        So it is if the one can be done at once, or the other can't.
        """
        into, _ = self.rules
        oldest = begun[0].slot.ends
        return (
            len(begun) == len(self._slots)
            or oldest[into.name].query()
            or not move.slot.ends.get(into.slot, _PAST).query()
        )

    def _end(self, begun: deque[Move]) -> None:
        self._do(begun[0], self.rules[1])
        begun.popleft()  # not before, or nobody would know of it if that failed

    def _do(self, move: Move, rule: Rule) -> None:
        """Wait for what the rule says, act, and keep the end for those that wait for it."""
        load, ends = move.load, move.slot.ends
        wait = self.stream.wait if rule.lane == "stream" else _synchronize
        ended: Waitable = _PAST
        try:
            callers = rule.item_step(move.first)
            if callers is not None:
                wait(load.before[callers])
            wait(ends.get(rule.slot, _PAST))
            if not load.over:
                ended = self._copy(move) if rule.name == "copy" else self._move(move)
        except BaseException as error:
            load.fail(error)
        ends[rule.name] = ended

    def _copy(self, move: Move) -> Waitable:
        if move.first:
            move.load.begin()
        self._copy_between(move.device, move.slot.first(move.size_bytes))
        return self.stream.mark(again=move.slot.ends.get("copy"))  # the slot's last, long over

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
        load, base = move.load, move.slot.address
        pieces = [self._piece(base + offset, at, size) for offset, at, size in move.host]
        if pieces and self._movers and move.size_bytes > _TOO_SMALL_TO_SHARE_BYTES:
            return self._share(load, pieces, move.size_bytes)
        with load.settling:  # whoever gives it up waits for this
            if load.over:
                return _PAST
            for piece in pieces:  # none, if there is nothing but the gap between two tensors
                move_bytes(*piece)
        self._moved(load)
        return _PAST

    def _share(self, load: Load, pieces: list[Piece], size_bytes: int) -> Waitable:
        """Give pieces to the movers."""
        most = max(_TOO_SMALL_TO_SHARE_BYTES, -(-size_bytes // self._pieces_of_slot))
        pieces = [part for piece in pieces for part in _split(piece, most)]
        latch = Latch(len(pieces), lambda: self._moved(load))
        if not load.moves(latch):
            return _PAST
        for piece in pieces:
            self._pieces.put((piece, latch, load))
        return latch

    def _move_pieces(self) -> None:
        """What each mover does."""
        for piece, latch, load in iter(self._pieces.get, None):
            try:
                move_bytes(*piece, self._threads_each)
            except BaseException as error:
                load.fail(error)
            finally:
                latch.count_down()
            del latch, load
        self._pieces.put(None)  # for the next mover

    @abstractmethod
    def _copy_between(self, device: torch.Tensor, host: torch.Tensor) -> None:
        """Queue a copy, in this ring's direction."""

    @abstractmethod
    def _piece(self, slot: int, host: int, size_bytes: int) -> Piece:
        """Where to move to, given two addresses, and from where."""

    @abstractmethod
    def _moved(self, load: Load) -> None:
        """Count a chunk that was moved."""


class ToHostRing(Ring):
    """Slots that the device copies to, and that are emptied into the caller's memory."""

    direction = "to host"
    rules = TO_HOST

    def _copy_between(self, device: torch.Tensor, host: torch.Tensor) -> None:
        self.stream.copy(host, device)

    def _piece(self, slot: int, host: int, size_bytes: int) -> Piece:
        return host, slot, size_bytes

    def _moved(self, load: Load) -> None:
        load.chunk_copied()


class ToDeviceRing(Ring):
    """Slots that are filled from the caller's memory, and that the device copies from."""

    direction = "from host"
    rules = TO_DEVICE

    def _copy_between(self, device: torch.Tensor, host: torch.Tensor) -> None:
        self.stream.copy(device, host)

    def _piece(self, slot: int, host: int, size_bytes: int) -> Piece:
        return slot, host, size_bytes

    def _copy(self, move: Move) -> Waitable:
        ended = super()._copy(move)
        move.load.chunk_copied()
        return ended

    def _moved(self, load: Load) -> None:
        load.chunk_read()


def movers_of(threads: int, slots: int) -> tuple[int, int]:
    """How many movers there are, and how many threads each of them has.

    One for each thread, or a few with several threads each if there are not so many slots: parts
    of one slot would have to wait for each other's turn in Python.
    """
    if threads == 1:
        return 0, 1
    if threads <= slots:
        return threads, 1
    movers = min(slots, _MOST_SHARING)
    return movers, threads // movers


def move_bytes(to: int, source: int, size_bytes: int, threads: int = 1) -> None:
    """Copy within host memory, from address to address, on a lane of so many threads.

    One thread takes the C library's copy: torch's reads each line of the cache that it is going
    to overwrite, and takes longer by half.
    """
    if threads == 1:
        ctypes.memmove(to, source, size_bytes)
    else:
        _bytes_at(to, size_bytes).copy_(_bytes_at(source, size_bytes))


def _bytes_at(address: int, size_bytes: int) -> torch.Tensor:
    buffer = (ctypes.c_ubyte * size_bytes).from_address(address)
    return torch.frombuffer(buffer, dtype=torch.uint8)


def _synchronize(end: Waitable) -> None:
    end.synchronize()


def _split(piece: Piece, most: int) -> Iterator[Piece]:
    """A piece in parts of so many bytes at most."""
    to, source, size_bytes = piece
    for start in range(0, size_bytes, most):
        yield to + start, source + start, min(most, size_bytes - start)
