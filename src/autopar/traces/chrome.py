"""Chrome: evidence from the Chrome traces that torch.profiler writes, and from our own."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from autopar.display.format import printable, shortened
from autopar.timeline.chrome_trace import OWN_MARK
from autopar.timeline.span import KINDS
from autopar.traces.check import LATEST_US, LONGEST_US, evidence_of, number, whole_number, work_tag
from autopar.traces.trace import HOST, ONE_CYCLE, UNKNOWN, Rows, Tag, Trace, TraceError

_WORK = "work"
# What is taken, by its category; those with capitals are of torch before 1.12.
_TAKEN_AS = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"), _WORK),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), "call"),
    "overhead": "profiler",
    **dict.fromkeys(("cpu_op", "Operator"), "operator"),
    "user_annotation": "range",
    "python_function": "python",
}
_OWN = {kind: "range" if kind == HOST else kind for kind in KINDS}  # what `write_trace` writes
# Of the profiler itself, or said better elsewhere: a range on the GPU doubles one of the host, and
# what `cuda_sync` says of waits, the calls that wait say, too.
_LEFT_OUT = {
    *("gpu_user_annotation", "cuda_sync", "cuda_event", "Trace"),
    *("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "cpu_instant_event", "async"),
    *("collective_comm", "cuda_profiler_range"),
}
# What CUPTI does for the profiler. Its other overhead is the driver's own, within some call.
_PROFILERS = {"Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource"}
_OVERLAPPING_SINCE = 9  # compute capability from which kernels of a stream may overlap
_MOST_NAMED, _LONGEST = 5, 40  # categories in a message, and characters of each
_NO_CATEGORY = "(no category)"
_GARBLED = re.compile(r"&#(\d{1,7});")  # how `annotate` gives what torch's profiler would garble
_GPU = re.compile(r"(?:\w+ \d+ )?GPU \d+")  # how a lane of our own traces names its GPU
_BEGIN = re.compile(r'\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)  # up to the first event
_BEGUN = re.compile(r"\s*(?:[\[{]|$)")  # what may become a match of it
_BETWEEN = re.compile(r"[\s,]*")  # two events
_SHOWN = 20  # characters of what is no trace
_PIECE = 1 << 20  # characters to decode at a time
_EXPECTED = (
    "Expected a Chrome trace of torch.profiler (.json in UTF-8, .json.gz), an SQLite export of "
    "Nsight Systems, or a file of autopar.write_trace. Unpack all else first."
)

Event = Mapping[str, Any]


def read_text(pieces: Iterator[str]) -> Trace:
    """What the text of a Chrome trace says, up to its first damage."""
    events = Events(text := EventText(pieces))
    if text.header is None:
        msg = f"{text.damage}. {_EXPECTED}"
        raise TraceError(msg)
    try:
        trace = events.trace(text.header)
    except TraceError as error:
        nothing = f"{text.damage}, and nothing before that can be used. Export it again."
        raise TraceError(nothing if text.damage else str(error)) from None
    if not text.damage:
        return trace
    cut = f"The file is damaged: {text.damage}. All figures are of what comes before."
    return replace(trace, warnings=(cut, *trace.warnings), is_cut=True)


class EventText:
    """A JSON text of which no more than a piece is kept: large traces would take gigabytes."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces, self._text, self._at, self._before = pieces, "", 0, 0
        self.damage = ""  # what ended the reading too early
        self.header: Event | None = None  # what stands beside the events, once these are taken

    def __iter__(self) -> Iterator[Any]:
        """The events; of what is no trace there are none, and no header."""
        while not (begin := _BEGIN.match(self._text)):
            if not (_BEGUN.match(self._text) and self._more()):
                begins = f"it begins with {self._text[:_SHOWN]!r} and has no list of traceEvents"
                self.damage = self.damage or begins
                return
        self._at, whole = begin.end(), None
        try:
            yield from self._events()
            while self._more():
                pass
            whole = json.loads(begin[0] + self._text, strict=False)
        except (ValueError, RecursionError):
            where = f"after {self._before + self._at:,} characters"
            self.damage = self.damage or f"it ends early or is not JSON {where}"
            with contextlib.suppress(ValueError, RecursionError):
                whole = json.loads(f"{begin[0]}]}}", strict=False)
        self.header = whole if isinstance(whole, dict) else {}

    def _events(self) -> Iterator[Any]:
        """What comes before the end of the list, of which the text then begins."""
        decode = json.JSONDecoder(strict=False).raw_decode
        while True:
            self._at += len(_BETWEEN.match(self._text, self._at)[0])  # type: ignore[index]
            try:
                event, self._at = decode(self._text, self._at)
            except json.JSONDecodeError:
                if self._text.startswith("]", self._at):
                    return
                if not self._more():
                    raise
            else:
                yield event

    def _more(self) -> bool:
        """Take in as much again as is left, so that no text is decoded many times; if there is."""
        self._before += self._at
        pieces, self._at = [self._text[self._at :]], 0
        wanted = max(_PIECE, len(pieces[0]))
        try:
            while wanted > 0 and (piece := next(self._pieces, "")):
                pieces.append(piece)
                wanted -= len(piece)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            self.damage = f"it can't be unpacked to its end ({error})"
        self._text = "".join(pieces)
        return len(pieces) > 1


class Events:
    """Events by what they are."""

    def __init__(self, events: Iterable[Any] = ()) -> None:
        self._rows = Rows()
        self._is_own = False  # whether `write_trace` wrote them
        self._lanes: dict[str, str] = {}  # thread of our own traces -> what it is called
        self._others: Counter[str] = Counter()  # categories that are not taken
        self._forward: dict[str, str] = {}  # arrows of autograd that have not ended
        self._handed: dict[str, set[str]] = {}  # thread -> those that it works for
        for event in events:
            self._take(event)

    def _take(self, event: Any) -> None:
        """Add an event, or count it if it can't be understood."""
        if type(event) is not dict:
            event = {}
        category, phase = event.get("cat"), event.get("ph")
        if type(category) is not str:
            category = _NO_CATEGORY
        kind = _TAKEN_AS.get(category) or (_OWN.get(category) if self._is_own else None)
        if kind and phase == "X":
            self._add(category, kind, event)
        elif phase == "M":
            self._take_name(event)
        elif category == "fwdbwd":
            self._hand_over(event)
        elif category not in _LEFT_OUT and (category != _NO_CATEGORY or phase in ("X", None)):
            self._others[category if phase == "X" else f"{category} without a duration"] += 1

    def _add(self, category: str, kind: str, event: Event) -> None:
        arguments, name = _dictionary(event, "args"), event.get("name")
        if type(name) is not str:
            name = f"unnamed ({name!r:.40})"
        times_us = number(event.get("ts")), number(event.get("dur"))
        launch = whole_number(arguments.get("correlation")) or UNKNOWN
        if kind == _WORK:
            # Copies between two GPUs name three, of which one does the work.
            device = whole_number(arguments.get("device", arguments.get("inDevice")))
            stream = arguments.get("stream")
            stream = stream if type(stream) is int else None
            collective = _collective(arguments) if "Collective name" in arguments else ""
            key: tuple[Any, ...] = (name, category, device, stream, collective)
            self._rows.add(key, _work, times_us, launch, whole_number(arguments.get("bytes")))
        elif kind != "profiler":
            self._rows.add((kind, name, _thread(event)), _done, times_us, launch)
        elif name in _PROFILERS:
            self._rows.add((kind, name, _thread({"pid": "", "tid": ""})), _done, times_us)

    def trace(self, header: Event) -> Trace:
        """What they say, with what stands beside them in the file."""
        remarks = []
        if self._is_own and self._rows.tags:
            trace = self._own_trace(header)
        else:
            callers = {tag.lane for tag in self._rows.tags if tag.kind == "call"}
            processes = {lane.partition(" thread ")[0] for lane in callers}
            if len(processes) > 1:
                self._rows.forget_launches()
                remarks.append(
                    "Several processes are in it. Their GPUs of one number are taken as one, and "
                    "no work has a launch, as numbers of launches may be of any."
                )
            handed = {own: to.pop() for own, to in self._handed.items() if len(to) == 1}
            trace = evidence_of(self._rows, handed, _name_rank(self._rows, header))
            trace = replace(trace, origin="a trace of torch.profiler")
        if not (len(trace.work) or len(trace.host.of("call", "range"))):
            raise TraceError(self._refusal(trace))
        if self._others:
            said = f"Events of other categories were left out: {_listed(self._others)}."
            remarks.insert(0, said)
        return replace(trace, warnings=(*trace.warnings, *remarks))

    def _refusal(self, trace: Trace) -> str:
        if wrong := " ".join(trace.remarks):
            return f"none of its records can be right: {wrong}"
        if self._is_own and not self._others:
            return "it is of a timeline without spans. Record some work before write_trace."
        others = f" Its events are of the categories {_listed(self._others)}." * bool(self._others)
        return (
            f"no work of a GPU and no named range is in it.{others} Profile with "
            f"ProfilerActivity.CUDA, or, without a GPU, name what is to be seen: with "
            f"autopar.annotate('step'): ... {ONE_CYCLE} Other tools and accelerators are not "
            f"supported."
        )

    def _hand_over(self, event: Event) -> None:
        """An arrow of autograd, from an operator to the one that computes its gradient."""
        thread, id_ = _thread(event), str(event.get("id"))
        if event.get("ph") == "s":
            self._forward[id_] = thread
        elif event.get("ph") == "f" and self._forward.get(id_, thread) != thread:
            self._handed.setdefault(thread, set()).add(self._forward.pop(id_))

    def _take_name(self, event: Event) -> None:
        name = _dictionary(event, "args").get("name")
        if event.get("name") == "thread_name" and isinstance(name, str):
            self._lanes[str(event.get("tid"))] = name
        self._is_own = self._is_own or event == OWN_MARK

    def _own_trace(self, header: Event) -> Trace:
        """What `write_trace` wrote: times count from zero, and nothing has a launch."""
        for i, tag in enumerate(self._rows.tags):
            thread = tag.lane.partition(" thread ")[2]
            lane = self._lanes.get(thread) or f"thread {thread}"
            gpu = _GPU.match(lane) if tag.kind != "range" else None
            tag = tag._replace(lane=lane, gpu=gpu[0] if gpu else "")
            self._rows.tags[i] = tag.encodable()
        records = self._rows.records()
        starts_s, ends_s = records.times_s.T
        is_timed = (starts_s >= 0) & (ends_s >= starts_s) & (ends_s < LATEST_US / 1e6)
        for place in records.tagged[~is_timed].tolist():
            self._others[f"{records.tags[place].kind} without a time"] += 1
        records = records[is_timed].sorted()
        about = _dictionary(header, "otherData")
        error_s = number(about.get("alignment_error_s"))
        return Trace(
            records.of(*KINDS),
            records.of("range"),
            origin=str(about.get("origin") or "a trace of autopar")
            .encode(errors="replace")
            .decode(),
            alignment_error_s=error_s if 0 <= error_s < LONGEST_US / 1e6 else 0.0,
        )


def _dictionary(of: Event, key: str) -> dict[str, Any]:
    value = of.get(key)
    return value if type(value) is dict else {}


def _thread(event: Event) -> str:
    return f"process {event.get('pid')!s:.40} thread {event.get('tid')!s:.40}"


def _done(kind: str, name: str, thread: str) -> Tag:
    """What a thread did; a name from `annotate` with all its characters."""

    def character(code: re.Match[str]) -> str:
        return chr(int(code[1])) if int(code[1]) <= sys.maxunicode else code[0]

    return Tag(_GARBLED.sub(character, name) if kind == "range" else name, thread, kind)


def _work(name: str, category: str, device: int, stream: int | None, collective: str) -> Tag:
    gpu = f"GPU {device}" if device != UNKNOWN else ""
    queue = f"stream {stream}" if stream is not None else ""
    tag = work_tag(name, gpu, queue, is_copy=category in ("gpu_memcpy", "Memcpy"))
    return tag._replace(collective=collective) if tag.kind == "communication" else tag


def _collective(arguments: Event) -> str:
    """Which call of a process group a kernel belongs to; older torch does not say."""
    keys = ("Collective name", "Process Group Name", "Process Group Ranks")
    name, group, ranks = map(arguments.get, keys)
    if not (type(name) is type(group) is str and name and group):
        return ""
    return f"{name} of group {group}, ranks {ranks or 'unknown'}"


def _name_rank(rows: Rows, header: Event) -> set[str]:
    """Name GPUs and lanes with the rank of several; return those that run kernels in order."""
    about, listed = _dictionary(header, "distributedInfo"), header.get("deviceProperties")
    rank, size = about.get("rank"), about.get("world_size")
    prefix = f"rank {rank} " if type(rank) is type(size) is int and size > 1 else ""
    for i, tag in enumerate(rows.tags):
        if tag.place != HOST:
            rows.tags[i] = tag._replace(gpu=tag.gpu and prefix + tag.gpu, lane=prefix + tag.lane)
    return {
        f"{prefix}GPU {gpu.get('id')}"
        for gpu in (listed if type(listed) is list else [])
        if type(gpu) is dict and 0 < number(gpu.get("computeMajor")) < _OVERLAPPING_SINCE
    }


def _listed(counts: Mapping[str, int]) -> str:
    most = Counter(counts).most_common(_MOST_NAMED)
    return ", ".join(f"{printable(shortened(name, _LONGEST))} ({count:,})" for name, count in most)
