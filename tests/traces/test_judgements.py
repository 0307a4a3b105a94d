"""Judgements: traces with a known answer, each with a twin in which the cause is not there."""

import json
from pathlib import Path

import pytest
from trace_builder import costs, parsed

from autopar.traces.command import as_page, as_text, comparison
from autopar.traces.findings import CAUSES
from autopar.traces.report import Report

_TABLE = Path(__file__).parents[1] / "trace_data" / "judgements.txt"


def small(every_ms, ahead_ms):
    """A hundred short kernels, each launched some time before by an operator of its own."""
    of_one = "operator aten::add {:.3f}..{:.3f}; kernel {:.3f}..{:.3f} by {:.3f}"
    times = [(0.02 + i * every_ms, 0.02 + i * every_ms - ahead_ms) for i in range(100)]
    each = (of_one.format(by - 0.003, by + 0.006, t, t + 0.003, by) for t, by in times)
    return parsed("; ".join(each))


def following(every_ms, lasts_ms):
    starts = [i * every_ms for i in range(100)]
    return parsed("; ".join(f"kernel {t:.4f}..{t + lasts_ms:.4f}" for t in starts))


# What it is, its cause and cost in ms, the trace, and its twin: those of very many records.
JUDGEMENTS = [
    ("small kernels", "operators", 0.696, small(0.01, 0.006), small(0.01, 1)),
    ("17 µs of Python between", "operators", 2.478, small(0.028, 0.006), small(0.9, 0.006)),
    ("60 µs of Python between", "operators", 6.636, small(0.07, 0.006), small(0.9, 0.006)),
    ("kernels of 1.2 µs", "brief", 0.178, following(0.003, 0.0012), following(0.03, 0.0282)),
]
for block in _TABLE.read_text(encoding="utf-8").strip().split("\n\n")[1:]:
    answer, *texts = block.splitlines()
    what, _, known = answer.partition(" -> ")
    cause, cost = known.rsplit(" ", 1)
    JUDGEMENTS.append((what, cause, float(cost), *map(parsed, texts)))


@pytest.mark.parametrize(
    ("cause", "cost_ms", "seen", "twin"),
    [judgement[1:] for judgement in JUDGEMENTS],
    ids=[judgement[0] for judgement in JUDGEMENTS],
)
def test_a_cause_is_found_with_its_cost_and_not_in_its_twin(cause, cost_ms, seen, twin):
    assert costs(seen).get(cause) == pytest.approx(cost_ms, abs=1e-3)
    assert cause not in costs(twin)


@pytest.mark.parametrize(
    "said",
    [said for judgement in JUDGEMENTS for said in judgement[3:]],
    ids=[f"{what}, {which}" for what, *_ in JUDGEMENTS for which in ("seen", "twin")],
)
def test_every_finding_has_its_report(said):
    report = Report(said, name="t")
    sections = [*report.sections(), report.ranges(), comparison(report, report)]
    assert as_text(sections)
    assert as_page(sections, title="t")
    json.dumps(report.data(), allow_nan=False)
    headings = [section.heading for section in sections if section.level == 3]
    assert len(headings) == len(report.findings)


def test_every_cause_is_judged():
    assert {cause for _, cause, *_ in JUDGEMENTS} == CAUSES.keys()
    assert len(JUDGEMENTS) >= 60
