"""What can't be traced: refused with the reason and the line, and all is as it was before."""

import concurrent.futures
import functools
import logging
import random
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import spectral_norm
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from tracing_checks import called, fakes, numbers, same, seeded, state

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")

CALLED = 0
REFUSED = []
X3 = functools.partial(numbers, 3)


def refused(reason):
    """Note a function that makes something to call and its arguments, new each time."""

    def note(make):
        REFUSED.append((reason, make))
        return make

    return note


def linear():
    return seeded(nn.Linear, 3, 3)


# -- what depends on the data, or is no operator --------------------------------------------------


@refused(r"line \d+ of test_tracing_refused.py, `if x.sum\(\) > 0:`.*depends on the data")
def control_by_data():
    def fn(x):
        if x.sum() > 0:
            return x
        return -x

    return fn, X3()


@refused(r"line \d+ of test_tracing_refused.py.*'nothing'")
def code_that_fails_when_it_has_changed_things():
    module = Counts()

    def fn(x):
        module.last = module(x)
        module.register_buffer("more", x * 2)
        return {}["nothing"]

    return fn, X3()


@refused("puts their state back, as a checkpoint does")
def recomputing_with_dropout():
    layer = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout()))
    recomputed = functools.partial(checkpoint, layer, use_reentrant=False)
    return lambda x: torch.autograd.grad(recomputed(x).sum(), [*layer.parameters()]), X3()


@refused("in TorchScript: .*data")
def script_that_branches():
    def fn(x):
        if bool(x.sum() > 0):
            x = x + 1
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(fn), X3()


class Tagged(torch.Tensor):
    """A subclass with memory of its own."""


def printing(x):
    print(x + 1)
    return x


def in_a_thread(x):
    made = []
    other = threading.Thread(target=lambda: made.append(x * 2))
    other.start()
    other.join()
    return x + made[0]


def in_a_pool(x):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return x + pool.submit(torch.neg, x).result()


def part_by_data(x):
    sums = torch.zeros(3)
    sums[:2].copy_(x[:2])
    return x if sums.sum() > 0 else -x


def seeding(x):
    torch.manual_seed(7)
    return torch.rand(3) + x


Output = type("Output", (), {"__init__": lambda self, loss: setattr(self, "loss", loss)})
ONES, NORM = torch.ones(3), nn.BatchNorm1d(4, momentum=None)
NESTED = "uses a nested tensor.*Use one that is padded"
HIDDEN, TAGGED = "given one TwoTensor, which has no memory of its own", "uses one Tagged, whose own"


def using(value, fn):
    """What uses a value that it finds, and something to call it with."""
    return lambda x: fn(x, value), X3()


def nested(layout):
    return lambda x: torch.nested.nested_tensor([x, x[:2]], layout=layout).to_padded_tensor(0), X3()


def encoder():
    """In a call, what its mask leaves out is 0, as it is in no nested tensor."""
    layer = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)
    module = nn.TransformerEncoder(layer, 1).eval().requires_grad_(False)
    mask = torch.tensor([[False, True]])
    return lambda x: module(x, src_key_padding_mask=mask), numbers(1, 2, 4)


REFUSED += [
    ("depends on the data", lambda: (NORM, numbers(6, 4))),
    ("depends on the data", lambda: (lambda x: x if x.sum().item() > 0 else -x, X3())),
    ("depends on the data", lambda: (lambda x: x if torch.zeros(3).add_(x).any() else -x, X3())),
    ("depends on the data", lambda: (part_by_data, X3())),
    ("depends on the data", lambda: (lambda x: x if torch.rand(3).sum() > 1 else -x, X3())),
    ("depends on the data", lambda: (lambda x: x if torch.empty(3).sum() > 1 else -x, X3())),
    ("depends on the data", lambda: (lambda x: x if torch.zeros(1 << 17).any() else -x, X3())),
    ("depends on the data|value", lambda: using(torch.ones(3), lambda x, y: x if y.sum() else -x)),
    ("reads a tensor's numbers by tolist", lambda: (lambda x: x * ONES.tolist()[0], X3())),
    ("prints or formats a tensor", lambda: (printing, X3())),
    ("prints or formats a tensor", lambda: (lambda x: (x, f"{x.sum():.3f}"), X3())),
    ("NumPy", lambda: (lambda x: torch.from_numpy((x + 1).numpy()), X3())),
    ("NumPy", lambda: (lambda x: x + torch.from_numpy(ONES.numpy()), X3())),
    ("NumPy", lambda: (lambda x: x + torch.as_tensor(np.asarray(ONES)), X3())),
    ("line .*1 / 0", lambda: (lambda x: x + 1 / 0, X3())),
    ("torch's random numbers|manual_seed", lambda: (seeding, X3())),
    ("Python's random numbers", lambda: (lambda x: x * random.random(), X3())),
    ("starts a thread, or gives work", lambda: (in_a_thread, X3())),
    ("starts a thread, or gives work", lambda: (in_a_pool, X3())),
    ("NumPy's random numbers", lambda: (lambda x: x * float(np.random.rand()), X3())),
    ("resize_", lambda: using(torch.zeros(4), lambda x, y: y.resize_(3) + x)),
    ("assigns the `data` of a tensor", lambda: (lambda x: setattr(x, "data", x + 1), X3())),
    (TAGGED, lambda: (lambda x: x * 2, X3().as_subclass(Tagged))),
    (TAGGED, lambda: using(X3().as_subclass(Tagged), torch.mul)),
    (HIDDEN, lambda: (lambda x: x * 2, TwoTensor(ONES, ONES))),
    (f"{HIDDEN}|Please convert", lambda: using(TwoTensor(ONES, ONES), torch.mul)),
    ("calls cond", lambda: (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), X3())),
    ("dynamo", lambda: (torch.compile(lambda x: x.sin(), backend="eager"), X3())),
    *((NESTED, lambda layout=layout: nested(layout)) for layout in (torch.strided, torch.jagged)),
    (f"line .*{NESTED}.*enable_nested_tensor", lambda: encoder()),
    ("calls aten.empty.* on 'meta'", lambda: (lambda x: torch.empty_like(x, device="meta"), X3())),
    ("returns one Output.*register_dataclass", lambda: (lambda x: Output(x.sum()), X3())),
]


# -- what is changed and is no tensor, or was not there -------------------------------------------


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


def grows(self, x):
    self.ema = torch.cat([self.ema, x])
    return self.ema


def assigning(does):
    return Assigning(does), numbers(4)


def returns_it_too(self, x):
    self.ema = self.ema + x
    return x * 2, self.ema[1:]


def assigns_twice(self, x):
    self.ema = self.last = self.ema + x
    return x * 2


class Tally:
    total = 0

    def __call__(self, x):
        type(self).total += 1
        return x + self.total


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


@refused(r"sets seen\[0\], which was not there")
def a_hook_that_appends():
    layer, seen = linear(), []
    layer.register_forward_hook(lambda module, args, out: seen.append(out))
    return layer, numbers(2, 3)


@refused("changes .*nonlocal|changes .*calls from 0 to 1")
def counter_in_a_cell():
    calls = 0

    def fn(x):
        nonlocal calls
        calls += 1
        return x * calls

    return fn, X3()


@refused(r"sets the gradient of layer\.(weight|bias), of which there is none.*autograd.grad")
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


def appending(x, values):
    values.append(x + 1)
    return x


def keeping(x, values):
    values.setdefault("number", 1)
    return values.setdefault("tensor", x * 2)


OLD_WEIGHT = "sets Linear.weight, .* also that of Linear.weight_orig.*Call it once"
NO_SHAPE = r"Sequential\[0\].(weight|bias) has no shape yet.*Call it once"
GROWN = r"changes Assigning.ema from .* shape \(4,\) .* to .* shape \(8,\)"
REFUSED += [
    (
        r"sets the gradient of args\[0\]",
        lambda: (lambda x: x.sum().backward(), X3().requires_grad_()),
    ),
    (r"sets args\[1\]\[0\], which was not there.*return", lambda: (appending, X3(), [])),
    (GROWN, lambda: assigning(grows)),
    ("sets Assigning.ema, .* also that of its result", lambda: assigning(returns_it_too)),
    ("sets Assigning.ema, .* also that of Assigning.last.*clone", lambda: assigning(assigns_twice)),
    ("changes Counts.steps from 0 to 1", lambda: (Counts(), X3())),
    (r"changes .*\[1\].steps from 0 to 1", lambda: (nn.Sequential(nn.ReLU(), Counts()), X3())),
    ("changes .*CALLED from 0 to 1", lambda: (global_counter, X3())),
    ("changes .*Tally.total from 0 to 1", lambda: (Tally(), X3())),
    ("sets Caching.table, which was None.*[Cc]all it once", lambda: (Caching(), X3())),
    (NO_SHAPE, lambda: (nn.Sequential(nn.LazyLinear(4), nn.ReLU()), numbers(2, 3))),
    (OLD_WEIGHT, lambda: (spectral_norm(linear()), numbers(2, 3))),
    ("changes .*requires_grad", lambda: (Weight(3, 3), X3())),
    ("changes .*training", lambda: using(nn.Dropout(), lambda x, layer: layer.eval()(x))),
    ("sets .*, which was not there", lambda: using({}, keeping)),
]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("reason", "make"), REFUSED)
def test_it_is_refused_by_name_and_all_is_as_before(reason, make, caplog, capfd):
    fn, args, kwargs = called(make)
    before, chance = state(fn, args, kwargs), torch.get_rng_state()
    python, arrays = random.getstate(), np.random.get_state()[1].copy()
    with pytest.raises(ValueError, match=f"(?s)can't trace .*({reason})"):
        TaskGraph.trace(fn, *args, **kwargs)
    after = state(fn, args, kwargs)
    assert after.keys() == before.keys()
    for path, value in before.items():
        same(after[path], value)
    assert not fakes()
    assert torch.equal(torch.get_rng_state(), chance)
    assert python == random.getstate()
    assert (arrays == np.random.get_state()[1]).all()
    assert [entry for entry in caplog.records if entry.levelno >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_memory_of_its_own_is_refused():
    with pytest.raises(ValueError, match=NESTED):
        TaskGraph.trace(torch.neg, torch.nested.nested_tensor([ONES, ONES[:2]]))
    with pytest.raises(ValueError, match="given one FakeTensor, which has no memory of its own"):
        TaskGraph.trace(torch.neg, FakeTensorMode().from_tensor(numbers(3)))
