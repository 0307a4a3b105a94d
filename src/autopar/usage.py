"""Usage: what each GPU of a trace did, as seconds that follow from unions of intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autopar.evidence import Activity, Call, Trace
from autopar.intervals import (
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

OTHER_LANES = "lanes of no GPU"


@dataclass(frozen=True, eq=False)
class Usage:
    """What one GPU did within a window of time.

    Args:
        name: Which GPU; what it is called where it is none.
        activities: Its work, by start.
        window: The set of times that counts: what is not covered there is idle.
    """

    name: str
    activities: tuple[Activity, ...]
    window: Intervals

    @cached_property
    def lanes(self) -> dict[str, Intervals]:
        """Lane -> the set of times in which it was busy, in the order of their first work."""
        return _sets((each.span.lane, each) for each in self.activities)

    @cached_property
    def kinds(self) -> dict[str, Intervals]:
        """Kind of work -> the set of times in which there was some."""
        return _sets((each.span.kind, each) for each in self.activities)

    @cached_property
    def busy(self) -> Intervals:
        """When anything ran."""
        return covered(intervals_of(each.span for each in self.activities))

    @cached_property
    def idle(self) -> Intervals:
        """The gaps: when nothing ran."""
        return without(self.window, self.busy)

    @cached_property
    def at_once(self) -> dict[int, float]:
        """For how many seconds 0, 1, 2, ... lanes were busy."""
        return at_once(list(self.lanes.values()), self.window)

    @property
    def window_s(self) -> float:
        """How long the window is in all."""
        return length_s(self.window)

    @property
    def compute(self) -> Intervals:
        """When it computed."""
        return self.kinds.get("compute", as_array([]))

    def busy_s(self, kind: str) -> float:
        """Seconds in which there was work of a kind."""
        return length_s(self.kinds[kind]) if kind in self.kinds else 0.0

    def hidden_s(self, kind: str) -> float:
        """Seconds in which work of a kind ran, and compute did too, on this GPU."""
        return length_s(common(self.kinds[kind], self.compute)) if kind in self.kinds else 0.0

    def exposed_s(self, activities: Iterable[Activity]) -> float:
        """Seconds in which some of these ran, and no compute on this GPU."""
        return length_s(without(covered(_intervals(activities)), self.compute))

    @cached_property
    def bound(self) -> tuple[str, float]:
        """The busiest resource, in words, and for how many seconds it was busy.

        Compute is one resource and so is communication; each direction of copies is one.
        """
        resources = {kind: length_s(each) for kind, each in self.kinds.items() if kind != "copy"}
        copies = _sets((a.span.lane, a) for a in self.activities if a.span.kind == "copy")
        resources |= {lane: length_s(each) for lane, each in copies.items()}
        busiest = max(resources, key=lambda name: resources[name])
        return busiest, resources[busiest]


@dataclass(frozen=True, eq=False)
class View:
    """The part of a trace that a report is of.

    Args:
        trace: What lies in the window, spans cut at its edges.
        window: The set of times that counts.
        start_s: What times are given from: where the whole trace begins.
        usages: One for each GPU, then one for other lanes that did something; none for a GPU whose
            times are in doubt.
        occurrences: How often the range that limits it was there; 0 without one.
    """

    trace: Trace
    window: Intervals
    start_s: float
    usages: tuple[Usage, ...]
    occurrences: int = 0

    @cached_property
    def nothing(self) -> Intervals:
        """When no lane had any work."""
        return without(self.window, covered(_intervals(self.trace.activities)))


def view_of(trace: Trace, range_name: str | None = None) -> View:
    """Look at a whole trace, or at one named range of it.

    Each occurrence of the range counts from its start to its end, or to the end of the last work
    that was launched in it where that is later: the host does not wait for its GPUs.

    What is in doubt is left out: all work of a GPU whose times can't be right, and calls, launches
    and ranges where those of the host can't.

    Raises:
        ValueError: There is no such range; the message names those there are.
    """
    trace = _beyond_doubt(trace)
    spans = [each.span for each in trace.activities]
    starts_s = [span.start_s for span in (*spans, *trace.ranges)]
    start_s = min([*starts_s, *(call.start_s for call in trace.calls)], default=0.0)
    if range_name is None:
        end_s = max((span.end_s for span in spans), default=0.0)
        first_s = min((span.start_s for span in spans), default=0.0)
        window = covered(as_array([(first_s, end_s)]))
        return View(trace, window, start_s, _usages(trace, window))
    named = [each for each in trace.ranges if each.name == range_name]
    if not named:
        names = sorted({each.name for each in trace.ranges})
        shown = ", ".join(repr(name) for name in names[:20]) or "none"
        more = f", and {len(names) - 20} more" if len(names) > 20 else ""
        why = f" {trace.doubts['host']}" if "host" in trace.doubts else ""
        msg = f"there is no range {range_name!r}; its ranges are: {shown}{more}.{why}"
        raise ValueError(msg)
    window = _with_its_work(covered(intervals_of(named)), trace.activities)
    part = cut(trace, window)
    return View(part, window, start_s, _usages(part, window), len(named))


def _beyond_doubt(trace: Trace) -> Trace:
    kept = tuple(each for each in trace.activities if each.gpu not in trace.doubts)
    if "host" not in trace.doubts:
        return replace(trace, activities=kept)
    kept = tuple(replace(each, launch=None) for each in kept)
    return replace(trace, activities=kept, calls=(), ranges=())


def cut(trace: Trace, window: Intervals) -> Trace:
    """What of a trace lies within a set of times; spans that cross its edges are cut there."""
    activities: list[Activity] = []
    for each, inside in zip(
        trace.activities, overlapping(_intervals(trace.activities), window), strict=True
    ):
        if inside:
            activities += _parts(each, window)
    calls = _kept(trace.calls, window)
    ranges = tuple(
        replace(each, start_s=start_s, end_s=end_s)
        for each in trace.ranges
        for start_s, end_s in clipped(each, window)
    )
    return replace(trace, activities=tuple(activities), calls=calls, ranges=ranges)


def _parts(activity: Activity, window: Intervals) -> list[Activity]:
    span = activity.span
    parts = clipped(span, window)
    if parts == [(span.start_s, span.end_s)]:
        return [activity]
    # Of a part of a copy nobody knows how much it moved.
    return [
        replace(activity, span=replace(span, start_s=start_s, end_s=end_s), size_bytes=None)
        for start_s, end_s in parts
    ]


def _kept(calls: tuple[Call, ...], window: Intervals) -> tuple[Call, ...]:
    inside = overlapping(intervals_of(calls), window)
    return tuple(call for call, here in zip(calls, inside, strict=True) if here)


def _with_its_work(window: Intervals, activities: Iterable[Activity]) -> Intervals:
    """The window, and from each of its ranges on to the end of the work launched in it."""
    times = as_array([(a.launch.start_s, a.span.end_s) for a in activities if a.launch])
    place = np.searchsorted(window[:, 0], times[:, 0], side="right") - 1
    launched_in_it = (place >= 0) & (window[place, 1] >= times[:, 0])
    starts_s = window[place[launched_in_it], 0]
    prolonged = np.column_stack((starts_s, times[launched_in_it, 1]))
    return covered(np.concatenate((window, prolonged)))


def _usages(trace: Trace, window: Intervals) -> tuple[Usage, ...]:
    by_gpu: dict[str, list[Activity]] = {}
    for each in trace.activities:
        by_gpu.setdefault(each.gpu or OTHER_LANES, []).append(each)
    names = sorted(by_gpu, key=lambda name: (name == OTHER_LANES, len(name), name))
    return tuple(Usage(name, tuple(by_gpu[name]), window) for name in names)


def _sets(named: Iterable[tuple[str, Activity]]) -> dict[str, Intervals]:
    groups: dict[str, list[tuple[float, float]]] = {}
    for name, each in named:
        groups.setdefault(name, []).append((each.span.start_s, each.span.end_s))
    return {name: covered(as_array(group)) for name, group in groups.items()}


def _intervals(activities: Iterable[Activity]) -> Intervals:
    return intervals_of(each.span for each in activities)
