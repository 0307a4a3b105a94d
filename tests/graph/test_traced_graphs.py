"""Graphs of traced code: random programs, modes, draws, and what tracing itself leaves alone."""

import copy
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from random_cases import hold_for_all, shares
from torch import nn
from torch.nn.utils import parametrizations
from tracing_checks import numbers, same, sequence

from autopar import TaskGraph

# -- random code ----------------------------------------------------------------------------------

STEPS = [
    lambda a, b: a + b,
    lambda a, b: a.t(),
    lambda a, b: a.add_(b.clone()),
    lambda a, b: a[1:].mul_(2),
    lambda a, b: a.mm(b).clamp(-3, 3),
    lambda a, b: a.view_as(a),
    lambda a, b: a.expand(4, 4).view(4, 4).mul(b),
    lambda a, b: a.view_as(a).t_().mul(2),
    lambda a, b: a.view_as(a).add_(1).mul(b[:]),
]


@shares
def test_random_code_with_views_and_changes_in_place(share):
    def as_in_eager_mode(steps):
        def program(x, y):
            there = [x, y]
            for fn, i, j in steps:
                value = fn(there[i % len(there)], there[j % len(there)])
                there += [value] if value.shape == x.shape else []
            return there

        given = [numbers(4, 4).round(), numbers(4, 4, seed=1).round()]
        twin = copy.deepcopy(given)
        graph, result = TaskGraph.trace(program, *given)
        same(graph.run()[result], program(*twin))
        same(given, twin)

    steps = st.tuples(st.sampled_from(STEPS), st.integers(0, 11), st.integers(0, 11))
    hold_for_all(as_in_eager_mode, st.lists(steps, max_size=12), share=share, examples=30)


def test_views_that_show_the_same_are_no_tasks():
    x, y = numbers(2, 3, 4), numbers(2, 4, 5)
    graph, result = TaskGraph.trace(lambda: (2 * x)[:].matmul(y.exp().expand(2, 4, 5)) + 1)
    assert [node.name for node in graph.plan().nodes] == ["mul", "exp", "bmm", "add"]
    same(graph.run()[result], 2 * x @ y.exp() + 1)


def test_what_is_detached_from_a_given_tensor_is_not_tracked_or_the_tensor_itself():
    weight = nn.Parameter(numbers(2, 2))
    for detached in (
        lambda x: x.detach().t(),
        lambda x: x.data.view(-1),
        lambda x: x.view_as(x).detach().view(2, 2)[:],
        lambda x: x.detach().mul_(1),
    ):
        graph, result = TaskGraph.trace(detached, weight)
        found = graph.run()[result]
        assert not found.requires_grad
        assert found.data_ptr() == weight.data_ptr()


def test_a_view_that_is_returned_is_one():
    x = numbers(3)
    graph, (first, view) = TaskGraph.trace(lambda: (y := x + 1, y.view(3)))
    run = graph.run()
    assert run[view] is not run[first]
    assert run[view].data_ptr() == run[first].data_ptr()


LAYERS = [
    *(lambda: nn.Linear(8, 8), lambda: nn.BatchNorm1d(8), lambda: nn.LayerNorm(8)),
    *(lambda: nn.ReLU(inplace=True), nn.GELU, nn.PReLU, nn.RReLU, nn.Identity),
    *(nn.Dropout, nn.FeatureAlphaDropout, lambda: nn.Softmax(-1)),
    lambda: parametrizations.weight_norm(nn.Linear(8, 8)),
    lambda: parametrizations.spectral_norm(nn.Linear(8, 8)),
    lambda: parametrizations.orthogonal(nn.Linear(8, 8)),
]


@shares
def test_random_modules_compute_draw_and_change_as_in_eager_mode(share):
    layers = st.lists(st.sampled_from(LAYERS), min_size=1, max_size=6)
    hold_for_all(as_in_eager_mode, layers, share=share, examples=12)


def as_in_eager_mode(layers):
    module = sequence(*layers)
    with torch.no_grad():
        module(numbers(5, 8))
    twin, x, own = copy.deepcopy(module), numbers(5, 8), numbers(5, 8)
    graph, result = TaskGraph.trace(module, x)
    for seed in range(3):
        torch.manual_seed(seed)
        value = graph.run()[result].clone()
        torch.manual_seed(seed)
        with torch.no_grad():
            same(value, twin(own), exact=False)
        same(module.state_dict(), twin.state_dict(), exact=False)
        same(x, own)


# -- graphs of traced code ------------------------------------------------------------------------


def test_several_traced_parts_draw_in_the_order_in_which_they_were_added():
    def noisy(x):
        return torch.rand_like(x), F.dropout(x)

    x, graph, results = torch.ones(500), TaskGraph(), []
    for _ in range(8):
        results += [graph.add_traced(noisy, x), graph.add(torch.rand, 500)]
    for seed in range(5):
        torch.manual_seed(seed)
        values = graph.run()[results]
        torch.manual_seed(seed)
        same(
            values,
            [draw() for _ in range(8) for draw in (lambda: noisy(x), lambda: torch.rand(500))],
        )


MODES = {
    "gradients": torch.enable_grad,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("of_trace", MODES)
@pytest.mark.parametrize("of_run", MODES)
def test_modes_are_those_of_the_call_that_was_traced(of_trace, of_run):
    layer, x, own = nn.Linear(5, 5), numbers(2, 5), numbers(2, 5)

    def fn(x):
        on = torch.is_grad_enabled() + 2 * torch.is_inference_mode_enabled()
        return layer(x), x * on, F.relu(x, inplace=True)

    with MODES[of_trace]():
        graph, result = TaskGraph.trace(fn, x)
        wanted = fn(own)
    assert (wanted[0].dtype == torch.bfloat16) == (of_trace == "autocast")
    for run in (graph.run, graph.run_serial):
        x.copy_(numbers(2, 5))
        with MODES[of_run]():
            same(run()[result], wanted)
        same(x, own)


def test_in_inference_mode_torch_calls_the_operators_that_it_calls_otherwise():
    x, cells = numbers(5, 2, 4), nn.LSTM(4, 3, num_layers=2, dropout=0.5)

    def fn(x):
        return cells(x), F.interpolate(x, scale_factor=2, mode="linear"), F.dropout(x)

    with torch.inference_mode():
        graph, result = TaskGraph.trace(fn, x)
        torch.manual_seed(0)
        wanted = fn(x)
        state = torch.get_rng_state()
        torch.manual_seed(0)
        same(graph.run()[result], wanted)
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_may_change_but_not_be_replaced():
    layer, x = nn.Linear(3, 3), torch.ones(3)
    graph, result = TaskGraph.trace(layer, x)
    other = nn.Linear(3, 3)
    layer.load_state_dict(other.state_dict())
    assert torch.equal(graph.run()[result], other(x))
    layer.load_state_dict(nn.Linear(3, 3).state_dict(), assign=True)
    with pytest.raises(
        RuntimeError, match="another tensor as its (weight|bias) now.*trace it again"
    ):
        graph.run()


@torch.library.custom_op("autopar_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    """One of the program's own operators, which has a state that torch knows nothing of."""
    CALLS.append(len(CALLS))
    return x + len(CALLS)


counted.register_fake(torch.empty_like)
CALLS = []


def test_operators_of_the_program_itself_are_called_in_each_run_alone():
    graph, result = TaskGraph.trace(lambda: counted(torch.zeros(2)))
    assert not CALLS
    assert [graph.run()[result][0].item() for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("loss", ["binary_cross_entropy_with_logits", "mse_loss", "huber_loss"])
def test_an_operator_has_its_own_defaults_in_a_run(loss):
    """Torch's routine of the first of these names has another one for the reduction."""
    fn, x, y = getattr(nn.functional, loss), torch.rand(4), torch.rand(4)
    graph, result = TaskGraph.trace(fn, x, y)
    torch.testing.assert_close(graph.run()[result], fn(x, y), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # which torch calls for this
@pytest.mark.parametrize("mode", [torch.enable_grad(), torch.no_grad()])
def test_gradients_forward_and_of_second_order(mode):
    layer, x = nn.Linear(3, 3), numbers(3)

    def fn(x):
        with mode:
            along = torch.func.jvp(layer, (x,), (x,))
        return along, torch.func.hessian(lambda y: y.sin().sum())(x)

    graph, result = TaskGraph.trace(fn, x)
    same(graph.run()[result], fn(x))


@pytest.mark.parametrize("strides", [(32, 8, 8, 1), (32, 8, 32, 1)])
def test_matmul_of_one_token_is_as_in_a_call_whatever_strides_its_size_has(strides):
    def fn(x):
        return F.linear(x.transpose(1, 2).reshape(1, 1, 32), weight)

    x, weight = (
        torch.empty_strided((1, 4, 1, 8), strides).copy_(numbers(1, 4, 1, 8)),
        numbers(9, 32),
    )
    graph, result = TaskGraph.trace(fn, x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as session:
        wanted = fn(x)
    products = {event.name for event in session.events()} & {"aten::mm", "aten::bmm"}
    assert products == {f"aten::{node.name}" for node in graph.plan().nodes if "mm" in node.name}
    same(graph.run()[result], wanted)


def test_traced_code_runs_under_the_default_dtype_of_its_trace():
    graph, _ = TaskGraph.trace(lambda: torch.ones(3))
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(RuntimeError, match="code was traced with torch.float32"):
            graph.run()
    finally:
        torch.set_default_dtype(torch.float32)


# -- what no data is in, and what code asks --------------------------------------------------------


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
