"""Gallery: which records its scripts show, and of what code; read, not run."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from autopar.display.format import by_number
from autopar.records.digest import script_digest
from autopar.records.record import RecordError
from autopar.records.store import Wanted, newest_of

GALLERY = Path(__file__).parents[3] / "gallery"  # of a checkout
_SECTIONS = "first_steps copies one_device tools graphs distributed"


def scripts_of(gallery: Path = GALLERY) -> list[Path]:
    """Its scripts in reading order, in which each comes after those whose records it shows."""

    def place(script: Path) -> tuple[int, list[int | str]]:
        return _SECTIONS.find(script.parent.name), by_number(script.name)

    return sorted(gallery.glob("**/plot_*.py"), key=place)


def command_of(script: Path) -> str:
    """The command that records a script, without this machine's paths; all, if it is no page."""
    place = "/".join(script.parts[-3:])
    return f"python -m autopar record {place if place.startswith('gallery/') else ''}".rstrip()


def stale_records(
    scripts: Iterable[Path], *folders: Path, may_be_earlier: bool = False
) -> list[str]:
    """A line for each record that a script shows and that no folder has as it should be.

    With `may_be_earlier` one of earlier code will do, as pages show it and say so.
    """
    lines = []
    for wanted in shown_by(scripts):
        errors = []
        for folder in folders:
            try:
                if newest_of(wanted, folder).code_changed and not may_be_earlier:
                    earlier = f"{wanted.name}.json: was measured with earlier code. {wanted.again}"
                    errors.append(earlier)
            except RecordError as error:
                errors.append(str(error))
        lines += errors[:1] if len(errors) == len(folders) else []
    return lines


def unshown_records(scripts: Iterable[Path], folder: Path) -> list[str]:
    """A line for each record that no script shows."""
    names = {shown.name for shown in shown_by(scripts)}
    return [
        f"{path.parent.name}/{path.name}: no script shows this record. Delete it."
        for path in sorted(folder.glob("*/*.json"))
        if path.stem not in names
    ]


def shown_by(scripts: Iterable[Path]) -> list[Wanted]:
    """What scripts show by `recorded(...)`; ValueError where that can't be read."""
    records = []
    for script in scripts:
        try:
            text = script.read_text(encoding="utf-8")
            tree = ast.parse(text, script)
        except (SyntaxError, ValueError) as error:
            msg = f"{script} can't be read: {error}; expected Python. Mend it, and try again."
            raise ValueError(msg) from error
        again = f"On a machine that has what it needs run: {command_of(script)}"
        calls = [
            (call, statement.lineno)
            for statement in tree.body
            for call in ast.walk(statement)
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("recorded")
        ]
        for call, line in calls:
            match call.args, {given.arg: given.value for given in call.keywords}:
                case [ast.Name(experiment)], {"name": ast.Constant(str(name))}:
                    digest = partial(script_digest, text, experiment, line=line)
                    records.append(Wanted(name, digest, again=again))
                case _:
                    msg = (
                        f"{script.name}:{call.lineno}: recorded(...) can't be read without running "
                        f"the script. Name a function, and write the record's name as text."
                    )
                    raise ValueError(msg)
    return records
