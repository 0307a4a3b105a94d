"""What GPUs did: by hand, and against brute force on random work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import MS, Activity, call, copy, kernel, launch, named, operator, trace, work_of

from autopar.timeline.intervals import length_s
from autopar.traces.utilization import OTHER_LANES, view_of


def test_the_bound_is_the_busiest_of_computing_and_each_direction_of_copies() -> None:
    computing = trace(kernel(0, 4), kernel(6, 8), copy(3, 7))
    assert view_of(computing).usages[0].bound == ("compute", pytest.approx(6 * MS))
    copying = trace(kernel(0, 1), copy(1, 4), copy(1, 3, way="from host"))
    assert view_of(copying).usages[0].bound == ("GPU 0 copies to host", pytest.approx(3 * MS))


def test_a_range_takes_all_its_occurrences_and_the_work_launched_in_them() -> None:
    ranges = (named("step", 0, 2), named("step", 10, 12), named("other", 4, 5))
    work = (
        kernel(1, 4, launch(0.5)),  # launched within, ends later
        kernel(5, 6, launch(4.5)),  # of the other range
        kernel(9, 11, launch(8)),  # launched before, runs on in the second
        kernel(11.5, 12, launch(11)),
    )
    view = view_of(trace(*work, ranges=ranges), "step")
    assert [round(span.end_s / MS) for span in view.occurrences.spans()] == [4, 12]
    assert (view.window / MS).ravel().tolist() == pytest.approx([0, 4, 10, 12])
    (usage,) = view.usages
    assert usage.work.times_s / MS == pytest.approx(np.array([(1, 4), (10, 11), (11.5, 12)]))
    assert length_s(usage.idle) == pytest.approx(1.5 * MS)
    assert view.start_s == 0
    every = view_of(trace(*work, ranges=ranges), "*t*e?").occurrences
    assert [span.name for span in every.spans()] == ["step", "other", "step"]
    view = view_of(trace(copy(0, 4), copy(5, 6), ranges=(named("r", 2, 8),)), "r")
    sizes = [work.size_bytes for work in work_of(view.trace)]
    assert sizes == [None, 1_000_000], "nobody knows how much a part of a copy moved"


def test_the_window_goes_on_while_the_host_is_recorded() -> None:
    host = {"calls": (call("cudaFree", -2, -1),), "operators": (operator("mm", 5, 6),)}
    assert (view_of(trace(kernel(0, 4), **host)).window / MS).tolist() == [[-2, 6]]
    assert (view_of(trace(kernel(0, 4))).window / MS).tolist() == [[0, 4]]
    assert (view_of(trace(**host)).window / MS).tolist() == [[-2, 6]]


def test_one_gpu_alone() -> None:
    several = trace(*(kernel(i, i + 1, gpu=f"rank {i} GPU {i % 2}") for i in range(4)))
    for name, there in (("rank 2 GPU 0", [2]), ("1", [1, 3]), ("rank [01]*", [0, 1])):
        view = view_of(several, gpu=name)
        assert [usage.name for usage in view.usages] == [f"rank {i} GPU {i % 2}" for i in there]
    with pytest.raises(ValueError, match="no GPU '7'; its GPUs are: rank 0 GPU 0, rank 1"):
        view_of(several, gpu="7")


def test_communication_is_no_bound_and_copies_within_are_none_over_the_bus() -> None:
    reduce = kernel(0, 9, stream="20", kind="communication")
    (usage,) = view_of(trace(kernel(0, 4), reduce, copy(4, 9, way="within"))).usages
    assert usage.bound == ("compute", pytest.approx(4 * MS))
    assert usage.hidden_s("copy") == 0
    assert view_of(trace(reduce)).usages[0].bound == ("compute", 0)


def test_a_range_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"no range 'stp'; its ranges are: 'step'"):
        view_of(trace(kernel(0, 1), ranges=(named("step", 0, 1),)), "stp")
    with pytest.raises(ValueError, match=r"its ranges are: none"):
        view_of(trace(kernel(0, 1)), "step")


def test_nothing_is_said_of_what_is_in_doubt() -> None:
    doubtful = trace(
        kernel(0, 4),
        kernel(-99, 99, gpu="GPU 1"),
        doubts={"GPU 1": "Two of its kernels overlap on one stream."},
    )
    view = view_of(doubtful)
    assert [usage.name for usage in view.usages] == ["GPU 0"]
    assert length_s(view.window) == pytest.approx(4 * MS), "the other's times have no part in it"
    host = trace(kernel(0, 1, launch(0)), ranges=(named("r", 0, 1),), doubts={"host": "Late."})
    assert (
        len(view_of(host).trace.host.of("call")) == len(view_of(host).trace.host.of("range")) == 0
    )
    assert work_of(view_of(host).trace)[0].launch is None
    with pytest.raises(ValueError, match=r"none\. Late\."):
        view_of(host, "r")


def test_lanes_of_no_gpu_come_last_and_no_work_makes_no_usage() -> None:
    mixed = trace(kernel(0, 1, gpu=""), *(kernel(0, 1, gpu=f"GPU {i}") for i in (10, 9, 0)))
    names = [usage.name for usage in view_of(mixed).usages]
    assert names == ["GPU 0", "GPU 9", "GPU 10", OTHER_LANES]
    assert view_of(trace()).usages == ()
    assert view_of(trace(calls=(call("cudaFree", 1, 2),))).usages == ()


def random_work(gpu: str, start: int, length: int, stream: str, way: str, kind: str) -> Activity:
    if kind == "copy":
        return copy(start, start + length, gpu=gpu, way=way)
    return kernel(start, start + length, gpu=gpu, stream=stream, kind=kind)


_WORK = st.builds(
    random_work,
    st.sampled_from(["GPU 0", "GPU 1"]),
    st.integers(0, 20),
    st.integers(1, 6),
    st.sampled_from("123"),
    st.sampled_from(["to host", "from host"]),
    st.sampled_from(["compute", "communication", "copy"]),
)


@settings(deadline=None, derandomize=True)
@given(st.lists(_WORK, min_size=1, max_size=12))
def test_figures_against_brute_force(work: list[Activity]) -> None:
    view = view_of(trace(*work))

    def when(chosen: list[Activity]) -> set[int]:
        spans = [(round(a.span.start_s / MS), round(a.span.end_s / MS)) for a in chosen]
        return {tick for start, end in spans for tick in range(start, end)}

    window = set(range(min(when(work)), max(when(work)) + 1))
    for usage in view.usages:
        mine = [a for a in work if a.gpu == usage.name]
        kinds = {kind: [a for a in mine if a.span.kind == kind] for kind in usage.sorts}
        compute = when(kinds.get("compute", []))
        for kind, chosen in kinds.items():
            assert length_s(usage.when(kind)) == pytest.approx(len(when(chosen)) * MS)
            assert usage.hidden_s(kind) == pytest.approx(len(when(chosen) & compute) * MS)
            exposed_ms = length_s(usage.exposed(trace(*chosen).work)) / MS
            assert exposed_ms == pytest.approx(len(when(chosen) - compute))
        assert length_s(usage.idle) == pytest.approx(len(window - when(mine)) * MS)
