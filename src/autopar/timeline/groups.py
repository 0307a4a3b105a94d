"""Groups: things put together by what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)


def grouped(things: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    """Key -> the things that have it, both in the order in which they came."""
    groups: dict[_K, list[_T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups
