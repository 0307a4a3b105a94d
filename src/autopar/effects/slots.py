"""Slots: what Python's own objects hold, so that it can be seen what a task binds anew.

An attribute, a variable or an item of a dict is a slot. A list, a deque or a set is one as a whole.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Set
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch

from autopar.effects.loads import is_library
from autopar.effects.reach import BY_ANY_NAME, Reach, is_own

Slot = tuple[int, Any]  # the number of what holds it, and its name there
Names = Set[Any] | None  # all of them, if none are named
_NONE: Names = frozenset()

_WHOLE = ""  # the name of what is one slot
_LISTS = (list, deque, set)
_NUMBERS = (bool, int, float, complex, str, bytes)  # equal ones are the same


class Came(NamedTuple):
    """The slots that a call can come to.

    Args:
        names: Those of each holder, by its number.
        stored: Those that its code binds anew, as far as the names there tell.
        reach: What it leads to.
    """

    names: dict[int, Names]
    stored: set[Slot]
    reach: Reach

    def among(self, slots: Mapping[int, Set[Any]]) -> Iterator[tuple[Slot, bool]]:
        """Those among some slots that tasks bind anew, and whether it may do so, too."""
        stores, by_any = self.reach.stores, not BY_ANY_NAME.isdisjoint(self.reach.names)
        named = {name for _, name in stores}
        for number in slots.keys() & self.names.keys():
            names = self.names[number]
            for name in slots[number] if names is None else slots[number] & names:
                yield (number, name), names is None or by_any or name in named


class Slots:
    """The slots that some calls can come to, watched while one call after another is made."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, Names, Any]] = {}

    def add(self, reach: Reach) -> Came:
        """Watch the slots that a call can come to."""
        came = Came({}, set(), reach)
        kinds = {type(each) for each in reach.seen.values()}
        kinds.update(each for each in reach.seen.values() if isinstance(each, type))
        bases = {base for kind in kinds for base in kind.__mro__ if is_own(base)}
        for each in (*reach.seen.values(), *bases):
            for holder, names in _holders(each, reach.names):
                number = id(holder)
                came.names[number] = _either(came.names.get(number, _NONE), names)
                _, known, _ = self._held.get(number, (holder, _NONE, None))
                if number not in self._held or _either(known, names) is not known:
                    both = _either(known, names)
                    self._held[number] = holder, both, _content(holder, both)
            if reach.stores or reach.stands_in:
                came.stored.update(_stored(each, reach))
        return came

    def changed(self) -> Iterator[tuple[Slot, Any]]:
        """Slots that hold something else than when this was asked before, with their holders."""
        for number, (holder, names, old) in self._held.items():
            now = _content(holder, names)
            keys_stay = _are_same(old, now)
            if keys_stay and (not isinstance(old, dict) or _are_same(old.values(), now.values())):
                continue
            self._held[number] = holder, names, now
            if isinstance(old, dict):
                both = {**old, **now}
                found = [each for each in both if names is None or each in names]
                moved = [each for each in found if not _is_same(old, now, each)]
                for name in moved or ([_WHOLE] if names is None else []):  # or in another order
                    yield (number, name), holder
            else:
                yield (number, _WHOLE), holder


def _holders(each: Any, names: Set[str]) -> Iterator[tuple[Any, Names]]:
    """What holds an object's slots, with those of their names that code has, if not all."""
    kind: Any = type(each)
    named = names if names.isdisjoint(BY_ANY_NAME) else None
    if kind is FunctionType:
        yield from ((cell, None) for cell in each.__closure__ or ())
        yield each.__dict__, named
        if not is_library(str(dict.get(each.__globals__, "__name__"))):
            yield each.__globals__, names
    elif issubclass(kind, type):
        yield each, named
    else:
        if issubclass(kind, (dict, *_LISTS)):
            yield each, None
        if not is_own(kind) and kind not in (SimpleNamespace, ModuleType):
            named = None  # libraries' code may use others
        if type(own := _attribute(each, "__dict__")) is dict:
            yield own, named
        if slots := _slots_of(kind):
            yield each, slots if named is None else slots & named


def _stored(each: Any, reach: Reach) -> Iterator[Slot]:
    """The slots of an object that code binds anew, as far as its names tell."""
    kind: Any = type(each)
    stores: dict[str, set[str]] = {"attribute": set(), "global": set(), "variable": set()}
    for of, name in reach.stores:
        stores[of].add(name)
    attributes = stores["attribute"]
    if kind is FunctionType:
        cells = zip(each.__code__.co_freevars, each.__closure__ or (), strict=True)
        yield from ((id(cell), _WHOLE) for name, cell in cells if name in stores["variable"])
        yield from ((id(each.__globals__), name) for name in stores["global"])
        yield from ((id(each.__dict__), name) for name in attributes & each.__dict__.keys())
    elif issubclass(kind, type):  # others are set on its objects
        yield from ((id(each), name) for name in attributes & vars(each).keys())
    else:
        yield from ((id(each), name) for name in attributes & _slots_of(kind))
        if type(own := _attribute(each, "__dict__")) is dict:
            yield from ((id(own), name) for name in attributes)
            if reach.stands_in and issubclass(kind, torch.nn.Module):
                for held in (own.get("_parameters"), own.get("_buffers")):
                    yield from ((id(held), name) for name in held or ())


@functools.cache
def _slots_of(kind: Any) -> frozenset[str]:
    listed = [vars(each).get("__slots__", ()) for each in kind.__mro__]
    return frozenset(name for own in listed for name in ([own] if isinstance(own, str) else own))


def _content(holder: Any, names: Names) -> Any:
    """What a holder holds: by name, or in order."""
    kind = type(holder)
    if kind is CellType:
        return (*gc.get_referents(holder),)  # it may be empty still
    for base in _LISTS:
        if issubclass(kind, base):
            return (*base.__iter__(holder),)
    if issubclass(kind, dict) and (names is None or len(holder) < len(names)):
        return dict.copy(holder)
    if issubclass(kind, (dict, type)):
        own = holder if issubclass(kind, dict) else vars(holder)
        return {name: own[name] for name in (own if names is None else names) if name in own}
    return {name: _attribute(holder, name) for name in names or ()}


def _attribute(each: Any, name: str) -> Any:
    """An attribute, without asking what the object's class makes of it."""
    with contextlib.suppress(AttributeError, TypeError):
        return object.__getattribute__(each, name)
    return None


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
