"""Access: which tasks must wait for which, by the memory that they read and write."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
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


class _Past:
    """Who has read, or written, which stretches of one memory; found by where they lie."""

    def __init__(self) -> None:
        self._by: dict[Stretch, set[int]] = {}
        # Starts in order, by the power of two that bounds the size: so those that may reach into
        # a stretch begin at most so far before it.
        self._starts: dict[float, list[tuple[float, Stretch]]] = {}

    def meeting(self, stretch: Stretch) -> list[Stretch]:
        """Stretches that have a byte in common with one."""
        found = []
        for bound, starts in self._starts.items():
            low = bisect.bisect_left(starts, (stretch.start - bound,))
            high = bisect.bisect_left(starts, (stretch.stop,))
            found += [other for _, other in starts[low:high] if other.meets(stretch)]
        return found

    def by(self, stretch: Stretch) -> set[int]:
        """Numbers of those who have read, or written, some of a stretch."""
        return set().union(*(self._by[other] for other in self.meeting(stretch)))

    def add(self, stretch: Stretch, number: int) -> None:
        """Note one more."""
        if stretch not in self._by:
            self._by[stretch] = set()
            bisect.insort(self._starts.setdefault(_bound(stretch), []), (stretch.start, stretch))
        self._by[stretch].add(number)

    def drop_covered(self, stretch: Stretch) -> None:
        """Forget all stretches that another one covers."""
        for other in self.meeting(stretch):
            if stretch.covers(other):
                del self._by[other]
                self._starts[_bound(other)].remove((other.start, other))


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
        self._reads: defaultdict[Hashable, _Past] = defaultdict(_Past)
        self._writes: defaultdict[Hashable, _Past] = defaultdict(_Past)

    def note(self, number: int, reads: Iterable[Stretch], writes: Iterable[Stretch]) -> set[int]:
        """Note what a task reads and writes; return the numbers of those that must end before."""
        before: set[int] = set()
        reads, writes = list(reads), list(writes)
        for stretch in reads:
            before |= self._writes[stretch.memory].by(stretch)
        for stretch in writes:
            before |= self._writes[stretch.memory].by(stretch)
            before |= self._reads[stretch.memory].by(stretch)
        before.discard(number)
        for stretch in writes:  # who waits for this one has waited for those that it covers
            for past in (self._reads, self._writes):
                past[stretch.memory].drop_covered(stretch)
            self._writes[stretch.memory].add(stretch, number)
        for stretch in reads:
            self._reads[stretch.memory].add(stretch, number)
        return before
