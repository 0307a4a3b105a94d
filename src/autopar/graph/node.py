"""Node: one task of a graph, or the copy of a result to another device."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from autopar.effects.memory import MEMORY
from autopar.effects.reach import memory_in
from autopar.torch_private import pytree


class Result(NamedTuple):
    """Stands among a node's arguments for what another one returns."""

    node: int


@dataclass(frozen=True, eq=False)
class Node:
    """Something that a graph runs.

    Args:
        number: Counted in the order of the program.
        name: For people.
        fn: What to call; none for a copy of its only argument to `device`.
        leaves: The arguments, taken out of their containers; a `Result` for another's result.
        spec: The containers.
        device: Where it runs.
        resource: What it takes its turn on.
        after: Numbers of nodes that must have ended before, besides those it has results of.
        cost_s: Seconds that it takes, where somebody has said so.
        source: Where a copy comes from.
        reached: Tensors and arrays that it uses without being given them.
        complete: Whether it can write nothing but what it says, as torch's operators.
        uncounted: Whether it may write where no version counter moves.
        keywords: Names of the last arguments, if no argument is a container: then they need not be
            put together again each time.
    """

    number: int
    name: str
    fn: Callable[..., Any] | None
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    device: torch.device
    resource: str
    after: frozenset[int]
    cost_s: float | None = None
    source: torch.device | None = None
    keywords: tuple[str, ...] | None = None
    reached: tuple[Any, ...] = ()
    complete: bool = True
    uncounted: bool = False

    @property
    def before(self) -> frozenset[int]:
        """Numbers of all nodes that it must come after."""
        given = {leaf.node for leaf in self.leaves if isinstance(leaf, Result)}
        return self.after | given

    @property
    def gpus(self) -> list[torch.device]:
        """The GPUs that it uses, with the one first whose streams it runs on."""
        return [each for each in (self.source, self.device) if each and each.type == "cuda"]

    def call(self, results: list[Any], *, closely: bool = False) -> Any:
        """Run it in the calling thread, on its current streams, given all results so far.

        Raises:
            RuntimeError: It has changed a container that is made anew for each call, and is
                watched closely.
        """
        leaves = [results[leaf.node] if isinstance(leaf, Result) else leaf for leaf in self.leaves]
        if self.fn is None:
            return pytree.tree_map(self._copied, leaves[0])
        if self.keywords is None:
            args, kwargs = pytree.tree_unflatten(leaves, self.spec)
            value = self.fn(*args, **kwargs)
            if closely:
                self._require_as_before(leaves, (args, kwargs))
            return value
        args, kwargs = self._flat(leaves)
        return self.fn(*args, **kwargs)

    def at_once(self) -> Callable[[], Any] | None:
        """The call with all that it is given, if nothing of that is another's result."""
        if self.fn is None or self.keywords is None:
            return None
        if any(isinstance(leaf, Result) for leaf in self.leaves):
            return None
        args, kwargs = self._flat(self.leaves)
        return functools.partial(self.fn, *args, **kwargs)

    def _require_as_before(self, leaves: Sequence[Any], given: Any) -> None:
        if not _is_left_of(given, pytree.tree_unflatten(leaves, self.spec)):
            msg = (
                f"task {self.name!r} changes a list or a dict that it is given, and each run makes "
                f"new ones; expected containers that stay as they are. Use copy_ into a tensor "
                f"that is there, or return what it makes."
            )
            raise RuntimeError(msg)

    def _flat(self, leaves: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Arguments and keyword arguments, where no argument is a container."""
        assert self.keywords is not None
        count = len(leaves) - len(self.keywords)
        return leaves[:count], dict(zip(self.keywords, leaves[count:], strict=True))

    def _copied(self, value: Any) -> Any:
        for each in memory_in(value):
            if not isinstance(value, torch.Tensor) and each.device != self.device:
                msg = (
                    f"{self.name!r} is to copy a {type(value).__name__} with tensors on "
                    f"{each.device}; expected tensors in lists, tuples and values of dicts. Return "
                    f"them so, or register the class: torch.utils._pytree.register_pytree_node."
                )
                raise TypeError(msg)
        return self._copy(value) if isinstance(value, torch.Tensor) else value

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self.device:
            return tensor
        if self.device.type == "cpu":
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            return host.copy_(tensor, non_blocking=True)
        if tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def _is_left_of(now: Any, before: Any) -> bool:
    """Whether containers hold nothing but what others held, in its order, and all its memory."""
    if now is before:
        return True
    if type(now) is not type(before) or pytree.tree_is_leaf(now):
        return False
    if isinstance(now, dict):
        lost = [before[key] for key in before.keys() - now.keys()]
        same = all(key in before and _is_left_of(now[key], before[key]) for key in now)
    elif isinstance(now, (list, deque)):
        rest, lost = iter(before), list[Any]()
        same = all(_goes_on(rest, item, lost) for item in now)
        lost += rest
    else:
        items, others = _items(now), _items(before)
        lost, same = [], len(items) == len(others) and all(map(_is_left_of, items, others))
    return same and not any(isinstance(leaf, MEMORY) for leaf in pytree.tree_leaves(lost))


def _items(container: Any) -> list[Any]:
    """What a container of any registered kind holds, one level deep."""
    return pytree.tree_leaves(container, is_leaf=lambda item: item is not container)


def _goes_on(rest: Iterator[Any], item: Any, lost: list[Any]) -> bool:
    """Go on to an item of what is left of a list, and note what is lost before it."""
    for other in rest:
        if _is_left_of(item, other):
            return True
        lost.append(other)
    return False


def ancestors(nodes: Sequence[Node], number: int) -> set[int]:
    """Numbers of all nodes that one comes after, by way of others too."""
    left, found = [number], set[int]()
    while left:
        for before in nodes[left.pop()].before - found:
            found.add(before)
            left.append(before)
    return found


def resource_of(device: torch.device, source: torch.device | None = None) -> str:
    """What work on a device, or a copy to it from another, takes its turn on."""
    if source is None:
        return str(device)
    if device.type == "cpu":
        return f"{source} to host"
    if source.type == "cpu":
        return f"{device} from host"
    return f"{source} to {device}"


def host_of(node: Node) -> str | None:
    """The thread that issues a node; none where a CPU lane's own worker runs it.

    What copies from the host waits for memory to be pinned, so it has a thread of its own.
    """
    if node.source is not None:
        return str(node.source) if node.source.type == "cuda" else node.resource
    return node.resource if node.device.type == "cuda" else None
