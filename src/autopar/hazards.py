"""Hazards: which nodes of a graph must wait for which, by the memory that they read and write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from autopar.access import Accesses, Stretch
from autopar.aliasing import stretches_of
from autopar.node import Result

Memory = frozenset[Stretch]


class _Reads(NamedTuple):
    """What a node reads, and whether its results never lie there."""

    values: tuple[Any, ...]
    fresh: bool


class Hazards:
    """Reads and writes of a graph's nodes, in the order of the program.

    A result that may lie in the memory of what its node reads counts as lying there. As long as
    nothing is written nothing has to be compared, and nothing is.
    """

    def __init__(self) -> None:
        self._nodes: list[_Reads] = []
        self._memory: list[Memory] = []  # of the results of the first nodes, as far as asked for
        self._accesses = Accesses()
        self._noted = 0
        self._written: dict[Stretch, int] = {}  # how often

    def note(
        self, reads: Iterable[Any], writes: Iterable[Any] = (), *, fresh: bool = True
    ) -> frozenset[int]:
        """Note the next node; return the numbers of those that must end before it.

        Args:
            reads: Tensors and results that it reads.
            writes: Those that it changes.
            fresh: Whether its results never lie in the memory of what it reads.
        """
        number = len(self._nodes)
        self._nodes.append(_Reads(tuple(reads), fresh))
        changed = [stretch for value in writes for stretch in self.memory_of(value)]
        if not changed and not self._written:
            return frozenset()
        for earlier in range(self._noted, number):
            self._accesses.note(earlier, self._read_by(earlier), [])
        self._noted = number + 1
        for stretch in changed:
            self._written[stretch] = self._written.get(stretch, 0) + 1
        return frozenset(self._accesses.note(number, self._read_by(number), changed))

    def changes(self, value: Any) -> int:
        """How often nodes so far have written to the memory of a tensor or a result."""
        if not self._written:
            return 0
        memory = self.memory_of(value)
        return sum(n for each, n in self._written.items() if any(map(each.meets, memory)))

    def memory_of(self, value: Any) -> Memory:
        """Where a tensor lies, or a result may lie."""
        if not isinstance(value, Result):
            return frozenset(stretches_of(value))
        for number in range(len(self._memory), value.node + 1):
            own = frozenset([Stretch(("result", number))])
            fresh = self._nodes[number].fresh
            self._memory.append(own if fresh else own | self._read_by(number))
        return self._memory[value.node]

    def _read_by(self, number: int) -> Memory:
        return frozenset().union(*map(self.memory_of, self._nodes[number].values))
