"""Slots: what Python's own objects hold, so that it can be seen what a task binds anew.

An attribute, a variable or an item of a dict is a slot. A list, a deque or a set is one as a whole.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
from collections import deque
from collections.abc import Collection, Iterator, Set
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from autopar.loads import is_library
from autopar.reach import BY_ANY_NAME, Reach, is_own

Slot = tuple[int, Any]  # the number of what holds it, and its name there
Names = Set[Any] | None  # all of them, if none are named
Held = list[tuple[Any, Names, Any]]

_WHOLE = ""  # the name of what is one slot
_LISTS = (list, deque, set)
_NUMBERS = (bool, int, float, complex, str, bytes)  # equal ones are the same


class Slots:
    """The slots that a call can come to.

    Args:
        reach: What it leads to, by its code, too.
    """

    def __init__(self, reach: Reach) -> None:
        self._holders: dict[int, tuple[Any, Names]] = {}
        for each in reach.seen.values():
            for holder, names in _holders(each, reach.names):
                _, known = self._holders.get(id(holder), (holder, frozenset[Any]()))
                names = None if names is None or known is None else {*known, *names}
                self._holders[id(holder)] = holder, names

    def held(self) -> Held:
        """What they hold now."""
        own = self._holders.values()
        return [(holder, names, _content(holder, names)) for holder, names in own]

    def common(self, slots: Set[Slot]) -> set[Slot]:
        """Those among some slots."""
        found = set()
        for number, name in slots:
            _, names = self._holders.get(number, (None, frozenset[Any]()))
            if names is None or name in names:
                found.add((number, name))
        return found


def changed(held: Held) -> Iterator[tuple[Slot, Any]]:
    """Slots that hold something else now, each with what holds it."""
    for holder, names, old in held:
        now = _content(holder, names)
        if isinstance(old, dict):
            if not _are_same(old, now) or not _are_same(old.values(), now.values()):
                both = {**old, **now}
                found = [each for each in both if names is None or each in names]
                moved = [each for each in found if not _is_same(old, now, each)]
                for name in moved or ([_WHOLE] if names is None else []):  # or in another order
                    yield (id(holder), name), holder
        elif not _are_same(old, now):
            yield (id(holder), _WHOLE), holder


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


def _are_same(old: Collection[Any], now: Collection[Any]) -> bool:
    return len(old) == len(now) and all(map(operator.is_, old, now))


def _is_same(old: dict[Any, Any], now: dict[Any, Any], name: Any) -> bool:
    if name not in old or name not in now:
        return False
    one, other = old[name], now[name]
    return one is other or (type(one) is type(other) and type(one) in _NUMBERS and one == other)
