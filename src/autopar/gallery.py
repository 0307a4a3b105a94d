"""Gallery: which records its scripts show, and of what code; read, not run."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from autopar.digest import script_digest
from autopar.record import FOLDER, RecordError, newest_of

GALLERY = Path(__file__).parents[2] / "gallery"  # of a checkout
_PURE = {"dict": dict, "list": list, "tuple": tuple, "range": range, "len": len, "sum": sum}
_PURE |= {"min": min, "max": max, "sorted": sorted, "round": round, "int": int, "float": float}


class Shown(NamedTuple):
    """A record that a script shows: its name, and what it must have been measured with."""

    name: str
    digest: str
    script: Path

    @property
    def again(self) -> str:
        """How to record it anew, in words."""
        script = "/".join(self.script.parts[-3:])
        return f"On a machine that has what it needs run: python -m autopar record {script}"


def stale_records(gallery: Path = GALLERY, folder: Path = FOLDER) -> list[str]:
    """One line for each record that a script shows and that is missing, damaged or outdated."""
    found, shown = [], list(shown_by(gallery))
    for each in shown:
        try:
            newest_of(each.name, folder, digest=each.digest, again=each.again)
        except RecordError as error:
            found.append(str(error))
    known = {each.name for each in shown}
    for path in sorted(folder.glob("*/*.json")):
        if path.stem not in known:
            found.append(f"{path.parent.name}/{path.name}: no script shows it. Delete it.")
    return found


def shown_by(gallery: Path, name: str | None = None) -> Iterator[Shown]:
    """What the scripts of a folder, if there is one, show by `recorded(experiment, ...)`.

    Args:
        gallery: The folder.
        name: The only record to look for; all if not given.

    Raises:
        ValueError: A call of `recorded` whose name or parameters only running tells.
    """
    for script in sorted(gallery.glob("**/plot_*.py")):
        text = script.read_text(encoding="utf-8")
        if name is None or name in text:
            yield from (each for each in _records_of(script, text) if name in (None, each.name))


@functools.lru_cache(maxsize=64)
def _records_of(script: Path, text: str) -> tuple[Shown, ...]:
    tree = ast.parse(text)
    values = _Values(tree)
    found = []
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "recorded":
            given = {each.arg: each.value for each in call.keywords}
            try:
                name, parameters = (values.of(given[each]) for each in ("name", "parameters"))
                digest = script_digest(text, ast.unparse(call.args[0]), parameters)
            except (LookupError, TypeError, ValueError) as error:
                msg = (
                    f"{script.name}:{call.lineno}: recorded(...) can't be read without running the "
                    f"script ({error!r}). Name a function, and write name and parameters as values."
                )
                raise ValueError(msg) from error
            found.append(Shown(name, digest, script))
    return tuple(found)


class _Values:
    """Values of expressions made of literals, and of names that a script gives to such."""

    def __init__(self, tree: ast.Module) -> None:
        self._named: dict[str, list[ast.expr]] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for name, value in _pairs(target, node.value):
                        self._named.setdefault(name, []).append(value)

    def of(self, node: ast.expr) -> Any:
        """The value of an expression.

        Raises:
            ValueError: It has parts that only running tells.
        """
        parts, names = list(ast.walk(node)), {}
        own = {each.id for each in parts if isinstance(each, ast.Name) and _stores(each)}
        for each in parts:
            if isinstance(each, ast.Name) and each.id not in own | _PURE.keys():
                if len(self._named.get(each.id, ())) != 1:
                    msg = f"{each.id} is not given one value"
                    raise ValueError(msg)
                names[each.id] = self.of(self._named[each.id][0])
            elif isinstance(each, (ast.Attribute, ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield)):
                msg = f"{ast.unparse(each)} is no value"
                raise ValueError(msg)
        code = compile(ast.Expression(node), "<parameters>", "eval")
        return eval(code, {"__builtins__": _PURE, **names})


def _stores(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)  # as a comprehension does


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The names that an assignment gives to what."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, other)
