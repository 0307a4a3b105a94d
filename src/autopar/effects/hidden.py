"""Hidden: what lies in objects that torch's containers can't look into, such as sets."""

from __future__ import annotations

import gc
import itertools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

from autopar.effects.memory import held_by

# What nothing is hidden in, so that most leaves cost no more than a look at their type.
_OPEN = {type(None), bool, int, float, complex, str, bytes, range, type, types.FunctionType}
_ONCE = (types.GeneratorType, map, filter, zip)  # made as they are iterated over
_PARTS = 1_000  # of an object: more would take longer than to copy what is beside it
_DICTS = (dict, OrderedDict, defaultdict)


def require_none_hidden(
    values: object, leaves: Iterable[object], kind: type | tuple[type, ...], name: str, what: str
) -> None:
    """Refuse containers that hold something of a kind where nobody looks for it, and generators.

    `leaves` are those that are not of that kind; `name` says where they are from, `what` what is
    looked for.
    """
    for leaf in itertools.chain(leaves, _keys_in(values)):
        if type(leaf) in _OPEN:
            continue
        if type(leaf) in _ONCE:
            msg = (
                f"{name} holds a {type(leaf).__name__}; expected containers whose {what} are there "
                f"already. Pass list(x) of it."
            )
            raise TypeError(msg)
        if any(issubclass(type(part), kind) for part in itertools.islice(held_by(leaf), _PARTS)):
            msg = (
                f"{name} holds a {type(leaf).__name__} with {what} in it; expected {what} in "
                f"lists, tuples and values of dicts, as others are not looked into. Pass them so, "
                f"or register the class: torch.utils._pytree.register_pytree_node."
            )
            raise TypeError(msg)


def _keys_in(values: Any) -> Iterator[object]:
    """Keys of the dicts among nested containers, each time as something that holds them."""
    if type(values) in _DICTS:
        if not {*map(type, values)} <= _OPEN:
            yield {*values}
        values = values.values()
    elif issubclass(type(values), (list, tuple, deque)):
        values = gc.get_referents(values)  # as a class may iterate in a way of its own
    else:
        return
    for value in values:
        yield from _keys_in(value)
