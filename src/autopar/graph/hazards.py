"""Hazards: which nodes of a graph must wait for which, by the memory that they read and write."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from autopar.effects.access import ANYWHERE, Accesses, ByteRange
from autopar.effects.memory import has_place, memory_in, ranges_of
from autopar.graph.node import Result

Memory = frozenset[ByteRange]


class Uses(NamedTuple):
    """What a node reads and writes, as far as it was told.

    Values are tensors, arrays and storages, and results of nodes.

    Args:
        reads: What it reads.
        writes: What it writes.
        holders: Objects with tensors in them, which it reads too.
        written_holders: Those of them whose tensors it writes.
        fresh: Whether its results never lie in the memory of what it reads.
        unknown: Whether it may read and write other things, too.
    """

    reads: Sequence[Any]
    writes: Sequence[Any] = ()
    holders: Sequence[Any] = ()
    written_holders: Sequence[Any] = ()
    fresh: bool = True
    unknown: bool = False


class Hazards:
    """What a graph's nodes read and write, in the order of the program, as far as it is known.

    A result that may lie in the memory of what its node reads counts as lying there. Nodes of which
    nobody knows that keep the order of the program. As long as nothing is written nothing has to be
    compared, and nothing is.

    Attributes:
        told: By node, what was told of it, and so on:
        used: What it reads: what it is given, and what is in its holders now.
        writes: What it writes, in the same way.
        unknown: Nodes that have said nothing.
        whole: Whether tensors stand for all memory that they are parts of: autograd has one history
            for it.
    """

    def __init__(self) -> None:
        self.told: list[Uses] = []
        self.used: list[list[Any]] = []  # as far as they were looked at
        self.writes: list[Sequence[Any]] = []
        self.unknown: set[int] = set()
        self.whole = False
        self._written: dict[ByteRange, int] = {}  # how often, when it was noted
        self._memory: list[Memory] = []  # of the results of the first nodes, as far as asked for
        self._tensors: list[torch.Tensor] = []  # all that nodes use
        self._picture: object = None

    def note(self, uses: Uses) -> None:
        """Note what the next node uses."""
        if uses.unknown:
            self.unknown.add(len(self.told))
        self.told.append(uses)
        self.writes.append(uses.writes)
        for value in uses.writes:
            for lies in self.memory_of(value):
                self._written[lies] = self._written.get(lies, 0) + 1

    def before(self, *, tracks: bool) -> list[set[int]]:
        """For each node those that must end before it, by where everything lies now.

        Args:
            tracks: Whether autograd is on.
        """
        self._memory, self.used = [], []
        self._look_at(len(self.told))
        self.writes = [[*uses.writes, *memory_in(*uses.written_holders)] for uses in self.told]
        values = itertools.chain(*self.used, *self.writes)
        tensors = {id(value): value for value in values if isinstance(value, torch.Tensor)}
        self._tensors = [*tensors.values()]
        self.whole = self._is_tracked(tracks)
        self._picture = self._look(tracks)
        if not self.unknown and not any(self.writes):
            return [set() for _ in self.writes]
        accesses, before = Accesses(), []
        for number, (reads, writes) in enumerate(zip(self.used, self.writes, strict=True)):
            if number in self.unknown:
                before.append(accesses.note(number, (), (ANYWHERE,)))
            else:
                before.append(accesses.note(number, self._all(reads), self._all(writes)))
        return before

    def is_stale(self, *, tracks: bool) -> bool:
        """Whether tensors lie elsewhere than when `before` was asked, or holders hold others."""
        return any(self.writes) and self._picture != self._look(tracks)

    def changes(self, value: Any) -> int:
        """How often nodes so far may have written to the memory of a tensor or a result."""
        memory = self.memory_of(value) if self._written else frozenset()
        said = sum(
            n
            for lies, n in self._written.items()
            if ANYWHERE in (lies, *memory) or any(map(lies.meets, memory))
        )
        return said + len(self.unknown)

    def memory_of(self, value: Any) -> Memory:
        """Where a tensor lies, or a result may lie."""
        if isinstance(value, torch.Tensor) and not has_place(value):
            return frozenset([ANYWHERE])
        if not isinstance(value, Result):
            return frozenset(ranges_of(value, whole=self.whole))
        self._look_at(value.node + 1)
        for number in range(len(self._memory), value.node + 1):
            behind = frozenset() if self.told[number].fresh else self._all(self.used[number])
            if number in self.unknown:
                behind = frozenset([ANYWHERE])
            # Who uses it uses what is behind it, too, so that needs no name of its own.
            self._memory.append(behind or frozenset([ByteRange(("result", number))]))
        return self._memory[value.node]

    def filled(self, values: Iterable[Any], results: Sequence[Any]) -> Iterator[Any]:
        """Values of a run in place of those that stand for results."""
        for value in values:
            yield from memory_in(results[value.node]) if isinstance(value, Result) else (value,)

    def ranges(self, values: Iterable[Any], results: Sequence[Any]) -> Iterator[ByteRange]:
        """Where values lie in a run."""
        for value in self.filled(values, results):
            yield from ranges_of(value)

    def _look_at(self, count: int) -> None:
        """Look what the first nodes use."""
        found: dict[int, list[Any]] = {}
        for number in range(len(self.used), count):
            uses = self.told[number]
            held = itertools.chain(*(_held_in(one, found) for one in uses.holders))
            self.used.append([*uses.reads, *held])

    def _look(self, tracks: bool) -> object:
        """What tells whether all lies where it did: holders' contents, and tensors' places."""
        found: dict[int, list[Any]] = {}
        held = [
            [id(value) for holder in uses.holders for value in _held_in(holder, found)]
            for uses in self.told
            if uses.holders and not uses.unknown
        ]
        return held, [*map(_place, self._tensors)], self._is_tracked(tracks)

    def _is_tracked(self, tracks: bool) -> bool:
        return tracks and any(tensor.requires_grad for tensor in self._tensors)

    def _all(self, values: Iterable[Any]) -> Memory:
        return frozenset().union(*map(self.memory_of, values))


def _held_in(holder: Any, found: dict[int, list[Any]]) -> list[Any]:
    """What memory a holder holds; many nodes may have the same, which is looked through once."""
    if id(holder) not in found:
        found[id(holder)] = [*memory_in(holder)]
    return found[id(holder)]


def _place(tensor: torch.Tensor) -> object:
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride()
    except (RuntimeError, NotImplementedError, ValueError):  # as a sparse one, or a lazy module's
        return id(tensor)
