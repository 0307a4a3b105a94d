"""Chance: the random numbers that traced code draws, with which it may do nothing else."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

import torch

from autopar.effects.memory import default_generators, tensors_of
from autopar.graph.refused import Refused
from autopar.torch_private import disable_current_modes, pytree

_SEEDS = (
    "it seeds torch's random numbers, or puts their state back, as a checkpoint does, and a run "
    "only draws; or another thread draws meanwhile. Do it before the run."
)
_GIVEN = (
    "it draws from a generator that it gives to an operator, and a run draws from torch's default "
    "ones alone. Leave the generator out; or draw the numbers before."
)
_OTHERS = (
    "it draws from Python's or NumPy's random numbers, and a run only repeats operators. Draw "
    "them by torch, or before."
)


class Chance:
    """Torch's default generators, in states that nobody expects.

    Tracing draws nothing. Each draw is made up for here, so that a generator which the code has
    seeded, or put back, is not as expected.
    """

    def __init__(self) -> None:
        self._before = [(generator, generator.get_state()) for generator in default_generators()]
        self._expected: dict[torch.device, torch.Tensor] = {}
        self._others = _others()
        for generator, _ in self._before:
            self._draw(generator)

    def drawn(self, arguments: Any, result: Any) -> None:
        """Note that an operator has drawn where its results lie."""
        if any(isinstance(leaf, torch.Generator) for leaf in pytree.tree_leaves(arguments)):
            raise Refused(_GIVEN)
        devices = {tensor.device for tensor in tensors_of(result)}
        with disable_current_modes():
            for generator, _ in self._before:
                if generator.device in devices:
                    self._require_expected(generator)
                    self._draw(generator)

    def require_only_drawn(self) -> None:
        """Refuse code that has done more than draw, or has drawn others' random numbers."""
        with disable_current_modes():
            for generator, _ in self._before:
                self._require_expected(generator)
        if _others() != self._others:
            raise Refused(_OTHERS)

    def restore(self) -> None:
        """Put all states back."""
        for generator, state in self._before:
            generator.set_state(state)
        python, numpys = pickle.loads(self._others)
        random.setstate(python)
        if numpys:
            sys.modules["numpy"].random.set_state(numpys)

    def _require_expected(self, generator: torch.Generator) -> None:
        if not generator.get_state().equal(self._expected[generator.device]):
            raise Refused(_SEEDS)

    def _draw(self, generator: torch.Generator) -> None:
        if generator.device.type == "cpu":
            torch.rand(1, generator=generator, device="cpu")
        else:  # as drawing would move it on, without a kernel
            generator.set_offset(generator.get_offset() + 4)
        self._expected[generator.device] = generator.get_state()


def _others() -> bytes:
    """The states of Python's and NumPy's own random numbers."""
    numpy = sys.modules.get("numpy")
    return pickle.dumps((random.getstate(), numpy and numpy.random.get_state()))
