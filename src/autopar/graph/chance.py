"""Chance: the generators that traced code draws from, and may do nothing else with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from autopar.effects.memory import default_generators, memory_key, tensors_of
from autopar.graph.refused import Refused
from autopar.torch_private import TRACES_GENERATORS, disable_current_modes, pytree

_SEEDS = (
    "it seeds torch's random numbers, or puts their state back, as a checkpoint does, and a run "
    "only draws; or another thread draws meanwhile. Do it before the run, or give the operators a "
    "generator that only draws."
)
_MAKES = (
    "it draws from a generator that it makes, or that can't be found by its name: a call draws the "
    "same numbers again, and a run would go on. Make it before, and let the code use it; or draw "
    "the numbers before."
)
_GIVEN = (
    f"torch {torch.__version__} traces no operator that is given a generator. Let it draw from the "
    f"default one, or install torch 2.13."
)


class Chance:
    """Torch's own generators, and others that the code can reach, in states that nobody expects.

    As tracing draws nothing, each draw is made up for: what the code has seeded is not as expected.
    """

    def __init__(self, generators: Iterable[torch.Generator]) -> None:
        reached = [*generators, *default_generators()]
        self._before = [(generator, generator.get_state()) for generator in reached]
        self._expected: dict[object, torch.Tensor] = {}
        for generator in {memory_key(one): one for one in reached}.values():
            self._draw(generator)

    def given(self, arguments: Any) -> list[torch.Generator]:
        """The generators that an operator is given, where torch has a place for them in a graph."""
        leaves = pytree.tree_leaves(arguments)
        generators = [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]
        if generators and not TRACES_GENERATORS:
            raise Refused(_GIVEN)
        return generators

    def drawn(self, generators: list[torch.Generator], result: Any) -> None:
        """Note that an operator has drawn: from what it was given, or where its results lie."""
        devices = {tensor.device for tensor in tensors_of(result)}
        defaults = [one for one in default_generators() if one.device in devices]
        with disable_current_modes():
            for generator in generators or defaults:
                self._require_expected(generator)
                self._draw(generator)

    def require_only_drawn(self) -> None:
        """Refuse code that has done more than draw."""
        with disable_current_modes():
            for generator, _ in self._before:
                self._require_expected(generator)

    def restore(self) -> None:
        """Put all states back."""
        for generator, state in self._before:
            generator.set_state(state)

    def _require_expected(self, generator: torch.Generator) -> None:
        if memory_key(generator) not in self._expected:
            raise Refused(_MAKES)
        if not generator.get_state().equal(self._expected[memory_key(generator)]):
            raise Refused(_SEEDS)

    def _draw(self, generator: torch.Generator) -> None:
        if generator.device.type == "cpu":
            torch.rand(1, generator=generator, device="cpu")
        else:  # as drawing would move it on, without a kernel
            generator.set_offset(generator.get_offset() + 4)
        self._expected[memory_key(generator)] = generator.get_state()
