"""Traces written by hand, in milliseconds: what a reader of files would return for them."""

from __future__ import annotations

from autopar.timeline.span import Span
from autopar.traces.trace import Activity, Trace

MS = 1e-3


def call(name: str, start_ms: float, end_ms: float, thread: str = "thread 1") -> Span:
    return Span(name, thread, start_ms * MS, end_ms * MS, "host")


def launch(at_ms: float) -> Span:
    return call("cudaLaunchKernel", at_ms, at_ms + 0.005)


def kernel(
    start_ms: float,
    end_ms: float,
    by: Span | None = None,
    *,
    gpu: str = "GPU 0",
    stream: str = "7",
    name: str = "gemm",
    kind: str = "compute",
    collective: str = "",
) -> Activity:
    span = Span(name, f"{gpu} stream {stream}", start_ms * MS, end_ms * MS, kind)
    return Activity(span, by, gpu=gpu, stream=f"stream {stream}", collective=collective)


def copy(
    start_ms: float,
    end_ms: float,
    by: Span | None = None,
    *,
    way: str = "to host",
    memory: str | None = "pinned",
    size: int | None = 1_000_000,
    gpu: str = "GPU 0",
    stream: str = "9",
) -> Activity:
    span = Span(f"Memcpy {way}", f"{gpu} copies {way}", start_ms * MS, end_ms * MS, "copy")
    return Activity(span, by, size, memory, gpu, f"stream {stream}")


named = call  # a range, of the same form
operator = call


def trace(
    *activities: Activity,
    calls: tuple[Span, ...] = (),
    ranges: tuple[Span, ...] = (),
    operators: tuple[Span, ...] = (),
    doubts: dict[str, str] | None = None,
    warnings: tuple[str, ...] = (),
) -> Trace:
    ordered = tuple(sorted(activities, key=lambda each: each.span.start_s))
    launches = tuple(each.launch for each in activities if each.launch)
    every = tuple(sorted((*calls, *launches), key=lambda each: each.start_s))
    return Trace(ordered, every, operators, ranges, warnings, doubts or {}, "a test")
