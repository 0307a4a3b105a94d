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
    Complaints,
    Entry,
    clean,
    evidence_of,
    number,
    work_entry,
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
_MOST_NAMED = 5  # in a message
_NO_CATEGORY = "(no category)"
# How lanes of our own traces name a GPU and its stream.
_GPU = re.compile(r"(?:\w+ \d+ )?GPU \d+")
_STREAM = re.compile(r"stream \S+$")
_EXPECTED = (
    "Expected a Chrome trace of torch.profiler (.json, .json.gz), an SQLite export of Nsight "
    "Systems, or a file of autopar.write_trace."
)
_TAKEN = object()  # what stays of an event that was handed on

Event = Mapping[str, Any]


def read_text(text: str, damage: str = "") -> Trace:
    """What the text of a Chrome trace says, up to its first damage.

    Args:
        text: May be cut off or damaged anywhere.
        damage: What is known to be wrong with it already.

    Raises:
        TraceError: It is no such trace, or nothing can be used of it.
    """
    events = Events()
    header, end = _decode(text, events.take)
    damage = damage or end
    if header is None:
        msg = f"it is no trace: {damage}. {_EXPECTED}"
        raise TraceError(msg)
    try:
        trace = events.trace(header)
    except TraceError as error:
        if not damage:
            raise
        msg = f"it is damaged: {damage}. Nothing before that can be used: {error} Export it again."
        raise TraceError(msg) from None
    if damage:
        cut = f"The file is damaged: {damage}. All figures are of what comes before."
        return replace(trace, warnings=(cut, *trace.warnings))
    return trace


def _decode(text: str, take: Callable[[Any], None]) -> tuple[Event | None, str]:
    """Hand each event of a JSON text on, up to the end or to the first damage.

    What is handed on is not kept: a trace of a million events would take gigabytes. Returns what
    stands beside the list of events, or None if there is no such list; and why it was not read
    to its end.
    """

    def finish(pairs: list[tuple[str, Any]]) -> Any:
        decoded = dict(pairs)
        if "ph" not in decoded:  # only events have a phase
            return decoded
        if len(decoded) < len(pairs):
            msg = "an event has a key twice"  # with a piece missing, two have become one
            raise ValueError(msg)
        take(decoded)
        return _TAKEN

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
        keys = ", ".join(f"{key!r:.40}" for key in list(header)[:_MOST_NAMED])
        return None, f"it is JSON, with {keys or 'nothing'} in it, but no list of traceEvents"
    for event in events:
        if event is not _TAKEN:  # it has no phase
            take(event)
    return header, ""


def trace_of(events: Iterable[Any], header: Event | None = None) -> Trace:
    """What the events of a Chrome trace say, in any order; see `Events.trace`."""
    taken = Events()
    for event in events:
        taken.take(event)
    return taken.trace(header or {})


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

    def take(self, event: Any) -> None:
        """Add an event, or count it if it can't be understood."""
        if type(event) is not dict:
            event = {}
        category, phase = event.get("cat"), event.get("ph")
        if type(category) is not str:
            category = _NO_CATEGORY
        if category in _LEFT_OUT:
            self._others[category] += 1
        elif phase != "X":
            self._take_mark(event, category, phase)
        elif category in _WORK:
            self._work.append(_work_entry(event, category))
        elif category in _CALLS:
            call = _host_entry(event)
            self._calls.append(call)
            if call.launch is None:
                why = f"at {call.start_us} us it has no number by which its work knows it"
                self._complaints.add(call.name, HOST, why)
        elif category == _RANGE:
            self._ranges.append(_host_entry(event))
        elif self._is_own and category in KINDS:
            lane = str(event.get("tid"))
            self._own.append(_host_entry(event)._replace(kind=category, lane=lane))
        else:
            self._others[category] += 1

    def trace(self, header: Event) -> Trace:
        """What they say, with what stands beside them in the file.

        Raises:
            TraceError: They are neither of torch.profiler nor of `write_trace`.
        """
        if self._own:
            trace = self._own_trace(header)
        else:
            work = _of_rank(self._work, header)
            trace = evidence_of(work, self._calls, self._ranges, self._complaints)
            trace = replace(trace, origin="a trace of torch.profiler")
        if not (trace.activities or trace.calls or trace.ranges):
            raise self._refusal()
        remarks = []
        strange = {name: count for name, count in self._others.items() if name not in _LEFT_OUT}
        if strange:
            remarks.append(f"Events of other categories were left out: {_listed(strange)}.")
        if not trace.activities and not self._is_own:
            remarks.append(
                "There is no work of a GPU in it: profile with activities=[ProfilerActivity.CPU, "
                "ProfilerActivity.CUDA] on a machine that has one."
            )
        return replace(trace, warnings=(*trace.warnings, *remarks))

    def _take_mark(self, event: Event, category: str, phase: Any) -> None:
        """Take in an event that says something other than that something took time."""
        arguments = event.get("args")
        name = arguments.get("name") if isinstance(arguments, dict) else None
        if category in _WORK or category in _CALLS:
            where = "" if category in _WORK else HOST
            why = f"it is not an event with a duration, its phase is {phase!r:.40}"
            self._complaints.add(_name(event), where, why)
        elif phase == "M" and event.get("name") == "thread_name" and isinstance(name, str):
            self._lanes[str(event.get("tid"))] = clean(name)
        elif phase == "M" and event.get("name") == "process_name":
            self._is_own = self._is_own or name == PROGRAM
        elif category != _NO_CATEGORY or phase is None:
            self._others[f"{category} without a duration"] += 1

    def _own_trace(self, header: Event) -> Trace:
        """What `write_trace` wrote: times count from zero, and nothing has a launch."""
        activities, ranges = [], []
        for entry in self._own:
            lane = self._lanes.get(entry.lane) or clean(f"thread {entry.lane}")
            gpu, stream = _GPU.match(lane), _STREAM.search(lane)
            where = gpu[0] if gpu else ""
            if not (0 <= entry.start_us < LATEST_US and 0 <= entry.duration_us < LONGEST_US):
                self._complaints.add(entry.name, where or lane, entry.times)
                continue
            span = Span(entry.name, lane, entry.start_us / 1e6, entry.end_us / 1e6, entry.kind)
            if entry.kind == HOST:
                ranges.append(span)
            else:
                activities.append(Activity(span, gpu=where, stream=stream[0] if stream else ""))
        about = header.get("otherData")
        about = about if isinstance(about, dict) else {}
        error_s = number(about.get("alignment_error_s"))
        doubts = self._complaints.sentences()
        return Trace(
            tuple(activities),
            ranges=tuple(ranges),
            warnings=tuple(doubts.values()),
            doubts=doubts,
            origin=clean(str(about.get("origin") or f"a trace of {PROGRAM}")),
            alignment_error_s=error_s if 0 <= error_s < LONGEST_US else 0.0,
        )

    def _refusal(self) -> TraceError:
        if wrong := self._complaints.sentences():
            return TraceError(f"none of its records can be right: {' '.join(wrong.values())}")
        if self._others and not (self._is_own or _LEFT_OUT & self._others.keys()):
            return TraceError(
                "it is a Chrome trace, but of another tool than torch.profiler: its events are of "
                f"the categories {_listed(self._others)}. Expected kernel, gpu_memcpy, "
                "cuda_runtime or user_annotation."
            )
        return TraceError(
            "no work of a GPU and no named range is in it. Profile with ProfilerActivity.CUDA."
        )


def _name(event: Event) -> str:
    name = event.get("name")
    return clean(name if type(name) is str else f"unnamed ({name!r:.40})")


def _times_us(event: Event) -> tuple[float, float]:
    return number(event.get("ts")), number(event.get("dur"))


def _arguments(event: Event) -> dict[str, Any]:
    arguments = event.get("args")
    return arguments if type(arguments) is dict else {}


def _launch(arguments: Event) -> int | None:
    correlation = arguments.get("correlation")
    return correlation if type(correlation) is int and correlation > 0 else None


def _host_entry(event: Event) -> Entry:
    """A call or a range."""
    thread = clean(f"thread {event.get('tid')!s:.40}")
    return Entry(_name(event), HOST, thread, *_times_us(event), _launch(_arguments(event)))


def _work_entry(event: Event, category: str) -> Entry:
    arguments = _arguments(event)
    # Copies between two GPUs name three, of which one does the work.
    device = arguments.get("device", arguments.get("inDevice"))
    stream = arguments.get("stream")
    return work_entry(
        _name(event),
        clean(f"GPU {device}") if type(device) is int and device >= 0 else "",
        clean(f"stream {stream}") if type(stream) is int else "",
        _times_us(event),
        _launch(arguments),
        is_copy=category == "gpu_memcpy",
        size=arguments.get("bytes"),
    )


def _of_rank(work: list[Entry], header: Event) -> list[Entry]:
    """The work, its GPUs and lanes named with the rank if there are several processes."""
    about = header.get("distributedInfo")
    about = about if isinstance(about, dict) else {}
    rank, size = about.get("rank"), about.get("world_size")
    if not (type(rank) is int and type(size) is int and size > 1):
        return work
    prefix = f"rank {rank} "
    return [
        entry._replace(
            where=clean(entry.where and prefix + entry.where), lane=clean(prefix + entry.lane)
        )
        for entry in work
    ]


def _listed(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: -item[1])
    words = [f"{clean(name):.40} ({count:,})" for name, count in most]
    if len(words) > _MOST_NAMED:
        words[_MOST_NAMED:] = [f"{len(words) - _MOST_NAMED} more"]
    return ", ".join(words)
