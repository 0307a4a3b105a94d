"""Access: which tasks must wait for which, by the memory that they read and write."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection, Hashable, Iterable
from typing import NamedTuple


class ByteRange(NamedTuple):
    """Bytes of one piece of memory, from `start` up to `stop`."""

    memory: Hashable
    start: float = 0
    stop: float = math.inf


ANYWHERE = ByteRange("anywhere")  # what nobody knows: it meets all other memory
_PROGRAM = ByteRange("program")  # what every task reads, so that who writes anywhere is in order


class Places:
    """Numbers by ranges of bytes, found by where those lie.

    Memory is cut where a range begins or ends, and each part has numbers of its own.
    """

    def __init__(self) -> None:
        self._parts: dict[Hashable, tuple[list[float], list[set[int]]]] = {}  # from where, in order
        self._elsewhere = set[int]()  # numbers of all memory that no range was in yet
        self._everywhere = set[int]()  # others, of all memory, which stay until all is put anew

    def at(self, lies: ByteRange) -> set[int]:
        """The numbers of all that has a byte in common with a range."""
        parts = self._meeting(lies)
        return self._everywhere.union(*parts) if parts else set()

    def covers(self, lies: ByteRange) -> bool:
        """Whether every byte of a range has a number."""
        return bool(self._everywhere) or all(self._meeting(lies))

    def add(self, lies: ByteRange, number: int = 0, but: Collection[int] = ()) -> None:
        """Note one more, beside all there is but some, as far as these are soon found."""
        if lies is not ANYWHERE:
            self._cut(lies)
        parts = self._meeting(lies) if lies is not ANYWHERE else [self._everywhere]
        for numbers in parts:
            if len(numbers) == 1 or len(parts) == 1:  # many of many parts would take too long
                numbers -= numbers.intersection(but)
            numbers.add(number)

    def put(self, lies: ByteRange, number: int) -> None:
        """Note it in place of all there is."""
        if lies is ANYWHERE:
            self._parts, self._elsewhere, self._everywhere = {}, {number}, set()
            return
        starts, numbers = self._cut(lies)
        low, high = (bisect.bisect_left(starts, edge) for edge in lies[1:])
        starts[low + 1 : high] = []
        numbers[low:high] = [{number}] * (low < high)

    def _meeting(self, lies: ByteRange) -> list[set[int]]:
        """The numbers of each part that has a byte in common with a range."""
        if lies is ANYWHERE:
            return [self._elsewhere, *itertools.chain(*(one[1] for one in self._parts.values()))]
        starts, numbers = self._parts.get(lies.memory, ([-math.inf], [self._elsewhere]))
        low, high = bisect.bisect(starts, lies.start) - 1, bisect.bisect_left(starts, lies.stop)
        return numbers[low:high] if lies.start < lies.stop else []

    def _cut(self, lies: ByteRange) -> tuple[list[float], list[set[int]]]:
        there = [-math.inf], [{*self._elsewhere}]
        starts, numbers = self._parts.setdefault(lies.memory, there)
        for edge in lies[1:]:
            at = bisect.bisect_left(starts, edge)
            if starts[at : at + 1] != [edge]:
                starts.insert(at, edge)
                numbers.insert(at, {*numbers[at - 1]})
        return starts, numbers


class Accesses:
    """Reads and writes in the order of a program: any number of readers, or one writer.

    Who writes `ANYWHERE` comes after all before it, and before all that follow.

    >>> accesses, x = Accesses(), ByteRange("x")
    >>> [accesses.note(number, reads, writes) for number, (reads, writes) in enumerate(
    ...     [([x], []), ([x], []), ([], [x]), ([x], []), ([], [ANYWHERE]), ([], [])])]
    [set(), set(), {0, 1}, {2}, {3}, {4}]
    """

    def __init__(self) -> None:
        self._writers = Places()  # who wrote last
        self._last = Places()  # who has read that, or else has written it

    def note(
        self, number: int, reads: Iterable[ByteRange], writes: Iterable[ByteRange]
    ) -> set[int]:
        """Note what a task reads and writes; return the numbers of those that must end before.

        Those that they have waited for themselves are left out where they are the last.
        """
        reads, writes = [_PROGRAM, *reads], [*writes]
        before = set[int]().union(*map(self._writers.at, reads), *map(self._last.at, writes))
        for lies in writes:
            self._writers.put(lies, number)
            self._last.put(lies, number)
        for lies in reads:
            self._last.add(lies, number, but=before)
        return before
