"""Check: what a profiler recorded, entry by entry; what can't be right costs only itself."""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

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


class _Wrong(NamedTuple):
    """What can't be right."""

    entry: TraceEntry
    why: str
    harm_us: float = math.nan  # of how much time it is, if that is known


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
    wrong: list[_Wrong] = []
    lists = [list(entries) for entries in (work, calls, ranges, operators)]
    starts_us = np.array([entry.start_us for entries in lists for entry in entries])
    starts_us = starts_us[(starts_us > 0) & (starts_us < LATEST_US)]
    middle_us = float(np.median(starts_us)) if len(starts_us) else 0.0
    work, calls, ranges, operators = (
        sorted(_usable(entries, middle_us, wrong), key=_START) for entries in lists
    )
    # Of a call of the runtime and the one of the driver that it makes, the first.
    asked = {call.launch: i for i, call in reversed([*enumerate(calls)]) if call.launch is not None}
    launches = [calls[asked[entry.launch]] if entry.launch in asked else None for entry in work]
    pairs = zip(work, launches, strict=True)
    ahead_us = (launch.start_us - entry.start_us for entry, launch in pairs if launch)
    # By how much work starts before its launch, if only clocks that disagree can be why.
    skew_us = max((us for us in ahead_us if _TOLERANCE_US < us <= _MOST_SKEW_US), default=0.0)
    kept = list(_possible(work, launches, in_order, wrong))
    # In whole thousands of seconds: seconds since 1970 would have steps of a quarter of a µs.
    zero_us = middle_us // 1e9 * 1e9
    # The thread that is first to name a range, or to do anything, is the host.
    main = min(ranges or operators or calls, key=_START, default=None)

    def on_host(entry: TraceEntry) -> Span:
        lane = HOST if main and entry.lane == main.lane else clean(f"{HOST} {entry.lane}")
        return Span(entry.name, lane, *_seconds(entry, zero_us), HOST)

    api_calls = [on_host(call) for call in calls]
    activities = []
    for entry in kept:
        launch = api_calls[asked[entry.launch]] if entry.launch in asked else None
        span = Span(entry.name, entry.lane, *_seconds(entry, zero_us), entry.kind)
        details = (entry.size_bytes, entry.memory, entry.where, entry.stream, entry.collective)
        activities.append(Activity(span, launch, *details))
    doubts, warnings = _judged(wrong, kept, len(calls) + len(ranges) + len(operators))
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


def _usable(
    entries: Iterable[TraceEntry], middle_us: float, wrong: list[_Wrong]
) -> Iterator[TraceEntry]:
    """The entries that have a time, near that of most others, and a place."""
    for entry in entries:
        start_us, lasts_us, on_host = entry.start_us, entry.duration_us, entry.where == HOST
        # A call may be too short for its clock; a kernel is not. So written that NaN is refused.
        lasts = 0 < lasts_us < LONGEST_US or (on_host and lasts_us == 0)
        near = abs(start_us - middle_us) < LONGEST_US
        if not (lasts and near and 0 < start_us < LATEST_US):
            wrong.append(_Wrong(entry, f"starts at {start_us} µs and takes {lasts_us} µs"))
        elif not (on_host or (entry.where and entry.stream)):
            why = f"at {start_us} µs does not say of which GPU and stream it is"
            wrong.append(_Wrong(entry, why, lasts_us))
        else:
            yield entry


def _possible(
    work: Sequence[TraceEntry],
    launches: Sequence[TraceEntry | None],
    in_order: Collection[str],
    wrong: list[_Wrong],
) -> Iterator[TraceEntry]:
    """The work whose times are possible beside its launch and other work of the same queue.

    Copies wait for what is before them, and older GPUs' kernels too, so what of them lies before
    its end is left out; nodes of a CUDA graph do not, though they are all of one stream.
    """
    last: dict[tuple[str, str], TraceEntry] = {}  # of each stream the one that ends last
    for entry, launch in zip(work, launches, strict=True):
        after_us = entry.start_us - launch.start_us if launch else 0.0
        if not -_MOST_SKEW_US <= after_us <= _LONGEST_WAIT_US:
            by = f"{after_us / 1e6:.0f} s after" if after_us > 0 else f"{-after_us:.3f} µs before"
            why = f"at {entry.start_us} µs starts {by} its launch"
            wrong.append(_Wrong(entry, why, entry.duration_us))
            continue
        place = (entry.where, entry.stream)
        before = last.get(place)
        overlap_us = before.end_us - entry.start_us if before else 0.0
        waits = before and (entry.where in in_order or "copy" in (entry.kind, before.kind))
        of_graph = launch and "GraphLaunch" in launch.name
        if before and waits and not of_graph and overlap_us > _TOLERANCE_US:
            overlap_us = min(overlap_us, entry.duration_us)
            rest_us = entry.duration_us - overlap_us
            why = f"at {entry.start_us} µs overlaps {what(before.name)} of its stream by "
            wrong.append(_Wrong(entry, f"{why}{overlap_us:.3f} µs", overlap_us))
            if not rest_us:
                continue
            entry = entry._replace(start_us=before.end_us, duration_us=rest_us, size_bytes=None)
        if before is None or entry.end_us > before.end_us:
            last[place] = entry
        yield entry


def _judged(
    wrong: Iterable[_Wrong], work: Iterable[TraceEntry], host_count: int
) -> tuple[dict[str, str], list[str]]:
    """GPU, or `host` -> why it is in doubt; and sentences on what is wrong with the others."""
    by_gpu = grouped(work, lambda entry: entry.where)
    by_place = grouped(wrong, lambda one: one.entry.where)
    anywhere = by_place.pop("", []) if by_gpu else []  # may be of any GPU
    doubts: dict[str, str] = {}
    warnings: list[str] = []
    for where in sorted({*by_gpu, *by_place}):
        its = by_place.get(where, []) + (anywhere if where != HOST else [])
        if not its:
            continue
        kept = by_gpu.get(where, [])
        count = host_count if where == HOST else len(kept)
        # Of the host by number, as one wait may be longer than all else.
        share = len(its) / (len(its) + count) if where == HOST else _share(its, kept)
        size = f", {min(100 * share, 100):.1f} % of what it did" if count else ""
        end = "" if share > _MOST_HARM else ": they were left out or cut short"
        entry, why, _ = its[0]
        words = (
            f"{len(its):,} of {len(its) + count:,} records of {where or 'GPUs'} can't be right"
            f"{size}{end}. The first: the record of {what(entry.name)} on "
            f"{entry.where or 'a GPU'} {why}."
        )
        if share > _MOST_HARM:
            doubts[where] = words
        else:
            warnings.append(words)
    return doubts, warnings


def _share(wrong: Iterable[_Wrong], kept: Sequence[TraceEntry]) -> float:
    """How much of a GPU's busy time can't be right, at most."""
    usual_us = statistics.median([one.duration_us for one in kept]) if kept else math.inf
    harm_us = sum(usual_us if math.isnan(one.harm_us) else one.harm_us for one in wrong)
    busy_us = length_s(covered(as_array([(one.start_us, one.end_us) for one in kept])))
    return harm_us / (busy_us or 1.0)


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
