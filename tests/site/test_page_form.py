"""The form of the gallery's pages, by their source: short, in lessons, with an answer that runs."""

import ast
import builtins
import importlib
import inspect
import re
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from types import FunctionType

import pytest
from sphinx_gallery import py_source_parser as parser

_GALLERY = Path(__file__).parents[2] / "gallery"
_PAGES = sorted(_GALLERY.rglob("plot_*.py"))
_LEAST = 90
_MOST = 160  # lines, of any kind
_LONGEST = 15  # such lines of a cell
_FOLDED = "# Folded: "
_PURE = {"dict", "len", "list", "max", "min", "range", "round", "sorted", "sum", "tuple"}
_ON_GPU = re.compile(r"\b(cuda\w*|gpus?)\b")

each_page = pytest.mark.parametrize(
    "page", _PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}"
)


def blocks(page, kind):
    """The cells of code, or the prose between them, as sphinx-gallery reads them."""
    return [one.content for one in parser.split_code_and_text_blocks(page)[1] if one.type == kind]


def inside(text, directive):
    """What stands below a directive, deeper than it, or nothing."""
    before, found, after = text.partition(f".. {directive}\n")
    edge = before.rpartition("\n")[2] + " "
    lines = takewhile(lambda line: not line.strip() or line.startswith(edge), after.split("\n"))
    return dedent("\n".join(lines)) if found else ""


def answer(page):
    """The code in the page's answer."""
    text = "\n".join(blocks(page, "text"))
    return inside(inside(text, "dropdown:: An answer"), "code-block:: python")


def faults(page):
    """What a page lacks, in words."""
    text = page.read_text(encoding="utf-8")
    opening, *prose = blocks(page, "text")
    if not _LEAST <= (count := len(text.splitlines())) <= _MOST:
        yield f"{count} lines"
    for cell in blocks(page, "code"):
        lines = [line for line in cell.splitlines() if line.strip(" #")]
        if len(lines) > _LONGEST and not lines[0].startswith(_FOLDED):
            yield f"a cell of {len(lines)} lines: {lines[0]}"
    for words in ("You'll do:", "You'll learn:", "You need:"):
        if words not in opening:
            yield f"no {words}"
    if not re.search(r"\b\d+ minutes?\b", opening):
        yield "no minutes"
    if (count := text.count(":doc:`")) < 2:
        yield f"{count} links to other pages"
    after = "\n".join(prose).partition("Now you\n-------")[2]
    for title in ("A hint", "An answer"):
        if not inside(after, f"dropdown:: {title}").strip():
            yield f"no {title.lower()} below Now you"
    if not answer(page):
        yield "no code in its answer"
    if not text.startswith(f'# {importlib.import_module("addresses").INSTALL}\n"""\n'):
        yield "no install line to begin with"


def test_pages_have_the_form_of_a_lesson():
    found = {str(page.relative_to(_GALLERY)): list(faults(page)) for page in _PAGES}
    said = [f"{page}: {'; '.join(why)}" for page, why in found.items() if why]
    assert not said, "\n".join(["these pages do not have it:", *said])


def definitions(page):
    """A page's functions and constants, and all names that it has: nothing is measured for it."""
    module, namespace = ast.parse(page.read_text(encoding="utf-8")), {"__name__": page.stem}
    for node in module.body:
        calls = {ast.unparse(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
        plain = isinstance(node, ast.Assign) and calls <= _PURE
        if plain or isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
            try:
                exec(compile(ast.Module([node], []), str(page), "exec"), namespace)
            except (NameError, KeyError):  # made of what is measured
                assert plain
    stored = (one for one in ast.walk(module) if isinstance(one, ast.Name | ast.FunctionDef))
    return namespace, {one.id if isinstance(one, ast.Name) else one.name for one in stored}


@each_page
def test_the_answer_runs_where_the_page_does(page, extension):
    code = answer(page)
    namespace, named = definitions(page)
    before = dict(namespace)
    exec(compile(code, f"{page.name}: answer", "exec"), namespace)
    own = {name: value for name, value in namespace.items() if value is not before.get(name)}
    assert own.keys() - {"__builtins__"}, "it defines nothing"
    used = extension("machines").used(ast.parse(code)) - namespace.keys() - set(dir(builtins))
    assert used <= named, "it uses what the page does not have"
    for function in (value for value in own.values() if isinstance(value, FunctionType)):
        parameters = inspect.signature(function).parameters.values()
        needs = [one for one in parameters if one.default is one.empty and str(one)[0] != "*"]
        if not needs and not used and not _ON_GPU.search(code):
            function()


def test_parts_of_a_page_are_found():
    prose = "Now\n.. dropdown:: A hint\n\n  Wait.\n\n.. dropdown:: B\n\n  So:\n  .. c::\n\n    1"
    assert inside(prose, "dropdown:: A hint").strip() == "Wait."
    assert inside(prose, "dropdown:: B").strip().startswith("So:")
    assert inside(inside(prose, "dropdown:: B"), "c::").strip() == "1"
    assert inside(prose, "dropdown:: Another") == ""
