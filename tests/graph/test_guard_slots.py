"""Attributes, items and variables that tasks bind anew: a check finds who comes after whom."""

import collections
import functools
import queue
import types
import warnings

import pytest
import torch
from torch import nn

from autopar import TaskGraph
from autopar.graph.node import ancestors

pytestmark = pytest.mark.usefixtures("threads_gone")


class Held:
    x = None


class Slotted:
    __slots__ = ("x",)


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("x", torch.zeros(3))


_bound = torch.zeros(3)


def _binds_a_global():
    global _bound
    _bound = 0.5 * _bound + 1
    return _bound.clone()


def _binds_an_attribute(held):
    held.x = torch.zeros(3)

    def step():
        held.x = 0.5 * held.x + 1
        return held.x.clone()

    return step, lambda: held.x.clone()


def _binds_an_item(held, key):
    def step():
        held[key] = 0.5 * held[key] + 1
        return held[key].clone()

    return step, lambda: held[key].clone()


def _binds_a_variable():
    x = torch.zeros(3)

    def step():
        nonlocal x
        x = 0.5 * x + 1
        return x.clone()

    return step, lambda: x.clone()


def _binds_both_of_two():
    held = Held()
    held.x, held.y = torch.zeros(3), torch.ones(3)

    def swap():
        held.x, held.y = held.y, held.x
        return held.x.clone()

    return swap, lambda: held.y.clone()


@pytest.mark.parametrize(
    "make",
    [
        lambda: (_binds_a_global, lambda: _bound.clone()),
        lambda: _binds_an_attribute(Held()),
        lambda: _binds_an_attribute(Slotted()),
        lambda: _binds_an_attribute(Running()),
        lambda: _binds_an_attribute(types.SimpleNamespace()),
        lambda: _binds_an_attribute(Held),
        lambda: _binds_an_item({"x": torch.zeros(3)}, "x"),
        lambda: _binds_an_item([torch.zeros(3)], 0),
        lambda: _binds_an_item(torch.nn.ParameterList([torch.zeros(3)]), 0),
        _binds_a_variable,
        _binds_both_of_two,
    ],
    ids=[
        *("global", "object", "slots", "buffer", "namespace", "class"),
        *("dict", "list", "module", "closure", "swap"),
    ],
)
def test_who_binds_a_place_anew_comes_after_those_before(make):
    bind, read = make()
    graph = TaskGraph(cpu_lanes=3)
    tasks = [graph.add(fn) for fn in (read, bind, read, bind, read)]
    graph.check()
    nodes = graph.plan().nodes
    assert [ancestors(nodes, n) >= {n - 1} for n in range(1, len(tasks))] == [True] * 4
    graph.run()


class Bag:
    def __init__(self, held):
        self.held = held
        self.other = None


class Listed(list):
    pass


class Remembers(nn.Module):
    last: list[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.last = [torch.zeros(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last.append(self.last[-1] + x)
        return x


class Averages(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.5 * self.mean + x
        return x


_calls, _zero = 0, torch.zeros(3)


def _counts_calls(_):
    global _calls
    _calls += 1


def _remembers_in_itself(_):
    _remembers_in_itself.last = (*_remembers_in_itself.last, 1)


_remembers_in_itself.last = ()


def _remembers_in_a_default(_, seen=[]):  # noqa: B006
    seen.append(_zero + 1)
    return seen


def _moves_a_key(held):
    held.move_to_end(next(iter(held)))


def _script(model):
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return torch.jit.script(model)


_CHANGES = {  # what is held, what changes it, and what reads it
    "a state": (lambda: None, lambda o: setattr(o, "held", {"h": _zero + 1}), None),
    "a counter": (lambda: 0, lambda o: setattr(o, "held", o.held + 1), None),
    "a list turned round": (lambda: [1, 2], lambda o: o.held.reverse(), lambda o: o.held[0]),
    "a list of its own kind": (
        lambda: Listed([1]),
        lambda o: o.held.append(2),
        lambda o: o.held[0],
    ),
    "a ring": (
        lambda: collections.deque([_zero, _zero + 1], maxlen=2),
        lambda o: o.held.append(_zero + 2),
        lambda o: o.held[0],
    ),
    "a key dropped": (
        lambda: dict.fromkeys(range(99)),
        lambda o: o.held.popitem(),
        lambda o: len(o.held),
    ),
    "a key moved": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda o: _moves_a_key(o.held),
        lambda o: next(iter(o.held)),
    ),
    "a set": (set, lambda o: o.held.add(len(o.held)), lambda o: len(o.held)),
    "a queue": (
        queue.Queue,
        lambda o: o.held.put(_zero),
        lambda o: o.held.qsize(),
    ),
    "layers": (
        lambda: nn.Sequential(nn.ReLU(), nn.ReLU()),
        lambda o: o.held.__setitem__(0, nn.ReLU()),
        lambda o: o.held(_zero),
    ),
    "an attribute by vars": (
        lambda: (_zero,),
        lambda o: vars(o).update(held=(_zero + 1,)),
        lambda o: o.held[0],
    ),
    "a global": (lambda: None, _counts_calls, lambda o: _calls),
    "a function's": (lambda: None, _remembers_in_itself, lambda o: _remembers_in_itself.last),
    "a default": (lambda: None, _remembers_in_a_default, lambda o: _remembers_in_a_default),
    "a script's list": (
        lambda: _script(Remembers()),
        lambda o: o.held(_zero + 1),
        lambda o: o.held.last,
    ),
    "a buffer of a script's part": (
        lambda: _script(nn.Sequential(Averages(), nn.ReLU())),
        lambda o: o.held(_zero + 1),
        lambda o: o.held[0].mean,
    ),
}


@pytest.mark.parametrize("form", _CHANGES)
def test_who_changes_what_python_holds_comes_after_those_before(form):
    make, write, read = _CHANGES[form]
    bag, look = Bag(make()), read or (lambda o: o.held)
    graph = TaskGraph(cpu_lanes=3)
    reads, writes = functools.partial(look, bag), functools.partial(write, bag)
    tasks = [graph.add(fn) for fn in (reads, writes, reads, writes, reads)]
    graph.check()
    nodes = graph.plan().nodes
    assert [ancestors(nodes, n) >= {n - 1} for n in range(1, len(tasks))] == [True] * 4
    graph.run()


def _reads_a_list(o):
    return sum(o.held)


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (lambda: [1, 2], _reads_a_list, _reads_a_list),
        (
            lambda: nn.Sequential(nn.Linear(3, 3), nn.GELU()),
            lambda o: o.held(_zero),
            lambda o: o.held(_zero),
        ),
    ],
    ids=["readers", "a model"],
)
def test_tasks_that_change_nothing_of_each_others_may_run_at_once(make, one, other):
    bag, graph = Bag(make()), TaskGraph(cpu_lanes=3)
    for fn in (one, other, other):
        graph.add(functools.partial(fn, bag))
    assert graph.check() == []
