"""Trace files: what a viewer reads, and that a file is whole or not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autopar.span import Span, Timeline
from autopar.traces import trace_events, write_trace

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
        ("gemm", "compute", 0.0, pytest.approx(3000.0), 1),
        ("D2H", "copy", pytest.approx(3000.0), pytest.approx(1500.0), 2),
        ("gemm 2", "compute", pytest.approx(3000.0), pytest.approx(3000.0), 1),
    ]


def test_lanes_are_named_threads_in_the_order_of_first_use() -> None:
    events = [event for event in trace_events(run)["traceEvents"] if event["ph"] == "M"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert names == {1: "GPU 0 stream 7", 2: "GPU 0 D2H"}
    assert order == {1: 1, 2: 2}
    assert len({event["pid"] for event in trace_events(run)["traceEvents"]}) == 1


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
