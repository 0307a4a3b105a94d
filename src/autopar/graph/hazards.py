"""Hazards: which nodes of a graph must wait for which, by the memory that they read and write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from autopar.effects.access import Accesses, Stretch
from autopar.effects.aliasing import stretches_of
from autopar.graph.node import Result

Memory = frozenset[Stretch]


class _Uses:
    """What a node reads and writes, and whether its results never lie in what it reads."""

    __slots__ = ("fresh", "reads", "writes")

    def __init__(self, reads: list[Any], writes: list[Any], fresh: bool) -> None:
        self.reads, self.writes, self.fresh = reads, writes, fresh


class Hazards:
    """Reads and writes of a graph's nodes, in the order of the program.

    Values are tensors, arrays and storages, results of nodes, and stretches of memory. A result
    that may lie in the memory of what its node reads counts as lying there. As long as nothing is
    written nothing has to be compared, and nothing is.
    """

    def __init__(self) -> None:
        self._nodes: list[_Uses] = []
        self._written: dict[Stretch, int] = {}  # how often, when it was noted
        self._restart()

    def _restart(self) -> None:
        self._memory: list[Memory] = []  # of the results of the first nodes, as far as asked for
        self._behind: list[frozenset[Any]] = []

    def note(self, reads: Iterable[Any], writes: Iterable[Any] = (), *, fresh: bool = True) -> None:
        """Note the next node.

        Args:
            reads: Values that it reads.
            writes: Those that it changes.
            fresh: Whether its results never lie in the memory of what it reads.
        """
        own = _Uses([*reads], [*writes], fresh)
        self._nodes.append(own)
        for value in own.writes:
            for stretch in self.memory_of(value):
                self._written[stretch] = self._written.get(stretch, 0) + 1

    def add(self, number: int, reads: Iterable[Any], writes: Iterable[Any]) -> None:
        """Note more that a node does."""
        own = self._nodes[number]
        own.reads += reads
        own.writes += writes

    def before(self) -> list[frozenset[int]]:
        """For each node those that must end before it, by where everything lies now."""
        self._restart()
        if not self.writers():
            return [frozenset()] * len(self._nodes)
        accesses = Accesses()
        return [
            frozenset(accesses.note(number, self.read_by(number), self.written_by(number)))
            for number in range(len(self._nodes))
        ]

    def reads_of(self, number: int) -> list[Any]:
        """What a node reads, as far as it is known."""
        return self._nodes[number].reads

    def writes_of(self, number: int) -> list[Any]:
        """What a node writes, as far as it is known."""
        return self._nodes[number].writes

    def writers(self) -> list[int]:
        """Numbers of the nodes that write something."""
        return [number for number, each in enumerate(self._nodes) if each.writes]

    def behind(self, number: int) -> frozenset[Any]:
        """Tensors and results in whose memory a node's result may lie, its own among them."""
        for each in range(len(self._behind), number + 1):
            found: set[Any] = {Result(each)}
            for value in () if self._nodes[each].fresh else self._nodes[each].reads:
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
        return sum(n for each, n in self._written.items() if any(map(each.meets, memory)))

    def memory_of(self, value: Any) -> Memory:
        """Where a tensor lies, or a result may lie."""
        if isinstance(value, Stretch):
            return frozenset([value])
        if not isinstance(value, Result):
            return frozenset(stretches_of(value))
        for number in range(len(self._memory), value.node + 1):
            own = frozenset([Stretch(("result", number))])
            fresh = self._nodes[number].fresh
            self._memory.append(own if fresh else own | self.read_by(number))
        return self._memory[value.node]

    def read_by(self, number: int) -> Memory:
        """The memory that a node reads."""
        return frozenset().union(*map(self.memory_of, self._nodes[number].reads))

    def written_by(self, number: int) -> Memory:
        """The memory that a node writes."""
        return frozenset().union(*map(self.memory_of, self._nodes[number].writes))


def result_of(value: Any) -> int | None:
    """The node whose result a value stands for, if it does."""
    if isinstance(value, Result):
        return value.node
    if isinstance(value, Stretch) and isinstance(value.memory, tuple):
        kind, number = value.memory
        return int(number) if kind == "result" else None
    return None
