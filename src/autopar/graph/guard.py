"""Guard: whether tasks change what they did not say, by the version counters of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from autopar.effects.access import ByteRange, Places
from autopar.effects.memory import is_whole, keys_of, memory_in, ranges_of
from autopar.graph.hazards import Hazards, result_of
from autopar.graph.node import Node, Result
from autopar.torch_private import pytree

Watched = tuple[tuple[torch.Tensor, ...], tuple[int, ...]]
version_of = operator.attrgetter("_version")
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
        # What each is given, or its function holds, but for others' results.
        self._tensors = [_tensors_of(hazards.reads[node.number]) for node in nodes]
        distinct = {id(tensor): tensor for tensors in self._tensors for tensor in tensors}
        # Of these a version counter is theirs alone.
        self._counted = {
            number
            for number, tensor in distinct.items()
            if is_whole(tensor) and not tensor.is_inference()
        }
        self.watched = [
            None if node.complete or node.number in hazards.unknown else self._watched(node)
            for node in nodes
        ]
        lasting = distinct.values() if hazards.writers() else ()
        self._lasting = [tensor for tensor in lasting if _has_address(tensor)]
        self._addresses = [*map(torch.Tensor.data_ptr, self._lasting)]

    def is_stale(self) -> bool:
        """Whether tensors lie elsewhere than when this was made."""
        return self._addresses != [*map(torch.Tensor.data_ptr, self._lasting)]

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
        self, node: Node, what: torch.Tensor, results: Sequence[Any], beside: list[int]
    ) -> str:
        names = " or ".join(repr(other.name) for other in (node, *(self.nodes[n] for n in beside)))
        at_once = ", which ran at once," if beside else ""
        return (
            f"task {names}{at_once} changed {_name(node, what, results)}, and did not say so; "
            f"expected it in `writes`. Add it, or leave `writes` out, which keeps the order."
        )

    def _watched(self, node: Node) -> Watched | None:
        writes = self.hazards.writes[node.number]
        is_said = _sharing(writes)
        counted = [
            tensor
            for tensor in self._tensors[node.number]
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


def _name(node: Node, what: torch.Tensor, results: Sequence[Any]) -> str:
    """What an argument is called, for people."""
    shape = tuple(what.shape)
    numbered = pytree.tree_unflatten(range(len(node.leaves)), node.spec)
    paths, _ = pytree.tree_flatten_with_path(numbered)
    for (path, _), leaf in zip(paths, node.leaves, strict=True):
        value = results[leaf.node] if isinstance(leaf, Result) else leaf
        if any(part is what for part in memory_in(value)):
            kind = "args" if pytree.keystr(path[:1]) == "[0]" else "kwargs"
            return f"{kind}{pytree.keystr(path[1:])}, a tensor of shape {shape}"
    return f"a tensor of shape {shape} that its function holds"
