"""Results of a model with weights, which would require gradients, are copied back as well."""

import runpy
from pathlib import Path

import pytest
import torch
from late_cuda import LateCuda

_RECIPE = Path(__file__).parents[2] / "docs" / "recipes" / "copy_results_back.py"


def rows(model, xs, way, device):
    """What a recipe brings to the host, and whether gradients are on between its results."""
    results, recipe = map(model, xs), runpy.run_path(str(_RECIPE))
    if way == "results_by_pipeline":
        results = recipe[way](results, device)
    else:
        results = recipe[way](
            results, [torch.empty(2, 4, pin_memory=xs[0].is_cuda) for _ in xs], device
        )
    return [(result.tolist(), torch.is_grad_enabled()) for result in results]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("way", ["results_on_host", "results_by_pipeline"])
def test_they_need_no_gradient_and_the_callers_mode_stays(way, device, monkeypatch):
    model = torch.nn.Linear(4, 4).to(device)
    xs = [torch.ones(2, 4, device=device) * i for i in range(3)]
    expected = [(model(x).tolist(), True) for x in xs]
    if device == "cpu" and way == "results_on_host":
        with LateCuda(monkeypatch):
            assert rows(model, xs, way, device) == expected
    else:
        assert rows(model, xs, way, device) == expected
