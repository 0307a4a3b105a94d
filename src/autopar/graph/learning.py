"""Learning: what tasks read and write without having said so, found in a run in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from autopar.effects.access import ByteRange
from autopar.effects.bindings import Binding, Bindings, Came
from autopar.effects.memory import keys_of, ranges_of
from autopar.effects.observer import Seen, random_numbers
from autopar.effects.reach import BY_ANY_NAME, Reach, memory_in
from autopar.graph.guard import Guard, counted_in, version_of
from autopar.graph.node import Node, ancestors


class Learning:
    """Adds to what the tasks of a plan have said, one after another.

    Results lie elsewhere in each run, so what tasks do with them is noted by the task that made
    them: its result, or what else it has left behind, as in an attribute.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._hazards = guard.hazards
        self._ground = guard.ground()
        # What stands for memory, by key; nothing for what was there before the run.
        self._owners: dict[object, ByteRange] = {}
        self._bindings = Bindings()
        self._come: dict[tuple[int, ...], Came] = {}  # by what calls are of, until one is bound
        self._binders: list[tuple[int, Binding]] = []  # tasks, and bindings that they bind anew
        self._came: dict[int, Came] = {}  # by task, once one has to be observed

    def end(self) -> None:
        """Let those who come to bindings that others bind anew keep the program's order."""
        bound = {binding for _, binding in self._binders}
        bound.update(*(came.stored for came in self._came.values()))
        names_bound: dict[int, set[Any]] = {}
        for holder, name in bound:
            names_bound.setdefault(holder, set()).add(name)
        users: dict[Binding, dict[int, bool]] = {}  # tasks, and whether they may bind it anew
        for number, came in self._came.items():
            stored = {name for _, name in came.reach.stores}
            by_any_name = not BY_ANY_NAME.isdisjoint(came.reach.names)
            for holder in names_bound.keys() & came.names.keys():
                names = came.names[holder]
                for name in names_bound[holder] & (names_bound[holder] if names is None else names):
                    may_bind = names is None or by_any_name or name in stored
                    users.setdefault((holder, name), {})[number] = may_bind
        for number, binding in self._binders:
            users.setdefault(binding, {})[number] = True
        for binding, tasks in users.items():
            if len(tasks) > 1 and any(tasks.values()):
                self._hazards.keep(self._bindings.holder(binding[0]))
                place = {ByteRange(("binding", binding))}
                for number, may_bind in tasks.items():
                    self._add(number, set() if may_bind else place, place if may_bind else set())

    def own(self, number: int, value: Any) -> None:
        """Note whose result memory is."""
        for part in memory_in(value):
            key = self._ground.add(part)
            if key is not None:
                self._owners[key] = ByteRange(("result", number))

    def observed(self, node: Node, results: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Run a task, and note what it reads and writes without having said so."""
        ground, number, owners = self._ground, node.number, self._owners
        tensors = counted_in([*self._guard.tensors[number], *node.given(results)])
        versions = [*map(version_of, tensors)]
        if not self._came:
            self._came = {other.number: self._comes(other, ()) for other in self._guard.nodes}
        came = self._came[number] = self._comes(node, results)
        value, seen = self._guard.seen(node, results, ground, call)
        changed = [*self._bindings.changed()]
        if changed:
            self._come.clear()
        self._binders += [(number, binding) for binding in changed]
        returned = [(part, ground.find(part)) for part in memory_in(value)]
        new = {key for part, there in returned if there is None for key in keys_of(part)}
        done = [access for access in seen.outside() if access.key not in new]
        for part, key in returned:
            if key is not None:
                done += [Seen(lies, key, False, None) for lies in ranges_of(part)]
        reads, writes = set[ByteRange](), set[ByteRange]()
        for access in self._guard.unsaid(node, done, results, ground):
            (writes if access.written else reads).add(owners.get(access.key) or access.lies)
        for tensor, version in zip(tensors, versions, strict=True):  # what operators don't say
            key = ground.find(tensor)
            if tensor._version != version and key not in seen.written:
                writes.update([owners[key]] if key in owners else ranges_of(tensor))
        writes.update(map(random_numbers, came.reach.states))
        self._add(number, reads, writes)
        self.own(number, value)
        for key, alive in seen.left():
            if key not in ground:
                ground.keep(key, alive)
                owners[key] = ByteRange(("left", number))
        self._hazards.observed.add(number)
        return value

    def _comes(self, node: Node, results: Sequence[Any]) -> Came:
        """The bindings that a task can come to, by way of the results that are there."""
        leaves = node.filled(results) if results else node.leaves
        values = [value for value in (node.fn, *leaves) if not isinstance(value, torch.Tensor)]
        key = tuple(map(id, values))  # of what the graph and the results keep
        if key not in self._come:
            self._come[key] = self._bindings.add(Reach(*values, code=True))
        return self._come[key]

    def _add(self, number: int, reads: Iterable[ByteRange], writes: Iterable[ByteRange]) -> None:
        """Note what a task reads and writes, if that is new."""
        hazards = self._hazards
        written = _ranges_in(hazards.writes[number])
        writes = {*writes} - written
        reads = {*reads} - writes - written - _ranges_in(hazards.reads[number])
        for memory in reads | writes:
            kind, maker = memory.memory if isinstance(memory.memory, tuple) else ("", -1)
            if kind == "left" and maker in ancestors(self._guard.nodes, number):
                reads.discard(memory)  # as what autograd has saved for its way back
                writes.discard(memory)
            elif kind == "left" and memory not in _ranges_in(hazards.writes[maker]):
                hazards.add(maker, (), [memory])
        if reads or writes:
            hazards.add(number, reads, writes)


def _ranges_in(values: list[Any]) -> set[ByteRange]:
    return {value for value in values if isinstance(value, ByteRange)}
