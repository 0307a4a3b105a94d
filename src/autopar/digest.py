"""Digest: the measured code and its parameters as one number, the same on every Python."""

from __future__ import annotations

import ast
import hashlib
import inspect
import io
import json
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

# The rooms whose code does the measured work. The instruments (timer, profiler, spans) are
# covered by the version and the sources' digest that a record carries as provenance.
_WORKING_ROOMS = {
    *("autopar.lane", "autopar.task", "autopar.worker", "autopar.stream", "autopar.workload"),
    *("autopar.transfer", "autopar.parcel", "autopar.owner", "autopar.layout", "autopar.load"),
    *("autopar.ring", "autopar.copystream", "autopar.copyplan", "autopar.graph", "autopar.node"),
    *("autopar.graphrun", "autopar.schedule", "autopar.access", "autopar.aliasing"),
    *("autopar.capture", "autopar.tracing", "autopar.hazards", "autopar.plan"),
    "autopar.runner",
}
_CONSTANTS = (int, float, str, bytes, bool, tuple, type(None))
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
_F_START = getattr(tokenize, "FSTRING_START", None)  # Python 3.12 and later take f-strings apart
_F_END = getattr(tokenize, "FSTRING_END", None)


def code_digest(experiment: Callable[..., object], parameters: Mapping[str, Any]) -> str:
    """A SHA-256 over the experiment's code and parameters.

    Part of it are the function's source, that of every function and class and the value of every
    constant of its own script that it names, and that of what it names in autopar's working rooms;
    all this in turn for each of these. Comments, docstrings and layout are not.

    Args:
        experiment: A function whose source can be read.
        parameters: What it is called with; must be JSON.
    """
    parts: dict[str, str] = {"parameters": json.dumps(parameters, sort_keys=True)}
    queue: list[Any] = [experiment]
    while queue:
        code = queue.pop()
        key = f"{_home(code)}.{code.__qualname__}"
        if key in parts:
            continue
        source = textwrap.dedent(inspect.getsource(code))
        parts[key] = normalized(source)
        for name, value in _named(source, _namespace(code)):
            if inspect.isclass(value):  # of the script: its methods, as a class has no file there
                queue += [each for each in vars(value).values() if _same_script(code, each)]
            if _counts(code, value):
                queue.append(value)
            elif _home(code) == "script" and _is_constant(name, value):
                parts[f"script.{name}"] = repr(_without_code(value))
                queue += [each for each in _leaves(value) if _counts(code, each)]
    text = json.dumps(parts, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def normalized(source: str) -> str:
    r"""Source text without comments, docstrings and layout; what is left decides what it does.

    >>> normalized("def f( x ):  # doubles\n    'Twice.'\n    return 2*x\n")
    'def f ( x ) : ⏎ ⇥ return 2 * x ⏎ ⇤'
    """
    words: list[str] = []
    statement: list[str] = []
    only_text = True  # so far the statement is string literals: a docstring
    for token in _tokens(source):
        if token.type == tokenize.NEWLINE:
            if not (only_text and statement):
                words += [*statement, "⏎"]
            statement, only_text = [], True
        elif token.type in (tokenize.INDENT, tokenize.DEDENT):
            words.append("⇥" if token.type == tokenize.INDENT else "⇤")
        elif token.type not in _LAYOUT:
            only_text = only_text and token.type == tokenize.STRING
            statement.append(token.string)
    return " ".join(words)


def _tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    """Python's tokens, with an f-string as one string on every version."""
    lines = source.splitlines(keepends=True)
    depth, start = 0, (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == _F_START:
            start = start if depth else token.start
            depth += 1
        elif token.type == _F_END:
            depth -= 1
            if depth == 0:
                text = _between(lines, start, token.end)
                yield tokenize.TokenInfo(tokenize.STRING, text, start, token.end, token.line)
        elif depth == 0:
            yield token


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    chosen = lines[start[0] - 1 : end[0]]
    chosen[-1] = chosen[-1][: end[1]]
    chosen[0] = chosen[0][start[1] :]
    return "".join(chosen)


def _named(source: str, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the names and dotted names in some source stand for, where that is known."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id in namespace:
            yield node.id, namespace[node.id]
        elif isinstance(node, ast.Attribute):
            value = _attribute(node, namespace)
            if value is not None:
                yield node.attr, value


def _attribute(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """The value of `module.name`, to any depth; None for attributes of anything else."""
    if isinstance(node, ast.Name):
        return namespace.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _attribute(node.value, namespace)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    return None


def _is_constant(name: str, value: object) -> bool:
    """Whether a name of the script stands for a value that its work may depend on."""
    if isinstance(value, (list, dict)) or type(value).__name__ == "dtype":
        return name.isupper()  # others may be results, which differ from run to run
    return isinstance(value, _CONSTANTS)


def _counts(code: Any, value: Any) -> bool:
    """Whether a value that some code names is code of the page's script or of a working room."""
    return _is_code(value) and (_home(value) in _WORKING_ROOMS or _same_script(code, value))


def _leaves(value: Any) -> Iterator[Any]:
    """What is in a constant's containers."""
    inside = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple)):
        for each in inside:
            yield from _leaves(each)
    else:
        yield value


def _without_code(value: Any) -> Any:
    """A constant with names in place of what can be called, which is elsewhere in each process."""
    if isinstance(value, dict):
        return {key: _without_code(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_code(each) for each in value)
    return value.__qualname__ if callable(value) and hasattr(value, "__qualname__") else value


def _is_code(value: object) -> bool:
    return inspect.isfunction(value) or inspect.isclass(value)


def _home(code: Any) -> str:
    """The module of autopar it lives in; anything else is the script."""
    return code.__module__ if code.__module__.startswith("autopar.") else "script"


def _namespace(code: Any) -> Mapping[str, Any]:
    if inspect.isfunction(code):
        return code.__globals__
    return vars(sys.modules[code.__module__])


def _same_script(code: Any, other: Any) -> bool:
    """Whether both were defined by the same gallery script."""
    if _home(code) != "script" or not inspect.isfunction(other):
        return False
    return other.__globals__ is _namespace(code)
