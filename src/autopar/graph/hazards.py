"""Hazards: which nodes of a graph must wait for which, by the memory that they read and write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autopar.effects.access import Accesses, ByteRange
from autopar.effects.memory import ranges_of
from autopar.graph.node import Result

Memory = frozenset[ByteRange]


class Hazards:
    """What a graph's nodes read and write, in the order of the program, as far as it is known.

    Values are tensors, arrays and storages, results of nodes, and ranges of bytes. A result
    that may lie in the memory of what its node reads counts as lying there. As long as nothing is
    written nothing has to be compared, and nothing is.
    """

    def __init__(self) -> None:
        self.reads: list[list[Any]] = []  # by node
        self.writes: list[list[Any]] = []
        self.additions = 0  # to what nodes have said
        self.observed: set[int] = set()  # nodes of which a run in order has found all
        # Nodes that no other run has to observe, without and with inference mode.
        self.settled: tuple[set[int], set[int]] = (set(), set())
        self._kept: dict[int, Any] = {}  # what ranges of bytes name by its number
        self._fresh: list[bool] = []  # whether results never lie in the memory of what is read
        self._written: dict[ByteRange, int] = {}  # how often, when it was noted
        self._memory: list[Memory] = []  # of the results of the first nodes, as far as asked for

    def note(self, reads: Iterable[Any], writes: Iterable[Any] = (), *, fresh: bool = True) -> None:
        """Note the next node; `fresh` if its results never lie in the memory of what it reads."""
        self.reads.append([*reads])
        self.writes.append([*writes])
        self._fresh.append(fresh)
        for value in self.writes[-1]:
            for lies in self.memory_of(value):
                self._written[lies] = self._written.get(lies, 0) + 1

    def add(self, number: int, reads: Iterable[Any], writes: Iterable[Any]) -> None:
        """Note more that a node does."""
        self.reads[number].extend(reads)
        self.writes[number].extend(writes)
        self.additions += 1

    def keep(self, value: Any) -> None:
        """Keep what a range of bytes names by its number, so that nothing else gets that."""
        self._kept[id(value)] = value

    def before(self) -> list[set[int]]:
        """For each node those that must end before it, by where everything lies now."""
        self._memory = []
        if not self.writers():
            return [set() for _ in self.reads]
        accesses = Accesses()
        return [
            accesses.note(number, self._all(reads), self._all(writes))
            for number, (reads, writes) in enumerate(zip(self.reads, self.writes, strict=True))
        ]

    def writers(self) -> list[int]:
        """Numbers of the nodes that write something."""
        return [number for number, writes in enumerate(self.writes) if writes]

    def changes(self, value: Any) -> int:
        """How often nodes so far have written to the memory of a tensor or a result."""
        if not self._written:
            return 0
        memory = self.memory_of(value)
        return sum(n for lies, n in self._written.items() if any(map(lies.meets, memory)))

    def memory_of(self, value: Any) -> Memory:
        """Where a tensor lies, or a result may lie."""
        if not isinstance(value, Result):
            return frozenset(ranges_of(value))
        for number in range(len(self._memory), value.node + 1):
            result = frozenset([ByteRange(("result", number))])
            behind = frozenset() if self._fresh[number] else self._all(self.reads[number])
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
