"""Idle: what the host did while a GPU had nothing to do, each gap split over all of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autopar.timeline.intervals import (
    Intervals,
    as_array,
    clipped,
    covered,
    length_s,
    length_within,
    without,
)
from autopar.timeline.span import Span
from autopar.traces.trace import HOST, UNKNOWN, Places, Trace, joined, places
from autopar.traces.utilization import WITHIN, Usage, sort_of

NOISE_S = 2e-6  # shorter gaps are between any two kernels, and within a profiler's own error
_START_S = 20e-6  # in which work begins on an idle GPU, once a call has asked for it
_LONG_LAUNCH_S = 100e-6  # most calls that launch take 3 to 10 µs
_BETWEEN_S = 20e-6  # what Python needs from one operator to the next, at most
_SHOWN = 3  # gaps of evidence: enough to find the place in the program
# What a thread can be seen to do, the first that holds of a moment, and what it named. Some is told
# by the name of a call or a range: `cudaMalloc_v3020`, `cuMemcpyDtoH_v2`, torch's loader.
_DONE = ("synchronised", "allocated", "launch", "loader", "operators")
_NAMED = "named"
_SORTS = ("profiler", *_DONE, _NAMED)
_TOLD = re.compile(
    r"(?P<profiler>profiler: )|(?P<loader>enumerate\(DataLoader\))"
    r"|(?!.*(?:Async|Peer))(?:cu(?:da)?|hip)(?:(?P<synchronised>\w*Synchronize|Memcpy)"
    r"|(?P<allocated>(?:Mem)?(?:Host)?(?:Malloc|Alloc|Free|Register|Unregister)"
    r"|Mem(?:Create|Map|Unmap|Release|SetAccess))|(?P<launch>(?:Module|Library)Load))"
)
_WAITS_FOR_EVENT = re.compile(r"(?:cu(?:da)?|hip)StreamWaitEvent")
_REMOVABLE = ("synchronised", "allocated")  # without them, the host is ahead by all of their time

_ALWAYS = np.array([[-np.inf, np.inf]])
_NOWHERE = np.array([], dtype=np.int64)

Seconds = npt.NDArray[np.float64]


class Idle(NamedTuple):
    """The part of a GPU's idle time that has one cause."""

    total_s: float
    saved_s: float  # by how much the gaps would shrink without the cause, at most
    gaps: int  # in which it has a part
    longest_s: float  # in one gap
    names: Sequence[str]  # of what the host did then, that with the longest share first
    evidence: Sequence[Span]  # what the host did longest, the gap, and what ended it; in turn


@cache
def _sort_told(name: str) -> str:
    match = _TOLD.match(name)
    return match.lastgroup or "" if match else ""


class Host:
    """What the threads of a trace's host did, by sort.

    On its axis of time, threads follow one another, further apart than the trace is long. So gaps
    are looked at once, and not once for each thread.
    """

    def __init__(self, trace: Trace) -> None:
        self.calls, work = trace.calls, trace.work
        self.records = joined((trace.calls, trace.operators, trace.ranges))
        threads, self.threads = self.records.coded(lambda tag: tag.lane)
        self.everyone = tuple(range(len(threads)))
        self.has_ranges = len(trace.ranges) > 0
        # Of shorter gaps nothing is known. One record far off does not hide all the others.
        self.noise_s = max(NOISE_S, min(trace.alignment_error_s, _START_S))
        self.sorts = self._sorts(trace)
        self._places = places(self.sorts)
        every = np.concatenate((self.records.times_s, work.times_s))
        self._apart_s = 2 * float(np.ptp(every)) + 1.0 if len(every) else 0.0
        on_axis = self.records.times_s + self.shift(self.threads)
        self.profiler = covered(self.records.times_s[self.of("profiler")])
        self.did = self._in_turn(on_axis)  # sort -> when threads did that, and nothing before it
        known = np.concatenate((*self.did.values(), on_axis[self.of(_NAMED)]))
        self.silent = without(_ALWAYS, covered(known))
        is_event_wait = self.calls.where(lambda tag: bool(_WAITS_FOR_EVENT.match(tag.name)))
        launches = np.unique(work.launches[work.launches != UNKNOWN])
        starts_s = on_axis[: len(self.calls), 0]
        self._before_s = [np.sort(starts_s[which]) for which in (is_event_wait, launches)]
        self.some = cache(lambda sort, threads: self.records.only(self.of(sort, threads)))
        self.did_of = cache(lambda threads: self._in_turn(self.records.times_s, threads))

    def _sorts(self, trace: Trace) -> Places:
        """Of each record its place in `_SORTS`."""
        calls, work = trace.calls, trace.work[trace.work.launches != UNKNOWN]
        is_long = calls.times_s[:, 1] - calls.times_s[:, 0] > _LONG_LAUNCH_S
        is_long &= ~calls.where(lambda tag: "Graph" in tag.name)  # which may take long
        usual = np.full(len(self.records), _SORTS.index("operators"))
        usual[len(usual) - len(trace.ranges) :] = _SORTS.index(_NAMED)
        usual[work.launches[is_long[work.launches]]] = _SORTS.index("launch")
        told, codes = self.records.coded(lambda tag: _sort_told(tag.name))
        sorts = np.array([_SORTS.index(sort) if sort else UNKNOWN for sort in told], int)[codes]
        sorts = np.where(sorts == UNKNOWN, usual, sorts)
        # A copy of pageable memory waits, whatever its call is named; one within a GPU does not.
        is_within = work.where(lambda tag: sort_of(tag) == WITHIN)
        sorts[work.launches[is_within]] = _SORTS.index("operators")
        is_pageable = work.where(lambda tag: tag.memory == "pageable")
        sorts[work.launches[is_pageable]] = _SORTS.index("synchronised")
        return sorts

    def of(self, sort: str, threads: Sequence[int] | None = None) -> Places:
        """Where the records of a sort are, of all threads or some; the profiler's are of all."""
        its = self._places.get(_SORTS.index(sort) if sort in _SORTS else UNKNOWN, _NOWHERE)
        if threads is None or sort == "profiler":
            return its
        return its[np.isin(self.threads[its], threads)]

    def shift(self, threads: Places) -> Intervals:
        """What to add to times of some threads, so that they are on the axis of all."""
        return (self._apart_s * threads[:, None]).astype(np.float64)

    def waited(self, launches: Places) -> npt.NDArray[np.bool_]:
        """Whether a thread let the work of its launches wait: right before, for an event."""
        called_s = (self.calls.times_s[launches] + self.shift(self.threads[launches]))[:, 0]
        waits_s, launches_s = (
            np.append(-np.inf, times_s)[np.searchsorted(times_s, called_s, side="left")]
            for times_s in self._before_s
        )
        return np.asarray((waits_s > launches_s) & (called_s - waits_s < self._apart_s / 2))

    def _in_turn(
        self, times_s: Intervals, threads: tuple[int, ...] | None = None
    ) -> dict[str, Intervals]:
        """Of each moment the first sort that holds of it."""
        did, taken = {}, as_array([])
        for sort in _DONE:
            when = covered(times_s[self.of(sort, threads)])
            if sort == "operators":  # with the moments in between, which Python needs
                edges_s = np.concatenate(([-np.inf], when.ravel(), [np.inf])).reshape(-1, 2)
                apart = np.diff(edges_s)[:, 0] > _BETWEEN_S
                when = without(_ALWAYS, edges_s[apart]) if len(when) else when
            did[sort] = without(when, taken)
            taken = covered(np.concatenate((taken, when)))
        return did


def idle_of(usage: Usage, host: Host) -> dict[str, Idle]:
    """Cause -> the idle time of a GPU that is due to it; gaps within a profiler's error have none.

    Work that begins on an idle GPU was launched a moment before. Up to that launch the host was
    late, and what its thread did meanwhile is the cause; where nothing is known of that, what other
    threads did that launch work on this GPU. From then on the work stood in its queue.
    """
    split = _Split(usage, host)
    return {cause: split.idle(cause) for cause, s in split.parts_s.items() if s.sum() > 0}


class _Split:
    """The gaps of a GPU, split; all arrays have a place for each gap."""

    def __init__(self, usage: Usage, host: Host) -> None:
        self._usage, self._host = usage, host
        gaps = self._gaps = usage.idle[usage.idle[:, 1] - usage.idle[:, 0] > host.noise_s]
        starts_s = usage.work.times_s[:, 0]
        at = np.searchsorted(starts_s, gaps[:, 1])
        follows = np.append(starts_s, np.nan)[at] == gaps[:, 1]
        self._nexts = np.where(follows, at, UNKNOWN)  # of work, that which ends the gap
        self._launches = np.append(usage.work.launches, UNKNOWN)[self._nexts]
        # Calls are the first of the host's records.
        self._threads = np.append(host.threads[: len(host.calls)], UNKNOWN)[self._launches]
        launched = usage.work.launches[usage.work.launches != UNKNOWN]
        # Those whose waits concern this GPU.
        self._everyone = tuple(np.unique(host.threads[launched]).tolist()) or host.everyone
        self.parts_s: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(gaps)))
        self._saved_s: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(gaps)))
        self._late = gaps.copy()  # when the host was late, by its clock
        self._take_queued(np.flatnonzero(self._launches != UNKNOWN))
        self._split()

    def _take_queued(self, which: Places) -> None:
        """Take off the end of gaps in which their work was launched already, and stood in a queue.

        Not so if the launch took long: the host was in it.
        """
        launches = self._launches[which]
        until_s = self._host.calls.times_s[launches, 0]
        is_long = self._host.sorts[launches] == _SORTS.index("launch")
        starts_s, ends_s = self._gaps[which].T
        ahead_s = np.clip(ends_s - until_s, 0.0, _START_S)
        starts_s, ends_s = starts_s - ahead_s, ends_s - ahead_s
        until_s = np.where(is_long, self._host.calls.times_s[launches, 1], until_s)
        late_s = np.clip(until_s, starts_s, ends_s)
        self._late[which] = np.column_stack((starts_s, late_s))
        waited = self._host.waited(launches)
        self.parts_s["queued"][which] = (ends_s - late_s) * waited
        self.parts_s["unknown"][which] = (ends_s - late_s) * ~waited

    def _split(self) -> None:
        """Split gaps that end with what a thread launched; of others, only waits are certain."""
        host, launched = self._host, self._launches != UNKNOWN
        lengths_s = self._late[:, 1] - self._late[:, 0]
        ended = self._nexts == UNKNOWN
        self.parts_s["ended"] = np.where(ended, lengths_s, 0.0)
        self.parts_s["profiler"] = length_within(host.profiler, *self._late.T) * launched
        of, pieces = clipped(self._late, without(_ALWAYS, host.profiler))
        of, pieces = of[~ended[of]], pieces[~ended[of]]
        own = launched[of]
        threads = self._threads[of[own]]
        on_axis = pieces[own] + host.shift(threads)
        for sort, when in host.did.items():
            self._add(sort, when, of[own], on_axis, self._late + host.shift(self._threads))
        which, silent = clipped(on_axis, host.silent)
        silent = silent - host.shift(threads[which])
        of = np.concatenate((of[own][which], of[~own]))
        pieces = np.concatenate((silent, pieces[~own]))
        # Of itself a silent thread tells nothing.
        others = len(self._everyone) > 1 or not launched.all()
        for sort, when in host.did_of(self._everyone).items() if others else ():
            certain = launched[of] | (sort in _REMOVABLE)
            self._add(sort, when, of[certain], pieces[certain], self._late)
        rest_s = lengths_s - np.sum([self.parts_s[sort] for sort in ("profiler", *_DONE)], axis=0)
        rest_s = np.where(ended, 0.0, np.maximum(rest_s, 0.0))
        self.parts_s["elsewhere"] = rest_s * launched
        self.parts_s["unknown"] += rest_s * ~launched

    def _add(
        self, sort: str, when: Intervals, of: Places, pieces: Intervals, late: Intervals
    ) -> None:
        """Put down how much of pieces of some gaps lies in a set of times."""
        parts_s = np.bincount(of, length_within(when, *pieces.T), len(late))
        self.parts_s[sort] += parts_s
        if sort in _REMOVABLE:
            self._saved_s[sort] += np.where(parts_s > 0, _whole(when, *late.T), 0.0)

    def idle(self, cause: str) -> Idle:
        """What a cause has of all gaps."""
        parts_s = self.parts_s[cause]
        which = np.flatnonzero(parts_s > 0)
        saved_s = np.minimum(self._saved_s[cause], self._gaps[:, 1] - self._gaps[:, 0])
        saved_s = saved_s if cause in _REMOVABLE else parts_s
        longest = which[np.argsort(-parts_s[which].round(9), kind="stable")][:_SHOWN].tolist()
        evidence = [span for i in longest for span in self._evidence(i, cause)]
        if cause == "elsewhere":  # in the longest gap
            listed = [span.name for span in self._longest(longest[0], cause)]
            listed = listed or ["no named range"] * self._host.has_ranges
        else:
            listed = self._names(cause, covered(self._late[which]))
        totals_s = float(parts_s.sum()), float(saved_s.sum())
        return Idle(*totals_s, len(which), float(parts_s.max()), listed, evidence)

    def _names(self, cause: str, when: Intervals) -> list[str]:
        """What the host did in a set of times, that with the longest share first."""
        records = self._host.some(cause, self._everyone)
        names, of = records.coded(lambda tag: tag.name)
        by_name_s = np.bincount(of, length_within(when, *records.times_s.T), len(names))
        most = np.argsort(-by_name_s, kind="stable")[:_SHOWN].tolist()
        return [names[i] for i in most if by_name_s[i]]

    def _longest(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap; of ranges the innermost with most of it."""
        late, sort = self._late[i : i + 1], _NAMED if cause == "elsewhere" else cause
        for threads in ((int(self._threads[i]),), self._everyone):
            records = self._host.some(sort, threads)
            starts_s, ends_s = records.times_s.T
            lengths_s = np.minimum(ends_s, late[0, 1]) - np.maximum(starts_s, late[0, 0])
            if sort == _NAMED:
                most = records.spans(lengths_s > length_s(late) / 2)
                return sorted(most, key=lambda one: one.duration_s)[:1]
            if (lengths_s > 0).any():
                return records.spans(np.array([lengths_s.argmax()]))
        return []

    def _evidence(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap, or its launch; the gap; and what ended it."""
        start_s, end_s = self._gaps[i].tolist()
        name, launches, nexts = self._usage.name, self._launches[i : i + 1], self._nexts[i : i + 1]
        shown = self._longest(i, cause)
        if not shown and launches[0] != UNKNOWN and cause in ("queued", "elsewhere"):
            shown = self._host.calls.spans(launches)
        shown.append(Span(f"{name} idle", name, start_s, end_s, HOST))
        return shown + (self._usage.work.spans(nexts) if nexts[0] != UNKNOWN else [])


def _whole(records: Intervals, starts_s: Seconds, ends_s: Seconds) -> Seconds:
    """Of the records that were under way between each start and end, the whole length."""
    when = covered(records)
    sums_s = np.concatenate(([0.0], np.cumsum(when[:, 1] - when[:, 0])))
    first = np.searchsorted(when[:, 1], starts_s, side="right")
    last = np.searchsorted(when[:, 0], ends_s, side="left")
    return sums_s[np.maximum(first, last)] - sums_s[first]
