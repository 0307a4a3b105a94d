"""Figures of records on pages: with their noise and place, by labels that are measured, by name."""

import ast
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import autopar as ap
from autopar.records.store import FOLDER, load_record

_ROOT = Path(__file__).parents[2]
_SCRIPTS = sorted((_ROOT / "gallery").rglob("plot_*.py"))
_TEXTS = [*(_ROOT / "docs").glob("*.md"), *(_ROOT / "docs").glob("[!_a]*/*.md")]
_TELLS = {"chapter", "index", "book_against_hardware"}  # of records, in sentences
_CELL = re.compile(r"(?ms)^```\{code-cell\} python3\n(?::tags:.*?\n)?(.*?)^```$")
_PARTS = {"measurements", "values", "timelines", "checks", "parameters"}  # of a record
_BY_PLACE = {"zip", "enumerate", "next", "list", "tuple"}
_TIMES = {"measurements", "values_s", "median_s", "min_s", "limit_s", "estimate"}
_SHOWS = {"tell", "words", "ap.compare", "ap.draw"}  # what says by itself which of them are noisy
_REPLACED = {"products on one", "steps on one"}  # made by `str.replace` of others
_ASKING = {"hidden", "limit_s", "select"}  # methods that are given labels


def code_of(page):
    """What a script runs, or the cells of a page, as one program."""
    text = page.read_text(encoding="utf-8")
    return ast.parse(text if page.suffix == ".py" else "\n".join(_CELL.findall(text)))


def by_position(code):
    """Where figures of a record are told apart by their place, which another record may change."""
    for node in ast.walk(code):
        unpacks = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
        pairs = isinstance(node, ast.Call) and ast.unparse(node.func) in _BY_PLACE
        for inner in ast.walk(node) if unpacks or pairs else ():
            walks = isinstance(inner, ast.Attribute) and inner.attr == "values"
            if walks and getattr(inner.value, "attr", "") in _PARTS:
                yield ast.unparse(node)


def untold(node):
    """Where code takes times from a record, but for what is handed to those who tell of noise."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in _SHOWS:
        return
    if isinstance(node, ast.FunctionDef):  # it is given a record, by one of them
        return
    if isinstance(node, ast.Attribute) and node.attr in _TIMES:
        yield ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        yield from untold(child)


def strings(*codes):
    """The nodes of all strings of some code."""
    nodes = (node for code in codes for node in ast.walk(code) if isinstance(node, ast.Constant))
    return {node for node in nodes if isinstance(node.value, str)}


def asked(code):
    """The nodes of strings by which code looks something up."""
    for node in ast.walk(code):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield from strings(node.slice)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _ASKING:
            yield from strings(*node.args)


@cache
def labels():
    """What any record has measured, seen or computed."""
    records = [load_record(path) for path in FOLDER.glob("*/*.json")]
    return {
        label
        for it in records
        for part in (it.measurements, it.timelines, it.values)
        for label in part
    }


@cache
def named_in_the_package():
    sources = Path(ap.__file__).parent.rglob("*.py")
    return {it.value for path in sources for it in strings(ast.parse(path.read_text("utf-8")))}


def composed(code):
    """A pattern for each string with fields that has a word of its own."""
    for node in ast.walk(code):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            if any(re.search(r"[a-zA-Z]{3}", part or "") for part in parts):
                yield "".join(".+" if part is None else re.escape(part) for part in parts)


def measured_no_more(code):
    """The labels that a script asks a record for, and that neither it nor the package makes."""
    looked_up = set(asked(code))
    known = {node.value for node in strings(code) - looked_up} | named_in_the_package() | _REPLACED
    unknown, patterns = {node.value for node in looked_up} & labels() - known, [*composed(code)]
    return {text for text in unknown if not any(re.fullmatch(it, text) for it in patterns)}


def faults(page):
    """What is wrong with how a page takes figures from records, in words."""
    yield from (f"by its place: {it}" for it in by_position(code_of(page)))
    if _TELLS & {page.stem, page.parent.name}:
        yield from (f"without its noise: {it}" for it in untold(code_of(page)))
    if page.suffix == ".py":
        yield from (f"measured no more: {it}" for it in measured_no_more(code_of(page)))


@pytest.mark.parametrize("page", [*_SCRIPTS, *_TEXTS], ids=lambda page: page.stem)
def test_figures_of_records_are_taken_by_name_and_told_with_their_noise(page):
    assert list(faults(page)) == []


# A label that a record has and the package does not name, whatever was recorded last.
_LABEL = min(it for it in labels() - named_in_the_package() if re.fullmatch(r"[a-z]{5}[a-z ]*", it))
WRONG = {
    by_position: ["a, b = record.values.values()", "zip(one.measurements.values(), names)"],
    untold: ["glue('a', record.measurements['a'].median_s)", "it.limit_s(parts)"],
    measured_no_more: [f"gpus.hidden(A, ['{_LABEL}'])", f"it['{_LABEL}']"],
}
RIGHT = {
    by_position: ["a, b = it.values['a'], 1", "sum(one.values.values())", "x = it.values_s"],
    untold: ["tell('a', record, lambda it: it.measurements['a'], '')"],
    measured_no_more: [
        "it['computing alone']",  # the package names it
        f"ways[f'{{it}}{_LABEL[1:]}'] = it; it['{_LABEL}']",
        f"ways = {{'{_LABEL}': step}}; it['{_LABEL}']",
    ],
}


@pytest.mark.parametrize("found_in", WRONG)
def test_each_of_these_faults_would_be_found(found_in):
    assert all([*found_in(ast.parse(code))] for code in WRONG[found_in])
    assert not any([*found_in(ast.parse(code))] for code in RIGHT[found_in])


def test_a_figure_is_noisy_only_if_what_it_asks_for_is(extension):
    words = extension("told").words
    record = replace(
        ap.newest_record("e3_compute_and_copy"),
        measurements={
            label: ap.Measurement(label, tuple(1e-3 * int(digit) for digit in ms))
            for label, ms in {"a": "111", "b": "222", "both": "222", "noisy": "124"}.items()
        },
    )
    assert words(record, "a", ".1f ms") == "1.0 ms"
    assert words(record, "noisy", ".0f ms") == "2 ms (noisy)"
    assert words(record, lambda it: it.measurements["a"].median_s * 3e3, ".0f ×") == "3 ×"
    assert words(record, lambda it: it.limit_s(["a", "b"]), ".0f ms") == "2 ms"
    assert words(record, lambda it: it.hidden("both", ["a", "b"]).value, ".0f %") == "100 %"
    assert words(record, lambda it: it.limit_s(["a", "noisy"]), ".0f ms").endswith("(noisy)")
    share = words(record, lambda it: it.hidden("noisy", ["a", "b"]).value, ".0f %")
    assert share.endswith("(noisy)")


def test_numbers_of_several_places_are_told_with_their_own(extension, monkeypatch):
    told, glued = extension("told"), {}
    monkeypatch.setattr(told, "glue", lambda name, text, display: glued.update({name: text}))
    monkeypatch.setattr(told, "_numbers", {})
    here = ap.newest_record("e3_compute_and_copy")
    told.tell("one", here, lambda it: 0.5, ".0f %")
    told.tell_origins()
    assert glued["origins"] == f"Numbers in sentences: {here.origin}"
    there = replace(here, recorded_at="2020-01-01T00:00:00+00:00")
    for name, number in {"a": 3, "b": 4}.items():
        told.tell(name, there, lambda _, number=number: number, ".0f ×")
    told.tell_origins()
    numbers = f"50\N{NO-BREAK SPACE}%: {here.origin}; all others: {there.origin}"
    assert glued["origins"] == f"Numbers in sentences: {numbers}"
