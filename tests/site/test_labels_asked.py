"""Labels that pages ask records for: some code must still measure under each of them."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import autopar as ap
from autopar.records.store import FOLDER, load_record

_ROOT = Path(__file__).parents[2]
_SCRIPTS = sorted((_ROOT / "gallery").rglob("plot_*.py"))
_REPLACED = {"products on one", "steps on one"}  # made by `str.replace` of others
_ASKING = {"hidden", "limit_s", "select"}  # methods that are given labels


def strings(code):
    """The strings of some code, whole."""
    nodes = ast.walk(code)
    return {it.value for it in nodes if isinstance(it, ast.Constant) and isinstance(it.value, str)}


def asked_and_other(code):
    """The strings that look something up, and all others."""
    asked = set()
    for node in ast.walk(code):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            asked |= strings(node.slice)
            node.slice = ast.Constant(0)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _ASKING:
            asked |= {text for argument in node.args for text in strings(argument)}
            node.args = []
    return asked, strings(code)


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
    return {text for path in sources for text in strings(ast.parse(path.read_text("utf-8")))}


def composed(code):
    """A pattern for each string with fields that has a word of its own."""
    for node in ast.walk(code):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            if any(re.search(r"[a-zA-Z]{3}", part or "") for part in parts):
                yield "".join(".+" if part is None else re.escape(part) for part in parts)


def measured_no_more(script):
    """The labels that a script asks a record for, and that neither it nor the package makes."""
    code = ast.parse(script)
    asked, other = asked_and_other(code)
    known, patterns = other | named_in_the_package() | _REPLACED, list(composed(code))
    unknown = asked & labels() - known
    return {text for text in unknown if not any(re.fullmatch(it, text) for it in patterns)}


@pytest.mark.parametrize("path", _SCRIPTS, ids=lambda path: path.stem)
def test_no_page_asks_for_a_label_that_its_experiment_measures_no_more(path):
    assert measured_no_more(path.read_text("utf-8")) == set()


def test_such_a_label_would_be_found():
    assert measured_no_more("gpus.hidden(A, ['all buckets alone'])") == {"all buckets alone"}
    assert measured_no_more("it['forward alone']") == {"forward alone"}
    assert not measured_no_more("it['computing alone']")  # the package names it
    assert not measured_no_more("ways[f'{it} buckets alone'] = it; it['all buckets alone']")
    assert not measured_no_more("ways = {'forward alone': step}; it['forward alone']")
