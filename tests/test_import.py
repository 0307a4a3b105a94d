"""Importing autopar: no effects, and next to no time beyond torch's own."""

import ast
import compileall
import importlib
import json
import os
from pathlib import Path
from types import FunctionType

import pytest

import autopar

_MOST_S = 0.050
_TRIES = 8  # the best counts: on a shared machine the others time its neighbours


def test_importing_has_no_effects_and_costs_little(run_program, tmp_path):
    compileall.compile_dir(Path(autopar.__file__).parent, quiet=1)  # as an installation does
    costs_s = []
    while len(costs_s) < _TRIES and (not costs_s or min(costs_s) > _MOST_S):
        done = run_program("import_effects.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        effects = json.loads(done.stdout)
        costs_s.append(effects.pop("cost_s"))
        assert Path(effects.pop("file")) == Path(autopar.__file__), "another autopar was imported"
        assert effects == {
            "effects": [],
            "threads": 0,
            "cuda": False,
            "contexts": [],
            "matplotlib": False,
            "default_dtype": "torch.float32",
        }
        assert not os.listdir(tmp_path)
        assert done.stderr == ""
    assert min(costs_s) <= _MOST_S, f"importing autopar took {costs_s} s beyond torch"


_STAND = (
    "cpu gpu num_gpus try_gpu try_all_gpus Timer Benchmark "  # D2L's
    "synchronize describe capacity measure annotate Lane cpu_lane cuda_lane Span Timeline "
    "read_trace write_trace TraceError compare plot recorded"
)


def test_each_public_name_is_there_where_types_are_looked_for_too():
    assert {*_STAND.split()} <= {*autopar.__all__}
    stub = Path(autopar.__file__).with_suffix(".pyi")
    source = ast.parse(stub.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(source) if isinstance(node, ast.ImportFrom)]
    typed = {alias.asname: node.module for node in imports for alias in node.names if alias.asname}
    assert sorted(typed) == sorted(autopar.__all__) == sorted(dir(autopar))
    for name, module in typed.items():
        assert getattr(autopar, name) is not None
        assert getattr(importlib.import_module(module), name) is getattr(autopar, name)


def test_a_name_that_is_none_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'tmer'") as caught:
        autopar.tmer  # noqa: B018
    assert caught.value.obj is autopar  # of whose names Python proposes the nearest


@pytest.mark.gpu
def test_importing_leaves_the_gpu_alone(run_program, tmp_path):
    done = run_program("import_effects.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    effects = json.loads(done.stdout)
    assert (effects["cuda"], effects["contexts"], effects["effects"]) == (False, [], [])


def test_every_public_name_has_an_example():
    things = {name: getattr(autopar, name) for name in autopar.__all__ if name != "__version__"}
    for module in (autopar.plot, autopar.workload):
        del things[module.__name__.rpartition(".")[2]]
        things |= {
            f"{module.__name__}.{name}": value
            for name, value in vars(module).items()
            if isinstance(value, FunctionType)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        }
    assert not [name for name, thing in things.items() if ">>>" not in (thing.__doc__ or "")]
