"""The page on graphs: what it shows is what comes."""

import doctest
from pathlib import Path


def test_the_examples_of_the_page_are_true():
    page = Path(__file__).parents[2] / "docs" / "reference" / "graph.rst"
    failed, tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert (failed, tried > 5) == (0, True)
