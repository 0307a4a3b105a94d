"""Tracing: unmodified code as a graph of its operators, with the same results and changes."""

import copy
import random

import pytest
import torch
from sampling import every
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        self.right = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x, *, scale=1.0):
        return {"score": (self.left(x) * self.right(x)).sum(-1) * scale, "parts": (x, scale)}


def mean_and_parts(x):
    parts = x.split(2)
    parts[0].add_(1)  # a view of x: x changes, too
    return x.mean(), torch.stack([each.sum() for each in parts])


def in_turn(x):
    y = x.view(-1)
    y.mul_(2)
    z = x + 1
    x.zero_()
    return z, y


CODE = {
    "a module": (Towers().eval(), lambda: (numbers(5, 8),)),
    "a function that changes views": (mean_and_parts, lambda: (numbers(6, 3),)),
    "changes between reads": (in_turn, lambda: (numbers(4, 4),)),
    "nothing but its arguments": (lambda x, y: [y, x], lambda: (numbers(2), numbers(3))),
    "results of many kinds": (lambda x: (x.max(0), x.shape[0], None), lambda: (numbers(5, 2),)),
    "numbers from data": (lambda x: x * x.sum().item(), lambda: (numbers(4),)),
    "shapes from data": (lambda x: x[x > 0], lambda: (numbers(9),)),
    "a function of functions": (
        torch.func.grad(lambda x: (x.sin() * x.cos()).sum()),
        lambda: (numbers(7),),
    ),
}


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("kind", CODE)
def test_a_graph_gives_what_the_code_gives(kind):
    fn, make = CODE[kind]
    args = make()
    graph, result = TaskGraph.trace(fn, *args)
    same(args, make())  # tracing computes nothing and changes nothing
    with torch.no_grad():
        own = make()
        wanted = fn(*own)
        same(graph.run()[result], wanted)
    same(args, own)


@pytest.mark.parametrize("kind", CODE)
def test_its_plan_and_its_twin_are_right(kind):
    fn, make = CODE[kind]
    graph, result = TaskGraph.trace(fn, *make())
    other, result_of_other = TaskGraph.trace(fn, *make())
    assert graph.plan().faults() == []
    same(graph.run()[result], other.run_serial()[result_of_other])


def test_keyword_arguments_and_what_is_no_tensor_are_as_in_the_call():
    graph, result = TaskGraph.trace(Towers().eval(), numbers(5, 8), scale=3.0)
    with torch.no_grad():
        same(graph.run()[result], Towers().eval()(numbers(5, 8), scale=3.0))


def test_a_whole_training_step():
    model = Towers()
    own = copy.deepcopy(model)

    def step(model, x):
        loss = model(x)["score"].square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(0.1 * gradient)
        return loss.detach()

    x = numbers(16, 8)
    graph, result = TaskGraph.trace(lambda x: step(model, x), x)
    same(list(model.parameters()), list(own.parameters()))
    for seed in range(5):
        x.copy_(numbers(16, 8, seed=seed))
        same(graph.run()[result], step(own, x))
        same(list(model.parameters()), list(own.parameters()))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_each_run_reads_tensors_anew():
    x, weight = numbers(3), numbers(3, seed=1)
    graph, result = TaskGraph.trace(lambda x: x * weight, x)
    x.fill_(2)
    weight.fill_(5)
    same(graph.run()[result], torch.full((3,), 10.0))


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


def test_random_numbers_are_drawn_in_the_order_of_the_code():
    def noisy(x):
        return [torch.rand_like(x) + i for i in range(6)]

    x = torch.empty(50)
    graph, result = TaskGraph.trace(noisy, x)
    for _ in range(5):
        torch.manual_seed(3)
        found = graph.run()[result]
        torch.manual_seed(3)
        same(found, noisy(x))


def test_several_traced_parts_draw_in_the_order_in_which_they_were_added():
    def noisy(x):
        return torch.rand_like(x), nn.functional.dropout(x)

    x, graph, results = torch.ones(500), TaskGraph(), []
    for _ in range(8):
        results.append(graph.add_traced(noisy, x))
        results.append(graph.add(torch.rand, 500))
    for seed in range(5):
        torch.manual_seed(seed)
        found = graph.run()[results]
        torch.manual_seed(seed)
        same(
            found,
            [draw() for _ in range(8) for draw in (lambda: noisy(x), lambda: torch.rand(500))],
        )


def test_tracing_and_runs_in_between_draw_nothing_of_their_own():
    x, layer = torch.ones(50), nn.Dropout()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    graph, result = TaskGraph.trace(layer, x)
    assert torch.equal(torch.get_rng_state(), state)
    found = [graph.run()[result] for _ in range(3)]
    torch.manual_seed(1)
    same(found, [layer(x) for _ in range(3)])


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
        return x * on, nn.functional.relu(x, inplace=True)

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
    module = Towers()
    module.count, module.last = 0, torch.zeros(3)

    def fn(x):
        module.count += 1
        module.last = x + 1
        module.left.register_buffer("more", x * 2)
        return x + {}["nothing"]

    before = dict(vars(module)), dict(vars(module.left)["_buffers"])
    with pytest.raises(ValueError, match=r"line \d+ of test_tracing.py.*'nothing'"):
        TaskGraph.trace(fn, numbers(3))
    assert (dict(vars(module)), dict(vars(module.left)["_buffers"])) == before


@pytest.mark.parametrize("seeds", every(2, [range(15), range(15, 300)], str))
def test_random_programs(seeds):
    """Chance picks operators, among them views and changes in place of what there is."""
    for seed in seeds:

        def program(x, y, seed=seed):
            chance = random.Random(seed)
            there = [x, y]
            for _ in range(12):
                a, b = chance.choice(there), chance.choice(there)
                kinds = [
                    lambda a=a, b=b: a + b,
                    lambda a=a: a.t(),
                    lambda a=a, b=b: a.add_(b.clone()),
                    lambda a=a: a[1:].mul_(2),
                    lambda a=a, b=b: a.mm(b).clamp(-3, 3),
                    lambda a=a: a.view_as(a),
                ]
                made = chance.choice(kinds)()
                if made.shape == x.shape:
                    there.append(made)
            return there

        def given(seed=seed):
            dice = torch.Generator().manual_seed(seed)
            return [torch.randint(-2, 3, (4, 4), generator=dice).float() for _ in range(2)]

        args, own = given(), given()
        graph, result = TaskGraph.trace(program, *args)
        same(graph.run()[result], program(*own))
        same(args, own)


LAYERS = [
    *(lambda: nn.Linear(8, 8), lambda: nn.BatchNorm1d(8), lambda: nn.LayerNorm(8)),
    *(lambda: nn.ReLU(inplace=True), nn.GELU, nn.PReLU, nn.RReLU, nn.Identity),
    *(nn.Dropout, nn.FeatureAlphaDropout, lambda: nn.Softmax(-1)),
    lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
    lambda: nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)),
]


@pytest.mark.parametrize("seed", every(6, range(60)))
def test_random_modules_compute_draw_and_change_as_in_eager_mode(seed):
    chance = random.Random(seed)
    torch.manual_seed(seed)
    module = nn.Sequential(*[chance.choice(LAYERS)() for _ in range(6)])
    with torch.no_grad():
        module(numbers(5, 8))
    twin, x, own = copy.deepcopy(module), numbers(5, 8), numbers(5, 8)
    graph, result = TaskGraph.trace(module, x)
    for seed_of_run in range(3):
        torch.manual_seed(seed_of_run)
        found = graph.run()[result].clone()
        torch.manual_seed(seed_of_run)
        with torch.no_grad():
            torch.testing.assert_close(found, twin(own))
        torch.testing.assert_close(module.state_dict(), twin.state_dict())
        same(x, own)


# -- what can't be traced -------------------------------------------------------------------------


def branching(x):
    y = x + 1
    if y.sum() > 0:
        return y
    return -y


model_outside = Towers()


def backward(x):
    model_outside(x)["score"].sum().backward()
    return x


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (branching, r"can't trace branching: line \d+ of test_tracing.py, `if y.sum\(\) > 0:`"),
        (backward, "sets the gradient of model_outside"),
        (lambda x: x.numpy(), r"line \d+ of test_tracing.py"),
        (lambda x: 1 / 0, "division by zero"),
    ],
)
def test_what_it_cannot_trace_it_refuses_with_reason_and_line(fn, reason):
    x = numbers(4, 8)
    with pytest.raises(ValueError, match=reason):
        TaskGraph.trace(fn, x)
    same(x, numbers(4, 8))


def test_a_tensor_without_memory_is_refused():
    with pytest.raises(ValueError, match="given one FakeTensor, which has no memory of its own"):
        TaskGraph.trace(torch.neg, FakeTensorMode().from_tensor(numbers(3)))


def test_no_gradient_is_left_behind_by_a_refusal():
    model = Towers()

    def step(x):
        model(x)["score"].sum().backward()

    with pytest.raises(ValueError, match="autograd.grad"):
        TaskGraph.trace(step, numbers(4, 8))
    assert all(parameter.grad is None for parameter in model.parameters())
