"""Showing a thing once: printed at a terminal, returned to a page."""

import sys
from types import SimpleNamespace

import pytest

from autopar import Span, Timeline
from autopar.display.show import RICH, rich, show
from autopar.display.text import picture


@pytest.fixture(autouse=True)
def _at_a_terminal(monkeypatch):
    monkeypatch.delenv(RICH, raising=False)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)


def ipython(shell):
    return SimpleNamespace(get_ipython=lambda: shell)


def test_at_a_terminal_it_is_printed_and_returned(capsys):
    thing = object()
    assert show(thing) is thing
    assert capsys.readouterr().out == f"{thing}\n\n"


@pytest.mark.parametrize(("rank", "printed"), [("0", "3\n\n"), ("1", "")])
def test_of_several_ranks_the_first_prints(monkeypatch, capsys, rank, printed):
    monkeypatch.setenv("RANK", rank)
    assert show(3) == 3
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("where", ["docs", "notebook"])
def test_on_a_page_it_is_only_returned(monkeypatch, capsys, where):
    if where == "docs":
        monkeypatch.setenv(RICH, "1")
    else:
        monkeypatch.setitem(sys.modules, "IPython", ipython(object()))
    assert rich()
    assert show("a table") == "a table"
    assert capsys.readouterr().out == ""


def test_ipython_that_was_only_imported_shows_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", ipython(None))
    assert not rich()


@pytest.mark.parametrize(("gap", "shown"), [(2e-4, "#" * 60), (1.0, "#" * 10 + " " + "#" * 49)])
def test_only_a_gap_of_about_a_character_is_seen_in_text(gap, shown):
    run = Timeline([Span("a", "lane", 0, 10.4999), Span("b", "lane", 10.4999 + gap, 60)])
    assert f"|{shown}|" in picture(run, 60.0)[1]
