"""Records in doubt: what they cost, and what is not known of them."""

import copy as copies
import math
import re

import pytest
from trace_builder import work_of
from trace_files import BASE_US, call, copy, event, kernel, kineto_events

from autopar.traces.chrome import Events
from autopar.traces.report import Report

AMPERE = {"deviceProperties": [{"id": i, "computeMajor": 8} for i in range(2)]}
HOPPER = {"deviceProperties": [{"id": 0, "computeMajor": 9}]}
LONG = kernel("long", 1000.0, 50_000.0, stream=8)  # beside which little is lost with 5 µs


def read(*events, **header):
    return Events([*kineto_events(), *events]).trace(header)


@pytest.mark.parametrize(
    ("wrong", "why", "left_out"),
    [
        (kernel("bad", -BASE_US, 5.0), r"starts at 0\.0 µs and takes 5\.0 µs", True),
        (kernel("bad", 500.0, -1.0), r"takes -1\.0 µs", True),
        (kernel("bad", 500.0, math.nan), "takes nan µs", True),
        (kernel("bad", 1e308, 2.0), "starts at 1e.308 µs", True),
        (kernel("bad", 2e12, 5.0), r"starts at 66927\d+\.0 µs", True),  # weeks after all others
        (kernel("bad", 500.0, 1e13), r"takes 1(0){13}\.0 µs", True),
        (kernel("bad", 500.0, 10**400), "takes nan µs", True),
        (kernel("bad", 500.0, True), "takes nan µs", True),
        (kernel("bad", 500.0, 5.0, stream=None), "of which GPU and stream", True),
        (kernel("bad", -300.0, 5.0, 1, stream=9), "which is before its launch", True),
        (kernel("bad", 7e7, 5.0, 1, stream=9), "or a minute away from all", True),
        (kernel("bad", -5e8, 5.0), "or a minute away from all that the host did", True),
        (kernel("bad", 7e7, 5.0), "or a minute away from all that the host did", True),
        (kernel("bad", 7e7, 5.0, 77), "or a minute away from all that the host did", True),
        (kernel("bad", 160.5, 50.0), "takes 50.0 µs, and overlaps other work of its stream", False),
        (kernel("bad", 100.0, 5.0), "takes 5.0 µs, and overlaps other work of its stream", True),
    ],
)
def test_what_cannot_be_costs_itself_and_much_of_it_its_gpu(wrong, why, left_out):
    trace = read(kernel("gemm", 40.0, 10.0, device=1), wrong, **AMPERE)
    assert trace.warnings == ()
    said = trace.doubts["GPU 0"]
    assert re.match(
        r"1 of [345] records of GPU 0 can't be right(, [\d.]+ % of what it did)?\.", said
    )
    assert re.search(f"The first: the record of 'bad' on (GPU 0|a GPU) .*{why}.*[.]$", said)
    assert len(trace.work) == 4 + (not left_out)
    small = read(LONG, wrong, **AMPERE)
    assert small.doubts == {}
    assert "they were left out or cut short" in small.warnings[0]
    assert len(small.work) == 4 + (not left_out)
    twice = read(wrong, copies.deepcopy(wrong), **AMPERE)
    assert re.match("2 of [456] records of GPU 0", twice.doubts["GPU 0"]), "counted, not repeated"


@pytest.mark.parametrize(
    "fine",
    [
        kernel("next", 170.5, 9.0),  # one ends as the next starts
        kernel("next", 169.6, 9.0),  # within the profiler's own tolerance
        kernel("next", 160.0, 9.0, stream=8),
        kernel("next", 160.0, 9.0, device=1),
        kernel("next", 19.2, 3.0, 1, stream=8),  # within tolerance of its launch
        kernel("next", 5e7, 3.0, 1, stream=8),  # a long queue
        kernel("next", 500.0, 9.0, 77),  # its launch was not recorded
        kernel("next", -5e7, 3.0, 77, stream=8),  # less than a minute before the host
        kernel("next", -5e8, 5e8, 77, stream=8),  # it waited long, as for another rank
        kernel("next", 5e7, 3.0, 77, stream=8),  # less than a minute after the host
        call("cudaGetDevice", 2.0, 0.0, 9),
    ],
)
def test_what_can_be_right_is_taken_without_a_word(fine):
    assert read(fine).remarks == ()


def test_a_gpu_of_which_nothing_can_be_right_is_in_doubt():
    asked = call("cudaLaunchKernel", 500.0, 5.0, 1)
    early = (kernel("bad", 10.0 * i, 5.0, 1) for i in range(1, 11))
    trace = Events([event("user_annotation", "step", 1.0, 600.0), asked, *early]).trace({})
    assert (len(trace.work), [*trace.doubts], trace.warnings) == (0, ["GPU 0"], ())
    doubts = read(kernel("bad", 500.0, 5.0, device="0"), kernel("k", 1, 2, device=1)).doubts
    assert list(doubts) == ["GPU 0", "GPU 1"], "what is of no known GPU may be of any"
    assert "the record of 'bad' on a GPU" in doubts["GPU 1"]


def test_what_is_cut_ends_where_it_overlaps():
    (bad,) = (
        w for w in work_of(read(LONG, kernel("bad", 160.5, 50.0), **AMPERE)) if "bad" in w.span.name
    )
    assert bad.span.duration_s == pytest.approx(40e-6)
    memory = copy("Memcpy HtoD (Pinned -> Device)", 165.5, 10.0, 4096, stream=7)
    (moved,) = (w for w in work_of(read(LONG, memory)) if "HtoD" in w.span.name)
    assert moved.span.duration_s == pytest.approx(5e-6), "copies wait on every GPU"
    assert moved.size_bytes is None


def test_kernels_of_a_stream_may_overlap_where_that_is_by_design():
    for header in (HOPPER, {}, {"deviceProperties": "none"}):
        trace = read(kernel("early", 160.5, 50.0), **header)
        assert (trace.remarks, len(trace.work)) == ((), 4)
        figures = Report(trace, name="t").figures["GPU 0"]
        assert figures["busy_s"] == pytest.approx(170.5e-6), "from 40 to 210.5 µs, each moment once"
        assert figures["kinds_busy_s"]["compute"] == pytest.approx(170.5e-6)
        assert figures["hidden_s"]["copy"] == pytest.approx(60e-6)
    nodes = [kernel("a", 200.5, 50.0, 5), kernel("b", 210.5, 50.0, 5)]
    assert read(call("cudaGraphLaunch", 35.0, 3.0, 5), *nodes, **AMPERE).remarks == ()
    nodes = [kernel("node", 300.0 + 25 * i, 50.0, 9) for i in range(9)]
    assert read(*nodes, **AMPERE).remarks == (), "launched before the recording, perhaps of a graph"


def test_no_kernel_of_a_stream_still_runs_when_the_second_after_it_begins_after_the_first():
    steps = [kernel("gemm", 1000.0 * i, 300.0) for i in range(1, 20)]
    for header in (HOPPER, AMPERE, {}):
        trace = read(kernel("long", 1010.0, 5e6), *steps, **header)
        assert list(trace.doubts) == ["GPU 0"], "the long one is wrong, or all within it"
        three = read(LONG, *(kernel("same", 500.0, 50.0) for _ in range(3)), **header)
        assert "can't be right" in three.warnings[0]
    early = [kernel("early", 300.0 + 40.0 * i, 90.0) for i in range(9)]
    two = [kernel("a", 900.0, 50.0), kernel("b", 900.0, 40.0), kernel("c", 949.5, 9.0)]
    assert read(*early, *two, **HOPPER).remarks == (), "each begins before the one before it ends"
    nodes = [kernel("long", 1010.0, 5e3, 5), *(kernel("b", 1e3 * i, 300.0, 5) for i in (2, 3, 4))]
    assert read(call("cudaGraphLaunch", 35.0, 3.0, 5), *nodes, **HOPPER).remarks == ()


def test_clocks_that_differ_a_little_cost_no_figure():
    trace = read(kernel("early", 15.0, 5.0, 1, stream=9))
    assert trace.warnings[0].startswith("Work starts up to 5.000 µs before its launch")
    assert (len(trace.warnings), trace.doubts) == (1, {})
    assert trace.alignment_error_s == pytest.approx(5e-6)


def test_a_call_that_cannot_be_puts_the_host_in_doubt_alone():
    for times in ((20.0, -1.0), (-BASE_US, 1.0), (20.0, "soon")):
        trace = read(call("cudaBad", *times, 9))
        assert list(trace.doubts) == ["host"]
        assert "'cudaBad' on host" in trace.doubts["host"]
        fine = [call("cudaGetDevice", 300.0 + i, 0.5, 100 + i) for i in range(200)]
        assert read(*fine, call("cudaBad", *times, 9)).doubts == {}
        assert len(trace.work) == 3


def test_what_is_far_from_all_else_costs_no_more_than_itself():
    far = [kernel("bad", 4e9, 0.1, 99), event("cpu_op", "late", 4e9, 1.0)]
    trace = read(
        *(kernel("gemm", 300.0 + i, 0.9) for i in range(200)), kernel("bad", 500.0, 0.0), *far
    )
    assert (trace.doubts.keys(), len(trace.work)) == ({"host"}, 203)
    assert "2 of 205 records of GPU 0 can't be right" in trace.warnings[0]
    later = kernel("gemm", 3e9, 0.9, 99), event("cpu_op", "late", 3e9, 1.0)  # a wait of 50 minutes
    assert read(*(kernel("gemm", 300.0 + i, 0.9) for i in range(200)), *later).doubts == {}


@pytest.mark.parametrize("sign", [-1, 1])
def test_work_that_goes_on_is_near_though_the_host_was_recorded_for_a_part_of_it(sign):
    """As where the profiler lost the host's records: it is no stray."""
    on = [kernel("step", 3e7 * i * sign, 1e6, 1_000 + i, stream=9) for i in range(1, 9)]
    trace = read(*on, kernel("stray", 6e8 * sign, 5.0, 77))
    assert (trace.doubts, len(trace.work)) == ({}, 11)
    assert "'stray' on GPU 0" in trace.warnings[0]
    assert read(*on).remarks == ()


def test_work_may_stand_for_minutes_behind_what_its_gpu_waits_in():
    """As in a collective, for a rank that writes a checkpoint; its twin is far from all else."""
    waits, behind = kernel("wait", 300.0, 9e7, 77, stream=20), kernel("gemm", 9.1e7, 5.0, 1)
    assert read(waits, behind).remarks == ()
    assert list(read(waits | {"dur": 9e6}, behind).warnings) != []


def test_long_before_the_host_is_too_early_only_where_launches_are_recorded():
    early, own = kernel("early", -5e8, 5.0), kernel("gemm", 500.0, 100.0)
    ranges = event("user_annotation", "step", 1.0, 600.0)
    asked = call("cudaLaunchKernel", 490.0, 5.0, 7)
    late = kernel("late", 5e8, 5.0)
    for host in ((), (ranges,), (ranges, call("cudaGetDevice", 20.0, 0.5, 9))):
        assert Events([early, own, late, *host]).trace({}).remarks == ()
    trace = Events([early, own | {"args": {**own["args"], "correlation": 7}}, asked]).trace({})
    assert (len(trace.work), [*trace.doubts]) == (1, ["GPU 0"])


def test_a_trace_may_count_from_zero():
    host = event("cpu_op", "aten::mm", 0.0, 9.0), call("cudaLaunchKernel", 0.0, 5.0, 1)
    every = (*host, kernel("mm", 9.0, 2.0, 1))
    trace = Events(each | {"ts": each["ts"] - BASE_US} for each in every).trace({})
    assert (trace.remarks, len(trace.host.of("call")), len(trace.host.of("operator"))) == ((), 1, 1)
    kernels = [kernel("mm", 10.0 * i - BASE_US, 5.0, i) for i in range(4)]
    assert Events(kernels).trace({}).remarks == ()


def test_of_several_processes_each_has_its_threads_and_numbers_of_launches_tell_nothing():
    host = [call("cudaLaunchKernel", 20.0 * i, 5.0, i) for i in (1, 2)]
    other = call("cudaLaunchKernel", 30.0, 5.0, 2) | {"pid": 7}
    work = [kernel("mm", 100.0 * i, 9.0, i) for i in (1, 2)]
    trace = Events([*host, other, *work]).trace({})
    lanes = {span.lane for span in trace.host.of("call").spans()}
    assert lanes == {"host", "host process 7 thread 2"}
    assert [activity.launch for activity in work_of(trace)] == [None, None]
    assert "Several processes are in it" in trace.warnings[0]
    flushes = [event("overhead", "Buffer Flush", 50.0, 9.0) | {"pid": pid} for pid in (-1, 0)]
    alone = Events([*host, *flushes, *work]).trace({})
    assert (alone.warnings, len(alone.host.of("call", "profiler"))) == ((), 4)
    assert None not in [activity.launch for activity in work_of(alone)]
