"""Ways to write and to read memory, in tasks whose order matters: right, or refused by name.

In each form a task writes and the next one reads. Where the plan leaves their order open, the
writer is held until the reader has ended, which is the worst that may happen.
"""

import collections
import contextlib
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
from torch import nn

from autopar import TaskGraph
from autopar.graph.node import Node

pytestmark = [
    pytest.mark.usefixtures("threads_gone"),
    pytest.mark.filterwarnings("ignore:Sparse"),
]

_WAIT_S = 10
TOLD, CAUGHT, REFUSED = "told", "caught", "refused"

FORMS = {}


def form(verdict, name=None):
    """Name a form, and what becomes of it.

    `told`: the plan orders the tasks before anything runs. `caught`: a run that has them in the
    wrong order raises an error that names the task, and after a check they are in order.
    `refused`: `add` or the run says that it can't be.
    """

    def kept(fn):
        FORMS[name or fn.__name__.replace("_", " ").strip()] = verdict, fn
        return fn

    return kept


def buffer(*shape):
    return torch.zeros(shape or (4,))


def read(graph, *values):
    """A reader of tensors."""
    return graph.add(lambda *values: [copy.deepcopy(_plain(value)) for value in values], *values)


def _plain(value):
    if isinstance(value, torch.Tensor):
        return (value.to_dense() if value.layout != torch.strided else value).detach().clone()
    return value


# -- operators, called in every way ---------------------------------------------------------------


def simple(name, verdict, make):
    """A form of one writer: `make` gives its call for a buffer."""

    def build(graph):
        buf = buffer()
        fn, *args = make(buf)
        options = args.pop() if args and isinstance(args[-1], dict) else {}
        return graph.add(fn, *args, **options), read(graph, buf)

    form(verdict, name)(build)


@torch.library.custom_op("autopar_forms::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("autopar_forms::liar", mutates_args=())
def liar(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.clone()


ONE, IDX = torch.ones(4), torch.tensor([0, 1])
CALLS = {
    "a bound method": lambda b: (b.add_, 1),
    "a bound copy_": lambda b: (b.copy_, ONE),
    "a bound fill_": lambda b: (b.fill_, 2),
    "a bound zero_ of ones": lambda b: (b.fill_(1).zero_,),
    "a method of the class": lambda b: (torch.Tensor.add_, b, 1),
    "out": lambda b: (torch.add, ONE, 1, {"out": b}),
    "out of a bound method": lambda b: (functools.partial(torch.mul, out=b), ONE, 3),
    "out in a tuple": lambda b: (
        torch.max,
        ONE.expand(4, 4),
        0,
        {"out": (b, torch.zeros(4).long())},
    ),
    "setitem": lambda b: (operator.setitem, b, 0, 5),
    "a bound __setitem__": lambda b: (b.__setitem__, 0, 5),
    "__setitem__ of the class": lambda b: (torch.Tensor.__setitem__, b, slice(0, 2), 5),
    "iadd": lambda b: (operator.iadd, b, 1),
    "isub": lambda b: (operator.isub, b, 1),
    "a bound __iadd__": lambda b: (b.__iadd__, 1),
    "an overload": lambda b: (torch.ops.aten.add_.Tensor, b, ONE),
    "an overload with keywords": lambda b: (
        torch.ops.aten.add_.Tensor,
        b,
        {"other": ONE, "alpha": 2},
    ),
    "an overload's out": lambda b: (torch.ops.aten.add.out, ONE, ONE, {"out": b}),
    "a packet": lambda b: (torch.ops.aten.add_, b, 1),
    "a packet's out": lambda b: (torch.ops.aten.add, ONE, ONE, {"out": b}),
    "a partial": lambda b: (functools.partial(torch.Tensor.add_, b), 1),
    "a partial of a bound method": lambda b: (functools.partial(b.add_, 1),),
    "a partial of a partial": lambda b: (
        functools.partial(functools.partial(torch.Tensor.add_, b), alpha=2),
        ONE,
    ),
    "relu in place": lambda b: (F.relu, b.fill_(-1), {"inplace": True}),
    "relu in place by position": lambda b: (F.relu, b.fill_(-1), True),
    "relu_": lambda b: (F.relu_, b.fill_(-1)),
    "elu_": lambda b: (F.elu_, b.fill_(-1)),
    "leaky_relu in place": lambda b: (F.leaky_relu, b.fill_(-1), 0.1, {"inplace": True}),
    "dropout in place": lambda b: (F.dropout, b.fill_(1), 1.0, True, True),
    "threshold_": lambda b: (F.threshold_, b, 1.0, 2.0),
    "silu in place": lambda b: (F.silu, b.fill_(9), {"inplace": True}),
    "out of a solver": lambda b: (torch.linalg.solve, torch.eye(4), ONE, {"out": b}),
    "out of a special function": lambda b: (torch.special.expit, ONE, {"out": b}),
    "out of a concatenation": lambda b: (torch.cat, [ONE[:2], ONE[:2]], {"out": b}),
    "nn.init": lambda b: (nn.init.constant_, b, 3.0),
    "normal_": lambda b: (b.normal_,),
    "uniform_": lambda b: (torch.Tensor.uniform_, b),
    "scatter_": lambda b: (b.scatter_, 0, IDX, ONE[:2]),
    "index_put_": lambda b: (torch.index_put_, b, (IDX,), ONE[:2]),
    "index_add_": lambda b: (b.index_add_, 0, IDX, ONE[:2]),
    "masked_fill_": lambda b: (b.masked_fill_, ONE.bool(), 7),
    "copysign_": lambda b: (b.fill_(1).copysign_, -ONE),
    "addcmul_": lambda b: (b.addcmul_, ONE, ONE),
    "foreach": lambda b: (torch._foreach_add_, [b, buffer()], 1),
    "foreach with two lists": lambda b: (torch._foreach_copy_, [b], [ONE]),
    "a custom operator": lambda b: (bump, b),
    "a custom operator's overload": lambda b: (torch.ops.autopar_forms.bump.default, b),
    "a custom operator's packet": lambda b: (torch.ops.autopar_forms.bump, b),
    "a storage's fill_": lambda b: (b.untyped_storage().fill_, 1),
    "a view's method": lambda b: (b[1:3].add_, 1),
    "a transposed view": lambda b: (b.view(2, 2).t().add_, 1),
    "as_strided": lambda b: (b.as_strided((2,), (2,), 1).add_, 1),
    "detached": lambda b: (b.detach().add_, 1),
    "an array of the same memory": lambda b: (torch.from_numpy(b.numpy()).add_, 1),
    "resize_ and fill": lambda b: (b.fill_, 3),
    "numpy's out": lambda b: (np.add, b.numpy(), 1, {"out": b.numpy()}),
}
for _name, _make in CALLS.items():
    simple(_name, TOLD, _make)
simple("set_", REFUSED, lambda b: (b.set_, ONE))
simple("a list changed by setitem", REFUSED, lambda b: (operator.setitem, [b], 0, ONE))
simple("a custom operator that lies", REFUSED, lambda b: (liar, b))


# -- functions and objects that write -------------------------------------------------------------


def adds_one(x):
    x.add_(1)


simple("a function", CAUGHT, lambda b: (adds_one, b))
simple("a lambda", CAUGHT, lambda b: (lambda x: x.mul_(0).add_(3), b))
simple("a closure", CAUGHT, lambda b: (lambda: b.add_(1),))
simple(
    "a closure of a closure",
    CAUGHT,
    lambda b: ((lambda inner: lambda: inner())(lambda: b.add_(1)),),
)
simple("a bound method in a closure", CAUGHT, lambda b: ((lambda add: lambda: add(1))(b.add_),))
simple(
    "a partial in a closure",
    CAUGHT,
    lambda b: ((lambda call: lambda: call())(functools.partial(adds_one, b)),),
)
simple("a default", CAUGHT, lambda b: ((lambda x=b: x.add_(1)),))
simple("a view in a function", CAUGHT, lambda b: (lambda x: x[1:].add_(1), b))
simple("a slice given", CAUGHT, lambda b: (adds_one, b[1:3]))
simple(
    "half a buffer that is given by its other half",
    CAUGHT,
    lambda b: (lambda x: x._base.add_(1), b[:2]),
)
simple("an expanded row", CAUGHT, lambda b: (lambda x: x[:1].add_(1), b))
simple("data", CAUGHT, lambda b: (lambda x: x.data.add_(1), b))
simple("a storage in a function", CAUGHT, lambda b: (lambda x: x.untyped_storage().fill_(1), b))
simple("a storage that is given", CAUGHT, lambda b: (lambda s: s.fill_(1), b.untyped_storage()))
simple("a generator", REFUSED, lambda b: (lambda xs: [x.add_(1) for x in xs], (x for x in [b])))
simple("a module that is moved", REFUSED, lambda b: (nn.Linear(2, 2).to, torch.float64))
simple("a function that sets items", CAUGHT, lambda b: (lambda x: operator.setitem(x, 0, 4), b))
simple("a function that swaps data", REFUSED, lambda b: (lambda x: setattr(x, "data", ONE), b))
simple("a function with out", CAUGHT, lambda b: (lambda x: torch.add(ONE, 1, out=x), b))
simple("a list of buffers", CAUGHT, lambda b: (lambda xs: torch._foreach_add_(xs, 1), [b]))
simple("a dict of buffers", CAUGHT, lambda b: (lambda d: d["a"].add_(1), {"a": b}, {}))
simple("a function with keywords", CAUGHT, lambda b: (lambda *, x: x.add_(1), {"x": b}))
simple("under no_grad", CAUGHT, lambda b: (torch.no_grad()(adds_one), b))
simple("wrapped", CAUGHT, lambda b: (functools.wraps(adds_one)(lambda *args: adds_one(*args)), b))
simple("a weak reference", CAUGHT, lambda b: ((lambda r: lambda: r().add_(1))(weakref.ref(b)),))
simple("a namespace", CAUGHT, lambda b: (lambda s: s.x.add_(1), types.SimpleNamespace(x=b)))
simple(
    "a deque in a closure",
    CAUGHT,
    lambda b: ((lambda d: lambda: d[0].add_(1))(collections.deque([b])),),
)


class Marks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)


simple("a function of autograd", CAUGHT, lambda b: (Marks.apply, b))
simple("a method caller", CAUGHT, lambda b: (operator.methodcaller("add_", 1), b))
simple("a function bound to a tensor", CAUGHT, lambda b: (types.MethodType(adds_one, b),))
simple("vmap", CAUGHT, lambda b: (torch.vmap(lambda x: x.add_(1)), b))
simple(
    "a functional call of a module",
    CAUGHT,
    lambda b: (lambda x: torch.func.functional_call(nn.ReLU(inplace=True), {}, x), b.fill_(-1)),
)
simple("a comprehension", CAUGHT, lambda b: ((lambda xs: lambda: [x.add_(1) for x in xs])([b]),))
simple("a code string", CAUGHT, lambda b: (eval("lambda x: x.add_(1)"), b))


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


class Holder:
    shared = None

    def __init__(self, x):
        self.x = x

    def step(self):
        self.x.add_(1)

    def through(self):
        self.step()

    def __call__(self):
        self.x.add_(1)

    @classmethod
    def of_class(cls):
        cls.shared.add_(1)

    @property
    def view(self):
        return self.x[:2]

    def by_property(self):
        self.view.add_(1)

    by_two = functools.partialmethod(lambda self, n: self.x.add_(n), 2)


simple("a dataclass", CAUGHT, lambda b: (lambda batch: batch.x.add_(1), Batch(b)))
simple("a method of an object", CAUGHT, lambda b: (Holder(b).step,))
simple("a method that calls another", CAUGHT, lambda b: (Holder(b).through,))
simple("an object that is called", CAUGHT, lambda b: (Holder(b),))
simple("a property", CAUGHT, lambda b: (Holder(b).by_property,))
simple("a partial method", CAUGHT, lambda b: (Holder(b).by_two,))
simple("an object in a closure", CAUGHT, lambda b: ((lambda own: lambda: own.step())(Holder(b)),))


@form(CAUGHT)
def _a_class_method(graph):
    class Own(Holder):
        shared = buffer()

    return graph.add(Own.of_class), read(graph, Own.shared)


# What the code of tasks finds among the globals of this module.
_buffer, _module, _boxes, _made = buffer(), nn.Linear(2, 2), {"box": [buffer()]}, buffer()


def writes_a_global():
    _buffer.add_(1)


def reads_a_global():
    return _helper()


def _helper():
    return _buffer.clone()


def writes_a_global_box():
    _boxes["box"][0].add_(1)


def writes_a_global_module():
    with torch.no_grad():
        _module.weight.add_(1)


@form(CAUGHT)
def _a_global(graph):
    return graph.add(writes_a_global), read(graph, _buffer)


@form(TOLD)
def _a_global_that_is_read_by_a_helper(graph):
    return graph.add(_buffer.add_, 1), graph.add(reads_a_global)


@form(CAUGHT)
def _a_global_container(graph):
    return graph.add(writes_a_global_box), read(graph, _boxes["box"][0])


@form(CAUGHT)
def _a_global_module(graph):
    return graph.add(writes_a_global_module), graph.add(lambda: _module(torch.ones(2)).detach())


@form(TOLD)
def _a_global_module_that_is_read(graph):
    weight = _module.weight.detach()
    return graph.add(weight.add_, 1), graph.add(lambda: _module(torch.ones(2)).detach())


@form(TOLD)
def _a_buffer_read_through_a_nested_function(graph):
    buf = buffer()

    def outer():
        def inner():
            return buf.clone()

        return inner()

    return graph.add(buf.add_, 1), graph.add(outer)


@form(TOLD)
def _a_buffer_read_through_a_partial_in_a_closure(graph):
    buf = buffer()
    reader = functools.partial(torch.clone, buf)
    return graph.add(buf.add_, 1), graph.add(lambda: reader())


@form(TOLD)
def _a_buffer_read_through_a_bound_method_in_a_closure(graph):
    buf = buffer()
    reader = buf.clone
    return graph.add(buf.add_, 1), graph.add(lambda: reader())


@form(TOLD)
def _a_buffer_read_as_an_array(graph):
    buf = buffer()
    return graph.add(buf.add_, 1), graph.add(np.array, buf.numpy())


@form(TOLD)
def _an_array_read_in_a_closure(graph):
    array = np.zeros(4)
    return graph.add(torch.from_numpy(array[2:]).add_, 1), graph.add(lambda: array.copy())


# -- modules, optimizers and gradients ------------------------------------------------------------


@form(TOLD)
def _a_module_in_place(graph):
    buf = buffer().fill_(-1)
    return graph.add(nn.ReLU(inplace=True), buf), read(graph, buf)


@form(TOLD)
def _a_sequence_whose_first_module_is_in_place(graph):
    buf = buffer().fill_(-1)
    return graph.add(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)), buf), read(graph, buf)


@form(CAUGHT)
def _a_sequence_that_hands_its_input_on(graph):
    buf = buffer().fill_(-1)
    return graph.add(nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)), buf), read(graph, buf)


@form(TOLD)
def _batch_norm_in_training(graph):
    norm = nn.BatchNorm1d(4)
    return graph.add(norm, torch.rand(8, 4)), read(graph, norm.running_mean)


@form(TOLD)
def _batch_norm_inside_a_module(graph):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return graph.add(model, torch.rand(8, 4)), read(graph, model[1].num_batches_tracked)


@form(TOLD)
def _batch_norm_as_a_function(graph):
    mean, var = torch.zeros(4), torch.ones(4)
    writer = graph.add(F.batch_norm, torch.rand(8, 4), mean, var, training=True)
    return writer, read(graph, mean)


@form(CAUGHT)
def _batch_norm_in_a_closure(graph):
    norm = nn.BatchNorm1d(4)
    return graph.add(lambda x: norm(x), torch.rand(8, 4)), read(graph, norm.running_mean)


@form(CAUGHT)
def _a_functions_batch_norm(graph):
    mean, var = torch.zeros(4), torch.ones(4)
    writer = graph.add(lambda x: F.batch_norm(x, mean, var, training=True), torch.rand(8, 4))
    return writer, read(graph, mean)


@form(TOLD)
def _an_operators_batch_norm(graph):
    mean, var = torch.zeros(4), torch.ones(4)
    args = (torch.rand(8, 4), None, None, mean, var, True, 0.1, 1e-5)
    return graph.add(torch.ops.aten.native_batch_norm.default, *args), read(graph, mean)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", buffer())

    def forward(self, x):
        self.steps.add_(1)
        return x + 1


@form(CAUGHT)
def _a_module_that_counts(graph):
    model = Counts()
    return graph.add(model, torch.ones(4)), read(graph, model.steps)


@form(CAUGHT)
def _a_hook(graph):
    model, buf = nn.Linear(4, 4), buffer()
    model.register_forward_hook(lambda *_: buf.add_(1))
    return graph.add(model, torch.ones(4)), read(graph, buf)


@form(CAUGHT)
def _parametrized_by_its_spectral_norm(graph):
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    return graph.add(model, torch.ones(4)), read(graph, *model.buffers())


def stepped(graph, make):
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    return graph.add(make([weight]).step), read(graph, weight)


@form(TOLD)
def _sgd(graph):
    return stepped(graph, lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9))


@form(TOLD)
def _adam(graph):
    return stepped(graph, lambda weights: torch.optim.Adam(weights, lr=0.1))


@form(TOLD)
def _lbfgs(graph):
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.LBFGS([weight])

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    return graph.add(optimizer.step, closure), read(graph, weight)


@form(CAUGHT)
def _an_average_of_weights(graph):
    model = nn.Linear(4, 4)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    with torch.no_grad():
        model.weight.add_(1)
    return graph.add(average.update_parameters, model), read(graph, *average.parameters())


@form(CAUGHT)
def _a_state_that_is_loaded(graph):
    model = nn.Linear(4, 4)
    state = {name: torch.ones_like(each) for name, each in model.state_dict().items()}
    return graph.add(model.load_state_dict, state), read(graph, *model.parameters())


@form(CAUGHT)
def _an_embedding_of_bounded_norm(graph):
    model = nn.Embedding(4, 4, max_norm=0.1)
    return graph.add(model, torch.tensor([0, 1])), read(graph, model.weight)


@form(TOLD)
def _instance_norm_in_training(graph):
    norm = nn.InstanceNorm1d(4, track_running_stats=True)
    return graph.add(norm, torch.rand(2, 4, 8)), read(graph, norm.running_mean)


@form(CAUGHT)
def _an_optimizer_in_a_function(graph):
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    return graph.add(lambda: optimizer.step()), read(graph, weight)


@form(TOLD)
def _a_leaf_updated_without_grad(graph):
    weight = torch.ones(4, requires_grad=True)
    return graph.add(torch.no_grad()(torch.Tensor.add_), weight.detach(), 1), read(graph, weight)


@form(CAUGHT)
def _a_leaf_updated_in_a_function(graph):
    weight = torch.ones(4, requires_grad=True)

    def update():
        with torch.no_grad():
            weight.sub_(0.5)

    return graph.add(update), read(graph, weight)


@form(TOLD)
def _backward_and_a_step(graph):
    weight = nn.Parameter(torch.ones(4))
    loss = (weight * 2).sum()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.zero_grad(set_to_none=False)
    weight.grad = torch.zeros(4)
    writer = graph.add(lambda: loss.backward(retain_graph=True))
    return writer, graph.add(lambda: weight.grad.clone())


@form(TOLD)
def _a_bound_backward(graph):
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.zeros(4)
    loss = (weight * 2).sum()
    return graph.add(loss.backward, retain_graph=True), graph.add(lambda: weight.grad.clone())


@form(TOLD)
def _gradients_clipped(graph):
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.full((4,), 9.0)
    writer = graph.add(nn.utils.clip_grad_norm_, [weight], 1.0)
    return writer, graph.add(lambda: weight.grad.clone())


# -- memory of other kinds, and what leads to it --------------------------------------------------


@form(TOLD)
def _an_empty_tensor_in_writes(graph):
    buf = torch.empty(0)
    writer = graph.add(lambda x: x.resize_(3).fill_(1), buf, writes=[buf])
    return writer, graph.add(lambda x: x.shape[0] and x.clone(), buf)


@form(TOLD)
def _a_sparse_tensor_in_writes(graph):
    sparse = torch.eye(3).to_sparse().coalesce()
    return graph.add(lambda x: x.mul_(3), sparse, writes=[sparse]), read(graph, sparse)


@form(TOLD)
def _a_sparse_tensors_values(graph):
    sparse = torch.eye(3).to_sparse().coalesce()
    return graph.add(sparse.values().mul_, 3), read(graph, sparse)


@form(TOLD)
def _a_compressed_tensors_values(graph):
    rows, columns = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    sparse = torch.sparse_csr_tensor(rows, columns, torch.ones(2))
    return graph.add(sparse.values().mul_, 3), read(graph, sparse)


@form(TOLD)
def _a_sparse_tensor_of_given_values(graph):
    values = torch.ones(2)
    sparse = graph.add(torch.sparse_coo_tensor, torch.tensor([[0, 1]]), values, (3,))
    graph.order(sparse, writer := graph.add(values.mul_, 3))
    return writer, read(graph, sparse)


@form(TOLD)
def _a_tensor_whose_data_was_swapped(graph):
    one, other = buffer(), buffer()
    writer, reader = graph.add(one.add_, 1), read(graph, other)
    other.data = one
    return writer, reader


@form(TOLD)
def _a_view_made_by_a_task(graph):
    buf = buffer()
    view = graph.add(torch.Tensor.view, buf, 2, 2)
    return graph.add(torch.Tensor.add_, view, 1), read(graph, buf)


@form(TOLD)
def _a_result(graph):
    made = graph.add(torch.zeros, 4)
    return graph.add(torch.Tensor.add_, made, 1), read(graph, made)


@form(CAUGHT)
def _a_result_written_by_a_function(graph):
    made = graph.add(torch.zeros, 4)
    return graph.add(adds_one, made), read(graph, made)


@form(CAUGHT)
def _a_part_of_a_result(graph):
    parts = graph.add(torch.chunk, torch.zeros(4), 2)
    first = graph.add(operator.getitem, parts, 0)
    return graph.add(adds_one, first), read(graph, parts)


@form(CAUGHT)
def _a_result_in_an_object(graph):
    made = graph.add(lambda: Batch(torch.zeros(4)))
    return graph.add(lambda batch: batch.x.add_(1), made), graph.add(
        lambda batch: batch.x.clone(), made
    )


@form(REFUSED)
def _two_tensors_swapped(graph):
    one, other = torch.zeros(4), torch.ones(4)
    return graph.add(torch.utils.swap_tensors, one, other), read(graph, one)


@form(REFUSED)
def _a_task_in_a_set(graph):
    made = graph.add(torch.zeros, 4)
    return graph.add(lambda tasks: None, {made}), None


@form(REFUSED)
def _a_task_in_an_object(graph):
    made = graph.add(torch.zeros, 4)
    return graph.add(lambda batch: None, Batch(made)), None


@form(TOLD)
def _random_numbers(graph):
    return graph.add(torch.rand, 4), graph.add(torch.rand, 4)


# -- what becomes of them -------------------------------------------------------------------------


def forms_that_are(*verdicts):
    return [name for name, (verdict, _) in FORMS.items() if verdict in verdicts]


def built(name):
    for each in (_buffer, _boxes["box"][0], _module.weight.detach()):
        each.zero_()
    torch.manual_seed(0)
    graph = TaskGraph(cpu_lanes=2)
    return graph, *FORMS[name][1](graph)


def in_order(name, times):
    """What the reader finds in the end, when all is run in order so many times."""
    graph, _, reader = built(name)
    for _ in range(times):
        torch.manual_seed(1)
        found = graph.run_serial()[reader]
    return found


def at_worst(graph, writer, reader):
    torch.manual_seed(1)
    with worst(graph, writer, reader):
        return graph.run()[reader]


def ordered(plan, writer, reader):
    """Whether the reader has to come after the writer."""
    left, seen = [reader.number], set()
    while left:
        for before in plan.nodes[left.pop()].before - seen:
            seen.add(before)
            left.append(before)
    return writer.number in seen


@contextlib.contextmanager
def worst(graph, writer, reader):
    """Hold the writer until the reader has ended, if the plan lets it begin before."""
    read, call = threading.Event(), Node.call
    plan = graph.plan()
    lanes = {entry.job: entry.lane for entry in plan.schedule.entries}
    held = not ordered(plan, writer, reader)
    if held:
        assert lanes[writer.number] != lanes[reader.number], "they can't run at once"

    def late(node, results, **how):
        if held and node.number == writer.number:
            assert read.wait(_WAIT_S)
        try:
            return call(node, results, **how)
        finally:
            if node.number == reader.number:
                read.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "call", late)
        yield


def same(found, wanted):
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, (torch.Tensor, np.ndarray)):
        return bool((torch.as_tensor(found) == torch.as_tensor(wanted)).all())
    return found == wanted


@pytest.mark.parametrize("name", forms_that_are(TOLD))
def test_what_is_told_is_in_order(name):
    graph, writer, reader = built(name)
    assert ordered(graph.plan(), writer, reader)
    assert same(at_worst(graph, writer, reader), in_order(name, 1))
    assert same(at_worst(graph, writer, reader), in_order(name, 2))


@pytest.mark.parametrize("name", forms_that_are(CAUGHT))
def test_what_is_not_told_is_caught_and_found_by_a_check(name):
    graph, writer, reader = built(name)
    assert not ordered(graph.plan(), writer, reader)
    with pytest.raises(
        RuntimeError, match=rf"task .*'{writer.name}'.* (changed|reads) .*check\(\)"
    ):
        at_worst(graph, writer, reader)
    graph, writer, reader = built(name)
    wanted = f"{reader.name!r} comes after {writer.name!r}"
    assert any(sentence.startswith(wanted) for sentence in graph.check())
    assert ordered(graph.plan(), writer, reader)
    assert same(at_worst(graph, writer, reader), in_order(name, 2))
    assert same(at_worst(graph, writer, reader), in_order(name, 3))


@pytest.mark.parametrize("name", forms_that_are(REFUSED))
def test_what_cannot_be_right_is_refused(name):
    with pytest.raises((TypeError, ValueError, RuntimeError), match="task '"):
        built(name)[0].run()


@pytest.mark.parametrize("name", forms_that_are(TOLD, CAUGHT))
def test_each_form_writes_what_is_read(name):
    """Or else no order could be wrong."""
    graph, writer, reader = built(name)
    if not graph.plan().nodes[reader.number].before - {writer.number}:
        torch.manual_seed(1)
        early = graph.plan().nodes[reader.number].call([None] * reader.number)
        assert not same(early, in_order(name, 1))
