"""Forms of code, traced: equal to eager in each run, or refused by name; nothing is left behind.

Of each form there are two copies. One is traced, which must change nothing of it, and run; the
other one is called as often, and results and all state must be the same after each.
"""

import collections
import dataclasses
import gc
import itertools
import logging
import random
import types
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm
from torch.optim.sgd import sgd
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")

CALLS = 3


class Form(NamedTuple):
    """A way to write code: what makes a copy of it, and how it is refused, if it is."""

    make: object
    refused: str
    exact: bool


FORMS: dict[str, Form] = {}


def form(refused="", *, exact=True):
    """Note a function that makes something to call and its arguments, new each time."""

    def note(make):
        FORMS[make.__name__.replace("_", " ")] = Form(make, refused, exact)
        return make

    return note


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(make, *args, **kwargs):
    """A module with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(*args, **kwargs)


# -- modules --------------------------------------------------------------------------------------


@form()
def convolutions():
    def make():
        first = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        return nn.Sequential(*first, nn.ConvTranspose2d(4, 2, 2))

    return seeded(make), numbers(2, 3, 8, 8)


@form()
def convolution_of_one_dimension():
    return seeded(nn.Conv1d, 2, 3, 3), numbers(1, 2, 8)


@form()
def rnn():
    return seeded(nn.RNN, 4, 5, num_layers=2, bidirectional=True), numbers(6, 2, 4)


@form(exact=False)
def lstm():
    return seeded(nn.LSTM, 4, 5, batch_first=True), numbers(2, 6, 4)


@form(exact=False)
def lstm_with_dropout():
    return seeded(nn.LSTM, 4, 5, num_layers=2, dropout=0.5), numbers(6, 2, 4)


@form()
def gru():
    return seeded(nn.GRU, 4, 5), numbers(6, 2, 4), numbers(1, 2, 5)


@form()
def lstm_cell():
    return seeded(nn.LSTMCell, 4, 5), numbers(2, 4)


@form(exact=False)
def transformer_layer():
    return seeded(nn.TransformerEncoderLayer, 8, 2, 16, batch_first=True), numbers(2, 5, 8)


@form(exact=False)
def transformer_layer_that_does_not_train():
    return seeded(nn.TransformerEncoderLayer, 8, 2, 16, batch_first=True).eval(), numbers(2, 5, 8)


@form(exact=False)
def attention_with_weights():
    attention = seeded(nn.MultiheadAttention, 8, 2)
    return lambda x: attention(x, x, x), numbers(5, 2, 8)


@form()
def batch_norm_in_training():
    return seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))), numbers(6, 4)


@form("depends on the data")
def batch_norm_without_momentum():
    return nn.BatchNorm1d(4, momentum=None), numbers(6, 4)


@form()
def batch_norm_in_evaluation():
    return nn.BatchNorm2d(3).eval(), numbers(2, 3, 4, 4)


@form()
def other_norms():
    layers = [nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, track_running_stats=True), nn.LayerNorm(5)]
    return nn.Sequential(*layers), numbers(2, 4, 5)


@form()
def dropout():
    return nn.Sequential(nn.Dropout(), nn.Dropout1d(), nn.AlphaDropout()), numbers(3, 4, 5)


@form()
def embeddings():
    parts = seeded(lambda: nn.ModuleList([nn.Embedding(9, 4), nn.EmbeddingBag(9, 4)]))
    return lambda at: (parts[0](at), parts[1](at)), torch.tensor([[1, 2], [5, 8]])


@form()
def embedding_that_renormalises():
    return seeded(nn.Embedding, 9, 4, max_norm=0.5), torch.tensor([1, 2, 5])


@form()
def losses():
    return (
        lambda x, y: F.cross_entropy(x, y) + F.nll_loss(F.log_softmax(x, 1), y),
        numbers(3, 5),
        torch.tensor([0, 3, 4]),
    )


@form()
def upsampling():
    return nn.Upsample(scale_factor=2, mode="bilinear"), numbers(1, 2, 3, 3)


# -- memory ---------------------------------------------------------------------------------------


@form()
def changes_in_place():
    def fn(x):
        F.relu(x, inplace=True)
        x += 1
        x[0] = 5
        x.t()[1:].mul_(2)
        return x.sum()

    return fn, numbers(4, 4)


@form()
def index_put():
    def fn(x, at):
        x[at] = 1.0
        x.index_put_((at,), torch.ones(2, 4), accumulate=True)
        x[:, x[0] > 0] = 3
        return x.scatter_add(0, at[:, None].expand(2, 4), torch.ones(2, 4))

    return fn, numbers(5, 4), torch.tensor([1, 3])


@form()
def results_given_by_out():
    own = torch.zeros(4)

    def fn(x):
        torch.add(x, 1, out=own)
        return own * 2

    return fn, numbers(4)


@form()
def views_as_results():
    return lambda x: (x[0], x.t(), x.view(-1), x.unbind(), x), numbers(3, 4)


@form(r"sets args\[1\]\[0\], which was not there.*return")
def list_of_arguments_is_filled():
    def fn(x, found):
        found.append(x + 1)
        return x

    return fn, numbers(3), []


@form("assigns the `data` of a tensor")
def data_swapped():
    def fn(x):
        x.data = x.data + 1
        return x * 1

    return fn, numbers(3)


@form("assigns the `data` of a tensor")
def data_of_parameters_swapped():
    layer = seeded(nn.Linear, 3, 3)

    def fn(x):
        for each in layer.parameters():
            each.data = each.data * 0.9
        return layer(x)

    return fn, numbers(2, 3)


@form("resize_")
def resized():
    own = torch.zeros(4)
    return lambda x: own.resize_(2, 2) + x, numbers(2, 2)


# -- gradients and other functions of functions ---------------------------------------------------


@form()
def gradients():
    layer = seeded(nn.Linear, 4, 2)

    def fn(x):
        loss = layer(x).square().mean()
        return loss.detach(), torch.autograd.grad(loss, list(layer.parameters()))

    return fn, numbers(3, 4)


@form()
def gradients_of_gradients():
    def fn(x):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)

    return fn, numbers(4)


@form(r"sets the gradient of layer\.(weight|bias), of which there is none")
def backward():
    layer = seeded(nn.Linear, 4, 2)

    def fn(x):
        layer(x).sum().backward()
        return x

    return fn, numbers(3, 4)


@form(r"sets the gradient of args\[0\]")
def backward_into_an_argument():
    def fn(x):
        (x * 2).sum().backward()
        return x * 1

    return fn, numbers(3, 4).requires_grad_()


@form()
def gradients_that_add_up():
    layer = seeded(nn.Linear, 4, 2)
    for each in layer.parameters():
        each.grad = torch.zeros_like(each)

    def fn(x):
        layer(x).sum().backward()
        return x + 1

    return fn, numbers(3, 4)


@form(exact=False)
def training_step_by_hand():
    layer = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()))

    def fn(x):
        own = list(layer.parameters())
        loss = layer(x).square().mean()
        gradients = torch.autograd.grad(loss, own)
        with torch.no_grad():
            for each, gradient in zip(own, gradients, strict=True):
                each -= 0.1 * gradient
        return loss.detach()

    return fn, numbers(6, 4)


@form()
def optimizer_as_a_function():
    own, momenta = [numbers(3), numbers(4, seed=1)], [torch.zeros(3), torch.zeros(4)]

    def fn(x):
        gradients = [each * x.sum() for each in own]
        sgd(
            *(own, gradients, momenta),
            **dict.fromkeys(["nesterov", "maximize", "foreach"], False),
            **dict.fromkeys(["weight_decay", "dampening"], 0.0),
            momentum=0.9,
            lr=0.1,
        )
        return own[0] * 1

    return fn, numbers(3)


@form()
def optimizer_after_its_first_step():
    layer = seeded(nn.Linear, 3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(3)).sum().backward()
    optimizer.step()

    def fn(x):
        optimizer.zero_grad(set_to_none=False)
        loss = layer(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return fn, numbers(2, 3)


@form("sets")
def optimizer_in_its_first_step():
    layer = seeded(nn.Linear, 3, 3)
    optimizer = torch.optim.Adam(layer.parameters())

    def fn(x):
        loss = layer(x).square().sum()
        for each, grad in zip(
            layer.parameters(), torch.autograd.grad(loss, list(layer.parameters())), strict=True
        ):
            each.grad = grad
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


@form()
def function_of_ones_own():
    def fn(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(Cube.apply(x).sum(), x)

    return fn, numbers(4)


@form()
def recomputing():
    layer = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()))

    def fn(x):
        loss = checkpoint(layer, x, use_reentrant=False).sum()
        return torch.autograd.grad(loss, list(layer.parameters()))

    return fn, numbers(3, 4)


@form("draws random numbers anew")
def recomputing_with_dropout():
    layer = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout()))

    def fn(x):
        loss = checkpoint(layer, x, use_reentrant=False).sum()
        return torch.autograd.grad(loss, list(layer.parameters()))

    return fn, numbers(3, 4)


@form()
def functions_of_functions():
    layer = seeded(nn.Linear, 4, 2)

    def fn(x):
        own = dict(layer.named_parameters())
        loss = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,)).sum())
        return loss(own), torch.vmap(torch.dot)(x, x), torch.func.jacrev(torch.sin)(x[0])

    return fn, numbers(3, 4)


# -- state ----------------------------------------------------------------------------------------


class Average(nn.Module):
    """Buffers that forward re-assigns."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ema", torch.zeros(4))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.ema = 0.9 * self.ema + 0.1 * x.mean(0)
        self.seen = self.seen + 1
        return x - self.ema


@form()
def buffers_that_are_reassigned():
    return Average(), numbers(3, 4)


@form()
def buffers_inside_other_modules():
    return seeded(lambda: nn.Sequential(nn.Linear(4, 4), Average(), Average())), numbers(3, 4)


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.now, self.last = torch.zeros(3), torch.ones(3)

    def forward(self, x):
        self.last, self.now = self.now, self.last + x
        return self.now - self.last


@form()
def tensors_that_change_places():
    return Shift(), numbers(3)


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(4, 5)
        self.hidden = (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))

    def forward(self, x):
        out, self.hidden = self.cell(x, self.hidden)
        return out


@form(exact=False)
def hidden_state_in_a_tuple():
    return seeded(Stateful), numbers(3, 2, 4)


@form()
def tensor_in_a_dictionary():
    memory = {"last": torch.zeros(3)}

    def fn(x):
        memory["last"] = memory["last"] + x
        return memory["last"] * 2

    return fn, numbers(3)


@form()
def tensor_in_a_cell():
    total = torch.zeros(3)

    def fn(x):
        nonlocal total
        total = total + x
        return total * 2

    return fn, numbers(3)


@form()
def dictionary_of_arguments_is_changed():
    def fn(x, state):
        state["sum"] = state["sum"] + x
        return x

    return fn, numbers(3), {"sum": torch.zeros(3)}


@form()
def old_state_as_a_result():
    class Old(Average):
        def forward(self, x):
            old = self.ema
            super().forward(x)
            return old

    Old.__qualname__ = "Average"
    return Old(), numbers(3, 4)


@form(r"changes Growing.ema from .* shape \(4,\) .* to .* shape \(8,\)")
def buffer_of_another_shape():
    class Growing(Average):
        def forward(self, x):
            self.ema = torch.cat([self.ema, x[0]])
            return self.ema

    Growing.__qualname__ = "Growing"
    return Growing(), numbers(3, 4)


@form("is also")
def buffer_with_two_names():
    module = Average()
    module.other = module.ema
    return module, numbers(3, 4)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x * self.steps


@form(r"changes Counts.steps from 0 to 1")
def counter():
    return Counts(), numbers(3)


@form(r"changes .*\[1\].steps from 0 to 1")
def counter_inside():
    return nn.Sequential(nn.ReLU(), Counts()), numbers(3)


@form("changes .*nonlocal|changes .*calls from 0 to 1")
def counter_in_a_cell():
    calls = 0

    def fn(x):
        nonlocal calls
        calls += 1
        return x * calls

    return fn, numbers(3)


def global_counter(x):
    global CALLED
    CALLED += 1
    return x * CALLED


CALLED = 0


@form("changes .*CALLED from 0 to 1")
def counter_in_a_global_name():
    return global_counter, numbers(3)


class Tally:
    total = 0

    def __call__(self, x):
        type(self).total += 1
        return x + self.total


@form("changes .*Tally.total from 0 to 1")
def counter_in_a_class():
    return Tally(), numbers(3)


class Caching(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(x.shape[-1]).float()
        return x + self.table


@form("sets Caching.table, which was None.*[Cc]all it once")
def cache_in_the_first_call():
    return Caching(), numbers(3)


@form()
def cache_after_the_first_call():
    module = Caching()
    module(numbers(3))
    return module, numbers(3)


@form(r"sets seen\[0\], which was not there")
def hook_that_appends():
    layer, seen = seeded(nn.Linear, 3, 3), []
    layer.register_forward_hook(lambda module, args, out: seen.append(out))
    return layer, numbers(2, 3)


@form(r"sets acts\['out'\], which was not there")
def hook_that_keeps():
    layer, acts = seeded(nn.Linear, 3, 3), {}
    layer.register_forward_hook(lambda module, args, out: acts.update(out=out))
    return layer, numbers(2, 3)


@form()
def hooks_that_compute():
    layer = seeded(nn.Linear, 3, 3)
    layer.register_forward_hook(lambda module, args, out: out * 2)
    layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return layer, numbers(2, 3)


@form(r"Sequential\[0\].(weight|bias) has no shape yet.*Call it once")
def lazy_module():
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU()), numbers(2, 3)


@form("Linear.weight, whose memory is also that of Linear.weight_orig.*[Cc]all it once")
def spectral_norm_of_old():
    return spectral_norm(seeded(nn.Linear, 4, 3)), numbers(2, 4)


@form()
def spectral_norm_of_old_after_the_first_call():
    layer = seeded(lambda: spectral_norm(nn.Linear(4, 3)))
    layer(numbers(2, 4))
    return layer, numbers(2, 4)


@form()
def spectral_norm_as_a_parametrization():
    return seeded(lambda: parametrizations.spectral_norm(nn.Linear(4, 3))), numbers(2, 4)


@form()
def weight_norm_of_old():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return weight_norm(seeded(nn.Linear, 4, 3)), numbers(2, 4)


@form()
def parametrization_of_ones_own():
    class Symmetric(nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).t()

    layer = seeded(nn.Linear, 3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer, numbers(2, 3)


@form()
def parametrization_cached():
    layer = seeded(lambda: parametrizations.weight_norm(nn.Linear(3, 3)))

    def fn(x):
        with parametrize.cached():
            return layer(x) + layer(x)

    return fn, numbers(2, 3)


@form("changes .*requires_grad")
def requires_grad_is_changed():
    layer = seeded(nn.Linear, 3, 3)

    def fn(x):
        layer.weight.requires_grad_(False)
        return layer(x)

    return fn, numbers(2, 3)


@form("changes .*training")
def mode_is_changed():
    layer = nn.Dropout()

    def fn(x):
        layer.eval()
        return layer(x)

    return fn, numbers(2, 3)


@form()
def mode_is_changed_and_set_back():
    layer = nn.Dropout()

    def fn(x):
        layer.eval()
        y = layer(x)
        layer.train()
        return y + layer(x)

    return fn, numbers(2, 3)


@form("in the cache of .*table")
def cache_of_a_function():
    import functools

    @functools.lru_cache
    def table(n):
        return torch.arange(n).float()

    return lambda x: x + table(3), numbers(3)


# -- arguments and results ------------------------------------------------------------------------


@form()
def keyword_arguments_only():
    class Keywords(nn.Module):
        def forward(self, *, x, scale=1.0, bias=None):
            return x * scale + (0 if bias is None else bias)

    return Keywords(), {"x": numbers(3), "scale": 2.0, "bias": numbers(3, seed=1)}


@form()
def nested_containers():
    def fn(batch, sizes):
        first, (second, third) = batch["pair"][0], batch["pair"][1]
        return {"a": [first + second, {"b": third * sizes[0]}], "sizes": sizes, "none": None}

    return fn, {"pair": [numbers(2), (numbers(2, seed=1), numbers(2, seed=2))]}, (3, 4)


Point = collections.namedtuple("Point", "x y")


@form()
def named_tuples():
    return lambda p: Point(p.y, p.x + 1), Point(numbers(2), numbers(2, seed=1))


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    count: int


@dataclasses.dataclass
class Registered:
    loss: torch.Tensor
    count: int


torch.export.register_dataclass(Registered)


@form("returns one Output.*register_dataclass")
def dataclass():
    return lambda x: Output(x.sum(), 3), numbers(4)


@form()
def dataclass_that_is_registered():
    return lambda x: Registered(x.sum(), 3), numbers(4)


@form()
def result_is_a_number():
    return lambda x: x.shape[0], numbers(4)


@form()
def result_is_none():
    return lambda x: x.add_(1) and None if False else None, numbers(4)


@form()
def result_is_a_string():
    return lambda x: f"{x.dtype} {tuple(x.shape)}", numbers(4)


@form()
def result_is_empty():
    return lambda x: (), numbers(4)


@form()
def results_are_no_tensors():
    return lambda x: {"n": len(x), "names": ["a", None], "shape": x.shape, "on": x.device}, numbers(
        4
    )


@form()
def sizes_from_data():
    return lambda x: (x[x > 0].shape[0], x[x > 0].numel() * 2, x.nonzero()), numbers(9)


@form()
def one_size_from_data():
    return lambda x: x[x > 0].shape[0], numbers(9)


@form()
def number_from_data():
    return lambda x: (x * x.sum().item(), x.max().item()), numbers(4)


@form()
def no_arguments():
    own = numbers(3)
    return lambda: own * 2


@form()
def closures():
    own, scale, other = numbers(3), [2.0], (numbers(3, seed=2),)
    return lambda x, more=other: x * own * scale[0] + more[0], numbers(3, seed=1)


# -- random numbers -------------------------------------------------------------------------------


@form()
def random_operators():
    def fn(x):
        y = torch.rand_like(x) + torch.randn(4) + torch.randint(9, (4,))
        z = torch.empty(4).uniform_() + torch.bernoulli(torch.full((4,), 0.5))
        return y, z, torch.randperm(5), torch.multinomial(torch.ones(4), 2), F.gumbel_softmax(x)

    return fn, numbers(4)


@form()
def random_numbers_of_a_generator():
    own = torch.Generator().manual_seed(5)
    return lambda x: (torch.rand(4, generator=own), torch.randn(4, generator=own) + x), numbers(4)


@form("torch's random numbers|manual_seed")
def seed_is_set():
    def fn(x):
        torch.manual_seed(7)
        return torch.rand(4) + x

    return fn, numbers(4)


@form("Python's random numbers")
def chance_of_python():
    return lambda x: x * random.random(), numbers(4)


@form("NumPy's random numbers")
def chance_of_numpy():
    return lambda x: x * float(np.random.rand()), numbers(4)


# -- what is no plain tensor ----------------------------------------------------------------------


@form()
def complex_numbers():
    return lambda x: (torch.fft.rfft(x).conj() * 1j).imag + torch.view_as_real(x + 0j)[:3, 0], (
        numbers(4)
    )


@form()
def constants():
    def fn(x):
        table = torch.tensor([1.0, 2.0, 3.0])
        table[0] = 7
        return x * table + torch.tensor(2) + torch.from_numpy(np.ones(3, "f4"))

    return fn, numbers(3)


@form()
def sparse():
    def fn(x):
        return torch.sparse.mm(x.to_sparse(), x).relu()

    return fn, numbers(3, 3)


@form()
def quantised():
    def fn(x):
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)

    return fn, numbers(4)


@form()
def quantised_for_good():
    return lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize(), numbers(4)


class Tagged(torch.Tensor):
    """A subclass with memory of its own."""


@form("uses one Tagged, whose own functions")
def subclass_of_tensor():
    return lambda x: x * 2 + 1, numbers(3).as_subclass(Tagged)


@form("given one TwoTensor, which has no memory of its own")
def subclass_without_memory():
    return lambda x: x * 2, TwoTensor(torch.ones(3), torch.ones(3))


@form("uses one Tagged, whose own functions")
def subclass_that_is_found():
    own = numbers(3).as_subclass(Tagged)
    return lambda x: x * own, numbers(3)


@form("given one TwoTensor, which has no memory of its own|Please convert")
def subclass_without_memory_that_is_found():
    own = TwoTensor(torch.ones(3), torch.ones(3))
    return lambda x: x * own, numbers(3)


@form("calls cond")
def control_by_an_operator():
    def fn(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    return fn, numbers(3)


@form("dynamo")
def compiled():
    return torch.compile(lambda x: x.sin(), backend="eager"), numbers(3)


@form("nested")
def nested_tensors():
    def fn(x):
        return torch.nested.nested_tensor([x, x[:2]]).to_padded_tensor(0.0)

    return fn, numbers(3)


@torch.library.custom_op("autopar_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("autopar_tests::bump", mutates_args={"x"})
def bump(x: torch.Tensor) -> None:
    x += 1


@form()
def operators_of_a_library():
    def fn(x):
        y = twice(x)
        bump(x)
        return y + x

    return fn, numbers(3)


@form("forward, which was not there.*Call it once")
def script():
    layer = seeded(nn.Linear, 3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(layer, numbers(2, 3)), numbers(2, 3)


def scripted(fn):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(fn)


@form()
def script_after_its_first_call():
    def fn(x, n: int):
        for _ in range(n):
            x = x * 2 + 1
        return x

    return scripted(fn), numbers(3), 3


@form("in TorchScript: .*data")
def script_that_branches():
    def fn(x):
        if bool(x.sum() > 0):
            x = x + 1
        return x

    return scripted(fn), numbers(3)


class Keeps:
    """An object of a class that refuses to be emptied."""

    def __init__(self):
        self.states = OddDict(h=torch.zeros(3), c=torch.zeros(3))

    def __call__(self, x):
        self.states = OddDict(h=self.states["h"] + x, c=self.states["c"] * 2 + 1)
        return self.states["h"] * 1


class OddDict(dict):
    def clear(self):
        raise NotImplementedError

    update = clear


@form("changes Keeps.states")
def state_in_a_container_of_ones_own():
    return Keeps(), numbers(3)


@form("sets .*, which was not there")
def dictionary_that_refuses_to_be_emptied():
    own = OddDict()
    return lambda x: (own.setdefault("x", x + 1), x)[1] * 1, numbers(3)


# -- modes ----------------------------------------------------------------------------------------


@form()
def autocast_inside():
    layer = seeded(nn.Linear, 4, 4)

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        return y, layer(x)

    return fn, numbers(3, 4)


@form()
def modes_inside():
    layer = seeded(nn.Linear, 4, 4)

    def fn(x):
        with torch.inference_mode():
            y = layer(x)
        with torch.no_grad():
            z = layer(x)
        return y, z

    return fn, numbers(3, 4)


# -- what can't be traced -------------------------------------------------------------------------


@form(r"line \d+ of test_tracing_forms.py, `if x.sum\(\) > 0:`.*depends on the data")
def control_by_data():
    def fn(x):
        if x.sum() > 0:
            return x
        return -x

    return fn, numbers(3)


@form("depends on the data")
def control_by_an_item():
    return lambda x: x if x.sum().item() > 0 else -x, numbers(3)


@form("depends on the data|value")
def control_by_a_buffer():
    own = torch.ones(3)
    return lambda x: x if own.sum() > 0 else -x, numbers(3)


@form("reads a tensor's numbers by tolist")
def list_of_numbers():
    own = torch.ones(3)
    return lambda x: x * own.tolist()[0], numbers(3)


@form("prints or formats a tensor")
def printing():
    def fn(x):
        print(x + 1)
        return x

    return fn, numbers(3)


@form("prints or formats a tensor")
def formatting():
    return lambda x: (x, f"{x.sum():.3f}"), numbers(3)


@form("NumPy")
def numpy_of_a_result():
    return lambda x: torch.from_numpy(np.sin((x + 1).numpy())), numbers(3)


@form("NumPy")
def numpy_of_a_buffer():
    own = torch.ones(3)
    return lambda x: x + torch.from_numpy(np.sin(own.numpy())), numbers(3)


@form("NumPy")
def numpy_by_itself():
    own = torch.ones(3)
    return lambda x: x + torch.as_tensor(np.asarray(own)), numbers(3)


@form("error in line|can't trace .*line .*1 / 0")
def errors_of_ones_own():
    return lambda x: x + 1 / 0, numbers(3)


# -- the test -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _few_objects():
    """Let the collector look at what these tests make, and not at all that torch loads."""
    TaskGraph.trace(lambda x: x.sin() + 1, torch.ones(2))
    gc.collect()
    gc.freeze()


def made(make):
    """What to call, its arguments, and its keyword arguments."""
    fn, *args = made if isinstance(made := make(), tuple) else (made,)
    kwargs = {}
    if isinstance(fn, nn.Module) and args and isinstance(args[-1], dict):
        kwargs = args.pop()
    return fn, tuple(args), kwargs


def found_in(value, path="", seen=None):
    """All that can be reached from something, by where it is; a tensor as a copy of it."""
    seen = {} if seen is None else seen
    if id(value) in seen or isinstance(value, types.ModuleType):
        return
    seen[id(value)] = value
    if nn.parameter.is_lazy(value):
        yield path, (type(value), "lazy")
    elif isinstance(value, torch.Tensor):
        with torch.no_grad():
            trained = isinstance(value, nn.Parameter) and value.requires_grad
            yield path, (type(value), trained, value.detach().clone())
        if value.is_leaf:
            yield from found_in(value.grad, f"{path}.grad", seen)
    elif isinstance(value, torch.Generator):
        yield path, value.get_state()
    elif isinstance(value, dict):
        yield path, [str(key) for key in value if not isinstance(key, int)]
        for number, (key, each) in enumerate(value.items()):
            where = number if isinstance(key, (int, torch.Tensor)) else key  # hooks have numbers
            yield from found_in(each, f"{path}[{where}]", seen)
    elif isinstance(value, (list, tuple, set, collections.deque)):
        yield path, len(value)
        for number, each in enumerate(value):
            yield from found_in(each, f"{path}[{number}]", seen)
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield from found_in(cell.cell_contents, f"{path}:{name}", seen)
        yield from found_in(value.__defaults__, f"{path}=", seen)
    elif isinstance(value, type):
        if value.__module__ == __name__:
            yield from found_in(dict(vars(value)), path, seen)
    elif hasattr(value, "__dict__") and not callable(getattr(value, "__get__", None)):
        yield from found_in(type(value), f"{path}.class", seen)
        yield from found_in(vars(value), path, seen)
    elif isinstance(value, (int, float, str, bool, type(None), torch.Size)):
        yield path, value


def state(*values):
    return dict(found_in((*values, {"CALLED": CALLED}, torch.get_default_dtype())))


def fakes():
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), FakeTensor)]


def same(found, wanted, exact=True):
    found, in_found = pytree.tree_flatten(found)
    wanted, in_wanted = pytree.tree_flatten(wanted)
    assert in_found == in_wanted
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, torch.Tensor):
            close = {"rtol": 0, "atol": 0} if exact else {}
            torch.testing.assert_close(one, other, **close, equal_nan=True)
        else:
            assert type(one) is type(other)
            assert one == other


def same_state(found, wanted, exact=True):
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        same(found[path], value, exact)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_as_in_eager_mode_or_refused_by_name(name, caplog, capfd):
    make, refused, exact = FORMS[name]
    fn, args, kwargs = made(make)
    twin, own_args, own_kwargs = made(make)
    before, chance = state(fn, args, kwargs), torch.get_rng_state()
    python, arrays = random.getstate(), np.random.get_state()[1].copy()
    if refused:
        with pytest.raises(ValueError, match=f"(?s)can't trace .*{refused}"):
            TaskGraph.trace(fn, *args, **kwargs)
    else:
        graph, result = TaskGraph.trace(fn, *args, **kwargs)
    same_state(state(fn, args, kwargs), before)
    assert not fakes()
    assert torch.equal(torch.get_rng_state(), chance)
    assert python == random.getstate()
    assert (arrays == np.random.get_state()[1]).all()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")
    if refused:
        return
    for call in range(CALLS):
        torch.manual_seed(call)
        run = graph.run() if call != 1 else graph.run_serial()
        torch.manual_seed(call)
        wanted = pytree.tree_map_only(
            torch.Tensor, torch.Tensor.detach, twin(*own_args, **own_kwargs)
        )
        same(run[result], wanted, exact)
        same_state(state(fn, args, kwargs), state(twin, own_args, own_kwargs), exact)


def counting():
    number = 0
    while True:
        number += 1
        yield number


ITERATORS = {
    "a count": lambda: itertools.count(),
    "a list's": lambda: iter([1, 2, 3]),
    "a generator": counting,
    "an enumeration": lambda: enumerate([1, 2, 3]),
    "a pair": lambda: zip([1, 2], [3, 4], strict=True),
    "a map": lambda: map(abs, [1, 2]),
    "a chain": lambda: itertools.chain([1], [2]),
    "a slice": lambda: itertools.islice([1, 2, 3], 2),
    "a dict's": lambda: iter({1: 2, 3: 4}),
    "a range's": lambda: iter(range(3)),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_code_that_comes_to_an_iterator_is_refused(kind):
    iterator = ITERATORS[kind]()

    def go_on(x):
        return x + next(iterator)

    with pytest.raises(ValueError, match="it comes to iterator, an iterator.*Take what it needs"):
        TaskGraph.trace(go_on, torch.ones(1))


def test_an_iterator_of_an_object_is_refused_by_its_name():
    held = types.SimpleNamespace(inner=[itertools.cycle([1, 2])])
    with pytest.raises(ValueError, match=r"it comes to args\[1\]\.inner\[0\], an iterator"):
        TaskGraph.trace(lambda x, held: x + 1, torch.ones(1), held)
