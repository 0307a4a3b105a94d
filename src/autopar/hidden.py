"""Hidden: what lies in objects that torch's containers can't look into, such as sets."""

from __future__ import annotations

import itertools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set, ValuesView
from typing import Any

from torch.utils import _pytree as pytree

# What nothing is hidden in, so that most leaves cost no more than a look at their type.
_OPEN = {type(None), bool, int, float, complex, str, bytes, range, type}
_ONCE = (types.GeneratorType, map, filter, zip)


def require_none_hidden(
    values: object,
    leaves: Iterable[object],
    kind: type | tuple[type, ...],
    name: str,
    what: str,
) -> None:
    """Refuse nested containers that hold something where nobody looks for it.

    The keys of dicts, sets, views of dicts and objects' attributes are looked into, one level
    deep. What is only made as it is iterated over, such as a generator, is refused as it is.

    Args:
        values: The containers.
        leaves: What is left of them, and not of this kind.
        kind: What must not be hidden in them.
        name: Where the leaves are from.
        what: What is looked for, in words.

    Raises:
        TypeError: There is some.
    """
    for leaf in itertools.chain(leaves, _keys_in(values)):
        if type(leaf) in _OPEN:
            continue
        if isinstance(leaf, _ONCE):
            msg = (
                f"{name} holds a {type(leaf).__name__}; expected containers whose {what} are there "
                f"already. Pass list(x) of it."
            )
            raise TypeError(msg)
        if any(isinstance(each, kind) for each in pytree.tree_leaves(list(_inside(leaf)))):
            msg = (
                f"{name} holds a {type(leaf).__name__} with {what} in it; expected {what} in "
                f"lists, tuples and values of dicts, as others are not looked into. Pass them so, "
                f"or register the class: torch.utils._pytree.register_pytree_node."
            )
            raise TypeError(msg)


def _keys_in(values: object) -> Iterator[object]:
    """Keys of the dicts among nested containers, each time as something that holds them."""
    if isinstance(values, dict):
        if not set(map(type, values)) <= _OPEN:
            yield set(values)
        values = values.values()
    elif not isinstance(values, (list, tuple, deque)):
        return
    for value in values:
        yield from _keys_in(value)


def _inside(leaf: object) -> Iterator[Any]:
    """What an object holds, as far as it can be seen without calling anything of its own."""
    if isinstance(leaf, (Set, ValuesView)):
        yield from leaf
    elif isinstance(leaf, Mapping):
        yield from leaf
        yield from leaf.values()
    elif str(getattr(leaf, "dtype", "")) == "object" and hasattr(leaf, "tolist"):  # NumPy's array
        yield leaf.tolist()
    yield from getattr(leaf, "__dict__", {}).values() if not isinstance(leaf, type) else ()
    for slot in getattr(type(leaf), "__slots__", ()):
        yield getattr(leaf, slot, None)
