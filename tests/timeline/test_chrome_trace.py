"""Trace files: what a viewer reads."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar import Span, Timeline, read_trace, write_trace
from autopar.timeline.chrome_trace import trace_bytes
from autopar.traces.trace import TraceError

RUN = Timeline(
    (
        Span("D2H", "GPU 0 D2H", 100.003, 100.0045, "copy"),
        Span("gemm", "GPU 0 stream 7", 100.0, 100.003),
        Span("gemm 2", "GPU 0 stream 7", 100.003, 100.006),
    ),
    alignment_error_s=2e-6,
    origin="recorded on two GPUs",
)


def events(timeline, phase):
    trace = json.loads(trace_bytes(timeline))
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def test_spans_are_events_in_microseconds_from_zero_in_threads_named_like_lanes():
    shown = [(e["name"], e["cat"], e["ts"], e["dur"], e["tid"]) for e in events(RUN, "X")]
    assert shown == [
        ("gemm", "compute", 0.0, pytest.approx(3000.0), 2),
        ("gemm 2", "compute", pytest.approx(3000.0), pytest.approx(3000.0), 2),
        ("D2H", "copy", pytest.approx(3000.0), pytest.approx(1500.0), 3),
    ]
    told = [(e["name"], e["tid"], *e["args"].values()) for e in events(RUN, "M")]
    assert told == [
        ("process_name", 0, "autopar"),
        ("thread_name", 2, "GPU 0 stream 7"),
        ("thread_sort_index", 2, 2),
        ("thread_name", 3, "GPU 0 D2H"),
        ("thread_sort_index", 3, 3),
    ]
    assert {event["pid"] for phase in "XM" for event in events(RUN, phase)} == {1}
    trace = json.loads(trace_bytes(RUN))
    assert trace["otherData"] == {"origin": "recorded on two GPUs", "alignment_error_s": 2e-6}
    assert trace["displayTimeUnit"] == "ms"
    assert events(Timeline(()), "X") == []


def test_a_trace_of_no_spans_says_so_when_it_is_read(tmp_path):
    write_trace(Timeline(()), tmp_path / "run.json")
    with pytest.raises(TraceError, match="it is of a timeline without spans"):
        read_trace(tmp_path / "run.json")


def spans_by_thread(timeline):
    """Start and end of each event, in nanoseconds."""
    threads = {}
    for event in events(timeline, "X"):
        start = round(1e3 * event["ts"])
        spans = threads.setdefault(event["tid"], [])
        spans.append((start, start + round(1e3 * event["dur"])))
    return threads


def test_spans_that_cross_are_in_threads_of_the_same_name(tmp_path):
    times = [(0, 4), (1, 2), (1, 2), (3, 5), (3, 3), (4, 6), (7, 7), (4, 8), (9, 9.5)]
    crossing = Timeline([Span(f"copy {n}", "D2H", *pair) for n, pair in enumerate(times)])
    assert [len(spans) for spans in spans_by_thread(crossing).values()] == [8, 1]
    write_trace(crossing, tmp_path / "run.json")
    assert read_trace(tmp_path / "run.json").lanes == ("D2H",)


@settings(max_examples=60)
@given(
    st.sampled_from([0.0, 1e3, 1.7e9]),
    st.lists(st.floats(0, 1e-8), min_size=20, max_size=60),
    st.data(),
)
def test_no_two_spans_of_a_thread_cross_and_those_that_touch_share_one(start_s, steps_s, data):
    ends = [start_s]
    for step_s in steps_s:  # each begins where the one before ends
        ends.append(ends[-1] + step_s)
    touching = tuple(Span("a", "lane", *pair) for pair in pairwise(ends))
    assert len(spans_by_thread(Timeline(touching))) == 1
    pairs = st.tuples(st.sampled_from(ends), st.sampled_from(ends)).map(sorted)
    others = tuple(Span("b", "lane", *pair) for pair in data.draw(st.lists(pairs, max_size=30)))
    for spans in spans_by_thread(Timeline(touching + others)).values():
        assert not any(a[0] < b[0] < a[1] < b[1] for a in spans for b in spans)


def test_spans_of_any_name_and_length_come_back(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("old")
    names = ["größe", "漢字", 'a "quoted" name', "half a pair \ud800", "\x00\x1b[31m\ufffe"]
    run = Timeline([Span(each, f"Bahn {each}", n, n + 1) for n, each in enumerate(names)])
    run = run.merged(Timeline([Span("a year", "x", 5.0, 3e7), Span("b", "y", 3e7, 3e7 + 1)]))
    write_trace(run, str(path))
    assert path.read_bytes() == trace_bytes(run)
    assert "größe" in path.read_text(encoding="utf-8")
    half = replace(run.spans[3], name="half a pair ?", lane="Bahn half a pair ?")
    assert read_trace(path).spans == (*run.spans[:3], half, *run.spans[4:])
    with pytest.raises(TypeError, match=r"timeline is of type int; expected a Timeline"):
        write_trace(3, path)
