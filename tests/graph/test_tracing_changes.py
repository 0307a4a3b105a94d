"""What traced code may not change: what is no tensor, or was not there; all is as it was before."""

import functools
import itertools
import queue
import weakref
from collections import deque
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.nn.utils import spectral_norm
from tracing_checks import numbers, refused_and_as_before, seeded, using

from autopar import TaskGraph

CALLED = 0
X3 = functools.partial(numbers, 3)
linear = functools.partial(seeded, nn.Linear, 3, 3)


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


def returns_it_too(self, x):
    self.ema = self.ema + x
    return x * 2, self.ema[1:]


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
    __slots__ = ("late",)

    def __call__(self, x):
        self.late = 1
        return x


def tagged():
    x = X3().requires_grad_()
    x.scale, x.seen = 3, []
    return x


def with_foo(x):
    y = x + 1
    y.foo = 2
    return y


def global_counter(x):
    global CALLED
    CALLED += 1
    return x * CALLED


def code_that_fails_when_it_has_changed_things():
    module = Counts()

    def fn(x):
        module.last = module(x)
        module.register_buffer("more", x * 2)
        return {}["nothing"]

    return fn, X3()


def a_hook_that_appends():
    layer, seen = linear(), []
    layer.register_forward_hook(lambda module, args, out: seen.append(out))
    return layer, numbers(2, 3)


def counter_in_a_cell():
    calls = 0

    def fn(x):
        nonlocal calls
        calls += 1
        return x * calls

    return fn, X3()


def a_cache_of_a_function():
    table = functools.lru_cache(lambda n: torch.arange(n).float())
    table.__qualname__ = "table"
    return lambda x: x + table(3), X3()


class Items(list):
    """A container with attributes."""


OLD_WEIGHT = "sets Linear.weight, .* also that of Linear.weight_orig.*Call it once"
NO_SHAPE = r"Sequential\[0\].(weight|bias) has no shape yet.*Call it once"
GROWN = r"changes Assigning.ema from .* shape \(4,\) .* to .* shape \(8,\)"
NOT_THERE = "sets .*, which was not there"
WAS_NONE = "sets value.table, which was None.*[Cc]all it once"
GRADIENT = r"sets the gradient of value\.(weight|bias), of which there is none.*autograd.grad"
REFUSED = [
    (r"line \d+ of test_tracing_changes.py.*'nothing'", code_that_fails_when_it_has_changed_things),
    (r"sets seen\[0\], which was not there", a_hook_that_appends),
    ("changes .*calls from 0 to 1", counter_in_a_cell),
    ("in the cache of .*table", a_cache_of_a_function),
    (GRADIENT, lambda: using(linear(), lambda x, layer: layer(x).sum().backward())),
    (GROWN, lambda: assigning(grows)),
    ("sets Assigning.ema, .* also that of its result", lambda: assigning(returns_it_too)),
    ("sets Assigning.ema, .* that of Assigning.last.*clone", lambda: assigning(assigns_twice)),
    ("sets Assigning.ema, .* that of Assigning.last.*clone", lambda: assigning(exchanges)),
    (r"changes .*\[1\].steps from 0 to 1", lambda: (nn.Sequential(nn.ReLU(), Counts()), X3())),
    ("changes .*CALLED from 0 to 1", lambda: (global_counter, X3())),
    ("changes .*Tally.total from 0 to 1", lambda: (Tally(), X3())),
    ("sets Slots.late, which was not there", lambda: (Slots(), X3())),
    (WAS_NONE, lambda: using(SimpleNamespace(table=None), lambda x, at: setattr(at, "table", x))),
    (NO_SHAPE, lambda: (nn.Sequential(nn.LazyLinear(4), nn.ReLU()), numbers(2, 3))),
    (OLD_WEIGHT, lambda: (spectral_norm(linear()), numbers(2, 3))),
    ("changes .*grad from", lambda: using(linear().weight, lambda x, w: w.requires_grad_(False))),
    ("changes .*training", lambda: using(nn.Dropout(), lambda x, layer: layer.eval()(x))),
    (NOT_THERE, lambda: using({}, lambda x, held: held.setdefault(1, x))),
    (NOT_THERE, lambda: using(set(), lambda x, held: (held.add(1), x)[1])),
    (NOT_THERE, lambda: using([].append, lambda x, append: append(x * 2))),  # which C has made
    ("changes value.unf", lambda: using(queue.Queue(), lambda x, held: (held.put(x * 2), x)[1])),
    (NOT_THERE, lambda: using(Items(), lambda x, held: setattr(held, "count", 1))),
    ("changes .* from 1 to 2", lambda: using(deque([1, 2]), lambda x, held: held.rotate())),
    ("a run only repeats", lambda: using(torch.amp.GradScaler("cpu"), lambda x, s: s.scale(x))),
]
REFUSED += [  # of tensors that are given; others are told apart by their memory
    (r"sets args\[0\]\.foo", lambda: (lambda x: setattr(x, "foo", 1) or x * 2, tagged())),
    (r"sets args\[0\]\.foo", lambda: (lambda x: setattr(x, "foo", x * 2), tagged())),
    (r"deletes args\[0\]\.scale", lambda: (lambda x: delattr(x, "scale"), tagged())),
    (r"sets args\[0\]\.seen\[0\]", lambda: (lambda x: x.seen.append(1), tagged())),
    (r"sets args\[0\].*_hooks", lambda: (lambda x: x.register_hook(print) and x * 2, tagged())),
    (
        r"sets value\.bias\..*_hooks",
        lambda: using(linear(), lambda x, held: held.bias.register_hook(print)),
    ),
    ("sets foo of a tensor that it returns", lambda: (with_foo, tagged())),
]
ITERATORS = itertools.count(), iter([1]), map(abs, [1]), (number for number in [1])
REFUSED += [  # also where the code does not go
    (
        r"it comes to value\.inner\[0\], an iterator.*Take what it needs",
        lambda held=held: using(SimpleNamespace(inner=[held]), lambda x, _: x),
    )
    for held in ITERATORS
]


def test_a_tensor_that_such_an_object_holds_is_changed_in_each_run():
    names, items, waiting = Items(), Items([2.0]), queue.Queue()
    names.mean, items.count = X3() * 0, 0  # and what is only read may be there

    def update(x):
        names.mean = names.mean + x
        return names.mean * items[0] + waiting.qsize() + items.count

    graph, result = TaskGraph.trace(update, torch.ones(3))
    assert names.mean.tolist() == [0, 0, 0]
    assert [graph.run()[result].tolist() for _ in range(2)] == [[2, 2, 2], [4, 4, 4]]


def test_attributes_and_hooks_of_what_is_given_are_there():
    def fn(x):
        y = with_foo(x * x.scale)  # a tensor of its own
        return torch.autograd.grad((y * y.foo).sum(), x)[0], x

    x = tagged()
    x.register_hook(lambda gradient: gradient * 5)
    graph, result = TaskGraph.trace(fn, x)
    gradient, same = graph.run()[result]
    assert gradient.tolist() == [30, 30, 30]
    assert same.scale == 3


@pytest.mark.parametrize(("reason", "make"), REFUSED)
def test_a_change_is_refused_by_name_and_all_is_as_before(reason, make, caplog, capfd):
    refused_and_as_before(reason, make, caplog, capfd)


SETTINGS = {  # how to read it and to set it, and another value
    "changes how many threads": (torch.get_num_threads, torch.set_num_threads, 3),
    "sets the default device": (torch.get_default_device, torch.set_default_device, "meta"),
    "changes whether algorithms are deterministic": (
        *(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    ),
}


@pytest.mark.parametrize("change", SETTINGS)
def test_settings_of_torch_are_refused_and_put_back_and_may_change_for_a_while(change):
    get, put, value = SETTINGS[change]

    def fn(x, *values):
        y = x + 1
        for one in values:
            put(one)
        return y

    before = get()
    with pytest.raises(ValueError, match=f"it {change}"):
        TaskGraph.trace(fn, X3(), value)
    assert get() == before
    if get is not torch.get_default_device:  # one that is set stays a mode
        graph, result = TaskGraph.trace(fn, X3(), value, before)
        assert torch.equal(graph.run()[result], X3() + 1)


class Counting(weakref.ref):
    count = 0


def test_what_a_weak_reference_has_beside_its_object_is_seen():
    held = Counting(thing := Counts())

    def counting(x):
        held.count += 1
        return x + 1

    with pytest.raises(ValueError, match=r"it (sets|changes) held\.count"):
        TaskGraph.trace(counting, X3())
    assert held() is thing
    assert held.count == 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_leaf_that_autograd_has_come_to_track_is_one_again():
    leaf, weight = torch.zeros(3), nn.Parameter(torch.ones(3))

    def multiplying(x):
        torch._foreach_mul_([leaf], [weight])
        return x + 1

    with pytest.raises(ValueError, match=r"it changes leaf\.requires_grad from False to True"):
        TaskGraph.trace(multiplying, X3())
    assert (leaf.is_leaf, leaf.requires_grad) == (True, False)
    whole = torch.zeros(3, dtype=torch.int64)  # which autograd never tracks
    graph, result = TaskGraph.trace(lambda x: whole.copy_(x * weight) + 1, X3())
    assert torch.equal(graph.run()[result], (X3() * weight).to(torch.int64) + 1)


def test_numpys_generators_stay_those_that_they_were():
    generator = numpy.random.default_rng(1)
    seeds = generator.bit_generator.seed_seq
    for draws in (lambda: generator.random(), lambda: generator.spawn(1)):
        with pytest.raises(ValueError, match="it changes the state of generator"):
            TaskGraph.trace(lambda x, draws=draws: (draws(), x + 1)[1], X3())
    TaskGraph.trace(lambda x: (generator, x + 1)[1], X3())
    assert generator.bit_generator.seed_seq is seeds
    assert generator.random() == numpy.random.default_rng(1).random()


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


def test_what_backward_needs_counts_no_changes_that_only_a_trace_has_seen():
    kept, weight = torch.ones(3), nn.Parameter(torch.ones(3))
    loss = (weight * kept).sum()  # saves `kept`, and refuses one that was changed since
    graph, result = TaskGraph.trace(lambda x: kept.add_(x) * 2, torch.ones(3))
    loss.backward()
    assert torch.equal(weight.grad, torch.ones(3))
    assert torch.equal(graph.run()[result], torch.full((3,), 4.0))
