"""Guard: whether tasks change what they did not say, by version counters and by observation.

every run          the version counters of what a task can reach are compared after it
where none tells   the task's operators are observed, the first time that it runs
a run in order     all tasks are observed once, and what they did not say is added
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from autopar.effects.access import ByteRange, Places
from autopar.effects.memory import is_whole, keys_of, memory_key, ranges_of
from autopar.effects.observer import Ground, Observer, Seen
from autopar.effects.reach import memory_in
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
        watched: By node, tensors and nodes' results that it must not change; none where it can
            write nothing but what it says, or nothing at all.
    """

    def __init__(self, nodes: Sequence[Node], hazards: Hazards) -> None:
        self.nodes = nodes
        self.hazards = hazards
        self.tensors = [_tensors_of(node) for node in nodes]
        distinct = {id(tensor): tensor for tensors in self.tensors for tensor in tensors}
        # Of these a version counter is theirs alone.
        self._counted = {
            number
            for number, tensor in distinct.items()
            if is_whole(tensor) and not tensor.is_inference()
        }
        self._uncounted: set[int] = set()  # tasks that may change what no counter tells
        self.watched = [None if node.complete else self._watched(node) for node in nodes]
        self._additions = hazards.additions
        lasting = distinct.values() if hazards.writers() else ()
        self._lasting = [tensor for tensor in lasting if _has_address(tensor)]
        self._addresses = [*map(torch.Tensor.data_ptr, self._lasting)]

    def is_stale(self) -> bool:
        """Whether tensors lie elsewhere, or more is known, than when this was made."""
        addresses = [*map(torch.Tensor.data_ptr, self._lasting)]
        return self._additions != self.hazards.additions or addresses != self._addresses

    def doubts(self, node: Node, results: Sequence[Any], inference: bool) -> bool:
        """Whether a task has to be observed, as version counters can't tell what it changes."""
        return node.number in self._uncounted or any(
            inference or part._is_view()
            for part in memory_in(*node.given(results))
            if isinstance(part, torch.Tensor)
        )

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

    def observed(self, node: Node, results: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Run a task, and refuse what it does without having said so."""
        ground = self.ground()
        for part in memory_in(list(results)):
            ground.add(part)
        value, seen = self.seen(node, results, ground, call)
        for access in self.unsaid(node, seen.outside(), results, ground):
            if access.key not in ground:
                continue  # random numbers, and memory that is nobody else's
            if access.written:
                raise RuntimeError(self._untold(node, access, results, []))
            for writer in self.hazards.writers():
                values = self.values(self.hazards.writes[writer], results)
                written = [lies for value in values for lies in ranges_of(value)]
                if writer != node.number and any(map(access.lies.meets, written)):
                    msg = (
                        f"task {node.name!r} reads a tensor of shape {access.shape} that it was "
                        f"not given, and task {self.nodes[writer].name!r} writes it; expected an "
                        f"argument. Pass it, or let graph.check() find what tasks read."
                    )
                    raise RuntimeError(msg)
        return value

    def ground(self) -> Ground:
        """What the tasks are given and reach, but for others' results."""
        return Ground(memory_in([(node.leaves, node.reached) for node in self.nodes]))

    def seen(
        self, node: Node, results: Sequence[Any], ground: Ground, call: Callable[[], Any]
    ) -> tuple[Any, Observer]:
        """Run a task, observe its operators, and refuse that it gives a tensor other memory."""
        given = filter(torch.is_tensor, memory_in(*node.given(results)))
        tensors = [*self.tensors[node.number], *given]
        before = [*map(memory_key, tensors)]
        with Observer(ground) as seen:
            value = call()
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
        said = {id(value) for value in writes}
        others = [tensor for tensor in self.tensors[node.number] if id(tensor) not in said]
        counted = [
            tensor for tensor in others if id(tensor) in self._counted and not is_said(tensor)
        ]
        given = {leaf.node for leaf in node.leaves if isinstance(leaf, Result)}
        given.difference_update(map(result_of, writes))
        if node.uncounted or len(counted) < len(others):
            self._uncounted.add(node.number)
        elif not (counted or given):
            return None
        return tuple(counted), tuple(sorted(given))


def counted_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors in some results, but for inference tensors, which don't count their changes."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if issubclass(type(value), torch.Tensor):
            tensors.append(value)
        elif type(value) not in _NUMBERS:
            tensors += filter(torch.is_tensor, memory_in(value))
    return [tensor for tensor in tensors if not tensor.is_inference()]


def _tensors_of(node: Node) -> list[torch.Tensor]:
    values = (*node.leaves, *node.reached)
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
