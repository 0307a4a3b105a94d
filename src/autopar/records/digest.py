"""Digest: the measured code and its parameters as one number, the same wherever it is computed.

All of the script that has run when it measures counts, which is each statement up to the one that
measures; and so does each file of autopar that those import, or use by a name of the door, and what
these files import in turn, be it run or not. Files that only show or keep what was measured don't
count, and neither do comments, docstrings and layout.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import autopar

_ROOT = Path(__file__).parents[1]  # autopar
_SHOWS = re.compile(  # files and folders that measure nothing
    r"__main__|display/|recorded/|graph/audit|"
    r"records/(claim|digest|experiment|gallery|provenance|store)\b|"
    r"traces/(command|findings|idle|report|utilization)\b"
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
    package = sorted(_files(_ROOT, _modules_used(statements)).items())
    whole = json.dumps([experiment, parameters, _tree(statements), package], sort_keys=True)
    return f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"


def _files(root: Path, used: frozenset[str]) -> dict[str, str]:
    """A SHA-256 for each file that measures, of those that some modules lead to."""
    waiting, files = {*used}, dict[str, str]()
    while waiting:
        place = root.joinpath(*waiting.pop().split(".")[1:])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            name = path.relative_to(root.parent).as_posix().partition("/")[2]
            if path.is_file() and name not in files and not _SHOWS.match(name):
                files[name], used_there = _file(path)
                waiting |= used_there
    return files


@functools.cache  # of what this process has loaded
def _file(path: Path) -> tuple[str, frozenset[str]]:
    """The SHA-256 of a file's code, and the modules that it leads to."""
    tree = ast.parse(path.read_bytes())
    code = hashlib.sha256(json.dumps(_tree(tree)).encode()).hexdigest()
    return code, _modules_used(tree.body)


def _modules_used(statements: list[ast.stmt]) -> frozenset[str]:
    """Modules of autopar that some code may import, or use by names of the door; else all."""
    modules, doors, home = set[str](), set[str](), vars(autopar)["_HOME"]
    nodes = [node for statement in statements for node in ast.walk(statement)]
    for node in nodes:
        if isinstance(node, ast.Import):
            named = [alias for alias in node.names if f"{alias.name}.".startswith("autopar.")]
            modules |= {alias.name for alias in named}
            doors |= {alias.asname or "autopar" for alias in named}
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("autopar."):
            modules |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    handed_on = sum(isinstance(node, ast.Name) and node.id in doors for node in nodes)
    for node in nodes:
        match node:
            case ast.Attribute(ast.Name(door), name) if door in doors:
                modules.add(f"autopar.{name}")
                handed_on -= 1
    used = [name for name in home if handed_on or f"autopar.{name}" in modules]
    return frozenset(modules.union(*({home[name], f"{home[name]}.{name}"} for name in used)))


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
