"""Utilization: what each GPU of a trace did, as seconds that follow from unions of intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from autopar.timeline.groups import grouped
from autopar.timeline.intervals import (
    Intervals,
    as_array,
    at_once,
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

OTHER_LANES = "lanes of no GPU"


class Usage:
    """What one GPU did within a window: a set of times, of which the part not covered is idle."""

    def __init__(self, name: str, activities: Sequence[Activity], window: Intervals) -> None:
        self.name = name  # `OTHER_LANES` where it is no GPU
        self.activities = activities  # by start
        self.lanes = _sets(activities, lambda work: work.span.lane)  # lane -> when it was busy
        self.kinds = _sets(activities, lambda work: work.span.kind)
        self.busy = covered(_intervals(activities))
        self.total_s = length_s(self.busy)
        self.idle = without(window, self.busy)
        # For how many seconds 0, 1, 2, ... lanes were busy.
        self.at_once = at_once(list(self.lanes.values()), window)
        computing = (work for work in activities if work.span.kind == "compute")
        self.computing_streams = {work.stream for work in computing} - {""}

    @property
    def bound(self) -> tuple[str, float]:
        """The busiest of compute, communication and each direction of copies, with its seconds."""

        def resource(work: Activity) -> str:
            return work.span.lane if work.span.kind == "copy" else work.span.kind

        busy_s = {name: length_s(when) for name, when in _sets(self.activities, resource).items()}
        return max(busy_s.items(), key=lambda item: item[1])

    def when(self, kind: str) -> Intervals:
        """The set of times in which there was work of a kind."""
        return self.kinds.get(kind, as_array([]))

    def hidden_s(self, kind: str) -> float:
        """Seconds in which work of a kind ran, and compute did too, on this GPU."""
        return length_s(common(self.when(kind), self.when("compute")))

    def exposed_s(self, activities: Iterable[Activity]) -> float:
        """Seconds in which some of these ran, and no compute on this GPU."""
        return length_s(without(covered(_intervals(activities)), self.when("compute")))


@dataclass(frozen=True, eq=False)
class View:
    """The part of a trace that a report is of."""

    trace: Trace  # what lies in the window, spans cut at its edges
    window: Intervals  # the set of times that counts
    nothing: Intervals  # of these when no lane had any work
    start_s: float  # what times are given from: where the whole trace begins
    # One for each GPU whose times are not in doubt, then one for other lanes that did something.
    usages: tuple[Usage, ...]
    range_name: str | None = None  # the range that limits it, if one does
    occurrences: int = 0  # of that range


def view_of(trace: Trace, range_name: str | None = None) -> View:
    """Look at a whole trace, or at one named range of it; what is in doubt is left out.

    Each occurrence of the range counts from its start to its end, or to the end of the last work
    that was launched in it where that is later: the host does not wait for its GPUs.
    """
    trace = replace(trace, activities=tuple(trace.trusted()))
    if "host" in trace.doubts:
        unlaunched = tuple(replace(work, launch=None) for work in trace.activities)
        trace = replace(trace, activities=unlaunched, calls=(), ranges=())
    work = _intervals(trace.activities)
    starts_s = np.concatenate([work, intervals_of(trace.ranges), intervals_of(trace.calls)])[:, 0]
    start_s = float(starts_s.min()) if len(starts_s) else 0.0
    named = [span for span in trace.ranges if span.name == range_name]
    if range_name is None:
        window = covered(as_array([(work[:, 0].min(), work[:, 1].max())] if len(work) else []))
    elif named:
        window = _with_its_work(covered(intervals_of(named)), trace.activities)
        trace = _cut(trace, window)
    else:
        names = sorted({span.name for span in trace.ranges})
        shown = ", ".join(map(repr, names[:20])) or "none"
        why = f" {trace.doubts['host']}" if "host" in trace.doubts else ""
        msg = f"there is no range {range_name!r}; its ranges are: {shown}.{why}"
        raise ValueError(msg)
    by_gpu = grouped(trace.activities, lambda work: work.gpu or OTHER_LANES)
    gpus = sorted(by_gpu, key=lambda name: (name == OTHER_LANES, len(name), name))
    usages = tuple(Usage(name, by_gpu[name], window) for name in gpus)
    nothing = without(window, covered(_intervals(trace.activities)))
    return View(trace, window, nothing, start_s, usages, range_name, len(named))


def _cut(trace: Trace, window: Intervals) -> Trace:
    """What of a trace lies within a set of times; spans that cross its edges are cut there."""
    activities: list[Activity] = []
    for work in compress(trace.activities, overlapping(_intervals(trace.activities), window)):
        parts = _parts(work.span, window)
        # Of a part of a copy nobody knows how much it moved.
        cut = [replace(work, span=part, size_bytes=None) for part in parts]
        activities += [work] if parts == [work.span] else cut
    calls = tuple(compress(trace.calls, overlapping(intervals_of(trace.calls), window)))
    ranges = tuple(part for named in trace.ranges for part in _parts(named, window))
    return replace(trace, activities=tuple(activities), calls=calls, ranges=ranges)


def _parts(span: Span, window: Intervals) -> list[Span]:
    return [replace(span, start_s=start, end_s=end) for start, end in clipped(span, window)]


def _with_its_work(window: Intervals, activities: Iterable[Activity]) -> Intervals:
    """The window, and from each of its ranges on to the end of the work launched in it."""
    times = as_array([(a.launch.start_s, a.span.end_s) for a in activities if a.launch])
    place = np.searchsorted(window[:, 0], times[:, 0], side="right") - 1
    launched_in_it = (place >= 0) & (window[place, 1] >= times[:, 0])
    starts_s = window[place[launched_in_it], 0]
    prolonged = np.column_stack((starts_s, times[launched_in_it, 1]))
    return covered(np.concatenate((window, prolonged)))


def _sets(activities: Iterable[Activity], name: Callable[[Activity], str]) -> dict[str, Intervals]:
    return {key: covered(_intervals(some)) for key, some in grouped(activities, name).items()}


def _intervals(activities: Iterable[Activity]) -> Intervals:
    return intervals_of(work.span for work in activities)
