"""Utilization: what each GPU of a trace did, as seconds that follow from unions of intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import compress

import numpy as np

from autopar.timeline.groups import grouped
from autopar.timeline.intervals import (
    Intervals,
    as_array,
    clipped,
    common,
    covered,
    intervals_of,
    length_s,
    overlapping,
    without,
)
from autopar.timeline.span import Span
from autopar.traces.trace import Activity, Trace

_MOST_NAMED = 20  # in a message
OTHER_LANES = "lanes of no GPU"
WITHIN = "copy within"  # what sort of work copies are that stay on their GPU


def sort_of(work: Activity) -> str:
    """What a GPU did: `compute`, `communication`, `copy` over a bus or link, or `copy within`."""
    span = work.span
    return WITHIN if span.kind == "copy" and span.lane.endswith(" within") else span.kind


class Usage:
    """What one GPU did within a window: a set of times, of which the part not covered is idle."""

    def __init__(self, name: str, activities: Sequence[Activity], window: Intervals) -> None:
        self.name = name  # `OTHER_LANES` where it is no GPU
        self.activities = activities  # by start
        self.lanes = _sets(activities, lambda work: work.span.lane)  # lane -> when it was busy
        self.sorts = _sets(activities, sort_of)
        self.busy = covered(_intervals(activities))
        self.total_s = length_s(self.busy)
        self.idle = without(window, self.busy)
        computing = (work for work in activities if work.span.kind == "compute")
        self.computing_streams = {work.stream for work in computing} - {""}

    @property
    def bound(self) -> tuple[str, float]:
        """The busiest of compute and each direction of copies, with its seconds.

        Communication is not among them: it may be waiting for other GPUs, and so be shorter.
        """
        bus = (work for work in self.activities if sort_of(work) == "copy")
        busy = _sets(bus, lambda work: work.span.lane) | {"compute": self.when("compute")}
        lengths_s = [(name, length_s(when)) for name, when in busy.items()]
        return max(lengths_s[::-1], key=lambda item: item[1])  # of none it is computing

    def when(self, sort: str) -> Intervals:
        """The set of times in which there was work of a sort."""
        return self.sorts.get(sort, as_array([]))

    def hidden_s(self, sort: str) -> float:
        """Seconds in which work of a sort ran, and compute did too, on this GPU."""
        return length_s(common(self.when(sort), self.when("compute")))

    def exposed_s(self, activities: Iterable[Activity]) -> float:
        """Seconds in which some of these ran, and no compute on this GPU."""
        return length_s(without(covered(_intervals(activities)), self.when("compute")))


@dataclass(frozen=True, eq=False)
class View:
    """The part of a trace that a report is of."""

    trace: Trace  # what lies in the window, spans cut at its edges
    window: Intervals  # the set of times that counts
    start_s: float  # what times are given from: where the whole trace begins
    # One for each GPU whose times are not in doubt, then one for other lanes that did something.
    usages: tuple[Usage, ...]
    range_name: str | None = None  # the range that limits it, if one does
    # Each range of that name, from its start to the end of the work launched in it.
    occurrences: tuple[Span, ...] = ()


def view_of(trace: Trace, range_name: str | None = None, gpu: str | None = None) -> View:
    """Look at a whole trace, or at some ranges or a GPU of it; what is in doubt is left out.

    Args:
        trace: What a file says. All of it counts, from the first that was recorded to the last, of
            the host too.
        range_name: Only ranges of this name, with `*` and `?` for any characters. Each counts from
            its start to its end, or to the end of the last work that was launched in it where that
            is later: the host does not wait for its GPUs.
        gpu: Only this GPU, as `GPU 1`, `1` or `rank 0*`.
    """
    trace = replace(trace, activities=tuple(trace.trusted()))
    if "host" in trace.doubts:
        unlaunched = tuple(replace(work, launch=None) for work in trace.activities)
        trace = replace(trace, activities=unlaunched, calls=(), operators=(), ranges=())
    if gpu is not None:
        names = {work.gpu for work in trace.activities} - {""}
        chosen = _named(gpu, names, f"*GPU {gpu}" if gpu.isdigit() else gpu, "GPU")
        work = tuple(work for work in trace.activities if work.gpu in chosen)
        trace = replace(trace, activities=work)
    host = (trace.calls, trace.operators, trace.ranges)
    whole = np.concatenate([_intervals(trace.activities), *map(intervals_of, host)])
    start_s = float(whole[:, 0].min()) if len(whole) else 0.0
    occurrences: tuple[Span, ...] = ()
    window = covered(as_array([(start_s, whole[:, 1].max())] if len(whole) else []))
    if range_name is not None:
        names = {span.name for span in trace.ranges}
        chosen = _named(range_name, names, range_name, "range", trace.doubts.get("host", ""))
        ranges = (span for span in trace.ranges if span.name in chosen)
        occurrences = tuple(_with_their_work(ranges, trace.activities))
        window = covered(intervals_of(occurrences))
        trace = _cut(trace, window)
    by_gpu = grouped(trace.activities, lambda work: work.gpu or OTHER_LANES)
    gpus = sorted(by_gpu, key=lambda name: (name == OTHER_LANES, len(name), name))
    usages = tuple(Usage(name, by_gpu[name], window) for name in gpus)
    return View(trace, window, start_s, usages, range_name, occurrences)


def _named(name: str, names: set[str], pattern: str, noun: str, why: str = "") -> set[str]:
    """Those of some names that are meant: this one, which may have a `[`, or else a pattern's."""
    chosen = {name} & names or {one for one in names if fnmatchcase(one, pattern)}
    if not chosen:
        quoted = sorted(map(repr, names) if noun == "range" else names)
        shown = ", ".join(quoted[:_MOST_NAMED]) or "none"
        msg = f"there is no {noun} {name!r}; its {noun}s are: {shown}.{why and f' {why}'}"
        raise ValueError(msg)
    return chosen


def _with_their_work(ranges: Iterable[Span], activities: Iterable[Activity]) -> Iterator[Span]:
    """Each range, to the end of the last work that was launched in it."""
    times = as_array(sorted((a.launch.start_s, a.span.end_s) for a in activities if a.launch))
    for span in ranges:
        first = np.searchsorted(times[:, 0], span.start_s, side="left")
        last = np.searchsorted(times[:, 0], span.end_s, side="right")
        yield replace(span, end_s=max([span.end_s, *times[first:last, 1].tolist()]))


def _cut(trace: Trace, window: Intervals) -> Trace:
    """What of a trace lies within a set of times; spans of GPUs and ranges are cut at its edges."""
    activities = []
    for i, part in _parts([work.span for work in trace.activities], window):
        work = trace.activities[i]
        # Of a part of a copy nobody knows how much it moved.
        cut = replace(work, span=part, size_bytes=None)
        activities.append(work if part == work.span else cut)
    calls, operators = (
        tuple(compress(spans, overlapping(intervals_of(spans), window)))
        for spans in (trace.calls, trace.operators)
    )
    ranges = tuple(part for _, part in _parts(trace.ranges, window))
    return replace(
        trace, activities=tuple(activities), calls=calls, operators=operators, ranges=ranges
    )


def _parts(spans: Sequence[Span], window: Intervals) -> Iterator[tuple[int, Span]]:
    """The parts of spans within a set of times, and the place of the span that each is of."""
    which, times_s = clipped(intervals_of(spans), window)
    for i, (start_s, end_s) in zip(which.tolist(), times_s.tolist(), strict=True):
        yield i, replace(spans[i], start_s=start_s, end_s=end_s)


def _sets(activities: Iterable[Activity], name: Callable[[Activity], str]) -> dict[str, Intervals]:
    return {key: covered(_intervals(some)) for key, some in grouped(activities, name).items()}


def _intervals(activities: Iterable[Activity]) -> Intervals:
    return intervals_of(work.span for work in activities)
