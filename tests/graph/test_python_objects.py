"""Lists, slices, arrays of objects and modules among what tasks use: nothing stands for them."""

import collections
import operator

import numpy as np
import pytest
import torch

import autopar as ap

ONES, TWOS = torch.ones(3), torch.full((3,), 2.0)


def waits_of(graph):
    return [sorted(node.before) for node in graph.plan().nodes]


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: [1, 2], (operator.setitem, 0, 5)),
        (lambda: [1, 2], (operator.iadd, [3])),
        (lambda: {0: 1}, (operator.delitem, 0)),
        (lambda: collections.deque([1]), (operator.iadd, [3])),
    ],
    ids=["list", "longer", "dict", "deque"],
)
def test_operators_that_change_containers_keep_the_order(make, change):
    held, (fn, *args) = make(), change
    graph = ap.TaskGraph(cpu_lanes=2)
    for function, *given in [(len, held), (fn, held, *args), (len, held)]:
        graph.add(function, *given, writes=() if function is len else None)
    assert waits_of(graph) == [[], [0], [1]]


def test_lists_that_are_written_are_looked_into_for_each_run():
    first, then, held = torch.zeros(3), torch.zeros(3), []
    held.append(first)
    graph = ap.TaskGraph(cpu_lanes=2)
    graph.add(torch._foreach_add_, held, 1)
    graph.add(then.mul_, 2)
    assert waits_of(graph) == [[], []]
    held[:] = [then]
    assert waits_of(graph) == [[], [0]]


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (operator.getitem, lambda x: (torch.arange(9), slice(x, None))),
        (operator.mul, lambda x: (np.array([x], dtype=object), 2)),
    ],
    ids=["slice", "array of objects"],
)
def test_tensors_in_slices_and_arrays_of_objects_count(fn, args):
    x = torch.tensor(1)
    graph = ap.TaskGraph(cpu_lanes=2)
    graph.add(x.add_, 1)
    graph.add(fn, *args(x))
    assert waits_of(graph) == [[], [0]]


def test_functions_may_be_called_resize_and_modules_be_lazy():
    def resize(image, size):
        return image[:size]

    graph = ap.TaskGraph(cpu_lanes=2)
    small, out = graph.add(resize, ONES, 2), graph.add(torch.nn.LazyLinear(2), ONES)
    assert graph.run()[[small, out]][0].tolist() == [1, 1]


def test_a_graph_is_not_what_a_method_of_its_holder_uses():
    class Trainer:
        def __init__(self):
            self.graph = ap.TaskGraph(cpu_lanes=2)

        def step(self, x):
            return x * 2

    trainer, xs = Trainer(), [torch.ones(1) for _ in range(3)]
    for x in xs:
        trainer.graph.add(trainer.step, x, writes=())
        trainer.graph.add(x.add_, 1)
    assert waits_of(trainer.graph) == [[], [0], [], [2], [], [4]]


def caught(read):
    def code(x):
        try:
            return x + read(x)
        except Exception:
            return x

    return code


def widened(x):
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.ones(3)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (caught(lambda x: float(x.numpy().max())), "it reads a tensor's numbers by NumPy"),
        (caught(lambda x: int(x.sum())), "depends on the data"),
        (caught(lambda x: int(x[0].item())), "depends on the data"),
        (caught(lambda x: [5, 6, 7][x[0].long()]), "depends on the data"),
        (widened, "it sets torch's default dtype"),
    ],
    ids=["numpy", "int", "item", "index", "dtype"],
)
def test_what_can_not_be_traced_is_refused_also_where_the_code_catches_that(code, message):
    with pytest.raises(ValueError, match=message):
        ap.TaskGraph.trace(code, ONES)


def test_code_may_catch_errors_of_its_own():
    graph, result = ap.TaskGraph.trace(caught(lambda x: x.view(7)), ONES)
    assert graph.run()[result].tolist() == [1, 1, 1]


def test_traced_code_runs_under_the_default_dtype_of_its_trace():
    graph, _ = ap.TaskGraph.trace(lambda: torch.ones(3))
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(RuntimeError, match="code was traced with torch.float32"):
            graph.run()
    finally:
        torch.set_default_dtype(torch.float32)
