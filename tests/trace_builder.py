"""Traces written by hand, in milliseconds: what a reader of files would return for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autopar.timeline.intervals import intervals_of
from autopar.timeline.span import Span
from autopar.traces.report import Report
from autopar.traces.trace import UNKNOWN, Records, Rows, Tag, Trace

MS = 1e-3


@dataclass(frozen=True)
class Activity:
    """A record of work, with all that is known of it."""

    span: Span
    launch: Span | None = None
    size_bytes: int | None = None
    memory: str = ""
    gpu: str = ""
    stream: str = ""
    collective: str = ""


def work_of(some: Trace) -> list[Activity]:
    """What a trace has of work, each with its launch."""
    work, calls = some.work, some.calls.spans()
    places = (work.tagged, work.launches, work.sizes_bytes)
    return [
        Activity(
            span,
            None if launch == UNKNOWN else calls[launch],
            None if size_bytes == UNKNOWN else size_bytes,
            *(getattr(work.tags[tag], name) for name in ("memory", "gpu", "stream", "collective")),
        )
        for span, tag, launch, size_bytes in zip(work.spans(), *map(list, places), strict=True)
    ]


def records_of(spans: Sequence[Span]) -> Records:
    """What the host did, as records."""
    return _records(spans, [Tag(span.name, span.lane) for span in spans])


def _records(
    spans: Sequence[Span],
    tags: Sequence[Tag],
    launches: Sequence[int] | None = None,
    sizes_bytes: Sequence[int] | None = None,
) -> Records:
    unknown = [UNKNOWN] * len(spans)
    rows = Rows()
    more = (launches or unknown, sizes_bytes or unknown)
    for span, tag, launch, size_bytes in zip(spans, tags, *more, strict=True):
        times_us = 1e6 * span.start_s, 1e6 * span.duration_s
        rows.add(rows.place(tag), times_us, launch, size_bytes)
    times_s = intervals_of(spans)  # to the last bit
    return replace(rows.records(), times_s=times_s)


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
    memory: str = "pinned",
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
    python: tuple[Span, ...] = (),
    handed: dict[str, str] | None = None,
    doubts: dict[str, str] | None = None,
    warnings: tuple[str, ...] = (),
) -> Trace:
    ordered = sorted(activities, key=lambda each: each.span.start_s)
    launches = (each.launch for each in activities if each.launch)
    every = sorted((*calls, *launches), key=lambda each: each.start_s)
    at = {id(called): place for place, called in enumerate(every)}
    work = _records(
        [each.span for each in ordered],
        [
            Tag(each.span.name, each.span.lane, each.span.kind, each.gpu, *_details(each))
            for each in ordered
        ],
        [at[id(each.launch)] if each.launch else UNKNOWN for each in ordered],
        [UNKNOWN if each.size_bytes is None else each.size_bytes for each in ordered],
    )
    host = map(records_of, (every, operators, ranges, python))
    return Trace(work, *host, handed or {}, warnings, doubts or {}, origin="a test")


def _details(each: Activity) -> tuple[str, str, str]:
    return each.stream, each.memory, each.collective


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


def behind_event(*calls: Span, at: float = 0.2, until: float = 5.995, **host: object) -> Trace:
    """The same, launched long before; and work of another GPU that ends as the gap does."""
    work = kernel(0.001, 4, launch(0)), kernel(6, 9, launch(at)), on(1, 3, until)
    return trace(*work, calls=calls, **host)  # type: ignore[arg-type]
