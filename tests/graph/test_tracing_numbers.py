"""Numbers that the data decides: computed with as in a call, and refused where code reads them."""

import functools
import json
import numbers as kinds
import types

import numpy as np
import pytest
import torch
from tracing_checks import numbers, same

from autopar import TaskGraph

SHAPE = torch.Size([3, 2])


def number(x):
    return x.sum().item()


def size(x):
    return x[x > 0].shape[0]


def truth(x):
    return (x > 0).any().item()


def caught(x):
    try:
        return x, f"{number(x):.2f}"
    except Exception:
        return x, "none"


READ = [
    *(lambda x, get=get: f"{get(x)}" for get in (number, size, truth)),
    *(lambda x, read=read: read(number(x)) for read in (str, repr, hash, json.dumps)),
    lambda x: {"%s" % number(x): x},  # noqa: UP031
    lambda x: ",".join(map(str, x.tolist())),
    lambda x: x * len(str(size(x))),
    lambda x: str([number(x)]),
    lambda x: f"{x[x > 0].shape}",
    lambda x: {size(x): x},
    lambda x: {truth(x)},
    lambda x: print(number(x)),
    caught,
]
BY_NUMPY = [
    lambda x: np.array(number(x)),
    lambda x: np.array(x.tolist()),
    lambda x: x * float(np.float32(2) * number(x)),
    lambda x: x + torch.from_numpy(size(x) * np.ones(4)),
]
HIDDEN = [
    lambda x: types.SimpleNamespace(count=size(x)),
    lambda x: slice(0, size(x)),
    lambda x: [functools.partial(abs, number(x))],
    lambda x: x[x > 0].shape,
]
READ = [
    *(("prints or formats a number|depends on the data|json", fn) for fn in READ),
    ("rounds a whole number", lambda x: round(size(x), -1)),
    *(("by NumPy with a number", fn) for fn in BY_NUMPY),
    *(("returns one .*or numbers that depend on the data", fn) for fn in HIDDEN),
]


@pytest.mark.parametrize(("reason", "fn"), READ)
def test_a_number_that_only_a_run_has_is_not_read(reason, fn, capfd):
    with pytest.raises(ValueError, match=reason):
        TaskGraph.trace(fn, numbers(4))
    assert capfd.readouterr() == ("", "")


def matched(x):
    match size(x):
        case float():
            return x * 0
        case int():
            return x * 2


ASK = [
    lambda x: x * 2 if isinstance(number(x), float) else x * 0,
    lambda x: x * 2 if isinstance(number(x), (int, bool)) else x * 0,
    lambda x: x * 2 if isinstance(number(x), kinds.Number) else x * 0,
    lambda x: x * 2 if isinstance(size(x), int) else x * 0,
    lambda x: x * 2 if isinstance(truth(x), bool) and isinstance(truth(x), int) else x * 0,
    lambda x: (number(x).__class__.__name__, [isinstance(each, float) for each in x.tolist()]),
    matched,
    lambda x: [round(number(x), 1), round(number(x) * 9, -1)],
    lambda x: {f"{x.shape} {len(x)} {x.dim()}": x},  # what the data does not decide
    lambda x: (x[: size(x)] + size(x) // 2, x.nonzero().shape[0] * 1.5, -number(x), x.tolist()),
    lambda x: tuple(x[x > 0].shape),
    lambda x: torch.zeros(size(x), 2).add_(number(x)).expand(3, size(x), 2),
]


@pytest.mark.parametrize("fn", ASK)
def test_its_type_and_what_is_computed_with_it_are_as_in_a_call(fn):
    x = numbers(4)
    graph, result = TaskGraph.trace(fn, x)
    for seed in (1, 2):
        x.copy_(numbers(4, seed=seed))
        same(graph.run()[result], fn(x))


def test_a_shape_is_given_and_returned_as_one():
    graph, result = TaskGraph.trace(lambda x, s: [x.view(s), s, {1: x.shape}], numbers(6), SHAPE)
    value, *shapes = graph.run()[result]
    assert value.shape == SHAPE
    assert repr(shapes) == "[torch.Size([3, 2]), {1: torch.Size([6])}]"
    graph, result = TaskGraph.trace(lambda x: x.shape, numbers(2))
    assert repr(graph.run()[result]) == "torch.Size([2])"


def test_torchs_own_numbers_are_as_before():
    for kind in (torch.SymInt, torch.SymFloat, torch.SymBool):
        before = dict(vars(kind))
        assert "__getattribute__" not in before  # nor is it there after earlier traces
        TaskGraph.trace(number, numbers(4))
        assert dict(vars(kind)) == before
