"""Check: what a profiler recorded, entry by entry, looked through for what can't be right."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from autopar.refusal import what
from autopar.timeline.span import Span
from autopar.traces.trace import Activity, ApiCall, Trace

HOST = "host"
LATEST_US = 1e17  # the year 5138; some profilers count from 1970
LONGEST_US = 1e12  # no profile lasts eleven days
_TOLERANCE_US = 1.0  # profilers' own clocks agree no better than this
_LONGEST_WAIT_US = 6e7  # a launch that waits for a minute is a launch of something else
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_MOST_NAMES = 10_000  # to keep; programs have hundreds
_COMMUNICATION = re.compile(r"\bnccl\w*Kernel")  # ncclDevKernel_..., before 2.19 ncclKernel_...
_DIRECTIONS = {"HtoD": "from host", "HtoA": "from host", "DtoH": "to host", "AtoH": "to host"}
_DIRECTIONS |= {"PtoP": "to a peer", "DtoD": "within"}
_DIRECTION = re.compile("|".join(_DIRECTIONS))
_MEMORY = re.compile(r"\b(Pinned|Pageable)\b")
_START = attrgetter("start_us")


class TraceEntry(NamedTuple):
    """Work of a GPU, a call of the host or a range that it named, as a profiler wrote it."""

    name: str
    where: str  # which GPU, or the host; empty if the record does not say
    lane: str  # where to show it; for calls and ranges the thread
    start_us: float  # or NaN
    duration_us: float  # or NaN
    launch: Hashable = None  # the correlation id that a call and what it launched share
    kind: str = HOST
    stream: str = ""  # empty if the record does not say
    size_bytes: int | None = None
    memory: str | None = None
    collective: str = ""  # which one a kernel belongs to, if the record says

    @property
    def end_us(self) -> float:
        """End in microseconds."""
        return self.start_us + self.duration_us


class _Complaints:
    """What can't be right of each GPU and of the host: the first of it, and how much there is."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def add(self, entry: TraceEntry, why: str) -> None:
        """Note that a record can't be right."""
        where = entry.where  # empty if it may be any GPU
        first = f"the record of {what(entry.name)} on {where or 'a GPU'} can't be right: {why}"
        self._first.setdefault(where, first)
        self._counts[where] += 1

    def sentences(self) -> dict[str, str]:
        """Where something is wrong -> what it is."""
        said = {}
        for where, first in self._first.items():
            others = self._counts[where] - 1
            said[where] = f"{first}, and {others:,} more." if others else f"{first}."
        return said


def evidence_of(
    work: Iterable[TraceEntry], calls: Iterable[TraceEntry], ranges: Iterable[TraceEntry]
) -> Trace:
    """What records say, in seconds, but for those without a time or place; and what is wrong.

    Of two that contradict each other both stay, since nobody can tell which of them is wrong.
    """
    complaints = _Complaints()
    work, calls, ranges = (
        sorted((entry for entry in entries if _is_usable(entry, complaints)), key=_START)
        for entries in (work, calls, ranges)
    )
    # A time in whole thousands of seconds near most others (the first may be wrong): seconds since
    # 1970 would have steps of a quarter of a microsecond.
    starts_us = sorted(entry.start_us for entries in (work, calls, ranges) for entry in entries)
    zero_us = starts_us[len(starts_us) // 2] // 1e9 * 1e9 if starts_us else 0.0
    api_calls = [ApiCall(call.name, call.lane, *_seconds(call, zero_us)) for call in calls]
    launches: dict[Hashable, tuple[TraceEntry, ApiCall]] = {}
    for call, api_call in zip(calls, api_calls, strict=True):
        # A call of the runtime makes one of the driver, known by the same number.
        launches.setdefault(call.launch, (call, api_call))
    launches.pop(None, None)
    activities = []
    last: dict[tuple[str, str], TraceEntry] = {}  # of each stream the one that ends last
    for entry in work:
        asked, launch = launches.get(entry.launch, (None, None))
        place = (entry.where, entry.stream)
        before = last.get(place)
        for why in _contradictions(entry, asked, before):
            complaints.add(entry, f"at {entry.start_us} µs it {why}")
        if before is None or entry.end_us > before.end_us:
            last[place] = entry
        span = Span(entry.name, entry.lane, *_seconds(entry, zero_us), entry.kind)
        what_it_did = (entry.size_bytes, entry.memory, *place, entry.collective)
        activities.append(Activity(span, launch, *what_it_did))
    wrong = complaints.sentences()
    doubts = {where: why for where, why in wrong.items() if where}
    if "" in wrong:  # it may have been on any of them
        doubts = dict.fromkeys(sorted({entry.where for entry in work}), wrong[""]) | doubts
    spans = []
    for entry in ranges:  # the first thread to open one is the host, others go by their name
        lane = HOST if entry.lane == ranges[0].lane else f"{HOST} {entry.lane}"
        spans.append(Span(entry.name, lane, *_seconds(entry, zero_us), HOST))
    warnings = tuple(wrong.values())
    return Trace(tuple(activities), tuple(api_calls), tuple(spans), warnings, doubts)


def work_entry(
    name: str,
    gpu: str,
    stream: str,
    times_us: tuple[float, float],
    launch: Hashable,
    *,
    is_copy: bool = False,
    size: object = None,
) -> TraceEntry:
    """Work of a GPU; a copy's lane is told by its name, as `Memcpy DtoH (Device -> Pinned)`."""
    if not is_copy:
        kind = "communication" if _COMMUNICATION.search(name) else "compute"
        return TraceEntry(name, gpu, clean(f"{gpu} {stream}"), *times_us, launch, kind, stream)
    way, memory = _DIRECTION.search(name), _MEMORY.search(name)
    lane = clean(f"{gpu} copies {_DIRECTIONS[way[0]] if way else 'of another kind'}")
    size_bytes = size if type(size) is int and size >= 0 else None
    side = memory[0].lower() if memory else None
    return TraceEntry(name, gpu, lane, *times_us, launch, "copy", stream, size_bytes, side)


def number(value: object) -> float:
    """What a file has as a number, also as text; NaN for all else."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


@functools.lru_cache(_MOST_NAMES)  # so that each is kept once, however often it comes
def clean(text: str) -> str:
    """Text that can be printed and drawn: what no file of text may hold is replaced."""
    return _UNWRITABLE.sub("\ufffd", text)


def _is_usable(entry: TraceEntry, complaints: _Complaints) -> bool:
    on_host = entry.where == HOST
    # A call may be too short for its clock; a kernel is not. So written that NaN is refused.
    lasts = 0 < entry.duration_us < LONGEST_US or (on_host and entry.duration_us == 0)
    if not (lasts and 0 < entry.start_us < LATEST_US):
        why = f"it starts at {entry.start_us} µs and takes {entry.duration_us} µs"
    elif not (on_host or (entry.where and entry.stream)):
        why = f"at {entry.start_us} µs it does not say of which GPU and stream it is"
    else:
        return True
    complaints.add(entry, why)
    return False


def _contradictions(
    work: TraceEntry, call: TraceEntry | None, before: TraceEntry | None
) -> Iterator[str]:
    """What can't be right of work beside its launch and the work before it in its stream."""
    after_us = work.start_us - call.start_us if call else 0.0
    overlap_us = before.end_us - work.start_us if before else 0.0
    if after_us < -_TOLERANCE_US:
        yield f"starts {-after_us:.3f} µs before its launch"
    if after_us > _LONGEST_WAIT_US:
        yield f"starts {after_us / 1e6:.0f} s after its launch"
    if before and overlap_us > _TOLERANCE_US:
        yield f"overlaps {what(before.name)} of its stream by {overlap_us:.3f} µs"


def _seconds(entry: TraceEntry, zero_us: float) -> tuple[float, float]:
    start_us = entry.start_us - zero_us
    return start_us / 1e6, (start_us + entry.duration_us) / 1e6
