"""From torch.profiler's events to evidence: joined, placed, and checked by the nanosecond."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import split, work_of
from trace_files import BASE_US, call, copy, event, kernel, kineto_events

from autopar.timeline.span import Timeline
from autopar.traces.chrome import Events
from autopar.traces.read import read_evidence
from autopar.traces.trace import TraceError

_TRACES = Path(__file__).parents[1] / "trace_data"
_BEGIN_US = BASE_US % 1e9  # a trace counts from a round time


def read(*events, **header):
    return Events(events).trace(header)


def spans_of(trace):
    """Times in microseconds from the beginning of the work."""
    return [
        (
            *(span.name, span.lane, span.kind),
            *(round(time_s * 1e6 - _BEGIN_US, 3) for time_s in (span.start_s, span.end_s)),
        )
        for span in trace.timeline.spans
    ]


def names_of(trace, kind):
    return [span.name for span in trace.host.of(kind).spans()]


def test_work_calls_and_ranges_are_taken_and_joined():
    trace = read(*kineto_events())
    assert spans_of(trace) == [
        ("forward", "host", "host", 10, 310),
        ("gemm", "GPU 0 stream 7", "compute", 40, 140),
        ("gemm 2", "GPU 0 stream 7", "compute", 140, 170.5),
        ("Memcpy DtoH (Device -> Pageable)", "GPU 0 copies to host", "copy", 140.5, 200.5),
    ]
    first, second, moved = work_of(trace)
    launches = [work.launch.name for work in (first, second, moved)]
    assert launches == [*["cudaLaunchKernel"] * 2, "cudaMemcpyAsync"]
    assert first.launch.start_s == pytest.approx((_BEGIN_US + 20) / 1e6, abs=1e-9)
    assert (moved.size_bytes, moved.memory, moved.gpu) == (4096, "pageable", "GPU 0")
    assert (second.size_bytes, second.memory, moved.stream) == (None, "", "stream 13")
    assert names_of(trace, "call") == [
        *("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync"),
        "cudaStreamSynchronize",
    ]
    assert {called.lane for called in trace.host.of("call").spans()} == {"host"}
    assert names_of(trace, "operator") == ["aten::mm"]
    assert (trace.warnings, trace.doubts) == ((), {})
    # Of the copy's 60 µs, 30 are behind the second product.
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
    assert {work.gpu for work in work_of(trace)} == {"rank 1 GPU 0"}
    for alone in (info | {"world_size": 1}, None, {"rank": "1", "world_size": 2}, {"rank": 1}):
        assert work_of(read(*events, distributedInfo=alone))[0].gpu == "GPU 0"


@pytest.mark.parametrize(
    ("name", "lane", "memory"),
    [
        ("Memcpy DtoH (Device -> Pinned)", "to host", "pinned"),
        ("Memcpy HtoD (Pageable -> Device)", "from host", "pageable"),
        ("Memcpy DtoD (Device -> Device)", "within", ""),
        ("Memcpy PtoP (Device -> Device)", "to a peer", ""),
        ("Memcpy of a new sort", "of another kind", ""),
    ],
)
def test_the_names_of_copies_tell_direction_and_memory(name, lane, memory):
    moved = copy(name, 1.0, 2.0, 8)
    (work,) = work_of(read(moved))
    assert (work.span.lane, work.memory) == (f"GPU 0 copies {lane}", memory)
    del moved["args"]["device"]  # as between two GPUs, of which one does it
    moved["args"] |= {"fromDevice": 0, "inDevice": 1, "toDevice": 1}
    assert work_of(read(moved))[0].gpu == "GPU 1"


def test_what_is_not_taken_is_counted_or_said_elsewhere():
    work = [kernel("a", 40.0, 9.0, 1), kernel("b", 90.0, 9.0, 2)]
    other = event("xpu_runtime", "launch", 1.0, 2.0)
    trace = read(*work, other, event("cpu_op", "mm", 50.0, 30.0))
    assert trace.warnings == ("Events of other categories were left out: xpu_runtime (1).",)
    assert split(trace) == {"unknown": 0.041}
    odd = event("odd", "x", 1.0, 2.0)
    others = [odd, odd, odd | {"ph": "b"}, 3, {}, {"ph": "X", "cat": ["kernel"]}]
    (said,) = read(*kineto_events(), *others).warnings
    assert said == (
        "Events of other categories were left out: odd (2), (no category) without a duration (2), "
        "odd without a duration (1), (no category) (1)."
    )
    waits = [event("cuda_sync", "Stream Wait Event", 90.0, 5.0, stream=7, device=0)]
    waits += [event("cuda_sync", "Context Sync", -BASE_US, -1.0, stream=None) | {"pid": 0}]
    names = ("Activity Buffer Request", "Lazy Function Loading", ["no", "name"])
    overhead = [event("overhead", name, 60.0, 50.0) for name in names]
    trace = read(*kineto_events(), *waits, *overhead)
    assert (spans_of(trace), trace.remarks) == (spans_of(read(*kineto_events())), ())
    assert names_of(trace, "profiler") == ["Activity Buffer Request"]
    assert names_of(trace, "call") == names_of(read(*kineto_events()), "call")


def test_early_versions_and_times_as_text_are_read():
    old = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime"}
    old |= {"cpu_op": "Operator"}
    events = [
        event
        | {"cat": old.get(event["cat"], event["cat"])}
        | {"ts": str(event.get("ts")), "dur": str(event.get("dur"))}
        for event in kineto_events()[1:]
    ]
    assert spans_of(read(*events)) == spans_of(read(*kineto_events()))


def test_work_without_a_correlation_id_has_no_launch():
    for none in (None, 0):
        trace = read(call("cudaGetDevice", 2.0, 1.0, none), kernel("k", 5.0, 1.0, none))
        assert work_of(trace)[0].launch is None


def test_seconds_since_1970_keep_what_precision_the_file_has():
    first = kernel("early", 5.0 - BASE_US, 1.0, stream=99)  # does not decide what time is zero
    trace = read(first, *(kernel("k", 1.7e15 - BASE_US + i * 10, 2.5) for i in range(100)))
    for work in work_of(trace)[1:]:
        assert work.span.duration_s == pytest.approx(2.5e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "no work of a GPU and no named range"),
        ([event("cpu_op", "aten::mm", 1.0, 2.0)], "no work of a GPU and no named range"),
        ([event("xpu_runtime", "x", 1, 2)], r"categories xpu_runtime \(1\).* Other tools and acc"),
        ([{"ph": "X", "name": "run", "ts": 1, "dur": 2}], r"categories \(no category\) \(1\)\."),
        ([kernel("k", 1.0, -1.0)], "none of its records can be right: .*takes -1.0 µs"),
    ],
)
def test_a_trace_with_nothing_to_show_is_refused(events, why):
    with pytest.raises(TraceError, match=why):
        read(*events)


_STRANGE = st.sampled_from([0, -1, 1e308, math.nan, 3, "x", None, 10**40, -0.0, 1e-320])


@given(work=st.integers(0, 2), key=st.integers(0, 9), value=_STRANGE | st.floats(0, 2 * BASE_US))
def test_a_number_changed_in_one_event_changes_no_other(work, key, value):
    events = kineto_events()
    changed = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")][work]
    places = [
        (of, name)
        for of in (changed, changed["args"])
        for name in of
        if isinstance(of[name], (int, float))
    ]
    of, name = places[key % len(places)]
    of[name] = value
    others = {span for span in spans_of(read(*kineto_events())) if span[0] != changed["name"]}
    assert others <= set(spans_of(read(*events)))


@pytest.mark.parametrize("rank", [0, 1])
def test_overlap_is_what_another_tool_finds_in_a_recorded_trace(rank):
    theirs = json.loads((_TRACES / "hta.json").read_text())
    trace = read_evidence(_TRACES / f"allreduce_rank{rank}.json.gz")
    assert (trace.warnings, trace.doubts, len(trace.work)) == ((), {}, 42)
    assert all(work.launch for work in work_of(trace))
    # To that tool a fill is no compute, and it gives its share as a percentage with two decimals.
    spans = [span for span in trace.timeline.spans if not span.name.startswith("Memset")]
    timeline = Timeline(tuple(spans))
    hidden = timeline.hidden("communication")
    assert round(100 * hidden, 2) == theirs["hidden_percent"][rank]
    assert timeline.busy_s("compute") * 1e6 == pytest.approx(theirs["compute_us"][rank], abs=2e-3)


def test_functions_of_python_and_arrows_of_autograd_are_of_the_host():
    python, arrow = event("python_function", "load", 5, 30), event("fwdbwd", "fwdbwd", 20, 0)
    arrows = [arrow | {"ph": ph, "id": 7, "tid": tid} for ph, tid in (("s", 2), ("f", 1))]
    arrows += [arrow | {"ph": ph, "id": 6, "tid": 1} for ph in "sf"]  # of what is computed again
    backward = event("cpu_op", "mm", 20, 1) | {"tid": 1}
    trace = read(*kineto_events(), python, backward, *arrows)
    assert names_of(trace, "python") == ["load"]
    assert trace.handed == {"host thread 1": "host"}
    arrows += [arrow | {"ph": ph, "id": 8, "tid": tid} for ph, tid in (("s", 3), ("f", 1))]
    assert read(*kineto_events(), *arrows).handed == {}, "of two threads: nobody knows"
    other = event("user_annotation", "backward", 50.0, 10.0) | {"tid": 9}
    ranges = read(other, *kineto_events()).host.of("range").spans()
    assert [span.lane for span in ranges] == ["host", "host thread 9"]
