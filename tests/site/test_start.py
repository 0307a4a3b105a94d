"""Where readers begin: words, the home page, and the first program."""

import ast
import html
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes

from autopar import read_trace

DOCS = Path(__file__).parents[2] / "docs"
SITE = DOCS / "_build" / "html"


def test_the_glossary_is_sorted_and_speaks_in_sentences():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^(\S.*)\n((?:  .*\n)+)", text.partition("{glossary}\n")[2], re.MULTILINE)
    terms = [term for term, _ in entries]
    assert len(terms) >= 30
    assert terms == sorted(terms, key=str.casefold)
    for term, lines in entries:
        words = re.sub(r"\s+", " ", re.sub(r"```.*?```", "", lines, flags=re.DOTALL)).strip()
        sentences = re.split(r"(?<=\.) (?=[A-Z`\[])", words)
        assert 1 <= len(sentences) <= 2, term
        assert all(each.endswith(".") for each in sentences), term
        verb = r"\b(is|are|say|holds|stands|begins|shows|happens|overlap|was|says)"
        assert re.search(verb, sentences[0]), term


def test_the_search_reads_prose_and_no_outputs(extension):
    output = nodes.container("", nodes.paragraph(text="0.5 ms"), classes=["cell_output"])
    drawing = nodes.raw("", "<svg/>", format="html")
    document = nodes.document(None, None)
    document += [output, nodes.paragraph(text="prose"), drawing]
    left_out = []

    def index_page(page, doctree, title):
        left_out.extend("no-search" in each["classes"] for each in doctree)

    builder = SimpleNamespace(index_page=index_page)
    extension("search_words").leave_outputs_out(SimpleNamespace(builder=builder))
    builder.index_page("page", document, "Page")
    assert left_out == [True, False, True]
    assert drawing["classes"] == []  # or its HTML would get a box


@pytest.mark.skipif(not SITE.exists(), reason="no site in docs/_build/html: run `nox -s docs`")
def test_the_home_page_shows_both_ways_whole():
    page = (SITE / "index.html").read_text(encoding="utf-8")
    blocks = re.findall(r'<div class="highlight-python[^>]*>(.*?)</div>', page, re.DOTALL)
    one, two = (html.unescape(re.sub(r"<[^>]*>", "", block)).strip() for block in blocks)
    assert [each.name for each in ast.parse(one).body] == ["to_cpu", "one_stream"]
    assert isinstance(ast.parse(two).body[0], ast.For)
    assert len(two.splitlines()) == 6


def blocks(name):
    """The code of a page under a name."""
    text = (DOCS / "five_minutes.md").read_text(encoding="utf-8")
    return re.search(rf":name: {name}\n(.*?)```", text, re.DOTALL)[1]


def run(program, folder):
    (folder / "program.py").write_text(program, encoding="utf-8")
    subprocess.run([sys.executable, "program.py"], cwd=folder, check=True, timeout=50)
    return read_trace(folder / "trace.json").hidden()


def test_the_program_of_five_minutes_and_its_mended_step_fit_together():
    program, mended = blocks("five-minutes-program"), blocks("five-minutes-mended")
    compile(with_step(program, mended), "program.py", "exec")


def with_step(program, mended):
    before, step, after = re.split(r"(def step\(\):\n(?:    .*\n)+)", program)
    assert step.count("\n") == 3
    return f"{before}{mended}\n\n{after}"


@pytest.mark.gpu
def test_the_program_of_five_minutes_hides_nothing_until_it_is_mended(tmp_path):
    program, mended = blocks("five-minutes-program"), blocks("five-minutes-mended")
    assert run(program, tmp_path) < 0.1
    assert run(with_step(program, mended), tmp_path) > 0.5
