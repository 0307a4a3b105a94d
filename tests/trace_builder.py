"""Traces written by hand, in milliseconds: what a reader of files would return for them."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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


def kernel(
    start_ms: float,
    end_ms: float,
    by: Span | None = None,
    *,
    kind: str = "compute",
    gpu: str = "GPU 0",
    stream: str = "7",
    name: str = "gemm",
    collective: str = "",
    way: str = "",
    memory: str = "",
    size: int | None = None,
) -> Activity:
    """Work on a GPU, be it a copy some way."""
    lane = f"{gpu} copies {way}" if way else f"{gpu} stream {stream}"
    span = Span(name, lane, start_ms * MS, end_ms * MS, kind)
    return Activity(span, by, size, memory, gpu, f"stream {stream}", collective)


def trace(*work: Activity, handed: dict[str, str] | None = None, **host: Iterable[Span]) -> Trace:
    """Work, and what the host did by its kind: `calls`, `ranges`, `operators`, `python`, ..."""
    done = [(span, kind.removesuffix("s")) for kind, spans in host.items() for span in spans]
    done += [(each.launch, "call") for each in work if each.launch]
    done.sort(key=lambda each: each[0].start_s)
    at = {id(span): place for place, (span, _) in enumerate(done)}
    rows = []
    for each in sorted(work, key=lambda each: each.span.start_s):
        more = each.gpu, each.stream, each.memory, each.collective
        tag = Tag(each.span.name, each.span.lane, each.span.kind, *more)
        rows.append((each.span, tag, at.get(id(each.launch), UNKNOWN), each.size_bytes))
    calls = [(span, Tag(span.name, span.lane, kind), UNKNOWN, None) for span, kind in done]
    return Trace(_records(rows), _records(calls), handed or {}, origin="a test")


def costs(of: Trace) -> dict[str, float]:
    """Cause -> what it costs in milliseconds, for those worth it."""
    return {f.cause: round(f.cost_s / MS, 3) for f in Report(of, name="t").findings}


def split(of: Trace) -> dict[str, float]:
    """Cause -> the idle milliseconds that are put down to it."""
    causes = Report(of, name="t").figures["GPU 0"]["idle_by_cause_s"]
    return {key: round(seconds / MS, 3) for key, seconds in causes.items()}


_OF_COPIES = {"name": "Memcpy", "stream": "9", "way": "to host", "memory": "pinned", "size": 10**6}


def parsed(text: str) -> Trace:
    """The trace of some records in words, as in `trace_data/judgements.txt`."""
    work: list[Activity] = []
    host = defaultdict[str, list[Span]](list)
    handed = {}
    for kind, *words in map(shlex.split, text.split(";")):
        if kind == "handed":
            handed[f"thread {words[0]}"] = f"thread {words[1]}"
        elif kind not in ("kernel", "copy", "communication"):
            host[kind].append(_call(*words))
        else:
            what, _, by = (part.split(" ") for part in " ".join(words).partition(" by "))
            options: dict[str, Any] = dict(_OF_COPIES) if kind == "copy" else {}
            options |= dict(word.replace("_", " ").split("=") for word in what[1:])
            if (gpu := options.get("gpu", "")).isdigit():
                options["gpu"] = f"GPU {gpu}"
            if "size" in options:
                options["size"] = int(options["size"])
            if by == [""]:
                called = None
            elif len(by) == 1:
                called = _call("cudaLaunchKernel", f"{by[0]}..{float(by[0]) + 0.005}")
            else:
                called = _call(*by)
            options["kind"] = kind.replace("kernel", "compute")
            work.append(kernel(*map(float, what[0].split("..")), called, **options))
    return trace(*work, handed=handed, **host)


def _call(name: str, times: str, thread: str = "1") -> Span:
    start_ms, end_ms = map(float, times.split(".."))
    return call(name, start_ms, end_ms, f"thread {thread}")
