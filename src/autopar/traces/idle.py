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
_START_S = 20e-6  # in which work begins on an idle GPU, once a call or an event lets it
_LONG_S = 100e-6  # most calls take 3 to 10 µs
_STEP_S = 200e-6  # from one launch to the next, if the host does nothing else: most take 10 to 100
_BETWEEN_S = 20e-6  # two calls of a loop that asks whether something is done
_MUCH = 0.1  # of the busy time: so much between kernels that follow closely is worth a word
_SHOWN = 3  # gaps of evidence: enough to find the place in the program
# What a thread can be seen to do, the first that holds of a moment, and what it named. Some is told
# by the name of a call or a range: `cudaMalloc_v3020`, `cuMemcpyDtoH_v2`, torch's loader.
_DONE = ("synchronised", "allocated", "launch", "loader", "peers", "operators", "cpu")
_RECORDS = {  # cause -> the sorts of records that show it, if they are not called the same
    "synchronised": ("synchronised", "asked"),
    "cpu": ("operators",),
    "elsewhere": ("named",),
}
_SORTS = ("profiler", *_DONE, "asked", "named")
_TOLD = re.compile(
    r"(?P<profiler>profiler: )|(?P<loader>enumerate\(DataLoader\))|(?P<peers>c10d::|gloo:)"
    r"|(?!.*(?:Async|Peer))(?:cu(?:da)?|hip)(?:(?P<synchronised>\w*Synchronize|Memcpy)"
    r"|(?P<asked>(?:Event|Stream)Query)"
    r"|(?P<allocated>(?:Mem)?(?:Host)?(?:Malloc|Alloc|Free|Register|Unregister)"
    r"|Mem(?:Create|Map|Unmap|Release|SetAccess)))"
)
_WAITS_FOR_EVENT = re.compile(r"(?:cu(?:da)?|hip)StreamWaitEvent")
_REMOVABLE = ("synchronised", "allocated")  # without them, the host is ahead by all of their time
# Without a wait, a thread may have to wait just as long for these.
_WAITS_TOO = ("allocated", "loader", "peers")

_ALWAYS = np.array([[-np.inf, np.inf]])
_NOWHERE = np.array([], dtype=np.int64)

Seconds = npt.NDArray[np.float64]


class Idle(NamedTuple):
    """The part of a GPU's idle time that has one cause."""

    total_s: float
    saved_s: float  # by how much the gaps would shrink without the cause, at most
    gaps: int  # in which it has a part
    longest_s: float  # of what could be saved, in one gap
    names: Sequence[str]  # of what the host did then, that with the longest share first
    evidence: Sequence[Span]  # what the host did longest, the gap, and what ended it; in turn


@cache
def _sort_told(name: str) -> str:
    match = _TOLD.match(name)
    return match.lastgroup or "" if match else ""


class Host:
    """What the threads of a trace's host did, by sort.

    On its axis of time, threads follow one another, further apart than the trace is long. So gaps
    are looked at once, and not once for each thread. Threads of which one hands its work over to
    the other, as to autograd's, are as one.
    """

    def __init__(self, trace: Trace) -> None:
        self.calls, work = trace.calls, trace.work
        self.records = joined((trace.calls, trace.operators, trace.ranges, trace.python))
        threads, codes = self.records.coded(lambda tag: tag.lane)
        at = {thread: i for i, thread in enumerate(threads)}
        as_one = [at.get(trace.handed.get(thread, thread), i) for thread, i in at.items()]
        self.threads = np.array(as_one, dtype=np.int64)[codes]
        # Of shorter gaps nothing is known. One record far off does not hide all the others.
        self.noise_s = max(NOISE_S, min(trace.alignment_error_s, _START_S))
        self.sorts = self._sorts(trace)
        self._places = places(self.sorts)
        callers = self.threads[: len(self.calls)]
        is_programs = self.sorts[: len(self.calls)] != _SORTS.index("profiler")
        self.callers = np.unique(callers[is_programs])
        every = np.concatenate((self.records.times_s, work.times_s))
        self._apart_s = 2 * float(np.ptp(every)) + 1.0 if len(every) else 0.0
        self.on_axis = self.records.times_s + self.shift(self.threads)
        # While a loader was awaited, too, nobody knows what for.
        profiler, loader = (
            covered(self.records.times_s[self.of(s)]) for s in ("profiler", "loader")
        )
        self.profiler = without(profiler, loader)
        launches = np.unique(work.launches[work.launches != UNKNOWN])
        starts_s = self.on_axis[: len(self.calls), 0]
        is_launch = self.calls.where(lambda tag: "Launch" in tag.name)
        is_launch[launches] = True  # that of other work may be outside of the window
        self.did = self._in_turn(
            np.sort(starts_s[is_launch])
        )  # sort -> when, and nothing before it
        is_event_wait = self.calls.where(lambda tag: bool(_WAITS_FOR_EVENT.match(tag.name)))
        self._before_s = [np.sort(starts_s[which]) for which in (is_event_wait, launches)]
        self._ends_s = np.sort(work.times_s[:, 1])

    def _sorts(self, trace: Trace) -> Places:
        """Of each record its place in `_SORTS`."""
        count, work = len(trace.calls), trace.work[trace.work.launches != UNKNOWN]
        lengths_s = self.records.times_s[:, 1] - self.records.times_s[:, 0]
        usual = np.full(len(self.records), _SORTS.index("operators"))
        usual[count + len(trace.operators) :] = _SORTS.index("named")
        usual[:count][lengths_s[:count] > _LONG_S] = _SORTS.index("launch")
        told, codes = self.records.coded(lambda tag: _sort_told(tag.name))
        sorts = np.array([_SORTS.index(sort) if sort else UNKNOWN for sort in told], int)[codes]
        # One that takes no longer has launched something, and waited for nobody.
        is_brief = (sorts == _SORTS.index("peers")) & (lengths_s <= _STEP_S)
        sorts = np.where((sorts == UNKNOWN) | is_brief, usual, sorts)
        # A copy of pageable memory waits, whatever its call is named; one within a GPU does not.
        is_within = work.where(lambda tag: sort_of(tag) == WITHIN)
        sorts[work.launches[is_within]] = usual[work.launches[is_within]]
        is_pageable = work.where(lambda tag: tag.memory == "pageable")
        sorts[work.launches[is_pageable]] = _SORTS.index("synchronised")
        return sorts

    def of(self, *sorts: str) -> Places:
        """Where the records of some sorts are."""
        return np.concatenate([self._places.get(_SORTS.index(s), _NOWHERE) for s in sorts])

    def shift(self, threads: Places) -> Intervals:
        """What to add to times of some threads, so that they are on the axis of all."""
        return (self._apart_s * threads[:, None]).astype(np.float64)

    def waited(self, launches: Places, gaps: Intervals) -> npt.NDArray[np.bool_]:
        """Whether the work of launches, each of which ends a gap, waited for an event.

        Its thread let it wait, right before; and as it began, work ended, which was of another GPU,
        as this one was idle.
        """
        called_s = self.on_axis[launches, 0]
        waits_s, launches_s = (
            np.append(-np.inf, times_s)[np.searchsorted(times_s, called_s, side="left")]
            for times_s in self._before_s
        )
        lets_wait = (waits_s > launches_s) & (called_s - waits_s < self._apart_s / 2)
        last = np.searchsorted(self._ends_s, gaps[:, 1], side="right")
        last_s = np.append(-np.inf, self._ends_s)[last]
        is_let = (last_s > gaps[:, 0]) & (gaps[:, 1] - last_s < _START_S)
        return np.asarray(lets_wait & is_let)

    def _in_turn(self, launches_s: Seconds) -> dict[str, Intervals]:
        """Of each moment of a thread the first sort that holds of it."""
        did, taken = {}, as_array([])
        steps = np.column_stack((launches_s[:-1], launches_s[1:]))
        for sort in _DONE:
            when = covered(self.on_axis[self.of(*_RECORDS.get(sort, (sort,))[:1])])
            if sort == "synchronised":
                when = covered(np.concatenate((when, self._polls())))
            if sort == "operators":  # of launches that follow one another closely, with all between
                of, when = clipped(steps, without(_ALWAYS, taken))
                is_short = when[:, 1] - when[:, 0] <= _STEP_S
                when = covered(when[is_short & (when[:, 1] == steps[of, 1])])
            did[sort] = without(when, taken)
            taken = covered(np.concatenate((taken, when)))
        return did

    def _polls(self) -> Intervals:
        """When a thread did nothing but ask whether something is done, again and again."""
        is_other = ~np.isin(self.sorts, [_SORTS.index("asked"), _SORTS.index("named")])
        asked = covered(self.on_axis[self.of("asked")])
        edges_s = np.concatenate(([-np.inf], asked.ravel(), [np.inf])).reshape(-1, 2)
        apart = edges_s[np.diff(edges_s)[:, 0] > _BETWEEN_S]
        when = without(without(_ALWAYS, apart), covered(self.on_axis[is_other]))
        return when[when[:, 1] - when[:, 0] > _LONG_S] if len(asked) else asked


def idle_of(usage: Usage, host: Host) -> dict[str, Idle]:
    """Cause -> the idle time of a GPU that is due to it; gaps within a profiler's error have none.

    Work that begins on an idle GPU was launched a moment before. Up to that launch the host was
    late, and what its thread did meanwhile is the cause. What others did is none: nobody knows
    whether it waited for them. From then on the work stood in its queue.
    """
    split = _Split(usage, host)
    causes = {cause: split.idle(cause) for cause, s in split.parts_s.items() if s.sum() > 0}
    lengths_s = usage.idle[:, 1] - usage.idle[:, 0]
    brief_s = lengths_s[lengths_s <= NOISE_S]  # of a GPU's own clock, which no other concerns
    if brief_s.sum() > _MUCH * length_s(usage.busy):
        total_s = float(brief_s.sum())
        longest_s = float(brief_s.max())
        causes["brief"] = Idle(total_s, total_s, len(brief_s), longest_s, (), ())
    return causes


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
        able = np.unique(host.threads[launched]) if len(launched) else host.callers
        if len(able) == 1:  # no other can have launched it
            self._threads = np.where(self._threads == UNKNOWN, able, self._threads)
        self.parts_s: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(gaps)))
        self._saved_s: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(gaps)))
        self._late = gaps.copy()  # when the host was late, by its clock
        self._take_queued(np.flatnonzero(self._launches != UNKNOWN))
        self._split()

    def _take_queued(self, which: Places) -> None:
        """Take off the end of gaps in which their work was launched already, and stood in a queue.

        Not so if the launch took long: the host was in it.
        """
        host, launches = self._host, self._launches[which]
        until_s = host.calls.times_s[launches, 0]
        is_long = host.sorts[launches] == _SORTS.index("launch")
        starts_s, ends_s = self._gaps[which].T
        ahead_s = np.clip(ends_s - until_s, 0.0, _START_S)
        starts_s, ends_s = starts_s - ahead_s, ends_s - ahead_s
        until_s = np.where(is_long, host.calls.times_s[launches, 1], until_s)
        late_s = np.clip(until_s, starts_s, ends_s)
        self._late[which] = np.column_stack((starts_s, late_s))
        memory, codes = self._usage.work.coded(lambda tag: tag.memory == "pageable")
        causes = np.where(host.waited(launches, self._gaps[which]), 1, 0)
        causes[np.array(memory)[codes[self._nexts[which]]]] = 2
        for i, cause in enumerate(("unknown", "queued", "staged")):
            self.parts_s[cause][which] = (ends_s - late_s) * (causes == i)

    def _split(self) -> None:
        """Split gaps that end with what a thread launched; of others, only waits are certain."""
        host, launched = self._host, self._launches != UNKNOWN
        lengths_s = self._late[:, 1] - self._late[:, 0]
        ended = self._nexts == UNKNOWN
        self.parts_s["ended"] = np.where(ended, lengths_s, 0.0)
        self.parts_s["profiler"] = length_within(host.profiler, *self._late.T) * launched
        of, pieces = clipped(self._late, without(_ALWAYS, host.profiler))
        of, pieces = of[~ended[of]], pieces[~ended[of]]
        pieces, late = pieces + host.shift(self._threads[of]), self._on_axis()
        for sort, when in host.did.items():
            is_certain = launched[of] | (sort in _REMOVABLE)
            within_s = length_within(when, *pieces[is_certain].T)
            self.parts_s[sort] += np.bincount(of[is_certain], within_s, len(late))
            if sort in _REMOVABLE:
                self._saved_s[sort] = (self.parts_s[sort] > 0) * _whole(when, *late.T)
        rest_s = lengths_s - np.sum([self.parts_s[sort] for sort in ("profiler", *_DONE)], axis=0)
        rest_s = np.where(ended, 0.0, np.maximum(rest_s, 0.0))
        self.parts_s["elsewhere"] = rest_s * launched
        self.parts_s["unknown"] += rest_s * ~launched

    def _on_axis(self) -> Intervals:
        """When the host was late, each on its thread."""
        return self._late + self._host.shift(self._threads)

    def idle(self, cause: str) -> Idle:
        """What a cause has of all gaps."""
        parts_s = self.parts_s[cause]
        saved_s = parts_s
        if cause in _REMOVABLE:
            parts, saved_s = self.parts_s, self._saved_s[cause]
            taken = [parts[other] for other in _WAITS_TOO if other != cause]
            left_s = self._gaps[:, 1] - self._gaps[:, 0] - np.sum(taken, axis=0)
            # Where a thread then did something unknown for longer, that may have been a wait, too.
            left_s = np.where(parts["elsewhere"] > saved_s, parts_s, left_s)
            saved_s = np.clip(saved_s, parts_s, np.maximum(left_s, parts_s))
        which = np.flatnonzero(parts_s > 0)
        longest = which[np.argsort(-saved_s[which].round(9), kind="stable")][:_SHOWN].tolist()
        evidence = [span for i in longest for span in self._evidence(i, cause)]
        if cause == "elsewhere":  # in the longest gap
            listed = [span.name for span in self._longest(longest[0], cause)]
            listed = listed or ["no named range"] * (len(self._host.of("named")) > 0)
        else:
            listed = self._names(cause, which)
        totals_s = float(parts_s.sum()), float(saved_s.sum())
        return Idle(*totals_s, len(which), float(saved_s.max()), listed, evidence)

    def _records(self, cause: str) -> tuple[Places, Intervals, Intervals]:
        """Where records that may show a cause are, with their times, and when gaps are on these."""
        sorts = _RECORDS.get(cause, (cause,))
        its = self._host.of(*sorts) if sorts[0] in _SORTS else _NOWHERE
        if cause == "profiler":  # which has threads of its own
            return its, self._host.records.times_s[its], self._late
        return its, self._host.on_axis[its], self._on_axis()

    def _names(self, cause: str, which: Places) -> list[str]:
        """What the host did in some gaps, that with the longest share first."""
        its, times_s, late = self._records(cause)
        names, of = self._host.records[its].coded(lambda tag: tag.name)
        within_s = length_within(covered(late[which]), *times_s.T)
        by_name_s = np.bincount(of, within_s, len(names))
        most = np.argsort(-by_name_s, kind="stable")[:_SHOWN].tolist()
        return [names[i] for i in most if by_name_s[i]]

    def _longest(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap; of ranges the innermost with most of it."""
        its, times_s, late = self._records(cause)
        start_s, end_s = late[i]
        lengths_s = np.minimum(times_s[:, 1], end_s) - np.maximum(times_s[:, 0], start_s)
        if cause == "elsewhere":
            spans = self._host.records.spans(its[lengths_s > (end_s - start_s) / 2])
            return sorted(spans, key=lambda one: one.duration_s)[:1]
        most = its[lengths_s.argmax()[None]] if (lengths_s > 0).any() else _NOWHERE
        return self._host.records.spans(most)

    def _evidence(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap, or its launch; the gap; and what ended it."""
        start_s, end_s = self._gaps[i].tolist()
        name, launches, nexts = self._usage.name, self._launches[i : i + 1], self._nexts[i : i + 1]
        shown = self._longest(i, cause)
        if not shown and launches[0] != UNKNOWN and cause in ("queued", "staged", "elsewhere"):
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
