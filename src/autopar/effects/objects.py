"""Objects: what Python's objects and their classes hold, without asking them."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterable, Mapping
from types import CellType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from autopar.effects.loads import ABSENT, is_library

mro, namespace = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__
home = type.__dict__["__module__"].__get__


IN_CELL = "cell_contents"  # the name of what a variable of a closure holds

_kind_of: Callable[[Any], Any] = type  # which has a hash


@functools.lru_cache(10_000)
def is_own(kind: Any) -> bool:
    """Whether a class is the program's."""
    return not is_library(str(home(kind)))


def is_a(value: Any, kinds: Any) -> bool:
    """Whether an object's class is of some kinds: `isinstance` would ask the object, too."""
    return issubclass(_kind_of(value), kinds)


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


def content(holder: Any, names: Iterable[str]) -> dict[str, Any]:
    """What a dict, a class, an object with slots or a closure's variable holds, by name."""
    kind = _kind_of(holder)
    if kind is CellType:  # it may be empty still
        return dict.fromkeys([IN_CELL], *there) if (there := gc.get_referents(holder)) else {}
    if issubclass(kind, (dict, type)):
        held = holder if issubclass(kind, dict) else namespace(holder)
        return {name: held[name] for name in names if name in held}
    slots, values = slots_of(kind), dict[str, Any]()
    for name in names:
        with contextlib.suppress(AttributeError):  # nothing is there yet
            values[name] = slots[name].__get__(holder)
    return values


def bind(holder: Any, name: str, value: Any) -> None:
    """Let a holder hold something by a name, or nothing."""
    if isinstance(holder, dict):
        dict.pop(holder, name) if value is ABSENT else dict.__setitem__(holder, name, value)
        return
    base = type if isinstance(holder, type) else object  # of a class itself, or of any object
    base.__delattr__(holder, name) if value is ABSENT else base.__setattr__(holder, name, value)
