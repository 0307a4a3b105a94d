"""The form of the gallery's pages, by their source: short, in lessons, with an answer that runs."""

import ast
import builtins
import dis
import inspect
import re
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from types import CodeType, FunctionType

import pytest

parser = pytest.importorskip(
    "sphinx_gallery.py_source_parser", reason="it comes with the group docs"
)

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


def dropdown(prose, title):
    """What stands in a box that opens, or nothing."""
    before, found, after = prose.partition(f".. dropdown:: {title}\n")
    if not found:
        return ""
    edge = before.rpartition("\n")[2]
    inside = takewhile(
        lambda line: not line.strip() or line.startswith(f"{edge} "), after.split("\n")
    )
    return dedent("\n".join(inside))


def answer(page):
    """The code in the page's answer."""
    _, found, after = dropdown("\n".join(blocks(page, "text")), "An answer").partition(
        ".. code-block:: python\n"
    )
    inside = takewhile(lambda line: not line.strip() or line.startswith(" "), after.split("\n"))
    return dedent("\n".join(inside)) if found else ""


def written(text):
    """The lines of a text that are not blank."""
    return [line for line in text.splitlines() if line.strip(" #")]


def faults(page):
    """What a page lacks, in words."""
    text = page.read_text(encoding="utf-8")
    opening, *prose = blocks(page, "text")
    cells = [written(cell) for cell in blocks(page, "code")]
    if not _LEAST <= (count := len(text.splitlines())) <= _MOST:
        yield f"{count} lines"
    for lines in cells:
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
        if not dropdown(after, title).strip():
            yield f"no {title.lower()} below Now you"
    if not answer(page):
        yield "no code in its answer"


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


def globals_of(code):
    """The names that code looks up in its module."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from globals_of(inner)


@each_page
def test_the_answer_runs_where_the_page_does(page):
    code = answer(page)
    if not code:
        pytest.skip("there is none, as the test of the form says")
    namespace, named = definitions(page)
    before = dict(namespace)
    exec(compile(code, f"{page.name}: answer", "exec"), namespace)
    own = {name: value for name, value in namespace.items() if value is not before.get(name)}
    functions = [value for value in own.values() if isinstance(value, FunctionType)]
    assert own.keys() - {"__builtins__"}, "it defines nothing"
    for function in functions:
        unknown = set(globals_of(function.__code__)) - named - namespace.keys() - set(dir(builtins))
        assert not unknown, f"{function.__name__} uses what the page does not have"
        needs = [
            one.name
            for one in inspect.signature(function).parameters.values()
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
        used = set(globals_of(function.__code__)) & (named - namespace.keys())
        if not needs and not used and not _ON_GPU.search(code):
            function()


def test_parts_of_a_page_are_found():
    prose = (
        "Now you\n-------\n.. dropdown:: A hint\n\n    Wait.\n\n.. dropdown:: An answer\n\n    So."
    )
    assert dropdown(prose, "A hint").strip() == "Wait."
    assert dropdown(prose, "An answer").strip() == "So."
    assert dropdown(prose, "Another") == ""
