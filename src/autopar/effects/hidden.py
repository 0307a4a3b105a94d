"""Hidden: what lies in objects that torch's containers can't look into, such as sets."""

from __future__ import annotations

import gc
import itertools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from autopar.effects.memory import is_array
from autopar.effects.objects import attributes_of
from autopar.effects.reach import Reach
from autopar.effects.task import Task
from autopar.torch_private import pytree

# What nothing is hidden in, so that most leaves cost no more than a look at their type.
_OPEN = {type(None), bool, int, float, complex, str, bytes, range, type}
_ONCE = (types.GeneratorType, map, filter, zip)  # made as they are iterated over
_DICTS = (dict, OrderedDict, defaultdict)
_VIEWED: tuple[type, ...] = (set, frozenset, dict, type({}.values()), type({}.keys()))


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
        _require_made(leaf, name, what)
        if any(issubclass(type(each), kind) for each in pytree.tree_leaves([*_inside(leaf)])):
            msg = (
                f"{name} holds a {type(leaf).__name__} with {what} in it; expected {what} in "
                f"lists, tuples and values of dicts, as others are not looked into. Pass them so, "
                f"or register the class: torch.utils._pytree.register_pytree_node."
            )
            raise TypeError(msg)


def require_tasks_seen(values: object, leaves: Iterable[Any], name: str) -> None:
    """Refuse arguments of a task that hold other tasks where nobody looks for them.

    Args:
        values: The arguments.
        leaves: What is left of their containers, but for tasks and tensors.
        name: The task's.

    Raises:
        TypeError: Something makes what it holds only as it is iterated over.
        ValueError: There are some, as in a set.
    """
    for leaf in leaves:
        _require_made(leaf, f"task {name!r}", "tasks")
    for hidden in Reach(*leaves, *_keys_in(values)).tasks:
        msg = (
            f"{hidden!r}, given to task {name!r}, lies in a container of another kind; expected "
            f"lists, tuples and dicts. Pass it in one of these, or by itself."
        )
        raise ValueError(msg)


def hidden_tasks(leaves: Iterable[Any]) -> list[Task]:
    """Tasks in what is no container to look into, as a set, among the leaves of containers."""
    return Reach(*(leaf for leaf in leaves if type(leaf) not in (torch.Tensor, Task))).tasks


def _require_made(leaf: object, name: str, what: str) -> None:
    if type(leaf) in _ONCE:
        msg = (
            f"{name} holds a {type(leaf).__name__}; expected containers whose {what} are there "
            f"already. Pass list(x) of it."
        )
        raise TypeError(msg)


def _inside(leaf: Any) -> Iterator[Any]:
    """What an object holds, as far as it can be seen without calling anything of its own."""
    if issubclass(type(leaf), _VIEWED):
        yield from gc.get_referents(leaf)
    elif is_array(leaf) and leaf.dtype.hasobject:
        yield from gc.get_referents(leaf.tolist())
    if not issubclass(type(leaf), type):
        yield from attributes_of(leaf).values()


def _keys_in(values: Any) -> Iterator[object]:
    """Keys of the dicts among nested containers, each time as something that holds them."""
    if type(values) in _DICTS:
        if not {*map(type, values)} <= _OPEN:
            yield {*values}
        values = values.values()
    elif not issubclass(type(values), (list, tuple, deque)):
        return
    for value in values:
        yield from _keys_in(value)
