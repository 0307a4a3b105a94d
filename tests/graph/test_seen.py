"""What a graph sees of a task before it runs: memory that it reaches, and chance."""

# ruff: noqa: B008 - what a task reaches by its defaults is made where it is written

import collections
import contextvars
import dataclasses
import functools
import itertools
import operator
import queue
import random
import sys
import types
import unittest.mock
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autopar import TaskGraph
from autopar.graph.node import ancestors

HOMES = [torch, torch.Tensor, F, torch.linalg, torch.fft, torch.special, torch.ops.aten, operator]
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
            function = getattr(home, name, None)
            if callable(function) and not isinstance(function, type):
                yield name, function


@pytest.mark.filterwarnings("ignore")
@pytest.mark.stress
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("form", FORMS)
def test_every_function_of_torchs_can_be_added_or_is_refused_in_words(home, form):
    failed, x = [], torch.ones(2, 2)
    functions = dict(functions_of(home))
    if home is torch.Tensor:
        functions |= {f"bound {name}": getattr(x, name) for name in functions}
    for name, fn in functions.items():
        graph = TaskGraph()
        args, kwargs = FORMS[form](fn, graph.add(torch.add, x, 1), x)
        try:
            graph.add(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, (TypeError, ValueError)) or "expected" not in str(error):
                failed.append((name, error))
    assert not failed


# -- what is looked at is not run -----------------------------------------------------------------


@dataclasses.dataclass
class Held:
    x: object


class Config:
    def __init__(self, **held):
        self.__dict__["_held"] = held

    def __getattr__(self, name):
        return self._held[name]


def refuse(*_):
    raise LookupError


class Refuses:
    """Raises at whatever it is asked."""

    __getattribute__ = __iter__ = __len__ = __eq__ = __hash__ = refuse

    def __call__(self):
        return torch.ones(1)


class Lies(Refuses):
    __class__ = property(refuse)


class RefusesAsDict(dict):
    __iter__ = keys = values = items = refuse
    __getattr__ = dict.__getitem__


UNASKED = {
    "a config": lambda: Config(lr=0.1),
    "what refuses": Refuses,
    "what lies of its class": Lies,
    "a dict that refuses": lambda: RefusesAsDict(a=1),
    "a list that refuses": lambda: type("L", (list,), {"__iter__": refuse, "__eq__": refuse})([1]),
    "a set that refuses": lambda: type("S", (set,), {"__iter__": refuse})([1]),
    "a tuple that refuses": lambda: type("T", (tuple,), {"__iter__": refuse})([1]),
    "a marker of tests": lambda: pytest.mark,
    "a class of another kind": lambda: type("M", (type,), {"__getattr__": refuse})("K", (), {}),
    "a mock": lambda: unittest.mock.MagicMock(spec=torch.Tensor),
}


@pytest.mark.parametrize("kind", UNASKED)
def test_nothing_that_is_looked_at_is_run(kind):
    graph, held = TaskGraph(), UNASKED[kind]()
    graph.add(lambda: held and held.x)
    graph.add(lambda a=held: a)
    graph.add(print, held)
    graph.add(print, [held], end=held)
    graph.add(functools.partial(print, held))
    graph.add(Held(held).__eq__, 1)
    if callable(held):
        graph.add(held)
    graph = TaskGraph()
    for _ in range(2):  # a run that is watched
        graph.add(lambda: (held, torch.ones(1))[1])
    graph.check()


def test_a_config_with_getattr_of_its_own_is_used():
    graph, config = TaskGraph(), Config(lr=0.5)
    scaled = graph.add(lambda: torch.ones(1) * config.lr)
    assert graph.run()[scaled].item() == 0.5


# -- memory that a task reaches -------------------------------------------------------------------


def waits_for(writer, fn, *args):
    """Whether a task of a function comes after one that was added before, once both were seen."""
    graph = TaskGraph()
    first, task = graph.add(*writer), graph.add(fn, *args)
    graph.check()
    return first.number in graph.plan().nodes[task.number].before


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class OfClass:
    held = torch.zeros(3)

    def by_type(self):
        type(self).held.clone()

    @functools.cached_property
    def cached(self):
        return _GLOBAL

    def by_cached(self):
        self.cached.clone()


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + _GLOBAL


_GLOBAL = torch.zeros(3)
_VARIABLE = contextvars.ContextVar("variable", default=_GLOBAL)
_MODULE = types.ModuleType("autopar_of_the_program")
_MODULE.held = _GLOBAL


def by_import():
    import autopar_of_the_program

    autopar_of_the_program.held.clone()


def array_of(x):
    array = np.empty(1, dtype=object)
    array[0] = x
    return array


def queue_of(x, kind=queue.Queue):
    things = kind()
    things.put(x)
    return things


def variable_of(x):
    variable = contextvars.ContextVar("other")
    variable.set(x)
    return variable


UserDict, SimpleNamespace = collections.UserDict, types.SimpleNamespace
HOLDERS = {
    "a view of a dict": lambda x: {"a": x}.values(),
    "a cycle": lambda x: itertools.cycle([x]),
    "a generator": lambda x: (tensor for tensor in [x]),
    "a map": lambda x: map(torch.neg, [x]),
    "a variable's value": variable_of,
    "an array of objects": array_of,
    "a caller of methods": lambda x: operator.methodcaller("add_", x),
    "a proxy of a dict": lambda x: types.MappingProxyType({"a": [x]}),
    "a user's dict": lambda x: type("Own", (UserDict,), {})(a=x),
    "a subclass of dict": lambda x: type("Own", (dict,), {})(a=x),
    "a subclass of a queue": lambda x: queue_of(x, type("Own", (queue.Queue,), {})),
    "a namespace": lambda x: SimpleNamespace(a=[x]),
    "a weak reference": weakref.ref,
    "an optimizer": lambda x: torch.optim.SGD([x], 0.1),
    "a distribution": lambda x: torch.distributions.Normal(x, 1.0),
    "an lru cache": lambda x: functools.lru_cache(lambda: x),
    "a dataclass": lambda x: Held([x]),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_memory_is_reached_through_what_holds_it(kind):
    held = HOLDERS[kind](x := torch.zeros(3))
    for fn in (lambda: held, lambda a=held: a):
        assert waits_for((x.add_, 1), fn)


REACHED = {
    "a class by an object's type": OfClass().by_type,
    "a cached property": OfClass().by_cached,
    "slots": lambda slotted=Slotted(_GLOBAL): slotted.held,
    "a variable": lambda: _VARIABLE.get(),
    "an import": by_import,
    "a function of autograd": lambda x=torch.ones(1): Function.apply(x),
    "a wrapped function": functools.wraps(torch.add)(lambda: _GLOBAL.clone()),
    "a getter": lambda get=operator.attrgetter("held"), o=Slotted(_GLOBAL): get(o),
}


@pytest.mark.parametrize("kind", REACHED)
def test_memory_is_reached_through_code(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, _MODULE.__name__, _MODULE)
    tensor = OfClass.held if "class" in kind else _GLOBAL
    assert waits_for((tensor.add_, 1), REACHED[kind])


_X = torch.ones(3, 3)
MAY_ALIAS = {  # though they declare nothing, or fresh memory
    "einsum": (torch.einsum, "ij->ji", _X),
    "conj_physical": (torch.conj_physical, _X),
    "to_dense": (torch.Tensor.to_dense, _X),
    "dropout": (torch.dropout, _X, 0.5, False),
    "contiguous": (torch.Tensor.contiguous, _X),
}


@pytest.mark.parametrize("name", MAY_ALIAS)
def test_who_writes_what_an_operator_returns_may_write_its_argument(name):
    graph, (fn, *args) = TaskGraph(), MAY_ALIAS[name]
    reader = graph.add(torch.sum, _X)
    result = graph.add(fn, *args)
    writer = graph.add(lambda value: None, result, writes=[result])
    assert reader.number in ancestors(graph.plan().nodes, writer.number)


# -- who draws random numbers, or uses what each use changes --------------------------------------


class Drops(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, x):
        return F.dropout(x, self.p, self.training)


class Attends(Drops):
    def forward(self, x):
        rate = self.p if self.training else 0.0
        return F.scaled_dot_product_attention(x, x, x, dropout_p=rate)


ROW, ROWS, DROPOUT = torch.ones(3), torch.ones(3, 8), nn.Dropout()
RANDOM = {
    "an operator": (torch.ops.aten.rand, [3]),
    "dropout": (F.dropout, ROW),
    "an initialiser": (nn.init.normal_, ROW),
    "a lambda": (lambda: torch.rand(3),),
    "a lambda with a method": (lambda x: x.bernoulli_(), ROW),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), ROWS),
    "a layer": (DROPOUT, ROW),
    "a layer in a lambda": (lambda x, m=nn.Sequential(nn.AlphaDropout()): m(x), ROW),
    "a layer of one's own": (Drops(), ROW),
    "its method": (Drops().forward, ROW),
    "a recurrent one": (nn.GRU(2, 2, 2, dropout=0.5), torch.ones(3, 2)),
    "a transformer": (nn.TransformerEncoderLayer(8, 2), ROWS),
    "heads": (nn.MultiheadAttention(8, 2, dropout=0.1), ROWS, ROWS, ROWS),
    "pooling, always": (nn.FractionalMaxPool2d(2, output_ratio=0.5).eval(), torch.ones(1, 9, 9)),
}
STILL = nn.Dropout().eval()
RANDOM |= {
    "dropout in evaluation that asks no mode": (lambda x, m=STILL: F.dropout(m(x)), ROW),
    "a mode of nobody's": (lambda x, mode=types.SimpleNamespace(training=1): F.dropout(x), ROW),
    "one in training of two": (nn.Sequential(Drops().eval(), Drops()), ROW),
}
NOT_RANDOM = {
    "evaluation": (STILL, ROW),
    "one's own in evaluation": (Drops().eval(), ROW),
    "its method in evaluation": (Drops().eval().forward, ROW),
    "attention of one's own in evaluation": (Attends().eval(), ROWS),
    "a rate of nothing": (nn.Dropout(0), ROW),
    "a function told not to": (F.dropout, ROW, 0.5, False),
    "a recurrent one without": (nn.LSTM(2, 2), torch.ones(3, 2)),
    "a transformer without": (nn.TransformerEncoderLayer(8, 2, dropout=0.0), ROWS),
    "attention by itself": (lambda q: F.scaled_dot_product_attention(q, q, q), ROWS),
    "a generator of its own": (functools.partial(torch.rand, generator=torch.Generator()), 3),
}


@pytest.mark.parametrize("kind", [*RANDOM, *NOT_RANDOM])
def test_just_who_draws_random_numbers_comes_after_others_who_do(kind):
    assert waits_for((torch.rand, 1), *(RANDOM | NOT_RANDOM)[kind]) == (kind in RANDOM)


USED = {
    "a generator": lambda own=torch.Generator(): torch.rand(3, generator=own),
    "an iterator": lambda own=itertools.count(): next(own),
    "Python's random numbers": lambda: random.random(),
    "a random generator of one's own": lambda own=random.Random(): own.random(),
    "a generator of NumPy's": lambda own=np.random.default_rng(0): own.normal(),
}


@pytest.mark.parametrize("kind", USED)
def test_what_each_use_changes_is_used_in_order(kind):
    assert waits_for((USED[kind],), USED[kind])
