"""Versions: counters of changes, noted of what tasks must not change, and compared after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from autopar.effects.reach import memory_in

Versions = tuple[tuple[torch.Tensor, int], ...]
_NUMBERS = {type(None), bool, int, float, str}


class Comparison(NamedTuple):
    """What is compared after a task.

    Args:
        watched: Tensors that it must not change, each with its place among the noted versions.
        given: Nodes whose results it must not change.
        renewed: What it may change, as it says, by place, and results, by node: noted anew.
        kept: Whether the versions of its own result are noted.
        short: Whether there are only tensors that it must not change.
    """

    watched: tuple[tuple[torch.Tensor, int], ...]
    given: tuple[int, ...]
    renewed: tuple[tuple[int, ...], tuple[int, ...]] | None
    kept: bool
    short: bool


class Noted:
    """Version counters as they were when nobody was to change them any more, in one run.

    Args:
        tensors: Those that are no results of tasks.
        count: How many tasks there are.
    """

    __slots__ = ("results", "tensors", "versions")

    def __init__(self, tensors: Sequence[torch.Tensor], count: int) -> None:
        self.tensors = tensors
        self.versions = [each._version for each in tensors]
        self.results: list[Versions] = [()] * count

    def renew(self, places: Iterable[int], nodes: Iterable[int]) -> None:
        """Note some anew."""
        for place in places:
            self.versions[place] = self.tensors[place]._version
        for number in nodes:
            self.results[number] = versions_of([tensor for tensor, _ in self.results[number]])

    def moved(self, comparison: Comparison) -> list[torch.Tensor]:
        """Which of those that a task must not change have changed."""
        pairs = [(tensor, self.versions[place]) for tensor, place in comparison.watched]
        pairs += [pair for number in comparison.given for pair in self.results[number]]
        return [tensor for tensor, version in pairs if tensor._version != version]


def versions_of(value: Any) -> Versions:
    """The version counters of the tensors in a result; inference tensors have none."""
    if type(value) in _NUMBERS:
        return ()
    memory = (value,) if isinstance(value, torch.Tensor) else memory_in(value)
    tensors = [part for part in memory if isinstance(part, torch.Tensor)]
    return tuple((tensor, tensor._version) for tensor in tensors if not tensor.is_inference())
