"""Guard: whether tasks change what they did not say, by the version counters of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from autopar.effects.memory import is_whole, memory_in, memory_key
from autopar.graph.hazards import Hazards
from autopar.graph.node import Node, Result
from autopar.torch_private import pytree


class Guard:
    """Compares what the tasks of a plan do with what they have said.

    Of parts of larger tensors nothing is known, as others may write beside them and one counter
    is for all; nor of inference tensors, which have none.
    """

    def __init__(self, nodes: Sequence[Node], hazards: Hazards) -> None:
        self.hazards = hazards
        # By node, what it must not change; nothing where torch answers for it, or nobody does.
        self.watched: list[list[Any]] = [
            self._watched(node.number) if hazards.told[node.number].said else [] for node in nodes
        ]

    def call(self, node: Node, results: Sequence[Any]) -> Any:
        """Run a task in the calling thread, and hold it to what it has said that it writes."""
        counted = []
        for value in self.watched[node.number]:
            parts = memory_in(results[value.node]) if isinstance(value, Result) else [value]
            counted += [(part, part._version) for part in parts if part is value or _counts(part)]
        value = node.call(results)
        for tensor, version in counted:
            if tensor._version != version and not self._is_said(node, tensor, results):
                msg = (
                    f"task {node.name!r}, or one that ran at once, changed "
                    f"{_name(node, tensor, results)}, and did not say so; expected it in `writes`. "
                    f"Add it, or leave `writes` out, which keeps the order."
                )
                raise RuntimeError(msg)
        return value

    def _watched(self, number: int) -> list[Any]:
        said = {*map(_key, self.hazards.writes[number])}
        used = [value for value in self.hazards.used[number] if _key(value) not in said]
        return [value for value in used if isinstance(value, Result) or _counts(value)]

    def _is_said(self, node: Node, tensor: torch.Tensor, results: Sequence[Any]) -> bool:
        """Whether it shares its memory with something that the task writes, as a view does."""
        said = self.hazards.filled(self.hazards.writes[node.number], results)
        return memory_key(tensor) in map(memory_key, said)


def _key(value: Any) -> object:
    return value if isinstance(value, Result) else memory_key(value)


def _counts(value: Any) -> bool:
    """Whether it is a tensor whose version counter tells of its own changes alone."""
    if not isinstance(value, torch.Tensor) or is_lazy(value) or value.is_inference():
        return False
    return is_whole(value)


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
