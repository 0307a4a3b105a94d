"""Idle: what the host did while a GPU had nothing to do, each gap split over all of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autopar.timeline.groups import grouped
from autopar.timeline.intervals import (
    Intervals,
    as_array,
    clipped,
    covered,
    intervals_of,
    length_s,
    length_within,
    without,
)
from autopar.timeline.span import Span
from autopar.traces.trace import Trace
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


class _Records(NamedTuple):
    """What some threads did."""

    spans: Sequence[Span]
    times: Intervals  # of each
    names: Sequence[str]  # each once
    named: npt.NDArray[np.int64]  # of each the place of its name

    def lengths_s(self, within: Intervals) -> Seconds:
        """Of each record, how much lies within a set of times."""
        return length_within(within, *self.times.T)


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
        # A copy of pageable memory waits, whatever its call is named; one within a GPU does not.
        launched = [work for work in trace.activities if work.launch]
        waits = {id(work.launch) for work in launched if work.memory == "pageable"}
        within = {id(work.launch) for work in launched if sort_of(work) == WITHIN}
        self._records: dict[tuple[str, str], list[Span]] = defaultdict(list)
        lists = (trace.calls, "operators"), (trace.operators, "operators"), (trace.ranges, _NAMED)
        for spans, usual in lists:
            for span in spans:
                sort = _sort_told(span.name) or usual
                if id(span) in waits:
                    sort = "synchronised"
                elif id(span) in within:
                    sort = "operators"
                self._records["" if sort == "profiler" else span.lane, sort].append(span)
        self.threads = tuple(sorted({thread for thread, _ in self._records} - {""}))
        self.has_ranges = bool(trace.ranges)
        # Of shorter gaps nothing is known. One record far off does not hide all the others.
        self.noise_s = max(NOISE_S, min(trace.alignment_error_s, _START_S))
        event_waits = (call for call in trace.calls if _WAITS_FOR_EVENT.match(call.name))
        self._event_waits, self._launches = (
            {thread: np.sort(intervals_of(some)[:, 0]) for thread, some in by_thread.items()}
            for by_thread in (
                grouped(calls, lambda call: call.lane)
                for calls in (event_waits, (work.launch for work in launched if work.launch))
            )
        )
        self.records, self.when = cache(self._records_of), cache(self._when)
        self.silent = cache(self._silent)

    def _records_of(self, threads: tuple[str, ...], sort: str) -> _Records:
        """The records of a sort of some threads; those of the profiler are of all threads."""
        keys = [(thread, sort) for thread in (("",) if sort == "profiler" else threads)]
        spans = [span for key in keys if key in self._records for span in self._records[key]]
        names: dict[str, int] = {}
        named = np.array([names.setdefault(span.name, len(names)) for span in spans], dtype=int)
        return _Records(spans, intervals_of(spans), [*names], named)

    def _when(self, threads: tuple[str, ...]) -> Mapping[str, Intervals]:
        """When some threads did what: of each moment the first sort that holds of it."""
        sets, taken = {}, as_array([])
        for sort in _SORTS:
            when = covered(self.records(threads, sort).times)
            when = _joined(when) if sort == "operators" else when
            sets[sort] = without(when, taken)
            taken = covered(np.concatenate((taken, when)))
        return sets

    def _silent(self, thread: str) -> Intervals:
        """When nothing is known of a thread: it was in nothing, and in no range."""
        known = [*self.when((thread,)).values(), self.records((thread,), _NAMED).times]
        return without(as_array([(-np.inf, np.inf)]), covered(np.concatenate(known)))

    def waited(self, thread: str, called_s: Seconds) -> npt.NDArray[np.bool_]:
        """Whether a thread let the work of its launches wait: right before, for an event."""
        before_s = []
        for calls in (self._event_waits, self._launches):
            times_s = np.concatenate(([-np.inf], calls.get(thread, ())))
            before_s.append(times_s[np.searchsorted(times_s, called_s, side="left") - 1])
        return np.asarray(before_s[0] > before_s[1])


def idle_of(usage: Usage, host: Host) -> dict[str, Idle]:
    """Cause -> the idle time of a GPU that is due to it; gaps within a profiler's error have none.

    Work that begins on an idle GPU was launched a moment before. Up to that launch the host was
    late, and what its thread did meanwhile is the cause; where nothing is known of that, what other
    threads did that launch work on this GPU. From then on the work stood in its queue.
    """
    split = _Split(usage, host)
    for thread, of_it in grouped(range(len(split.nexts)), split.lanes.__getitem__).items():
        split.part(np.array(of_it), thread)
    return {cause: split.idle(cause) for cause, s in split.parts_s.items() if s.sum() > 0}


class _Split:
    """The gaps of a GPU while they are split; all arrays have a place for each gap."""

    def __init__(self, usage: Usage, host: Host) -> None:
        self._gpu, self._host = usage.name, host
        self._gaps = usage.idle[usage.idle[:, 1] - usage.idle[:, 0] > host.noise_s]
        following = {work.span.start_s: work for work in reversed(usage.activities)}
        self.nexts = [following.get(end_s) for end_s in self._gaps[:, 1].tolist()]
        self._launches = [work.launch if work else None for work in self.nexts]
        self.lanes = [launch.lane if launch else "" for launch in self._launches]
        everyone = {work.launch.lane for work in usage.activities if work.launch}
        self._threads = tuple(sorted(everyone)) or host.threads  # whose waits concern this GPU
        self.parts_s: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(self._gaps)))
        self._saved_s: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(self._gaps)))
        self._late = self._gaps.copy()  # when the host was late, by its clock

    def part(self, which: npt.NDArray[np.int64], thread: str) -> None:
        """Split gaps that end with what one thread launched; with none, only waits are certain."""
        if thread:
            self._queued(which, thread)
        else:
            is_last = np.array([self.nexts[i] is None for i in which.tolist()])
            last, which = which[is_last], which[~is_last]
            self.parts_s["ended"][last] = self._gaps[last, 1] - self._gaps[last, 0]
        late, each = self._late[which], np.arange(len(which))
        own, sorts = ((thread,), _SORTS) if thread else (self._threads, _REMOVABLE)
        rest_s = late[:, 1] - late[:, 0] - self._add(which, own, sorts, each, late)
        if thread:
            pieces = clipped(late, self._host.silent(thread))
            rest_s = rest_s - self._add(which, self._threads, sorts, *pieces)
        rest = "elsewhere" if thread else "unknown"
        self.parts_s[rest][which] += np.maximum(rest_s, 0.0)

    def _queued(self, which: npt.NDArray[np.int64], thread: str) -> None:
        """Take off the end of gaps in which their work was launched already, and stood in a queue.

        A launch that takes long has a part of its own, but for graphs, which may take long.
        """
        works = [(work, work.launch) for i in which.tolist() if (work := self.nexts[i])]
        called_s, returned_s = intervals_of(launch for _, launch in works).T
        is_own = [
            work.memory != "pageable" and launch is not None and "Graph" not in launch.name
            for work, launch in works
        ]
        starts_s, ends_s = self._gaps[which].T
        ahead_s = np.clip(ends_s - called_s, 0.0, _START_S)
        starts_s, ends_s = starts_s - ahead_s, ends_s - ahead_s
        late_s = np.clip(called_s, starts_s, ends_s)  # up to here nothing was launched
        is_long = (returned_s - called_s > _LONG_LAUNCH_S) & np.array(is_own)
        within_s = np.where(is_long, np.clip(returned_s, late_s, ends_s), late_s)
        self._late[which] = np.column_stack((starts_s, late_s))
        waited = self._host.waited(thread, called_s)
        for cause, part_s in (
            ("launch", within_s - late_s),
            ("queued", (ends_s - within_s) * waited),
            ("unknown", (ends_s - within_s) * ~waited),
        ):
            self.parts_s[cause][which] += part_s

    def _add(
        self,
        which: npt.NDArray[np.int64],
        threads: tuple[str, ...],
        sorts: Sequence[str],
        of: npt.NDArray[np.int64],
        pieces: Intervals,
    ) -> Seconds:
        """Put down what threads did in pieces of some gaps, and return how much that is of each."""
        total_s = np.zeros(len(which))
        for sort in sorts:
            lengths_s = length_within(self._host.when(threads)[sort], *pieces.T)
            part_s = np.bincount(of, lengths_s, len(which))
            self.parts_s[sort][which] += part_s
            total_s = total_s + part_s
            if sort in _REMOVABLE:
                whole_s = _whole(self._host.records(threads, sort).times, *self._late[which].T)
                self._saved_s[sort][which] += np.where(part_s > 0, whole_s, 0.0)
        return total_s

    def idle(self, cause: str) -> Idle:
        """What a cause has of all gaps."""
        parts_s = self.parts_s[cause]
        which = np.flatnonzero(parts_s > 0)
        saved_s = np.minimum(self._saved_s[cause], self._gaps[:, 1] - self._gaps[:, 0])
        saved_s = saved_s if cause in _REMOVABLE else parts_s
        longest = which[np.argsort(-parts_s[which].round(9), kind="stable")][:_SHOWN].tolist()
        records = self._host.records(self._threads, cause)
        lengths_s = records.lengths_s(covered(self._late[which]))
        by_name_s = np.bincount(records.named, lengths_s, len(records.names))
        most = np.argsort(-by_name_s, kind="stable")[:_SHOWN].tolist()
        listed = [records.names[i] for i in most if by_name_s[i]]
        if cause == "elsewhere":  # in the longest gap
            named = [span.name for span in self._longest(longest[0], cause)]
            listed = named or ["no named range"] * self._host.has_ranges
        evidence = [span for i in longest for span in self._evidence(i, cause)]
        totals_s = float(parts_s.sum()), float(saved_s.sum())
        return Idle(*totals_s, len(which), float(parts_s.max()), listed, evidence)

    def _longest(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap; of ranges the innermost with most of it."""
        late = self._late[i : i + 1]
        if cause == "elsewhere":
            records = self._host.records((self.lanes[i],), _NAMED)
            most = np.flatnonzero(records.lengths_s(late) > length_s(late) / 2).tolist()
            return sorted((records.spans[i] for i in most), key=lambda one: one.duration_s)[:1]
        for threads in ((self.lanes[i],), self._threads):
            records = self._host.records(threads, cause)
            lengths_s = records.lengths_s(late)
            if lengths_s.any():
                return [records.spans[int(lengths_s.argmax())]]
        return []

    def _evidence(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap, or its launch; the gap; and what ended it."""
        start_s, end_s = self._gaps[i].tolist()
        work, launch, shown = self.nexts[i], self._launches[i], self._longest(i, cause)
        if not shown and launch and cause in ("launch", "queued", "elsewhere"):
            shown = [launch]
        shown.append(Span(f"{self._gpu} idle", self._gpu, start_s, end_s, "host"))
        return [*shown, work.span] if work else shown


def _joined(when: Intervals) -> Intervals:
    """A set of times without the moments in between: Python goes from one operator to the next."""
    apart = when[1:, 0] - when[:-1, 1] > _BETWEEN_S
    first, last = (np.concatenate(ends)[: len(when)] for ends in (([True], apart), (apart, [True])))
    return np.column_stack((when[first, 0], when[last, 1]))


def _whole(records: Intervals, starts_s: Seconds, ends_s: Seconds) -> Seconds:
    """Of the records that were under way between each start and end, the whole length."""
    when = covered(records)
    sums_s = np.concatenate(([0.0], np.cumsum(when[:, 1] - when[:, 0])))
    first = np.searchsorted(when[:, 1], starts_s, side="right")
    last = np.searchsorted(when[:, 0], ends_s, side="left")
    return sums_s[np.maximum(first, last)] - sums_s[first]
