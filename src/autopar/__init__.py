"""autopar: see, measure and trust when a PyTorch program runs things in parallel.

`import autopar as d2l` runs the PyTorch code of the chapter *Automatic Parallelism* of *Dive into
Deep Learning* unchanged. Importing has no effects: no CUDA context, thread, file or plot style.
Each public name is loaded at its first use, from where the stub beside this file imports it.
"""

import ast
import importlib
import sys
from pathlib import Path

_HOME = {
    name.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom) and statement.module
    for name in statement.names
}

__all__ = [*_HOME]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    """Load a name at its first use."""
    if name not in _HOME:
        msg = f"module 'autopar' has no attribute {name!r}"
        raise AttributeError(msg, name=name, obj=sys.modules[__name__])  # for "Did you mean"
    if name in ("plot", "workload"):  # modules, used by a name of the door
        return importlib.import_module(f"{_HOME[name]}.{name}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value
