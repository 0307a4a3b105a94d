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
    overlapping,
    without,
)
from autopar.timeline.span import Span
from autopar.traces.trace import NONE, UNKNOWN, Places, Records, Trace, joined, places
from autopar.traces.utilization import WITHIN, Usage, sort_of

NOISE_S = 2e-6  # shorter gaps are between any two kernels, and within a profiler's own error
_START_S = 20e-6  # in which work begins on an idle GPU, once a call has asked for it
_LONG_LAUNCH_S = 100e-6  # most calls that launch take 3 to 10 µs
_BETWEEN_S = 20e-6  # what Python needs from one operator to the next, at most
_SHOWN = 3  # gaps of evidence: enough to find the place in the program
# What a thread can be seen to do, the first that holds of a moment, and what it named. Some is told
# by the name of a call or a range: `cudaMalloc_v3020`, `cuMemcpyDtoH_v2`, torch's loader.
_SORTS = ("profiler", "synchronised", "allocated", "launch", "loader", "operators")
_NAMED = "named"
_TOLD = re.compile(
    r"(?P<profiler>profiler: )|(?P<loader>enumerate\(DataLoader\))"
    r"|(?!.*(?:Async|Peer))(?:cu(?:da)?|hip)(?:(?P<synchronised>\w*Synchronize|Memcpy)"
    r"|(?P<allocated>(?:Mem)?(?:Host)?(?:Malloc|Alloc|Free|Register|Unregister)"
    r"|Mem(?:Create|Map|Unmap|Release|SetAccess))|(?P<launch>(?:Module|Library)Load))"
)
_WAITS_FOR_EVENT = re.compile(r"(?:cu(?:da)?|hip)StreamWaitEvent")
_REMOVABLE = ("synchronised", "allocated")  # without them, the host is ahead by all of their time

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
    """What the threads of a trace's host did, by thread and sort."""

    def __init__(self, trace: Trace) -> None:
        calls, work = trace.calls, trace.work
        self.calls = calls
        self.everything = joined((calls, trace.operators, trace.ranges))
        sorts = ["", *_SORTS, _NAMED]
        told = np.array([sorts.index(_sort_told(tag.name)) for tag in self.everything.tags], int)
        usual = np.full(len(self.everything), sorts.index("operators"))
        usual[len(calls) + len(trace.operators) :] = sorts.index(_NAMED)
        which = told[self.everything.tagged]
        which = np.where(which > 0, which, usual)
        # A copy of pageable memory waits, whatever its call is named; one within a GPU does not.
        launched = work[work.launches != UNKNOWN]
        is_within = launched.where(lambda tag: sort_of(tag) == WITHIN)
        which[launched.launches[is_within]] = sorts.index("operators")
        is_pageable = launched.where(lambda tag: tag.memory == "pageable")
        which[launched.launches[is_pageable]] = sorts.index("synchronised")
        threads, of = self.everything.coded(lambda tag: tag.lane)
        self._places: dict[tuple[str, str], Places] = {}
        of = np.where(which == sorts.index("profiler"), len(threads), of)  # of all threads
        for code, its in places(of * len(sorts) + which).items():
            key = [*threads, ""][code // len(sorts)], sorts[code % len(sorts)]
            self._places[key] = its
        self.threads = tuple(sorted(threads))
        self.has_ranges = len(trace.ranges) > 0
        # Of shorter gaps nothing is known. One record far off does not hide all the others.
        self.noise_s = max(NOISE_S, min(trace.alignment_error_s, _START_S))
        is_event_wait = calls.where(lambda tag: bool(_WAITS_FOR_EVENT.match(tag.name)))
        self._starts_s = [
            {
                thread: some.times_s[its, 0]
                for thread, its in some.groups(lambda tag: tag.lane).items()
            }
            for some in (calls[is_event_wait], calls[np.unique(launched.launches)])
        ]
        self.did = cache(self._did)

    def records(self, threads: Sequence[str], sort: str) -> Records:
        """The records of a sort of some threads; those of the profiler are of all threads."""
        keys = [(thread, sort) for thread in ("", *threads)]
        some = [self._places[key] for key in keys if key in self._places]
        return self.everything[np.concatenate(some)] if some else NONE

    def _did(self, thread: str, others: tuple[str, ...]) -> dict[str, tuple[Records, Intervals]]:
        """For what a thread launches: by sort, the records that matter, and when no other sort did.

        Where nothing is known of the thread, as it was in nothing and in no range, others matter.
        """
        named = self.records((thread,), _NAMED).times_s
        own = {sort: self.records((thread,), sort) for sort in _SORTS}
        known = [named, *(_bridged(records, sort) for sort, records in own.items())]
        silent = without(as_array([(-np.inf, np.inf)]), covered(np.concatenate(known)))
        did, taken = {}, as_array([])
        for sort, records in own.items():
            theirs = self.records(others, sort)
            theirs = theirs[overlapping(theirs.times_s, silent)]
            when = covered(
                np.concatenate(
                    (_bridged(records, sort), clipped(_bridged(theirs, sort), silent)[1])
                )
            )
            did[sort] = joined((records, theirs)), without(when, taken)
            taken = covered(np.concatenate((taken, when)))
        return did

    def waited(self, thread: str, called_s: Seconds) -> npt.NDArray[np.bool_]:
        """Whether a thread let the work of its launches wait: right before, for an event."""
        before_s = []
        for starts_s in self._starts_s:
            times_s = np.append(-np.inf, starts_s.get(thread, []))
            before_s.append(times_s[np.searchsorted(times_s, called_s, side="left") - 1])
        return np.asarray(before_s[0] > before_s[1])


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
        self._gaps = usage.idle[usage.idle[:, 1] - usage.idle[:, 0] > host.noise_s]
        work, ends_s = usage.work, self._gaps[:, 1]
        at = np.searchsorted(work.times_s[:, 0], ends_s)
        follows = np.append(work.times_s[:, 0], np.nan)[at] == ends_s
        self._nexts = np.where(follows, at, UNKNOWN)  # of work, that which ends the gap
        self._launches = np.append(work.launches, UNKNOWN)[self._nexts]
        threads, of = host.calls.coded(lambda tag: tag.lane)
        self._threads = [*threads, ""]
        self._of_thread = np.append(of, len(threads))[self._launches]
        launched = np.unique(of[work.launches[work.launches != UNKNOWN]]).tolist()
        # Those whose waits concern this GPU.
        self._everyone = tuple(threads[i] for i in launched) or host.threads
        self.parts_s: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(self._gaps)))
        self._saved_s: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(self._gaps)))
        self._late = self._gaps.copy()  # when the host was late, by its clock
        for code, which in places(self._of_thread).items():
            self._split(which, self._threads[code])

    def _split(self, which: Places, thread: str) -> None:
        """Split gaps that end with what one thread launched; with none, only waits are certain."""
        if thread:
            self._take_queued(which, thread)
        else:
            last, which = (
                which[self._nexts[which] == UNKNOWN],
                which[self._nexts[which] != UNKNOWN],
            )
            self.parts_s["ended"][last] = self._gaps[last, 1] - self._gaps[last, 0]
        starts_s, ends_s = self._late[which].T
        rest_s, did = ends_s - starts_s, self._host.did(thread, self._everyone)
        for sort in _SORTS if thread else _REMOVABLE:
            records, when = did[sort]
            part_s = length_within(when, starts_s, ends_s)
            self.parts_s[sort][which] += part_s
            rest_s = rest_s - part_s
            if sort in _REMOVABLE:
                whole_s = _whole(records.times_s, starts_s, ends_s)
                self._saved_s[sort][which] = np.where(part_s > 0, whole_s, 0.0)
        self.parts_s["elsewhere" if thread else "unknown"][which] += np.maximum(rest_s, 0.0)

    def _take_queued(self, which: Places, thread: str) -> None:
        """Take off the end of gaps in which their work was launched already, and stood in a queue.

        A launch that takes long has a part of its own, but for graphs, which may take long.
        """
        calls, nexts, launches = self._host.calls, self._nexts[which], self._launches[which]
        called_s, returned_s = calls.times_s[launches].T
        is_own = ~self._usage.work.where(lambda tag: tag.memory == "pageable")[nexts]
        is_own &= ~calls.where(lambda tag: "Graph" in tag.name)[launches]
        starts_s, ends_s = self._gaps[which].T
        ahead_s = np.clip(ends_s - called_s, 0.0, _START_S)
        starts_s, ends_s = starts_s - ahead_s, ends_s - ahead_s
        late_s = np.clip(called_s, starts_s, ends_s)  # up to here nothing was launched
        is_long = (returned_s - called_s > _LONG_LAUNCH_S) & is_own
        within_s = np.where(is_long, np.clip(returned_s, late_s, ends_s), late_s)
        self._late[which] = np.column_stack((starts_s, late_s))
        waited = self._host.waited(thread, called_s)
        for cause, part_s in (
            ("launch", within_s - late_s),
            ("queued", (ends_s - within_s) * waited),
            ("unknown", (ends_s - within_s) * ~waited),
        ):
            self.parts_s[cause][which] += part_s

    def idle(self, cause: str) -> Idle:
        """What a cause has of all gaps."""
        parts_s = self.parts_s[cause]
        which = np.flatnonzero(parts_s > 0)
        saved_s = np.minimum(self._saved_s[cause], self._gaps[:, 1] - self._gaps[:, 0])
        saved_s = saved_s if cause in _REMOVABLE else parts_s
        longest = which[np.argsort(-parts_s[which].round(9), kind="stable")][:_SHOWN].tolist()
        records = self._host.records(self._everyone, cause)
        lengths_s = length_within(covered(self._late[which]), *records.times_s.T)
        names, of = records.coded(lambda tag: tag.name)
        by_name_s = np.bincount(of, lengths_s, len(names))
        most = np.argsort(-by_name_s, kind="stable")[:_SHOWN].tolist()
        listed = [names[i] for i in most if by_name_s[i]]
        if cause == "elsewhere":  # in the longest gap
            named = [span.name for span in self._longest(longest[0], cause)]
            listed = named or ["no named range"] * self._host.has_ranges
        evidence = [span for i in longest for span in self._evidence(i, cause)]
        totals_s = float(parts_s.sum()), float(saved_s.sum())
        return Idle(*totals_s, len(which), float(parts_s.max()), listed, evidence)

    def _longest(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap; of ranges the innermost with most of it."""
        late, thread = self._late[i : i + 1], self._threads[self._of_thread[i]]
        if cause == "elsewhere":
            records = self._host.records((thread,), _NAMED)
            has_most = length_within(late, *records.times_s.T) > length_s(late) / 2
            return sorted(records.spans(has_most), key=lambda one: one.duration_s)[:1]
        if cause not in _SORTS:
            return []
        records, _ = self._host.did(thread, self._everyone)[cause]
        lengths_s = length_within(late, *records.times_s.T)
        return records.spans(np.array([lengths_s.argmax()])) if lengths_s.any() else []

    def _evidence(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap, or its launch; the gap; and what ended it."""
        start_s, end_s = self._gaps[i].tolist()
        name, launch, work = self._usage.name, self._launches[i], self._nexts[i]
        shown = self._longest(i, cause)
        if not shown and launch != UNKNOWN and cause in ("launch", "queued", "elsewhere"):
            shown = self._host.calls.spans(self._launches[i : i + 1])
        shown.append(Span(f"{name} idle", name, start_s, end_s, "host"))
        return shown + (self._usage.work.spans(self._nexts[i : i + 1]) if work != UNKNOWN else [])


def _bridged(records: Records, sort: str) -> Intervals:
    """When there were records; of operators with the moments in between, which Python needs."""
    when = covered(records.times_s)
    apart = when[1:, 0] - when[:-1, 1] > (_BETWEEN_S if sort == "operators" else 0.0)
    first, last = (np.concatenate(ends)[: len(when)] for ends in (([True], apart), (apart, [True])))
    return np.column_stack((when[first, 0], when[last, 1]))


def _whole(records: Intervals, starts_s: Seconds, ends_s: Seconds) -> Seconds:
    """Of the records that were under way between each start and end, the whole length."""
    when = covered(records)
    sums_s = np.concatenate(([0.0], np.cumsum(when[:, 1] - when[:, 0])))
    first = np.searchsorted(when[:, 1], starts_s, side="right")
    last = np.searchsorted(when[:, 0], ends_s, side="left")
    return sums_s[np.maximum(first, last)] - sums_s[first]
