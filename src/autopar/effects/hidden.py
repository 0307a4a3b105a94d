"""Hidden: what lies in objects that torch's containers can't look into, such as sets."""

from __future__ import annotations

import gc
import itertools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from autopar.effects.memory import held_by
from autopar.effects.task import Task

# What nothing is hidden in, so that most leaves cost no more than a look at their type.
_OPEN = {type(None), bool, int, float, complex, str, bytes, range, type, types.FunctionType}
_ONCE = (types.GeneratorType, map, filter, zip)  # made as they are iterated over
_PARTS = 1_000  # of an object: more would take longer than to copy what is beside it
_DICTS = (dict, OrderedDict, defaultdict)


def require_none_hidden(
    values: object,
    leaves: Iterable[object],
    kind: type | tuple[type, ...],
    name: str,
    what: str,
) -> None:
    """Refuse containers that hold something of a kind where nobody looks for it.

    `leaves` are those that are not of that kind, and of each the first thousand parts are looked
    at; `name` says where they are from, `what` what is looked for. What is only made as it is
    iterated over, such as a generator, is refused as it is.
    """
    for leaf in itertools.chain(leaves, _keys_in(values)):
        if type(leaf) in _OPEN:
            continue
        _require_made(leaf, name, what)
        if any(issubclass(type(part), kind) for part in itertools.islice(held_by(leaf), _PARTS)):
            msg = (
                f"{name} holds a {type(leaf).__name__} with {what} in it; expected {what} in "
                f"lists, tuples and values of dicts, as others are not looked into. Pass them so, "
                f"or register the class: torch.utils._pytree.register_pytree_node."
            )
            raise TypeError(msg)


def require_tasks_seen(values: object, leaves: Iterable[Any], name: str) -> None:
    """Refuse arguments of a task that hold other tasks where nobody looks for them.

    `leaves` are those of the arguments that are no tasks and no tensors.
    """
    for leaf in leaves:
        _require_made(leaf, f"task {name!r}", "tasks")
    for hidden in hidden_tasks([*leaves, *_keys_in(values)]):
        msg = (
            f"{hidden!r}, given to task {name!r}, lies in a container of another kind; expected "
            f"lists, tuples and dicts. Pass it in one of these, or by itself."
        )
        raise ValueError(msg)


def hidden_tasks(leaves: Iterable[Any]) -> list[Task]:
    """Tasks in what is no container to look into, as a set, among the leaves of containers."""
    parts = held_by(*(leaf for leaf in leaves if type(leaf) not in (torch.Tensor, Task)))
    return [part for part in parts if type(part) is Task]


def _require_made(leaf: object, name: str, what: str) -> None:
    if type(leaf) in _ONCE:
        msg = (
            f"{name} holds a {type(leaf).__name__}; expected containers whose {what} are there "
            f"already. Pass list(x) of it."
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
