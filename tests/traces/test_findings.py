"""Findings: how gaps are split, what a finding says, and in which order they come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import (
    MS,
    Activity,
    call,
    copy,
    costs,
    gap,
    kernel,
    launch,
    named,
    on,
    operator,
    split,
    trace,
)

from autopar.timeline.span import Span
from autopar.traces.findings import CAUSES, Finding
from autopar.traces.report import Report
from autopar.traces.trace import Trace

ROOT = Path(__file__).parents[2]
SYNC = "cudaStreamSynchronize"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def all_findings(of: Trace) -> dict[str, Finding]:
    expensive, cheap = Report(of, name="t").findings
    return {finding.cause: finding for finding in (*expensive, *cheap)}


def test_the_checklist_has_every_finding_and_its_page() -> None:
    text = (ROOT / "docs" / "howto" / "why_is_there_no_overlap.md").read_text(encoding="utf-8")
    for cause in CAUSES.values():
        assert f"**{cause.title}**" in text
        assert f"(../auto_gallery/{cause.shown})" in text
        assert (ROOT / "gallery" / f"{cause.shown}.py").is_file()


def test_a_gap_is_split_over_all_that_happened_in_it() -> None:
    host = (call(SYNC, 1, 4.5), call("cudaMalloc", 4.6, 5))
    of = gap(*host, operators=(operator("aten::copy_", 5.2, 5.6),))
    assert split(of) == {
        "synchronised": 0.515,
        "allocated": 0.4,
        "cpu": 0.4,
        "elsewhere": 0.685,
    }
    # Without the wait the host would be ahead by all of it, without the rest by no more than it;
    # and to allocate takes as long without that wait.
    assert costs(of) == {"synchronised": 1.6, "allocated": 0.4, "cpu": 0.4, "elsewhere": 0.685}


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
    assert "idle while the host was in cudaMalloc, cudaFree." in finding.why
    assert [span.name for span in finding.evidence] == ["cudaMalloc", "GPU 0 idle", "gemm"]
    assert finding.evidence[1].start_s == pytest.approx(4 * MS)
    assert finding.evidence[1].end_s == pytest.approx(6 * MS)
    steps = (named("ProfilerStep#3", 0, 8), named("augment", 4.1, 5.9), named("crop", 5, 5.1))
    finding = all_findings(gap(ranges=steps))["elsewhere"]
    assert "Then it was in augment." in finding.why
    assert finding.evidence[0].name == "augment"
    nowhere = all_findings(gap())["elsewhere"]
    assert "no call of CUDA: it ran Python" in nowhere.why
    assert nowhere.evidence[0].name == "next launch: cudaLaunchKernel"


def test_a_long_launch_counts_whatever_it_launched() -> None:
    for name in ("cudaLaunchKernel", "cudaGraphLaunch"):
        long = call(name, 4.2, 5.7)  # of work that comes later
        work = (kernel(0.001, 4, launch(0)), kernel(6, 9, launch(5.985)), kernel(9, 10, long))
        assert split(trace(*work)) == {"launch": 1.5, "elsewhere": 0.5}


def test_nothing_is_idle_behind_work() -> None:
    behind = (kernel(0.001, 7, launch(0)), kernel(7, 9, launch(6.0)))
    assert costs(trace(*behind, calls=(call("cudaHostAlloc", 4.2, 5.4),))) == {}


def test_without_launches_nothing_is_guessed() -> None:
    work = (kernel(0, 40), kernel(42, 90))
    host = {"operators": (operator("aten::mm", 40, 42),), "calls": (call(SYNC, 1, 40.1),)}
    assert split(trace(*work, **host)) == {"unknown": 2}
    assert costs(trace(*work, **host)) == {}
    launched = (kernel(0, 40, launch(-1)), kernel(42, 90, launch(41.985)))
    assert split(trace(*launched, calls=host["calls"], doubts={"host": "Its clock jumps."})) == {
        "unknown": 2
    }


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
    assert len(Report(trace(*gpus), name="t").figures) == 1_000
    streams = [kernel(i, i + 0.9, launch(i - 5), stream=str(i)) for i in range(2_000)]
    assert len(Report(trace(*streams), name="t").figures["GPU 0"]["lanes_busy_s"]) == 2_000


def test_what_python_did_is_named_by_its_innermost_function() -> None:
    python = (named("train.py(9): step", 0, 9), named("json.py(3): load", 4.2, 5.8))
    assert "in json.py(3): load." in all_findings(gap(python=python))["elsewhere"].why
    assert all_findings(gap())["elsewhere"].why.endswith("Longest for 2.000 ms.")
