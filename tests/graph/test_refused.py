"""What a graph refuses before anything runs, and with which words."""

import collections
import contextlib
import dataclasses
import functools
import operator
import sys
import types

import numpy as np
import pytest
import torch
from graph_checks import labels
from torch import nn

from autopar import TaskGraph


@pytest.fixture
def built():
    """A graph of two tasks that note that they ran, a tensor of it, and a task of another graph."""
    graph, ran = TaskGraph(cpu_lanes=2), []
    x = torch.ones(2)
    first = graph.add(ran.append, 1, name="first")
    graph.add(torch.add, x, 1, name="sum")
    elsewhere = TaskGraph().add(torch.ones, 2, name="elsewhere")
    yield types.SimpleNamespace(graph=graph, first=first, x=x, elsewhere=elsewhere)
    assert ran == []


OF_ANOTHER = "'elsewhere'.*'new'.*another"
NO_ARGUMENT = "'new'.*expected one of its arguments"
REFUSED = {  # b: what was built; add: a new task of it
    r"fn is of type Tensor.*add\(fn, x\)": (TypeError, lambda b, add: b.graph.add(b.x)),
    OF_ANOTHER: (ValueError, lambda b, add: add({"a": [b.elsewhere]})),
    f"{OF_ANOTHER} ": (ValueError, lambda b, add: add(b.x, writes=[b.elsewhere])),
    NO_ARGUMENT: (ValueError, lambda b, add: add(b.x, writes=[b.first])),
    "'new' holds a generator.*list": (TypeError, lambda b, add: add(x for x in [b.x])),
    "'new' holds 3; expected": (TypeError, lambda b, add: add(3, writes=[3])),
    "writes of task 'new' is one ndarray.*a list": (
        *(TypeError, lambda b, add: add(3, writes=np.ones(1))),
    ),
    "writes of task 'new' is one Generator": (
        *(TypeError, lambda b, add: add(3, writes=torch.default_generator)),
    ),
    "'elsewhere'.*another": (ValueError, lambda b, add: b.graph.order(b.first, b.elsewhere)),
    "cost_s of task 'new' is inf": (ValueError, lambda b, add: add(b.x, cost_s=float("inf"))),
    "repeats is 0": (ValueError, lambda b, add: b.graph.measure(0)),
    # What makes no sense twice.
    "task 'vector_to_parameters' is to .*; expected": (
        *(ValueError, lambda b, add: b.graph.add(nn.utils.vector_to_parameters, b.x, [b.x])),
    ),
    "task 'swap_tensors' is to .*; expected": (
        *(ValueError, lambda b, add: b.graph.add(torch.utils.swap_tensors, b.x, b.x)),
    ),
    "task 'set_' is to .*; expected": (ValueError, lambda b, add: b.graph.add(b.x.set_, b.x)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_run_is_refused_and_the_plan_stays(built, message):
    kind, ask = REFUSED[message]
    before = built.graph.plan()
    with pytest.raises(kind, match=message.strip()):
        ask(built, lambda *args, **options: built.graph.add(print, *args, name="new", **options))
    assert built.graph.plan() is before


@pytest.mark.parametrize("device", ["cuda:99", 99, "meta", "nowhere"])
def test_a_device_that_is_not_there_is_refused_with_the_tasks_name(built, device):
    with pytest.raises(ValueError, match="device is") as caught:
        built.graph.add(torch.neg, built.x, device=device, name="new")
    assert caught.value.__notes__ == ["in task 'new'"]


def test_what_lies_elsewhere_is_not_written():
    with labels():
        graph, x = TaskGraph(), torch.ones(2)
        there = graph.add(torch.neg, x, device="cuda:0")
        for value, device in ((x, "cuda:0"), (there, "cpu"), (there, "cuda:1")):
            with pytest.raises(ValueError, match="task 'add_' on .* is to write to .*lost"):
                graph.add(torch.Tensor.add_, value, 1, writes=[value], device=device)


@pytest.mark.parametrize("run", ["run", "run_serial", "measure", "plan", "start"])
def test_a_circle_is_refused_and_named(built, run):
    then = built.graph.add(print, built.first, name="then")
    built.graph.add(torch.neg, built.x, name="apart")
    built.graph.order(then, built.first)
    with pytest.raises(ValueError, match=r"circle: ('(first|sum|then)' -> ){2,3}'\w+'; expected"):
        started = getattr(built.graph, run)()
        if isinstance(started, contextlib.AbstractContextManager):
            started.__enter__()


# -- tasks where nobody looks ---------------------------------------------------------------------


Pair = collections.namedtuple("Pair", "first second")
CLOSED = {
    "set": lambda task: {task},
    "dict key inside": lambda task: [{"a": ({task: 1},)}],
    "dict keys": lambda task: {task: 1}.keys(),
    "generator": lambda task: (each for each in [task]),
    "map": lambda task: map(operator.neg, [task]),
    "object with slots": dataclasses.make_dataclass("Slotted", ["x"], slots=True),
    "namespace with a list": lambda task: types.SimpleNamespace(x=[1, [task]]),
}
OPEN = {
    "tuple": lambda task: (task, 3),
    "deque": lambda task: collections.deque([task]),
    "named": lambda task: Pair(task, {1, 2}),
    "nested": lambda task: [({"x": [task], 3: None},)],
    "itself": lambda task: task,
}


@pytest.mark.parametrize("kind", CLOSED)
def test_a_task_where_nobody_looks_is_refused(kind):
    graph = TaskGraph()
    hidden = CLOSED[kind](graph.add(torch.add, torch.ones(2), 1))
    for args, kwargs in (((hidden,), {}), ((), {"values": hidden})):
        with pytest.raises((TypeError, ValueError), match=r"'taker'.*; expected .* Pass "):
            graph.add(print, *args, name="taker", **kwargs)


@pytest.mark.parametrize("kind", OPEN)
def test_a_task_in_containers_that_are_looked_into_is_its_result(kind):
    def tensors_of(*values, **named):
        leaves = torch.utils._pytree.tree_leaves((values, named))
        return [leaf.tolist() for leaf in leaves if torch.is_tensor(leaf)]

    graph = TaskGraph()
    one, two = graph.add(torch.ones, 2), graph.add(torch.full, (2,), 2.0)
    taker = graph.add(tensors_of, OPEN[kind](one), two, key=OPEN[kind](two))
    assert graph.run()[taker] == [[1, 1], [2, 2], [2, 2]]


@torch.library.custom_op("autopar_forms::liar", mutates_args=())
def liar(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.clone()


def test_an_operator_that_writes_what_it_does_not_declare_is_refused_as_it_runs():
    graph, x = TaskGraph(cpu_lanes=2), torch.zeros(4)
    graph.add(liar, x)
    with pytest.raises(RuntimeError, match=r"task '.*.* .* changed args\[0\]"):
        graph.run()


# -- names ----------------------------------------------------------------------------------------


class Callable:
    def __call__(self):
        return 1


NAMES = [
    *((nn.ReLU(), "ReLU"), (functools.partial(torch.add, 1), "add"), (nn.Linear, "Linear")),
    *((functools.partial(nn.ReLU()), "ReLU"), (torch.ops.aten.relu.default, "relu.default")),
    *((torch.ones(1).add, "add"), (nn.Linear(2, 2).forward, "forward"), (Callable(), "Callable")),
]


@pytest.mark.parametrize(("fn", "name"), NAMES)
def test_a_task_is_called_as_what_it_runs(fn, name):
    assert TaskGraph().add(fn).name == name


def test_a_lambda_is_called_by_its_line():
    line = sys._getframe().f_lineno
    assert TaskGraph().add(lambda: 1).name == f"<lambda> in test_refused.py:{line + 1}"
