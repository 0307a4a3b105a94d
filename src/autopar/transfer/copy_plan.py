"""Copy plan: the steps of copies through a ring of slots, and what each step has to wait for.

    to the host    ready -> copy -> empty -> take        the source is free after the last copy
                            stream  host                 a slot is free after its empty

    to the device  given -> fill -> copy -> use          the source is free after the last fill
                            host    stream               a slot is free after its copy

The rules are data: what follows them waits for what they name, and for nothing else. A ring
follows them for each chunk as it comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

ALIGNMENT = 64  # bytes: any dtype may start there, and no two pieces share a cache line


class Rule(NamedTuple):
    """One of the two steps that every chunk takes, in terms of its slot and its item."""

    name: str
    lane: str  # `stream` or `host`
    # What must have been done with its slot before: by the chunk that had it last for the first of
    # a chunk's steps, by this chunk for the second.
    slot: str
    # The caller's step that it waits for. A stream is in order, so there an item's first chunk
    # waits for all of them.
    item: str | None
    reads: str  # memory: `source` or `slot`
    writes: str  # memory: `slot`, `chunk` or `result`

    def item_step(self, first: bool) -> str | None:
        """The caller's step that a chunk waits for, be it the first of its item or not."""
        return self.item if first or self.lane != "stream" else None


TO_HOST = (
    Rule("copy", "stream", slot="empty", item="ready", reads="source", writes="slot"),
    Rule("empty", "host", slot="copy", item=None, reads="slot", writes="chunk"),
)
TO_DEVICE = (
    Rule("fill", "host", slot="copy", item="given", reads="source", writes="slot"),
    Rule("copy", "stream", slot="fill", item="room", reads="slot", writes="result"),
)


@dataclass
class Pack:
    """Tensors that travel as one block, each at its offset."""

    members: list[int] = field(default_factory=list)  # their numbers
    offsets: list[int] = field(default_factory=list)  # where each begins, in bytes
    size_bytes: int = 0  # of the whole block, which any dtype divides


def packs(
    sizes_bytes: Iterable[int], capacity_bytes: int, *, alone_above_bytes: int | None = None
) -> list[Pack]:
    """Put neighbours into one block as long as it fits; larger ones, or those above, go alone.

    >>> [pack.members for pack in packs([8, 100, 4096, 8], capacity_bytes=1024)]
    [[0, 1], [2], [3]]
    """
    most = capacity_bytes if alone_above_bytes is None else alone_above_bytes
    found, pack = [], Pack()
    for number, size_bytes in enumerate(sizes_bytes):
        offset = pack.size_bytes
        alone = max(size_bytes, pack.size_bytes if len(pack.members) == 1 else 0) > most
        if pack.members and (alone or offset + size_bytes > capacity_bytes):
            found.append(pack)
            pack, offset = Pack(), 0
        pack.members.append(number)
        pack.offsets.append(offset)
        pack.size_bytes = offset + -(-size_bytes // ALIGNMENT) * ALIGNMENT
    return [*found, pack] if pack.members else found
