"""Learning: what tasks read and write without having said so, found in a run in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from autopar.access import Stretch
from autopar.aliasing import keys_of, stretches_of
from autopar.guard import Guard, versions_of
from autopar.memory import memory_in
from autopar.node import Node, Result, ancestors
from autopar.observer import Seen
from autopar.reach import Reach
from autopar.slots import Slot, Slots, changed


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
        self._slots: dict[tuple[int, ...], Slots] = {}  # until something is bound anew
        self._came: dict[int, Slots] = {}  # by task
        self._bound: dict[Slot, Any] = {}  # slots that tasks bind anew, with what holds them

    def end(self, results: Sequence[Any]) -> None:
        """Let those who come to slots that others bind anew keep the program's order."""
        for node in self._guard.nodes if self._bound else ():
            slots = self._came.get(node.number) or self._slots_of(node, results)
            self._add(node.number, set(map(_slot, slots.common(self._bound.keys()))), set())
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
        slots = self._came[number] = self._slots_of(node, results)
        held = slots.held()
        value, seen = self._guard.seen(node, results, ground, call)
        if bound := dict(changed(held)):
            self._bound.update(bound)
            self._slots.clear()
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
        self._add(number, found[False], found[True].union(map(_slot, bound)))
        self.own(number, value)
        for key, alive in seen.left():
            if key not in ground:
                ground.keep(key, alive)
                self._owners[key] = Stretch(("left", number))
        return value

    def _slots_of(self, node: Node, results: Sequence[Any]) -> Slots:
        """The slots that a task can come to."""
        leaves = [results[each.node] if isinstance(each, Result) else each for each in node.leaves]
        values = [each for each in (node.fn, *leaves) if not isinstance(each, torch.Tensor)]
        key = tuple(map(id, values))  # of what the graph and the results keep
        if key not in self._slots:
            self._slots[key] = Slots(Reach(*values, code=True))
        return self._slots[key]

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


def _slot(slot: Slot) -> Stretch:
    return Stretch(("slot", slot))


def _stretches(values: list[Any]) -> set[Stretch]:
    return {each for each in values if isinstance(each, Stretch)}
