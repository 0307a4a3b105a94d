"""Graphs of traced code: random programs, modes, draws, and what tracing itself leaves alone."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from random_cases import hold_for_all, shares
from torch import nn
from torch.nn.utils import parametrizations
from tracing_checks import numbers, same, sequence

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")


# -- random code ----------------------------------------------------------------------------------

STEPS = [
    lambda a, b: a + b,
    lambda a, b: a.t(),
    lambda a, b: a.add_(b.clone()),
    lambda a, b: a[1:].mul_(2),
    lambda a, b: a.mm(b).clamp(-3, 3),
    lambda a, b: a.view_as(a),
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


def test_a_whole_training_step():
    model = sequence(lambda: nn.Linear(8, 8), nn.Tanh)
    own = copy.deepcopy(model)

    def step(model, x):
        loss = model(x).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight.sub_(0.1 * gradient)
        return loss.detach()

    x = numbers(16, 8)
    graph, result = TaskGraph.trace(lambda x: step(model, x), x)
    for seed in range(5):  # each run reads tensors anew
        x.copy_(numbers(16, 8, seed=seed))
        same(graph.run()[result], step(own, x))
        same(model.state_dict(), own.state_dict())
    assert all(weight.requires_grad for weight in model.parameters())


def test_traced_code_and_other_tasks_share_a_graph_and_its_lanes():
    x = numbers(4, 4)
    graph = TaskGraph(cpu_lanes=1)
    doubled = graph.add(torch.mul, x, 2)
    result = graph.add_traced(lambda x: {"sum": x.sum(), "square": x @ x}, x)
    total = graph.add(torch.add, result["sum"], doubled)
    run = graph.run()
    same(run[result], {"sum": x.sum(), "square": x @ x})
    same(run[total], x.sum() + 2 * x)
    assert run.plan.schedule.lanes.keys() == {"cpu"}


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


@pytest.mark.parametrize("traced_so", [True, False])
def test_autocast_is_that_of_the_call_that_was_traced(traced_so):
    layer, x = nn.Linear(4, 4), numbers(3, 4)
    with torch.autocast("cpu", torch.bfloat16, enabled=traced_so):
        graph, result = TaskGraph.trace(layer, x)
        wanted = layer(x).detach()
    assert wanted.dtype == (torch.bfloat16 if traced_so else torch.float32)
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            for run in (graph.run, graph.run_serial):
                same(run()[result], wanted)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("mode_of_run", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_modes_are_those_of_the_call_that_was_traced(mode, mode_of_run):
    def fn(x):
        on = torch.is_grad_enabled() + 2 * torch.is_inference_mode_enabled()
        return x * on, F.relu(x, inplace=True)

    x, own = numbers(5), numbers(5)
    with mode():
        graph, result = TaskGraph.trace(fn, x)
        wanted = fn(own)
    with mode_of_run():
        same(graph.run()[result], wanted)
        same(x, own)


def test_nothing_is_computed_from_what_the_code_finds_by_itself():
    """torch would run at once what is given real tensors alone, and keep it as a constant."""
    own, rate, norm = torch.ones(3), torch.tensor(2.0), nn.BatchNorm1d(3)

    def fn(x):
        own.mul_(rate)
        own.add_(1)
        return x * own * torch.tensor(3.0) * rate.mul(2), norm(x)

    x = numbers(4, 3)
    graph, result = TaskGraph.trace(fn, x)
    same(own, torch.ones(3))
    assert own._version == 0
    assert norm.num_batches_tracked == 0
    rate.fill_(5)
    same(graph.run()[result][0], x * 6 * 3 * 10)
    same(own, torch.full((3,), 6.0))


def test_code_that_fails_leaves_what_it_had_changed_as_it_was():
    module = sequence(lambda: nn.Linear(8, 8))
    module.count, module.last = 0, torch.zeros(3)

    def fn(x):
        module.count += 1
        module.last = x + 1
        module[0].register_buffer("more", x * 2)
        return x + {}["nothing"]

    before = dict(vars(module)), dict(module[0]._buffers)
    with pytest.raises(ValueError, match=r"line \d+ of test_traced_graphs.py.*'nothing'"):
        TaskGraph.trace(fn, numbers(3))
    assert (dict(vars(module)), dict(module[0]._buffers)) == before
