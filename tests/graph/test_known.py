"""What traced code computes from nothing but itself, and what it asks, is as in a call."""

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from tracing_checks import numbers, same

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")


def test_what_no_data_is_in_is_computed_once_unless_somebody_may_change_it():
    def fn(x):
        mask, sums, shape = torch.ones(3, 3).tril(), torch.zeros(3), torch.tensor([3.0, 2.0])
        sums.add_(x)
        return x @ mask, sums, shape, torch.arange(3)[1:]

    graph, results = TaskGraph.trace(fn, x := numbers(3))
    names = [node.name for node in graph.plan().nodes]
    assert not {"ones", "tril"} & {*names}
    assert {"zeros", "lift_fresh_copy", "arange"} <= {*names}
    for _ in range(2):
        found = graph.run()[results]
        same(found, fn(x))
        for result in found:
            result.zero_()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_attention_takes_the_way_of_a_call_with_and_without_a_default_device(device):
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()

    def fn(x):
        with torch.no_grad():
            return attention(x, x, x)[0]

    torch.set_default_device(device)
    try:
        graph, result = TaskGraph.trace(fn, x := numbers(2, 5, 16))
        same(graph.run()[result], fn(x))
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("reads", [False, True])
def test_libraries_that_ask_whether_they_are_traced_do_what_they_do_in_a_call(monkeypatch, reads):
    """But if that can't be traced, as it reads data, they do what they do in a trace."""
    library = types.ModuleType("transformers.utils.import_utils")
    library.is_fake_tensor = is_fake = lambda x: isinstance(x, torch._subclasses.FakeTensor)
    monkeypatch.setitem(sys.modules, library.__name__, library)
    is_causal = torch.ones((), dtype=torch.bool)

    def fn(x):
        y, mask = x[None, None], None
        if library.is_fake_tensor(x) or (reads and not is_causal):
            mask = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(y, y, y, attn_mask=mask, is_causal=mask is None)

    x = numbers(4, 8)
    graph, result = TaskGraph.trace(fn, x)
    is_causal_there = any(leaf is True for node in graph.plan().nodes for leaf in node.leaves)
    assert is_causal_there is not reads
    torch.testing.assert_close(graph.run()[result], fn(x))
    assert library.is_fake_tensor is is_fake
