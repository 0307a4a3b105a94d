"""Parcel: how a pipeline's items become loads, several in each if they are small, and come back."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from autopar.transfer.load import Load, Part, is_over
from autopar.transfer.ring import Ring

# Of small items, more travel together next time if these came soon, else fewer.
_SOON_S, _FASTER = 5e-3, 4


class Parcels(ABC):
    """The loads of an iterable's items, in order, made when they are asked for.

    An error ends them, as a load that has failed. Of a source that is given, all items are there
    already: none changes when the next one is taken.
    """

    ahead_at_first = 1  # half of how many loads to have under way before the first is yielded
    # Items up to this size travel together, so much at most: to queue a load, to hand it to a
    # worker and to wake the threads that move it takes as long as to move some MiB.
    _small_bytes = 8 << 20
    _together_bytes = 16 << 20

    def __init__(self, verb: str, ring: Ring, source: Iterator[Any], given: bool) -> None:
        self._verb = verb
        self._stream = ring.stream
        self._most_bytes = min(ring.slot_bytes, self._together_bytes)
        self._together = 1  # how many small items travel in one load
        self._source = source
        self._is_over = False
        self._given = given
        self._number = 0  # of the next item to make a load for
        self._failures: list[Exception] = []  # at most one, which ends them
        self._made: deque[Load] = deque()  # and not yet asked for

    def __iter__(self) -> Iterator[Load]:
        try:
            while not self._is_over:
                start_s = time.perf_counter()
                self._fill(until_s=start_s + _SOON_S)
                while self._made:
                    load = self._made.popleft()
                    load.made_in_s = time.perf_counter() - start_s
                    yield load
                    if load.lent:
                        load.wait(raising=False)
                    del load  # it holds its tensors
        except Exception as error:
            self._end_by(error)
        if self._failures:  # no local for it, which would keep its frames, and they the local
            self._load(1, [], list)
            self._made[0].fail(self._failures.pop())
            yield self._made.popleft()

    def unpack(self, load: Load) -> list[Any]:
        """The items of a load, once they are copied."""
        start_s = time.perf_counter()
        is_computed = is_over(load.before["ready"])  # else its copies hold nobody up
        load.wait()
        if load.made_in_s + time.perf_counter() - start_s > _SOON_S:
            self._together = max(1, self._together // _FASTER)
        elif is_computed:
            self._together = min(self._together * _FASTER, self._most_bytes)
        return load.unpack()

    def drop(self) -> None:
        """Forget what nobody asks for any more."""
        self._failures.clear()
        self._made.clear()

    def _end_by(self, error: Exception) -> None:
        """Give up at an error, once the items before it were taken; the last one counts."""
        self._is_over, self._failures = True, [error]

    def _fill(self, until_s: float) -> None:
        """Make the loads of the next item, and of small ones to travel with it that come soon."""
        group: list[Any] = []
        is_large = False
        try:
            is_large = self._gather(group, until_s)
        except Exception as error:
            self._end_by(error)
        try:
            first, last = (group[:-1], group[-1:]) if is_large and group[1:] else (group, [])
            number = self._number + len(first)
            if first:
                self._make(first)
            if last and self._number == number:  # no error has come before it
                self._make(last)
        except Exception as error:
            self._end_by(error)

    def _gather(self, group: list[Any], until_s: float) -> bool:
        """Take the next items that may travel together, and tell whether the last is too large."""
        room_bytes, small_bytes = self._most_bytes, self._small_bytes
        for size_bytes in self._coming(group):
            room_bytes -= size_bytes
            if size_bytes > min(small_bytes, room_bytes) or len(group) >= self._together:
                return size_bytes > small_bytes
            if not self._given and time.perf_counter() > until_s:
                return False
        self._is_over = True
        return False

    def _coming(self, group: list[Any]) -> Iterator[int]:
        """Add items of the source as long as they are asked for, and tell the size of each."""
        while True:
            try:
                yield self._take(group)
            except StopIteration:
                return

    @abstractmethod
    def _take(self, group: list[Any]) -> int:
        """Add the next item of the source to those that travel together, and tell its size.

        It is very large if no other may follow in this group.
        """

    @abstractmethod
    def _make(self, group: list[Any]) -> None:
        """Make the load of some items."""

    def _load(self, items: int, parts: list[Part], unpack: Callable[[], list[Any]]) -> Load:
        """Make the load of so many items, which are counted, so that errors can name them."""
        first, self._number = self._number, self._number + items
        numbers = f"item {first}" if items == 1 else f"items {first} to {self._number - 1}"
        load = Load(f"{numbers} of {self._verb}", self._stream, parts, unpack)
        self._made.append(load)
        return load
