"""Slots: places that hold memory and can be bound anew, as attributes, items and variables."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections import deque
from collections.abc import Iterator, Set
from types import CellType, FunctionType
from typing import Any

from autopar.memory import MEMORY, is_array
from autopar.reach import Reach

Slot = tuple[int, Any]  # the number of what holds it, and its name or place there


Held = list[tuple[Any, dict[Any, Any]]]


class Slots:
    """The slots that a call can come to.

    Args:
        reach: What it leads to.
    """

    def __init__(self, reach: Reach) -> None:
        found: dict[tuple[int, int], tuple[Any, Set[Any] | None]] = {}
        for each in reach.seen.values():
            if not _is_memory(each):
                for holder, names in _holders(each, reach.names):
                    found[id(holder), id(names)] = holder, names
        self._holders = [*found.values()]

    def held(self) -> Held:
        """What they hold now."""
        return [(holder, _content(holder, names)) for holder, names in self._holders]

    def common(self, slots: Set[Slot]) -> set[Slot]:
        """Those among some slots."""
        here = {(id(holder), name) for holder, content in self.held() for name in content}
        return here & slots


def changed(held: Held) -> Iterator[tuple[Slot, Any]]:
    """Slots in which there is another tensor now, or one where there was none; with holders."""
    for holder, old in held:
        now = _content(holder, old.keys())
        if len(now) == len(old) and all(map(operator.is_, now.values(), old.values())):
            continue
        for name, value in old.items():
            new = now.get(name)
            if new is not value and (_is_memory(value) or (value is None and _is_memory(new))):
                yield (id(holder), name), holder


def _holders(each: Any, names: Set[str]) -> Iterator[tuple[Any, Set[Any] | None]]:
    """What holds an object's slots, with those of their names that code has, if not all."""
    kind = type(each)
    home = each.__module__ if kind is FunctionType else kind.__module__
    is_torchs = str(home).partition(".")[0] == "torch"
    if kind is FunctionType:
        yield from ((cell, None) for cell in each.__closure__ or ())
        if not is_torchs:
            yield each.__globals__, names
    elif isinstance(each, (dict, list, deque)):
        yield each, None
    elif isinstance(each, type):
        yield each, names
    elif isinstance(own := _attribute(each, "__dict__"), dict):
        yield own, None if is_torchs else names
    if slots := names & _slots_of(kind):  # type: ignore[arg-type]
        yield each, slots


@functools.cache
def _slots_of(kind: Any) -> frozenset[str]:
    return frozenset(name for each in kind.__mro__ for name in vars(each).get("__slots__", ()))


def _content(holder: Any, names: Set[Any] | None) -> dict[Any, Any]:
    """What is in some slots of a holder, or in all of them."""
    if isinstance(holder, (dict, type)):
        own = holder if isinstance(holder, dict) else vars(holder)
        return dict(own) if names is None else {name: own.get(name) for name in names}
    if isinstance(holder, CellType):
        with contextlib.suppress(ValueError):  # it may be empty still
            return {"": holder.cell_contents}
        return {"": None}
    if isinstance(holder, (list, deque)):
        return dict(enumerate(holder))
    return {name: _attribute(holder, name) for name in names or ()}


def _attribute(each: Any, name: str) -> Any:
    """An attribute, without asking what the object's class makes of it."""
    with contextlib.suppress(AttributeError, TypeError):
        return object.__getattribute__(each, name)
    return None


def _is_memory(value: Any) -> bool:
    return isinstance(value, MEMORY) or is_array(value)
