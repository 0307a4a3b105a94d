"""Access: which tasks must wait for which, by the memory that they read and write."""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable, Iterable
from typing import NamedTuple


class ByteRange(NamedTuple):
    """Bytes of one piece of memory, from `start` up to `stop`."""

    memory: Hashable
    start: float = 0
    stop: float = math.inf

    def meets(self, other: ByteRange) -> bool:
        """Whether both have a byte in common."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return self.memory == other.memory and start < stop

    def covers(self, other: ByteRange) -> bool:
        """Whether it has every byte of the other."""
        return self.memory == other.memory and self.start <= other.start and other.stop <= self.stop


ANYWHERE = ByteRange("anywhere")  # what nobody knows: it meets all other memory


class Places:
    """Numbers by ranges of bytes, found by where those lie."""

    def __init__(self) -> None:
        self._numbers: dict[ByteRange, set[int]] = {}
        # Ranges in order, by memory and the power of two that bounds the size: so those that may
        # reach into another range begin at most so far before it.
        self._by_size: dict[Hashable, dict[float, list[ByteRange]]] = {}

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def meeting(self, lies: ByteRange) -> list[ByteRange]:
        """Ranges that have a byte in common with one."""
        ranges_there: list[ByteRange] = []
        for bound, ranges in self._by_size.get(lies.memory, {}).items():
            low = bisect.bisect_left(ranges, (lies.memory, lies.start - bound))
            high = bisect.bisect_left(ranges, (lies.memory, lies.stop))
            ranges_there += filter(lies.meets, ranges[low:high])
        return ranges_there

    def at(self, lies: ByteRange) -> set[int]:
        """The numbers of all that has a byte in common with a range."""
        return set().union(*(self._numbers[other] for other in self.meeting(lies)))

    def covers(self, lies: ByteRange) -> bool:
        """Whether one of them has every byte of a range."""
        return lies in self._numbers or any(other.covers(lies) for other in self.meeting(lies))

    def add(self, lies: ByteRange, number: int = 0) -> None:
        """Note one more."""
        if lies not in self._numbers:
            self._numbers[lies] = set()
            ranges = self._by_size.setdefault(lies.memory, {}).setdefault(_bound(lies), [])
            bisect.insort(ranges, lies)
        self._numbers[lies].add(number)

    def drop_covered(self, lies: ByteRange) -> None:
        """Forget all ranges that another one covers."""
        for other in filter(lies.covers, self.meeting(lies)):
            del self._numbers[other]
            ranges = self._by_size[lies.memory][_bound(other)]
            del ranges[bisect.bisect_left(ranges, other)]


def _bound(lies: ByteRange) -> float:
    size = lies.stop - lies.start
    return 2.0 ** math.ceil(math.log2(size)) if 0 < size < math.inf else size


class Accesses:
    """Reads and writes in the order of a program: any number of readers, or one writer.

    Who writes `ANYWHERE` comes after all before it, and before all that follow.

    >>> accesses, x = Accesses(), ByteRange("x")
    >>> [accesses.note(number, reads, writes) for number, (reads, writes) in enumerate(
    ...     [([x], []), ([x], []), ([], [x]), ([x], []), ([], [ANYWHERE]), ([], [])])]
    [set(), set(), {0, 1}, {2}, {0, 1, 2, 3}, {4}]
    """

    def __init__(self, barrier: Iterable[int] = ()) -> None:
        self._reads, self._writes = Places(), Places()
        self._barrier = {*barrier}  # who wrote anywhere, last
        self._since = set[int]()  # all after that
        self._writers = set[int]()
        self._readers_anywhere = set[int]()

    def note(
        self, number: int, reads: Iterable[ByteRange], writes: Iterable[ByteRange]
    ) -> set[int]:
        """Note what a task reads and writes; return the numbers of those that must end before."""
        reads, writes = list(reads), list(writes)
        if ANYWHERE in writes:
            before = self._since or self._barrier
            self.__init__([number])  # type: ignore[misc]
            return before
        before = self._barrier.union(
            *map(self._writes.at, [*reads, *writes]), *map(self._reads.at, writes)
        )
        if ANYWHERE in reads:
            before |= self._writers
            self._readers_anywhere.add(number)
        if writes:
            before |= self._readers_anywhere
            self._writers.add(number)
        before.discard(number)
        self._since.add(number)
        for lies in writes:  # who waits for this one has waited for those that it covers
            self._reads.drop_covered(lies)
            self._writes.drop_covered(lies)
            self._writes.add(lies, number)
        for lies in reads:
            self._reads.add(lies, number)
        return before
