"""Reach: what a call can use without being given it, through closures, objects and globals."""

from __future__ import annotations

import gc
import math
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from autopar.effects.kinds import Notes, held, look_at
from autopar.effects.memory import MEMORY

_MOST = 200_000  # things to look at: who reaches more, reaches a whole program
# Names in code that may use attributes by names that it does not have.
BY_ANY_NAME = {"getattr", "setattr", "vars", "__dict__", "__getattribute__"}
BY_ANY_NAME |= {"attrgetter", "methodcaller"}


class Reach(Notes):
    """What some values lead to, and the names that the code among them loads.

    Values lead to all that they hold. With `code`, a function leads to its closure, its defaults
    and the globals that it loads, too, and an object of the program's to those of its attributes,
    and of its class's, that the code names. Globals that libraries' own code loads are left out.
    Who reaches more than `most` values is not understood.
    """

    def __init__(self, *values: Any, code: bool = False, most: float = _MOST) -> None:
        super().__init__(code)
        self.seen: dict[int, Any] = {}  # by id, and kept, as ids are used again
        self._follow(values, most)
        count = 0
        while count < len(self.seen) <= most:  # each name may lead to code with more names
            count = len(self.seen)
            self._follow(self._named(), most)
        if "seed" in self.names:
            self.states += _generators()

    def _follow(self, left: Iterable[Any], most: float) -> None:
        seen = self.seen
        while left:
            holders: list[Any] = []
            more: list[Any] = []
            for value in left:
                look = look_at(type(value))  # type: ignore[arg-type]
                if look is None or id(value) in seen:
                    continue
                seen[id(value)] = value
                if look is held:
                    holders.append(value)
                else:
                    more += look(self, value)
            if len(seen) > most:
                self.whole = False
                return
            left = [*more, *gc.get_referents(*holders)]

    def _named(self) -> list[Any]:
        """What objects, classes and modules have by the names of the code."""
        values: list[Any] = []
        names, has_all = self.names, not self.names.isdisjoint(BY_ANY_NAME)
        for attributes, of_object in self.namespaces:
            if of_object and has_all:
                values += attributes.values()
            else:
                values += [attributes[name] for name in names & attributes.keys()]
        return values


def memory_in(*values: object) -> Iterator[Any]:
    """Tensors, arrays and storages in values: in containers, objects' attributes and closures.

    This is what a task hands on with its result, whatever the code names that uses it.
    """
    if len(values) == 1 and type(values[0]) is list:
        values = tuple(values[0])
    kinds: set[Any] = {*map(type, values)}
    if all(issubclass(kind, MEMORY) for kind in kinds):  # as most results are
        yield from values
    elif any(look_at(kind) is not None for kind in kinds):
        yield from Reach(*values, most=math.inf).memory


def _generators() -> Iterator[Any]:
    """Generators of random numbers that Python's and NumPy's functions share."""
    yield vars(random)["_inst"]
    if numpys := sys.modules.get("numpy.random.mtrand"):
        yield vars(numpys)["_rand"]
