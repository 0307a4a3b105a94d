"""Chrome: evidence from the Chrome traces that torch.profiler writes, and from our own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from autopar.timeline.chrome_trace import PROGRAM
from autopar.timeline.span import KINDS, Span
from autopar.traces.check import (
    HOST,
    LATEST_US,
    LONGEST_US,
    Complaints,
    Entry,
    as_copy,
    clean,
    evidence_of,
    kernel_kind,
    number,
)
from autopar.traces.trace import Activity, Trace, TraceError

_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_RANGE = "user_annotation"
# Of the host's operators and the profiler itself; a range on the GPU doubles one of the host.
_LEFT_OUT = {
    *("cpu_op", "python_function", "gpu_user_annotation", "overhead", "cuda_sync", "cuda_event"),
    *("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "cpu_instant_event", "Trace", "Operator"),
    *("collective_comm", "cuda_profiler_range"),
}
_MARKS = tuple("MsftiICbenBE")  # phases of metadata, arrows, instants, counters
_MOST_CATEGORIES = 5
# How lanes of our own traces name a GPU and its stream.
_GPU = re.compile(r"(?:\w+ \d+ )?GPU \d+")
_STREAM = re.compile(r"stream \S+$")

Event = Mapping[str, Any]


def trace_of(
    events: Iterable[Any],
    header: Mapping[str, Any] | None = None,
    zero_us: float | None = None,
) -> Trace:
    """What the events of a Chrome trace say, if torch.profiler or `write_trace` wrote them.

    Args:
        events: In any order; those that can't be understood are left out and counted.
        header: What stands beside them in the file.
        zero_us: What time of the file is to be zero; if not given, a round one near the others.

    Raises:
        TraceError: None of them is of either.
    """
    taken = Events()
    for event in events:
        taken.take(event)
    return taken.trace(header or {}, zero_us)


class Events:
    """Events by what they are, as tuples: dictionaries of a million would take gigabytes."""

    def __init__(self) -> None:
        self._work: list[Entry] = []
        self._calls: list[Entry] = []
        self._ranges: list[Entry] = []
        self._is_own = False  # whether `write_trace` wrote them
        self._own: list[Entry] = []
        self._lanes: dict[str, str] = {}  # thread -> what it is called
        self._others: Counter[str] = Counter()
        self._complaints = Complaints()
        self._texts: dict[str, str] = {}

    def take(self, event: Any) -> None:
        """Add an event, or count it if it can't be understood."""
        if type(event) is not dict:
            self._others["no event at all"] += 1
            return
        category, phase = event.get("cat"), event.get("ph")
        if type(category) is not str:
            category = ""
        if category in _LEFT_OUT:
            self._others[category] += 1
        elif phase != "X":
            self._take_mark(event, category, phase)
        elif category in _WORK:
            self._work.append(self._work_entry(event, category))
        elif category in _CALLS:
            call = self._entry(event)
            self._calls.append(call)
            if call.launch is None:
                why = f"at {call.start_us} us it has no number by which its work knows it"
                self._complaints.add("number", call.name, HOST, why)
        elif category == _RANGE:
            self._ranges.append(self._entry(event))
        elif self._is_own and category in KINDS:
            self._own.append(self._entry(event)._replace(kind=category, lane=str(event.get("tid"))))
        else:
            self._others[category] += 1

    def trace(self, header: Mapping[str, Any], zero_us: float | None = None) -> Trace:
        """What they say, as `trace_of` gives it."""
        if self._own:
            trace = self._own_trace(header)
        else:
            work = _of_rank(self._work, header)
            trace = evidence_of(work, self._calls, self._ranges, self._complaints, zero_us)
            trace = replace(trace, origin="a trace of torch.profiler")
        if not (trace.activities or trace.calls or trace.ranges):
            raise self._refusal()
        return replace(trace, warnings=(*trace.warnings, *self._remarks(trace)))

    def _take_mark(self, event: Event, category: str, phase: Any) -> None:
        """Take in an event that says something other than that something took time."""
        arguments = event.get("args")
        name = arguments.get("name") if isinstance(arguments, dict) else None
        if category in _WORK or category in _CALLS:
            where = "" if category in _WORK else HOST
            why = f"it is not an event with a duration, its phase is {phase!r:.40}"
            self._complaints.add("phase", self._text(event.get("name")), where, why)
        elif phase == "M" and event.get("name") == "thread_name" and isinstance(name, str):
            self._lanes[str(event.get("tid"))] = clean(name)
        elif phase == "M" and event.get("name") == "process_name":
            self._is_own = self._is_own or name == PROGRAM
        elif category == _RANGE or phase not in _MARKS:
            self._others[f"{category} without a duration"] += 1

    def _entry(self, event: Event) -> Entry:
        """A call or a range."""
        arguments = event.get("args")
        launch = arguments.get("correlation") if type(arguments) is dict else None
        return Entry(
            self._text(event.get("name")),
            HOST,
            self._text(f"thread {event.get('tid')!s:.40}"),
            number(event.get("ts")),
            number(event.get("dur")),
            launch if type(launch) is int and launch > 0 else None,
        )

    def _work_entry(self, event: Event, category: str) -> Entry:
        entry, arguments = self._entry(event), event.get("args")
        kind = "copy" if category == "gpu_memcpy" else kernel_kind(entry.name)
        if type(arguments) is not dict:
            arguments = {}
        # Copies between two GPUs name three, of which one does the work.
        device = arguments.get("device", arguments.get("inDevice"))
        stream = arguments.get("stream")
        gpu = f"GPU {device}" if type(device) is int and device >= 0 else ""
        queue = f"stream {stream}" if type(stream) is int else ""
        entry = entry._replace(
            where=self._text(gpu), lane=f"{gpu} {queue}", kind=kind, stream=self._text(queue)
        )
        entry = as_copy(entry, arguments.get("bytes")) if kind == "copy" else entry
        return entry._replace(lane=self._text(entry.lane))

    def _text(self, value: object) -> str:
        """A name, kept once however often it comes."""
        text = value if type(value) is str else f"unnamed ({value!r:.40})"
        kept = self._texts.get(text)
        if kept is None:
            kept = self._texts[text] = clean(text)
        return kept

    def _own_trace(self, header: Mapping[str, Any]) -> Trace:
        """What `write_trace` wrote: times count from zero, and nothing has a launch."""
        activities, ranges, complaints = [], [], self._complaints
        for entry in self._own:
            lane = self._lanes.get(entry.lane) or f"thread {entry.lane}"
            gpu, stream = _GPU.match(lane), _STREAM.search(lane)
            where = gpu[0] if gpu else ""
            if not (0 <= entry.start_us < LATEST_US and 0 <= entry.duration_us < LONGEST_US):
                complaints.add("time", entry.name, where or lane, entry.times)
                continue
            if entry.lane not in self._lanes:
                complaints.add("lane", entry.name, lane, "its lane has no name")
            span = Span(entry.name, lane, entry.start_us / 1e6, entry.end_us / 1e6, entry.kind)
            if entry.kind == HOST:
                ranges.append(span)
            else:
                activities.append(Activity(span, gpu=where, stream=stream[0] if stream else ""))
        about = header.get("otherData")
        about = about if isinstance(about, dict) else {}
        error_s = number(about.get("alignment_error_s"))
        return Trace(
            tuple(activities),
            ranges=tuple(ranges),
            warnings=complaints.sentences(),
            doubts=complaints.doubts(()),
            origin=clean(str(about.get("origin") or f"a trace of {PROGRAM}")),
            alignment_error_s=error_s if 0 <= error_s < LONGEST_US else 0.0,
        )

    def _remarks(self, trace: Trace) -> list[str]:
        remarks = []
        strange = {name: count for name, count in self._others.items() if name not in _LEFT_OUT}
        if strange:
            remarks.append(f"Events of other categories were left out: {_listed(strange)}.")
        if not trace.activities and not self._is_own:
            remarks.append(
                "There is no work of a GPU in it: profile with activities=[ProfilerActivity.CPU, "
                "ProfilerActivity.CUDA] on a machine that has one."
            )
        return remarks

    def _refusal(self) -> TraceError:
        if self._work or self._ranges or self._own:
            complaints = " ".join(self._complaints.sentences())
            return TraceError(f"none of its records can be right: {complaints}")
        if self._is_own or any(name in _LEFT_OUT for name in self._others):
            why = "no work of a GPU and no named range is in it"
        elif self._others:
            return TraceError(
                "it is a Chrome trace, but of another tool than torch.profiler: its events are of "
                f"the categories {_listed(self._others)}. Expected kernel, gpu_memcpy, "
                "cuda_runtime or user_annotation."
            )
        else:
            why = "there is no event with a duration in it"
        return TraceError(f"{why}. Profile with ProfilerActivity.CUDA.")


def _of_rank(work: Iterable[Entry], header: Mapping[str, Any]) -> Iterable[Entry]:
    """The work, its GPUs and lanes named with the rank if there are several processes."""
    about = header.get("distributedInfo")
    rank, size = (
        (about.get("rank"), about.get("world_size")) if isinstance(about, dict) else (None, None)
    )
    if not (type(rank) is int and type(size) is int and size > 1 and rank >= 0):
        return work
    prefix = f"rank {rank} "
    return (
        entry._replace(where=entry.where and prefix + entry.where, lane=prefix + entry.lane)
        for entry in work
    )


def _listed(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: -item[1])
    words = [
        f"{clean(name) or '(no name)':.40} ({count:,})" for name, count in most[:_MOST_CATEGORIES]
    ]
    more = [f"{len(most) - _MOST_CATEGORIES} more"] if len(most) > _MOST_CATEGORIES else []
    return ", ".join(words + more)
