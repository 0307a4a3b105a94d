"""Results that require gradients are copied back: of a model with weights, also while it trains."""

import copy
import runpy
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from late_cuda import LateCuda

_RECIPE = Path(__file__).parents[2] / "docs" / "recipes" / "copy_results_back.py"


def brought(results, count, way, device):
    """What a recipe brings to the host, and whether gradients are on between its results."""
    recipe = runpy.run_path(str(_RECIPE))
    pinned = [torch.empty(2, 4, pin_memory=device != "cpu") for _ in range(count)]
    where = (device,) if way == "results_by_pipeline" else (pinned, device)
    return [(result.tolist(), torch.is_grad_enabled()) for result in recipe[way](results, *where)]


def outputs_of_training(model, xs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(x, x + 1) for x in xs]
    train = runpy.run_path(str(_RECIPE))["outputs_of_training"]
    return train(model, optimizer, torch.nn.functional.mse_loss, batches)


@pytest.mark.parametrize("source", [map, outputs_of_training])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("way", ["results_on_host", "results_by_pipeline"])
def test_they_need_no_gradient_and_the_callers_mode_stays(way, device, source, monkeypatch):
    model = torch.nn.Linear(4, 4).to(device)
    xs = [torch.ones(2, 4, device=device) * i for i in range(3)]
    twin = copy.deepcopy(model)
    expected = [(result.tolist(), True) for result in source(twin, xs)]
    with LateCuda(monkeypatch) if device == "cpu" and way == "results_on_host" else nullcontext():
        assert brought(source(model, xs), len(xs), way, device) == expected
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
