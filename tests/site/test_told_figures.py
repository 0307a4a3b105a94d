"""Figures that pages take from records: by name, noisy only where they are, with their place."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

import autopar as ap

_ROOT = Path(__file__).parents[2]
_PAGES = [*(_ROOT / "gallery").rglob("plot_*.py")]
_PAGES += [*(_ROOT / "docs").glob("*.md"), *(_ROOT / "docs").glob("[!_a]*/*.md")]
_CELL = re.compile(r"(?ms)^```\{code-cell\} python3\n(?::tags:.*?\n)?(.*?)^```$")
_OF_RECORDS = {"measurements", "values", "timelines", "checks", "parameters"}
_BY_PLACE = {"zip", "enumerate", "next", "list", "tuple"}


def code_of(page):
    text = page.read_text(encoding="utf-8")
    return ast.parse(text if page.suffix == ".py" else "\n".join(_CELL.findall(text)))


def by_position(code):
    """Where figures of a record are told apart by their place, which another record may change."""
    for node in ast.walk(code):
        unpacks = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
        pairs = isinstance(node, ast.Call) and ast.unparse(node.func) in _BY_PLACE
        for inner in ast.walk(node) if unpacks or pairs else ():
            walks = isinstance(inner, ast.Attribute) and inner.attr == "values"
            if walks and getattr(inner.value, "attr", "") in _OF_RECORDS:
                yield ast.unparse(node)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_no_figure_of_a_record_is_taken_by_its_position(page):
    assert list(by_position(code_of(page))) == []


def test_a_figure_by_its_position_would_be_found():
    for wrong in ("a, b = record.values.values()", "zip(one.measurements.values(), names)"):
        assert list(by_position(ast.parse(wrong)))
    for right in ("a, b = record.values['a'], 1", "sum(one.values.values())", "x = it.values_s"):
        assert not list(by_position(ast.parse(right)))


def test_a_figure_is_noisy_only_if_what_it_asks_for_is(extension):
    words = extension("told").words
    record = replace(
        ap.newest_record("e3_compute_and_copy"),
        measurements={
            "a": ap.Measurement("a", (1e-3, 1e-3, 1e-3)),
            "b": ap.Measurement("b", (2e-3, 2e-3, 2e-3)),
            "both": ap.Measurement("both", (2e-3, 2e-3, 2e-3)),
            "noisy": ap.Measurement("noisy", (1e-3, 2e-3, 4e-3)),
        },
    )
    assert words(record, "a", ".1f ms") == "1.0 ms"
    assert words(record, "noisy", ".0f ms") == "2 ms (noisy)"
    assert words(record, lambda it: it.measurements["a"].median_s * 3e3, ".0f ×") == "3 ×"
    assert words(record, lambda it: it.limit_s(["a", "b"]), ".0f ms") == "2 ms"
    assert words(record, lambda it: it.hidden("both", ["a", "b"]).value, ".0f %") == "100 %"
    assert words(record, lambda it: it.limit_s(["a", "noisy"]), ".0f ms").endswith("(noisy)")
    assert words(record, lambda it: it.hidden("noisy", ["a", "b"]).value, ".0f %").endswith(
        "(noisy)"
    )


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
