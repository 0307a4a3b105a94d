"""Owner: a tensor is the taker's alone only if nothing else leads to its memory."""

import itertools
import weakref
from collections import UserList

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from autopar.transfer.source import next_owned


def popped(held):
    """A tensor that only a list knew, handed out without a name for it."""
    yield held.pop()


def made():
    fresh = torch.ones(3)
    fresh += 1
    return fresh


def passed_on(source):
    yield from source


GIVEN_AWAY = {
    "computed": lambda: (torch.ones(3) + i for i in range(2)),
    "popped": lambda: popped([torch.ones(3)]),
    "from a function": lambda: (made() for _ in range(2)),
    "from map": lambda: map(torch.zeros, [3, 3]),
    "by way of chain": lambda: itertools.chain(torch.ones(3) + i for i in range(2)),
    "by way of a generator": lambda: passed_on(torch.ones(3) + i for i in range(2)),
    "a number": lambda: (torch.tensor(i) for i in range(2)),
    "empty": lambda: (torch.ones(0) for i in range(2)),
    "a batch": lambda: ([made(), {"x": (made(), 1, "name", None)}] for _ in range(2)),
    "from a loader": lambda: iter(DataLoader([{"x": torch.ones(3), "y": 1}] * 4, batch_size=2)),
}


@pytest.mark.parametrize("how", GIVEN_AWAY)
def test_what_was_given_away_is_owned(how):
    _item, alone = next_owned(GIVEN_AWAY[how]())
    assert alone


KEPT = []


@pytest.fixture(autouse=True)
def _keep_nothing():
    yield
    KEPT.clear()


def kept(value):
    KEPT.append(value)
    return value


def popped_with(view):
    """A tensor that nobody names, while something that leads to its memory is kept."""
    fresh = torch.ones(3)
    kept(view(fresh))
    held = [fresh]
    del fresh
    yield from popped(held)


def named():
    fresh = torch.ones(3)
    yield fresh
    fresh.zero_()


def gradients():
    weight = kept(torch.ones(3, requires_grad=True))
    (weight * 2).sum().backward()
    while True:
        yield weight.grad


SHARED = {
    "named": named,
    "in a list": lambda: iter(kept([torch.ones(3)])),
    "in a list, by index": lambda: (kept([torch.ones(3)])[0] for _ in range(2)),
    "in a dict": lambda: iter(kept({"x": torch.ones(3)}).values()),
    "a view": lambda: (kept(torch.ones(3))[1:] for _ in range(2)),
    "a view that is kept": lambda: popped_with(lambda x: x[1:]),
    "viewed as another dtype": lambda: popped_with(lambda x: x.view(torch.uint8)),
    "detached": lambda: (kept(torch.ones(3)).detach() for _ in range(2)),
    "a weak reference": lambda: popped_with(weakref.ref),
    "its storage": lambda: popped_with(torch.Tensor.untyped_storage),
    "a weak reference to that": lambda: popped_with(lambda x: weakref.ref(x.untyped_storage())),
    "its array": lambda: popped_with(torch.Tensor.numpy),
    "a capsule": lambda: popped_with(torch.utils.dlpack.to_dlpack),
    "from an array": lambda: (torch.from_numpy(kept(np.ones(3))) for _ in range(2)),
    "from a buffer": lambda: (
        torch.frombuffer(kept(bytearray(8)), dtype=torch.int64) for _ in range(2)
    ),
    "by dlpack": lambda: (torch.from_dlpack(kept(np.ones(3))) for _ in range(2)),
    "saved for backward": lambda: popped_with(lambda x: torch.ones(3, requires_grad=True) * x),
    "a gradient": gradients,
    "a parameter's data": lambda: (p.data for p in kept(torch.nn.Linear(2, 2)).parameters()),
    "unbound": lambda: iter(torch.ones(2, 3)),
    "in a batch that is kept": lambda: (kept([made()]) for _ in range(2)),
    "in a kept part of a batch": lambda: ([1, kept((made(),))] for _ in range(2)),
    "a kept tensor of a batch": lambda: ({"x": made(), "y": kept(made())} for _ in range(2)),
    "in a container of its own": lambda: (UserList([made()]) for _ in range(2)),
    "sparse": lambda: (torch.eye(2).to_sparse() for _ in range(2)),
}


@pytest.mark.parametrize("how", SHARED)
def test_what_anything_else_leads_to_is_not_owned(how):
    _item, alone = next_owned(SHARED[how]())
    assert not alone


def test_the_tensor_itself_is_handed_over_and_not_kept():
    tensor = torch.ones(3)
    got, alone = next_owned(iter([tensor]))
    assert got is tensor
    assert not alone
    watched = weakref.ref(tensor)
    del tensor, got
    assert watched() is None
