"""Findings: each there where it should be, with its cost by hand, and not where it should not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from trace_builder import MS, call, copy, kernel, launch, trace

from autopar.traces.findings import CAUSES, Finding
from autopar.traces.report import Report
from autopar.traces.trace import ApiCall, Trace

ROOT = Path(__file__).parents[2]
SYNC = "cudaStreamSynchronize"


def findings(of: Trace) -> dict[str, Finding]:
    expensive, cheap = Report(of, name="t").findings
    return {finding.cause: finding for finding in (*expensive, *cheap)}


def causes(of: Trace) -> list[tuple[str, float]]:
    idle = Report(of, name="t").idle["GPU 0"]
    return [(key, round(gap.duration_s / MS, 6)) for key, gaps in idle.items() for gap in gaps]


def idle_from_4_to_6(*calls: ApiCall, launched: float = 5.9) -> Trace:
    return trace(kernel(1, 4, launch(0)), kernel(6, 9, launch(launched)), calls=calls)


def test_the_checklist_has_every_finding_and_its_page() -> None:
    text = (ROOT / "docs" / "howto" / "why_is_there_no_overlap.md").read_text(encoding="utf-8")
    findings = [cause for cause in CAUSES.values() if cause.page]
    assert len(findings) == 11
    for cause in findings:
        assert f"**{cause.title}**" in text
        assert f"(../auto_gallery/{cause.page})" in text
        assert (ROOT / "gallery" / f"{cause.page}.py").is_file()


def test_a_wait_in_which_the_work_ran_out_costs_until_the_next_begins() -> None:
    every = findings(idle_from_4_to_6(call(SYNC, 0.2, 4.1)))
    assert list(every) == ["synchronised"]
    finding = every["synchronised"]
    assert finding.cost_s == pytest.approx(2 * MS)
    assert finding.where == "GPU 0"
    assert f"1 times the host waited in {SYNC}," in finding.why
    assert finding.why.endswith(CAUSES["synchronised"].remedy)
    assert [span.name for span in finding.evidence] == [SYNC, "GPU 0 idle", "gemm"]
    assert finding.evidence[1].start_s == pytest.approx(4 * MS)
    assert finding.evidence[1].end_s == pytest.approx(6 * MS)


@pytest.mark.parametrize(
    ("held", "launched", "cause"),
    [
        (call(SYNC, 4.5, 4.6), 5.9, "late"),  # it found the work done
        (call(SYNC, 4.5, 5.6), 5.9, "synchronised"),  # it waited for something else
        (call(SYNC, 0.2, 3.9), 5.9, "late"),  # it ended before the work did
        (call(SYNC, 0.2, 4.1), 0.1, "queued"),  # the next work was launched before it
        (call(SYNC, 0.2, 4.1, thread="thread 2"), 5.9, "late"),
        (call("cudaEventRecord", 0.2, 4.1), 5.9, "late"),  # it waits for nothing
        (call("cudaDeviceSynchronize_v3020", 0.2, 4.1), 5.9, "synchronised"),
        (call("cuMemcpyDtoH_v2", 0.2, 4.1), 5.9, "synchronised"),
        (call("cudaMemcpy_ptds", 0.2, 4.1), 5.9, "synchronised"),
        (call("cudaMemcpyAsync", 0.2, 4.1), 5.9, "late"),
        (call("cudaMemcpyPeer", 0.2, 4.1), 5.9, "late"),
        (call("cudaHostAlloc", 4.2, 5.4), 5.9, "allocated"),
        (call("cudaHostAlloc", 4.2, 4.9), 5.9, "late"),  # less than half of the gap
        (call("cudaFree", 0.5, 4.1), 5.9, "allocated"),
        (call("cuMemAlloc_v2", 4.0, 5.5), 5.9, "allocated"),
        (call("cuMemCreate", 4.0, 5.5), 5.9, "allocated"),
        (call("cudaMallocAsync", 4.0, 5.5), 5.9, "late"),
        (call("cudaStreamWaitEvent", 4.0, 5.5), 5.9, "late"),
    ],
)
def test_a_gap_is_due_to_the_call_that_held_the_host_back(
    held: ApiCall, launched: float, cause: str
) -> None:
    assert causes(idle_from_4_to_6(held, launched=launched)) == [(cause, 2.0)]


def test_nothing_is_idle_behind_work_and_after_the_last() -> None:
    assert findings(trace(kernel(1, 4, launch(0)), calls=(call(SYNC, 0.2, 9),))) == {}
    behind = (kernel(1, 7, launch(0)), kernel(7, 9, launch(6.0)))
    assert findings(trace(*behind, calls=(call("cudaHostAlloc", 4.2, 5.4),))) == {}


def test_without_launches_a_wait_is_enough_and_nothing_else_is_guessed() -> None:
    work = (kernel(1, 4), kernel(6, 9))
    assert causes(trace(*work)) == [("unknown", 2.0)]
    assert findings(trace(*work)) == {}
    assert causes(trace(*work, calls=(call(SYNC, 0, 4.1),))) == [("synchronised", 2.0)]
    doubtful = trace(*work, calls=(call(SYNC, 0, 4.1),), doubts={"host": "Its clock jumps."})
    assert causes(doubtful) == [("unknown", 2.0)]


def test_several_calls_of_one_thread() -> None:
    nested = (call("cudaMemcpy", 0.2, 4.2), call(SYNC, 0.3, 0.4))
    assert causes(idle_from_4_to_6(*nested)) == [("synchronised", 2.0)]
    several = (call("cudaFree", 4.1, 4.3), call("cudaMalloc", 4.5, 5.4))
    finding = findings(idle_from_4_to_6(*several))["allocated"]
    assert finding.cost_s == pytest.approx(2 * MS)
    assert "idle while the host was in cudaMalloc." in finding.why


def test_a_pageable_copy_holds_back_the_host() -> None:
    by = call("cudaMemcpyAsync", 3.9, 6.1)
    work = (kernel(1, 4, launch(0)), kernel(8, 9, launch(7.9)))
    assert causes(trace(*work, copy(4, 6, by, memory="pageable"))) == [("synchronised", 2.0)]
    assert causes(trace(*work, copy(4, 6, by, memory="pinned"))) == [("late", 2.0)]


def test_a_late_launch_costs_its_gap_and_shows_it() -> None:
    late = findings(idle_from_4_to_6())["late"]
    assert late.cost_s == pytest.approx(2 * MS)
    assert [span.name for span in late.evidence] == ["cudaLaunchKernel", "GPU 0 idle", "gemm"]
    assert list(findings(idle_from_4_to_6(launched=0.1))) == ["queued"]


@pytest.mark.parametrize(
    ("kind", "every_ms", "lasts_ms", "ahead_ms", "cause"),
    [
        (kernel, 0.01, 0.003, 0.006, "small"),
        (kernel, 0.03, 0.02, 0.006, "late"),  # a larger one
        (copy, 0.01, 0.003, 0.006, "late"),
        (kernel, 0.2, 0.003, 0.006, "late"),  # after a longer gap its size does not matter
        (kernel, 0.01, 0.003, 1, "queued"),
    ],
)
def test_small_kernels_are_those_that_take_no_longer_than_their_launches(
    kind, every_ms, lasts_ms, ahead_ms, cause
) -> None:
    times = [i * every_ms for i in range(100)]
    every = causes(trace(*(kind(t, t + lasts_ms, launch(t - ahead_ms)) for t in times)))
    assert every == [(cause, pytest.approx(every_ms - lasts_ms))] * 99


def test_gaps_within_the_error_of_a_profiler_have_no_cause() -> None:
    close = trace(kernel(0, 1), kernel(1.0019, 2), kernel(2.0021, 3))
    assert causes(close) == [("unknown", 0.0021)]


def test_copies_of_pageable_memory() -> None:
    pageable = copy(2, 6, memory="pageable", size=8_000_000)
    every = findings(trace(kernel(0, 4), pageable, kernel(6, 9)))
    assert list(every) == ["pageable"]
    assert every["pageable"].cost_s == pytest.approx(2 * MS), "what no compute hides"
    assert every["pageable"].why.startswith("1 copy, 8.00 MB at 2.00 GB/s:")
    assert findings(trace(kernel(0, 9), pageable)) == {}


def test_copies_on_the_stream_that_computes() -> None:
    def run(stream: str) -> list[str]:
        work = [kernel(i * 3, i * 3 + 2) for i in range(3)]
        copies = [copy(i * 3 + 2, i * 3 + 3, stream=stream) for i in range(3)]
        return list(findings(trace(*work, *copies)))

    assert run("7") == ["one stream"]
    assert run("9") == ["bare copies"]
    shared = findings(trace(kernel(0, 2), copy(2, 3, stream="7")))["one stream"]
    assert shared.cost_s == pytest.approx(1 * MS)
    assert "(stream 7)" in shared.why
    assert findings(trace(kernel(0, 2), copy(2, 3, stream="7", way="within"))) == {}
    unknown = [replace(work, stream="") for work in (kernel(0, 2), copy(2, 3))]
    assert list(findings(trace(*unknown))) == ["bare copies"]


@pytest.mark.parametrize(
    ("size", "cause"),
    [(65_535, "small copies"), (65_536, "bare copies"), (None, "bare copies")],
)
def test_small_copies(size: int | None, cause: str) -> None:
    assert list(findings(trace(kernel(0, 2), copy(2, 3, size=size)))) == [cause]


def test_the_evidence_is_what_nothing_hid() -> None:
    copies = [copy(i, i + 0.9 + i / 100) for i in range(5)]  # the longest behind the kernel
    finding = findings(trace(kernel(3.5, 9), *copies))["bare copies"]
    assert [round(span.start_s / MS) for span in finding.evidence] == [2, 1, 0]


def test_communication_that_nothing_hides() -> None:
    reduce = kernel(3, 6, stream="20", kind="communication", name="ncclDevKernel_AllReduce")
    every = findings(trace(kernel(0, 4), reduce, kernel(6, 8)))
    assert list(every) == ["communication"]
    assert every["communication"].cost_s == pytest.approx(2 * MS)
    assert findings(trace(kernel(0, 8), reduce)) == {}
    assert findings(trace(reduce)) == {}, "nothing could hide it"


def test_gpus_that_take_turns() -> None:
    one, other = kernel(0, 4), kernel(3.8, 7, gpu="GPU 1")
    finding = findings(trace(one, other))["turns"]
    assert finding.cost_s == pytest.approx(3 * MS)
    assert finding.where == "GPU 0 and GPU 1"
    assert "turns" not in findings(trace(one, kernel(1, 4, gpu="GPU 1")))
    assert "turns" not in findings(trace(one, copy(4, 7, gpu="GPU 1")))
    assert "turns" not in findings(trace(one, kernel(4, 7, gpu="")))


def test_the_most_expensive_comes_first_and_the_cheap_are_apart() -> None:
    work = (kernel(0, 100, launch(-1)), kernel(110, 200, launch(109)), copy(200, 230, launch(0)))
    late = kernel(230.5, 231, launch(230.4), stream="8")
    expensive, cheap = Report(trace(*work, late), name="t").findings
    costs = [(finding.cause, round(finding.cost_s / MS, 6)) for finding in expensive]
    assert (costs, cheap) == ([("bare copies", 30), ("late", 10.5)], [])
    brief = (kernel(0, 100, launch(-1)), kernel(100.5, 200, launch(100.4)))
    expensive, cheap = Report(trace(*brief), name="t").findings
    assert (expensive, [finding.cause for finding in cheap]) == ([], ["late"])
