"""Tasks that nobody has declared keep the order of the program, whatever they are and do."""

import collections
import functools
import operator
import threading

import numpy as np
import pytest
import torch
from graph_checks import ancestors
from torch import nn

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")


class Told(torch.Tensor):
    """A tensor whose class does something of its own where an operator is called."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Counter:
    def __init__(self):
        self.n = 0

    def __call__(self):
        self.n += 1

    def count(self):
        self.n += 1


class OwnList(list):
    pass


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x


X = torch.ones(3)
UNDECLARED = {
    "a function": (Counter.count, Counter()),
    "a lambda": (lambda x: x + 1, X),
    "a method": (Counter().count,),
    "an object": (Counter(),),
    "a class": (Counter,),
    "a partial function": (functools.partial(Counter.count, Counter()),),
    "a cached function": (functools.lru_cache(lambda: 1),),
    "a bound method of a list": ([].append, 1),
    "a method of a list": (list.index, [1], 1),
    "a method of a set, named as an operator": (set.add, {2}, 1),
    "a method of a dict": (dict.update, {}),
    "a caller of methods": (operator.methodcaller("index", 1), [1]),
    "a method of a deque": (collections.deque().append, 1),
    "a function of C": (print,),
    "NumPy's": (np.add, np.ones(3), 1),
    "a layer": (nn.Linear(3, 3), X),
    "a function of layers": (nn.functional.dropout, X),
    "an operator on a tensor with functions of its own": (torch.add, X.as_subclass(Told), 1),
    "an operator on a list of another kind": (torch.stack, OwnList([X])),
    "Python's operator on an object": (operator.setitem, collections.UserDict(), 1, 2),
    "Python's operator that calls": (operator.call, [].copy),
    "a partial function of another kind": (type("P", (functools.partial,), {})(torch.neg), X),
    "autograd's": (Doubled.apply, X),
    "an event": (threading.Event().set,),
}


@pytest.mark.parametrize("kind", UNDECLARED)
def test_what_is_not_declared_comes_after_all_before_it_and_before_all_after(kind):
    fn, *args = UNDECLARED[kind]
    graph = TaskGraph(cpu_lanes=3)
    for task in ((torch.neg, X), (torch.neg, X), (fn, *args), (torch.neg, X), (torch.neg, X)):
        graph.add(*task)
    for look in (lambda: None, graph.check, lambda: graph.measure(1)):
        look()
        nodes = graph.plan().nodes
        assert ancestors(nodes, 2) == {0, 1}
        assert nodes[3].before == nodes[4].before == {2}
        assert nodes[0].before == nodes[1].before == set()


@pytest.mark.parametrize("kind", UNDECLARED)
def test_what_says_what_it_writes_runs_at_once(kind):
    fn, *args = UNDECLARED[kind]
    graph = TaskGraph(cpu_lanes=3)
    for _ in range(3):
        graph.add(fn, *args, writes=())
    assert [node.before for node in graph.plan().nodes] == [set()] * 3


def test_a_program_of_pythons_own_objects_is_right_unchecked():
    graph, seen, found = TaskGraph(cpu_lanes=3), [], {}
    for n in range(9):
        graph.add(seen.append, n)
        graph.add(found.__setitem__, n, n)
        graph.add(lambda: found.pop(len(found) - 1, None) if len(seen) % 3 == 0 else None)
    graph.run()
    assert seen == [*range(9)]
    assert len(found) == 6


# -- what the functions of tasks that say `writes=` hold ------------------------------------------


class Box:
    def __init__(self, held):
        self.held = held


def test_who_writes_a_layers_weight_comes_after_those_who_use_the_layer():
    graph, layer = TaskGraph(cpu_lanes=3), nn.Linear(3, 3).requires_grad_(False)
    uses = [graph.add(layer, X, writes=()) for _ in range(2)]
    writer = graph.add(torch.Tensor.add_, layer.weight, 1)
    later = graph.add(layer, X, writes=())
    nodes = graph.plan().nodes
    assert nodes[writer.number].before == {task.number for task in uses}
    assert nodes[later.number].before == {writer.number}


@pytest.mark.parametrize("box", [Box, lambda x: lambda: x, lambda x: {1: Box([x])}, lambda x: {x}])
def test_tensors_inside_of_an_argument_or_a_function_are_read(box):
    x = torch.zeros(3)
    held, graph = box(x), TaskGraph(cpu_lanes=3)
    writer = graph.add(x.add_, 1)
    inside = graph.add(lambda held: None, held, writes=())
    closure = graph.add(lambda: held, writes=())
    nodes = graph.plan().nodes
    assert nodes[inside.number].before == nodes[closure.number].before == {writer.number}


def test_an_array_that_a_task_reads_is_waited_for():
    graph, array = TaskGraph(cpu_lanes=3), np.zeros(3)
    writer = graph.add(array.fill, 1, writes=[array])
    reader = graph.add(np.sum, array, writes=())
    assert graph.plan().nodes[reader.number].before == {writer.number}


# -- a check: one sentence for what is not said, none for its twin --------------------------------

_GLOBAL = torch.zeros(3)


def reads_a_global():
    return _GLOBAL + 1


def writes_a_global():
    _GLOBAL.add_(1)


def test_a_check_tells_of_a_tensor_that_is_read_without_being_given_and_that_another_changes():
    graph = TaskGraph(cpu_lanes=2)
    graph.add(reads_a_global, writes=())
    assert graph.check() == []  # nobody changes it
    graph.add(_GLOBAL.add_, 1)
    (sentence,) = graph.check()
    assert sentence == (
        "'reads_a_global' reads a tensor of shape (3,) that 'add_' changes: make it an argument"
    )


def test_a_check_tells_of_a_tensor_that_is_changed_and_in_no_writes():
    graph = TaskGraph(cpu_lanes=2)
    graph.add(writes_a_global, writes=[_GLOBAL])
    assert graph.check() == []
    graph = TaskGraph(cpu_lanes=2)
    graph.add(writes_a_global, writes=())
    (sentence,) = graph.check()
    assert sentence.startswith("'writes_a_global' changes a tensor of shape (3,), and its `writes`")


@pytest.mark.parametrize(
    "fn",
    [
        lambda: _GLOBAL.add_(1),
        lambda: [_GLOBAL.add_(1)],
        lambda: _GLOBAL[1:].add_(1),
        lambda: (_GLOBAL.add_(1), _GLOBAL)[1],
        lambda: torch.add(_GLOBAL, 1, out=_GLOBAL),
        lambda: _GLOBAL.detach().add_(1),
        lambda: _GLOBAL.view(3, 1).add_(1),
    ],
)
def test_a_check_tells_of_what_a_task_changes_and_returns(fn):
    graph = TaskGraph(cpu_lanes=2)
    graph.add(fn, writes=())
    assert len(graph.check()) == 1
    graph = TaskGraph(cpu_lanes=2)
    graph.add(fn, writes=[_GLOBAL])
    assert graph.check() == []


def test_a_check_tells_who_reads_a_global_and_returns_it():
    graph = TaskGraph(cpu_lanes=2)
    graph.add(lambda: _GLOBAL.view(3), writes=())
    graph.add(_GLOBAL.add_, 1)
    assert len(graph.check()) == 1


def test_a_check_tells_who_changes_a_result_that_it_was_not_given():
    graph, kept = TaskGraph(cpu_lanes=2), []
    graph.add(lambda: (kept.append(torch.zeros(3)), kept[-1])[1], name="makes")
    graph.add(lambda: kept[-1].add_(1), writes=(), name="changes")
    (sentence,) = graph.check()
    assert sentence.startswith("'changes' changes a tensor of shape (3,)")


def test_a_check_tells_of_random_numbers():
    graph = TaskGraph(cpu_lanes=2)
    graph.add(nn.Dropout(), X, writes=(), name="drops")
    graph.add(nn.Dropout().eval(), X, writes=(), name="does not")
    assert graph.check() == ["'drops' draws random numbers: leave its `writes` out"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x + 1).add_(1),
        lambda x: torch.from_numpy(x.numpy().copy()).add_(1),
        lambda x: torch.tensor([1.0, 2.0]).mul_(2).sum(),
        lambda x: [torch.zeros(3).add_(x) for _ in range(3)],
        lambda x: torch.from_numpy(x.numpy().copy()),
        lambda x: x.clone().view(3, 1).add_(1)[1:],
    ],
)
def test_a_check_is_silent_about_what_a_task_makes_itself(fn):
    graph = TaskGraph(cpu_lanes=2)
    for _ in range(2):
        graph.add(fn, X, writes=())
    assert graph.check() == []
