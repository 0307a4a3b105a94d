"""Records in doubt: what they cost, and what is not known of them."""

from trace_files import BASE_US, call, event, kernel, kineto_events

from autopar.traces.chrome import Events
from autopar.traces.trace import UNKNOWN

AMPERE = {"deviceProperties": [{"id": 0, "computeMajor": 8}]}


def read(*events, **header):
    return Events(events).trace(header)


def test_what_is_too_short_for_the_clock_or_far_off_costs_no_more_than_itself():
    far = [kernel("bad", 4e9, 0.1, 99), event("cpu_op", "late", 4e9, 1.0)]
    work = [kernel("gemm", 300.0 + i, 0.9) for i in range(200)]
    trace = read(*kineto_events(), *work, kernel("bad", 500.0, 0.0), *far)
    assert (trace.doubts.keys(), len(trace.work)) == ({"host"}, 203)
    assert "2 of 205 records of GPU 0 can't be right, 0.6 %" in trace.warnings[0]


def test_work_that_was_launched_before_the_recording_may_be_of_a_graph():
    nodes = [kernel("node", 300.0 + 25 * i, 50.0, 9) for i in range(9)]
    assert read(*kineto_events(), *nodes, **AMPERE).remarks == ()


def test_a_trace_may_count_from_zero():
    host = event("cpu_op", "aten::mm", 0.0, 9.0), call("cudaLaunchKernel", 0.0, 5.0, 1)
    every = (*host, kernel("mm", 9.0, 2.0, 1))
    trace = read(*(each | {"ts": each["ts"] - BASE_US} for each in every))
    assert (trace.remarks, len(trace.host.of("call")), len(trace.host.of("operator"))) == ((), 1, 1)


def test_of_several_processes_each_has_its_threads_and_shared_numbers_tell_nothing():
    host = [call("cudaLaunchKernel", 20.0 * i, 5.0, i) for i in (1, 2)]
    other = call("cudaLaunchKernel", 30.0, 5.0, 2) | {"pid": 7}
    work = [kernel("mm", 100.0 * i, 9.0, i) for i in (1, 2)]
    trace = read(*host, other, *work)
    assert {span.lane for span in trace.host.of("call").spans()} == {
        "host",
        "host process 7 thread 2",
    }
    assert [launch == UNKNOWN for launch in trace.work.launches] == [False, True]
    assert "Several processes are in it" in trace.warnings[0]
    flushes = [event("overhead", "Buffer Flush", 50.0, 9.0) | {"pid": pid} for pid in (-1, 0)]
    alone = read(*host, *flushes, call("cudaFree", 90.0, 5.0, 9), *work)
    assert alone.warnings == ()
    names = ["cudaLaunchKernel", "cudaLaunchKernel", *["profiler: Buffer Flush"] * 2, "cudaFree"]
    assert [span.name for span in alone.host.of("call").spans()] == names
