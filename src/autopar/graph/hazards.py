"""Hazards: which nodes of a graph must wait for which, by the memory that they read and write."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch

from autopar.effects.access import ANYWHERE, Accesses, ByteRange
from autopar.effects.memory import memory_in, ranges_of
from autopar.graph.node import Result

Memory = frozenset[ByteRange]


class Hazards:
    """What a graph's nodes read and write, in the order of the program, as far as it is known.

    Values are tensors, arrays and storages, and results of nodes. A result that may lie in the
    memory of what its node reads counts as lying there. Nodes of which nobody knows that keep the
    order of the program. As long as nothing is written nothing has to be compared, and nothing is.

    Attributes:
        used: By node, what it reads: what it is given, and what is in its holders now.
        whole: Whether tensors stand for all memory that they are parts of: autograd has one history
            for it.
    """

    def __init__(self) -> None:
        self.writes: list[list[Any]] = []  # by node, as what follows
        self.unknown: set[int] = set()  # nodes that have said nothing
        self.holders: list[tuple[Any, ...]] = []  # objects that a node takes tensors out of
        self.used: list[list[Any]] = []  # as far as they were looked at
        self._reads: list[list[Any]] = []
        self._said: list[list[Any]] = []  # what it writes, but for what is in these holders
        self._written_holders: list[list[Any]] = []
        self._fresh: list[bool] = []  # whether results never lie in the memory of what is read
        self._written: dict[ByteRange, int] = {}  # how often, when it was noted
        self.whole = False
        self._memory: list[Memory] = []  # of the results of the first nodes, as far as asked for

    def note(
        self,
        reads: Iterable[Any],
        writes: Iterable[Any] = (),
        *,
        holders: tuple[Any, ...] = (),
        written_holders: Iterable[Any] = (),
        fresh: bool = True,
        unknown: bool = False,
    ) -> None:
        """Note the next node.

        Args:
            reads: What it reads.
            writes: What it writes.
            holders: Objects with tensors in them, which it reads too.
            written_holders: Those of them whose tensors it writes.
            fresh: Whether its results never lie in the memory of what it reads.
            unknown: Whether it may read and write other things, too.
        """
        if unknown:
            self.unknown.add(len(self.writes))
        self._reads.append([*reads])
        self.writes.append([*writes])
        self._said.append(self.writes[-1])
        self._written_holders.append([*written_holders])
        self.holders.append(holders)
        self._fresh.append(fresh)
        for value in self.writes[-1]:
            for lies in self.memory_of(value):
                self._written[lies] = self._written.get(lies, 0) + 1

    def before(self, *, tracks: bool) -> list[set[int]]:
        """For each node those that must end before it, by where everything lies now.

        Args:
            tracks: Whether autograd is on.
        """
        self._memory, self.used = [], []
        self._look_at(len(self.writes))
        self.writes = [
            [*said, *memory_in(*holders)] if holders else said
            for said, holders in zip(self._said, self._written_holders, strict=True)
        ]
        self.whole = tracks and any(map(is_tracked, itertools.chain(*self.used, *self.writes)))
        if not self.unknown and not self.writers():
            return [set() for _ in self.writes]
        accesses, before = Accesses(), []
        for number, (reads, writes) in enumerate(zip(self.used, self.writes, strict=True)):
            if number in self.unknown:
                before.append(accesses.note(number, (), (ANYWHERE,)))
            else:
                before.append(accesses.note(number, self._all(reads), self._all(writes)))
        return before

    def writers(self) -> list[int]:
        """Numbers of the nodes that write something."""
        return [number for number, writes in enumerate(self.writes) if writes]

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
        if not isinstance(value, Result):
            return frozenset(ranges_of(value, whole=self.whole))
        self._look_at(value.node + 1)
        for number in range(len(self._memory), value.node + 1):
            behind = frozenset() if self._fresh[number] else self._all(self.used[number])
            if number in self.unknown:
                behind = frozenset([ANYWHERE])
            # Who uses it uses what is behind it, too, so that needs no name of its own.
            self._memory.append(behind or frozenset([ByteRange(("result", number))]))
        return self._memory[value.node]

    def _look_at(self, count: int) -> None:
        """Look what the first nodes use."""
        found: dict[int, list[Any]] = {}
        for number in range(len(self.used), count):
            held = itertools.chain(*(held_in(one, found) for one in self.holders[number]))
            self.used.append([*self._reads[number], *held])

    def _all(self, values: list[Any]) -> Memory:
        return frozenset().union(*map(self.memory_of, values))


def held_in(holder: Any, found: dict[int, list[Any]]) -> list[Any]:
    """What memory a holder holds; many nodes may have the same, which is looked through once."""
    if id(holder) not in found:
        found[id(holder)] = [*memory_in(holder)]
    return found[id(holder)]


def is_tracked(value: Any) -> bool:
    """Whether autograd tracks something."""
    return isinstance(value, torch.Tensor) and value.requires_grad
