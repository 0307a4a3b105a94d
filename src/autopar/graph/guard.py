"""Guard: whether tasks change what they did not say, by the version counters of tensors."""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from autopar.effects.access import ANYWHERE, ByteRange, Places
from autopar.effects.memory import is_whole, keys_of, memory_in, memory_key, ranges_of
from autopar.graph.hazards import Hazards, held_in, is_tracked
from autopar.graph.node import Node, Result
from autopar.torch_private import pytree

Watched = tuple[tuple[torch.Tensor, ...], tuple[int, ...]]
_version_of = operator.attrgetter("_version")
_NUMBERS = {type(None), bool, int, float, str}


class Guard:
    """Compares what the tasks of a plan do with what they have said.

    Attributes:
        watched: By node, tensors and nodes' results that it must not change; none where it writes
            nothing but what it says, or keeps the order of the program.
    """

    def __init__(self, nodes: Sequence[Node], hazards: Hazards) -> None:
        self.nodes = nodes
        self.hazards = hazards
        # What each is given, or its function holds, or it writes, but for others' results.
        self._tensors = [
            _tensors_of([*used, *writes])
            for used, writes in zip(hazards.used, hazards.writes, strict=True)
        ]
        self._distinct = _tensors_of(itertools.chain(*self._tensors))
        self._places = {id(tensor): _place(tensor) for tensor in self._distinct}
        self._ranges = {id(tensor): [*ranges_of(tensor)] for tensor in self._distinct}
        self._is_tracked = hazards.whole
        written = _tensors_of(itertools.chain(*hazards.writes))
        memories = collections.Counter(map(memory_key, written))
        self._parts = [tensor for tensor in written if memories[memory_key(tensor)] > 1]
        self._has_writers = bool(hazards.writers())
        # Those whose functions may hold other tensors later.
        self._holding = [
            number for number, told in enumerate(hazards.told) if told.holders and not told.unknown
        ]
        first = min(hazards.unknown, default=len(nodes)) if self._has_writers else len(nodes)
        self._after_unknown = {*range(first, len(nodes))} - hazards.unknown
        self.watched = [
            None if node.number in hazards.unknown else self._watched(node) for node in nodes
        ]

    def is_stale(self, *, tracks: bool) -> bool:
        """Whether tensors lie elsewhere than when this was made, or nodes hold others.

        Args:
            tracks: Whether autograd is on.
        """
        if not self._has_writers:
            return False
        found: dict[int, list[Any]] = {}
        return (
            self._is_tracked != (tracks and any(map(is_tracked, self._distinct)))
            or any(self._places[id(tensor)] != _place(tensor) for tensor in self._distinct)
            or any(self._new_to(number, found) for number in self._holding)
        )

    def call(self, node: Node, results: Sequence[Any], beside: Callable[[], Iterable[int]]) -> Any:
        """Run a task in the calling thread, and hold it to what it has said that it writes.

        `beside` tells which may be under way.
        """
        watched = self.watched[node.number]
        if watched is None:
            return node.call(results)
        self._require_as_planned(node, results)
        tensors, given = watched
        if given:
            tensors = (*tensors, *_counted_in(results[other] for other in given))
        versions = [*map(_version_of, tensors)]
        value = node.call(results)
        if [*map(_version_of, tensors)] != versions:
            pairs = zip(tensors, versions, strict=True)
            moved = [tensor for tensor, version in pairs if tensor._version != version]
            self._compare(node, moved, results, beside())
        return value

    def _require_as_planned(self, node: Node, results: Sequence[Any]) -> None:
        """Refuse to run a task that uses what others write, and did not when the plan was made.

        So it may be after a task of which nobody knows what it does.
        """
        if node.number not in self._after_unknown:
            return
        planned = self._tensors[node.number]
        moved = [tensor for tensor in planned if self._places[id(tensor)] != _place(tensor)]
        values = [leaf for leaf in node.leaves if isinstance(leaf, Result)]
        containers = [results[value.node] for value in values]
        inside = [value for value in containers if not issubclass(type(value), torch.Tensor)]
        unplanned = [*moved, *self._new_to(node.number, {}), *_tensors_of(memory_in(*inside))]
        was = [lies for other in planned for lies in self._ranges[id(other)]]
        was += itertools.chain(*map(self.hazards.memory_of, values))
        if not unplanned or ANYWHERE in was:
            return
        for other in self._others(node.number):
            theirs = self._ranges[id(other)]
            for tensor in () if _meet(was, theirs) else unplanned:
                if _meet([*ranges_of(tensor)], [*theirs, *ranges_of(other)]):
                    raise RuntimeError(self._unplanned(node, tensor))

    def _others(self, number: int) -> list[torch.Tensor]:
        """What other nodes write, and what they use, if this one writes."""
        hazards = self.hazards
        reached = hazards.used if hazards.writes[number] else []
        return _tensors_of(
            value
            for values in (hazards.writes, reached)
            for other, uses in enumerate(values)
            if other != number and other not in hazards.unknown
            for value in uses
        )

    def require_untracked(self) -> None:
        """Refuse the end of a run in which autograd came to parts of a tensor that are written."""
        for tensor in self._parts:
            if tensor.requires_grad and not self._is_tracked:
                msg = (
                    f"tasks wrote parts of one tensor at once, one of shape {tuple(tensor.shape)}, "
                    f"and autograd came to track it, which has one history for all of them; "
                    f"expected to see what requires gradients beforehand. Give it to a task as an "
                    f"argument, or run the tasks under torch.no_grad()."
                )
                raise RuntimeError(msg)

    def _unplanned(self, node: Node, tensor: torch.Tensor) -> str:
        before = max(number for number in self.hazards.unknown if number < node.number)
        return (
            f"task {node.name!r} uses a tensor of shape {tuple(tensor.shape)} that others change, "
            f"and did not when the run was planned: a task before it, such as "
            f"{self.nodes[before].name!r}, gave it that tensor, or gave that other memory; "
            f"expected this between runs. Or let a function without `writes` call "
            f"{node.name!r}, which keeps the order."
        )

    def _compare(
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
                others = [number for number in beside if number != node.number]
                others = [number for number in others if self._watches(number, tensor, results)]
                raise RuntimeError(self._untold(node, tensor, results, others))

    def values(self, values: Iterable[Any], results: Sequence[Any]) -> Iterator[Any]:
        """Tensors and ranges of bytes, in place of values that stand for results, too."""
        for value in values:
            if isinstance(value, Result):
                yield from memory_in(results[value.node])
            else:
                yield value

    def _watches(self, number: int, tensor: torch.Tensor, results: Sequence[Any]) -> bool:
        tensors, given = self.watched[number] or ((), ())
        return _sharing([*tensors, *memory_in(*(results[other] for other in given))])(tensor)

    def _untold(
        self, node: Node, what: torch.Tensor, results: Sequence[Any], beside: list[int]
    ) -> str:
        names = " or ".join(repr(other.name) for other in (node, *(self.nodes[n] for n in beside)))
        at_once = ", which ran at once," if beside else ""
        return (
            f"task {names}{at_once} changed {_name(node, what, results)}, and did not say so; "
            f"expected it in `writes`. Add it, or leave `writes` out, which keeps the order."
        )

    def _watched(self, node: Node) -> Watched | None:
        counted, given = list[torch.Tensor](), set[int]()
        if not node.complete:
            writes = self.hazards.writes[node.number]
            is_said = _sharing(writes)
            counted = [
                tensor
                for tensor in self._tensors[node.number]  # whose version counter is theirs alone
                if is_whole(tensor) and not tensor.is_inference() and not is_said(tensor)
            ]
            given.update(leaf.node for leaf in node.leaves if isinstance(leaf, Result))
            given.difference_update(value.node for value in writes if isinstance(value, Result))
        if not (counted or given or node.number in self._after_unknown):
            return None
        return tuple(counted), tuple(sorted(given))

    def _new_to(self, number: int, found: dict[int, list[Any]]) -> list[torch.Tensor]:
        """What a node's function holds now, and did not when the plan was made; see `held_in`."""
        holders = self.hazards.told[number].holders
        if not holders:
            return []
        planned = {*map(id, self._tensors[number])}
        held = _tensors_of(itertools.chain(*(held_in(one, found) for one in holders)))
        return [tensor for tensor in held if id(tensor) not in planned]


def _counted_in(values: Iterable[Any]) -> list[torch.Tensor]:
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
    return [tensor for tensor in tensors.values() if not is_lazy(tensor)]


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


def _meet(ranges: Iterable[ByteRange], others: Sequence[ByteRange]) -> bool:
    return any(lies.meets(other) for lies in ranges for other in others)


def _place(tensor: torch.Tensor) -> object:
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride()
    except (
        RuntimeError,
        NotImplementedError,
        ValueError,
    ):  # without memory of its own, as a sparse one
        return id(tensor)


def _name(node: Node, what: torch.Tensor, results: Sequence[Any]) -> str:
    """What an argument is called, for people."""
    shape = tuple(what.shape)
    given = pytree.tree_unflatten(node.leaves, node.spec)
    paths, _ = pytree.tree_flatten_with_path(given, is_leaf=lambda value: type(value) is Result)
    for path, leaf in paths:
        value = results[leaf.node] if isinstance(leaf, Result) else leaf
        if any(part is what for part in memory_in(value)):
            kind = "args" if pytree.keystr(path[:1]) == "[0]" else "kwargs"
            return f"{kind}{pytree.keystr(path[1:])}, a tensor of shape {shape}"
    return f"a tensor of shape {shape} that its function holds"
