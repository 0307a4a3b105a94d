"""Hidden: what lies in objects that torch's containers can't look into, such as sets."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils import _pytree as pytree

from autopar.effects.memory import is_array
from autopar.effects.reach import ONCE, OPEN, attributes_of, keys_in


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
    for leaf in itertools.chain(leaves, keys_in(values)):
        if type(leaf) in OPEN:
            continue
        if type(leaf) in ONCE:
            msg = (
                f"{name} holds a {type(leaf).__name__}; expected containers whose {what} are there "
                f"already. Pass list(x) of it."
            )
            raise TypeError(msg)
        if any(issubclass(type(each), kind) for each in pytree.tree_leaves(list(_inside(leaf)))):
            msg = (
                f"{name} holds a {type(leaf).__name__} with {what} in it; expected {what} in "
                f"lists, tuples and values of dicts, as others are not looked into. Pass them so, "
                f"or register the class: torch.utils._pytree.register_pytree_node."
            )
            raise TypeError(msg)


def _inside(leaf: object) -> Iterator[Any]:
    """What an object holds, as far as it can be seen without calling anything of its own."""
    kind = type(leaf)
    if issubclass(kind, (set, frozenset, dict, type({}.values()), type({}.keys()))):
        yield from gc.get_referents(leaf)
    elif is_array(leaf):
        yield from gc.get_referents(leaf.tolist()) if leaf.dtype.hasobject else ()  # type: ignore[attr-defined]
    if not issubclass(kind, type):
        yield from attributes_of(leaf).values()
