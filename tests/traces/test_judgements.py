"""Judgements: traces with a known answer, each with a twin in which the cause is not there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from judged_work import OF_WORK
from trace_builder import (
    behind_event,
    call,
    copy,
    costs,
    gap,
    kernel,
    launch,
    named,
    on,
    operator,
    other_thread,
    trace,
)

from autopar.traces.findings import CAUSES
from autopar.traces.trace import Trace

SYNC, WAIT, ASYNC = "cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaMemcpyAsync"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def small(every_ms: float, ahead_ms: float, *, lasts_ms: float = 0.003) -> Trace:
    """A hundred short kernels, each launched some time before by an operator of its own."""
    times = [0.02 + i * every_ms for i in range(100)]
    asked = [operator("aten::add", t - ahead_ms - 0.003, t - ahead_ms + 0.006) for t in times]
    work = (kernel(t, t + lasts_ms, launch(t - ahead_ms)) for t in times)
    return trace(*work, operators=tuple(asked))


def waiting(name: str) -> Trace:
    return gap(call(name, 0.2, 4.1))


def busy_with(name: str) -> Trace:
    return gap(call(name, 4.1, 5.9))


# What it is, its cause and cost in ms, the trace, and its twin.
JUDGEMENTS: Sequence[tuple[str, str, float, Trace, Trace]] = [
    # The host waits.
    ("ran out in a wait", "synchronised", 2, waiting(SYNC), gap(call(SYNC, 4.5, 4.55))),
    ("waited on into the gap", "synchronised", 2, gap(call(SYNC, 1, 5)), gap(call(SYNC, 1, 3.9))),
    ("a short wait", "synchronised", 0.215, gap(call(SYNC, 3.7, 4.2)), gap(call(SYNC, 3.99, 4.03))),
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
        "a thread waits that the launching one works for, and no bystander",
        "synchronised",
        2,
        other_thread(call(SYNC, 1, 4.9), handed={"thread 2": "thread 1"}),
        other_thread(call(SYNC, 1, 4.9)),
    ),
    (
        "asks again and again whether an event is done",
        "synchronised",
        2,
        gap(*(call("cudaEventQuery", 1 + i * 0.01, 1.002 + i * 0.01) for i in range(400))),
        gap(*(call("cudaEventQuery", 1 + i * 0.1, 1.002 + i * 0.1) for i in range(40))),
    ),
    (
        "what is unknown may be waited for all the same, if it takes longer",
        "synchronised",
        2,
        gap(call(SYNC, 1.9, 4.1)),
        gap(call(SYNC, 2.5, 4.0)),
    ),
    (
        "the loader would be waited for all the same",
        "synchronised",
        1,
        gap(call(SYNC, 0.2, 4.1), ranges=(named(LOADER, 4.9, 5.9),)),
        gap(call(SYNC, 0.2, 3.99), ranges=(named(LOADER, 3.99, 5.985),)),
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
    ("a module", "launch", 1.8, busy_with("cuLibraryLoadData"), busy_with("cuMemCreate")),
    ("first use", "launch", 1.8, busy_with("cudaFuncGetAttributes"), gap()),
    ("graphs", "launch", 1.8, busy_with("cudaGraphInstantiate"), busy_with("cudaMalloc")),
    (
        "loads a module",
        "launch",
        1.98,
        trace(kernel(0.001, 4, launch(0)), kernel(6, 9, call("cudaLaunchKernel", 4, 5.99))),
        trace(kernel(0.001, 4, launch(0)), kernel(6, 9, call("cudaLaunchKernel", 5.985, 5.99))),
    ),
    (
        "a graph of very many nodes, which begin as its launch ends",
        "launch",
        1.98,
        trace(kernel(0.001, 4, launch(0)), kernel(6, 9, call("cudaGraphLaunch", 4, 5.99))),
        trace(kernel(0.001, 4, launch(0)), kernel(6, 9, call("cudaGraphLaunch", 5.98, 5.99))),
    ),
    # PyTorch's operators.
    (
        "an operator computes on the CPU",
        "cpu",
        1.9,
        gap(operators=(operator("aten::index", 4, 5.9),)),
        gap(operators=(operator("aten::index", 4, 5.9, "thread 3"),)),
    ),
    (
        "an operator of the thread that hands over",
        "cpu",
        1.9,
        other_thread(operators=(operator("aten::index", 4, 5.9),), handed={"thread 2": "thread 1"}),
        other_thread(operators=(operator("aten::index", 4, 5.9),)),
    ),
    (
        "other ranks, on the CPU",
        "peers",
        1.8,
        gap(operators=(operator("c10d::allreduce_", 4.1, 5.9),)),
        gap(operators=(operator("aten::add", 4.1, 5.9),)),
    ),
    (
        "small kernels, one launch after the other",
        "operators",
        0.693,
        small(0.01, 0.006),
        small(0.01, 1),
    ),
    (
        "17 µs of Python between launches",
        "operators",
        2.475,
        small(0.028, 0.006),
        small(0.3, 0.006),
    ),
    ("60 µs of Python between launches", "operators", 6.633, small(0.07, 0.006), small(0.3, 0.006)),
    (
        "kernels of 1.2 µs",
        "brief",
        0.178,
        trace(*(kernel(i * 0.003, i * 0.003 + 0.0012) for i in range(100))),
        trace(*(kernel(i * 0.03, i * 0.03 + 0.0282) for i in range(100))),
    ),
    (
        "copies staged by the driver",
        "staged",
        0.38,
        trace(kernel(0, 4, launch(0)), copy(4.4, 6, call(ASYNC, 4, 6.1), memory="pageable")),
        trace(kernel(0, 4, launch(0)), copy(4.4, 6, call(ASYNC, 4, 6.1), memory="pinned")),
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
    (
        "between two operators for long",
        "elsewhere",
        0.8,
        gap(operators=(operator("mm", 3.9, 4.9), operator("mm", 5.7, 5.985))),
        gap(operators=(operator("mm", 3.9, 5.98),)),
    ),
    # Work that was launched.
    ("behind an event", "queued", 2, behind_event(call(WAIT, 0.1, 0.11)), behind_event()),
    (
        "an event of another GPU, which ends as this work begins",
        "queued",
        2,
        behind_event(call(WAIT, 0.1, 0.11)),
        behind_event(call(WAIT, 0.1, 0.11), until=5.9),
    ),
    (
        "the event is for this work",
        "queued",
        2,
        behind_event(call(WAIT, 0.1, 0.11)),
        behind_event(call(WAIT, -0.5, -0.4)),
    ),
    (
        "no other work is launched in between, which may be what waits",
        "queued",
        2,
        behind_event(call(WAIT, 0.17, 0.18)),
        trace(
            kernel(0.001, 4, launch(0)),
            kernel(6, 9, launch(0.2)),
            kernel(2, 3, launch(0.18), stream="20"),
            on(1, 3, 5.995),
            calls=(call(WAIT, 0.17, 0.175),),
        ),
    ),
    (
        "the event was waited for by the thread that launched",
        "queued",
        2,
        behind_event(call("hipStreamWaitEvent", 0.1, 0.11)),
        behind_event(call(WAIT, 0.1, 0.11, "thread 2")),
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
    *OF_WORK,
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
