"""Chrome: evidence from the Chrome traces that torch.profiler writes, and from our own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autopar.timeline.chrome_trace import PROGRAM
from autopar.timeline.span import KINDS
from autopar.traces.check import (
    LATEST_US,
    LONGEST_S,
    clean,
    evidence_of,
    number,
    whole_number,
    work_tag,
)
from autopar.traces.event_text import EventText
from autopar.traces.trace import HOST, UNKNOWN, Rows, Tag, Trace, TraceError

# What is taken, by its category; those with capitals are of torch before 1.12.
_TAKEN_AS = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"), "work"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), "calls"),
    **dict.fromkeys(("cpu_op", "Operator"), "operators"),
    "user_annotation": "ranges",
    "overhead": "calls",
    "python_function": "python",
}
_COPIES = ("gpu_memcpy", "Memcpy")
# Of the profiler itself, or said better elsewhere; a range on the GPU doubles one of the host.
_LEFT_OUT = {
    *("gpu_user_annotation", "cuda_sync", "cuda_event", "Trace"),
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

Event = Mapping[str, Any]


def read_text(pieces: Iterator[str]) -> Trace:
    """What the text of a Chrome trace says, up to its first damage; some may be known already."""
    text, events = EventText(pieces), Events()
    header = text.decode(events.take)
    if header is None:
        msg = f"it is no trace: {text.damage}. {_EXPECTED}"
        raise TraceError(msg)
    try:
        trace = events.trace(header)
    except TraceError as error:
        if text.damage:
            why = f"Nothing before that can be used: {error} Export it again."
            error = TraceError(f"it is damaged: {text.damage}. {why}")
        raise error from None
    cut = f"The file is damaged: {text.damage}. All figures are of what comes before."
    return replace(trace, warnings=(*[cut] * bool(text.damage), *trace.warnings))


class Events:
    """Events by what they are."""

    def __init__(self, events: Iterable[Any] = ()) -> None:
        self._rows = {sort: Rows() for sort in _TAKEN_AS.values()}
        self._places: dict[tuple[Any, ...], int] = {}  # of tags, by what they are made of
        self._is_own = False  # whether `write_trace` wrote them
        self._own = Rows()
        self._lanes: dict[str, str] = {}  # thread -> what it is called
        self._others: Counter[str] = Counter()
        self._forward: dict[str, str] = {}  # arrows of autograd that have not ended
        self._handed: dict[str, set[str]] = {}  # thread -> those that it works for
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
            if category == "fwdbwd":
                self._hand_over(event)
        elif phase == "M":
            self._take_name(event)
        elif phase != "X":
            if category != _NO_CATEGORY or phase is None:  # others are marks
                self._others[f"{category} without a duration"] += 1
        elif sort := _TAKEN_AS.get(category):
            if category != "overhead" or str(event.get("name")) in _PROFILERS:
                self._add(self._rows[sort], category, event)
        elif self._is_own and category in KINDS:
            self._add(self._own, category, event)
        else:
            self._others[category] += 1

    def _add(self, rows: Rows, category: str, event: Event) -> None:
        arguments, name, start, length = map(event.get, ("args", "name", "ts", "dur"))
        if type(arguments) is not dict:
            arguments = {}
        if type(name) is not str:
            name = f"unnamed ({name!r:.40})"
        if rows is self._rows["work"]:
            # Copies between two GPUs name three, of which one does the work.
            device = whole_number(arguments.get("device", arguments.get("inDevice")))
            stream = arguments.get("stream")
            collective = _collective(arguments) if "Collective name" in arguments else ""
            stream = stream if type(stream) is int else None
            key: tuple[Any, ...] = (category, name, device, stream, collective)
        else:
            key = category, name, _thread(event)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = rows.place(_tag(*key))
        launch, size_bytes = map(whole_number, map(arguments.get, ("correlation", "bytes")))
        rows.add(place, (number(start), number(length)), launch or UNKNOWN, size_bytes)

    def trace(self, header: Event) -> Trace:
        """What they say, with what stands beside them in the file."""
        if self._own.tags:
            trace = self._own_trace(header)
        else:
            in_order = _name_rank(self._rows["work"], header)
            remarks = self._name_threads()
            handed = {own: its.pop() for own, its in self._handed.items() if len(its) == 1}
            trace = evidence_of(**self._rows, handed=handed, in_order=in_order)
            warnings = (*remarks, *trace.warnings)
            trace = replace(trace, warnings=warnings, origin="a trace of torch.profiler")
        starts = [start for start in _OTHERS for name in self._others if name.startswith(start)]
        other = _OTHERS[starts[0]] if starts else ""
        if not (len(trace.work) or len(trace.calls) or len(trace.ranges)):
            raise TraceError(self._refusal(trace, other))
        strange = {name: count for name, count in self._others.items() if name not in _LEFT_OUT}
        if other:
            remark = f"It is of {other}: of its calls nothing is known, so no causes are told."
            return replace(trace, doubts=trace.doubts | {HOST: remark})
        remark = f"Events of other categories were left out: {_listed(strange)}."
        return replace(trace, warnings=(*trace.warnings, *[remark] * bool(strange)))

    def _name_threads(self) -> list[str]:
        """Leave the process out of threads' names if there is but one, or say what several cost."""
        host = [rows for sort, rows in self._rows.items() if sort != "work"]
        tags = [tag for rows in host for tag in rows.tags]
        programs = (tag.lane for tag in tags if not tag.name.startswith("profiler: "))
        if len({lane.partition(" thread ")[0] for lane in programs}) > 1:
            return [
                "Several processes are in it. Their GPUs of one number are taken as one, and work "
                "whose launch two of them may have made has none."
            ]
        for rows in host:
            rows.rename(lambda tag: tag._replace(lane=_alone(tag.lane)))
        self._handed = {_alone(own): {*map(_alone, its)} for own, its in self._handed.items()}
        return []

    def _refusal(self, trace: Trace, other: str) -> str:
        """Why nothing of it can be used, and what to do."""
        if wrong := " ".join(trace.remarks):
            return f"none of its records can be right: {wrong}"
        if other:
            return f"it is of {other}, which is not supported: what CUDA and HIP record is."
        if self._others and not (self._is_own or _LEFT_OUT & self._others.keys()):
            return (
                "it is a Chrome trace, but of another tool than torch.profiler: its events are of "
                f"the categories {_listed(self._others)}. Expected kernel, gpu_memcpy, "
                "cuda_runtime or user_annotation."
            )
        if self._is_own and not self._others:
            return "it is of a timeline without spans. Record some work before write_trace."
        return (
            "no work of a GPU and no named range is in it. Profile with ProfilerActivity.CUDA, or, "
            "without a GPU, name what is to be seen: with autopar.annotate('step'): ..."
        )

    def _hand_over(self, event: Event) -> None:
        """An arrow of autograd, from an operator to the one that computes its gradient."""
        thread, id_ = _thread(event), str(event.get("id"))
        if event.get("ph") == "s":
            self._forward[id_] = thread
        elif event.get("ph") == "f" and self._forward.get(id_, thread) != thread:
            self._handed.setdefault(thread, set()).add(self._forward.pop(id_))

    def _take_name(self, event: Event) -> None:
        arguments = event.get("args")
        name = arguments.get("name") if isinstance(arguments, dict) else None
        if event.get("name") == "thread_name" and isinstance(name, str):
            self._lanes[str(event.get("tid"))] = clean(name)
        elif event.get("name") == "process_name" and name == PROGRAM:
            self._is_own = True

    @np.errstate(over="ignore", invalid="ignore")  # some times are NaN, or far too large
    def _own_trace(self, header: Event) -> Trace:
        """What `write_trace` wrote: times count from zero, and nothing has a launch."""
        tags = []
        for tag in self._own.tags:
            thread = _alone(tag.lane)
            lane = self._lanes.get(thread.removeprefix("thread ")) or thread
            gpu = _GPU.match(lane) if tag.kind != HOST else None
            tags.append(tag._replace(lane=lane, gpu=gpu[0] if gpu else ""))
        records = replace(self._own.records(), tags=tuple(tags))
        starts_s, ends_s = records.times_s.T
        is_timed = (starts_s >= 0) & (starts_s < LATEST_US / 1e6)
        is_timed &= (ends_s >= starts_s) & (ends_s < LATEST_US / 1e6)
        for place in records.tagged[~is_timed].tolist():
            self._others[f"{tags[place].kind} without a time"] += 1
        records = records[is_timed].sorted()
        is_host = records.where(lambda tag: tag.kind == HOST)
        about = _dictionary(header, "otherData")
        error_s = number(about.get("alignment_error_s"))
        return Trace(
            records[~is_host],
            ranges=records[is_host],
            origin=clean(str(about.get("origin") or f"a trace of {PROGRAM}")),
            alignment_error_s=error_s if 0 <= error_s < LONGEST_S else 0.0,
        )


def _dictionary(of: Event, key: str) -> dict[str, Any]:
    value = of.get(key)
    return value if type(value) is dict else {}


def _thread(event: Event) -> str:
    return clean(f"process {event.get('pid')!s:.40} thread {event.get('tid')!s:.40}")


def _alone(thread: str) -> str:
    return "".join(thread.partition("thread ")[1:])


def _tag(
    category: str, name: str, place: Any, stream: int | None = None, collective: str = ""
) -> Tag:
    """Work of a GPU on a stream, or what a thread did."""
    name = clean(name)
    if _TAKEN_AS.get(category) != "work":
        name = f"profiler: {name}" if category == "overhead" else name
        kind = category if category in KINDS else HOST
        return Tag(name, place, kind)
    gpu = f"GPU {place}" if place >= 0 else ""
    queue = "" if stream is None else f"stream {stream}"
    tag = work_tag(name, gpu, queue, is_copy=category in _COPIES)
    return tag._replace(collective=collective) if tag.kind == "communication" else tag


def _collective(arguments: Event) -> str:
    """Which call of a process group a kernel belongs to; older torch does not say."""
    keys = ("Collective name", "Process Group Name", "Process Group Ranks")
    name, group, ranks = (arguments.get(key) for key in keys)
    if not (type(name) is type(group) is str and name and group):
        return ""
    sequence = arguments.get("Seq")  # since Kineto of 2026
    number_ = f" {sequence}" if type(sequence) is int else ""
    return clean(f"{name}{number_} of group {group}, ranks {ranks or 'unknown'}")


def _name_rank(work: Rows, header: Event) -> set[str]:
    """Name GPUs and their lanes with the rank if there are several processes.

    Returns the GPUs whose kernels never overlap on a stream, as far as the file tells.
    """
    about = _dictionary(header, "distributedInfo")
    rank, size = about.get("rank"), about.get("world_size")
    prefix = f"rank {rank} " if type(rank) is type(size) is int and size > 1 else ""
    listed = header.get("deviceProperties")
    work.rename(lambda tag: tag._replace(gpu=tag.gpu and prefix + tag.gpu, lane=prefix + tag.lane))
    return {
        clean(f"{prefix}GPU {gpu.get('id')}")
        for gpu in (listed if type(listed) is list else [])
        if type(gpu) is dict and 0 < number(gpu.get("computeMajor")) < _OVERLAPPING_SINCE
    }


def _listed(counts: Mapping[str, int]) -> str:
    most = Counter(counts).most_common(_MOST_NAMED)
    return ", ".join(f"{clean(name):.40} ({count:,})" for name, count in most)
