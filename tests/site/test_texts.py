"""The form of pages of text: chapter, recipes, glossary, home; short, and with no typed numbers."""

import ast
import html
import re
from types import SimpleNamespace

import pytest
from reader import ROOT, SITE, needs_site

import autopar as ap

_DOCS = ROOT / "docs"
_SECTIONS = sorted((_DOCS / "chapter").glob("[0-9]_*.md"))
_MOST_WORDS = 4_500  # about twenty minutes
_MEASURED = re.compile(r"\d[\d.,]* ?(?:ms|µs|s|[GM]B(?:/s)?|TFLOP/s|%|×(?! \d))(?!\w)")

each_section = pytest.mark.parametrize("section", _SECTIONS, ids=lambda path: path.stem)


def prose(path):
    """What is read: no code, no options of cells, and a glued number as one word."""
    text = path.read_text(encoding="utf-8").partition("# ")[2]
    text = re.sub(r"(?s)```.*?```", "", text)
    return re.sub(r"\{glue:text\}`[^`]*`", "N", text)


def test_the_chapter_is_read_in_twenty_minutes():
    assert len(_SECTIONS) == 6
    pages = [_DOCS / "chapter" / "index.md", *_SECTIONS]
    assert 3_000 < sum(len(prose(page).split()) for page in pages) <= _MOST_WORDS


@each_section
def test_a_section_ends_in_a_question_a_page_to_run_and_what_became_of_its_claims(section):
    assert section.read_text("utf-8").endswith("\n\n```{verdicts}\n```\n")
    headings = re.findall(r"(?m)^## (.*)$", prose(section))
    assert headings[-2:] == ["Predict, then look", "Run it yourself"]
    question, run = re.split(r"## Predict, then look|## Run it yourself", prose(section))[1:]
    asked, _, answer = question.partition(":::{dropdown} Look\n")
    assert asked.strip().endswith("?")
    assert len(answer.split()) > 20
    assert "](../auto_gallery/" in run


@pytest.mark.parametrize("page", [*_SECTIONS, _DOCS / "recipes.md"], ids=lambda path: path.stem)
def test_no_measured_number_is_typed(page):
    assert _MEASURED.findall(prose(page)) == []


def test_a_typed_number_would_be_found():
    for typed in ("It takes 131.5 ms.", "98 % is hidden", "2 × as fast", "at 55 GB/s"):
        assert _MEASURED.search(typed)
    assert not _MEASURED.search("matrices of 64 × 64 on 2 GPUs, in 5 steps")


def test_all_five_exercises_have_a_folded_solution_with_a_link():
    parts = re.split(r"### Exercise \d: ", prose(_SECTIONS[-1]))[1:]
    solutions = [part.partition(":::{dropdown} A solution\n")[2] for part in parts]
    assert len(solutions) == 5
    assert all("](../auto_gallery/" in solution for solution in solutions)


def test_only_what_does_not_hold_is_told_at_length(extension, monkeypatch):
    claims, told = extension("claims"), []
    made = [ap.claim(f"{name}.", 1.0, at_least=least) for name, least in {"A": 1, "B": 2}.items()]
    monkeypatch.setattr(claims, "newest_claims", lambda page: told.append(page) or made)
    env = SimpleNamespace(docname="chapter/1", doc2path=lambda name: _SECTIONS[0])
    state = SimpleNamespace(document=SimpleNamespace(settings=SimpleNamespace(env=env)))
    summary, listed = claims.Verdicts(*[None] * 7, state, SimpleNamespace(reporter=None)).run()
    assert told == ["/auto_gallery/first_steps/plot_1_the_front_end_returns_first"]
    assert "2 claims (" in summary.astext()
    assert listed.astext().startswith("Does not hold here: B. 1; claimed: at least 2.")


def test_the_glossary_is_sorted_and_speaks_in_sentences():
    text = (_DOCS / "glossary.md").read_text(encoding="utf-8")
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


def test_the_pages_that_the_search_finds_first_are_there():
    text = (_DOCS / "_ext" / "search_order.js").read_text(encoding="utf-8")
    pages = re.findall(r'"auto_gallery/([\w/]+)"', text)
    assert pages
    assert all((ROOT / "gallery" / f"{page}.py").is_file() for page in pages)


@needs_site
def test_the_home_page_shows_both_ways_whole():
    page = (SITE / "index.html").read_text(encoding="utf-8")
    blocks = re.findall(r'<div class="highlight-python[^>]*>(.*?)</div>', page, re.DOTALL)
    one, two = (html.unescape(re.sub(r"<[^>]*>", "", block)).strip() for block in blocks)
    assert [each.name for each in ast.parse(one).body] == ["to_cpu", "one_stream"]
    assert isinstance(ast.parse(two).body[0], ast.For)
    assert len(two.splitlines()) == 6
