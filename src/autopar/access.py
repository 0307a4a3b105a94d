"""Access: which tasks must wait for which, by the memory that they read and write."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple


class Stretch(NamedTuple):
    """Bytes of one piece of memory, from `start` up to `stop`."""

    memory: Hashable
    start: float = 0
    stop: float = float("inf")

    def meets(self, other: Stretch) -> bool:
        """Whether both have a byte in common."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return self.memory == other.memory and start < stop

    def covers(self, other: Stretch) -> bool:
        """Whether it has every byte of the other."""
        return self.memory == other.memory and self.start <= other.start and other.stop <= self.stop


Past = dict[Stretch, set[int]]  # what was read, or written, and by whom


class Accesses:
    """Reads and writes in the order of a program: any number of readers, or one writer.

    >>> accesses, x = Accesses(), Stretch("x")
    >>> [accesses.note(number, reads, writes) for number, (reads, writes) in enumerate(
    ...     [([x], []), ([x], []), ([], [x]), ([x], [])])]
    [set(), set(), {0, 1}, {2}]
    """

    def __init__(self) -> None:
        self._reads: dict[Hashable, Past] = {}
        self._writes: dict[Hashable, Past] = {}

    def note(self, number: int, reads: Iterable[Stretch], writes: Iterable[Stretch]) -> set[int]:
        """Note what a task reads and writes; return the numbers of those that must end before."""
        before: set[int] = set()
        reads, writes = list(reads), list(writes)
        for stretch in reads:
            before |= _met(self._writes, stretch)
        for stretch in writes:
            before |= _met(self._writes, stretch) | _met(self._reads, stretch)
        before.discard(number)
        for stretch in writes:  # who waits for this one has waited for those that it covers
            for past in (self._reads, self._writes):
                own = past.setdefault(stretch.memory, {})
                for covered in [other for other in own if stretch.covers(other)]:
                    del own[covered]
            self._writes[stretch.memory][stretch] = {number}
        for stretch in reads:
            self._reads.setdefault(stretch.memory, {}).setdefault(stretch, set()).add(number)
        return before


def _met(past: dict[Hashable, Past], stretch: Stretch) -> set[int]:
    met = (by for other, by in past.get(stretch.memory, {}).items() if other.meets(stretch))
    return set().union(*met)
