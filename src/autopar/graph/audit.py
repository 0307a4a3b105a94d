"""Audit: what tasks use without being given it, though they have said what they write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from autopar.effects.access import ByteRange, Places
from autopar.effects.memory import (
    default_generators,
    has_place,
    held_by,
    memory_in,
    memory_key,
    random_numbers,
    ranges_of,
    tensors_of,
)
from autopar.effects.operators import written_arguments
from autopar.graph.hazards import Hazards
from autopar.graph.node import Node, filled
from autopar.torch_private import TorchDispatchMode


class Seen(NamedTuple):
    """A range of bytes that was read or written."""

    lies: ByteRange
    written: bool
    shape: tuple[int, ...] | None = None  # for people; none for random numbers


class Observer(TorchDispatchMode):
    """Notes what operators of this thread read and write, but for memory that is born inside.

    It takes up to 100 µs an operator. What happens in memory of another library, as NumPy's, and in
    sparse tensors is not noted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Seen, None] = {}
        self._born: dict[object, StorageWeakRef] = {}  # kept, so that no number is used again

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operator, and note what it is given and returns."""
        kwargs = kwargs or {}
        given = tensors_of((args, kwargs))
        written = {*map(id, tensors_of(written_arguments(func._schema, args, kwargs)))}
        if func is torch.ops.aten.lift_fresh.default:  # how a literal becomes a tensor
            self._note_born(given)
        for tensor in given:
            self.note(tensor, written=id(tensor) in written)
        before = {*map(memory_key, given)}
        result = func(*args, **kwargs)
        self._note_born(out for out in tensors_of(result) if memory_key(out) not in before)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would load its compiler, which takes seconds

    def note(self, tensor: torch.Tensor, *, written: bool = False) -> None:
        """Note that a tensor is read or written."""
        if memory_key(tensor) in self._born or not has_place(tensor):
            return
        if tensor.untyped_storage().resizable():  # else another library has made it
            for lies in ranges_of(tensor):
                self.seen[Seen(lies, written, tuple(tensor.shape))] = None

    def _note_born(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in filter(has_place, tensors):
            self._born[memory_key(tensor)] = StorageWeakRef(tensor.untyped_storage())


class Audit:
    """Observes the tasks of a run in order that have said what they write."""

    def __init__(self, nodes: Sequence[Node], hazards: Hazards) -> None:
        self._nodes, self._hazards = nodes, hazards
        self._written = Places()  # by node, where it lies in this run
        self._unsaid: list[tuple[Node, Seen]] = []

    def call(self, node: Node, call: Callable[[], Any], results: Sequence[Any]) -> Any:
        """Run a task, observed if it is one of those."""
        hazards = self._hazards

        def ranges(values: Iterable[Any]) -> list[ByteRange]:
            return [lies for one in hazards.filled(values, results) for lies in ranges_of(one)]

        may_write, may_read = Places(), Places()
        for lies in (written := ranges(hazards.writes[node.number])):
            self._written.add(lies, node.number)
            may_write.add(lies)
        if not hazards.told[node.number].said:
            return call()
        for lies in written + ranges(hazards.used[node.number]):
            may_read.add(lies)
        held = held_by(node.fn, *filled(node.leaves, results))
        own = [part for part in held if issubclass(type(part), torch.Generator)]
        generators = dict.fromkeys([*default_generators(), *own])
        states = [(generator, generator.get_state()) for generator in generators]
        with Observer() as observer:
            value = call()
        for tensor in tensors_of([*memory_in(value)]):
            observer.note(tensor)
        changed = [by for by, state in states if not by.get_state().equal(state)]
        drawn = [Seen(random_numbers(generator), written=True) for generator in changed]
        for seen in (*observer.seen, *drawn):
            if not (may_write if seen.written else may_read).covers(seen.lies):
                self._unsaid.append((node, seen))
                if seen.written:
                    self._written.add(seen.lies, node.number)
        return value

    def sentences(self) -> list[str]:
        """What is to be said in `writes`, or given as an argument."""
        return list(dict.fromkeys(filter(None, map(self._sentence, self._unsaid))))

    def _sentence(self, unsaid: tuple[Node, Seen]) -> str:
        (node, seen), and_unsaid = unsaid, "and its `writes` does not hold that: add it"
        if seen.lies == random_numbers(str(node.device)):
            return f"{node.name!r} draws random numbers: leave its `writes` out"
        if seen.shape is None:
            return f"{node.name!r} draws from a generator, {and_unsaid}"
        if seen.written:
            return f"{node.name!r} changes a tensor of shape {seen.shape}, {and_unsaid}"
        if not (others := sorted(self._written.at(seen.lies) - {node.number})):
            return ""
        reads = f"{node.name!r} reads a tensor of shape {seen.shape} that"
        return f"{reads} {self._nodes[others[0]].name!r} changes: make it an argument"
