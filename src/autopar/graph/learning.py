"""Learning: what tasks read and write without having said so, found in a run in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autopar.effects.access import Stretch
from autopar.effects.aliasing import keys_of, stretches_of
from autopar.effects.memory import memory_in
from autopar.effects.observer import Seen
from autopar.effects.reach import Reach
from autopar.effects.slots import Came, Slot, Slots
from autopar.graph.guard import Guard, versions_of
from autopar.graph.node import Node, Result, ancestors


class Learning:
    """Adds to what the tasks of a graph have said, one after another.

    Results lie elsewhere in each run, so what tasks do with them is noted by the task that made
    them: its result, or what else it has left behind, as in an attribute.

    Args:
        guard: Of the plan that is run; its hazards are added to.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._hazards = guard.hazards
        self._ground = guard.ground()
        # What stands for memory, by key; nothing for what was there before the run.
        self._owners: dict[object, Stretch] = {}
        self._slots = Slots()
        self._known: dict[tuple[int, ...], Came] = {}  # by what calls are of, until a slot changes
        self._bound: dict[Slot, Any] = {}  # slots that tasks bind anew, with what holds them
        self._binders: list[tuple[int, Slot]] = []
        self._came: dict[int, Came] = {}  # by task, once one has to be observed

    def end(self) -> None:
        """Let those who come to slots that others bind anew keep the program's order."""
        slots: dict[int, set[Any]] = {}
        users: dict[Slot, dict[int, bool]] = {}  # tasks, and whether they may bind it anew
        for number, name in itertools.chain(self._bound, *(c.stored for c in self._came.values())):
            slots.setdefault(number, set()).add(name)
        for number, came in self._came.items():
            for slot, may_bind in came.among(slots):
                users.setdefault(slot, {})[number] = may_bind
        for number, slot in self._binders:
            users.setdefault(slot, {})[number] = True
        for slot, tasks in users.items():
            for number, binds in tasks.items() if len(tasks) > 1 and any(tasks.values()) else ():
                own = {_stretch("slot", slot)}
                self._add(number, set() if binds else own, own if binds else set())
        self._guard.known.kept.update(self._bound)

    def own(self, number: int, value: Any) -> None:
        """Note whose result memory is."""
        for each in memory_in(value):
            key = self._ground.add(each)
            if key is not None:
                self._owners[key] = Stretch(("result", number))

    def observed(self, node: Node, results: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Run a task, and note what it reads and writes without having said so.

        Raises:
            RuntimeError: It gave a tensor other memory.
        """
        ground, number = self._ground, node.number
        given = [results[leaf.node] for leaf in node.leaves if isinstance(leaf, Result)]
        versions = versions_of([*self._guard.tensors[number], *given])
        if not self._came:
            self._came = {each.number: self._come(each, ()) for each in self._guard.nodes}
        came = self._came[number] = self._come(node, results)
        value, seen = self._guard.seen(node, results, ground, call)
        bound = dict(self._slots.changed())
        self._bound.update(bound)
        if bound:
            self._known.clear()
        self._binders += [(number, slot) for slot in bound]
        returned = [*memory_in(value)]
        own = {key for each in returned for key in keys_of(each) if ground.find(each) is None}
        done = [each for each in seen.outside() if each.key not in own]
        done += [
            Seen(lies, ground.find(each), False, None)
            for each in returned
            if ground.find(each) is not None
            for lies in stretches_of(each)
        ]
        found: dict[bool, set[Stretch]] = {False: set(), True: set()}
        for each in self._guard.unsaid(node, done, results, ground):
            found[each.written].add(self._owners.get(each.key) or each.stretch)
        for tensor, version in versions:  # what operators don't say, counters may
            key = ground.find(tensor)
            if tensor._version != version and key not in seen.written:
                found[True].update(self._owners.get(key) or lies for lies in stretches_of(tensor))
        states = (_stretch("state", id(state)) for state in came.reach.states)
        self._add(number, found[False], found[True].union(states))
        self.own(number, value)
        for key, alive in seen.left():
            if key not in ground:
                ground.keep(key, alive)
                self._owners[key] = Stretch(("left", number))
        return value

    def _come(self, node: Node, results: Sequence[Any]) -> Came:
        """The slots that a task can come to, by way of the results that are there."""
        leaves = [
            results[each.node] if results and isinstance(each, Result) else each
            for each in node.leaves
        ]
        values = [each for each in (node.fn, *leaves) if not isinstance(each, torch.Tensor)]
        key = tuple(map(id, values))  # of what the graph and the results keep
        if key not in self._known:
            self._known[key] = self._slots.add(Reach(*values, code=True))
        return self._known[key]

    def _add(self, number: int, reads: set[Stretch], writes: set[Stretch]) -> None:
        """Note what a task reads and writes, if that is new."""
        hazards = self._hazards
        writes -= _stretches(hazards.writes_of(number))
        reads -= writes | _stretches([*hazards.reads_of(number), *hazards.writes_of(number)])
        for memory in reads | writes:
            kind, maker = memory.memory if isinstance(memory.memory, tuple) else ("", -1)
            if kind == "left" and maker in ancestors(self._guard.nodes, number):
                reads.discard(memory)  # as what autograd has saved for its way back
                writes.discard(memory)
            elif kind == "left" and memory not in _stretches(hazards.writes_of(maker)):
                hazards.add(maker, (), [memory])
        if reads or writes:
            hazards.add(number, reads, writes)
            self._guard.known.found = True


def _stretch(kind: str, what: object) -> Stretch:
    return Stretch((kind, what))


def _stretches(values: list[Any]) -> set[Stretch]:
    return {each for each in values if isinstance(each, Stretch)}
