"""Utilization: what each GPU of a trace did, as seconds that follow from unions of intervals."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np

from autopar.display.format import shortened
from autopar.timeline.intervals import Intervals, as_array, common, covered, length_s, without
from autopar.traces.trace import HOST, NONE, UNKNOWN, Records, Tag, Trace

NEVER = as_array([])  # the set of no times
_MOST_NAMED = 20  # in a message
OTHER_LANES = "lanes of no GPU"
BRIEF_S = 5e-6  # from kernel to kernel, at most, if both were launched already
WITHIN = "copy within"  # what sort of work copies are that stay on their GPU


def sort_of(tag: Tag) -> str:
    """What a GPU did: `compute`, `communication`, `copy` over a bus or link, or `copy within`."""
    return WITHIN if tag.kind == "copy" and tag.lane.endswith(" within") else tag.kind


class Usage:
    """What one GPU did within a window: a set of times, of which the part not covered is idle."""

    def __init__(self, name: str, work: Records, window: Intervals) -> None:
        self.name = name  # `OTHER_LANES` where it is no GPU
        self.work = work
        self.lanes = work.sets(lambda tag: tag.lane)  # lane -> when it was busy
        self.sorts = work.sets(sort_of)
        self.busy = covered(work.times_s)
        self.idle = without(window, self.busy)
        self.waiting = NEVER  # for other ranks, if their traces are there, too
        computing = (tag for tag in work.present if tag.kind == "compute")
        self.computing_streams = {tag.stream for tag in computing} - {""}

    @property
    def bound(self) -> tuple[str, float]:
        """The busiest of compute and each direction of copies, with its seconds.

        Communication is not among them: it may be waiting for other GPUs, and so be shorter.
        """
        lengths_s = {"compute": length_s(self.when("compute"))}
        buses = {tag.lane for tag in self.work.present if sort_of(tag) == "copy"}
        lengths_s |= {lane: length_s(self.lanes[lane]) for lane in sorted(buses)}
        return max(lengths_s.items(), key=lambda item: item[1])  # of none it is computing

    def when(self, sort: str) -> Intervals:
        """The set of times in which there was work of a sort."""
        return self.sorts.get(sort, NEVER)

    def hidden_s(self, sort: str) -> float:
        """Seconds in which work of a sort ran, and compute did too, on this GPU."""
        return length_s(common(self.when(sort), self.when("compute")))


class View:
    """The part of a trace that a report is of; what is in doubt is left out.

    That is all of it, from the first that was recorded to the last, of the host too. Or it is a GPU
    as `GPU 1`, `1` or `rank 0*`, or ranges of a name with `*` and `?` for any characters, each to
    the end of the work that was launched in it: the host does not wait for its GPUs.
    """

    def __init__(self, trace: Trace, range_name: str | None = None, gpu: str | None = None) -> None:
        trace = trace.trusted()
        work, host, doubts = trace.work, trace.host, trace.doubts
        if HOST in doubts:
            work, host = replace(work, launches=np.full(len(work), UNKNOWN)), NONE
        # Of a file that is cut, the work of what came later is lost.
        end_s = float(work.times_s.max()) if trace.is_cut and len(work) else np.inf
        host = replace(host, times_s=np.minimum(host.times_s, end_s))
        ranges = host[host.times_s[:, 0] < end_s].of("range")
        chosen = {tag.gpu for tag in work.present}
        if gpu is not None:
            work = work[work.where(lambda tag: bool(tag.gpu))]
            pattern = f"*GPU {gpu}" if gpu.isdigit() else gpu
            chosen = _named(gpu, chosen - {""}, pattern, "GPU")
            meant = {it for it in doubts if it in (HOST, "GPUs") or fnmatchcase(it, pattern)}
            doubts = {place: why for place, why in doubts.items() if place in meant}
        mine = work[work.where(lambda tag: tag.gpu in chosen)]
        whole = np.concatenate((mine.times_s, host.times_s))
        self.start_s = float(whole[:, 0].min()) if len(whole) else 0.0  # times are given from here
        self.window = as_array([(self.start_s, whole[:, 1].max())] if len(whole) else [])
        self.range_name = range_name  # that limits it, if one does
        self.occurrences = NONE  # each range of that name, to the end of the work launched in it
        if range_name is not None:
            names, why = {tag.name for tag in ranges.present}, doubts.get(HOST, "")
            meant = _named(range_name, names, range_name, "range", why)
            named = ranges[ranges.where(lambda tag: tag.name in meant)]
            self.occurrences = _with_their_work(named, mine, host)
            self.window = covered(self.occurrences.times_s)
            mine, ranges = mine.within(self.window), ranges.within(self.window)
        self.ranges = ranges  # that lie in the window, cut at its edges
        # Work that does so, too, and all of the host.
        self.trace = replace(trace, work=mine, host=host, doubts=doubts)
        # GPUs of which there is work, in the window or outside of it.
        self.gpus = sorted(chosen - {""}, key=lambda name: (len(name), name))
        parts = work.within(self.window).parts(lambda tag: tag.gpu)
        self._all = {
            name: Usage(name or OTHER_LANES, part, self.window) for name, part in parts.items()
        }
        # One for each that did something in it, then one for other lanes that did.
        self.usages = [self._all[name] for name in (*self.gpus, "") if name in self._all]

    @cached_property
    def computing(self) -> Intervals:
        """When some GPU computed."""
        return covered(np.concatenate([NEVER, *(it.when("compute") for it in self._all.values())]))

    @cached_property
    def shared(self) -> Intervals:
        """Of several GPUs, when one of them was at work, or between two kernels for a moment."""
        gpus = [it.busy for it in self._all.values() if it.name != OTHER_LANES]
        if len(gpus) < 2:
            return NEVER
        idle = without(self.window, covered(np.concatenate(gpus)))
        return without(self.window, idle[idle[:, 1] - idle[:, 0] > BRIEF_S])


def _named(name: str, names: set[str], pattern: str, noun: str, why: str = "") -> set[str]:
    """Those of some names that are meant: this one, which may have a `[`, or else a pattern's."""
    chosen = {name} & names or {one for one in names if fnmatchcase(one, pattern)}
    if not chosen:
        quoted = sorted(map(repr, names) if noun == "range" else names)
        shown = ", ".join(map(shortened, quoted[:_MOST_NAMED])) or "none"
        asked = shortened(repr(name))
        msg = f"there is no {noun} {asked}; its {noun}s are: {shown}.{why and f' {why}'}"
        raise ValueError(msg)
    return chosen


def _with_their_work(ranges: Records, work: Records, host: Records) -> Records:
    """Each range, to the end of the last work that was launched in it."""
    launched = work[work.launches != UNKNOWN]
    called_s = host.times_s[launched.launches, 0]
    order = np.argsort(called_s)
    ends_s = launched.times_s[order, 1]
    first = np.searchsorted(called_s[order], ranges.times_s[:, 0], side="left")
    last = np.searchsorted(called_s[order], ranges.times_s[:, 1], side="right")
    times_s = ranges.times_s.copy()
    for i, (one, other) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        times_s[i, 1] = ends_s[one:other].max(initial=times_s[i, 1])
    return replace(ranges, times_s=times_s)
