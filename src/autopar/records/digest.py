"""Digest: the measured code and its parameters as one number, the same wherever it is computed.

It follows no names, so it can miss none: all of the script that has run when it measures counts,
which is each statement up to the one that measures; and so does every file of autopar, but for
those that only show or keep what was measured. Comments, docstrings and layout are no part of it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]  # autopar
_SHOWS = (  # folders and files that measure nothing
    *("__main__.py", "display/", "recorded/", "traces/command.py", "traces/report.py"),
    *("graph/audit.py", "traces/findings.py", "traces/idle.py", "traces/utilization.py"),
    *("records/claim.py", "records/digest.py", "records/experiment.py", "records/gallery.py"),
    *("records/provenance.py", "records/store.py"),
)


def code_digest(experiment: Callable[..., object], parameters: Mapping[str, Any]) -> str:
    """The `script_digest` of a function of a script; nothing of one that is in no file.

    What its script runs at this time is the last statement that counts. If it runs none, as where
    another module has imported the script, all of it counts. Cells of notebooks are in no file.
    """
    experiment = inspect.unwrap(experiment)
    file = Path(inspect.getsourcefile(experiment) or "")
    if not file.is_file():
        return ""
    lines = [
        line
        for frame, line in traceback.walk_stack(inspect.currentframe())
        if frame.f_locals is experiment.__globals__  # the top level of the script
    ]
    text, line = file.read_text(encoding="utf-8"), lines[0] if lines else None
    return script_digest(text, experiment.__name__, parameters, line)


def script_digest(
    script: str, experiment: str, parameters: Mapping[str, Any], line: int | None = None
) -> str:
    """A SHA-256 over what a script's text runs up to a line, autopar's code, and parameters."""
    statements = [
        statement
        for statement in ast.parse(script).body
        if line is None or statement.lineno <= line
    ]
    whole = json.dumps([experiment, parameters, _tree(statements), _package(_ROOT)], sort_keys=True)
    return f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"


@functools.cache  # of what this process has loaded
def _package(root: Path) -> str:
    """A SHA-256 over the files that measure."""
    code = {
        name: _tree(ast.parse(path.read_bytes()))
        for path in root.rglob("*.py")
        if not (name := path.relative_to(root).as_posix()).startswith(_SHOWS)
    }
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()


def _tree(node: object) -> object:
    """A syntax tree as lists, alike in every Python: without docstrings and empty fields."""
    if isinstance(node, list):
        return [_tree(one) for one in node if not _is_prose(one)]
    if not isinstance(node, ast.AST):
        return ascii(node)
    if isinstance(node, ast.JoinedStr):  # an f-string, to which some Pythons add empty texts
        parts: list[Any] = node.values
        node = ast.JoinedStr([part for part in parts if part.value != ""])
    fields = [(name, part) for name, part in ast.iter_fields(node) if part not in (None, [])]
    return [type(node).__name__, *((name, _tree(part)) for name, part in fields)]


def _is_prose(node: object) -> bool:
    """Whether this is a statement that is a plain text, as docstrings are."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
