"""Traces written by hand, in milliseconds: what a reader of files would return for them."""

from __future__ import annotations

from autopar.timeline.span import Span
from autopar.traces.report import Report
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


def on(gpu: int, start: float, end: float, **more: str) -> Activity:
    return kernel(start, end, gpu=f"GPU {gpu}", **more)
