"""Access: which tasks must wait for which, by the memory that they read and write."""

from __future__ import annotations

import bisect
import math
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


class Places:
    """Numbers by stretches of memory, found by where those lie."""

    def __init__(self) -> None:
        self._by: dict[Stretch, set[int]] = {}
        # Starts in order, by memory and the power of two that bounds the size: so those that may
        # reach into a stretch begin at most so far before it.
        self._starts: dict[Hashable, dict[float, list[tuple[float, Stretch]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by)

    def meeting(self, stretch: Stretch) -> list[Stretch]:
        """Stretches that have a byte in common with one."""
        found = []
        for bound, starts in self._starts.get(stretch.memory, {}).items():
            low = bisect.bisect_left(starts, (stretch.start - bound,))
            high = bisect.bisect_left(starts, (stretch.stop,))
            found += [other for _, other in starts[low:high] if other.meets(stretch)]
        return found

    def by(self, stretch: Stretch) -> set[int]:
        """The numbers of all that has a byte in common with a stretch."""
        return set().union(*(self._by[other] for other in self.meeting(stretch)))

    def covers(self, stretch: Stretch) -> bool:
        """Whether one of them has every byte of a stretch."""
        return stretch in self._by or any(each.covers(stretch) for each in self.meeting(stretch))

    def add(self, stretch: Stretch, number: int = 0) -> None:
        """Note one more."""
        if stretch not in self._by:
            self._by[stretch] = set()
            starts = self._starts.setdefault(stretch.memory, {})
            bisect.insort(starts.setdefault(_bound(stretch), []), (stretch.start, stretch))
        self._by[stretch].add(number)

    def drop_covered(self, stretch: Stretch) -> None:
        """Forget all stretches that another one covers."""
        for other in self.meeting(stretch):
            if stretch.covers(other):
                del self._by[other]
                starts = self._starts[stretch.memory][_bound(other)]
                del starts[bisect.bisect_left(starts, (other.start, other))]


def _bound(stretch: Stretch) -> float:
    size = stretch.stop - stretch.start
    return 2.0 ** math.ceil(math.log2(size)) if 0 < size < math.inf else size


class Accesses:
    """Reads and writes in the order of a program: any number of readers, or one writer.

    >>> accesses, x = Accesses(), Stretch("x")
    >>> [accesses.note(number, reads, writes) for number, (reads, writes) in enumerate(
    ...     [([x], []), ([x], []), ([], [x]), ([x], [])])]
    [set(), set(), {0, 1}, {2}]
    """

    def __init__(self) -> None:
        self._reads, self._writes = Places(), Places()

    def note(self, number: int, reads: Iterable[Stretch], writes: Iterable[Stretch]) -> set[int]:
        """Note what a task reads and writes; return the numbers of those that must end before."""
        before: set[int] = set()
        reads, writes = list(reads), list(writes)
        for stretch in reads:
            before |= self._writes.by(stretch)
        for stretch in writes:
            before |= self._writes.by(stretch) | self._reads.by(stretch)
        before.discard(number)
        for stretch in writes:  # who waits for this one has waited for those that it covers
            self._reads.drop_covered(stretch)
            self._writes.drop_covered(stretch)
            self._writes.add(stretch, number)
        for stretch in reads:
            self._reads.add(stretch, number)
        return before
