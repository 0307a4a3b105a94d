"""Traces written by hand, in milliseconds: what a reader of files would return for them."""

from __future__ import annotations

import shlex
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
    work, calls = some.work, some.host.spans()
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


def _records(records: Sequence[tuple[Span, Tag, int, int | None]]) -> Records:
    """Records of spans, each with its tag, its launch and its size."""
    rows = Rows()
    for _, tag, launch, size_bytes in records:
        size = UNKNOWN if size_bytes is None else size_bytes
        rows.add(tag, Tag, (0.0, 0.0), launch, size)
    return replace(rows.records(), times_s=intervals_of(span for span, *_ in records))


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
    profiler: tuple[Span, ...] = (),
    handed: dict[str, str] | None = None,
    doubts: dict[str, str] | None = None,
    warnings: tuple[str, ...] = (),
) -> Trace:
    launches = (each.launch for each in activities if each.launch)
    host = [(span, "call") for span in (*calls, *launches)]
    host += [(span, "operator") for span in operators]
    host += [(span, "profiler") for span in profiler]
    host += [(span, "range") for span in ranges] + [(span, "python") for span in python]
    host.sort(key=lambda each: each[0].start_s)
    at = {id(span): place for place, (span, _) in enumerate(host)}
    return Trace(
        _records(
            [
                (each.span, _tag(each), at.get(id(each.launch), UNKNOWN), each.size_bytes)
                for each in sorted(activities, key=lambda each: each.span.start_s)
            ]
        ),
        _records([(span, Tag(span.name, span.lane, kind), UNKNOWN, None) for span, kind in host]),
        handed or {},
        warnings,
        doubts or {},
        origin="a test",
    )


def _tag(each: Activity) -> Tag:
    span = each.span
    more = each.gpu, each.stream, each.memory, each.collective
    return Tag(span.name, span.lane, span.kind, *more)


def costs(of: Trace) -> dict[str, float]:
    """Cause -> what it costs in milliseconds, for those worth it."""
    return {f.cause: round(f.cost_s / MS, 3) for f in Report(of, name="t").findings}


def split(of: Trace) -> dict[str, float]:
    """Cause -> the idle milliseconds that are put down to it."""
    causes = Report(of, name="t").figures["GPU 0"]["idle_by_cause_s"]
    return {key: round(seconds / MS, 3) for key, seconds in causes.items()}


def gap(*calls: Span, at: float = 5.985, thread: str = "thread 1", **host: object) -> Trace:
    """A GPU that is idle from 4 to 6 ms; the next work is launched at `at`."""
    second = call("cudaLaunchKernel", at, at + 0.005, thread)
    work = kernel(0.001, 4, launch(0)), kernel(6, 9, second)
    return trace(*work, calls=calls, **host)  # type: ignore[arg-type]


def parsed(text: str) -> Trace:
    """The trace of some records in words, as in `trace_data/judgements.txt`."""
    work: list[Activity] = []
    host: dict[str, list[Span]] = {"call": [], "operator": [], "range": [], "python": []}
    host["profiler"] = []
    handed = {}
    for kind, *words in map(shlex.split, text.split(";")):
        if kind == "handed":
            handed[f"thread {words[0]}"] = f"thread {words[1]}"
        elif kind in host:
            host[kind].append(_call(*words))
        else:
            what, _, by = (part.split(" ") for part in " ".join(words).partition(" by "))
            start_ms, end_ms = map(float, what[0].split(".."))
            options = dict(word.replace("_", " ").split("=") for word in what[1:])
            options["gpu"] = f"GPU {options.get('gpu', 0)}"
            called = None
            if by != [""]:
                called = _call(*by) if len(by) > 1 else launch(float(by[0]))
            if kind == "copy":
                size = options.pop("size", "1000000")
                known = None if size == "None" else int(size)
                work.append(copy(start_ms, end_ms, called, size=known, **options))
            else:
                named = kind.replace("kernel", "compute")
                work.append(kernel(start_ms, end_ms, called, kind=named, **options))
    several = {"call": "calls", "operator": "operators", "range": "ranges"}
    groups = {several.get(kind, kind): (*spans,) for kind, spans in host.items()}
    return trace(*work, handed=handed, **groups)  # type: ignore[arg-type]


def _call(name: str, times: str, thread: str = "1") -> Span:
    start_ms, end_ms = map(float, times.split(".."))
    return call(name, start_ms, end_ms, f"thread {thread}")
