"""Torch's private names lie in one file, and each is there in the torch that is installed."""

import ast
from pathlib import Path

import pytest
import torch

import autopar
from autopar import torch_private as private

_SOURCES = Path(autopar.__file__).parent
_PYTHONS = {"_exit", "_replace", "_asdict", "_getframe", "_lru_cache_wrapper", "_run_exitfuncs"}
_NUMPYS = {"_rand"}
_CUDAS = {
    *("has_context", "current_gpu", "exchange_gpu", "current_stream_key", "spin"),
    *("clear_workspaces", "end_allocating_to", "release_pool", "empty_host_cache"),
}


def private_names(tree):
    """Names with one underscore in front that code reads of others, and imports of torch's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield "" if ast.unparse(node.value) == "self" else node.attr
        elif isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split(".")[1:])
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            name = node.args[1]
            yield name.value if isinstance(name, ast.Constant) else ""


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(tree):
    """What the package's own classes and modules call so."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value if node.value.isidentifier() else ""  # as in __slots__


_TREES = {
    path.relative_to(_SOURCES): ast.parse(path.read_text(encoding="utf-8"))
    for path in _SOURCES.rglob("*.py")
    if path.name != "torch_private.py"
}
_OWN = {name for tree in _TREES.values() for name in defined(tree)} - private.ATTRIBUTES.keys()
_OWN -= {name for owner in (torch, torch._C, torch.Tensor) for name in dir(owner)}


def test_no_other_file_has_private_names_of_torchs():
    allowed = {*private.ATTRIBUTES, *_OWN, *_PYTHONS, *_NUMPYS}
    named = {path: {*filter(is_private, private_names(tree))} for path, tree in _TREES.items()}
    assert {path: names - allowed for path, names in named.items() if names - allowed} == {}


def test_attributes_are_there():
    tensor = torch.ones(1)
    custom = torch.library.custom_op(
        "autopar_test::same", torch.clone, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    owners = {
        **dict.fromkeys(("_version", "_use_count"), tensor),
        "_values": tensor.to_sparse(),
        "_cdata": tensor.untyped_storage(),
        "_schema": torch.ops.aten.add.Tensor,
        "_qualified_op_name": torch.ops.aten.add,
        "_opoverload": custom,
        "_op": torch.ops.aten.add.Tensor,
        "_is_profiler_enabled": torch.autograd.profiler,
        "_current_level": torch.autograd.forward_ad,
    }
    assert owners.keys() == private.ATTRIBUTES.keys()
    assert [name for name, owner in owners.items() if not hasattr(owner, name)] == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.gpu] if name in _CUDAS else [])
        for name in sorted(vars(private))
        if not name.startswith("_") and name != "annotations"
    ],
)
def test_this_torch_has_them(name):
    value = getattr(private, name)
    assert "lacks" not in getattr(value, "__qualname__", "")
    assert value or name == "nvtx"  # of builds with CUDA alone


def test_a_torch_without_a_function_says_which_and_what_for():
    call = private._find("_C._no_such_thing", "to test this")
    with pytest.raises(RuntimeError, match=r"no torch\._C\._no_such_thing.*needed to test this"):
        call(1, key=2)
