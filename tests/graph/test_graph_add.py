"""What `TaskGraph.add` takes: each of torch's functions; and which containers it refuses."""

# ruff: noqa: B008 - what a task reaches by its defaults is made where it is written

import collections
import contextvars
import dataclasses
import functools
import gc
import itertools
import logging
import math
import operator
import queue
import random
import sys
import threading
import time
import types
import unittest.mock
import warnings
import weakref
from collections import OrderedDict, UserDict, deque, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from autopar import TaskGraph
from autopar.effects.observer import random_numbers

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


# -- what is looked at is not run -----------------------------------------------------------------


class Callable:
    def __call__(self):
        return 1


class Config:
    def __init__(self, **held):
        self.__dict__["_held"] = held

    def __getattr__(self, name):
        return self._held[name]


class Refuses:
    """Raises at whatever it is asked."""

    def __getattribute__(self, name):
        raise LookupError(name)

    def __iter__(self):
        raise LookupError("iter")

    def __len__(self):
        raise LookupError("len")

    def __eq__(self, other):
        raise LookupError("eq")

    def __hash__(self):
        raise LookupError("hash")

    def __call__(self):
        return torch.ones(1)


class Lies(Refuses):
    @property
    def __class__(self):
        raise LookupError("class")


class RefusesAsDict(dict):
    __iter__ = keys = values = items = Refuses.__iter__
    __getattr__ = dict.__getitem__


class Lazy(types.ModuleType):
    def __getattr__(self, name):
        raise LookupError(name)


class WithProperties:
    @property
    def x(self):
        raise LookupError("x")

    __wrapped__ = __self__ = __name__ = dtype = x


UNASKED = {
    "a config": lambda: Config(lr=0.1),
    "what refuses": Refuses,
    "what lies of its class": Lies,
    "a dict that refuses": lambda: RefusesAsDict(a=1),
    "a lazy module": lambda: Lazy("lazy"),
    "properties": WithProperties,
    "a mock": lambda: unittest.mock.MagicMock(spec=torch.Tensor),
    "a function's mock": lambda: unittest.mock.create_autospec(len),
}


@pytest.mark.parametrize("kind", UNASKED)
@pytest.mark.parametrize(
    "form",
    {
        "closure": lambda graph, held: graph.add(lambda: held and held.x),
        "argument": lambda graph, held: graph.add(print, held),
        "list": lambda graph, held: graph.add(print, [held], end=held),
        "default": lambda graph, held: graph.add(lambda a=held: a),
        "partial": lambda graph, held: graph.add(functools.partial(print, held)),
        "object": lambda graph, held: graph.add(Held(held).__eq__, 1),
        "fn": lambda graph, held: graph.add(held) if callable(held) else None,
    }.items(),
    ids=lambda form: form[0],
)
def test_nothing_that_is_looked_at_is_run(kind, form):
    form[1](TaskGraph(), UNASKED[kind]())


def test_a_config_with_getattr_of_its_own_is_used():
    graph, config = TaskGraph(), Config(lr=0.5)
    scaled = graph.add(lambda: torch.ones(1) * config.lr)
    assert graph.run()[scaled].item() == 0.5


# -- what is reached ------------------------------------------------------------------------------


def reached(fn, *args):
    """What a task of a function is known to reach, and whether it is observed."""
    graph = TaskGraph()
    graph.add(fn, *args)
    node = graph._nodes[-1]
    return node.reached, node.uncounted


class OfClass:
    held = torch.zeros(3)

    def by_type(self):
        type(self).held.add_(1)

    @functools.cached_property
    def cached(self):
        return _GLOBAL

    def by_cached(self):
        self.cached.add_(1)


class OfSlots:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        _GLOBAL.add_(1)
        return x.clone()


class Queue(queue.Queue):
    pass


_GLOBAL = torch.zeros(3)
_VARIABLE = contextvars.ContextVar("variable", default=_GLOBAL)
_MODULE = types.ModuleType("autopar_of_the_program")
_MODULE.held = _GLOBAL


def by_import():
    import autopar_of_the_program

    autopar_of_the_program.held.add_(1)


def by_from_import():
    from autopar_of_the_program import held

    held.add_(1)


def array_of(x):
    array = np.empty(1, dtype=object)
    array[0] = x
    return array


def queue_of(x, kind=queue.Queue):
    made = kind()
    made.put(x)
    return made


def set_variable(x):
    variable = contextvars.ContextVar("other")
    variable.set(x)
    return variable


HOLDERS = {
    "a view of a dict": lambda x: {"a": x}.values(),
    "items of a dict": lambda x: {"a": x}.items(),
    "a cycle": lambda x: itertools.cycle([x]),
    "a chain": lambda x: itertools.chain([1], [x]),
    "an iterator": lambda x: iter([x]),
    "a generator": lambda x: (each for each in [x]),
    "a map": lambda x: map(torch.neg, [x]),
    "a variable's default": lambda x: contextvars.ContextVar("x", default=x),
    "a variable's value": set_variable,
    "an array of objects": array_of,
    "a getter of items": operator.itemgetter,
    "a caller of methods": lambda x: operator.methodcaller("add_", x),
    "a proxy of a dict": lambda x: types.MappingProxyType({"a": [x]}),
    "a chain of maps": lambda x: collections.ChainMap({"a": x}),
    "a user's dict": lambda x: UserDict(a=x),
    "a subclass of it": lambda x: type("Own", (UserDict,), {})(a=x),
    "a subclass of dict": lambda x: type("Own", (dict,), {})(a=x),
    "a queue": queue_of,
    "a subclass of a queue": lambda x: queue_of(x, Queue),
    "a namespace": lambda x: SimpleNamespace(a=[x]),
    "a weak reference": weakref.ref,
    "a weak dict": lambda x: weakref.WeakValueDictionary(a=x),
    "a slice": lambda x: slice(x, None),
    "an optimizer": lambda x: torch.optim.SGD([x], 0.1),
    "a distribution": lambda x: torch.distributions.Normal(x, 1.0),
    "a data set": lambda x: torch.utils.data.TensorDataset(x),
    "an lru cache": lambda x: functools.lru_cache(lambda: x),
    "single dispatch": lambda x: functools.singledispatch(lambda y: x),
    "a dataclass": lambda x: Held([x]),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_memory_is_reached_through_what_holds_it(kind):
    x = torch.zeros(3)
    held = HOLDERS[kind](x)
    for found, _ in (reached(lambda: held), reached(lambda a=held: a)):
        assert any(each is x for each in found)


REACHED = {
    "a class by an object's type": OfClass().by_type,
    "a cached property": OfClass().by_cached,
    "slots": lambda made=OfSlots(_GLOBAL): made.held,
    "a variable": lambda: _VARIABLE.get(),
    "an import": by_import,
    "an import of a name": by_from_import,
    "a function of autograd": lambda x=torch.ones(1): Function.apply(x),
    "a wrapped function": functools.wraps(torch.add)(lambda: _GLOBAL.add_(1)),
    "a getter of attributes": lambda get=operator.attrgetter("held"), o=OfSlots(_GLOBAL): get(o),
}


@pytest.mark.parametrize("kind", REACHED)
def test_memory_is_reached_through_code(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, _MODULE.__name__, _MODULE)
    found, _ = reached(REACHED[kind])
    assert any(each is _GLOBAL or each is OfClass.held for each in found)


def by_unknown_import():
    import autopar_not_there_yet

    autopar_not_there_yet.held.add_(1)


UNKNOWN = {
    "globals": lambda: globals()["_GLOBAL"].add_(1),
    "eval": lambda: eval("_GLOBAL.add_(1)"),
    "sys": lambda: sys.modules[__name__]._GLOBAL.add_(1),
    "gc": lambda: gc.get_objects()[0],
    "a module that isn't there": by_unknown_import,
    "thread-local": lambda own=threading.local(): own.x.add_(1),
    "a weak proxy": lambda own=weakref.proxy(_GLOBAL): own.add_(1),
    "bytes": lambda own=bytearray(12): torch.frombuffer(own, dtype=torch.float32).add_(1),
    "a capsule": lambda own=torch.utils.dlpack.to_dlpack(_GLOBAL): own,
    "a storage": lambda own=_GLOBAL.untyped_storage(): own.fill_(1),
    "a frame": lambda own=sys._getframe(): own,
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_is_not_understood_is_observed(kind):
    assert reached(UNKNOWN[kind])[1]


def test_a_task_that_finds_memory_by_itself_is_caught():
    """In words, whichever way the tasks are ordered."""
    graph = TaskGraph(cpu_lanes=2)
    graph.add(lambda: globals()["_GLOBAL"].add_(1), name="finder")
    graph.add(torch.sum, _GLOBAL)
    with pytest.raises(RuntimeError, match="task 'finder'.* and did not say so; expected"):
        graph.run()


class Plain:
    def __init__(self):
        self.x, self.scale, self.names = torch.ones(3), 2, {"a": [1, "b"]}

    def scaled(self, y):
        return self.x * self.scale + y


def plain_helper(x):
    return math.sqrt(2) * x


PLAIN = {
    "tensors": lambda x=torch.ones(3): x + 1,
    "numbers": lambda n=3, s="a", t=(1, 2.0): torch.full((n,), t[1]),
    "a layer": torch.nn.Linear(3, 3),
    "a network": torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval(),
    "a closure over a network": lambda net=torch.nn.LSTM(3, 3): net(torch.ones(1, 3)),
    "an object": Plain().scaled,
    "time": lambda: time.sleep(0),
    "helpers": lambda: plain_helper(torch.ones(3)),
    "locks and events": lambda lock=threading.Lock(), event=threading.Event(): event.set(),
    "torch": lambda: torch.nn.functional.relu(torch.ones(3)),
    "a logger": lambda log=logging.getLogger("autopar"): log.info("x"),
    "a print": lambda: print("x"),
    "an optimizer": torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1).step,
    "a dict": lambda held={"a": [torch.ones(1)]}: held["a"],
    "NumPy": lambda x=np.ones(3): np.sum(x),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_what_is_plain_is_not_observed(kind):
    assert not reached(PLAIN[kind], *([torch.ones(1, 3)] if "network" in kind[:9] else []))[1]


# -- what is random -------------------------------------------------------------------------------


class Drops(torch.nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, x):
        return F.dropout(x, self.p, self.training)


def initialised(x):
    torch.nn.init.normal_(x)


RANDOM = {
    "torch.rand": (torch.rand, 3),
    "an operator": (torch.ops.aten.rand, [3]),
    "a method": (torch.Tensor.normal_, torch.ones(3)),
    "dropout": (F.dropout, torch.ones(3)),
    "softmax": (F.gumbel_softmax, torch.ones(3)),
    "an initialiser": (nn.init.normal_, torch.ones(3)),
    "a function": (initialised, torch.ones(3)),
    "a lambda": (lambda: torch.rand(3),),
    "a lambda with a method": (lambda x: x.bernoulli_(), torch.ones(3)),
    "a lambda with dropout": (lambda x: F.dropout(x), torch.ones(3)),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), 1),
    "a value": (lambda draw=torch.rand: draw(3),),
    "a layer": (nn.Dropout(), torch.ones(3)),
    "a layer's method": (nn.Dropout().forward, torch.ones(3)),
    "a layer in a lambda": (lambda x, m=nn.Sequential(nn.AlphaDropout()): m(x), torch.ones(3)),
    "a layer of one's own": (Drops(), torch.ones(3)),
    "its method": (Drops().forward, torch.ones(3)),
    "a recurrent one": (nn.GRU(2, 2, 2, dropout=0.5), torch.ones(3, 2)),
    "a transformer": (nn.TransformerEncoderLayer(8, 2), torch.ones(3, 8)),
    "heads": (nn.MultiheadAttention(8, 2, dropout=0.1), *[torch.ones(3, 8)] * 3),
    "pooling, always": (nn.FractionalMaxPool2d(2, output_ratio=0.5).eval(), torch.ones(1, 9, 9)),
    "rrelu": (nn.RReLU(), torch.ones(3)),
}
NOT_RANDOM = {
    "evaluation": (nn.Dropout().eval(), torch.ones(3)),
    "evaluation in a lambda": (lambda x, m=nn.Dropout().eval(): m(x), torch.ones(3)),
    "the method of one": (nn.Dropout().eval().forward, torch.ones(3)),
    "one's own in evaluation": (Drops().eval(), torch.ones(3)),
    "one's own of nothing": (Drops(0.0), torch.ones(3)),
    "a rate of nothing": (nn.Dropout(0), torch.ones(3)),
    "a function told not to": (F.dropout, torch.ones(3), 0.5, False),
    "a function with no rate": (F.dropout, torch.ones(3), 0.0),
    "a recurrent one": (nn.LSTM(2, 2), torch.ones(3, 2)),
    "a transformer": (nn.TransformerEncoderLayer(8, 2, dropout=0.0), torch.ones(3, 8)),
    "a layer": (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.ones(3, 2)),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), 1),
    "a generator of its own": (functools.partial(torch.rand, generator=torch.Generator()), 3),
    "a lambda": (lambda x: torch.relu(x) @ x, torch.ones(2, 2)),
}


def draws(fn, *args):
    graph = TaskGraph()
    graph.add(fn, *args)
    return random_numbers("cpu") in graph._hazards.writes_of(0)


@pytest.mark.parametrize("kind", RANDOM)
def test_who_draws_random_numbers_is_known(kind):
    assert draws(*RANDOM[kind])


@pytest.mark.parametrize("kind", NOT_RANDOM)
def test_who_draws_none_is_not_put_in_order(kind):
    assert not draws(*NOT_RANDOM[kind])


USED = {
    "a generator": lambda own=torch.Generator(): torch.rand(3, generator=own),
    "an iterator": lambda own=itertools.count(): next(own),
    "Python's random numbers": lambda: random.random(),
    "a random generator of one's own": lambda own=random.Random(): own.random(),
    "NumPy's random numbers": lambda: np.random.rand(3),
    "a generator of NumPy's": lambda own=np.random.default_rng(0): own.normal(),
    "a generator in Python": lambda own=(each for each in range(99)): next(own),
}


@pytest.mark.parametrize("kind", USED)
def test_what_each_use_changes_is_used_in_order(kind):
    graph = TaskGraph()
    first, other, then = graph.add(USED[kind]), graph.add(torch.ones, 1), graph.add(USED[kind])
    nodes = graph.plan().nodes
    assert nodes[then.number].before == {first.number}
    assert not nodes[other.number].before


# -- what is refused ------------------------------------------------------------------------------

LAYER, VALUES = nn.Linear(2, 2), torch.ones(6)
REFUSED = {
    "eval": (LAYER.eval,),
    "train": (LAYER.train, False),
    "requires_grad_": (LAYER.requires_grad_, False),
    "register_buffer": (LAYER.register_buffer, "x", VALUES),
    "step": (torch.optim.lr_scheduler.StepLR(torch.optim.SGD(LAYER.parameters()), 1).step,),
    "vector_to_parameters": (nn.utils.vector_to_parameters, VALUES, list(LAYER.parameters())),
    "swap_tensors": (torch.utils.swap_tensors, VALUES, torch.ones(6)),
    "weight_norm": (nn.utils.parametrizations.weight_norm, LAYER),
    "random_unstructured": (prune.random_unstructured, LAYER, "weight", 1),
    "setattr": (setattr, LAYER, "x", VALUES),
    "setitem": (operator.setitem, {}, "x", VALUES),
    "__setitem__": (dict.__setitem__, {}, "x", VALUES),
    "append": (list.append, [1], VALUES),
    "update": (dict.update, {}, {"x": VALUES}),
    "appendleft": (deque.appendleft, deque(), VALUES),
    "bfloat16": (LAYER.bfloat16,),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_twice_is_refused_with_what_to_do(name):
    with pytest.raises(ValueError, match=f"task '{name}' is to .*; expected "):
        TaskGraph().add(*REFUSED[name])


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (nn.ReLU(), "ReLU"),
        (functools.partial(torch.add, 1), "add"),
        (functools.partial(nn.ReLU()), "ReLU"),
        (torch.ops.aten.relu.default, "relu.default"),
        (torch.ones(1).add, "add"),
        (LAYER.forward, "forward"),
        (nn.Linear, "Linear"),
        (Callable(), "Callable"),
    ],
)
def test_a_task_is_called_as_what_it_runs(fn, name):
    assert TaskGraph().add(fn).name == name


def test_a_lambda_is_called_by_its_line():
    line = sys._getframe().f_lineno
    assert TaskGraph().add(lambda: 1).name == f"<lambda> in test_graph_add.py:{line + 1}"
