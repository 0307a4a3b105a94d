"""Hazards: which nodes of a graph must wait for which, by the memory that they read and write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from autopar.effects.access import Accesses, ByteRange
from autopar.effects.memory import ranges_of
from autopar.graph.node import Result

Memory = frozenset[ByteRange]


class _Uses(NamedTuple):
    """What a node reads and writes, and whether its results never lie in what it reads."""

    reads: list[Any]
    writes: list[Any]
    fresh: bool


class Hazards:
    """Reads and writes of a graph's nodes, in the order of the program.

    Values are tensors, arrays and storages, results of nodes, and ranges of bytes. A result
    that may lie in the memory of what its node reads counts as lying there. As long as nothing is
    written nothing has to be compared, and nothing is.
    """

    def __init__(self) -> None:
        self._nodes: list[_Uses] = []
        self._written: dict[ByteRange, int] = {}  # how often, when it was noted
        self._memory: list[Memory] = []  # of the results of the first nodes, as far as asked for
        self._behind: list[frozenset[Any]] = []

    def note(self, reads: Iterable[Any], writes: Iterable[Any] = (), *, fresh: bool = True) -> None:
        """Note the next node.

        Args:
            reads: Values that it reads.
            writes: Those that it changes.
            fresh: Whether its results never lie in the memory of what it reads.
        """
        uses = _Uses([*reads], [*writes], fresh)
        self._nodes.append(uses)
        for value in uses.writes:
            for lies in self.memory_of(value):
                self._written[lies] = self._written.get(lies, 0) + 1

    def add(self, number: int, reads: Iterable[Any], writes: Iterable[Any]) -> None:
        """Note more that a node does."""
        self._nodes[number].reads.extend(reads)
        self._nodes[number].writes.extend(writes)

    def before(self) -> list[frozenset[int]]:
        """For each node those that must end before it, by where everything lies now."""
        self._memory, self._behind = [], []
        if not self.writers():
            return [frozenset()] * len(self._nodes)
        accesses = Accesses()
        return [
            frozenset(accesses.note(number, self._all(uses.reads), self._all(uses.writes)))
            for number, uses in enumerate(self._nodes)
        ]

    def reads_of(self, number: int) -> list[Any]:
        """What a node reads, as far as it is known."""
        return self._nodes[number].reads

    def writes_of(self, number: int) -> list[Any]:
        """What a node writes, as far as it is known."""
        return self._nodes[number].writes

    def writers(self) -> list[int]:
        """Numbers of the nodes that write something."""
        return [number for number, uses in enumerate(self._nodes) if uses.writes]

    def behind(self, number: int) -> frozenset[Any]:
        """Tensors and results in whose memory a node's result may lie, its own among them."""
        for node in range(len(self._behind), number + 1):
            found: set[Any] = {Result(node)}
            for value in () if self._nodes[node].fresh else self._nodes[node].reads:
                if isinstance(value, torch.Tensor):
                    found.add(value)
                elif isinstance(value, Result):
                    found |= self._behind[value.node]
            self._behind.append(frozenset(found))
        return self._behind[number]

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
            uses = self._nodes[number]
            result = frozenset([ByteRange(("result", number))])
            self._memory.append(result if uses.fresh else result | self._all(uses.reads))
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
