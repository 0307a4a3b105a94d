"""What is kept in order: who writes memory and who reads it, and all that nobody has declared."""

import collections
import functools
import operator

import numpy as np
import pytest
import torch
from graph_checks import ancestors, labels
from torch import nn

from autopar import TaskGraph

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def adds_one(x):
    x.add_(1)


# -- operators declare what they write: its readers wait for it, and nobody else does --------------


@torch.library.custom_op("autopar_forms::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    x.add_(1)


partial, AT = functools.partial, torch.ops.aten
X, ONE, EIGHT, LONGS = torch.ones(3), torch.ones(4), torch.eye(8, 4), torch.zeros(4).long()
CALLS = {  # a function and its arguments, for a buffer; a dict at the end has those by name
    "a bound method": lambda b: (b.add_, 1),
    "a method of the class": lambda b: (torch.Tensor.add_, b, 1),
    "random numbers": lambda b: (b.normal_,),
    "out": lambda b: (torch.add, ONE, 1, {"out": b}),
    "out of a partial": lambda b: (partial(torch.mul, out=b), ONE, 3),
    "outputs that a packet names": lambda b: (
        *(AT.sort, ONE.clone().neg()),
        {"values": b, "indices": LONGS},
    ),
    "an overload by keywords": lambda b: (AT.add_.Tensor, b, {"other": ONE, "alpha": 2}),
    "foreach": lambda b: (torch._foreach_add_, [b, ONE.clone()], 1),
    "a custom operator": lambda b: (bump, b),
    "a view's method": lambda b: (b.view(2, 2).t()[1:].add_, 1),
    "an array of the same memory": lambda b: (torch.from_numpy(b.numpy()).add_, 1),
    "statistics": lambda b: (
        *(torch.batch_norm, EIGHT, None, None, b, ONE.clone(), True, 0.1, 1e-5, False),
    ),
}


def called(name, buffer):
    fn, *args = CALLS[name](buffer)
    options = args.pop() if args and isinstance(args[-1], dict) else {}
    return partial(fn, *args, **options)


@pytest.mark.parametrize("name", CALLS)
def test_who_reads_what_an_operator_writes_waits_for_it_and_nobody_else_does(name):
    buffer, own = torch.zeros(4), torch.zeros(4)
    graph, call, twin = TaskGraph(cpu_lanes=2), called(name, buffer), called(name, own)
    before = own.clone()
    early, writer = graph.add(torch.clone, buffer), graph.add(call)
    reader, other = graph.add(torch.clone, buffer), graph.add(torch.neg, X)
    nodes = graph.plan().nodes
    assert nodes[writer.number].before == {early.number}
    assert nodes[reader.number].before == {writer.number}
    assert nodes[other.number].before == set()
    for number in range(2):
        torch.manual_seed(number)
        found = graph.run()[reader]
        torch.manual_seed(number)
        twin()
        assert torch.equal(found, own)
    assert not torch.equal(own, before)


SHOWN = {  # a result, and another one that may lie in the same memory
    "itself": lambda graph: [graph.add(torch.zeros, 4)] * 2,
    "a view": lambda graph: [x := graph.add(torch.zeros, 4), graph.add(torch.t, x)],
    "a part": lambda graph: [
        parts := graph.add(torch.chunk, torch.zeros(4), 2),
        graph.add(operator.getitem, parts, 0, writes=()),
    ],
    "a sparse tensor's values": lambda graph: [
        x := torch.eye(3).to_sparse().coalesce(),
        x.values(),
    ],
    # These declare nothing, or fresh memory.
    "what einsum returns": lambda graph: [EIGHT, graph.add(torch.einsum, "ij->ji", EIGHT)],
    "what dropout returns": lambda graph: [EIGHT, graph.add(torch.dropout, EIGHT, 0.5, False)],
    "what contiguous returns": lambda graph: [EIGHT, graph.add(torch.Tensor.contiguous, EIGHT)],
}


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("written", [0, 1])
def test_who_reads_memory_by_another_name_waits_for_who_writes_it(kind, written):
    graph = TaskGraph(cpu_lanes=2)
    values = SHOWN[kind](graph)
    writer = graph.add(lambda value: None, values[written], writes=[values[written]])
    reader = graph.add(lambda value: None, values[1 - written], writes=())
    assert writer.number in graph.plan().nodes[reader.number].before


BEYOND = {  # what reads memory that its argument, a part of it, leads to
    "as_strided": lambda graph, part: graph.add(torch.as_strided, part, (1,), (1,), 6),
    "a copy": lambda graph, part: graph.add(AT.as_strided_copy, part, (1,), (1,), 6),
    "of a result": lambda graph, part: graph.add(
        *(torch.as_strided, graph.add(torch.t, part), (1,), (1,), 6)
    ),
    "none": lambda graph, part: graph.add(torch.t, part),
}


@pytest.mark.parametrize("kind", BEYOND)
def test_just_who_may_leave_the_part_that_it_is_given_waits_for_who_writes_beside_it(kind):
    graph, memory = TaskGraph(cpu_lanes=2), torch.zeros(8)
    writer = graph.add(torch.Tensor.fill_, memory[4:], 7)
    reader = graph.add(torch.sum, BEYOND[kind](graph, memory[:2]))
    later = graph.add(torch.Tensor.fill_, memory[6:], 8)
    plan = graph.plan()
    waits = kind != "none"
    assert (writer.number in ancestors(plan.nodes, reader.number)) == waits
    assert (reader.number in ancestors(plan.nodes, later.number)) == (waits and "copy" not in kind)
    assert graph.run()[reader].item() == (7 if waits else 0)


DRAW = {
    "an overload": (AT.rand.default, [3]),
    "a packet": (AT.rand, [3]),
    "dropout": (torch.dropout, X, 0.5, True),
    "torch's own generator": (partial(torch.rand, generator=torch.default_generator), 3),
}
DRAW_NOT = {
    "told not to": (torch.dropout, X, 0.5, False),
    "a generator of its own": (partial(torch.rand, generator=torch.Generator()), 3),
}


@pytest.mark.parametrize("kind", [*DRAW, *DRAW_NOT])
def test_just_who_draws_random_numbers_comes_after_others_who_do(kind):
    graph, (fn, *args) = TaskGraph(), (DRAW | DRAW_NOT)[kind]
    first, task = graph.add(torch.rand, 1), graph.add(fn, *args)
    assert (first.number in graph.plan().nodes[task.number].before) == (kind in DRAW)


# -- what is not declared keeps the order of the program, whatever it is and does ------------------


class Told(torch.Tensor):
    """A tensor whose class does something of its own where an operator is called."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Adds(torch.Tensor):
    """A tensor whose class has an operator of its own."""

    def __add__(self, other):
        return self


UNDECLARED = {
    "a function": (adds_one, torch.ones(3)),
    "a lambda": (lambda x: x + 1, X),
    "an object": (type("Object", (), {"__call__": lambda self: None})(),),
    "a partial function": (partial(adds_one, torch.ones(3)),),
    "a function of C": (print,),
    "NumPy's": (np.add, np.ones(3), 1),
    "a layer": (nn.Linear(3, 3), X),
    "a layer without a shape": (nn.LazyLinear(2), X),
    "an operator on a tensor with functions of its own": (torch.add, X.as_subclass(Told), 1),
    "Python's operator on a tensor of another kind": (operator.add, X.as_subclass(Adds), 1),
    "an operator on a list of another kind": (torch.stack, type("Own", (list,), {})([X])),
    "an argument by a name of Python's": (partial(torch.relu_, input=X),),
    "Python's operator": (operator.setitem, torch.ones(3), 0, 5),
    "Python's operator on a list": (operator.setitem, [1, 2], 0, 5),
    "Python's operator on an object": (operator.setitem, collections.UserDict(), 1, 2),
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
    graph = TaskGraph(cpu_lanes=3)
    for _ in range(3):
        graph.add(fn, *args, writes=())
    assert [node.before for node in graph.plan().nodes] == [set()] * 3


@pytest.mark.parametrize("writes", [False, True])
def test_tasks_share_a_copy_of_a_tensor_unless_it_is_written_in_between(writes):
    with labels():
        graph, x = TaskGraph(), torch.ones(2)
        graph.add(torch.neg, x, device="cuda:0")
        if writes:
            graph.add(torch.Tensor.add_, x, 1, writes=[x], device="cpu")
        graph.add(torch.neg, x, device="cuda:0")
        assert f"and {1 + writes} cop" in repr(graph.plan())


# Tasks of a GPU have streams of their own, and torch says that it waits where gradients meet.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_a_model_may_be_trained_by_tasks_where_it_is(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    graph, x = TaskGraph(cpu_lanes=2), torch.rand(8, 4, device=device)
    loss = graph.add(torch.sum, graph.add(torch.square, graph.add(model, x)))
    graph.add(optimizer.zero_grad, device=device)
    graph.add(torch.Tensor.backward, loss)
    step = graph.add(optimizer.step)
    assert step.device == torch.device(device)
    before = [each.clone() for each in model.parameters()]
    for _ in range(3):
        graph.run()
    assert model[1].num_batches_tracked.item() == 3
    assert not any(map(torch.equal, before[:2], list(model.parameters())[:2]))
