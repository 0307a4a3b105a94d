"""Kineto: evidence from the Chrome traces that torch.profiler writes, and from our own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from autopar.timeline.chrome_trace import PROGRAM
from autopar.timeline.span import KINDS
from autopar.traces.check import HOST, Complaints, Job, Row, clean, evidence_of, kernel_kind, number
from autopar.traces.own import own_trace
from autopar.traces.trace import Trace, TraceError

_WORK = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "compute"}
_CALLS = ("cuda_runtime", "cuda_driver")
_RANGE = "user_annotation"
# Of the host's operators and the profiler itself; a range on the GPU doubles one of the host.
_LEFT_OUT = {
    *("cpu_op", "python_function", "gpu_user_annotation", "overhead", "cuda_sync", "cuda_event"),
    *("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "cpu_instant_event", "Trace", "Operator"),
    *("collective_comm", "cuda_profiler_range"),
}
_DIRECTIONS = {"DtoH": "to host", "HtoD": "from host", "PtoP": "to a peer", "DtoD": "within"}
_MEMORY = re.compile(r"\b(Pinned|Pageable)\b")
_MARKS = tuple("MsftiICbenBE")  # phases of metadata, arrows, instants, counters
_MOST_CATEGORIES = 5

Event = Mapping[str, Any]


class _Sorted:
    """Events by what they are, as tuples: dictionaries of a million would take gigabytes."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.calls: list[Row] = []
        self.ranges: list[Row] = []
        self.spans: list[tuple[str, str, Row]] = []  # ours: kind, thread
        self.names: dict[Any, str] = {}
        self.others: Counter[str] = Counter()
        self.ours = False
        self.complaints = Complaints()
        self._texts: dict[str, str] = {}

    def text(self, value: object) -> str:
        """A name, kept once however often it comes."""
        text = value if type(value) is str else f"unnamed ({value!r:.40})"
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = clean(text)
        return known


def trace_of(
    events: Iterable[Any],
    header: Mapping[str, Any] | None = None,
    zero_us: float | None = None,
) -> Trace:
    """What the events of a Chrome trace say, if torch.profiler or `write_trace` wrote them.

    Args:
        events: In any order; those that can't be understood are left out and counted.
        header: What stands beside them in the file; looked at after the events.
        zero_us: What time of the file is to be zero; if not given, a round one near the others.

    Raises:
        TraceError: None of them is of either.
    """
    found = _Sorted()
    for event in events:
        _sort_in(event, found)
    trace = _evidence(found, header or {}, zero_us)
    if not (trace.activities or trace.calls or trace.ranges):
        _refuse(found)
    return replace(trace, warnings=(*trace.warnings, *_remarks(found, trace)))


def _evidence(found: _Sorted, header: Mapping[str, Any], zero_us: float | None) -> Trace:
    if found.spans:
        return own_trace(found.spans, found.names, header, found.complaints)
    jobs = _of_rank(found.jobs, _rank(header))
    trace = evidence_of(jobs, found.calls, found.ranges, found.complaints, zero_us)
    return replace(trace, origin="a trace of torch.profiler")


def _sort_in(event: Any, found: _Sorted) -> None:
    if type(event) is not dict:
        found.others["no event at all"] += 1
        return
    category, phase = event.get("cat"), event.get("ph")
    if type(category) is not str:
        category = ""
    if category in _LEFT_OUT:
        found.others[category] += 1
    elif phase != "X":
        _sort_in_mark(event, category, phase, found)
    elif category in _WORK:
        found.jobs.append(_job(event, _WORK[category], found))
    elif category in _CALLS:
        row = _row(event, found)
        found.calls.append(row)
        if row.launch is None:
            why = f"at {row.start_us} us it has no number by which its work knows it"
            found.complaints.add("number", row.name, HOST, why)
    elif category == _RANGE:
        found.ranges.append(_row(event, found))
    elif found.ours and category in KINDS:
        found.spans.append((category, str(event.get("tid")), _row(event, found)))
    else:
        found.others[category] += 1


def _sort_in_mark(event: Event, category: str, phase: Any, found: _Sorted) -> None:
    """Take in an event that says something other than that something took time."""
    arguments = event.get("args")
    name = arguments.get("name") if isinstance(arguments, dict) else None
    if category in _WORK or category in _CALLS:
        where = "" if category in _WORK else HOST
        why = f"it is not an event with a duration, its phase is {phase!r:.40}"
        found.complaints.add("phase", found.text(event.get("name")), where, why)
    elif phase == "M" and event.get("name") == "thread_name" and isinstance(name, str):
        found.names[str(event.get("tid"))] = clean(name)
    elif phase == "M" and event.get("name") == "process_name":
        found.ours = found.ours or name == PROGRAM
    elif category == _RANGE or phase not in _MARKS:
        found.others[f"{category} without a duration"] += 1


def _row(event: Event, found: _Sorted) -> Row:
    arguments = event.get("args")
    launch = arguments.get("correlation") if type(arguments) is dict else None
    return Row(
        found.text(event.get("name")),
        found.text(f"thread {event.get('tid')!s:.40}"),
        number(event.get("ts")),
        number(event.get("dur")),
        launch if type(launch) is int and launch > 0 else None,
    )


def _job(event: Event, kind: str, found: _Sorted) -> Job:
    arguments = event.get("args")
    if type(arguments) is not dict:
        arguments = {}
    # Copies between two GPUs name three, of which one does the work.
    device = arguments.get("device", arguments.get("inDevice"))
    stream, size = arguments.get("stream"), arguments.get("bytes")
    name, launch = found.text(event.get("name")), arguments.get("correlation")
    gpu = found.text(f"GPU {device}") if type(device) is int and device >= 0 else ""
    queue = found.text(f"stream {stream}") if type(stream) is int else ""
    if kind == "copy":
        words = next((words for code, words in _DIRECTIONS.items() if code in name), None)
        lane = f"{gpu} copies {words or 'of another kind'}"
    else:
        kind = kernel_kind(name)
        lane = f"{gpu} {queue}"
    memory = _MEMORY.search(name) if kind == "copy" else None
    return Job(
        name,
        kind,
        gpu,
        queue,
        found.text(lane),
        number(event.get("ts")),
        number(event.get("dur")),
        launch if type(launch) is int and launch > 0 else None,
        size if type(size) is int and size >= 0 else None,
        found.text(memory[0].lower()) if memory else None,
    )


def _rank(header: Mapping[str, Any]) -> str:
    """What lanes begin with if the trace is of one process among several."""
    about = header.get("distributedInfo")
    if not isinstance(about, dict):
        return ""
    rank, size = about.get("rank"), about.get("world_size")
    several = type(rank) is int and type(size) is int and size > 1 and rank >= 0
    return f"rank {rank} " if several else ""


def _of_rank(jobs: Iterable[Job], prefix: str) -> Iterable[Job]:
    if not prefix:
        return jobs
    return (job._replace(gpu=job.gpu and prefix + job.gpu, lane=prefix + job.lane) for job in jobs)


def _remarks(found: _Sorted, trace: Trace) -> list[str]:
    remarks = []
    strange = {name: count for name, count in found.others.items() if name not in _LEFT_OUT}
    if strange:
        remarks.append(f"Events of other categories were left out: {_listed(strange)}.")
    if not trace.activities and not found.ours:
        remarks.append(
            "There is no work of a GPU in it: profile with activities=[ProfilerActivity.CPU, "
            "ProfilerActivity.CUDA] on a machine that has one."
        )
    return remarks


def _refuse(found: _Sorted) -> None:
    torch_wrote = any(name in _LEFT_OUT for name in found.others)
    if found.jobs or found.ranges or found.spans:
        why = "none of its records can be right: " + " ".join(found.complaints.sentences())
    elif found.ours or torch_wrote:
        why = "no work of a GPU and no named range is in it. Profile with ProfilerActivity.CUDA"
    elif found.others:
        why = (
            "it is a Chrome trace, but of another tool than torch.profiler: its events are of the "
            f"categories {_listed(found.others)}. Expected kernel, gpu_memcpy, "
            "cuda_runtime or user_annotation"
        )
    else:
        why = "there is no event with a duration in it. Profile with ProfilerActivity.CUDA"
    msg = f"{why.rstrip('.')}."
    raise TraceError(msg)


def _listed(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: -item[1])
    words = [
        f"{clean(name) or '(no name)':.40} ({count:,})" for name, count in most[:_MOST_CATEGORIES]
    ]
    more = [f"{len(most) - _MOST_CATEGORIES} more"] if len(most) > _MOST_CATEGORIES else []
    return ", ".join(words + more)
