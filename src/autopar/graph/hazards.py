"""Hazards: which nodes of a graph must wait for which, by the memory that they read and write.

What a node has said of that it is held to as it runs, by the version counters of tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from autopar.effects.access import ANYWHERE, Accesses, ByteRange, Places
from autopar.effects.memory import has_place, is_whole, memory_in, memory_key, ranges_of
from autopar.graph.node import Node, Result
from autopar.torch_private import pytree

Memory = frozenset[ByteRange]


class Uses(NamedTuple):
    """What a node reads and writes, as far as it was told: memory, and results of nodes."""

    reads: Sequence[Any]
    writes: Sequence[Any] = ()
    holders: Sequence[Any] = ()  # objects with tensors in them, which it reads too
    written_holders: Sequence[Any] = ()  # those of them whose tensors it writes
    fresh: bool = True  # whether its results never lie in the memory of what it reads
    unknown: bool = False  # whether it may read and write other things, too
    said: bool = False  # whether somebody has said all this, whom a run can hold to it


class Hazards:
    """What a graph's nodes read and write, in the order of the program, as far as it is known.

    A result that may lie in the memory of what its node reads counts as lying there. Nodes of which
    nobody knows that keep the order of the program. As long as nothing is written nothing has to be
    compared, and nothing is.
    """

    def __init__(self) -> None:
        self.may_track = True  # where autograd is on
        self.told: list[Uses] = []  # by node
        self.used: list[list[Any]] = []  # what nodes are given, and what is in holders now
        self.writes: list[Sequence[Any]] = []  # in the same way, as of the last plan
        # Whether tensors stand for all memory that they are parts of, as one history of autograd.
        self.whole = False
        self._writers = Places()  # who wrote last, when it was noted
        self._memory: list[Memory] = []  # of the results of the first nodes, as far as asked for
        self._tensors: list[torch.Tensor] = []  # all that nodes use
        self._picture: object = None

    def note(self, uses: Uses) -> None:
        """Note what the next node uses."""
        self.told.append(uses)
        for lies in [ANYWHERE] if uses.unknown else self._all(uses.writes):
            self._writers.put(lies, len(self.told) - 1)

    @property
    def tracks(self) -> bool:
        """Whether autograd tracks what tasks do."""
        return self.may_track and torch.is_grad_enabled()

    def before(self) -> list[set[int]]:
        """For each node those that must end before it, by where everything lies now."""
        self._memory, self.used = [], []
        self._look_at(len(self.told))
        self.writes = [[*uses.writes, *memory_in(*uses.written_holders)] for uses in self.told]
        values = {id(value): value for value in itertools.chain(*self.used, *self.writes)}
        self._tensors = [one for one in values.values() if isinstance(one, torch.Tensor)]
        self.whole = self._is_tracked()
        self._picture = self._look()
        if not any(self.writes) and not any(uses.unknown for uses in self.told):
            return [set() for _ in self.told]
        accesses = Accesses()
        return [
            accesses.note(number, self._all(self.used[number]), self._all(self.writes[number]))
            if not uses.unknown
            else accesses.note(number, (), [ANYWHERE])
            for number, uses in enumerate(self.told)
        ]

    def is_stale(self) -> bool:
        """Whether tensors lie elsewhere than when `before` was asked, or holders hold others."""
        return any(self.writes) and self._picture != self._look()

    def writers(self, value: Any) -> frozenset[int]:
        """Nodes that may have written last to the memory of a tensor or a result."""
        return frozenset().union(*map(self._writers.at, self.memory_of(value)))

    def memory_of(self, value: Any) -> Memory:
        """Where a tensor lies, or a result may lie."""
        if isinstance(value, torch.Tensor) and not has_place(value):
            return frozenset([ANYWHERE])
        if not isinstance(value, Result):
            return frozenset(ranges_of(value, whole=self.whole))
        self._look_at(value.node + 1)
        for number in range(len(self._memory), value.node + 1):
            told = self.told[number]
            behind = frozenset[ByteRange]() if told.fresh else self._all(self.used[number])
            own = ANYWHERE if told.unknown else ByteRange(("result", number))
            # Who uses it uses what is behind it, too, so that needs no name of its own.
            self._memory.append(frozenset([own]) if told.unknown or not behind else behind)
        return self._memory[value.node]

    def watched(self) -> list[list[Any]]:
        """By node what it must not change, where it can be held to what it has said."""
        return [self._watched(n) if uses.said else [] for n, uses in enumerate(self.told)]

    def call(self, node: Node, watched: Sequence[Any], results: Sequence[Any]) -> Any:
        """Run a task in the calling thread, and hold it to what it has said that it writes.

        Of parts of larger tensors nothing is known, as others may write beside them and one counter
        is for all; nor of inference tensors, which have none.
        """
        counted = []
        for value in watched:
            parts = memory_in(results[value.node]) if isinstance(value, Result) else [value]
            counted += [(part, part._version) for part in parts if part is value or _counts(part)]
        result = node.call(results)
        for tensor in (tensor for tensor, version in counted if tensor._version != version):
            said = self.filled(self.writes[node.number], results)
            if memory_key(tensor) not in map(memory_key, said):  # as that of a view would be
                msg = (
                    f"task {node.name!r}, or one that ran at once, changed "
                    f"{_name(node, tensor, results)}, and did not say so; expected it in `writes`. "
                    f"Add it, or leave `writes` out, which keeps the order."
                )
                raise RuntimeError(msg)
        return result

    def filled(self, values: Iterable[Any], results: Sequence[Any]) -> Iterator[Any]:
        """Values of a run in place of those that stand for results."""
        for value in values:
            yield from memory_in(results[value.node]) if isinstance(value, Result) else (value,)

    def _watched(self, number: int) -> list[Any]:
        said = {*map(_key, self.writes[number])}
        used = [value for value in self.used[number] if _key(value) not in said]
        return [value for value in used if isinstance(value, Result) or _counts(value)]

    def _look_at(self, count: int) -> None:
        new = self.told[len(self.used) : count]
        self.used += [[*uses.reads, *held] for uses, held in zip(new, _held(new), strict=True)]

    def _look(self) -> object:
        """What tells whether all lies where it did: holders' contents, and tensors' places."""
        known = [uses for uses in self.told if uses.holders and not uses.unknown]
        held = [[*map(id, values)] for values in _held(known)]
        return held, [*map(_place, self._tensors)], self._is_tracked()

    def _is_tracked(self) -> bool:
        return self.tracks and any(tensor.requires_grad for tensor in self._tensors)

    def _all(self, values: Iterable[Any]) -> Memory:
        return frozenset().union(*map(self.memory_of, values))


def _held(told: Iterable[Uses]) -> Iterator[list[Any]]:
    """What memory the holders of nodes hold; many have the same, which are looked through once."""
    found: dict[int, list[Any]] = {}
    for uses in told:
        for holder in uses.holders:
            if id(holder) not in found:
                found[id(holder)] = [*memory_in(holder)]
        yield [value for holder in uses.holders for value in found[id(holder)]]


def _place(tensor: torch.Tensor) -> object:
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride()
    except (RuntimeError, NotImplementedError, ValueError):  # as a sparse one, or a lazy module's
        return id(tensor)


def _key(value: Any) -> object:
    return value if isinstance(value, Result) else memory_key(value)


def _counts(value: Any) -> bool:
    """Whether it is a tensor whose version counter tells of its own changes alone."""
    if not isinstance(value, torch.Tensor) or is_lazy(value) or value.is_inference():
        return False
    return is_whole(value)


def _name(node: Node, what: torch.Tensor, results: Sequence[Any]) -> str:
    shape = tuple(what.shape)
    given = pytree.tree_unflatten(node.leaves, node.spec)
    paths, _ = pytree.tree_flatten_with_path(given, is_leaf=lambda value: type(value) is Result)
    for path, leaf in paths:
        value = results[leaf.node] if isinstance(leaf, Result) else leaf
        if any(part is what for part in memory_in(value)):
            kind = "args" if pytree.keystr(path[:1]) == "[0]" else "kwargs"
            return f"{kind}{pytree.keystr(path[1:])}, a tensor of shape {shape}"
    return f"a tensor of shape {shape} that its function holds"
