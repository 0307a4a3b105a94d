"""Audit: what tasks use without being given it, though they have said what they write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from autopar.effects.access import Places
from autopar.effects.memory import (
    default_generators,
    held_by,
    keys_of,
    memory_in,
    random_numbers,
    ranges_of,
)
from autopar.effects.observer import Observer, Seen
from autopar.graph.guard import Guard
from autopar.graph.node import Node, filled


class Audit:
    """Observes the tasks of a run in order that have said what they write.

    Torch's own operators declare what they use, and tasks that say nothing keep the order of the
    program, so neither has anything to hide.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._written = Places()  # by node, where it lies in this run
        self._unsaid: list[tuple[Node, Seen]] = []

    def call(self, node: Node, call: Callable[[], Any], results: Sequence[Any]) -> Any:
        """Run a task, observed if it is one of those."""
        hazards = self._guard.hazards
        written = self._places(hazards.writes[node.number], results)
        for lies in written:
            self._written.add(lies, node.number)
        if node.complete or node.number in hazards.unknown:
            return call()
        given = self._places(hazards.used[node.number], results)
        held = [
            part for part in held_by(node.fn, *filled(node.leaves, results)) if _is_generator(part)
        ]
        generators = dict.fromkeys([*default_generators(), *held])
        before = [generator.get_state() for generator in generators]
        with Observer() as observer:
            value = call()
        drawn = [
            random_numbers(generator)
            for generator, state in zip(generators, before, strict=True)
            if not torch.equal(generator.get_state(), state)
        ]
        returned = [*memory_in(value)]
        observer.note_reads(filter(torch.is_tensor, returned))
        new = {key for part in filter(_is_another_librarys, returned) for key in keys_of(part)}
        for seen in [*observer.outside(), *(Seen(lies, lies, True, None) for lies in drawn)]:
            said = written if seen.written else written + given
            if seen.key not in new and not _covering(said).covers(seen.lies):
                self._unsaid.append((node, seen))
                if seen.written:
                    self._written.add(seen.lies, node.number)
        return value

    def sentences(self) -> list[str]:
        """What is to be said in `writes`, or given as an argument."""
        nodes, sentences = self._guard.nodes, []
        for node, seen in self._unsaid:
            others = sorted(self._written.at(seen.lies) - {node.number})
            if seen.lies == random_numbers(str(node.device)):
                sentences.append(f"{node.name!r} draws random numbers: leave its `writes` out")
            elif seen.shape is None:
                sentences.append(
                    f"{node.name!r} draws from a generator, and its `writes` does not hold that: "
                    f"add it"
                )
            elif seen.written:
                what = f"changes a tensor of shape {seen.shape}"
                sentences.append(
                    f"{node.name!r} {what}, and its `writes` does not hold that: add it"
                )
            elif others:
                what = (
                    f"reads a tensor of shape {seen.shape} that {nodes[others[0]].name!r} changes"
                )
                sentences.append(f"{node.name!r} {what}: make it an argument")
        return list(dict.fromkeys(sentences))

    def _places(self, values: Iterable[Any], results: Sequence[Any]) -> list[Any]:
        memory = self._guard.values(values, results)
        return [lies for value in memory for lies in ranges_of(value)]


def _covering(ranges: Iterable[Any]) -> Places:
    places = Places()
    for lies in ranges:
        places.add(lies)
    return places


def _is_generator(part: Any) -> bool:
    return issubclass(type(part), torch.Generator)


def _is_another_librarys(part: Any) -> bool:
    """Whether another library has allocated a tensor's memory, as NumPy has for `from_numpy`."""
    if not isinstance(part, torch.Tensor) or part.layout != torch.strided:
        return False
    return not part.untyped_storage().resizable()
