"""Tracing: unmodified code as a graph of its operators, with the same results, draws and state."""

import collections
import dataclasses
import functools
import logging
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from tracing_checks import Average, called, fakes, numbers, same, seeded, sequence, state, using

from autopar import TaskGraph

linear = functools.partial(seeded, nn.Linear)
FORMS = {}


def form(make):
    """Note a function that makes something to call and its arguments, new each time."""
    FORMS[make.__name__.replace("_", " ")] = make
    return make


# -- modules and functions ------------------------------------------------------------------------


class Keywords(nn.Module):
    def forward(self, *, x, scale=1.0, bias=None):
        return x * scale + (0 if bias is None else bias)


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Registered:
    loss: torch.Tensor
    count: int


torch.export.register_dataclass(Registered)


def in_containers(batch, sizes):
    first, (second, third) = batch["pair"]
    return {"a": [first + second, {"b": third * sizes[0]}], "sizes": sizes, "none": None}


def drawn(x):
    y = torch.rand_like(x) + torch.randn(4) + torch.randint(9, (4,))
    z = torch.empty(4).uniform_() + torch.bernoulli(torch.full((4,), 0.5))
    return y, z, torch.randperm(5), torch.multinomial(torch.ones(4), 2), F.gumbel_softmax(x)


def constants(x):
    table = torch.cat([torch.tensor([1.0, 2.0, 3.0]), x.new_tensor([]), torch.tensor([])])
    table[0] = 7
    return x * table + torch.tensor(2) + torch.from_numpy(np.ones(3, "f4"))


def of_other_kinds(x):
    spectrum = (torch.fft.rfft(x).conj() * 1j).imag + torch.view_as_real(x + 0j)[:3, 0]
    quantised = torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize()
    square = x[None] * x[:, None]
    return spectrum, quantised, torch.sparse.mm(square.to_sparse(), square).relu()


X, X3 = functools.partial(numbers, 4), functools.partial(numbers, 3)
FORMS |= {
    "lstm": lambda: (seeded(nn.LSTM, 4, 5, num_layers=2, dropout=0.5), numbers(6, 2, 4)),
    "transformer in evaluation": lambda: (
        seeded(nn.TransformerEncoderLayer, 8, 2, 16, batch_first=True).eval(),
        numbers(2, 5, 8),
    ),
    "norms": lambda: (
        nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, track_running_stats=True)),
        numbers(2, 4, 5),
    ),
    "an embedding that renormalises": lambda: (
        seeded(nn.Embedding, 9, 4, max_norm=0.5),
        torch.tensor([1, 2, 5]),
    ),
    "buffers assigned anew": lambda: (sequence(lambda: nn.Linear(4, 4), Average), numbers(3, 4)),
    "keywords": lambda: (Keywords(), {"x": X(), "scale": 2.0, "bias": X()}),
    "containers": lambda: (in_containers, {"pair": [X(), (X(), X())]}, (3, 4)),
    "named tuples": lambda: (lambda p: Point(p.y, p.x + 1), Point(X(), X(seed=1))),
    "a registered dataclass": lambda: (lambda x: Registered(x.sum(), 3), X()),
    "nothing but its arguments": lambda: (lambda x, y: [y, x], numbers(2), numbers(3)),
    "a number": lambda: (lambda x: x.shape[0], X()),
    "sizes from data": lambda: (lambda x: (x[x > 0].numel() * 2, x.nonzero()), numbers(9)),
    "a number from data": lambda: (lambda x: (x * x.sum().item(), x.max().item()), X()),
    "no arguments": lambda: (x := X(), lambda: x * 2)[1],
    "what it finds": lambda: using([X3(), 2.0, (X3(),)], lambda x, own: x * own[0] + own[1]),
    "random numbers": lambda: (drawn, X()),
    "a generator": lambda: using(torch.Generator(), lambda x, g: x + torch.rand(3, generator=g)),
    "constants": lambda: (constants, numbers(3)),
    "repeated by constants": lambda: (
        lambda x: (x.repeat_interleave(torch.tensor([1, 3, 0, 2])), torch.eye(4).nonzero() * 2),
        X(),
    ),
    "other kinds of tensors": lambda: (of_other_kinds, X()),
}
INEXACT = {"lstm"}


@form
def transformer_in_evaluation_with_a_mask():
    layer = functools.partial(nn.TransformerEncoderLayer, 8, 2, 16, batch_first=True)
    module = seeded(lambda: nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False))
    module.eval().requires_grad_(False)
    mask = torch.tensor([[False, False, False, True, True]] * 2)
    return lambda x: module(x, src_key_padding_mask=mask), numbers(2, 5, 8)


@form
def script_after_its_first_call():
    def fn(x, n: int):
        for _ in range(n):
            x = x * 2 + 1
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(fn), numbers(3), 3


# -- memory, gradients ----------------------------------------------------------------------------


@form
def changes_in_place():
    def fn(x, at, own=torch.zeros(4)):  # noqa: B008
        F.relu(x, inplace=True)
        first = x.view(-1)
        first.mul_(2)
        x[at] = 1.0
        x.index_put_((at,), torch.ones(2, 4), accumulate=True)
        x[:, x[0] > 0] = 3
        x.t()[1:].mul_(2)
        torch.add(x[0], 1, out=own)
        return first, own * 2, x[0], x.t(), x.unbind(), x

    return fn, numbers(5, 4), torch.tensor([1, 3])


@form
def optimizer_after_its_first_step():
    optimizer = torch.optim.SGD((layer := linear(3, 3)).parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(3)).sum().backward()
    optimizer.step()

    def fn(x):
        optimizer.zero_grad(set_to_none=False)
        loss = layer(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return fn, numbers(2, 3)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


@form
def gradients_of_many_kinds():
    layer = sequence(lambda: nn.Linear(4, 4), nn.Tanh)

    def fn(x):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        cubed = torch.autograd.grad(first.sum(), x), torch.autograd.grad(Cube.apply(x).sum(), x)
        loss = checkpoint(layer, x, use_reentrant=False).sum()
        recomputed = torch.autograd.grad(loss, list(layer.parameters()))
        weights = {name: weight.detach() for name, weight in layer.named_parameters()}
        of_call = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,)).sum())
        return cubed, recomputed, of_call(weights), torch.vmap(torch.dot)(x, x)

    return fn, numbers(3, 4)


# -- state ----------------------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).t()


@form
def tensor_in_a_cell():
    total = torch.zeros(3)

    def fn(x):
        nonlocal total
        total = total + x
        return total * 2

    return fn, numbers(3)


@form
def hooks_that_compute():
    layer = linear(3, 3)
    layer.register_forward_hook(lambda module, args, out: out * 2)
    layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return layer, numbers(2, 3)


@form
def norms_of_old_after_the_first_call():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = seeded(lambda: nn.Sequential(spectral_norm(nn.Linear(4, 3)), nn.ReLU()))
        layer.append(weight_norm(linear(3, 2)))
    layer(numbers(2, 4))
    return layer, numbers(2, 4)


@form
def parametrizations_cached():
    layer = seeded(lambda: parametrizations.weight_norm(nn.Linear(3, 3)))
    other = linear(3, 3)
    parametrize.register_parametrization(other, "weight", Symmetric())

    def fn(x):
        with parametrize.cached():
            return layer(x) + layer(other(x))

    return fn, numbers(2, 3)


@form
def deciding_by_what_no_data_is_in():
    def fn(x):
        positions = torch.arange(len(x)).unsqueeze(0)
        steps = torch.diff(positions, prepend=positions[:, :1] - 1)
        counts, sizes = torch.zeros(3), torch.tensor([2, 3, 4])
        counts[1:].add_(steps.sum())
        x = x + torch.arange(3) * torch.tensor(2.0)
        x = x * sizes if sizes[0] > 1 else -x
        return x + counts if (steps == 1).all() and counts.max().item() == 4 else -x

    return fn, numbers(4, 3)


@pytest.mark.parametrize("name", FORMS)
def test_a_graph_is_as_the_code_in_each_run_and_tracing_changes_nothing(name, caplog, capfd):
    """One copy is traced and run; another is called as often, and all must be the same."""
    exact = name not in INEXACT
    fn, args, kwargs = called(FORMS[name])
    twin, twin_args, twin_kwargs = called(FORMS[name])
    before, chance = state(fn, args, kwargs), torch.get_rng_state()
    graph, result = TaskGraph.trace(fn, *args, **kwargs)
    assert graph.plan().faults() == []
    assert same_state(state(fn, args, kwargs), before)
    assert not fakes()
    assert torch.equal(torch.get_rng_state(), chance)
    assert [entry for entry in caplog.records if entry.levelno >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")
    for number, run in enumerate((graph.run, graph.run_serial, graph.run)):
        torch.manual_seed(number)
        values = run()[result]
        torch.manual_seed(number)
        wanted = twin(*twin_args, **twin_kwargs)
        same(values, pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, wanted), exact=exact)
        wanted = state(twin, twin_args, twin_kwargs)
        assert same_state(state(fn, args, kwargs), wanted, exact=exact)


def same_state(now, wanted, *, exact=True):
    for path, value in wanted.items():
        same(now[path], value, exact=exact)
    return now.keys() == wanted.keys()
