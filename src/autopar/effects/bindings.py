"""Bindings: what Python's own objects hold, so that it can be seen what a task binds anew.

Attributes, variables and items of dicts are bindings. A list, a deque or a set is one as a whole.
"""

from __future__ import annotations

import gc
import operator
from collections import deque
from collections.abc import Collection, Iterator, Set
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch

from autopar.effects.loads import ABSENT, is_library
from autopar.effects.objects import dict_of, in_slots, is_own, mro, namespace, slots_of
from autopar.effects.reach import BY_ANY_NAME, Reach

Binding = tuple[int, Any]  # the number of what holds it, and its name there
Names = Set[Any] | None  # all of them, if none are named
_NONE: Names = frozenset()

IN_CELL = "cell_contents"  # the name of what a variable of a closure holds
_WHOLE = ""  # the name of what is one binding
_TO_CLASSES = {"type", "__class__", *BY_ANY_NAME}  # names by which code comes to an object's
_LISTS = (list, deque, set)
_NUMBERS = (bool, int, float, complex, str, bytes)  # equal ones are the same


class Came(NamedTuple):
    """The bindings that a call can come to, and what else it leads to."""

    names: dict[int, Names]  # of the bindings of each holder, by its number
    stored: set[Binding]  # those that its code binds anew, as far as the names there tell
    reach: Reach


class Bindings:
    """The bindings that some calls can come to, watched while one call after another is made."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, Names, Any]] = {}  # holders, names, and what was there

    def add(self, reach: Reach) -> Came:
        """Watch the bindings that a call can come to."""
        came = Came({}, set(), reach)
        values = [*reach.seen.values()]
        kinds = {*map(type, values), *(value for value in values if isinstance(value, type))}
        bases = {base for kind in kinds for base in mro(kind) if is_own(base)}
        stores: dict[str, set[str]] = {"attribute": set(), "global": set(), "variable": set()}
        for of, name in reach.stores:
            stores[of].add(name)
        for value in (*values, *bases):
            for holder, names in _holders(value, reach.names):
                number = id(holder)
                came.names[number] = _either(came.names.get(number, _NONE), names)
                _, watched, _ = self._held.get(number, (holder, _NONE, None))
                both = _either(watched, names)
                if number not in self._held or both is not watched:
                    self._held[number] = holder, both, content(holder, both)
        if reach.stores or reach.stands_in:
            comes_to_classes = not reach.names.isdisjoint(_TO_CLASSES) or classmethod in kinds
            for value in (*values, *(bases if comes_to_classes else ())):
                came.stored.update(_stored(value, stores, reach.stands_in))
        return came

    def holder(self, number: int) -> Any:
        """What a binding is of, by its number; nothing for the globals of libraries."""
        return self._held[number][0] if number in self._held else None

    def changed(self) -> Iterator[Binding]:
        """Bindings that hold something else than when this was asked before."""
        for number, (holder, names, old) in self._held.items():
            now = content(holder, names)
            keys_stay = _are_same(old, now)
            if keys_stay and (not isinstance(old, dict) or _are_same(old.values(), now.values())):
                continue
            self._held[number] = holder, names, now
            moved: list[Any] = []
            if isinstance(old, dict):
                moved = [name for name in {**old, **now} if not _is_same(old, now, name)]
            if not isinstance(old, dict) or (names is None and not moved):  # in another order
                moved = [_WHOLE]
            for name in moved:
                yield number, name


def _holders(value: Any, names: Set[str]) -> Iterator[tuple[Any, Names]]:
    """What holds an object's bindings, with those of their names that code has, if not all."""
    kind: Any = type(value)
    named = names if names.isdisjoint(BY_ANY_NAME) else None
    if kind is FunctionType:
        yield from ((cell, None) for cell in value.__closure__ or ())
        yield value.__dict__, named
        if not is_library(str(dict.get(value.__globals__, "__name__"))):
            yield value.__globals__, names
    elif issubclass(kind, type):
        yield value, named
    else:
        if issubclass(kind, (dict, *_LISTS)):
            yield value, None
        if not is_own(kind) and kind not in (SimpleNamespace, ModuleType):
            named = None  # libraries' code may use others
        if (attributes := dict_of(value)) is not None:
            yield attributes, named
        if slots := slots_of(kind).keys():
            yield value, {*slots} if named is None else slots & named


def _stored(value: Any, stores: dict[str, set[str]], stands_in: bool) -> Iterator[Binding]:
    """The bindings of an object that code binds anew, as far as its names tell."""
    kind: Any = type(value)
    attributes = stores["attribute"]
    if kind is FunctionType:
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((id(cell), IN_CELL) for name, cell in cells if name in stores["variable"])
        yield from ((id(value.__globals__), name) for name in stores["global"])
        yield from ((id(value.__dict__), name) for name in attributes & value.__dict__.keys())
    elif issubclass(kind, type):  # others are set on its objects
        yield from ((id(value), name) for name in attributes & namespace(value).keys())
    else:
        yield from ((id(value), name) for name in attributes & slots_of(kind).keys())
        if (attributes_of := dict_of(value)) is not None:
            yield from ((id(attributes_of), name) for name in attributes)
            if stands_in and issubclass(kind, torch.nn.Module):
                for held in (attributes_of.get("_parameters"), attributes_of.get("_buffers")):
                    yield from ((id(held), name) for name in held or ())


def content(holder: Any, names: Collection[Any] | None) -> Any:
    """What a holder holds: by name, or in order; none of its own code runs for it."""
    kind = type(holder)
    if kind is CellType:  # it may be empty still
        return dict.fromkeys([IN_CELL], *there) if (there := gc.get_referents(holder)) else {}
    for base in _LISTS:
        if issubclass(kind, base):
            return (*base.__iter__(holder),)
    if issubclass(kind, dict) and (names is None or len(holder) < len(names)):
        held = dict.copy(holder)
        return held if names is None else {name: held[name] for name in held if name in names}
    if issubclass(kind, (dict, type)):
        content = holder if issubclass(kind, dict) else namespace(holder)
        return {
            name: content[name] for name in (content if names is None else names) if name in content
        }
    return in_slots(holder, names or ())


def bind(holder: Any, name: str, value: Any) -> None:
    """Let a holder hold something by a name, or nothing."""
    if value is ABSENT:
        holder.pop(name) if isinstance(holder, dict) else delattr(holder, name)
    elif isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


def _either(one: Names, other: Names) -> Names:
    if one is None or other is None:
        return None
    return one if one >= other else other if other >= one else one | other


def _are_same(old: Collection[Any], now: Collection[Any]) -> bool:
    return len(old) == len(now) and all(map(operator.is_, old, now))


def _is_same(old: dict[Any, Any], now: dict[Any, Any], name: Any) -> bool:
    if name not in old or name not in now:
        return False
    one, other = old[name], now[name]
    return one is other or (type(one) is type(other) and type(one) in _NUMBERS and one == other)
