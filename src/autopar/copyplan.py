"""Copy plan: the steps of copies through a ring of slots, and what each step has to wait for.

    to the host    ready -> copy -> empty -> take        the source is free after the last copy
                            stream  movers               a slot is free after its empty

    to the device  given -> fill -> copy -> use          the source is free after the last fill
                            movers  stream               a slot is free after its copy

The rules are data: what follows them waits for what they name, and for nothing else. A ring
follows them for each chunk as it comes; a plan has the steps that they make of given chunks, for
tests to check against every order of events.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ALIGNMENT = 64  # bytes: any dtype may start there, and no two pieces share a cache line


class End(NamedTuple):
    """The end of a step, which others wait for."""

    name: str
    number: int


class Step(NamedTuple):
    """Something to do, once what it waits for has ended.

    Args:
        name: What is done; with `number` it is unique in a plan.
        number: Of its chunk; for a step of the caller's, of its item.
        lane: `caller` (the thread), `compute` (its current stream), `stream` (the copies') and
            `mover N` (any thread that moves host memory: none waits for another by itself).
            What is on one lane runs in order.
        waits: Ends of steps on other lanes.
        reads: Memory that it reads.
        writes: Memory that it writes.
    """

    name: str
    number: int
    lane: str
    waits: tuple[End, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    @property
    def end(self) -> End:
        """What others wait for."""
        return End(self.name, self.number)

    def __str__(self) -> str:
        after = ", ".join(f"{name} {number}" for name, number in self.waits) or "nothing"
        return f"{self.lane}: {self.name} {self.number} after {after}"


class Rule(NamedTuple):
    """One of the two steps that every chunk takes, in terms of its slot and its item.

    Args:
        name: What is done.
        lane: `stream` or `mover`.
        slot: What must have been done with its slot before: by the chunk that had it last for
            the first of a chunk's steps, by this chunk for the second.
        item: The caller's step that it waits for. A stream is in order, so there an item's first
            chunk waits for all of them.
        reads: Memory that it reads: `source`, `slot`.
        writes: Memory that it writes: `slot`, `chunk`, `result`.
    """

    name: str
    lane: str
    slot: str
    item: str | None
    reads: str
    writes: str

    def item_step(self, first: bool) -> str | None:
        """The caller's step that a chunk waits for, be it the first of its item or not."""
        return self.item if first or self.lane != "stream" else None


TO_HOST = (
    Rule("copy", "stream", slot="empty", item="ready", reads="source", writes="slot"),
    Rule("empty", "mover", slot="copy", item=None, reads="slot", writes="chunk"),
)
TO_DEVICE = (
    Rule("fill", "mover", slot="copy", item="given", reads="source", writes="slot"),
    Rule("copy", "stream", slot="fill", item="room", reads="slot", writes="result"),
)


def to_host_plan(chunks: Sequence[int], slots: int) -> tuple[Step, ...]:
    """Every step of copying items to the host, the caller's too, in an order that can be run.

    Args:
        chunks: How many chunks each item has, at least one.
        slots: How many slots the ring has.
    """
    steps: list[Step] = []
    for item, own in enumerate(_numbered(chunks)):
        steps.append(Step("ready", item, "compute", (), writes=(f"source {item}",)))
        steps += _steps(TO_HOST, item, own, slots)
        taken = tuple(End("empty", chunk) for chunk in own)
        arrived = tuple(f"chunk {chunk}" for chunk in own)
        last = End("copy", own[-1])
        steps.append(Step("free", item, "compute", (last,), writes=(f"source {item}",)))
        steps.append(Step("take", item, "caller", taken, reads=arrived))
    return tuple(steps)


def to_device_plan(chunks: Sequence[int], slots: int) -> tuple[Step, ...]:
    """Every step of copying items to the device, the caller's too, in an order that can be run.

    Args:
        chunks: How many chunks each item has, at least one.
        slots: How many slots the ring has.
    """
    steps: list[Step] = []
    for item, own in enumerate(_numbered(chunks)):
        source, result = f"source {item}", f"result {item}"
        steps.append(Step("given", item, "caller", (), writes=(source,)))
        steps.append(Step("room", item, "compute", (), writes=(result,)))
        steps += _steps(TO_DEVICE, item, own, slots)
        filled = tuple(End("fill", chunk) for chunk in own)
        steps.append(Step("free", item, "caller", filled, writes=(source,)))
        last = End("copy", own[-1])
        steps.append(Step("use", item, "compute", (last,), reads=(result,)))
    return tuple(steps)


@dataclass
class Pack:
    """Tensors that travel as one block, each at its offset.

    Args:
        members: Their numbers.
        offsets: Where each begins, in bytes.
        size_bytes: The whole block.
    """

    members: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    size_bytes: int = 0


def packs(
    sizes_bytes: Iterable[int], capacity_bytes: int, *, alone_above_bytes: int | None = None
) -> Iterator[Pack]:
    """Put neighbours into one block as long as it fits; larger ones go alone.

    Args:
        sizes_bytes: Of the tensors, in order.
        capacity_bytes: The most that a block of several may have.
        alone_above_bytes: Tensors above this size go alone, too.

    >>> [pack.members for pack in packs([8, 100, 4096, 8], capacity_bytes=1024)]
    [[0, 1], [2], [3]]
    """
    most = capacity_bytes if alone_above_bytes is None else alone_above_bytes
    pack = Pack()
    for number, size_bytes in enumerate(sizes_bytes):
        offset = -(-pack.size_bytes // ALIGNMENT) * ALIGNMENT
        alone = max(size_bytes, pack.size_bytes if len(pack.members) == 1 else 0) > most
        if pack.members and (alone or offset + size_bytes > capacity_bytes):
            yield pack
            pack, offset = Pack(), 0
        pack.members.append(number)
        pack.offsets.append(offset)
        pack.size_bytes = offset + size_bytes
    if pack.members:
        yield pack


def _steps(rules: tuple[Rule, Rule], item: int, chunks: range, slots: int) -> Iterator[Step]:
    """The steps of an item's chunks."""
    for chunk in chunks:
        memory = {
            "source": f"source {item}",
            "slot": f"slot {chunk % slots}",
            "chunk": f"chunk {chunk}",
            "result": f"result {item}",
        }
        for rule, before in zip(rules, (chunk - slots, chunk), strict=True):
            callers = rule.item_step(first=chunk == chunks[0])
            waits = [End(callers, item)] if callers else []
            if before >= 0:
                waits.append(End(rule.slot, before))
            lane = rule.lane if rule.lane == "stream" else f"{rule.lane} {chunk}"
            reads, writes = (memory[rule.reads],), (memory[rule.writes],)
            yield Step(rule.name, chunk, lane, tuple(waits), reads, writes)


def _numbered(chunks: Sequence[int]) -> Iterator[range]:
    """The numbers of each item's chunks, counted over all of the ring."""
    return itertools.starmap(range, itertools.pairwise(itertools.accumulate(chunks, initial=0)))
