"""Chance: the random numbers that traced code draws, so that each run draws as a call does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from autopar.effects.memory import default_generators, memory_key
from autopar.torch_private import FakeTensor, disable_current_modes, pytree

_SEEDS = (
    "it seeds torch's random numbers, or puts their state back, and a run only draws. Do it before "
    "the run, or give the operators a generator that only draws."
)
_MAKES = (
    "it draws from a generator that it makes, or that can't be found by its name: a call draws the "
    "same numbers again, and a run would go on. Make it before, and let the code use it; or draw "
    "the numbers before."
)


class Chance:
    """Generators that traced code draws from: those that were there, if it does nothing else.

    Tracing draws nothing. Each draw is made up for here, so that a generator which the code has
    seeded, or put back, is not as expected. Other threads draw from torch's own generators at the
    same time, so these stay as they are, and the code that is traced seeds others in their place.
    """

    def __init__(self, generators: Iterable[torch.Generator]) -> None:
        self._states: dict[object, tuple[torch.Generator, torch.Tensor]] = {}
        with disable_current_modes():
            self._first = [(generator, generator.get_state()) for generator in generators]
            self._apart = {own.device: (own, _copy(own)) for own in default_generators()}
            self._seed = torch.default_generator.initial_seed()
            for _, apart in self._apart.values():
                self._draw(apart)  # so it is never as the code may set it
            for generator, _ in self._first:
                self._draw(generator)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Let what this thread seeds be other generators than torch's own."""
        (cpu, *gpus) = self._apart.values()
        with contextlib.ExitStack() as back:
            back.enter_context(replaced(torch.random, "default_generator", _Apart(*cpu)))
            if gpus:  # else torch may put them there meanwhile
                mine = _GpusApart(own for own, _ in gpus)
                mine.thread, mine.apart = threading.get_ident(), [apart for _, apart in gpus]
                back.enter_context(replaced(torch.cuda, "default_generators", mine))
            yield

    def real(self, generator: torch.Generator) -> torch.Generator:
        """One of torch's own instead of what is in its place."""
        own, apart = self._apart.get(generator.device, (None, None))
        return own if own and memory_key(apart) == memory_key(generator) else generator

    def drawn(self, given: Any, result: Any) -> None:
        """Note that an operator has drawn: from what it was given, or where its results lie."""
        generators = [
            leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Generator)
        ]
        for generator in generators:
            own, apart = self._apart.get(generator.device, (generator, generator))
            self._note(apart if memory_key(generator) == memory_key(own) else generator)
        fakes = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, FakeTensor)]
        for device in {fake.device for fake in fakes} if not generators else ():
            if device in self._apart:
                self._note(self._apart[device][1])

    def end(self) -> None:
        """Refuse code that has seeded since it has drawn, and put all states back."""
        with disable_current_modes():
            if self._seed != torch.default_generator.initial_seed():
                raise ValueError(_SEEDS)
            for generator, state in self._states.values():
                _require_equal(generator, state)
            for generator, state in self._first:
                generator.set_state(state)

    def _note(self, generator: torch.Generator) -> None:
        if memory_key(generator) not in self._states:
            raise ValueError(_MAKES)
        with disable_current_modes():
            _require_equal(*self._states[memory_key(generator)])
            self._draw(generator)

    def _draw(self, generator: torch.Generator) -> None:
        if generator.device.type == "cpu":
            torch.rand(1, generator=generator, device="cpu")
        else:  # as drawing would move it on, without a kernel
            generator.set_offset(generator.get_offset() + 4)
        self._states[memory_key(generator)] = generator, generator.get_state()


class _Apart:
    """Torch's own generator, and for one thread another one, as torch's functions ask for it."""

    def __init__(self, own: torch.Generator, apart: torch.Generator) -> None:
        self._own, self._apart, self._thread = own, apart, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._apart if threading.get_ident() == self._thread else self._own, name)


class _GpusApart(tuple[torch.Generator, ...]):
    """The same of GPUs, by their numbers; to go over them is to see torch's own."""

    thread: int
    apart: list[torch.Generator]

    def __getitem__(self, number: Any) -> Any:
        mine = threading.get_ident() == self.thread
        return self.apart[number] if mine else super().__getitem__(number)


@contextlib.contextmanager
def replaced(home: Any, name: str, value: object) -> Iterator[None]:
    """Let a module or a class have something else by a name for a while."""
    before = getattr(home, name)
    setattr(home, name, value)
    try:
        yield
    finally:
        setattr(home, name, before)


def _copy(generator: torch.Generator) -> torch.Generator:
    copy = torch.Generator(generator.device)
    copy.set_state(generator.get_state())
    return copy


def _require_equal(generator: torch.Generator, state: torch.Tensor) -> None:
    if not torch.equal(generator.get_state(), state):
        raise ValueError(_SEEDS)
