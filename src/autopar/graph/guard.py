"""Guard: whether tasks change what they did not say, by version counters and by observation.

every run          the version counters of what a task is given, or was seen to reach, are compared
a run in order     all tasks are observed once, and what they did not say is added
in that order      stays what nobody has observed, so that nothing of it has to be known
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from autopar.effects.access import ByteRange, Places
from autopar.effects.memory import is_whole, keys_of, memory_in, memory_key, ranges_of
from autopar.effects.observer import Ground, Observer, Seen
from autopar.graph.hazards import Hazards, result_of
from autopar.graph.node import Node, Result
from autopar.torch_private import pytree

Watched = tuple[tuple[torch.Tensor, ...], tuple[int, ...]]
version_of = operator.attrgetter("_version")
_NUMBERS = {type(None), bool, int, float, str}


class Guard:
    """Compares what the tasks of a plan do with what they have said.

    Attributes:
        tensors: By node, what it is given or reaches, but for others' results.
        watched: By node, tensors and nodes' results that it must not change; none where it writes
            nothing but what it says, or keeps the order of the program.
    """

    def __init__(self, nodes: Sequence[Node], hazards: Hazards) -> None:
        self.nodes = nodes
        self.hazards = hazards
        self.tensors = [
            _tensors_of((*node.leaves, *hazards.reached.get(node.number, ()))) for node in nodes
        ]
        distinct = {id(tensor): tensor for tensors in self.tensors for tensor in tensors}
        # Of these a version counter is theirs alone.
        self._counted = {
            number
            for number, tensor in distinct.items()
            if is_whole(tensor) and not tensor.is_inference()
        }
        self.watched = [
            None if node.complete or hazards.is_in_order(node.number) else self._watched(node)
            for node in nodes
        ]
        self._additions = hazards.additions
        lasting = distinct.values() if hazards.writers() else ()
        self._lasting = [tensor for tensor in lasting if _has_address(tensor)]
        self._addresses = [*map(torch.Tensor.data_ptr, self._lasting)]

    def is_stale(self) -> bool:
        """Whether tensors lie elsewhere, or more is known, than when this was made."""
        addresses = [*map(torch.Tensor.data_ptr, self._lasting)]
        return self._additions != self.hazards.additions or addresses != self._addresses

    def compare(
        self,
        node: Node,
        moved: Iterable[torch.Tensor],
        results: Sequence[Any],
        beside: Iterable[int],
    ) -> None:
        """Refuse changes that a task has not said, or those beside it, which may have made them."""
        is_said = _sharing(self.values(self.hazards.writes[node.number], results))
        for tensor in moved:
            # Of a view a part may be others', and all is observed; who has made a tensor smaller
            # has done that to this one alone.
            if (is_whole(tensor) or not tensor._is_view()) and not is_said(tensor):
                others = [number for number in beside if self._watches(number, tensor, results)]
                raise RuntimeError(self._untold(node, tensor, results, others))

    def seen(self, node: Node, results: Sequence[Any], ground: Ground) -> tuple[Any, Observer]:
        """Run a task, observe its operators, and refuse that it gives a tensor other memory."""
        given = filter(torch.is_tensor, memory_in(*node.given(results)))
        tensors = [*self.tensors[node.number], *given]
        before = [*map(memory_key, tensors)]
        with Observer(ground) as seen:
            value = node.call(results)
        for tensor, key in zip(tensors, before, strict=True):
            if tensor.layout == torch.strided and memory_key(tensor) != key:
                msg = (
                    f"task {node.name!r} gave {_name(node, tensor, results)} other memory; "
                    f"expected tensors that stay where they are. Use copy_, or do it before."
                )
                raise RuntimeError(msg)
        return value, seen

    def unsaid(
        self, node: Node, done: Iterable[Seen], results: Sequence[Any], ground: Ground
    ) -> Iterator[Seen]:
        """What a task has read and written and did not say."""
        done = [*done]
        keys = {seen.key for seen in done}

        def places(said: Iterable[Any]) -> Places:
            covered = Places()
            for value in self.values(said, results):
                if not isinstance(value, torch.Tensor) or ground.find(value) in keys:
                    for lies in ranges_of(value):
                        covered.add(lies)
            return covered

        written = places(self.hazards.writes[node.number])
        read = places(self.hazards.reads[node.number])
        for seen in done:
            lies = seen.lies
            if not (written.covers(lies) or (read.covers(lies) and not seen.written)):
                yield seen

    def values(self, values: Iterable[Any], results: Sequence[Any]) -> Iterator[Any]:
        """Tensors and ranges of bytes, in place of values that stand for results, too."""
        for value in values:
            number = result_of(value)
            if number is None:
                yield value
            else:
                yield from memory_in(results[number])

    def _watches(self, number: int, tensor: torch.Tensor, results: Sequence[Any]) -> bool:
        tensors, given = self.watched[number] or ((), ())
        return _sharing([*tensors, *memory_in(*(results[other] for other in given))])(tensor)

    def _untold(
        self, node: Node, what: torch.Tensor | Seen, results: Sequence[Any], beside: list[int]
    ) -> str:
        names = " or ".join(repr(other.name) for other in (node, *(self.nodes[n] for n in beside)))
        at_once = ", which ran at once," if beside else ""
        return (
            f"task {names}{at_once} changed {_name(node, what, results)}, and did not say so; "
            f"expected it in `writes`. Say it, or let graph.check() find what tasks write."
        )

    def _watched(self, node: Node) -> Watched | None:
        writes = self.hazards.writes[node.number]
        is_said = _sharing(writes)
        counted = [
            tensor
            for tensor in self.tensors[node.number]
            if id(tensor) in self._counted and not is_said(tensor)
        ]
        given = {leaf.node for leaf in node.leaves if isinstance(leaf, Result)}
        given.difference_update(map(result_of, writes))
        return (tuple(counted), tuple(sorted(given))) if counted or given else None


def counted_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors in some results, but for inference tensors, which don't count their changes."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if issubclass(type(value), torch.Tensor):
            tensors.append(value)
        elif type(value) not in _NUMBERS:
            tensors += filter(torch.is_tensor, memory_in(value))
    return [tensor for tensor in tensors if not tensor.is_inference()]


def _tensors_of(values: Iterable[Any]) -> list[torch.Tensor]:
    tensors = {id(value): value for value in values if isinstance(value, torch.Tensor)}
    return list(tensors.values())


def _sharing(values: Iterable[Any]) -> Callable[[torch.Tensor], bool]:
    """What tells whether a tensor shares its memory with one of some, or meets a range of bytes."""
    keys, places = set[object](), Places()
    for value in values:
        keys.update(keys_of(value))
        if isinstance(value, ByteRange):
            places.add(value)
    if not keys and not places:
        return lambda tensor: False
    return lambda tensor: (
        not keys.isdisjoint(keys_of(tensor)) or any(map(places.meeting, ranges_of(tensor)))
    )


def _has_address(tensor: torch.Tensor) -> bool:
    try:
        tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # without memory of its own, as a sparse one
        return False
    return True


def _name(node: Node, what: torch.Tensor | Seen, results: Sequence[Any]) -> str:
    """What an argument is called, for people."""
    shape = tuple(what.shape or ())
    numbered = pytree.tree_unflatten(range(len(node.leaves)), node.spec)
    paths, _ = pytree.tree_flatten_with_path(numbered)
    for (path, _), leaf in zip(paths, node.leaves, strict=True):
        value = results[leaf.node] if isinstance(leaf, Result) else leaf
        memory = [*memory_in(value)]
        if isinstance(what, torch.Tensor):
            there = any(part is what for part in memory)
        else:
            there = any(part.meets(what.lies) for part in ranges_of(memory))
        if there:
            kind = "args" if pytree.keystr(path[:1]) == "[0]" else "kwargs"
            return f"{kind}{pytree.keystr(path[1:])}, a tensor of shape {shape}"
    return f"a tensor of shape {shape} that it reaches without being given it"
