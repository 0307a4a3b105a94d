"""What pages claim and what tools reach by the records of each machine, on the site."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import autopar as ap

SCRIPT = """
import autopar as ap
import math
LEAST = {"a": 1.0}
LEAST["a"] = 2.0
def measure(count):
    return expensive(count)
def figure(seconds):
    return math.floor(seconds["x"]) * LEAST["a"]
for seconds in expensive():
    seconds = [count for count in expensive()]
other = ap.observed(measure, name="here", parameters={})
unused = expensive()
record = ap.recorded(measure, name="one", parameters={"count": 3})
ap.show(
    ap.claim("A.", record.estimate(figure), at_least=1),
    ap.claim("B.", other.estimate(figure), at_least=1),
)
"""


@pytest.fixture
def machines(extension):
    machines = extension("machines")
    machines.comparable.cache_clear()
    yield machines
    machines.comparable.cache_clear()


def test_a_claim_is_told_by_another_record_and_runs_no_more_than_it_needs(machines):
    measured = {"x": ap.Measurement("x", (3.5, 3.5, 3.5))}
    record = ap.newest_record("e3_compute_and_copy")
    right = replace(record, measurements=measured, parameters={"count": 3})
    script = machines.without_experiments(ast.parse(SCRIPT))
    (needed, first), (_, second) = machines.claims_in(script.body)
    assert not [one for one in map(ast.unparse, needed) if "expensive" in one]
    told = machines.told_by({"one": right}, needed, first)
    assert (told.sentence, told.estimate.value) == ("A.", 6.0)
    assert machines.told_by({}, needed, first) is None
    other = replace(right, parameters={"count": 4})
    assert machines.told_by({"one": other}, needed, first) is None
    assert machines.told_by({"one": record}, needed, second) is None  # kept in no record


def test_records_that_measured_something_else_are_not_compared(machines, monkeypatch):
    newest = ap.newest_record("e3_compute_and_copy")
    fewer = {label: it for label, it in newest.measurements.items() if label != "one stream"}
    old = replace(newest, measurements=fewer, recorded_at="2025-01-01T00:00:00+00:00")
    by_machine = {"new": {newest.experiment: newest}, "old": {newest.experiment: old}}
    monkeypatch.setattr(machines, "records_by_machine", lambda: by_machine)
    assert machines.comparable() == {"new": by_machine["new"], "old": {}}
    more = {**newest.measurements, "on more GPUs": newest.measurements["one stream"]}
    by_machine["old"][newest.experiment] = replace(old, measurements=more)
    machines.comparable.cache_clear()
    assert machines.comparable() == by_machine, "its twin has all, and more"


def test_claims_are_told_without_drawing_and_as_on_the_pages(machines, extension, monkeypatch):
    def draws(figure, *args, **kwargs):
        msg = "a statement that a claim needs draws: give the drawing a statement of its own"
        raise AssertionError(msg)

    monkeypatch.setattr(Figure, "__init__", draws)
    machines.claims_by_machine.cache_clear()
    told = {
        (one.page, claim.sentence, claim.measured, claim.verdict, claim.estimate.origin)
        for one in machines.claims_by_machine()
        for claim in one.by_machine.values()
    }
    assert len(told) > 30
    names = "sentence", "measured", "verdict", "origin"
    there = {
        (page, *(claim[name] for name in names))
        for page, claim in extension("claims").collected()  # none, where no page has run
        if claim["origin"].startswith("recorded")
    }
    assert there <= told


def test_what_holds_is_counted_first_on_each_machine(extension):
    counted = extension("claims").counted
    assert counted(["missed", "missed", "met"], "goal") == "3 goals (met: 1, missed: 2)"
    assert counted(["met", "met", "missed"], "goal") == "3 goals (met: 2, missed: 1)"


def test_each_goal_is_told_once_below_the_section_of_its_table(extension):
    goals = extension("goals")
    told = list(goals.told_goals())
    named = [next(iter(by_machine.values())).sentence for _, by_machine in told]
    assert len(named) == len(set(named)) > len(goals.FIGURES)
    for _, by_machine in told:
        for one in by_machine.values():
            assert one.verdict in ("met", "missed")
            assert re.search(r"\d{4}-\d\d-\d\d$", one.sure)
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert {section for section, _ in told} <= set(re.findall(r"^## (.*)$", page, re.MULTILINE))


def test_the_goal_to_look_at_is_missed_by_the_largest_factor(extension, monkeypatch):
    goals = extension("goals")
    record = ap.newest_record("b5_cost")
    text = "{:.0f}".format
    wanted = [("least", 9, "at least", 10, text), ("most", 15, "at most", 10, text)]
    given = record, lambda *_: wanted
    assert [round(goals.missed_by(*given, i), 2) for i in (0, 1)] == [1.11, 1.5]
    monkeypatch.setattr(goals, "FIGURES", (("A section", "b5_cost", given[1]),))
    monkeypatch.setattr(goals, "comparable", lambda: {"a machine": {"b5_cost": record}})
    assert goals.to_look_at() == "Look at 'most' of a machine, missed by most: 15, at most 10."
    wanted[:] = [("none", count, "at most", 0, text) for count in (0, 1)]
    assert [goals.missed_by(*given, i) for i in (0, 1)] == [1, float("inf")]


def test_a_goal_is_met_or_missed_by_its_numbers_and_not_by_their_texts(extension):
    against, percent = extension("goals").against, "{:.0%}".format
    assert against(0.97, "at least", 0.97, percent) == ("97%", "met")
    assert against(0.969, "at least", 0.97, percent) == ("under 97%", "missed")
    assert against(20.4, "at most", 20.0, "{:.0f}".format) == ("over 20", "missed")
    assert against(19.0, "at most", 20.0, str) == ("19.0", "met")
    assert against(float("nan"), "at most", 20.0, str) == ("nan", "missed")
