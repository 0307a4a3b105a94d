"""What tests of tracing compare: results, and all that can be reached from a function."""

import collections
import gc
import logging
import random
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from autopar import TaskGraph

TaskGraph.trace(torch.sin, torch.ones(2))  # loads much now: later, `fakes` would look at all that


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(make, *args, **kwargs):
    """A module with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(*args, **kwargs)


def sequence(*makes):
    return seeded(lambda: nn.Sequential(*(make() for make in makes)))


class Average(nn.Module):
    """Buffers that forward assigns anew."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ema", torch.zeros(4))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.ema = 0.9 * self.ema + 0.1 * x.mean(0)
        self.seen = self.seen + 1
        return x - self.ema


def called(make):
    """What to call, its arguments, and its keyword arguments."""
    fn, *args = call if isinstance(call := make(), tuple) else (call,)
    kwargs = {}
    if isinstance(fn, nn.Module) and args and isinstance(args[-1], dict):
        kwargs = args.pop()
    return fn, tuple(args), kwargs


def parts_of(value, path="", seen=None):
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
            yield from parts_of(value.grad, f"{path}.grad", seen)
    elif isinstance(value, torch.Generator):
        yield path, value.get_state()
    elif isinstance(value, dict):
        yield path, [str(key) for key in value if not isinstance(key, int)]
        for number, (key, item) in enumerate(value.items()):
            where = number if isinstance(key, (int, torch.Tensor)) else key  # hooks have numbers
            yield from parts_of(item, f"{path}[{where}]", seen)
    elif isinstance(value, (list, tuple, set, collections.deque)):
        yield path, len(value)
        for number, item in enumerate([*value, getattr(value, "__dict__", {})]):
            yield from parts_of(item, f"{path}[{number}]", seen)
    elif isinstance(value, types.BuiltinMethodType):
        yield from parts_of(value.__self__, f"{path}.self", seen)
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield from parts_of(cell.cell_contents, f"{path}:{name}", seen)
        yield from parts_of(value.__defaults__, f"{path}=", seen)
        yield from parts_of(value.__globals__.get("CALLED"), f"{path}.CALLED", seen)
    elif isinstance(value, type):
        if value.__module__.startswith("test_"):
            yield from parts_of(dict(vars(value)), path, seen)
    elif hasattr(value, "__dict__") and not callable(getattr(value, "__get__", None)):
        yield from parts_of(type(value), f"{path}.class", seen)
        yield from parts_of(vars(value), path, seen)
    elif isinstance(value, (int, float, str, bool, type(None), torch.Size)):
        yield path, value


def state(*values):
    return dict(parts_of((*values, torch.get_default_dtype())))


def same(value, wanted, *, exact=True):
    leaves, spec = pytree.tree_flatten(value)
    wanted_leaves, wanted_spec = pytree.tree_flatten(wanted)
    assert spec == wanted_spec
    for one, other in zip(leaves, wanted_leaves, strict=True):
        if isinstance(other, torch.Tensor):
            close = {"rtol": 0, "atol": 0} if exact else {}
            torch.testing.assert_close(one, other, **close, equal_nan=True)
        else:
            assert type(one) is type(other)
            assert one == other


def fakes():
    """Tensors without memory that somebody still holds."""
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), FakeTensor)]


def using(value, fn):
    """What uses a value that it finds, and something to call it with."""
    return lambda x: fn(x, value), numbers(3)


def refused_and_as_before(reason, make, caplog, capfd):
    """Code that `make` returns with its arguments can't be traced, and that has changed nothing."""
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
