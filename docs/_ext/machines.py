"""Machines: the records of each, and what the gallery's pages claim by the records of each.

A page runs with one machine's record. Its claims are told for the others, too, by the statements
that a claim needs: nothing else of the script runs, and nothing is measured.
"""

import ast
import contextlib
import functools
import json
import os
import re
import symtable
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import autopar
from autopar.records.claim import CLAIMS_TO, Claim
from autopar.records.gallery import GALLERY, scripts_of, shown_by
from autopar.records.record import Record
from autopar.records.store import FOLDER, load_record, preference


def machine_of(hardware):
    """What a machine is called: by its GPUs and by what its CPU runs at once."""
    gpus = Counter(gpu["name"] for gpu in hardware["gpus"])
    named = " and ".join(f"{count} × {name}" for name, count in gpus.items())
    return f"{named or hardware['cpu']}, {hardware['cpu_cores']} CPU threads"


@functools.cache
def records_by_machine() -> dict[str, dict[str, Record]]:
    """Every record by machine and name: what needs no GPU is with the machine that had one."""
    found: dict[str, dict[str, Record]] = {}
    for record, _ in read():
        found.setdefault(machine_of(record.hardware), {})[record.experiment] = record
    return dict(sorted(found.items()))


@functools.cache
def comparable() -> dict[str, dict[str, Record]]:
    """The records, by machine and name, of all that the newest record of that name measured."""

    def has_all(record):  # and perhaps more, as on more GPUs
        newest = newest_of[record.experiment]
        parts = zip(measured(newest), measured(record), strict=True)
        return newest.parameters == record.parameters and all(one <= own for one, own in parts)

    def measured(record):
        return [part.keys() for part in (record.measurements, record.timelines, record.values)]

    everywhere = [it for records in records_by_machine().values() for it in records.values()]
    everywhere.sort(key=preference)
    newest_of = {it.experiment: it for it in everywhere}  # the last of each name
    return {
        machine: {name: it for name, it in records.items() if has_all(it)}
        for machine, records in records_by_machine().items()
    }


@functools.cache
def read() -> list[tuple[Record, Path]]:
    """Every record with its file; it knows whether the code that it measured has changed."""
    digests = {shown.name: shown.digest for shown in shown_by(scripts_of())}
    records = []
    for path in sorted(FOLDER.glob("*/*.json")):
        one = load_record(path)  # of one that is damaged, the build has complained
        if digest := digests.get(one.experiment):
            one = replace(one, code_changed=digest(one.parameters) != one.digest)
        records.append((one, path))
    return records


class Experiment(NamedTuple):
    """What a page measures or shows a record of."""

    page: str  # its name in the documentation
    name: str  # of its record
    what: str  # it is, in the words of the code


def experiments() -> list[Experiment]:
    """Every experiment that keeps a record, in the order of the pages."""
    found = []
    for script in scripts_of():
        tree = ast.parse(script.read_text(encoding="utf-8"))
        functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "ap.recorded":
                (name,) = (ast.literal_eval(it.value) for it in call.keywords if it.arg == "name")
                what = ast.get_docstring(functions[ast.unparse(call.args[0])]) or ""
                found.append(Experiment(page_of(script), name, what.partition("\n")[0]))
    return found


def page_of(script):
    """The name of a script's page in the documentation."""
    return f"/auto_gallery/{script.relative_to(GALLERY).with_suffix('').as_posix()}"


class Told(NamedTuple):
    """A claim of a page, and what became of it on each machine that has a record of it."""

    page: str  # its name in the documentation
    by_machine: dict[str, Claim]


@functools.cache
def claims_by_machine() -> list[Told]:
    """Every claim that follows from records, in the order of the pages."""
    told = []
    with mock.patch.dict(os.environ):
        os.environ.pop(CLAIMS_TO, None)  # these are no claims of a page that runs
        for script in scripts_of():
            body = without_experiments(ast.parse(script.read_text(encoding="utf-8"))).body
            for needed, call in claims_in(body):
                made = {
                    machine: claim
                    for machine, records in comparable().items()
                    if (claim := told_by(records, needed, call)) is not None
                }
                told += [Told(page_of(script), made)] if made else []
    return told


def newest_claims(page: str) -> list[Claim]:
    """Each claim of a page by the record that the page shows."""
    script = (GALLERY / f"{page.removeprefix('/auto_gallery/')}.py").read_text(encoding="utf-8")
    names = [experiment.name for experiment in experiments() if f'"{experiment.name}"' in script]
    shown = {autopar.newest_record(name).origin for name in names}

    def is_shown(claim):
        day = re.search(r"\d{4}-\d\d-\d\d", claim.estimate.origin)
        return claim.estimate.origin in shown, day and day[0]

    told = (it.by_machine.values() for it in claims_by_machine() if it.page == page)
    return [max(claims, key=is_shown) for claims in told]


class Missing(Exception):
    """A machine has no such record."""


class _Autopar:
    """The package as a script uses it, with one machine's records, and without measuring."""

    def __init__(self, records):
        self._records = records

    def __getattr__(self, name):
        return getattr(autopar, name)

    def recorded(self, *, name, parameters, **_):
        record = self._records.get(name)
        others = (None, record and record.parameters)  # of other parameters there is no such record
        if record is None or json.loads(json.dumps(parameters)) not in others:
            raise Missing(name)
        return record

    def newest_record(self, name):
        return self.recorded(name=name, parameters=None)

    def observed(self, *_, name, **__):
        raise Missing(name)  # it is measured where a page is built, and no record is kept


def told_by(records, needed, call):
    """The claim that a call makes with a machine's records; nothing if these don't have it all."""
    values = {"ap": _Autopar(records)}
    for statement in needed:
        with contextlib.suppress(Missing, NameError):  # what a missing record leaves out
            exec(compile(ast.Module([statement], []), "claim", "exec"), values)
    try:
        return eval(compile(ast.Expression(call), "claim", "eval"), values)
    except NameError:
        return None


def claims_in(body):
    """Each call of `ap.claim` among statements, with those before it that make what it needs."""
    for at, statement in enumerate(body):
        if isinstance(statement, ast.FunctionDef):
            continue
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "ap.claim":
                needed, kept = used(call), []
                for before in reversed(body[:at]):
                    if made := changed(before) & needed:
                        kept.append(before)
                        needed = needed - made if isinstance(before, ast.Assign) else needed
                        needed = needed | used(before)
                yield kept[::-1], call


def without_experiments(script):
    """A script whose calls of `recorded` don't name what they would run."""
    for call in ast.walk(script):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "ap.recorded":
            call.args = []
    return script


@functools.cache
def used(node):
    """The names of a script that a node reads, and not those of its own functions."""
    return {symbol.get_name() for symbol in symbols(node) if symbol.is_referenced()} - {"ap"}


@functools.cache
def changed(statement):
    """The names that a statement binds, or whose values a method that it calls may change."""
    bound = {one.get_name() for one in symbols(statement) if one.is_assigned() or one.is_imported()}
    parts = (one for one in ast.walk(statement) if isinstance(one, ast.Subscript | ast.Attribute))
    inside = (one.value for one in parts if isinstance(one.ctx, ast.Store | ast.Del))
    bound |= {one.id for one in inside if isinstance(one, ast.Name)}
    if isinstance(statement, ast.Expr):
        node = statement.value
        while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        bound |= {node.id} if isinstance(node, ast.Name) else set()
    return bound - {"ap"}


def symbols(node):
    """What a node names in its script: itself, and from its functions and comprehensions."""
    module = symtable.symtable(ast.unparse(node), "script", "exec")
    yield from module.get_symbols()
    inner = module.get_children()
    for table in inner:
        yield from (symbol for symbol in table.get_symbols() if symbol.is_global())
        inner += table.get_children()
