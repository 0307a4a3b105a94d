"""The form of the chapter and the recipes, by their source: short, and with no typed numbers."""

import re
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[2] / "docs"
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
