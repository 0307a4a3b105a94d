"""Judgements: traces with a known answer, each with a twin in which the cause is not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import MS, call, copy, kernel, launch, named, operator, trace

from autopar.timeline.span import Span
from autopar.traces.findings import CAUSES, Finding
from autopar.traces.report import Report
from autopar.traces.trace import Activity, Trace

ROOT = Path(__file__).parents[2]
SYNC, WAIT = "cudaStreamSynchronize", "cudaStreamWaitEvent"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def all_findings(of: Trace) -> dict[str, Finding]:
    expensive, cheap = Report(of, name="t").findings
    return {finding.cause: finding for finding in (*expensive, *cheap)}


def costs(of: Trace) -> dict[str, float]:
    """Cause -> what it costs in milliseconds, for those worth it."""
    return {f.cause: round(f.cost_s / MS, 3) for f in Report(of, name="t").findings[0]}


def split(of: Trace) -> dict[str, float]:
    """Cause -> the idle milliseconds that are put down to it."""
    causes = Report(of, name="t").figures["GPU 0"]["idle_by_cause_s"]
    return {key: round(seconds / MS, 3) for key, seconds in causes.items()}


def gap(*calls: Span, at: float = 5.985, thread: str = "thread 1", **host: object) -> Trace:
    """A GPU that is idle from 4 to 6 ms; the next work is launched at `at`."""
    second = call("cudaLaunchKernel", at, at + 0.005, thread)
    work = kernel(0.001, 4, launch(0)), kernel(6, 9, second)
    return trace(*work, calls=calls, **host)  # type: ignore[arg-type]


def other_thread(*calls: Span, **host: object) -> Trace:
    """The same, launched by thread 2; thread 1 launched the first work."""
    return gap(*calls, thread="thread 2", **host)


def small(every_ms: float, ahead_ms: float, *, lasts_ms: float = 0.003) -> Trace:
    """A hundred short kernels, each launched some time before by an operator of its own."""
    times = [0.02 + i * every_ms for i in range(100)]
    asked = [operator("aten::add", t - ahead_ms - 0.003, t - ahead_ms + 0.006) for t in times]
    work = (kernel(t, t + lasts_ms, launch(t - ahead_ms)) for t in times)
    return trace(*work, operators=tuple(asked))


def exposed(*work: Activity) -> Trace:
    """Work from 4 ms on, behind a kernel that ends then and before one that begins at 8."""
    return trace(kernel(0, 4), *work, kernel(8, 12))


def on(gpu: int, start: float, end: float, **more: str) -> Activity:
    return kernel(start, end, gpu=f"GPU {gpu}", **more)


def copies_between(stream: str) -> Trace:
    work = [kernel(i * 3, i * 3 + 2) for i in range(3)]
    return trace(*work, *(copy(i * 3 + 2, i * 3 + 3, stream=stream) for i in range(3)))


def waiting(name: str) -> Trace:
    return gap(call(name, 0.2, 4.1))


def busy_with(name: str) -> Trace:
    return gap(call(name, 4.1, 5.9))


# What it is, its cause and cost in ms, the trace, and its twin.
JUDGEMENTS: Sequence[tuple[str, str, float, Trace, Trace]] = [
    # The host waits.
    ("ran out in a wait", "synchronised", 2, waiting(SYNC), gap(call(SYNC, 4.5, 4.55))),
    ("waited on into the gap", "synchronised", 2, gap(call(SYNC, 1, 5)), gap(call(SYNC, 1, 3.9))),
    ("a short wait", "synchronised", 0.5, gap(call(SYNC, 3.7, 4.2)), gap(call(SYNC, 3.99, 4.03))),
    (
        "for an event",
        "synchronised",
        2,
        waiting("cudaEventSynchronize"),
        waiting("cudaEventRecord"),
    ),
    ("on HIP", "synchronised", 2, waiting("hipStreamSynchronize"), waiting("hipStreamWaitEvent")),
    ("copies, driver", "synchronised", 2, waiting("cuMemcpyDtoH_v2"), waiting("cuMemcpyDtoHAsync")),
    ("copies, runtime", "synchronised", 2, waiting("cudaMemcpy_ptds"), waiting("cudaMemcpyAsync")),
    ("copies, HIP", "synchronised", 2, waiting("hipMemcpyWithStream"), waiting("hipMemcpyAsync")),
    ("all devices", "synchronised", 2, waiting("cudaDeviceSynchronize"), waiting("cudaMemcpyPeer")),
    (
        "an operator that waits",
        "synchronised",
        2,
        gap(call(SYNC, 0.2, 4.1), operators=(operator("aten::item", 0.1, 4.2),)),
        gap(operators=(operator("aten::item", 0.1, 4.2),)),
    ),
    (
        "a thread that launches here waits",
        "synchronised",
        2,
        other_thread(call(SYNC, 1, 4.9)),
        other_thread(call(SYNC, 1, 4.9, "thread 3")),
    ),
    (
        "the thread itself is silent",
        "synchronised",
        2,
        other_thread(call(SYNC, 1, 4.9)),
        other_thread(call(SYNC, 1, 4.9), operators=(operator("mm", 0.1, 5.9, "thread 2"),)),
    ),
    ("not launched yet", "synchronised", 2, waiting(SYNC), gap(call(SYNC, 0.2, 4.1), at=0.1)),
    (
        "a copy of pageable memory waits",
        "synchronised",
        2,
        trace(
            kernel(0.001, 4, launch(0)),
            copy(4, 6, call("cudaMemcpyAsync", 3.9, 6.1), memory="pageable"),
            kernel(8, 9, launch(7.985)),
        ),
        trace(
            kernel(0.001, 4, launch(0)),
            copy(4, 6, call("cudaMemcpyAsync", 3.9, 6.1)),
            kernel(8, 9, launch(7.985)),
        ),
    ),
    (
        "a copy within a GPU does not wait, whatever its call is named",
        "synchronised",
        2,
        trace(
            kernel(0.001, 3, launch(0)),
            copy(3, 4, call("cudaMemcpy", 0.2, 4.1)),
            kernel(6, 9, launch(5.985)),
        ),
        trace(
            kernel(0.001, 3, launch(0)),
            copy(3, 4, call("cudaMemcpy", 0.2, 4.1), way="within"),
            kernel(6, 9, launch(5.985)),
        ),
    ),
    # The host allocates.
    ("pins", "allocated", 1.8, busy_with("cudaHostAlloc"), busy_with("cudaHostGetDevicePointer")),
    ("frees", "allocated", 1.8, busy_with("cudaFree"), busy_with("cudaFreeAsync")),
    ("the driver's", "allocated", 1.8, busy_with("cuMemAlloc_v2"), busy_with("cuMemAllocAsync")),
    ("segments", "allocated", 1.8, busy_with("cuMemCreate"), busy_with("cuMemGetInfo")),
    ("HIP's", "allocated", 1.8, busy_with("hipHostMalloc"), busy_with("hipMallocAsync")),
    ("registers", "allocated", 1.8, busy_with("cudaHostRegister"), busy_with("cudaGetDevice")),
    # The launch itself.
    (
        "loads a module",
        "launch",
        1.98,
        trace(kernel(0.001, 4, launch(0)), kernel(6, 9, call("cudaLaunchKernel", 4, 5.99))),
        trace(kernel(0.001, 4, launch(0)), kernel(6, 9, call("cudaLaunchKernel", 5.985, 5.99))),
    ),
    (
        "a launch of a kernel, not of a graph, which may take long",
        "launch",
        1.98,
        trace(kernel(0.001, 4, launch(0)), kernel(6, 9, call("hipLaunchKernel", 4, 5.99))),
        trace(kernel(0.001, 4, launch(0)), kernel(6, 9, call("cudaGraphLaunch", 4, 5.99))),
    ),
    # PyTorch's operators.
    (
        "operators before the launch",
        "operators",
        1.9,
        gap(operators=(operator("aten::index", 4, 5.9),)),
        gap(operators=(operator("aten::index", 4, 5.9, "thread 3"),)),
    ),
    (
        "operators of the thread that hands over",
        "operators",
        1.9,
        other_thread(operators=(operator("aten::index", 4, 5.9),)),
        other_thread(operators=(operator("aten::index", 4, 5.9, "thread 3"),)),
    ),
    (
        "small kernels, one launch after the other",
        "operators",
        0.696,
        small(0.01, 0.006),
        small(0.01, 1),
    ),
    # The data loader.
    (
        "the loader is late",
        "loader",
        1.8,
        gap(ranges=(named(LOADER, 4.1, 5.9),)),
        gap(ranges=(named(LOADER, 4.1, 4.15),)),
    ),
    (
        "operators within the loader are its own",
        "loader",
        1.8,
        gap(ranges=(named(LOADER, 4.1, 5.9),), operators=(operator("aten::stack", 4.2, 5.8),)),
        gap(ranges=(named("enumerate", 4.1, 5.9),), operators=(operator("aten::stack", 4.2, 5.8),)),
    ),
    # The profiler.
    (
        "the profiler asks for memory",
        "profiler",
        1.5,
        gap(call("profiler: Activity Buffer Request", 4.2, 5.7, "thread 0")),
        gap(call("profiler: Activity Buffer Request", 2, 3.9, "thread 0")),
    ),
    (
        "the profiler works inside of an operator",
        "profiler",
        1.5,
        gap(
            call("profiler: Buffer Flush", 4.2, 5.7, "thread 0"),
            operators=(operator("mm", 4.1, 5.9),),
        ),
        gap(operators=(operator("mm", 4.1, 5.9), operator("Buffer Flush", 4.2, 5.7))),
    ),
    # Something else.
    ("launched late", "elsewhere", 2, gap(), gap(at=0.1)),
    ("by another thread", "elsewhere", 2, other_thread(), gap(at=0.1, thread="thread 2")),
    (
        "between two operators for long, and not from one to the next",
        "elsewhere",
        0.8,
        gap(operators=(operator("mm", 3.9, 4.9), operator("mm", 5.7, 5.98))),
        gap(operators=tuple(operator("mm", 3.9 + i * 0.02, 3.905 + i * 0.02) for i in range(105))),
    ),
    ("after a wait that was short", "elsewhere", 1.95, gap(call(SYNC, 4.5, 4.55)), gap(at=3)),
    # Work that was launched.
    ("behind an event", "queued", 2, gap(call(WAIT, 0.1, 0.11), at=0.2), gap(at=0.2)),
    (
        "the event is for this work",
        "queued",
        2,
        gap(call(WAIT, 0.1, 0.11), at=0.2),
        gap(call(WAIT, -0.5, -0.4), at=0.2),
    ),
    (
        "no other work is launched in between, which may be what waits",
        "queued",
        2,
        gap(call(WAIT, 0.17, 0.18), at=0.2),
        trace(
            *gap(at=0.2).activities,
            kernel(2, 3, launch(0.18), stream="20"),
            calls=(call(WAIT, 0.17, 0.175),),
        ),
    ),
    (
        "the event was waited for by the thread that launched",
        "queued",
        2,
        gap(call("hipStreamWaitEvent", 0.1, 0.11), at=0.2),
        gap(call(WAIT, 0.1, 0.11, "thread 2"), at=0.2),
    ),
    # Idle, for no cause that can be seen.
    ("queued for nothing", "unknown", 2, gap(at=0.2), gap()),
    (
        "idle for 99 %",
        "unknown",
        99,
        trace(kernel(0, 0.5), kernel(99.5, 100)),
        trace(kernel(0, 95), kernel(99.5, 104)),
    ),
    (
        "idle after the last work",
        "ended",
        6,
        trace(kernel(0.001, 4, launch(0)), calls=(call("cudaEventQuery", 9, 10),)),
        trace(kernel(0.001, 4, launch(0))),
    ),
    (
        "idle before the first",
        "allocated",
        5,
        trace(kernel(9.015, 14, launch(9)), calls=(call("cudaMalloc", 2, 7),)),
        trace(kernel(9.015, 14, launch(9))),
    ),
    # Copies and communication that nothing computes beside.
    (
        "an exchange",
        "communication",
        4,
        exposed(kernel(4, 8, stream="20", kind="communication")),
        trace(kernel(0, 12), kernel(4, 8, stream="20", kind="communication")),
    ),
    (
        "an exchange where nothing is computed",
        "communication",
        4,
        exposed(kernel(4, 8, stream="20", kind="communication")),
        trace(kernel(4, 8, stream="20", kind="communication")),
    ),
    (
        "pageable memory",
        "pageable",
        4,
        exposed(copy(4, 8, memory="pageable", size=8_000_000)),
        exposed(copy(4, 8, memory="pinned", size=8_000_000)),
    ),
    (
        "pageable memory behind computing",
        "pageable",
        4,
        exposed(copy(4, 8, memory="pageable")),
        trace(kernel(0, 12), copy(4, 8, memory="pageable")),
    ),
    (
        "small copies",
        "small copies",
        4,
        exposed(copy(4, 8, size=65_535)),
        exposed(copy(4, 8, size=65_536)),
    ),
    ("size unknown", "bare copies", 4, exposed(copy(4, 8, size=None)), exposed(copy(4, 8, size=1))),
    ("one stream", "one stream", 3, copies_between("7"), copies_between("9")),
    ("a side stream that comes late", "bare copies", 3, copies_between("9"), copies_between("7")),
    (
        "copies over the bus",
        "bare copies",
        4,
        exposed(copy(4, 8, way="from host")),
        exposed(copy(4, 8, way="within")),
    ),
    (
        "no more than is computed",
        "bare copies",
        2,
        trace(kernel(0, 2), copy(2, 102)),
        trace(copy(2, 102)),
    ),
    # Several GPUs.
    ("turns", "turns", 3, trace(on(0, 0, 4), on(1, 4, 7)), trace(on(0, 0, 4), on(1, 1, 4))),
    (
        "three in turn",
        "turns",
        8,
        trace(*(on(i, 4 * i, 4 * i + 4) for i in range(3))),
        trace(on(0, 0, 4), on(1, 1, 4), on(2, 4, 8)),
    ),
    (
        "that compute",
        "turns",
        3,
        trace(on(0, 0, 4), on(1, 4, 7)),
        trace(on(0, 0, 4), copy(4, 7, gpu="GPU 1")),
    ),
]


@pytest.mark.parametrize(
    ("cause", "cost_ms", "seen", "twin"),
    [judgement[1:] for judgement in JUDGEMENTS],
    ids=[judgement[0] for judgement in JUDGEMENTS],
)
def test_a_cause_is_found_with_its_cost_and_not_in_its_twin(
    cause: str, cost_ms: float, seen: Trace, twin: Trace
) -> None:
    assert costs(seen).get(cause) == pytest.approx(cost_ms, abs=1e-3)
    assert cause not in costs(twin)


def test_every_cause_is_judged() -> None:
    assert {cause for _, cause, *_ in JUDGEMENTS} == CAUSES.keys()


def test_the_checklist_has_every_finding_and_its_page() -> None:
    text = (ROOT / "docs" / "howto" / "why_is_there_no_overlap.md").read_text(encoding="utf-8")
    for cause in CAUSES.values():
        assert f"**{cause.title}**" in text
        assert f"(../auto_gallery/{cause.page})" in text
        assert (ROOT / "gallery" / f"{cause.page}.py").is_file()


def test_a_gap_is_split_over_all_that_happened_in_it() -> None:
    host = (call(SYNC, 1, 4.5), call("cudaMalloc", 4.6, 5))
    of = gap(*host, operators=(operator("aten::copy_", 5.2, 5.6),))
    assert split(of) == {
        "synchronised": 0.515,
        "allocated": 0.4,
        "operators": 0.4,
        "elsewhere": 0.685,
    }
    # Without the wait the host would be ahead by all of it, without the rest by no more than it.
    assert costs(of) == {"synchronised": 2, "allocated": 0.4, "operators": 0.4, "elsewhere": 0.685}


def random_call(name: str, start: int, length: int, thread: int) -> Span:
    return call(name, start / 10, (start + length) / 10, f"thread {thread}")


def random_work(start: int, length: int, ahead: int, thread: int) -> Activity:
    launched = random_call("cudaLaunchKernel", start - ahead, 1, thread) if thread else None
    return kernel(start / 10, (start + length) / 10, launched)


_TIMES, _THREADS = (st.integers(0, 99), st.integers(1, 9)), st.integers(1, 3)
_NAMES = st.sampled_from([SYNC, "cudaFree", "cudaGetDevice", LOADER, "profiler: Buffer Flush"])
_HOST = st.lists(st.builds(random_call, _NAMES, *_TIMES, _THREADS), max_size=9)
_WORK = st.builds(random_work, *_TIMES, st.integers(0, 9), st.integers(0, 3))


@settings(deadline=None, derandomize=True)
@given(st.lists(_WORK, min_size=1, max_size=9), _HOST, _HOST, _HOST)
def test_the_parts_of_all_gaps_are_all_gaps(
    work: list[Activity], calls: list[Span], ranges: list[Span], operators: list[Span]
) -> None:
    of = trace(*work, calls=(*calls,), ranges=(*ranges,), operators=(*operators,))
    idle = Report(of, name="t").view.usages[0].idle
    assert sum(split(of).values()) == pytest.approx((idle[:, 1] - idle[:, 0]).sum() / MS, abs=0.02)


def test_evidence_and_words_name_what_has_the_longest_share() -> None:
    several = (call("cudaFree", 4.1, 4.3), call("cudaMalloc", 4.5, 5.4))
    finding = all_findings(gap(*several))["allocated"]
    assert "the host was in cudaMalloc, cudaFree." in finding.why
    assert [span.name for span in finding.evidence] == ["cudaMalloc", "GPU 0 idle", "gemm"]
    assert finding.evidence[1].start_s == pytest.approx(4 * MS)
    assert finding.evidence[1].end_s == pytest.approx(6 * MS)
    steps = (named("ProfilerStep#3", 0, 8), named("augment", 4.1, 5.9), named("crop", 5, 5.1))
    finding = all_findings(gap(ranges=steps))["elsewhere"]
    assert "ms, in augment." in finding.why
    assert finding.evidence[0].name == "augment"
    nowhere = all_findings(gap())["elsewhere"]
    assert "no call of CUDA: it ran Python" in nowhere.why
    assert nowhere.evidence[0].name == "cudaLaunchKernel"


def test_nothing_is_idle_behind_work() -> None:
    behind = (kernel(0.001, 7, launch(0)), kernel(7, 9, launch(6.0)))
    assert costs(trace(*behind, calls=(call("cudaHostAlloc", 4.2, 5.4),))) == {}


def test_without_launches_a_wait_is_enough_and_nothing_else_is_guessed() -> None:
    work = (kernel(0, 40), kernel(42, 90))
    assert split(trace(*work)) == {"unknown": 2}
    assert costs(trace(*work)) == {}
    assert split(trace(*work, operators=(operator("aten::mm", 40, 42),))) == {"unknown": 2}
    waits = (call(SYNC, 1, 40.1),)
    assert split(trace(*work, calls=waits)) == {"synchronised": 0.1, "unknown": 1.9}
    assert costs(trace(*work, calls=waits)) == {"synchronised": 2}
    doubtful = trace(*work, calls=waits, doubts={"host": "Its clock jumps."})
    assert split(doubtful) == {"unknown": 2}


def test_gaps_within_the_error_of_a_profiler_have_no_cause() -> None:
    close = trace(kernel(0, 1), kernel(1.0019, 2), kernel(2.0021, 3))
    assert split(close) == {"unknown": 0.002}
    assert split(replace(close, alignment_error_s=3e-6)) == {}


def test_where_copies_were_and_how_fast() -> None:
    pageable = copy(2, 6, memory="pageable", size=8_000_000)
    finding = all_findings(trace(kernel(0, 4), pageable, kernel(6, 9)))["pageable"]
    assert finding.cost_s == pytest.approx(2 * MS), "what no compute hides"
    assert finding.why.startswith("1 copy, 8.00 MB at 2.00 GB/s:")
    shared = all_findings(trace(kernel(0, 2), copy(2, 3, stream="7")))["one stream"]
    assert "(stream 7)" in shared.why
    unknown = [replace(work, stream="") for work in (kernel(0, 2), copy(2, 3))]
    assert list(costs(trace(*unknown))) == ["bare copies"]
    copies = [copy(i, i + 0.9 + i / 100) for i in range(5)]  # the longest behind the kernel
    finding = all_findings(trace(kernel(3.5, 9), *copies))["bare copies"]
    assert [round(span.start_s / MS) for span in finding.evidence] == [2, 1, 0]


def test_the_most_expensive_comes_first_and_the_cheap_are_apart() -> None:
    work = (kernel(0, 100, launch(-0.001)), kernel(110, 200, launch(109.985)))
    late = kernel(230.5, 231, launch(230.485), stream="8")
    expensive, cheap = Report(trace(*work, copy(200, 230), late), name="t").findings
    listed = [(finding.cause, round(finding.cost_s / MS, 3)) for finding in expensive]
    assert (listed, cheap) == ([("bare copies", 30), ("elsewhere", 10.5)], [])
    brief = (kernel(0, 100, launch(-0.001)), kernel(100.5, 200, launch(100.485)))
    expensive, cheap = Report(trace(*brief), name="t").findings
    assert (expensive, [finding.cause for finding in cheap]) == ([], ["elsewhere"])


def test_a_thousand_gpus_and_streams_cost_no_more_than_their_work() -> None:
    gpus = [on(i, i, i + 0.9) for i in range(1_000)]
    assert "turns" in costs(trace(*gpus))
    streams = [kernel(i, i + 0.9, launch(i - 5), stream=str(i)) for i in range(2_000)]
    assert len(Report(trace(*streams), name="t").figures["GPU 0"]["lanes_busy_s"]) == 2_000
