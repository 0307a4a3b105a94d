"""From a profiler's record to a timeline, refused where it contradicts itself."""

import time

import pytest
import torch

from autopar import annotate, cpu_lane, timeline_of, timeline_of_handles, timelines_of
from autopar.traces.profiler import spans_of_events

# How far the two clocks may drift apart between the calibrating marks and the work.
_SLACK_S = 50e-6


def launch(correlation, ts):
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": ts, "dur": 2.0, "args": args}


def on_gpu(cat, name, ts, dur, *, device=0, stream=7, correlation=None):
    args = {"device": device, "stream": stream}
    if correlation is not None:
        args["correlation"] = correlation
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def kernel(name, ts, dur, **places):
    return on_gpu("kernel", name, ts, dur, **places)


def test_every_kind_of_event_finds_its_lane():
    events = [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 9.0, "args": {}},
        {"ph": "X", "cat": "user_annotation", "name": "forward", "ts": 90.0, "dur": 50.0},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "forward", "ts": 100.0, "dur": 50.0},
        launch(1, 100.0),
        kernel("gemm", 110.0, 10.0, correlation=1),
        kernel("gemm", 110.0, 10.0, device=1, stream=20),
        on_gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 130.0, 4.0, stream=13),
        on_gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 130.0, 4.0, stream=14),
        {
            **on_gpu("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 130.0, 4.0),
            "args": {"fromDevice": 0, "inDevice": 1, "toDevice": 1, "stream": 15},
        },
        on_gpu("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 130.0, 4.0, stream=16),
        on_gpu("gpu_memcpy", "Memcpy of a new sort", 130.0, 4.0, stream=17),
        on_gpu("gpu_memset", "Memset (Device)", 140.0, 1.0),
    ]
    spans = spans_of_events(events, offset_s=10.0)
    assert {(span.name.split(" (")[0], span.lane, span.kind) for span in spans} == {
        ("forward", "host", "host"),
        ("gemm", "GPU 0 stream 7", "compute"),
        ("gemm", "GPU 1 stream 20", "compute"),
        ("Memcpy DtoH", "GPU 0 copies to host", "copy"),
        ("Memcpy HtoD", "GPU 0 copies from host", "copy"),
        ("Memcpy PtoP", "GPU 1 copies to a peer", "copy"),
        ("Memcpy DtoD", "GPU 0 copies within", "copy"),
        ("Memcpy of a new sort", "GPU 0 copies of another kind", "copy"),
        ("Memset", "GPU 0 stream 7", "compute"),
    }
    assert len(spans) == 9
    gemm = next(span for span in spans if span.lane == "GPU 0 stream 7")
    assert gemm.start_s == pytest.approx(10.000110, abs=1e-9)
    assert gemm.duration_s == pytest.approx(10e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([kernel("gemm", 5.0, 0.0)], "takes 0.0 us"),
        ([kernel("gemm", 5.0, -1.0)], "takes -1.0 us"),
        ([kernel("gemm", 0.0, 9.0)], "starts at 0.0 us"),
        ([launch(3, 10.0), kernel("gemm", 7.0, 2.0, correlation=3)], "3.000 us before its launch"),
        (
            [
                {**launch(3, 10.0), "cat": "cuda_driver"},
                on_gpu("gpu_memcpy", "gemm", 7.0, 2.0, correlation=3),
            ],
            "before its launch",
        ),
        ([kernel("first", 5.0, 9.0), kernel("gemm", 12.0, 9.0)], "overlaps 'first'.*2.000 us"),
        ([kernel("gemm", 12.0, 9.0), kernel("first", 5.0, 9.0)], "overlaps 'first'"),
        ([kernel("first", 5.0, 9.0), on_gpu("gpu_memset", "gemm", 12.0, 1.0)], "overlaps 'first'"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(events, why):
    good = [kernel("good", 100.0, 5.0), launch(9, 90.0), kernel("good", 110.0, 5.0, correlation=9)]
    with pytest.raises(RuntimeError, match=f"'gemm' on GPU 0 can't be right: .*{why}"):
        spans_of_events(good + events)
    assert len(spans_of_events(good)) == 2


@pytest.mark.parametrize(
    "events",
    [
        [kernel("a", 5.0, 9.0), kernel("b", 14.0, 9.0)],  # one ends as the next starts
        [kernel("a", 5.0, 9.5), kernel("b", 14.0, 9.0)],  # within the profiler's own tolerance
        [kernel("a", 5.0, 9.0), kernel("b", 6.0, 9.0, stream=8)],
        [kernel("a", 5.0, 9.0), kernel("b", 6.0, 9.0, device=1)],
        [launch(1, 10.0), kernel("a", 9.5, 9.0, correlation=1)],
        [launch(1, 10.0), kernel("a", 7.0, 9.0, correlation=2)],  # some other launch
    ],
)
def test_a_record_that_can_be_right_is_taken(events):
    assert spans_of_events(events)


def test_the_timeline_is_on_the_hosts_clock_and_takes_lanes_in():
    readings = {}

    def work():
        readings["before"] = time.perf_counter()
        with annotate("busy"):
            readings["begun"] = time.perf_counter()
            with cpu_lane(name="left") as lane:
                handle = lane.submit(lambda: torch.ones(64, 64).sum(), name="sum")
                handle.result()
            readings["ending"] = time.perf_counter()
        readings["after"] = time.perf_counter()
        return timeline_of_handles([handle])

    for _ in range(2):  # the first session of a process sets things up
        timeline = timeline_of(work)
        (busy,) = (span for span in timeline.spans if span.name == "busy")
        (summed,) = (span for span in timeline.spans if span.lane == "left")
        error_s = timeline.alignment_error_s + _SLACK_S
        assert 0 < timeline.alignment_error_s < 5e-3
        assert readings["before"] - error_s <= busy.start_s <= readings["begun"] + error_s
        assert readings["ending"] - error_s <= busy.end_s <= readings["after"] + error_s
        assert busy.start_s - error_s <= summed.start_s <= summed.end_s <= busy.end_s + error_s
        assert (busy.lane, busy.kind, summed.kind) == ("host", "host", "compute")
        assert timeline.origin.startswith("measured live on ")
        assert "autopar: the host's clock" not in {span.name for span in timeline.spans}


def test_what_else_the_work_returns_is_ignored():
    with pytest.warns(UserWarning, match="the timeline is empty: no GPU.*annotate") as caught:
        assert timeline_of(lambda: 3).spans == ()
    assert caught[0].filename == __file__


def test_an_error_of_the_work_comes_through_and_the_next_session_is_unharmed():
    def fail():
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        timeline_of(fail)

    def fine():
        with annotate("fine"):
            pass

    assert [span.name for span in timeline_of(fine).spans] == ["fine"]


def test_several_ways_in_one_session_each_have_their_own_spans() -> None:
    x = torch.rand(32, 32)
    with cpu_lane(name="worker") as lane:

        def way(name, count):
            with annotate("not part of it"):
                return timeline_of_handles([lane.submit(x.mm, x, name=name) for _ in range(count)])

        timelines = timelines_of({"one": lambda: way("a", 2), "two": lambda: way("b", 3)})
    assert {
        label: [(span.name, span.lane) for span in timeline.spans]
        for label, timeline in timelines.items()
    } == {"one": [("a", "worker")] * 2, "two": [("b", "worker")] * 3}


def test_ways_without_spans_have_empty_timelines() -> None:
    with pytest.warns(UserWarning, match="to be seen of 'nothing': no GPU.*cpu_lane") as caught:
        assert timelines_of({"nothing": lambda: None})["nothing"].spans == ()
    assert caught[0].filename == __file__
