"""The form of the chapter and the recipes, by their source: short, and with no typed numbers."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import autopar as ap

_DOCS = Path(__file__).parents[2] / "docs"
_SECTIONS = sorted((_DOCS / "chapter").glob("[0-9]_*.md"))
_MOST_WORDS = 4_500  # about twenty minutes
_MEASURED = re.compile(r"\d[\d.,]* ?(?:ms|µs|s|[GM]B(?:/s)?|TFLOP/s|%|×(?! \d))(?!\w)")

_TIMES = {"measurements", "values_s", "median_s", "min_s", "limit_s", "estimate"}  # of a record
_OTHERS = "index", "book_against_hardware"  # pages that tell of records, too
_SHOWS = {"tell", "words", "ap.compare", "ap.draw"}  # what says by itself which of them are noisy

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
def test_a_section_ends_in_a_question_and_a_page_to_run(section):
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


def code_of(page):
    """What the cells of a page run, as one program."""
    cells = re.findall(
        r"(?ms)^```\{code-cell\} python3\n(?::tags:.*?\n)?(.*?)^```$", page.read_text("utf-8")
    )
    return ast.parse("\n".join(cells))


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


@pytest.mark.parametrize(
    "page", [*_SECTIONS, *(_DOCS / f"{name}.md" for name in _OTHERS)], ids=lambda path: path.stem
)
def test_each_time_in_a_sentence_is_told_with_its_noise(page):
    assert list(untold(code_of(page))) == []


def test_a_time_that_is_glued_by_hand_would_be_found():
    found = untold(ast.parse('glue("a", 1e3 * record.measurements["a"].median_s)'))
    assert list(found) == ["record.measurements['a'].median_s", "record.measurements"]
    assert not list(untold(ast.parse('tell("a", record, lambda it: it.measurements["a"], "")')))


@each_section
def test_a_section_ends_with_what_became_of_its_claims(section):
    assert section.read_text("utf-8").endswith("\n\n```{verdicts}\n```\n")


def test_only_what_does_not_hold_is_told_at_length(extension, monkeypatch):
    claims, told = extension("claims"), []
    made = [ap.claim(f"{name}.", 1.0, at_least=least) for name, least in {"A": 1, "B": 2}.items()]
    monkeypatch.setattr(claims, "newest_claims", lambda page: told.append(page) or made)
    env = SimpleNamespace(docname="chapter/1", doc2path=lambda name: _SECTIONS[0])
    document = SimpleNamespace(settings=SimpleNamespace(env=env))
    directive = claims.Verdicts(
        *[None] * 6, 0, SimpleNamespace(document=document), SimpleNamespace(reporter=None)
    )
    summary, listed = directive.run()
    assert told == ["/auto_gallery/first_steps/plot_1_the_front_end_returns_first"]
    assert "2 claims (" in summary.astext()
    assert listed.astext().startswith("Does not hold here: B. 1; claimed: at least 2.")
