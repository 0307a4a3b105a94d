"""Hazards: which nodes of a graph must wait for which, by the memory that they read and write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autopar.effects.access import ANYWHERE, Accesses, ByteRange
from autopar.effects.memory import ranges_of
from autopar.graph.node import Result

Memory = frozenset[ByteRange]


class Hazards:
    """What a graph's nodes read and write, in the order of the program, as far as it is known.

    Values are tensors, arrays and storages, results of nodes, and ranges of bytes. A result
    that may lie in the memory of what its node reads counts as lying there. Nodes of which nobody
    knows that keep the order of the program. As long as nothing is written nothing has to be
    compared, and nothing is.
    """

    def __init__(self) -> None:
        self.reads: list[list[Any]] = []  # by node
        self.writes: list[list[Any]] = []
        self.unknown: set[int] = set()  # nodes that have said nothing
        self._fresh: list[bool] = []  # whether results never lie in the memory of what is read
        self._written: dict[ByteRange, int] = {}  # how often, when it was noted
        self._memory: list[Memory] = []  # of the results of the first nodes, as far as asked for

    def note(
        self,
        reads: Iterable[Any],
        writes: Iterable[Any] = (),
        *,
        fresh: bool = True,
        unknown: bool = False,
    ) -> None:
        """Note the next node.

        Args:
            reads: What it reads.
            writes: What it writes.
            fresh: Whether its results never lie in the memory of what it reads.
            unknown: Whether it may read and write other things, too.
        """
        if unknown:
            self.unknown.add(len(self.reads))
        self.reads.append([*reads])
        self.writes.append([*writes])
        self._fresh.append(fresh)
        for value in self.writes[-1]:
            for lies in self.memory_of(value):
                self._written[lies] = self._written.get(lies, 0) + 1

    def before(self) -> list[set[int]]:
        """For each node those that must end before it, by where everything lies now."""
        if not self.unknown and not self.writers():
            return [set() for _ in self.reads]
        accesses, before = Accesses(), []
        self._memory = []
        for number, (reads, writes) in enumerate(zip(self.reads, self.writes, strict=True)):
            written = {ANYWHERE} if number in self.unknown else self._all(writes)
            before.append(accesses.note(number, self._all(reads), written))
        self._memory = []
        return before

    def writers(self) -> list[int]:
        """Numbers of the nodes that write something."""
        return [number for number, writes in enumerate(self.writes) if writes]

    def changes(self, value: Any) -> int:
        """How often nodes so far may have written to the memory of a tensor or a result."""
        memory = self.memory_of(value) if self._written else frozenset()
        said = sum(n for lies, n in self._written.items() if any(map(lies.meets, memory)))
        return said + len(self.unknown)

    def memory_of(self, value: Any) -> Memory:
        """Where a tensor lies, or a result may lie."""
        if not isinstance(value, Result):
            return frozenset(ranges_of(value))
        for number in range(len(self._memory), value.node + 1):
            result = frozenset([ByteRange(("result", number))])
            behind = frozenset() if self._fresh[number] else self._all(self.reads[number])
            if number in self.unknown:
                behind |= {ANYWHERE}
            self._memory.append(result | behind)
        return self._memory[value.node]

    def _all(self, values: list[Any]) -> Memory:
        return frozenset().union(*map(self.memory_of, values))


def result_of(value: Any) -> int | None:
    """The node whose result a value stands for, if it does."""
    if isinstance(value, Result):
        return value.node
    if isinstance(value, ByteRange) and isinstance(value.memory, tuple):
        kind, number = value.memory
        return int(number) if kind == "result" else None
    return None
