"""Gallery: which records its scripts show, and of what code; read, not run."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autopar.records.digest import script_digest
from autopar.records.record import RecordError
from autopar.records.store import newest_of

GALLERY = Path(__file__).parents[3] / "gallery"  # of a checkout
_SECTIONS = "experiments exercises beyond"
_SEQUENCE = ast.Tuple | ast.List
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

    def error_of(shown: Shown, folder: Path) -> str:
        try:
            newest_of(shown.name, folder, digest=shown.digest, again=shown.again)
        except RecordError as error:
            return str(error)
        return ""

    errors = [[error_of(shown, folder) for folder in folders] for shown in shown_by(scripts)]
    return [first for first, *others in errors if first and all(others)]


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
    named: dict[str, list[ast.expr]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for name, value in _pairs(node.targets, [node.value] * len(node.targets)):
                named.setdefault(name, []).append(value)
    records = []
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "recorded":
            given = {each.arg: each.value for each in call.keywords}
            try:
                name, parameters = (_value(given[each], named) for each in ("name", "parameters"))
                digest = script_digest(text, ast.unparse(call.args[0]), parameters)
            except (LookupError, TypeError, ValueError) as error:
                msg = (
                    f"{script.name}:{call.lineno}: recorded(...) can't be read without running the "
                    f"script ({error!r}). Name a function, and write name and parameters as values."
                )
                raise ValueError(msg) from error
            records.append(Shown(name, digest, script))
    return tuple(records)


def _pairs(
    targets: Sequence[ast.expr], values: Sequence[ast.expr]
) -> Iterator[tuple[str, ast.expr]]:
    """The names that an assignment gives to what."""
    for target, value in zip(targets, values, strict=False):
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, _SEQUENCE) and isinstance(value, _SEQUENCE):
            yield from _pairs(target.elts, value.elts)


def _value(node: ast.expr, named: Mapping[str, Sequence[ast.expr]]) -> Any:
    """The value of an expression made of literals, and of names that a script gives to such.

    Raises:
        ValueError: It has parts that only running tells.
    """
    names, values = [], {}
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            names.append(part)
        elif isinstance(part, (ast.Attribute, ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield)):
            msg = f"{ast.unparse(part)} is no value"
            raise ValueError(msg)
    own = {name.id for name in names if isinstance(name.ctx, ast.Store)}  # as of a comprehension
    for name in {name.id for name in names} - own - _PURE.keys():
        if len(named.get(name, ())) != 1:
            msg = f"{name} is not given one value"
            raise ValueError(msg)
        values[name] = _value(named[name][0], named)
    code = compile(ast.Expression(node), "<parameters>", "eval")
    return eval(code, {"__builtins__": _PURE, **values})
