"""What `TaskGraph.add` takes: each of torch's functions; and which containers it refuses."""

import dataclasses
import functools
import operator
import warnings
from collections import OrderedDict, UserDict, deque, namedtuple
from types import SimpleNamespace

import pytest
import torch

from autopar import TaskGraph

HOMES = {
    "torch": torch,
    "Tensor": torch.Tensor,
    "functional": torch.nn.functional,
    "linalg": torch.linalg,
    "fft": torch.fft,
    "special": torch.special,
    "aten": torch.ops.aten,
    "operator": operator,
}
FORMS = {
    "tasks": lambda fn, task, x: ((fn, task, task), {}),
    "a tensor": lambda fn, task, x: ((fn, x), {}),
    "out": lambda fn, task, x: ((fn, task), {"out": x}),
    "a partial": lambda fn, task, x: ((functools.partial(fn, x), task), {}),
    "nothing": lambda fn, task, x: ((fn,), {}),
}


def functions_of(home):
    """All that can be called there, and is no class; names that are no longer there warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in dir(home):
            found = getattr(home, name, None)
            if callable(found) and not isinstance(found, type):
                yield name, found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.stress
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("form", FORMS)
def test_every_function_of_torchs_can_be_added(home, form):
    """Or is refused in words of the graph's own, which say what was expected."""
    failed, x = [], torch.ones(2, 2)
    for name, fn in functions_of(HOMES[home]):
        graph = TaskGraph()
        args, kwargs = FORMS[form](fn, graph.add(torch.add, x, 1), x)
        try:
            graph.add(*args, **kwargs)
        except (TypeError, ValueError) as error:
            if "expected" not in str(error):
                failed.append((name, error))
        except Exception as error:
            failed.append((name, error))
    assert not failed


@pytest.mark.filterwarnings("ignore")
def test_every_bound_method_of_a_tensor_can_be_added():
    failed, x = [], torch.ones(2, 2)
    for name, _ in functions_of(torch.Tensor):
        try:
            TaskGraph().add(getattr(x, name))
        except Exception as error:
            failed.append((name, error))
    assert not failed


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        (torch.as_tensor, lambda task: (task,), [2.0, 2.0]),
        (torch.Tensor.cpu, lambda task: (task,), [2.0, 2.0]),
        (torch.Tensor.__getitem__, lambda task: (task, 0), 2.0),
        (torch.Tensor.tolist, lambda task: (task,), None),
        (torch.stack, lambda task: ([task, task],), [[2.0, 2.0]] * 2),
        (torch.Tensor.to, lambda task: (task, "cpu"), [2.0, 2.0]),
        (operator.getitem, lambda task: (task, slice(1)), [2.0]),
    ],
)
def test_functions_that_declare_nothing_run(fn, args, expected):
    graph = TaskGraph()
    result = graph.add(fn, *args(graph.add(torch.add, torch.ones(2), 1)))
    found = graph.run()[result]
    assert found == [2.0, 2.0] if expected is None else found.tolist() == expected


@dataclasses.dataclass
class Held:
    x: object


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


Pair = namedtuple("Pair", "first second")

CLOSED = {
    "set": lambda task: {task},
    "frozenset": lambda task: [frozenset([task])],
    "dict key": lambda task: {task: 1},
    "dict key inside": lambda task: [{"a": ({task: 1},)}],
    "dict values": lambda task: {"a": task}.values(),
    "dict keys": lambda task: {task: 1}.keys(),
    "generator": lambda task: (each for each in [task]),
    "map": lambda task: map(operator.neg, [task]),
    "zip": lambda task: zip([task], strict=True),
    "dataclass": Held,
    "dataclass with a list": lambda task: Held([1, [task]]),
    "object with slots": Slotted,
    "namespace": lambda task: SimpleNamespace(x=task),
    "user dict": lambda task: UserDict(x=task),
}
OPEN = {
    "list": lambda task: [task],
    "tuple": lambda task: (task, 3),
    "dict": lambda task: {"x": task, 3: None},
    "ordered": lambda task: OrderedDict(x=task),
    "deque": lambda task: deque([task]),
    "named": lambda task: Pair(task, {1, 2}),
    "nested": lambda task: [({"x": [task]},)],
}


@pytest.mark.parametrize("kind", CLOSED)
@pytest.mark.parametrize("by_name", [False, True])
def test_a_task_where_nobody_looks_is_refused(kind, by_name):
    graph = TaskGraph()
    hidden = CLOSED[kind](graph.add(torch.add, torch.ones(2), 1))
    with pytest.raises((TypeError, ValueError), match=r"'taker'.*; expected .* Pass "):
        if by_name:
            graph.add(print, name="taker", values=hidden)
        else:
            graph.add(print, hidden, name="taker")


@pytest.mark.parametrize("kind", OPEN)
def test_a_task_in_containers_that_are_looked_into_is_its_result(kind):
    graph = TaskGraph()

    def tensors_of(values):
        return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if torch.is_tensor(leaf)]

    taker = graph.add(tensors_of, OPEN[kind](graph.add(torch.add, torch.ones(2), 1)))
    assert [found.tolist() for found in graph.run()[taker]] == [[2, 2]]
