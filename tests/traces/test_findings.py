"""Findings: each there where it should be, with its cost by hand, and not where it should not."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import MS, call, copy, kernel, launch, trace

from autopar.traces.findings import CAUSES, Finding
from autopar.traces.idle import held_back
from autopar.traces.report import Report
from autopar.traces.trace import Trace

ROOT = Path(__file__).parents[2]
SYNC = "cudaStreamSynchronize"


def findings(of: Trace) -> dict[str, Finding]:
    report = Report(of, name="t")
    dear, cheap = report.findings
    return {finding.cause: finding for finding in (*dear, *cheap)}


def causes(of: Trace) -> list[tuple[str, float]]:
    gaps = Report(of, name="t").gaps["GPU 0"]
    return [(gap.cause, round(gap.duration_s / MS, 6)) for gap in gaps]


@pytest.mark.parametrize("page", sorted({cause.page for cause in CAUSES.values()} - {""}))
def test_every_page_that_is_named_exists(page: str) -> None:
    stem = page.removesuffix(".html")
    places = [ROOT / "gallery" / f"{stem.removeprefix('auto_gallery/')}.py"]
    places += [ROOT / "docs" / f"{stem}{suffix}" for suffix in (".rst", ".md")]
    assert any(place.is_file() for place in places), page


def test_the_checklist_has_every_finding_and_its_page() -> None:
    text = (ROOT / "docs" / "howto" / "why_is_there_no_overlap.md").read_text(encoding="utf-8")
    findings = [cause for cause in CAUSES.values() if cause.title]
    assert len(findings) == 11
    for cause in findings:
        assert f"**{cause.title}**" in text
        assert f"(../{cause.page.removesuffix('.html')})" in text


def test_a_wait_in_which_the_work_ran_out_costs_until_the_next_begins() -> None:
    wait = call(SYNC, 0.2, 4.1)
    found = findings(trace(kernel(1, 4, launch(0)), kernel(6, 9, launch(5.9)), calls=(wait,)))
    assert list(found) == ["synchronised"]
    one = found["synchronised"]
    assert one.cost_s == pytest.approx(2 * MS)
    assert one.where == "GPU 0"
    assert SYNC in one.why
    assert [span.name for span in one.evidence] == [SYNC, "GPU 0 idle", "gemm"]
    assert one.evidence[1].start_s == pytest.approx(4 * MS)
    assert one.evidence[1].end_s == pytest.approx(6 * MS)


@pytest.mark.parametrize(
    ("wait", "second", "cause"),
    [
        ((SYNC, 4.5, 4.6), 5.9, "late"),  # it found the work done
        ((SYNC, 0.2, 3.9), 5.9, "late"),  # it ended before the work did
        ((SYNC, 0.2, 4.1), 0.1, "queued"),  # the next work was launched before it
        (("cudaEventRecord", 0.2, 4.1), 5.9, "late"),  # it waits for nothing
    ],
)
def test_an_idle_gpu_without_a_wait_to_blame_is_no_such_finding(
    wait: tuple[str, float, float], second: float, cause: str
) -> None:
    work = (kernel(1, 4, launch(0)), kernel(6, 9, launch(second)))
    assert causes(trace(*work, calls=(call(*wait),))) == [(cause, 2.0)]


def test_a_wait_of_another_thread_is_not_to_blame() -> None:
    work = (kernel(1, 4, launch(0)), kernel(6, 9, launch(5.9)))
    other = call(SYNC, 0.2, 4.1, thread="thread 2")
    assert causes(trace(*work, calls=(other,))) == [("late", 2.0)]


def test_a_wait_at_the_end_leaves_nothing_idle() -> None:
    assert findings(trace(kernel(1, 4, launch(0)), calls=(call(SYNC, 0.2, 9),))) == {}


def test_without_launches_a_wait_is_enough_and_nothing_else_is_guessed() -> None:
    work = (kernel(1, 4), kernel(6, 9))
    assert causes(trace(*work)) == [("unknown", 2.0)]
    assert findings(trace(*work)) == {}
    assert causes(trace(*work, calls=(call(SYNC, 0, 4.1),))) == [("synchronised", 2.0)]
    doubtful = trace(*work, calls=(call(SYNC, 0, 4.1),), doubts={"host": "Its clock jumps."})
    assert causes(doubtful) == [("unknown", 2.0)]


def test_a_nested_wait_is_found_by_its_outer_call() -> None:
    calls = (call("cudaMemcpy", 0.2, 4.2), call(SYNC, 0.3, 0.4))
    work = (kernel(1, 4, launch(0)), kernel(6, 9, launch(5.9)))
    assert causes(trace(*work, calls=calls)) == [("synchronised", 2.0)]


def test_allocating_while_there_is_nothing_to_do() -> None:
    work = (kernel(1, 4, launch(0)), kernel(6, 9, launch(5.9)))
    long, brief = call("cudaHostAlloc", 4.2, 5.4), call("cudaHostAlloc", 4.2, 4.9)
    assert causes(trace(*work, calls=(long,))) == [("allocated", 2.0)]
    assert causes(trace(*work, calls=(brief,))) == [("late", 2.0)], "less than half of the gap"
    assert causes(trace(*work, calls=(call("cudaFree", 0.5, 4.1),))) == [("allocated", 2.0)]
    found = findings(trace(*work, calls=(long,)))["allocated"]
    assert found.cost_s == pytest.approx(2 * MS)
    assert "cudaHostAlloc" in found.why
    behind = (kernel(1, 7, launch(0)), kernel(7, 9, launch(6.0)))
    assert findings(trace(*behind, calls=(long,))) == {}, "hidden behind work"


def test_late_launches() -> None:
    found = findings(trace(kernel(1, 4, launch(0)), kernel(6, 9, launch(5.9))))
    assert list(found) == ["late"]
    assert found["late"].cost_s == pytest.approx(2 * MS)
    assert [span.name for span in found["late"].evidence] == [
        "cudaLaunchKernel",
        "GPU 0 idle",
        "gemm",
    ]
    full = (kernel(1, 4, launch(0)), kernel(4, 9, launch(0.1)))
    assert findings(trace(*full)) == {}


def test_small_kernels() -> None:
    small = [kernel(i * 0.01, i * 0.01 + 0.003, launch(i * 0.01 - 0.006)) for i in range(100)]
    found = findings(trace(*small))
    assert list(found) == ["small"]
    assert found["small"].cost_s == pytest.approx(99 * 0.007 * MS)
    large = [kernel(i * 0.03, i * 0.03 + 0.02, launch(i * 0.03 - 0.006)) for i in range(100)]
    assert list(findings(trace(*large))) == ["late"]
    ahead = [kernel(i * 0.01, i * 0.01 + 0.003, launch(i * 0.005 - 1)) for i in range(100)]
    assert list(findings(trace(*ahead))) == ["queued"]


def test_work_that_stood_in_its_queue() -> None:
    found = findings(trace(kernel(1, 4, launch(0)), kernel(6, 9, launch(0.1), stream="8")))
    assert list(found) == ["queued"]
    assert found["queued"].cost_s == pytest.approx(2 * MS)


def test_copies_of_pageable_memory() -> None:
    pageable = copy(2, 6, memory="pageable", size=8_000_000)
    found = findings(trace(kernel(0, 4), pageable, kernel(6, 9)))
    assert list(found) == ["pageable"]
    assert found["pageable"].cost_s == pytest.approx(2 * MS), "what no compute hides"
    assert "1 copy" in found["pageable"].why
    assert "8.00 MB at 2.00 GB/s" in found["pageable"].why
    assert findings(trace(kernel(0, 9), pageable)) == {}
    assert "pageable" not in findings(trace(kernel(0, 4), copy(2, 6), kernel(6, 9)))


def test_a_pageable_copy_holds_back_the_host() -> None:
    by = call("cudaMemcpyAsync", 3.9, 6.1)
    work = (kernel(1, 4, launch(0)), kernel(8, 9, launch(7.9)))
    assert causes(trace(*work, copy(4, 6, by, memory="pageable"))) == [("synchronised", 2.0)]
    assert causes(trace(*work, copy(4, 6, by, memory="pinned"))) == [("late", 2.0)]


def test_copies_on_the_stream_that_computes() -> None:
    def run(stream: str) -> list[str]:
        work = [kernel(i * 3, i * 3 + 2) for i in range(3)]
        return list(
            findings(trace(*work, *(copy(i * 3 + 2, i * 3 + 3, stream=stream) for i in range(3))))
        )

    assert run("7") == ["one stream"]
    assert run("9") == ["bare copies"]
    shared = findings(trace(kernel(0, 2), copy(2, 3, stream="7")))["one stream"]
    assert shared.cost_s == pytest.approx(1 * MS)
    assert "(stream 7)" in shared.why
    assert findings(trace(kernel(0, 2), copy(2, 3, stream="7", way="within"))) == {}


def test_small_copies_and_copies_that_are_the_longer_part() -> None:
    assert list(findings(trace(kernel(0, 2), copy(2, 3, size=4096)))) == ["small copies"]
    found = findings(trace(kernel(0, 2), copy(2, 9)))["bare copies"]
    assert "can't hide them all" in found.why
    assert "can't hide" not in findings(trace(kernel(0, 9), copy(9, 10)))["bare copies"].why


def test_communication_that_nothing_hides() -> None:
    reduce = kernel(3, 6, stream="20", kind="communication", name="ncclDevKernel_AllReduce")
    found = findings(trace(kernel(0, 4), reduce, kernel(6, 8)))
    assert list(found) == ["communication"]
    assert found["communication"].cost_s == pytest.approx(2 * MS)
    assert "streams of their own" in found["communication"].why
    assert findings(trace(kernel(0, 8), reduce)) == {}
    same = kernel(4, 6, kind="communication")
    assert "computes too" in findings(trace(kernel(0, 4), same))["communication"].why


def test_gpus_that_take_turns() -> None:
    one, other = kernel(0, 4), kernel(4, 7, gpu="GPU 1")
    found = findings(trace(one, other))["turns"]
    assert found.cost_s == pytest.approx(3 * MS)
    assert found.where == "GPU 0 and GPU 1"
    assert "turns" not in findings(trace(one, kernel(1, 4, gpu="GPU 1")))


def test_the_dearest_comes_first_and_the_cheap_are_apart() -> None:
    work = (kernel(0, 100, launch(-1)), kernel(110, 200, launch(109)), copy(200, 230, launch(0)))
    late = kernel(230.5, 231, launch(230.4), stream="8")
    report = Report(trace(*work, late), name="t")
    dear, cheap = report.findings
    assert [(f.cause, round(f.cost_s / MS, 6)) for f in dear] == [
        ("bare copies", 30),
        ("late", 10.5),
    ]
    assert cheap == []
    brief = (kernel(0, 100, launch(-1)), kernel(100.5, 200, launch(100.4)))
    report = Report(trace(*brief), name="t")
    assert [[f.cause for f in group] for group in report.findings] == [[], ["late"]]


def test_gaps_within_the_error_of_a_profiler_have_no_cause() -> None:
    assert causes(trace(kernel(0, 1), kernel(1.0019, 2), kernel(2.0021, 3))) == [
        ("unknown", 0.0021)
    ]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("cudaDeviceSynchronize_v3020", "synchronised"),
        ("cudaMemcpy_ptds", "synchronised"),
        ("cuMemcpyDtoH_v2", "synchronised"),
        ("cudaMemcpyAsync", ""),
        ("cuMemcpyHtoDAsync_v2", ""),
        ("cudaMalloc_v3020", "allocated"),
        ("cudaMallocAsync", ""),
        ("cuMemHostAlloc", "allocated"),
        ("cudaStreamWaitEvent", ""),
    ],
)
def test_what_calls_hold_back_the_host(name: str, cause: str) -> None:
    assert held_back(name) == cause
