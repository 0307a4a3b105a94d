"""Objects: what Python's objects and their classes hold, without asking them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from autopar.effects.loads import is_library

mro, namespace = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__
home = type.__dict__["__module__"].__get__


_kind_of: Callable[[Any], Any] = type  # which has a hash


@functools.lru_cache(10_000)
def is_own(kind: Any) -> bool:
    """Whether a class is the program's."""
    return not is_library(str(home(kind)))


def dict_of(value: Any) -> dict[str, Any] | None:
    """The attributes that an object holds by name, if it has such."""
    descriptor = _dict_descriptor(_kind_of(value))
    return None if descriptor is None else descriptor.__get__(value)


@functools.lru_cache(10_000)
def _dict_descriptor(kind: Any) -> Any:
    descriptors = (namespace(base).get("__dict__") for base in mro(kind))
    return next(
        (d for d in descriptors if type(d) in (GetSetDescriptorType, MemberDescriptorType)), None
    )


@functools.lru_cache(10_000)
def slots_of(kind: Any) -> Mapping[str, Any]:
    """The slots that a class's objects have, by name: each tells what an object has there."""
    return {
        name: descriptor
        for base in reversed(mro(kind))
        if "__slots__" in namespace(base) or is_own(base)
        for name, descriptor in namespace(base).items()
        if type(descriptor) is MemberDescriptorType
    }


def in_slots(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """What an object has in some of its slots."""
    slots, values = slots_of(_kind_of(value)), dict[str, Any]()
    for name in names:
        with contextlib.suppress(AttributeError):  # nothing is there yet
            values[name] = slots[name].__get__(value)
    return values


def attributes_of(value: Any) -> Mapping[str, Any]:
    """What an object holds by name, in its dictionary and its slots."""
    slots, held = slots_of(_kind_of(value)), dict_of(value) or {}
    return {**held, **in_slots(value, slots)} if slots else held
