"""What GPUs did: by hand, and against brute force on random work."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import MS, parsed, trace, work_of

from autopar.timeline.intervals import length_s
from autopar.traces.report import Report
from autopar.traces.utilization import OTHER_LANES, View


def test_the_bound_is_the_busiest_of_computing_and_each_direction_of_copies():
    for text, resource, bound_ms in (
        ("kernel 0..4; kernel 6..8; copy 3..7", "compute", 6),
        ("kernel 0..1; copy 1..4; copy 1..3 way=from_host", "GPU 0 copies to host", 3),
        ("kernel 0..4; communication 0..9 stream=20; copy 4..9 way=within", "compute", 4),
        ("communication 0..9", "compute", 0),
    ):
        (usage,) = View(parsed(text)).usages
        assert usage.bound == (resource, pytest.approx(bound_ms * MS))
    assert usage.hidden_s("copy") == 0


def test_a_range_takes_all_its_occurrences_and_the_work_launched_in_them():
    of = parsed(
        "range step 0..2; range step 10..12; range other 4..5;"
        "kernel 1..4 by 0.5; kernel 5..6 by 4.5; kernel 9..11 by 8; kernel 11.5..12 by 11"
    )
    view = View(of, "step")
    assert [round(span.end_s / MS) for span in view.occurrences.spans()] == [4, 12]
    assert (view.window / MS).ravel().tolist() == pytest.approx([0, 4, 10, 12])
    (usage,) = view.usages
    assert usage.work.times_s / MS == pytest.approx(np.array([(1, 4), (10, 11), (11.5, 12)]))
    assert length_s(usage.idle) == pytest.approx(1.5 * MS)
    assert view.start_s == 0
    every = View(of, "*t*e?").occurrences
    assert [span.name for span in every.spans()] == ["step", "other", "step"]
    view = View(parsed("copy 0..4; copy 5..6; range r 2..8"), "r")
    sizes = [work.size_bytes for work in work_of(view.trace)]
    assert sizes == [None, 1_000_000], "nobody knows how much a part of a copy moved"
    with pytest.raises(ValueError, match=r"no range 'stp'; its ranges are: 'other', 'step'"):
        View(of, "stp")


def test_the_window_goes_on_while_the_host_is_recorded():
    host = "call cudaFree -2..-1; operator mm 5..6"
    assert (View(parsed(f"kernel 0..4; {host}")).window / MS).tolist() == [[-2, 6]]
    assert (View(parsed("kernel 0..4")).window / MS).tolist() == [[0, 4]]
    assert (View(parsed(host)).window / MS).tolist() == [[-2, 6]]
    assert View(parsed(host)).usages == View(trace()).usages == []


def test_one_gpu_alone():
    several = parsed("; ".join(f"kernel {i}..{i + 1} gpu=rank_{i}_GPU_{i % 2}" for i in range(4)))
    for name, there in (("rank 2 GPU 0", [2]), ("1", [1, 3]), ("rank [01]*", [0, 1])):
        view = View(several, gpu=name)
        assert [usage.name for usage in view.usages] == [f"rank {i} GPU {i % 2}" for i in there]
    with pytest.raises(ValueError, match="no GPU '7'; its GPUs are: rank 0 GPU 0, rank 1"):
        View(several, gpu="7")
    mixed = parsed("kernel 0..1 gpu=; kernel 0..1 gpu=10; kernel 0..1 gpu=9; kernel 0..1")
    names = [usage.name for usage in View(mixed).usages]
    assert names == ["GPU 0", "GPU 9", "GPU 10", OTHER_LANES]


def test_nothing_is_said_of_what_is_in_doubt():
    doubtful = replace(parsed("kernel 0..4; kernel -99..99 gpu=1"), doubts={"GPU 1": "Late."})
    view = View(doubtful)
    assert [usage.name for usage in view.usages] == ["GPU 0"]
    assert length_s(view.window) == pytest.approx(4 * MS), "the other's times have no part in it"
    host = replace(parsed("kernel 0..1 by 0; range r 0..1"), doubts={"host": "Late."})
    assert len(View(host).trace.host) == 0
    assert work_of(View(host).trace)[0].launch is None
    with pytest.raises(ValueError, match=r"none\. Late\."):
        View(host, "r")


def test_what_a_cut_file_lacks_is_no_idle_time():
    work = "kernel 0.001..4 by 0; kernel 0.001..3 gpu=1 by 0"
    whole = parsed(f"{work}; call cudaFree 4..20; range step 0..10; range step 11..12")
    cut = replace(whole, is_cut=True)
    for seen, last_s, causes in ((whole, 20, {"brief", "ended"}), (cut, 4, {"brief", "unknown"})):
        report = Report(seen, name="t")
        assert report.window_s == pytest.approx(last_s * MS)
        assert {*report.figures["GPU 1"]["idle_by_cause_s"]} == causes
    assert len(View(cut, "step").occurrences) == len(View(cut).ranges) == 1
    assert length_s(View(cut, gpu="1").window) == pytest.approx(4 * MS)


_TIMES = st.builds(
    lambda start, length: f"{start}..{start + length}", st.integers(0, 20), st.integers(1, 6)
)
_COPY = st.sampled_from(["copy {} gpu={} way=to_host", "copy {} gpu={} way=from_host"])
_KERNEL = st.sampled_from(["kernel {} gpu={} stream=1", "kernel {} gpu={} stream=2"])
_SENT = st.just("communication {} gpu={} stream=3")
_WORK = st.builds(str.format, _COPY | _KERNEL | _SENT, _TIMES, st.integers(0, 1))


@given(st.lists(_WORK, min_size=1, max_size=12))
def test_figures_against_brute_force(texts):
    def when(chosen):
        spans = [(round(a.span.start_s / MS), round(a.span.end_s / MS)) for a in chosen]
        return {tick for start, end in spans for tick in range(start, end)}

    work = work_of(of := parsed("; ".join(texts)))
    window = set(range(min(when(work)), max(when(work)) + 1))
    for usage in View(of).usages:
        mine = [a for a in work if a.gpu == usage.name]
        compute = when([a for a in mine if a.span.kind == "compute"])
        for kind in usage.sorts:
            ticks = when([a for a in mine if a.span.kind == kind])
            assert length_s(usage.when(kind)) == pytest.approx(len(ticks) * MS)
            assert usage.hidden_s(kind) == pytest.approx(len(ticks & compute) * MS)
        assert length_s(usage.idle) == pytest.approx(len(window - when(mine)) * MS)
