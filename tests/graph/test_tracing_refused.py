"""What can't be traced: refused with the reason and the line, and all is as it was before."""

import collections
import concurrent.futures
import functools
import multiprocessing.pool
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from tracing_checks import numbers, refused_and_as_before, same, seeded, using

from autopar import TaskGraph

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:.*torch.jit.script"
)

ONES, WEIGHT = torch.ones(3), torch.nn.Parameter(torch.ones(3))
X3 = functools.partial(numbers, 3)


def control_by_data(x):
    if x.sum() > 0:
        return x
    return -x


def recomputing_with_dropout():
    layer = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout()))
    recomputed = functools.partial(checkpoint, layer, use_reentrant=False)
    return lambda x: torch.autograd.grad(recomputed(x).sum(), [*layer.parameters()]), X3()


def encoder():
    """In a call, what its mask leaves out is 0, as it is in no nested tensor."""
    layer = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)
    module = nn.TransformerEncoder(layer, 1).eval().requires_grad_(False)
    mask = torch.tensor([[False, True]])
    return lambda x: module(x, src_key_padding_mask=mask), numbers(1, 2, 4)


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


def packs(x, layer=nn.GRU(4, 4)):  # noqa: B008
    return layer(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2])))[0].data


def caused_in_a_circle(x):
    error, cause = ValueError("one"), ValueError("another")
    error.__cause__, cause.__cause__ = cause, error
    raise error


class WithoutText(Exception):
    def __str__(self):
        raise RuntimeError


def raises_without_text(x):
    raise WithoutText


class Checked(collections.namedtuple("Checked", "x y")):
    def __new__(cls, x, y):
        assert x.shape == y.shape
        return super().__new__(cls, x, y)


class Tagged(torch.Tensor):
    """A subclass with memory of its own."""


Output = type("Output", (), {"__init__": lambda self, loss: setattr(self, "loss", loss)})
NO_NUMBERS = "line .*tensors that have no numbers yet.*by graph.add"
CONTROL = r"line \d+ of test_tracing_refused.py, `if x.sum\(\) > 0:`.*depends on the data"
NESTED = "line .*uses a nested tensor.*Use one that is padded.*enable_nested_tensor"
BY_DATA = [
    (nn.BatchNorm1d(4, momentum=None), numbers(6, 4)),
    (part_by_data, X3()),
    (lambda x: x if torch.zeros(3).add_(x).any() else -x, X3()),
    (lambda x: x if torch.rand(3).sum() > 1 else -x, X3()),
    (lambda x: x if torch.empty(3).sum() > 1 else -x, X3()),
]
REFUSED = [("depends on the data", lambda case=case: case) for case in BY_DATA]
REFUSED += [
    (CONTROL, lambda: (control_by_data, X3())),
    ("depends on the data", lambda: (torch.jit.script(control_by_data), X3())),
    ("puts their state back, as a checkpoint does", recomputing_with_dropout),
    (NESTED, encoder),
    ("depends on the data|value", lambda: using(ONES, lambda x, y: x if y.sum() else -x)),
    ("depends on the data", catching(lambda x: [5, 6, 7][x[0].long()])),
    (r"line .*x\.numpy.*it reads .* by NumPy", catching(lambda x: float(x.numpy().max()))),
    ("by NumPy", lambda: (lambda x: x + torch.as_tensor(np.asarray(ONES)), X3())),
    ("by tolist", lambda: (lambda x: x * ONES.tolist()[0], X3())),
    ("prints or formats a tensor", lambda: (lambda x: (x, f"{x.sum():.3f}"), X3())),
    ("line .*1 / 0.*ZeroDivisionError", lambda: (lambda x: x + 1 / 0, X3())),
    ("depends on the data", lambda: (lambda x: x if torch.equal(x, x + 1) else -x, X3())),
    ("depends on the data", lambda: (lambda x: torch.linalg.lstsq(x, x)[0], numbers(3, 3))),
    (NO_NUMBERS, lambda: (lambda x: torch.tensor([x[0], 1.0]), X3())),
    (NO_NUMBERS, lambda: (lambda x: x * x.data_ptr(), X3())),
    (NO_NUMBERS, lambda: (packs, numbers(3, 2, 4))),
    ("line .*raise error.*: one$", lambda: (caused_in_a_circle, X3())),
    ("line .*raise WithoutText.*WithoutText: .*failed", lambda: (raises_without_text, X3())),
    ("can't be made of tasks.*in tuples", lambda: (lambda x: Checked(x, x + 1), X3())),
    ("no attribute 'nothing'", lambda: (lambda x: x.nothing, X3())),
    ("returns one frozenset", lambda: (lambda x: [frozenset([x * 2])], X3())),
    ("on 'meta', where", lambda: (lambda x: x.to("meta"), X3())),
    ("it sets torch's default dtype", lambda: (widened, X3())),
    ("starts a thread, or gives work", lambda: (lambda x: threading.Thread().start(), X3())),
    ("starts a thread, or gives work", lambda: (in_a_pool, X3())),
    ("Python's random numbers", lambda: (lambda x: x * random.random(), X3())),
    ("NumPy's random numbers", lambda: (lambda x: x * float(np.random.rand()), X3())),
    ("other memory", lambda: using(torch.zeros(4), lambda x, y: y.as_strided_((2,), (1,)) + x[0])),
    ("resize_", lambda: using(torch.zeros(4), lambda x, y: y.resize_(3) + x)),
    ("changes a tensor's storage", lambda: (lambda x: x.untyped_storage().resize_(0), X3())),
    ("changes a tensor's storage", lambda: (lambda x: x.untyped_storage().fill_(0), X3())),
    ("assigns the `data` of a tensor", lambda: (lambda x: setattr(x, "data", x + 1), X3())),
    ("uses one Tagged, whose own", lambda: using(X3().as_subclass(Tagged), torch.mul)),
    ("one TwoTensor, which has no mem", lambda: (lambda x: x * 2, TwoTensor(ONES, ONES))),
    ("calls compiled code", lambda: (torch.compile(lambda x: x.sin(), backend="eager"), X3())),
    ("calls aten.empty.* on 'meta'", lambda: (lambda x: torch.empty_like(x, device="meta"), X3())),
    ("returns one Output.*register_dataclass", lambda: (lambda x: Output(x.sum()), X3())),
]


@pytest.mark.parametrize(("reason", "make"), REFUSED)
def test_it_is_refused_by_name_and_all_is_as_before(reason, make, caplog, capfd):
    refused_and_as_before(reason, make, caplog, capfd)


def test_work_for_threads_that_are_there_already_is_refused():
    start = threading.Thread.start
    with multiprocessing.pool.ThreadPool(1) as pool:
        for fn in (
            lambda x: pool.apply(torch.sin, (ONES,)) + x,
            lambda x: pool.map_async(torch.sin, [ONES]).get()[0] + x,
            lambda x: (start(threading.Thread(target=X3)), x)[1],
        ):
            with pytest.raises(ValueError, match="starts a thread, or gives work"):
                TaskGraph.trace(fn, X3())
        assert pool.apply(int) == 0
        pool.close()
        pool.join()


WRITES = [
    lambda y: y.copy_(WEIGHT),
    lambda y: y.view(-1).add_(WEIGHT),
    lambda y: y[:].mul_(2).add_(WEIGHT),
]


@pytest.mark.parametrize("writes", WRITES)
@pytest.mark.parametrize("made", [lambda: torch.zeros(3), lambda: torch.zeros(6)[1:4]])
def test_what_autograd_would_track_after_a_call_is_refused_and_not_tracked(writes, made):
    found, given = made(), made()
    for code in (lambda x: writes(found), writes):
        with pytest.raises(ValueError, match="line .*with gradients on.*torch.no_grad"):
            TaskGraph.trace(code, given)
    for tensor in (found, given):
        assert not tensor.requires_grad
        assert not tensor.any()


@pytest.mark.parametrize("writes", WRITES)
def test_what_it_would_not_track_may_be_written(writes):
    def fn(x, found):
        with torch.no_grad():
            writes(found[1:4])
        return writes(found.detach()[1:4]), writes(found.data[2:5]), writes((x * 2).view(3))

    found, twin = torch.zeros(6), torch.zeros(6)
    graph, result = TaskGraph.trace(lambda x: fn(x, found), X3())
    same(graph.run()[result], tuple(part.detach() for part in fn(X3(), twin)))
    same(found, twin)
    assert not found.requires_grad


def test_code_may_catch_errors_of_its_own():
    fn, x = catching(lambda x: x.view(7))()
    graph, result = TaskGraph.trace(fn, x)
    same(graph.run()[result], x)


def test_an_error_that_the_data_decides_is_raised_by_the_run_though_code_would_catch_it():
    def fn(x):
        try:
            return torch.linalg.cholesky(x)
        except torch.linalg.LinAlgError:
            return x

    graph, result = TaskGraph.trace(fn, x := torch.eye(2))
    same(graph.run()[result], x)
    x.neg_()
    with pytest.raises(torch.linalg.LinAlgError):
        graph.run()


def test_what_can_not_be_called_is_refused():
    with pytest.raises(TypeError, match=r"fn is of type int; expected a function. Write trace\("):
        TaskGraph.trace(3)
