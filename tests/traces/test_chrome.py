"""From torch.profiler's events to evidence: joined, placed, and checked by the nanosecond."""

import copy as copies
import json
import math
import random
import re
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from trace_files import BASE_US, call, copy, event, kernel, kineto, kineto_events

from autopar.timeline.span import Timeline
from autopar.traces.chrome import trace_of
from autopar.traces.read import read_evidence
from autopar.traces.trace import TraceError

_TRACES = Path(__file__).parents[1] / "trace_data"
_ZERO_US = BASE_US  # so that times in these tests count from the beginning of the work


def read(*events, **header):
    return trace_of(events, header, _ZERO_US)


def spans_of(trace):
    return [
        (
            span.name,
            span.lane,
            span.kind,
            round(span.start_s * 1e6, 3),
            round(span.end_s * 1e6, 3),
        )
        for span in trace.timeline.spans
    ]


def test_work_calls_and_ranges_are_taken_and_joined():
    trace = read(*kineto_events())
    assert spans_of(trace) == [
        ("forward", "host", "host", 10, 310),
        ("gemm", "GPU 0 stream 7", "compute", 40, 140),
        ("gemm 2", "GPU 0 stream 7", "compute", 140, 170.5),
        ("Memcpy DtoH (Device -> Pageable)", "GPU 0 copies to host", "copy", 140.5, 200.5),
    ]
    first, second, moved = trace.activities
    assert [each.launch.name for each in trace.activities] == [
        *("cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync")
    ]
    assert first.launch.start_s == pytest.approx(20e-6, abs=1e-9)
    assert (moved.size_bytes, moved.memory, moved.gpu, moved.stream) == (
        *(4096, "pageable", "GPU 0", "stream 13"),
    )
    assert (second.size_bytes, second.memory) == (None, None)
    assert [each.name for each in trace.calls] == [
        *("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync"),
        "cudaStreamSynchronize",
    ]
    assert {each.thread for each in trace.calls} == {"thread 2"}
    assert (trace.warnings, trace.doubts) == ((), {})
    # Of the copy's 60 us, 30 are behind the second product.
    assert trace.timeline.hidden() == pytest.approx(0.5, abs=1e-6)


def test_communication_and_ranks_have_kinds_and_lanes_of_their_own():
    names = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",)
    names += ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",)
    events = [kernel(name, 10.0 + 20 * i, 10.0, stream=20) for i, name in enumerate(names)]
    events.append(kernel("not_nccl(float)", 10.0, 10.0))
    info = {"backend": "nccl", "rank": 1, "world_size": 2}
    trace = read(*events, distributedInfo=info)
    assert {(span.lane, span.kind) for span in trace.timeline.spans} == {
        ("rank 1 GPU 0 stream 20", "communication"),
        ("rank 1 GPU 0 stream 7", "compute"),
    }
    assert {each.gpu for each in trace.activities} == {"rank 1 GPU 0"}
    alone = read(*events, distributedInfo=info | {"world_size": 1})
    assert alone.activities[0].gpu == "GPU 0"
    for wrong in (None, [], {"rank": "1", "world_size": 2}, {"rank": 1, "world_size": None}):
        assert read(*events, distributedInfo=wrong).activities[0].gpu == "GPU 0"


def test_a_copy_between_gpus_is_of_the_one_that_does_it():
    moved = event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 1.0, 2.0, stream=15)
    moved["args"] |= {"fromDevice": 0, "inDevice": 1, "toDevice": 1}
    (each,) = read(moved).activities
    assert (each.gpu, each.span.lane) == ("GPU 1", "GPU 1 copies to a peer")


@pytest.mark.parametrize(
    ("name", "lane", "memory"),
    [
        ("Memcpy DtoH (Device -> Pinned)", "to host", "pinned"),
        ("Memcpy HtoD (Pageable -> Device)", "from host", "pageable"),
        ("Memcpy HtoD (Pinned -> Device)", "from host", "pinned"),
        ("Memcpy DtoD (Device -> Device)", "within", None),
        ("Memcpy of a new sort", "of another kind", None),
    ],
)
def test_the_names_of_copies_tell_direction_and_memory(name, lane, memory):
    (each,) = read(copy(name, 1.0, 2.0, 8)).activities
    assert (each.span.lane, each.memory) == (f"GPU 0 copies {lane}", memory)


def test_ranges_of_other_threads_have_lanes_of_their_own():
    backward = event("user_annotation", "backward", 50.0, 10.0) | {"tid": 9}
    trace = read(backward, *kineto_events())
    assert [(each.name, each.lane) for each in trace.ranges] == [
        ("forward", "host"),
        ("backward", "host thread 9"),
    ]


@pytest.mark.parametrize(
    ("wrong", "why", "left_out"),
    [
        (kernel("bad", -BASE_US, 5.0), r"starts at 0\.0 us and takes 5\.0 us", True),
        (kernel("bad", -2 * BASE_US, 5.0), "starts at -", True),
        (kernel("bad", 500.0, 0), r"takes 0\.0 us", True),
        (kernel("bad", 500.0, -2.0), r"takes -2\.0 us", True),
        (kernel("bad", 500.0, math.nan), "takes nan us", True),
        (kernel("bad", math.inf, 2.0), "starts at inf us", True),
        (kernel("bad", 1e308, 2.0), "starts at 1e.308 us", True),
        (kernel("bad", 500.0, 10**400), "takes nan us", True),
        (kernel("bad", 500.0, None), "takes nan us", True),
        (kernel("bad", 500.0, [1]), "takes nan us", True),
        (kernel("bad", 500.0, True), "takes nan us", True),
        (kernel("bad", 500.0, 5.0, stream=None), "of which GPU and stream", True),
        (kernel("bad", 15.0, 5.0, 1, stream=9), r"5\.000 us before its launch", False),
        (kernel("bad", 7e7, 5.0, 1, stream=9), "70 s after its launch", False),
        (kernel("bad", 160.5, 50.0), r"overlaps 'gemm 2' of its stream by 10\.000 us", False),
        (kernel("bad", 500.0, 5.0) | {"ph": "i"}, "phase is 'i'", True),
    ],
)
def test_what_cannot_be_is_said_and_its_gpu_is_in_doubt(wrong, why, left_out):
    # The second complaint of a sort is counted, not repeated.
    good = kineto_events()
    other = kernel("gemm", 40.0, 10.0, device=1)
    trace = read(*good, other, wrong)
    (said,) = trace.warnings
    where = "a GPU" if wrong["ph"] == "i" else "GPU 0"
    assert re.match(f"the record of 'bad' on {where} can't be right: .*{why}", said)
    assert trace.doubts == dict.fromkeys(
        ["GPU 0"] if where == "GPU 0" else ["GPU 0", "GPU 1"], said
    )
    assert len(trace.activities) == 4 + (not left_out)
    twice = read(*good, wrong, copies.deepcopy(wrong)).warnings
    assert any("and 1 more like it" in words for words in twice)


def test_a_record_without_a_gpu_puts_all_in_doubt():
    trace = read(
        kernel("bad", 500.0, 5.0, device="0"), *kineto_events(), kernel("k", 1, 2, device=1)
    )
    assert list(trace.doubts) == ["GPU 0", "GPU 1"]
    assert "the record of 'bad' on a GPU" in trace.doubts["GPU 1"]


@pytest.mark.parametrize(
    "fine",
    [
        [kernel("next", 170.5, 9.0)],  # one ends as the next starts
        [kernel("next", 169.6, 9.0)],  # within the profiler's own tolerance
        [kernel("next", 160.0, 9.0, stream=8)],
        [kernel("next", 160.0, 9.0, device=1)],
        [kernel("next", 19.2, 3.0, 1, stream=8)],  # within tolerance of its launch
        [kernel("next", 500.0, 9.0, 77)],  # its launch was not recorded
        [call("cudaGetDevice", 2.0, 0.0, 9)],
    ],
)
def test_what_can_be_right_is_taken_without_a_word(fine):
    trace = read(*kineto_events(), *fine)
    assert (trace.warnings, trace.doubts) == ((), {})


@pytest.mark.parametrize(
    "wrong",
    [
        call("cudaBad", 20.0, -1.0, 9),
        call("cudaBad", -BASE_US, 1.0, 9),
        call("cudaBad", 20.0, "soon", 9),
        call("cudaBad", 20.0, 2.0, None),
        call("cudaBad", 20.0, 2.0, 9) | {"ph": "B"},
    ],
)
def test_a_call_that_cannot_be_puts_the_host_in_doubt_alone(wrong):
    trace = read(*kineto_events(), wrong)
    assert list(trace.doubts) == ["host"]
    assert "'cudaBad' on host" in trace.warnings[0]
    assert len(trace.activities) == 3


def test_times_may_be_text():
    events = [dict(each) for each in kineto_events()]
    for each in events:
        each |= {"ts": str(each.get("ts")), "dur": str(each.get("dur"))}
    assert spans_of(read(*events)) == spans_of(read(*kineto_events()))


def test_events_that_are_none_are_counted():
    trace = read(*kineto_events(), 3, None, [], "kernel", {}, {"ph": "X", "cat": ["kernel"]})
    (said,) = trace.warnings
    assert said.startswith("Events of other categories were left out: no event at all (4)")
    assert len(trace.activities) == 3


def test_seconds_since_1970_keep_what_precision_the_file_has():
    trace = trace_of([kernel("k", 1.7e15 - BASE_US + i * 10, 2.5) for i in range(100)])
    for each in trace.activities:
        assert each.span.duration_s == pytest.approx(2.5e-6, abs=1e-12)


def test_the_first_event_does_not_decide_what_time_is_zero():
    early = [kernel("early", 5.0 - BASE_US, 1.0, stream=99), *kineto_events()]
    assert spans_of(trace_of(early))[-3:] == spans_of(trace_of(kineto_events()))[-3:]


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "there is no event with a duration"),
        ([{"ph": "X", "name": "Session.run", "ts": 1, "dur": 2}], "of another tool"),
        ([{"ph": "B", "cat": "toplevel", "ts": 1}], "there is no event with a duration"),
        ([event("cpu_op", "aten::mm", 1.0, 2.0)], "no work of a GPU and no named range"),
        ([kernel("k", 1.0, -1.0)], "none of its records can be right: .*takes -1.0 us"),
    ],
)
def test_a_trace_with_nothing_to_show_is_refused(events, why):
    with pytest.raises(TraceError, match=why):
        read(*events)


def test_a_number_changed_in_one_event_changes_no_other():
    chance, numbers = random.Random(0), (0, -1, 1e308, math.nan, 3, "x", None, 10**40, -0.0, 1e-320)
    whole = kineto_events()
    work = [i for i, each in enumerate(whole) if each.get("cat") in ("kernel", "gpu_memcpy")]
    for _ in range(500):
        events, i = copies.deepcopy(whole), chance.choice(work)
        where = chance.choice([events[i], events[i]["args"]])
        key = chance.choice([key for key in where if isinstance(where[key], (int, float))])
        where[key] = chance.choice([*numbers, chance.uniform(0, 2 * BASE_US)])
        others = {span for span in spans_of(read(*whole)) if span[0] != whole[i]["name"]}
        assert others <= set(spans_of(read(*events))), (i, key, where[key])


def test_a_trace_that_torch_writes_here_is_read(tmp_path):
    names = ["outer", "inner"]
    with profile(activities=[ProfilerActivity.CPU]) as session:
        for name in names:
            with record_function(name):
                torch.ones(8, 8) @ torch.ones(8, 8)
    session.export_chrome_trace(str(tmp_path / "t.json.gz"))
    trace = read_evidence(tmp_path / "t.json.gz")
    assert [each.name for each in trace.ranges] == names
    (said,) = trace.warnings
    assert "no work of a GPU" in said


@pytest.mark.parametrize("rank", [0, 1])
def test_overlap_is_what_another_tool_finds_in_a_recorded_trace(rank):
    found = json.loads((_TRACES / "hta.json").read_text())
    trace = read_evidence(_TRACES / f"allreduce_rank{rank}.json.gz")
    assert (trace.warnings, trace.doubts, len(trace.activities)) == ((), {}, 42)
    assert all(each.launch for each in trace.activities)
    # To that tool a fill is no compute, and it gives its share as a percentage with two decimals.
    spans = [each for each in trace.timeline.spans if not each.name.startswith("Memset")]
    timeline = Timeline(tuple(spans))
    hidden = timeline.hidden("communication")
    assert round(100 * hidden, 2) == found["hidden_percent"][rank]
    assert timeline.busy_s("compute") * 1e6 == pytest.approx(found["compute_us"][rank], abs=2e-3)


def test_the_hand_made_file_is_what_its_events_say(tmp_path):
    path = tmp_path / "t.json"
    for indent in (None, 1):
        path.write_text(kineto(indent=indent))
        assert spans_of(read_evidence(path))[0][0] == "forward"
    path.write_text(json.dumps(kineto_events()))
    assert len(read_evidence(path).activities) == 3
