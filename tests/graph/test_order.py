"""What is kept in order: tasks that write memory, and those that read it, however they do so.

In each form one task writes and the next one reads. Where the plan leaves the order open, the
writer is held until the reader has ended, which is the worst that may happen.
"""

import collections
import copy
import dataclasses
import functools
import operator
import threading
import types
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from graph_checks import around_calls
from torch import nn

from autopar import TaskGraph

pytestmark = [
    pytest.mark.usefixtures("threads_gone"),
    pytest.mark.filterwarnings("ignore:Sparse"),
]

_WAIT_S = 10
ONE, IDX, EIGHT = torch.ones(4), torch.tensor([0, 1]), torch.rand(8, 4)


def buffer():
    return torch.zeros(4)


def plain(value):
    if isinstance(value, torch.Tensor):
        return (value.to_dense() if value.layout != torch.strided else value).detach().clone()
    return copy.deepcopy(value)


def read(graph, *values):
    return graph.add(lambda *values: list(map(plain, values)), *values)


def adds_one(x):
    x.add_(1)


def held_by(fn):
    """A function that finds another one in its closure."""
    return lambda: fn()


# -- calls that write a buffer, which is read next ------------------------------------------------


@torch.library.custom_op("autopar_forms::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    x.add_(1)


partial, AT, OPS = functools.partial, torch.ops.aten, torch.ops.autopar_forms
LONGS = torch.zeros(4).long()
CALLS = {  # a function and its arguments; a dict at the end has those by name
    "a bound method": lambda b: (b.add_, 1),
    "a method of the class": lambda b: (torch.Tensor.add_, b, 1),
    "random numbers": lambda b: (b.normal_,),
    "out": lambda b: (torch.add, ONE, 1, {"out": b}),
    "out of a partial": lambda b: (partial(torch.mul, out=b), ONE, 3),
    "out in a tuple": lambda b: (torch.max, ONE.expand(4, 4), 0, {"out": (b, LONGS)}),
    "out of a solver": lambda b: (torch.linalg.solve, torch.eye(4), ONE, {"out": b}),
    "setitem": lambda b: (operator.setitem, b, 0, 5),
    "a bound __setitem__": lambda b: (b.__setitem__, 0, 5),
    "iadd": lambda b: (operator.iadd, b, 1),
    "an overload by keywords": lambda b: (AT.add_.Tensor, b, {"other": ONE, "alpha": 2}),
    "a packet": lambda b: (AT.add_, b, 1),
    "a partial of a bound method": lambda b: (partial(b.add_, 1),),
    "partials": lambda b: (partial(partial(torch.Tensor.add_, b), alpha=2), ONE),
    "relu in place": lambda b: (F.relu, b.fill_(-1), {"inplace": True}),
    "relu_": lambda b: (F.relu_, b.fill_(-1)),
    "dropout in place": lambda b: (F.dropout, b.fill_(1), 1.0, True, True),
    "nn.init": lambda b: (nn.init.constant_, b, 3.0),
    "foreach": lambda b: (torch._foreach_add_, [b, buffer()], 1),
    "foreach with two lists": lambda b: (torch._foreach_copy_, [b], [ONE]),
    "a custom operator": lambda b: (bump, b),
    "a storage's fill_": lambda b: (b.untyped_storage().fill_, 1),
    "a view's method": lambda b: (b.view(2, 2).t()[1:].add_, 1),
    "detached": lambda b: (b.detach().add_, 1),
    "an array of the same memory": lambda b: (torch.from_numpy(b.numpy()).add_, 1),
    "numpy's out": lambda b: (np.add, b.numpy(), 1, {"out": b.numpy()}),
    "a module in place": lambda b: (nn.ReLU(inplace=True), b.fill_(-1)),
    "batch norm": lambda b: (F.batch_norm, EIGHT, b, ONE.clone(), {"training": True}),
}


class Marks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)


@dataclasses.dataclass
class Holder:
    x: torch.Tensor

    def step(self):
        self.x.add_(1)

    def through(self):
        self.step()

    __call__ = step

    @property
    def view(self):
        return self.x[:2]

    def by_property(self):
        self.view.add_(1)

    by_two = functools.partialmethod(lambda self, n: self.x.add_(n), 2)


RELU = nn.ReLU(inplace=True)
CALLS |= {
    "a function": lambda b: (adds_one, b),
    "by keyword": lambda b: (lambda *, x: x.add_(1), {"x": b}),
    "a closure": lambda b: (lambda: b.add_(1),),
    "a bound method in a closure": lambda b: ((lambda add: lambda: add(1))(b.add_),),
    "a partial in a closure": lambda b: (held_by(partial(adds_one, b)),),
    "a default": lambda b: ((lambda x=b: x.add_(1)),),
    "the other half": lambda b: (lambda x: x._base.add_(1), b[:2]),
    "data": lambda b: (lambda x: x.data.add_(1), b),
    "a storage in a function": lambda b: (lambda x: x.untyped_storage().fill_(1), b),
    "a storage that is given": lambda b: (lambda s: s.fill_(1), b.untyped_storage()),
    "a function with out": lambda b: (lambda x: torch.add(ONE, 1, out=x), b),
    "a dict": lambda b: (lambda d: d["a"].add_(1), {"a": b}, {}),
    "wrapped": lambda b: (functools.wraps(adds_one)(lambda *args: adds_one(*args)), b),
    "a weak reference": lambda b: ((lambda r: lambda: r().add_(1))(weakref.ref(b)),),
    "a namespace": lambda b: (lambda s: s.x.add_(1), types.SimpleNamespace(x=b)),
    "a deque": lambda b: ((lambda d: lambda: d[0].add_(1))(collections.deque([b])),),
    "a function of autograd": lambda b: (Marks.apply, b),
    "a method caller": lambda b: (operator.methodcaller("add_", 1), b),
    "bound to a tensor": lambda b: (types.MethodType(adds_one, b),),
    "vmap": lambda b: (torch.vmap(lambda x: x.add_(1)), b),
    "functional": lambda b: (lambda x: torch.func.functional_call(RELU, {}, x), b.fill_(-1)),
    "a comprehension": lambda b: ((lambda xs: lambda: [x.add_(1) for x in xs])([b]),),
    "a code string": lambda b: (eval("lambda x: x.add_(1)"), b),
    "a dataclass": lambda b: (lambda holder: holder.x.add_(1), Holder(b)),
    "a method that calls another": lambda b: (Holder(b).through,),
    "an object that is called": lambda b: (Holder(b),),
    "a property": lambda b: (Holder(b).by_property,),
    "a partial method": lambda b: (Holder(b).by_two,),
    "a class": lambda b: ((lambda kind: lambda: kind.x.add_(1))(type("Own", (), {"x": b})),),
    "a sequence that hands on": lambda b: (nn.Sequential(nn.Identity(), RELU), b.fill_(-1)),
}


def call_of(make, graph):
    fn, *args = make(b := buffer())
    options = args.pop() if args and isinstance(args[-1], dict) else {}
    return graph.add(fn, *args, **options), read(graph, b)


FORMS = {name: partial(call_of, make) for name, make in CALLS.items()}


# -- readers that are not given what they read ----------------------------------------------------

# What the code of tasks finds among the globals of this module.
_buffer, _module = buffer(), nn.Linear(2, 2)


def reads_a_global():
    return _helper()


def _helper():
    return _buffer.clone()


def writes_a_global_module():
    with torch.no_grad():
        _module.weight.add_(1)


def of_buffer(make):
    """A reader that is made for a buffer, after a writer which the plan knows."""
    return lambda graph: (graph.add((b := buffer()).add_, 1), graph.add(*make(b)))


FORMS |= {
    "a global read by a helper": lambda graph: (
        *(graph.add(_buffer.add_, 1), graph.add(reads_a_global)),
    ),
    "a global module that is read": lambda graph: (
        graph.add(_module.weight.detach().add_, 1),
        graph.add(lambda: _module(torch.ones(2)).detach()),
    ),
    "read through a nested function": of_buffer(lambda b: (lambda: (lambda: b.clone())(),)),
    "read through a partial": of_buffer(lambda b: (held_by(partial(torch.clone, b)),)),
    "read through a bound method": of_buffer(lambda b: (held_by(b.clone),)),
    "read as an array": of_buffer(lambda b: (np.array, b.numpy())),
    "random numbers drawn twice": lambda graph: (
        graph.add(torch.rand, 4),
        graph.add(torch.rand, 4),
    ),
}
FORMS |= {
    "a global": lambda graph: (graph.add(lambda: _buffer.add_(1)), read(graph, _buffer)),
    "a global module": lambda graph: (
        graph.add(writes_a_global_module),
        graph.add(lambda: _module(torch.ones(2)).detach()),
    ),
}


# -- modules, optimizers and gradients ------------------------------------------------------------


def form(forms):
    def note(fn):
        forms[fn.__name__.replace("_", " ")] = fn
        return fn

    return note


def weight_and_grad(grad=1.0):
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.full((4,), grad)
    return weight


@form(FORMS)
def buffers_of_norms_in_training(graph):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return graph.add(model, EIGHT), read(graph, model[1].num_batches_tracked)


@form(FORMS)
def parametrized_by_its_spectral_norm(graph):
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    return graph.add(model, torch.ones(4)), read(graph, *model.buffers())


@form(FORMS)
def an_embedding_of_bounded_norm(graph):
    model = nn.Embedding(4, 4, max_norm=0.1)
    return graph.add(model, torch.tensor([0, 1])), read(graph, model.weight)


@form(FORMS)
def an_optimizers_step(graph):
    optimizer = torch.optim.SGD([weight := weight_and_grad()], lr=0.1, momentum=0.9)
    return graph.add(optimizer.step), read(graph, weight)


@form(FORMS)
def a_bound_backward(graph):
    loss = ((weight := weight_and_grad(0.0)) * 2).sum()
    return graph.add(loss.backward, retain_graph=True), graph.add(lambda: weight.grad.clone())


@form(FORMS)
def gradients_clipped(graph):
    writer = graph.add(nn.utils.clip_grad_norm_, [weight := weight_and_grad(9.0)], 1.0)
    return writer, graph.add(lambda: weight.grad.clone())


# -- memory of other kinds, and what results hold -------------------------------------------------


@form(FORMS)
def a_sparse_tensors_values(graph):
    sparse = torch.eye(3).to_sparse().coalesce()
    return graph.add(sparse.values().mul_, 3), read(graph, sparse)


@form(FORMS)
def a_compressed_tensors_values(graph):
    sparse = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), IDX, torch.ones(2))
    return graph.add(sparse.values().mul_, 3), read(graph, sparse)


@form(FORMS)
def a_result(graph):
    result = graph.add(torch.zeros, 4)
    return graph.add(torch.Tensor.add_, result, 1), read(graph, result)


@form(FORMS)
def a_result_written_by_a_function(graph):
    result = graph.add(torch.zeros, 4)
    return graph.add(adds_one, result), read(graph, result)


@form(FORMS)
def a_part_of_a_result(graph):
    parts = graph.add(torch.chunk, torch.zeros(4), 2)
    return graph.add(adds_one, graph.add(operator.getitem, parts, 0)), read(graph, parts)


@form(FORMS)
def a_result_in_an_object(graph):
    holder = graph.add(lambda: Holder(torch.zeros(4)))
    writer = graph.add(lambda holder: holder.x.add_(1), holder)
    return writer, graph.add(lambda holder: holder.x.clone(), holder)


# -- what becomes of them -------------------------------------------------------------------------


def built(build):
    for tensor in (_buffer, _module.weight.detach()):
        tensor.zero_()
    torch.manual_seed(0)
    graph = TaskGraph(cpu_lanes=2)
    return graph, *build(graph)


def in_order(build, times):
    """What the reader finds in the end, when all is run in order so many times."""
    graph, _, reader = built(build)
    for _ in range(times):
        torch.manual_seed(1)
        result = graph.run_serial()[reader]
    return result


def ordered(plan, writer, reader):
    """Whether the reader has to come after the writer."""
    left, seen = [reader.number], set()
    while left:
        new = plan.nodes[left.pop()].before - seen
        seen |= new
        left += new
    return writer.number in seen


def at_worst(graph, writer, reader):
    """Hold the writer until the reader has ended, if the plan lets it begin before."""
    was_read, plan = threading.Event(), graph.plan()
    lanes = {entry.job: entry.lane for entry in plan.schedule.entries}
    held = not ordered(plan, writer, reader)
    assert not held or lanes[writer.number] != lanes[reader.number], "they can't run at once"

    def hold(node):
        assert node.number != writer.number or not held or was_read.wait(_WAIT_S)

    def let_go(node):
        if node.number == reader.number:
            was_read.set()

    torch.manual_seed(1)
    with around_calls(hold, let_go):
        return graph.run()[reader]


def same(one, other):
    if isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(other, (torch.Tensor, np.ndarray)):
        return bool((torch.as_tensor(one) == torch.as_tensor(other)).all())
    return one == other


def require_a_difference(build):
    """The writer writes what is read, or else no order could be wrong."""
    graph, writer, reader = built(build)
    if not graph.plan().nodes[reader.number].before - {writer.number}:
        torch.manual_seed(1)
        early = graph.plan().nodes[reader.number].call([None] * reader.number)
        assert not same(early, in_order(build, 1))


@pytest.mark.parametrize("name", FORMS)
def test_who_reads_what_another_writes_waits_for_it(name):
    require_a_difference(FORMS[name])
    graph, writer, reader = built(FORMS[name])
    assert ordered(graph.plan(), writer, reader)
    for times in (1, 2):
        assert same(at_worst(graph, writer, reader), in_order(FORMS[name], times))


def test_a_function_that_equals_another_by_another_name_is_not_taken_for_it():
    graph, x = TaskGraph(), torch.ones(2, 2)
    assert torch.dsmm == torch.mm
    graph.add(torch.dsmm, x, x)  # under this name torch declares nothing
    before, after = graph.add(torch.mm, x, x), graph.add(torch.mm, x, x)
    nodes = graph.plan().nodes
    assert before.number not in nodes[after.number].before
