"""The page on graphs: what it shows is what comes."""

import doctest
from pathlib import Path

import pytest

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")


def test_the_examples_of_the_page_are_true():
    page = Path(__file__).parents[2] / "docs" / "reference" / "graph.rst"
    failed, tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert (failed, tried > 5) == (0, True)


def test_an_unchecked_run_keeps_no_order_of_what_python_holds_and_a_checked_one_does():
    graph, seen = TaskGraph(cpu_lanes=2), []
    for n in range(2):
        graph.add(lambda n: seen.append(n), n)
    assert graph.plan().nodes[1].before == set()
    graph.run()
    graph.check()
    assert graph.plan().nodes[1].before == {0}
