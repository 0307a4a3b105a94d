"""Learning: what tasks read and write without having said so, found in a run in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autopar.access import Stretch
from autopar.aliasing import keys_of, stretches_of
from autopar.guard import Guard, versions_of
from autopar.node import Node, Result, ancestors
from autopar.observer import Observer
from autopar.reach import Reach


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
        # What stands for memory, by key; nothing for what was there before the run.
        self._owners: dict[object, Stretch | None] = {
            key: None for own in guard.tensors for tensor in own for key in keys_of(tensor)
        }

    def own(self, number: int, value: Any) -> None:
        """Note whose result memory is."""
        for tensor in Reach(value).memory:
            for key in keys_of(tensor):
                self._owners.setdefault(key, Stretch(("result", number)))

    def observed(self, node: Node, results: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Run a task, and note what it reads and writes without having said so.

        Raises:
            RuntimeError: It gave a tensor other memory.
        """
        given = [results[leaf.node] for leaf in node.leaves if isinstance(leaf, Result)]
        versions = versions_of([*self._guard.tensors[node.number], given])
        value, seen = self._guard.seen(node, results, call)
        own = {key for tensor in Reach(value).memory for key in keys_of(tensor)}
        own -= self._owners.keys()
        found: dict[bool, set[Stretch]] = {False: set(), True: set()}
        for each in self._guard.unsaid(node, seen, results):
            if each.key not in own:
                found[each.written].add(self._owners.get(each.key) or each.stretch)
        for tensor, version in versions:  # what operators don't say, counters may
            if tensor._version != version and not seen.wrote(tensor):
                found[True].update(self._memory(tensor))
        found[False].update(self._returned(node, value, seen, results))
        writes = found[True] - self._hazards.written_by(node.number)
        reads = found[False] - writes - self._hazards.read_by(node.number)
        for memory in reads | writes:
            kind, maker = memory.memory if isinstance(memory.memory, tuple) else ("", -1)
            if kind == "left" and maker in ancestors(self._guard.nodes, node.number):
                reads.discard(memory)  # as what autograd has saved for its way back
                writes.discard(memory)
            elif kind == "left" and memory not in self._hazards.written_by(maker):
                self._hazards.add(maker, (), [memory])
        if reads or writes:
            self._hazards.add(node.number, reads, writes)
            self._guard.known.found = True
        self.own(node.number, value)
        for key in seen.left():
            self._owners.setdefault(key, Stretch(("left", node.number)))
        return value

    def _returned(
        self, node: Node, value: Any, seen: Observer, results: Sequence[Any]
    ) -> Iterator[Stretch]:
        """Memory that a task's result lies in, and that it has neither made nor named."""
        hazards, number = self._guard.hazards, node.number
        said = [*self._guard.memory(hazards.reads_of(number), results)]
        for tensor in Reach(value).memory:
            for key, lies in zip(keys_of(tensor), stretches_of(tensor), strict=True):
                old = key in self._owners
                if old and not seen.bore(key) and not any(own.covers(lies) for own in said):
                    yield self._owners[key] or lies

    def _memory(self, tensor: Any) -> Iterator[Stretch]:
        for key, lies in zip(keys_of(tensor), stretches_of(tensor), strict=True):
            yield self._owners.get(key) or lies
