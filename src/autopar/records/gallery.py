"""Gallery: which records its scripts show, and of what code; read, not run."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from autopar.records.digest import script_digest
from autopar.records.record import RecordError
from autopar.records.store import newest_of

GALLERY = Path(__file__).parents[3] / "gallery"  # of a checkout
_SECTIONS = "experiments exercises beyond"
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


def scripts_of(gallery: Path = GALLERY) -> list[Path]:
    """Its scripts in reading order, in which each comes after those whose records it shows."""
    found = gallery.glob("**/plot_*.py")
    return sorted(found, key=lambda path: (_SECTIONS.find(path.parent.name), path.name))


def stale_records(scripts: Iterable[Path], *folders: Path) -> list[str]:
    """One line for each record that a script shows and that is missing, damaged or outdated.

    Args:
        scripts: The scripts.
        *folders: Where records lie; one that holds is enough.
    """
    found = []
    for each in shown_by(scripts):
        errors = []
        for folder in folders:
            try:
                newest_of(each.name, folder, digest=each.digest, again=each.again)
                break
            except RecordError as error:
                errors.append(str(error))
        else:
            found.append(errors[0])
    return found


def unshown_records(scripts: Iterable[Path], folder: Path) -> list[str]:
    """One line for each record that no script shows."""
    known = {each.name for each in shown_by(scripts)}
    return [
        f"{path.parent.name}/{path.name}: no script shows this record. Delete it."
        for path in sorted(folder.glob("*/*.json"))
        if path.stem not in known
    ]


def shown_by(scripts: Iterable[Path], name: str | None = None) -> Iterator[Shown]:
    """What scripts show by `recorded(experiment, name=..., parameters=...)`.

    Args:
        scripts: The scripts.
        name: The only record to look for; all if not given.

    Raises:
        ValueError: A call of `recorded` whose name or parameters only running tells.
    """
    for script in scripts:
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
