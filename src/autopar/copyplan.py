"""Copy plan: the steps of copies through a ring of slots, and what each step has to wait for.

    to the host    ready -> copy -> empty -> take        the source is free after the last copy
                            stream  movers               a slot is free after its empty

    to the device  given -> fill -> copy -> use          the source is free after the last fill
                            movers  stream               a slot is free after its copy

A plan is data: what runs it waits for what its steps name, and for nothing else. `CopyPipeline`
runs the steps of its chunks as they come; tests check whole plans against every order of events.
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


class Chunk(NamedTuple):
    """What goes through a slot at once.

    Args:
        number: Counted over all chunks of the ring.
        item: The item that it is a part of.
        first: Whether it is the first of its item.
    """

    number: int
    item: int
    first: bool = True


def slot_of(chunk: Chunk, slots: int) -> int:
    """The number of the slot that a chunk goes through."""
    return chunk.number % slots


def to_host_steps(chunk: Chunk, slots: int) -> tuple[Step, Step]:
    """Copy a chunk from the device into its slot, then empty the slot into host memory."""
    slot = f"slot {slot_of(chunk, slots)}"
    ready = (End("ready", chunk.item),) if chunk.first else ()
    copy = Step(
        *("copy", chunk.number, "stream"),
        (*ready, *_slot_free("empty", chunk, slots)),
        reads=(f"source {chunk.item}",),
        writes=(slot,),
    )
    empty = Step(
        *("empty", chunk.number, f"mover {chunk.number}", (copy.end,)),
        reads=(slot,),
        writes=(f"chunk {chunk.number}",),
    )
    return copy, empty


def to_device_steps(chunk: Chunk, slots: int) -> tuple[Step, Step]:
    """Fill a slot from host memory, then copy it to the device."""
    slot = f"slot {slot_of(chunk, slots)}"
    fill = Step(
        *("fill", chunk.number, f"mover {chunk.number}"),
        (End("given", chunk.item), *_slot_free("copy", chunk, slots)),
        reads=(f"source {chunk.item}",),
        writes=(slot,),
    )
    room = (End("room", chunk.item),) if chunk.first else ()
    copy = Step(
        *("copy", chunk.number, "stream", (*room, fill.end)),
        reads=(slot,),
        writes=(f"result {chunk.item}",),
    )
    return fill, copy


def to_host_plan(chunks: Sequence[int], slots: int) -> tuple[Step, ...]:
    """Every step of copying items to the host, the caller's too, in an order that can be run.

    Args:
        chunks: How many chunks each item has, at least one.
        slots: How many slots the ring has.
    """
    steps: list[Step] = []
    for item, own in enumerate(_numbered(chunks)):
        steps.append(Step("ready", item, "compute", (), writes=(f"source {item}",)))
        for chunk in own:
            steps += to_host_steps(chunk, slots)
        taken = tuple(End("empty", chunk.number) for chunk in own)
        arrived = tuple(f"chunk {chunk.number}" for chunk in own)
        last = End("copy", own[-1].number)
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
        for chunk in own:
            steps += to_device_steps(chunk, slots)
        filled = tuple(End("fill", chunk.number) for chunk in own)
        steps.append(Step("free", item, "caller", filled, writes=(source,)))
        last = End("copy", own[-1].number)
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


def _slot_free(last_use: str, chunk: Chunk, slots: int) -> tuple[End, ...]:
    before = chunk.number - slots
    return (End(last_use, before),) if before >= 0 else ()


def _numbered(chunks: Sequence[int]) -> Iterator[list[Chunk]]:
    numbers = itertools.count()
    for item, count in enumerate(chunks):
        yield [Chunk(next(numbers), item, first=i == 0) for i in range(count)]
