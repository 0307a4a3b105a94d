"""What traced code may not change: what is no tensor, or was not there; all is as it was before."""

import functools
import itertools
import random
import types

import numpy
import pytest
import torch
from torch import nn
from torch.nn.utils import spectral_norm
from tracing_checks import noting, numbers, refused_and_as_before, seeded, using

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")

CALLED = 0
X3 = functools.partial(numbers, 3)
REFUSED = []
refused = noting(REFUSED)


def linear():
    return seeded(nn.Linear, 3, 3)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x * self.steps


class Assigning(nn.Module):
    """Two buffers; it does something with them and its argument."""

    def __init__(self, does):
        super().__init__()
        self.register_buffer("ema", torch.zeros(4))
        self.register_buffer("last", torch.zeros(4))
        self.forward = functools.partial(does, self)


def assigning(does):
    return Assigning(does), numbers(4)


def grows(self, x):
    self.ema = torch.cat([self.ema, x])
    return x * 2


def assigns_twice(self, x):
    self.ema = self.last = self.ema + x
    return x * 2


def exchanges(self, x):
    self.ema, self.last = self.last, self.ema
    return x * 2


class Tally:
    total = 0

    def __call__(self, x):
        type(self).total += 1
        return x + self.total


class Slots:
    __slots__ = ("calls", "late")

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        self.late = 1
        return x


class Caching(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(x.shape[-1]).float()
        return x + self.table


def global_counter(x):
    global CALLED
    CALLED += 1
    return x * CALLED


@refused(r"line \d+ of test_tracing_changes.py.*'nothing'")
def code_that_fails_when_it_has_changed_things():
    module = Counts()

    def fn(x):
        module.last = module(x)
        module.register_buffer("more", x * 2)
        return {}["nothing"]

    return fn, X3()


@refused(r"changes seen\[0\] from nothing")
def a_hook_that_appends():
    layer, seen = linear(), []
    layer.register_forward_hook(lambda module, args, out: seen.append(out))
    return layer, numbers(2, 3)


@refused("changes .*calls from 0 to 1")
def counter_in_a_cell():
    calls = 0

    def fn(x):
        nonlocal calls
        calls += 1
        return x * calls

    return fn, X3()


@refused(r"changes layer\.(weight|bias)\.grad.*autograd.grad")
def backward():
    layer = linear()
    return lambda x: layer(x).sum().backward(), numbers(2, 3)


@refused("in the cache of .*table")
def a_cache_of_a_function():
    table = functools.lru_cache(lambda n: torch.arange(n).float())
    table.__qualname__ = "table"
    return lambda x: x + table(3), X3()


class Weight(nn.Linear):
    def forward(self, x):
        return super().forward(x) * self.weight.requires_grad_(False).sum()


NO_SHAPE = r"Sequential\[0\].(weight|bias) has no shape yet.*Call it once"
EMA = "changes Assigning.ema from one Tensor to one .*Tensor"
REFUSED += [
    *((EMA, lambda does=does: assigning(does)) for does in (grows, assigns_twice, exchanges)),
    (r"changes .*\[1\].steps from 0 to 1", lambda: (nn.Sequential(nn.ReLU(), Counts()), X3())),
    ("changes .*CALLED from 0 to 1", lambda: (global_counter, X3())),
    ("changes .*Tally.total from 0 to 1", lambda: (Tally(), X3())),
    ("changes Slots.calls from 0 to 1|Slots.late from nothing", lambda: (Slots(), X3())),
    ("changes Caching.table from None .*[Cc]all it once", lambda: (Caching(), X3())),
    (NO_SHAPE, lambda: (nn.Sequential(nn.LazyLinear(4), nn.ReLU()), numbers(2, 3))),
    ("changes Linear.weight", lambda: (spectral_norm(linear()), numbers(2, 3))),
    ("changes .*requires_grad", lambda: (Weight(3, 3), X3())),
    ("changes .*training", lambda: using(nn.Dropout(), lambda x, layer: layer.eval()(x))),
    ("changes .* from nothing", lambda: using({}, lambda x, held: held.setdefault(1, x))),
    ("changes .* from nothing", lambda: using(set(), lambda x, held: (held.add(1), x)[1])),
    (
        r"changes value\.bias\..*_hooks",
        lambda: using(linear(), lambda x, held: held.bias.register_hook(print)),
    ),
]
REFUSED += [
    (
        r"it comes to value, one .*Take what it needs",
        lambda held=held: using(held, lambda x, _: x),
    )
    for held in (
        *(itertools.count(), iter([1]), map(abs, [1]), (number for number in [1])),
        *(numpy.random.default_rng(1), random.Random(1)),
    )
]


@pytest.mark.parametrize(
    "mark", [lambda x: setattr(x, "scale", 3), lambda x: x.requires_grad_().register_hook(print)]
)
def test_a_given_tensor_with_attributes_or_hooks_is_refused_and_a_held_one_has_them(mark):
    mark(x := X3())
    with pytest.raises(ValueError, match="hooks or attributes.*Let the code hold it"):
        TaskGraph.trace(lambda x: x * getattr(x, "scale", 1), x)
    graph, result = TaskGraph.trace(lambda: x.detach() * getattr(x, "scale", 1))
    assert torch.equal(graph.run()[result], x * getattr(x, "scale", 1))


@pytest.mark.parametrize(("reason", "make"), REFUSED)
def test_a_change_is_refused_by_name_and_all_is_as_before(reason, make, caplog, capfd):
    refused_and_as_before(reason, make, caplog, capfd)


def test_iterators_are_found_where_the_code_does_not_go():
    held = types.SimpleNamespace(inner=[iter([1])])
    with pytest.raises(ValueError, match=r"it comes to args\[1\]\.inner\[0\], one list_iterator"):
        TaskGraph.trace(lambda x, held: x + 1, X3(), held)


def test_a_leaf_that_autograd_has_come_to_track_is_one_again():
    leaf, weight = torch.zeros(3), nn.Parameter(torch.ones(3))

    def multiplying(x):
        torch._foreach_mul_([leaf], [weight])
        return x + 1

    with pytest.raises(ValueError, match=r"it changes leaf\.requires_grad"):
        TaskGraph.trace(multiplying, X3())
    assert (leaf.is_leaf, leaf.requires_grad) == (True, False)
    whole = torch.zeros(3, dtype=torch.int64)  # which autograd never tracks
    graph, result = TaskGraph.trace(lambda x: whole.copy_(x * weight) + 1, X3())
    assert torch.equal(graph.run()[result], (X3() * weight).to(torch.int64) + 1)


def test_what_autograd_tracks_stays_so_when_hooks_are_put_back():
    weight = nn.Parameter(torch.ones(3))
    tracked = weight * 2

    def hooking(x):
        tracked.register_hook(lambda gradient: gradient)
        return x + 1

    with pytest.raises(ValueError, match="hook"):
        TaskGraph.trace(hooking, torch.ones(3))
    tracked.sum().backward()
    assert torch.equal(weight.grad, torch.full((3,), 2.0))
