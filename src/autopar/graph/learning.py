"""Learning: what tasks read and write without having said so, found in a run in order."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from autopar.effects.access import ByteRange
from autopar.effects.binder import Binder
from autopar.effects.memory import keys_of, memory_in, ranges_of
from autopar.effects.observer import Ground, Seen, gradients, random_numbers
from autopar.effects.state import State
from autopar.graph.guard import Guard, counted_in, version_of
from autopar.graph.node import Node, ancestors


class Learning:
    """Adds to what the tasks of a plan have said, one after another.

    Memory that tasks use is found by watching torch's operators. A task that has said nothing keeps
    the order of the program unless each instruction that it ran is known to leave nothing else
    behind. So does any that changes something else that it can reach, such as an attribute or a
    list, or reaches what can't be looked into, such as an iterator or an array.

    Results lie elsewhere in each run, so what tasks do with them is noted by the task that made
    them: its result, or what else it has left behind, as in an attribute.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._hazards = guard.hazards
        # What stands for memory, by key; nothing for what was there before the run.
        self._owners: dict[object, ByteRange] = {}
        self._states: dict[tuple[int, ...], State] = {}  # by what calls are of, until one changes
        self._changed_gradients: set[str] = set()  # devices on which some have come or gone
        values = [(node.fn, node.leaves) for node in guard.nodes if not node.complete]
        reached = [tensor for _, tensor in State([("", values)]).tensors]
        self._ground = Ground(memory_in([node.leaves for node in guard.nodes], reached))

    def end(self) -> None:
        """Let those who may use gradients come after those who make and delete them."""
        for number in self._hazards.observed:
            device = str(self._guard.nodes[number].device)
            if device in self._changed_gradients:
                self._add(number, [gradients(device)], [])

    def own(self, number: int, value: Any) -> None:
        """Note whose result memory is."""
        for part in memory_in(value):
            key = self._ground.add(part)
            if key is not None:
                self._owners[key] = ByteRange(("result", number))

    def observed(self, node: Node, results: Sequence[Any]) -> Any:
        """Run a task, and note what it reads and writes without having said so."""
        ground, number, owners = self._ground, node.number, self._owners
        state = self._state_of(node, results)
        reached = [tensor for _, tensor in state.tensors]
        tensors = counted_in([*self._guard.tensors[number], *node.given(results), *reached])
        versions = [*map(version_of, tensors)]
        with Binder(node.fn) as binder:
            value, seen = self._guard.seen(node, results, ground)
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
        writes.update(map(random_numbers, state.generators.values()))
        doubtful = number in self._hazards.unknown and binder.unknown  # not where all was said
        binds = bool(doubtful) or state.holds(binder.names)
        stateful = binds or bool(state.iterators or state.closed)
        changes = [*state.changes()]
        if changes:  # others may come to it, too
            self._states.clear()
        for change in changes:
            if change.name.endswith(".grad"):
                tensor = change.new if change.old is None else change.old
                self._changed_gradients.add(str(tensor.device))
                writes.add(gradients(str(tensor.device)))
            elif change.name not in state.generators:
                stateful = True
        if stateful and number not in self._hazards.stateful:
            self._hazards.stateful.add(number)
            self._hazards.additions += 1
        self._add(number, reads, writes)
        self.own(number, value)
        for key, alive in seen.left():
            if key not in ground:
                ground.keep(key, alive)
                owners[key] = ByteRange(("left", number))
        self._hazards.reached[number] = [
            tensor for tensor in reached if ground.find(tensor) not in owners
        ]
        self._hazards.observed.add(number)
        self._hazards.additions += number in self._hazards.unknown
        return value

    def _state_of(self, node: Node, results: Sequence[Any]) -> State:
        """All that a task can reach, but for results that nothing but memory hangs on."""
        given = [value for value in node.given(results) if not _is_plain(value)]
        values = [node.fn, *node.leaves, *given]
        key = tuple(map(id, values))  # of what the graph and the state keep
        if key not in self._states:
            self._states[key] = State([(node.name, tuple(values)), *_chances()])
        return self._states[key]

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


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.requires_grad


def _chances() -> Iterator[tuple[str, Any]]:
    """The random numbers of Python and NumPy, which are no operator's."""
    yield "Python's random numbers", random.seed.__self__  # type: ignore[attr-defined]
    if numpy := sys.modules.get("numpy.random.mtrand"):
        yield "NumPy's random numbers", numpy._rand
