"""Traced modules on a GPU: their graphs and replays compute, draw and change as they do."""

import copy

import pytest
import torch
from torch import nn
from tracing_checks import Average, numbers

from autopar import TaskGraph, gpu
from autopar.torch_private import TRACES_GENERATORS

pytestmark = pytest.mark.gpu


def convolutions():
    first = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    return nn.Sequential(*first, nn.Dropout()), numbers(2, 3, 12, 12)


def attention():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return layer, numbers(2, 5, 16)


def embeddings():
    return nn.EmbeddingBag(20, 8), 5 * numbers(4, 3).abs().long()


def averages():
    return Average(), numbers(8, 4)


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("kind", [convolutions, attention, embeddings, averages])
def test_traced_modules_compute_draw_and_change_as_in_eager_mode(kind, replays):
    torch.manual_seed(0)
    module, x = (made.to(gpu(0)) for made in kind())
    twin = copy.deepcopy(module)
    graph, result = TaskGraph.trace(module, x)
    captured = graph.capture([x]) if replays else None
    torch.testing.assert_close(module.state_dict(), twin.state_dict(), rtol=0, atol=0)
    for seed in range(3):
        x.copy_(x.roll(1, 0))
        torch.manual_seed(seed)
        found = (captured.replay(x) if replays else graph.run())[result].clone()
        torch.manual_seed(seed)
        with torch.no_grad():
            wanted = twin(x)
        close = {"rtol": 1e-3, "atol": 1e-3}  # convolutions are in TF32
        torch.testing.assert_close(found, wanted, **close)
        torch.testing.assert_close(module.state_dict(), twin.state_dict(), **close)


def seeds(x):
    torch.cuda.manual_seed(3)
    return x + torch.rand_like(x)


def forks(x):
    with torch.random.fork_rng(devices=[x.device]):
        return x + torch.rand_like(x)


def makes(x):
    return torch.rand(4, generator=torch.Generator(x.device).manual_seed(3), device=x.device)


def draws(x):
    with torch.random.fork_rng(devices=[x.device]):  # and nothing is drawn there
        torch.cuda.manual_seed(1)
    own = torch.cuda.default_generators[x.device.index]
    return x + torch.rand_like(x), torch.rand(4, generator=own, device=x.device), torch.rand(4)


@pytest.mark.parametrize("fn", [seeds, forks, makes])
def test_code_that_does_more_than_draw_on_a_gpu_is_refused_and_no_state_changes(fn):
    x = numbers(4).to(gpu(0))
    torch.manual_seed(3)  # as the code does, so that the state would not tell
    with pytest.raises(ValueError, match="can't trace .*(seeds torch's|it makes|given a gen)"):
        TaskGraph.trace(fn, x)
    found = torch.rand(4, device=gpu(0))
    torch.manual_seed(3)
    assert torch.equal(found, torch.rand(4, device=gpu(0)))


@pytest.mark.skipif(not TRACES_GENERATORS, reason="this torch traces no given generators")
def test_draws_on_a_gpu_go_on_from_run_to_run():
    graph, result = TaskGraph.trace(draws, x := numbers(4).to(gpu(0)))
    torch.manual_seed(3)
    found = [graph.run()[result] for _ in range(2)]
    torch.manual_seed(3)
    torch.testing.assert_close(found, [draws(x) for _ in range(2)], rtol=0, atol=0)
