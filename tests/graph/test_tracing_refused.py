"""What can't be traced: refused with the reason and the line, and all is as it was before."""

import concurrent.futures
import functools
import itertools
import logging
import random
import threading
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import spectral_norm
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from tracing_checks import called, fakes, numbers, same, seeded, state

from autopar import TaskGraph
from autopar.torch_private import TRACES_GENERATORS

pytestmark = [
    pytest.mark.usefixtures("threads_gone"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

CALLED = 0
ONES = torch.ones(3)
X3 = functools.partial(numbers, 3)
REFUSED = []


def refused(reason):
    """Note a function that makes something to call and its arguments, new each time."""

    def note(make):
        REFUSED.append((reason, make))
        return make

    return note


def linear():
    return seeded(nn.Linear, 3, 3)


def using(value, fn):
    """What uses a value that it finds, and something to call it with."""
    return lambda x: fn(x, value), X3()


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


@refused("line .*uses a nested tensor.*Use one that is padded.*enable_nested_tensor")
def encoder():
    """In a call, what its mask leaves out is 0, as it is in no nested tensor."""
    layer = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)
    module = nn.TransformerEncoder(layer, 1).eval().requires_grad_(False)
    mask = torch.tensor([[False, True]])
    return lambda x: module(x, src_key_padding_mask=mask), numbers(1, 2, 4)


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


def widened(x):
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.ones(3)
    finally:
        torch.set_default_dtype(torch.float32)


def catching(read):
    def code(x):
        try:
            return x + read(x)
        except Exception:
            return x

    return lambda: (code, X3())


class Tagged(torch.Tensor):
    """A subclass with memory of its own."""


Output = type("Output", (), {"__init__": lambda self, loss: setattr(self, "loss", loss)})
BY_DATA = [
    (nn.BatchNorm1d(4, momentum=None), numbers(6, 4)),
    (part_by_data, X3()),
    (lambda x: x if torch.zeros(3).add_(x).any() else -x, X3()),
    (lambda x: x if torch.rand(3).sum() > 1 else -x, X3()),
    (lambda x: x if torch.empty(3).sum() > 1 else -x, X3()),
]
REFUSED += [("depends on the data", lambda case=case: case) for case in BY_DATA]
REFUSED += [
    ("depends on the data|value", lambda: using(ONES, lambda x, y: x if y.sum() else -x)),
    ("depends on the data", catching(lambda x: [5, 6, 7][x[0].long()])),
    ("by NumPy", catching(lambda x: float(x.numpy().max()))),
    ("by NumPy", lambda: (lambda x: x + torch.as_tensor(np.asarray(ONES)), X3())),
    ("by tolist", lambda: (lambda x: x * ONES.tolist()[0], X3())),
    ("prints or formats a tensor", lambda: (lambda x: (x, f"{x.sum():.3f}"), X3())),
    ("line .*1 / 0", lambda: (lambda x: x + 1 / 0, X3())),
    ("it sets torch's default dtype", lambda: (widened, X3())),
    ("starts a thread, or gives work", lambda: (in_a_thread, X3())),
    ("starts a thread, or gives work", lambda: (in_a_pool, X3())),
    ("Python's random numbers", lambda: (lambda x: x * random.random(), X3())),
    ("NumPy's random numbers", lambda: (lambda x: x * float(np.random.rand()), X3())),
    ("resize_", lambda: using(torch.zeros(4), lambda x, y: y.resize_(3) + x)),
    ("assigns the `data` of a tensor", lambda: (lambda x: setattr(x, "data", x + 1), X3())),
    ("uses one Tagged, whose own", lambda: using(X3().as_subclass(Tagged), torch.mul)),
    ("one TwoTensor, which has no mem", lambda: (lambda x: x * 2, TwoTensor(ONES, ONES))),
    ("calls cond", lambda: (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), X3())),
    ("dynamo", lambda: (torch.compile(lambda x: x.sin(), backend="eager"), X3())),
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


@refused(r"sets seen\[0\], which was not there")
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


OLD_WEIGHT = "sets Linear.weight, .* also that of Linear.weight_orig.*Call it once"
NO_SHAPE = r"Sequential\[0\].(weight|bias) has no shape yet.*Call it once"
GROWN = r"changes Assigning.ema from .* shape \(4,\) .* to .* shape \(8,\)"
REFUSED += [
    (GROWN, lambda: assigning(grows)),
    ("sets Assigning.ema, .* also that of its result", lambda: assigning(returns_it_too)),
    ("sets Assigning.ema, .* that of Assigning.last.*clone", lambda: assigning(assigns_twice)),
    ("sets Assigning.ema, .* that of Assigning.last.*clone", lambda: assigning(exchanges)),
    (r"changes .*\[1\].steps from 0 to 1", lambda: (nn.Sequential(nn.ReLU(), Counts()), X3())),
    ("changes .*CALLED from 0 to 1", lambda: (global_counter, X3())),
    ("changes .*Tally.total from 0 to 1", lambda: (Tally(), X3())),
    ("changes Slots.calls from 0 to 1|sets Slots.late", lambda: (Slots(), X3())),
    ("sets Caching.table, which was None.*[Cc]all it once", lambda: (Caching(), X3())),
    (NO_SHAPE, lambda: (nn.Sequential(nn.LazyLinear(4), nn.ReLU()), numbers(2, 3))),
    (OLD_WEIGHT, lambda: (spectral_norm(linear()), numbers(2, 3))),
    ("changes .*requires_grad", lambda: (Weight(3, 3), X3())),
    ("changes .*training", lambda: using(nn.Dropout(), lambda x, layer: layer.eval()(x))),
    ("sets .*, which was not there", lambda: using({}, lambda x, held: held.setdefault(1, x))),
    ("sets .*, which was not there", lambda: using(set(), lambda x, held: (held.add(1), x)[1])),
]
REFUSED += [
    (
        r"it comes to value, an iterator.*Take what it needs",
        lambda held=held: using(held, lambda x, _: x),
    )
    for held in (itertools.count(), iter([1]), map(abs, [1]), (number for number in [1]))
]


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


def test_code_may_catch_errors_of_its_own():
    fn, x = catching(lambda x: x.view(7))()
    graph, result = TaskGraph.trace(fn, x)
    same(graph.run()[result], x)


def test_iterators_are_found_where_the_code_does_not_go():
    held = types.SimpleNamespace(inner=[iter([1])])
    with pytest.raises(ValueError, match=r"it comes to args\[1\]\.inner\[0\], an iterator"):
        TaskGraph.trace(lambda x, held: x + 1, ONES, held)


# -- random numbers -------------------------------------------------------------------------------


def of_own(seed=0):
    return torch.Generator().manual_seed(seed)


def seeded_after(x, generator):
    y = x + torch.rand(2, generator=generator)
    generator.manual_seed(1)
    return y


def put_back(x, generator):
    before = generator.get_state()
    y = torch.rand(2, generator=generator)
    generator.set_state(before)
    return x + y


def forks(x, generator):
    with torch.random.fork_rng():
        return x + torch.rand(2)


MAKES, SEEDS = "from a generator that it makes.*Make it before", "seeds torch's random numbers"
MORE_THAN_DRAWING = [
    (MAKES, lambda x, _: x + torch.rand(2, generator=of_own())),
    (MAKES, lambda x, generator: x[torch.randperm(2, generator=generator.clone_state())]),
    (SEEDS, lambda x, generator: x + torch.rand(2, generator=generator.manual_seed(1))),
    (SEEDS, lambda x, generator: x + torch.rand(2, generator=torch.manual_seed(7))),
    *((SEEDS, fn) for fn in (seeded_after, put_back, forks)),
]
needs_generators = pytest.mark.skipif(
    not TRACES_GENERATORS, reason="this torch traces no given generators"
)


@needs_generators
@pytest.mark.parametrize(("reason", "fn"), MORE_THAN_DRAWING)
def test_code_that_does_more_than_draw_is_refused_and_no_state_changes(reason, fn):
    """Also if the state is already what the code sets it to."""
    for seed in (1, 7):
        generator = of_own(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            with pytest.raises(ValueError, match=rf"can't trace .*{reason}"):
                TaskGraph.trace(fn, numbers(2), generator)
            assert torch.rand(2).equal(torch.rand(2, generator=of_own(seed)))
        assert torch.rand(2, generator=generator).equal(torch.rand(2, generator=of_own(seed)))


def draws(x, generator):
    with torch.random.fork_rng():  # and nothing is drawn there
        torch.manual_seed(1)
    own = torch.rand(2, generator=torch.default_generator) + torch.rand(2)
    return x + own, torch.rand(2, generator=generator), torch.rand(2, generator=generator)


@needs_generators
def test_generators_from_outside_go_on_from_run_to_run():
    generators = of_own(), of_own()
    graph, result = TaskGraph.trace(draws, x := numbers(2), generators[0])
    for run in (graph.run, graph.run_serial):
        torch.manual_seed(3)
        wanted = draws(x, generators[1])
        torch.manual_seed(3)
        same(run()[result], wanted)


def test_a_torch_that_traces_no_given_generators_is_named(monkeypatch):
    monkeypatch.setattr("autopar.graph.watch.TRACES_GENERATORS", False)
    with pytest.raises(ValueError, match=r"can't trace .* torch 2\..* given a gen.*torch 2\.13"):
        TaskGraph.trace(lambda x: torch.rand(2, generator=of_own()), numbers(2))
    TaskGraph.trace(lambda x: x + torch.rand(2), numbers(2))  # from the default one
