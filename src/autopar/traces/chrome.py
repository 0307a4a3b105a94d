"""Chrome: evidence from the Chrome traces that torch.profiler writes, and from our own."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from autopar.timeline.chrome_trace import PROGRAM
from autopar.timeline.span import KINDS, Span
from autopar.traces.check import (
    HOST,
    LATEST_US,
    LONGEST_US,
    TraceEntry,
    clean,
    evidence_of,
    number,
    work_entry,
)
from autopar.traces.trace import Activity, Trace, TraceError

# What is taken, by its category; those with capitals are of torch before 1.12.
_TAKEN_AS = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"), "work"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), "calls"),
    **dict.fromkeys(("cpu_op", "Operator"), "operators"),
    "user_annotation": "ranges",
    "overhead": "calls",
}
_COPIES = ("gpu_memcpy", "Memcpy")
# Of the profiler itself, or said better elsewhere; a range on the GPU doubles one of the host.
_LEFT_OUT = {
    *("python_function", "gpu_user_annotation", "cuda_sync", "cuda_event", "Trace"),
    *("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "cpu_instant_event", "async"),
    *("collective_comm", "cuda_profiler_range"),
}
# What CUPTI does for the profiler. Its other overhead is the driver's own, within some call.
_PROFILERS = {"Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource"}
# Calls of other accelerators: how their categories begin, and who makes them.
_OTHERS = {
    "xpu_": "an Intel GPU (XPU)",
    "mtia_": "a Meta MTIA",
    "hpu_": "an Intel Gaudi (HPU)",
    "privateuse1_": "an accelerator with a plug-in of its own (PrivateUse1)",
    "glow_": "an accelerator of Glow",
}
_OVERLAPPING_SINCE = 9  # compute capability from which kernels of a stream may overlap
_MOST_NAMED = 5  # in a message
_NO_CATEGORY = "(no category)"
_GPU = re.compile(r"(?:\w+ \d+ )?GPU \d+")  # how a lane of our own traces names its GPU
_EXPECTED = (
    "Expected a Chrome trace of torch.profiler (.json, .json.gz), an SQLite export of Nsight "
    "Systems, or a file of autopar.write_trace."
)
_GONE = object()  # what stays of an event that was handed on

Event = Mapping[str, Any]


def read_text(text: str, damage: str = "") -> Trace:
    """What the text of a Chrome trace says, up to its first damage; some may be known already."""
    events = Events()
    header, end = _decode(text, events.take)
    del text  # as long as all that comes of it
    damage = damage or end
    if header is None:
        msg = f"it is no trace: {damage}. {_EXPECTED}"
        raise TraceError(msg)
    try:
        trace = events.trace(header)
    except TraceError as error:
        if damage:
            why = f"Nothing before that can be used: {error} Export it again."
            error = TraceError(f"it is damaged: {damage}. {why}")
        raise error from None
    cut = f"The file is damaged: {damage}. All figures are of what comes before."
    return replace(trace, warnings=(*[cut] * bool(damage), *trace.warnings))


def _decode(text: str, take: Callable[[Any], None]) -> tuple[Event | None, str]:
    """Hand each event of a JSON text on, and keep none: those of a large trace take gigabytes.

    Returns what stands beside the list of events, or None if there is no such list; and what is
    damaged, which ends the reading.
    """

    def finish(pairs: list[tuple[str, Any]]) -> Any:
        decoded = dict(pairs)
        if "ph" not in decoded:  # only events have a phase
            return decoded
        if len(decoded) < len(pairs):
            msg = "an event has a key twice"  # with a piece missing, two have become one
            raise ValueError(msg)
        take(decoded)
        return _GONE

    try:
        whole = json.loads(text, strict=False, object_pairs_hook=finish)
    # The decoder has ValueErrors for numbers of thousands of digits, too.
    except (ValueError, RecursionError) as error:
        where = f" after {error.pos:,} characters" if hasattr(error, "pos") else ""
        is_json = text[:64].lstrip().startswith(("{", "["))
        return {} if is_json else None, f"it ends early or is not JSON{where}"
    header = whole if isinstance(whole, dict) else {"traceEvents": whole}
    events = header.pop("traceEvents", None)
    if not isinstance(events, list):
        return None, "it is JSON, but has no list of traceEvents"
    for event in events:
        if event is not _GONE:  # it has no phase
            take(event)
    return header, ""


class Events:
    """Events by what they are, as tuples: dictionaries of a million would take gigabytes."""

    def __init__(self, events: Iterable[Any] = ()) -> None:
        self._entries: dict[str, list[TraceEntry]] = {sort: [] for sort in _TAKEN_AS.values()}
        self._is_own = False  # whether `write_trace` wrote them
        self._own: list[TraceEntry] = []
        self._lanes: dict[str, str] = {}  # thread -> what it is called
        self._others: Counter[str] = Counter()
        for event in events:
            self.take(event)

    def take(self, event: Any) -> None:
        """Add an event, or count it if it can't be understood."""
        if type(event) is not dict:
            event = {}
        category, phase = event.get("cat"), event.get("ph")
        if type(category) is not str:
            category = _NO_CATEGORY
        if category in _LEFT_OUT:
            self._others[category] += 1
        elif phase == "M":
            self._take_name(event)
        elif phase != "X":
            if category != _NO_CATEGORY or phase is None:  # others are marks
                self._others[f"{category} without a duration"] += 1
        elif sort := _TAKEN_AS.get(category):
            if category != "overhead" or str(event.get("name")) in _PROFILERS:
                self._entries[sort].append(_entry(event, category))
        elif self._is_own and category in KINDS:
            lane = str(event.get("tid"))
            self._own.append(_entry(event, category)._replace(kind=category, lane=lane))
        else:
            self._others[category] += 1

    def trace(self, header: Event) -> Trace:
        """What they say, with what stands beside them in the file."""
        if self._own:
            trace = self._own_trace(header)
        else:
            work, in_order = _of_rank(self._entries["work"], header)
            trace = evidence_of(**self._entries | {"work": work}, in_order=in_order)
            trace = replace(trace, origin="a trace of torch.profiler")
        starts = [start for start in _OTHERS for name in self._others if name.startswith(start)]
        other = _OTHERS[starts[0]] if starts else ""
        if not (trace.activities or trace.calls or trace.ranges):
            raise TraceError(self._refusal(trace, other))
        strange = {name: count for name, count in self._others.items() if name not in _LEFT_OUT}
        if other:
            remark = f"It is of {other}: of its calls nothing is known, so no causes are told."
            return replace(trace, doubts=trace.doubts | {HOST: remark})
        remark = f"Events of other categories were left out: {_listed(strange)}."
        return replace(trace, warnings=(*trace.warnings, *[remark] * bool(strange)))

    def _refusal(self, trace: Trace, other: str) -> str:
        """Why nothing of it can be used, and what to do."""
        if wrong := " ".join(trace.remarks):
            return f"none of its records can be right: {wrong}"
        if other:
            return f"it is of {other}, which is not supported: expected CUDA or HIP."
        if self._others and not (self._is_own or _LEFT_OUT & self._others.keys()):
            return (
                "it is a Chrome trace, but of another tool than torch.profiler: its events are of "
                f"the categories {_listed(self._others)}. Expected kernel, gpu_memcpy, "
                "cuda_runtime or user_annotation."
            )
        return (
            "no work of a GPU and no named range is in it. Profile with ProfilerActivity.CUDA, or, "
            "without a GPU, name what is to be seen: with autopar.annotate('step'): ..."
        )

    def _take_name(self, event: Event) -> None:
        arguments = event.get("args")
        name = arguments.get("name") if isinstance(arguments, dict) else None
        if event.get("name") == "thread_name" and isinstance(name, str):
            self._lanes[str(event.get("tid"))] = clean(name)
        elif event.get("name") == "process_name" and name == PROGRAM:
            self._is_own = True

    def _own_trace(self, header: Event) -> Trace:
        """What `write_trace` wrote: times count from zero, and nothing has a launch."""
        activities, ranges = [], []
        for entry in self._own:
            if not (0 <= entry.start_us < LATEST_US and 0 <= entry.duration_us < LONGEST_US):
                self._others[f"{entry.kind} without a time"] += 1
                continue
            lane = self._lanes.get(entry.lane) or clean(f"thread {entry.lane}")
            span = Span(entry.name, lane, entry.start_us / 1e6, entry.end_us / 1e6, entry.kind)
            if entry.kind == HOST:
                ranges.append(span)
            else:
                gpu = _GPU.match(lane)
                activities.append(Activity(span, gpu=gpu[0] if gpu else ""))
        about = _dictionary(header, "otherData")
        error_s = number(about.get("alignment_error_s"))
        return Trace(
            tuple(activities),
            ranges=tuple(ranges),
            origin=clean(str(about.get("origin") or f"a trace of {PROGRAM}")),
            alignment_error_s=error_s if 0 <= error_s < LONGEST_US else 0.0,
        )


def _dictionary(of: Event, key: str) -> dict[str, Any]:
    value = of.get(key)
    return value if type(value) is dict else {}


def _entry(event: Event, category: str) -> TraceEntry:
    """Work of a GPU, a call or a range."""
    arguments, name = _dictionary(event, "args"), event.get("name")
    name = clean(name if type(name) is str else f"unnamed ({name!r:.40})")
    times_us = number(event.get("ts")), number(event.get("dur"))
    launch = arguments.get("correlation")
    if type(launch) is not int or launch <= 0:
        launch = None
    if _TAKEN_AS.get(category) != "work":
        thread = clean(f"thread {event.get('tid')!s:.40}")
        name = f"profiler: {name}" if category == "overhead" else name
        return TraceEntry(name, HOST, thread, *times_us, launch)
    # Copies between two GPUs name three, of which one does the work.
    device = arguments.get("device", arguments.get("inDevice"))
    stream = arguments.get("stream")
    gpu = clean(f"GPU {device}") if type(device) is int and device >= 0 else ""
    queue = clean(f"stream {stream}") if type(stream) is int else ""
    is_copy, size = category in _COPIES, arguments.get("bytes")
    entry = work_entry(name, gpu, queue, times_us, launch, is_copy=is_copy, size=size)
    if entry.kind == "communication":
        return entry._replace(collective=_collective(arguments))
    return entry


def _collective(arguments: Event) -> str:
    """Which call of a process group a kernel belongs to; older torch does not say."""
    keys = ("Collective name", "Process Group Name", "Process Group Ranks")
    name, group, ranks = (arguments.get(key) for key in keys)
    if not (type(name) is str and type(group) is str and name and group):
        return ""
    sequence = arguments.get("Seq")  # since Kineto of 2026
    number_ = f" {sequence}" if type(sequence) is int else ""
    return clean(f"{name}{number_} of group {group}, ranks {ranks or 'unknown'}")


def _of_rank(work: list[TraceEntry], header: Event) -> tuple[list[TraceEntry], set[str]]:
    """The work, its GPUs and lanes named with the rank if there are several processes.

    And the GPUs whose kernels never overlap on a stream, as far as the file tells what they are.
    """
    about = _dictionary(header, "distributedInfo")
    rank, size = about.get("rank"), about.get("world_size")
    prefix = f"rank {rank} " if type(rank) is type(size) is int and size > 1 else ""
    listed = header.get("deviceProperties")
    in_order = {
        clean(f"{prefix}GPU {gpu.get('id')}")
        for gpu in (listed if type(listed) is list else [])
        if type(gpu) is dict and 0 < number(gpu.get("computeMajor")) < _OVERLAPPING_SINCE
    }
    if not prefix:
        return work, in_order

    def named(name: str) -> str:
        return name and clean(f"{prefix}{name}")

    work = [one._replace(where=named(one.where), lane=named(one.lane)) for one in work]
    return work, in_order


def _listed(counts: Mapping[str, int]) -> str:
    most = Counter(counts).most_common(_MOST_NAMED)
    return ", ".join(f"{clean(name):.40} ({count:,})" for name, count in most)
