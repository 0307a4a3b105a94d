"""Models of a library that nobody made for tracing: they and their state equal eager code's."""

import ast
import copy
import os
from pathlib import Path

import pytest
import torch

from autopar import TaskGraph

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # weights are random: nothing is fetched
pytest.importorskip("transformers", reason="it comes with the group models")
pytestmark = [pytest.mark.stress, pytest.mark.filterwarnings("ignore")]  # of the library

_PAGE = Path(__file__).parents[2] / "gallery/graphs/plot_6_run_whole_models.py"


def _page():
    """What the page defines before it measures."""
    namespace = {"__name__": "page"}
    for node in ast.parse(_PAGE.read_text()).body:
        if "SIZES" in ast.unparse(node).partition("=")[0]:
            return namespace
        exec(compile(ast.Module([node], []), str(_PAGE), "exec"), namespace)
    raise AssertionError("the page measures nothing")


_DEFINED = _page()


def hold(name, device, *, training):
    """Hold a model to eager code."""
    torch.manual_seed(0)
    model = _DEFINED["Tensors"](name, width=64, wide=128, layers=2, tokens=16)
    model.to(device).train(training)
    inputs = {key: x.to(device) for key, x in model.inputs.items()}
    with torch.no_grad():
        model(**inputs)  # what it does in its first call only
        twin = copy.deepcopy(model)
        graph, results = TaskGraph.trace(model, **inputs)
        for seed in range(2):
            torch.manual_seed(seed)
            wanted = twin(**inputs)
            torch.manual_seed(seed)
            found = graph.run()[results]
            assert wanted
            assert all(map(torch.equal, found, wanted)), name
    state, wanted = model.state_dict(), twin.state_dict()
    assert all(torch.equal(state[key], wanted[key]) for key in wanted), name


def test_models_are_equal_to_eager_code_on_a_cpu():
    for name in _DEFINED["MODELS"]:
        hold(name, "cpu", training=False)
        hold(name, "cpu", training=True)


@pytest.mark.gpu
def test_models_are_equal_to_eager_code_on_a_gpu():
    for name in _DEFINED["MODELS"]:
        hold(name, "cuda", training=False)
        hold(name, "cuda", training=True)


def test_what_torch_cannot_trace_is_refused_with_its_line(capfd):
    models = _DEFINED["MODELS"]
    models["Mixtral"] = models["Mixtral"] | {"experts_implementation": "grouped_mm"}
    model = _DEFINED["Tensors"]("Mixtral", width=64, wide=128, layers=1, tokens=8).eval()
    with torch.no_grad(), pytest.raises(ValueError, match=r"line \d+ of moe.py, `.*grouped_mm"):
        TaskGraph.trace(model, **model.inputs)
    assert len(capfd.readouterr().err.splitlines()) <= 1
