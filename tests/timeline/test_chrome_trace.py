"""Trace files: what a viewer reads, and that a file is whole or not there."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from autopar.timeline.chrome_trace import trace_events, write_trace
from autopar.timeline.span import Span, Timeline
from autopar.traces.read import read_trace

run = Timeline(
    (
        Span("D2H", "GPU 0 D2H", 100.003, 100.0045, "copy"),
        Span("gemm", "GPU 0 stream 7", 100.0, 100.003),
        Span("gemm 2", "GPU 0 stream 7", 100.003, 100.006),
    ),
    alignment_error_s=2e-6,
    origin="recorded on two GPUs",
)


def test_spans_become_events_in_microseconds_from_zero() -> None:
    events = [event for event in trace_events(run)["traceEvents"] if event["ph"] == "X"]
    assert [(e["name"], e["cat"], e["ts"], e["dur"], e["tid"]) for e in events] == [
        ("gemm", "compute", 0.0, pytest.approx(3000.0), 2),
        ("gemm 2", "compute", pytest.approx(3000.0), pytest.approx(3000.0), 2),
        ("D2H", "copy", pytest.approx(3000.0), pytest.approx(1500.0), 3),
    ]


def test_lanes_are_named_threads_in_the_order_of_first_use() -> None:
    events = [event for event in trace_events(run)["traceEvents"] if event["ph"] == "M"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert names == {2: "GPU 0 stream 7", 3: "GPU 0 D2H"}
    assert order == {2: 2, 3: 3}
    assert len({event["pid"] for event in trace_events(run)["traceEvents"]}) == 1


def spans_by_thread(timeline: Timeline) -> dict[int, list[tuple[float, float]]]:
    """Start and end of each event, in nanoseconds."""
    threads: dict[int, list[tuple[float, float]]] = {}
    for each in trace_events(timeline)["traceEvents"]:
        if each["ph"] == "X":
            start = round(1e3 * each["ts"])
            threads.setdefault(each["tid"], []).append((start, start + round(1e3 * each["dur"])))
    return threads


def crosses(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether one begins within the other and ends after it."""
    return one[0] < other[0] < one[1] < other[1]


def test_spans_that_cross_are_in_threads_of_the_same_name(tmp_path: Path) -> None:
    times = [(0, 4), (1, 2), (1, 2), (3, 5), (3, 3), (4, 6), (7, 7), (4, 8), (9, 9.5)]
    crossing = Timeline(tuple(Span(f"copy {n}", "D2H", *each) for n, each in enumerate(times)))
    threads = spans_by_thread(crossing)
    assert [len(own) for own in threads.values()] == [8, 1]
    write_trace(crossing, tmp_path / "run.json")
    again = read_trace(tmp_path / "run.json")
    assert again.lanes == ("D2H",)
    assert {(s.name, s.start_s, s.end_s) for s in again.spans} == {
        (s.name, s.start_s, s.end_s) for s in crossing.spans
    }


@pytest.mark.parametrize("seed", range(20))
def test_no_two_spans_of_a_thread_cross(seed: int) -> None:
    chance = random.Random(seed)
    start_s = chance.choice([0.0, 1e3, 1.7e9])
    ends = [start_s + 1e-8 * chance.random()]
    while len(ends) < 200:  # each begins where the one before ends, or anywhere
        ends.append(ends[-1] + 1e-8 * chance.random())
    spans = [Span("a", "lane", a, b) for a, b in pairwise(ends)]
    spans += [Span("b", "lane", *sorted(chance.sample(ends, 2))) for _ in range(50)]
    for own in spans_by_thread(Timeline(tuple(spans))).values():
        assert not any(crosses(one, other) for one in own for other in own)


def test_spans_that_touch_share_a_thread() -> None:
    ends = [1e3 + 1.37e-9 * n for n in range(1000)]
    touching = Timeline(tuple(Span("a", "lane", a, b) for a, b in pairwise(ends)))
    assert len(spans_by_thread(touching)) == 1


def test_names_are_written_as_they_are(tmp_path: Path) -> None:
    names = ["größe", "漢字", 'a "quoted" name', "half a pair \ud800"]
    spans = (Span(name, "Bahn größer", n, n + 1) for n, name in enumerate(names))
    write_trace(Timeline(tuple(spans)), tmp_path / "run.json")
    assert "größe" in (tmp_path / "run.json").read_text(encoding="utf-8")
    again = read_trace(tmp_path / "run.json")
    assert [span.name for span in again.spans] == [*names[:3], "half a pair ?"]


def test_a_trace_says_where_it_is_from() -> None:
    trace = trace_events(run)
    assert trace["otherData"] == {"origin": "recorded on two GPUs", "alignment_error_s": 2e-6}
    assert trace["displayTimeUnit"] == "ms"


def test_no_spans_no_events() -> None:
    assert not [e for e in trace_events(Timeline(()))["traceEvents"] if e["ph"] == "X"]


@pytest.mark.parametrize("kind", [str, Path])
def test_write_replaces_a_file_and_leaves_no_other(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    write_trace(run, kind(path))
    assert json.loads(path.read_text()) == trace_events(run)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")

    def full(*_: object) -> None:
        msg = "disk full"
        raise OSError(msg)

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_trace(run, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing"):
        write_trace(run, tmp_path / "missing" / "run.json")
