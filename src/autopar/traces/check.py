"""Check: what a profiler recorded, entry by entry; what can't be right costs only itself."""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from autopar.display.format import format_seconds
from autopar.refusal import what
from autopar.timeline.groups import grouped
from autopar.timeline.intervals import as_array, covered, length_s
from autopar.timeline.span import Span
from autopar.traces.communication import COMMUNICATION
from autopar.traces.trace import Activity, Trace

HOST = "host"
LATEST_US = 1e17  # the year 5138; some profilers count from 1970
LONGEST_US = 1e12  # no profile lasts eleven days
_MOST_HARM = 0.01  # of a GPU's busy time; with more in doubt, no figure of it is given
_TOLERANCE_US = 1.0  # profilers' own clocks agree no better than this
_MOST_SKEW_US = 100.0  # by which two clocks may disagree; beyond it the record is wrong
_LONGEST_WAIT_US = 6e7  # a launch that waits for a minute is a launch of something else
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_MOST_NAMES = 10_000  # to keep; programs have hundreds
_DIRECTIONS = {"HtoD": "from host", "HtoA": "from host", "DtoH": "to host", "AtoH": "to host"}
_DIRECTIONS |= {"PtoP": "to a peer", "DtoD": "within"}
_DIRECTION = re.compile("|".join(_DIRECTIONS))
_MEMORY = re.compile(r"\b(Pinned|Pageable)\b")
_START = attrgetter("start_us")


class TraceEntry(NamedTuple):
    """Work of a GPU, or something that a thread of the host did, as a profiler wrote it."""

    name: str
    where: str  # which GPU, or the host; empty if the record does not say
    lane: str  # where to show it; on the host the thread
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
        self.first: dict[str, str] = {}
        self.harms_us: dict[str, list[float]] = defaultdict(list)

    def add(self, entry: TraceEntry, why: str, harm_us: float = math.nan) -> None:
        """Note that an entry can't be right, and of how much time (NaN: nobody knows)."""
        where = entry.where  # empty if it may be any GPU
        words = f"the record of {what(entry.name)} on {where or 'a GPU'} {why}"
        self.first.setdefault(where, words)
        self.harms_us[where].append(harm_us)

    def sentence(self, where: str, kept: int, share: float) -> str:
        """What is wrong at a place where some are kept, and of what share of what it did."""
        anywhere = self.harms_us[""] if where not in ("", HOST) else ()
        count = len(self.harms_us[where]) + len(anywhere)
        size = f", {min(100 * share, 100):.1f} % of what it did" if kept else ""
        end = "" if share > _MOST_HARM else ": they were left out or cut short"
        first = self.first.get(where) or self.first[""]
        total = f"{count + kept:,} records of {where or 'GPUs'}"
        return f"{count:,} of {total} can't be right{size}{end}. The first: {first}."


def evidence_of(
    work: Iterable[TraceEntry],
    calls: Iterable[TraceEntry],
    ranges: Iterable[TraceEntry],
    operators: Iterable[TraceEntry] = (),
    *,
    in_order: Collection[str] = (),
) -> Trace:
    """What records say, in seconds; those that can't be right are left out or cut, and counted.

    A GPU is in doubt where they may be more than a hundredth of its busy time.

    Args:
        work: What GPUs did.
        calls: Calls of the runtime and the driver.
        ranges: What the program named.
        operators: Of PyTorch, also those within others.
        in_order: GPUs on which kernels of a stream can't overlap. From compute capability 9 on
            they can, by design: a kernel may be launched before the one that it depends on ends.
    """
    complaints = _Complaints()
    work, calls, ranges, operators = (
        sorted((entry for entry in entries if _is_usable(entry, complaints)), key=_START)
        for entries in (work, calls, ranges, operators)
    )
    # Of a call of the runtime and the one of the driver that it makes, the first.
    asked = {call.launch: i for i, call in reversed([*enumerate(calls)]) if call.launch is not None}
    launches = [calls[asked[entry.launch]] if entry.launch in asked else None for entry in work]
    skew_us = max(map(_skew_us, work, launches), default=0.0)
    kept = list(_in_order(_possible(work, launches, complaints), in_order, complaints))
    host = [*calls, *ranges, *operators]
    # A time in whole thousands of seconds near most others (the first may be wrong): seconds since
    # 1970 would have steps of a quarter of a microsecond.
    starts_us = sorted(entry.start_us for entries in (kept, host) for entry in entries)
    zero_us = starts_us[len(starts_us) // 2] // 1e9 * 1e9 if starts_us else 0.0
    # The thread that is first to name a range, or to do anything, is the host.
    main = min(ranges or host, key=_START, default=None)

    def on_host(entry: TraceEntry) -> Span:
        lane = HOST if main and entry.lane == main.lane else clean(f"{HOST} {entry.lane}")
        return Span(entry.name, lane, *_seconds(entry, zero_us), HOST)

    api_calls = [on_host(call) for call in calls]
    activities = []
    for entry in kept:
        launch = api_calls[asked[entry.launch]] if entry.launch in asked else None
        span = Span(entry.name, entry.lane, *_seconds(entry, zero_us), entry.kind)
        place = (entry.where, entry.stream)
        details = (entry.size_bytes, entry.memory, *place, entry.collective)
        activities.append(Activity(span, launch, *details))
    doubts, warnings = _judged(complaints, kept, len(host))
    if skew_us:
        skew = format_seconds(skew_us / 1e6)
        warnings.append(f"Work starts up to {skew} before its launch: clocks differ by as much.")
    return Trace(
        tuple(activities),
        tuple(api_calls),
        tuple(map(on_host, _outermost(operators))),
        tuple(map(on_host, ranges)),
        tuple(warnings),
        doubts,
        alignment_error_s=skew_us / 1e6,
    )


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
        kind = "communication" if COMMUNICATION.match(name) else "compute"
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
        complaints.add(entry, f"starts at {entry.start_us} µs and takes {entry.duration_us} µs")
    elif not (on_host or (entry.where and entry.stream)):
        why = f"at {entry.start_us} µs does not say of which GPU and stream it is"
        complaints.add(entry, why, entry.duration_us)
    else:
        return True
    return False


def _skew_us(work: TraceEntry, launch: TraceEntry | None) -> float:
    """By how much work starts before its launch, if only clocks that disagree can be why."""
    before_us = launch.start_us - work.start_us if launch else 0.0
    return before_us if _TOLERANCE_US < before_us <= _MOST_SKEW_US else 0.0


def _possible(
    work: Sequence[TraceEntry], launches: Sequence[TraceEntry | None], complaints: _Complaints
) -> Iterator[tuple[TraceEntry, bool]]:
    """The work whose time is possible beside its launch, and whether a CUDA graph has it."""
    for entry, launch in zip(work, launches, strict=True):
        after_us = entry.start_us - launch.start_us if launch else 0.0
        if after_us < -_MOST_SKEW_US:
            why = f"at {entry.start_us} µs starts {-after_us:.3f} µs before its launch"
        elif after_us > _LONGEST_WAIT_US:
            why = f"at {entry.start_us} µs starts {after_us / 1e6:.0f} s after its launch"
        else:
            yield entry, launch is not None and "GraphLaunch" in launch.name
            continue
        complaints.add(entry, why, entry.duration_us)


def _in_order(
    work: Iterable[tuple[TraceEntry, bool]], in_order: Collection[str], complaints: _Complaints
) -> Iterator[TraceEntry]:
    """The work, without what of it lies before the end of other work of the same queue.

    Copies wait for what is before them, and older GPUs' kernels too; nodes of a CUDA graph do not,
    though they are all of one stream.
    """
    last: dict[tuple[str, str], TraceEntry] = {}  # of each stream the one that ends last
    for entry, of_graph in work:
        place = (entry.where, entry.stream)
        before = last.get(place)
        overlap_us = before.end_us - entry.start_us if before else 0.0
        waits = before and (entry.where in in_order or "copy" in (entry.kind, before.kind))
        if before and waits and not of_graph and overlap_us > _TOLERANCE_US:
            late = f"at {entry.start_us} µs overlaps {what(before.name)} of its stream"
            overlap_us = min(overlap_us, entry.duration_us)
            complaints.add(entry, f"{late} by {overlap_us:.3f} µs", overlap_us)
            if overlap_us >= entry.duration_us:
                continue
            rest_us = entry.duration_us - overlap_us
            entry = entry._replace(start_us=before.end_us, duration_us=rest_us, size_bytes=None)
        if before is None or entry.end_us > before.end_us:
            last[place] = entry
        yield entry


def _judged(
    complaints: _Complaints, work: Iterable[TraceEntry], host_count: int
) -> tuple[dict[str, str], list[str]]:
    """GPU, or `host` -> why it is in doubt; and sentences on what is wrong with the others."""
    by_gpu = grouped(work, lambda entry: entry.where)
    wrong = complaints.harms_us
    shares: dict[str, tuple[int, float]] = {}  # where -> entries kept, and what share is wrong
    for gpu in sorted({*by_gpu, *wrong} - {HOST, *([""] if by_gpu else [])}):
        kept = by_gpu.get(gpu, [])
        if harms_us := [*wrong.get(gpu, ()), *(wrong.get("", ()) if gpu else ())]:
            usual_us = statistics.median([one.duration_us for one in kept]) if kept else math.inf
            harm_us = sum(usual_us if math.isnan(harm) else harm for harm in harms_us)
            busy_us = length_s(covered(as_array([(one.start_us, one.end_us) for one in kept])))
            shares[gpu] = len(kept), harm_us / (busy_us or 1.0)
    if HOST in wrong:  # here by number, as one wait may be longer than all else
        shares[HOST] = host_count, len(wrong[HOST]) / (len(wrong[HOST]) + host_count)
    said = {where: complaints.sentence(where, *of) for where, of in shares.items()}
    doubts = {where: said[where] for where, (_, share) in shares.items() if share > _MOST_HARM}
    return doubts, [words for where, words in said.items() if where not in doubts]


def _outermost(entries: Iterable[TraceEntry]) -> Iterator[TraceEntry]:
    """Those, in order, that lie in no other of their thread."""
    reached: dict[str, float] = {}
    for entry in sorted(entries, key=lambda entry: (entry.start_us, -entry.duration_us)):
        if entry.end_us > reached.get(entry.lane, -math.inf):
            reached[entry.lane] = entry.end_us
            yield entry


def _seconds(entry: TraceEntry, zero_us: float) -> tuple[float, float]:
    start_us = entry.start_us - zero_us
    return start_us / 1e6, (start_us + entry.duration_us) / 1e6
