"""What traced code computes from nothing but itself, and what it asks, is as in a call."""

import sys
import threading
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
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


def written_before_it_is_dense(x):
    values = torch.ones(2)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), values, (2,))
    values.mul_(x * 3)
    return sparse.to_dense() * 1


def written_by_way_of_what_holds_it(x):
    values = torch.ones(2)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), values, (2,))
    sparse._values().add_(x)
    return sparse.to_dense() * 1, values * 1


@pytest.mark.filterwarnings("ignore:Sparse invariant")  # once, where torch says so
@pytest.mark.parametrize("fn", [written_before_it_is_dense, written_by_way_of_what_holds_it])
def test_memory_that_a_sparse_tensor_holds_is_not_known(fn):
    graph, results = TaskGraph.trace(fn, x := numbers(2))
    for _ in range(2):
        same(graph.run()[results], fn(x))
        x.add_(1)


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_who_changes_a_sparse_result_changes_no_later_one():
    def fn(x):
        indices, values = torch.tensor([[0, 1]]), torch.tensor([1.0, 2.0])
        return x * 2, torch.sparse_coo_tensor(indices, values, (3,))

    graph, results = TaskGraph.trace(fn, x := numbers(2))
    for _ in range(2):
        _, sparse = graph.run()[results]
        assert sparse.to_dense().equal(fn(x)[1].to_dense())
        sparse._values().add_(7)


class Own:
    """What has its own way with torch's functions."""

    @classmethod
    def __torch_function__(cls, *given):
        return NotImplemented


class Seen(TorchFunctionMode):
    """A mode of the code's own."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def in_a_mode(x):
    with Seen():
        return x * 3 if torch.overrides.has_torch_function((x,)) else x


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 3 if torch.overrides.has_torch_function((Own(),)) else x,
        lambda x: x * 3 if torch.overrides.has_torch_function((x, 1, "a")) else x,
        in_a_mode,
    ],
)
def test_code_that_asks_who_overrides_torch_does_what_it_does_in_a_call(fn):
    graph, result = TaskGraph.trace(fn, x := numbers(2))
    same(graph.run()[result], fn(x))


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

    fake, others = FakeTensorMode().from_tensor(torch.ones(1)), []

    def fn(x):
        y, mask = x[None, None], None
        elsewhere = threading.Thread(target=lambda: others.append(library.is_fake_tensor(fake)))
        elsewhere.start()
        elsewhere.join()
        if not others.pop():
            raise AssertionError
        if library.is_fake_tensor(x) or (reads and not is_causal):
            mask = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(y, y, y, attn_mask=mask, is_causal=mask is None)

    x = numbers(4, 8)
    graph, result = TaskGraph.trace(fn, x)
    is_causal_there = any(leaf is True for node in graph.plan().nodes for leaf in node.leaves)
    assert is_causal_there is not reads
    torch.testing.assert_close(graph.run()[result], fn(x))
    assert library.is_fake_tensor is is_fake


def test_code_that_asks_torch_alone_is_called_once_though_it_cannot_be_traced(capsys):
    def fn(x):
        print("called")
        return x if torch.overrides.has_torch_function((x,)) or x.sum() > 0 else -x

    with pytest.raises(ValueError, match="depends on the data"):
        TaskGraph.trace(fn, numbers(2))
    assert capsys.readouterr().out == "called\n"
