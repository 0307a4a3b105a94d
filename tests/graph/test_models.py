"""Models of a library that nobody made for tracing: they and their state equal eager code's."""

import os
from importlib.util import find_spec

import pytest
import torch
from library_models import MODELS, model_of

from autopar import TaskGraph

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # weights are random: nothing is fetched
pytestmark = [
    pytest.mark.skipif(find_spec("transformers") is None, reason="it comes with the group models"),
    pytest.mark.filterwarnings("ignore"),  # the library's
]


def made(name, device, **sizes):
    torch.manual_seed(0)
    return model_of(name, device, **{"width": 64, "wide": 128, "tokens": 16} | sizes)


def hold(name, device, *, training):
    """Hold a model to eager code."""
    (model, call, x), (twin, as_eager, _) = (made(name, device, layers=2) for _ in range(2))
    with torch.no_grad():
        for one, calls in ((model, call), (twin, as_eager)):
            one.train(training)
            torch.manual_seed(0)
            calls(x)  # what it does in its first call only
        graph, results = TaskGraph.trace(call, x)
        for seed in range(2):
            torch.manual_seed(seed)
            wanted = as_eager(x)
            torch.manual_seed(seed)
            found = graph.run()[results]
            assert wanted
            assert all(map(torch.equal, found, wanted)), name
    state, wanted = model.state_dict(), twin.state_dict()
    assert all(torch.equal(state[key], wanted[key]) for key in wanted), name


each_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.stress) for name in MODELS]
)


@each_model
def test_a_model_is_equal_to_eager_code_on_a_cpu(name):
    hold(name, "cpu", training=False)
    hold(name, "cpu", training=True)


@pytest.mark.stress
def test_what_torch_cannot_trace_is_refused_with_its_line(capfd):
    models = MODELS
    models["Mixtral"] = models["Mixtral"] | {"experts_implementation": "grouped_mm"}
    _, call, x = made("Mixtral", "cpu", layers=1)
    with torch.no_grad(), pytest.raises(ValueError, match=r"line \d+ of moe.py, `.*grouped_mm"):
        TaskGraph.trace(call, x)
    assert len(capfd.readouterr().err.splitlines()) <= 1
