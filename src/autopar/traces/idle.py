"""Idle: what the host did while a GPU had nothing to do, each gap split over all of it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autopar.timeline.groups import grouped
from autopar.timeline.intervals import (
    Intervals,
    as_array,
    covered,
    intervals_of,
    length_s,
    length_within,
    without,
)
from autopar.timeline.span import Span
from autopar.traces.trace import Activity, Trace
from autopar.traces.utilization import Usage

NOISE_S = 2e-6  # shorter gaps are between any two kernels, and within a profiler's own error
_START_S = 20e-6  # in which work begins on an idle GPU, once a call has asked for it
_LONG_LAUNCH_S = 100e-6  # most calls that launch take 3 to 10 µs, those of large graphs some more
_SHOWN = 3  # gaps of evidence: enough to find the place in the program
# Calls that wait for the GPU, and such as allocate or free: `cudaMalloc_v3020`, `cuMemcpyDtoH_v2`.
_HOLDS_BACK = re.compile(
    r"(?!.*(?:Async|Peer))(?:cu(?:da)?|hip)(?:(?P<synchronised>\w*Synchronize|Memcpy)"
    r"|(?P<allocated>(?:Mem)?(?:Host)?(?:Malloc|Alloc|Free|Register|Unregister)"
    r"|Mem(?:Create|Map|Unmap|Release|SetAccess)))"
)
_LOADER = re.compile(r"enumerate\(DataLoader\)")  # how torch names the wait for the next batch
_WAITS_FOR_EVENT = re.compile(r"(?:cu(?:da)?|hip)StreamWaitEvent")
# What a thread can be seen to do, the first that holds of a moment; and what it named.
_SORTS = ("synchronised", "allocated", "loader", "operators")
_NAMED = "named"
_REMOVABLE = _SORTS[:2]  # without them, the host would be ahead by all of their time

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
def held_back(name: str) -> str:
    """How a call of this name holds its thread back; empty if it does not."""
    match = _HOLDS_BACK.match(name)
    return match.lastgroup or "" if match else ""


class Host:
    """What the threads of a trace's host did, as records by thread and sort."""

    def __init__(self, trace: Trace) -> None:
        # A copy of pageable memory waits, whatever the name of its call says.
        waits = {work.launch for work in trace.activities if work.memory == "pageable"}
        records: dict[str, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
        for call in trace.calls:
            sort = held_back(call.name) or ("synchronised" if call in waits else "operators")
            records[call.lane][sort].append(call)
        for spans, sort in ((trace.operators, "operators"), (trace.ranges, _NAMED)):
            for span in spans:
                records[span.lane]["loader" if _LOADER.match(span.name) else sort].append(span)
        self.records: Mapping[str, Mapping[str, list[Span]]] = records
        self.has_ranges = bool(trace.ranges)
        # Of shorter gaps nothing is known. One record far off does not hide all the others.
        self.noise_s = max(NOISE_S, min(trace.alignment_error_s, _START_S))
        self.event_waits = {
            thread: np.array([span.start_s for span in spans])
            for thread, spans in grouped(
                (call for call in trace.calls if _WAITS_FOR_EVENT.match(call.name)),
                lambda call: call.lane,
            ).items()
        }

    def of(self, threads: Iterable[str], sort: str) -> list[Span]:
        """The records of a sort of some threads."""
        return [span for thread in threads for span in self.records.get(thread, {}).get(sort, ())]

    def sets(self, threads: Iterable[str]) -> dict[str, Intervals]:
        """When some threads did what: of each moment the first sort that holds of it."""
        sets, taken = {}, as_array([])
        for sort in _SORTS:
            when = covered(intervals_of(self.of(threads, sort)))
            sets[sort] = without(when, taken)
            taken = covered(np.concatenate((taken, when)))
        return sets


def idle_of(usage: Usage, host: Host) -> dict[str, Idle]:
    """Cause -> the idle time of a GPU that is due to it; gaps within a profiler's error have none.

    Work that begins on an idle GPU was launched a moment before. Up to that launch the host was
    late, and what its thread did meanwhile is the cause; where nothing is known of that, what other
    threads did that launch work on this GPU. From then on the work stood in its queue.
    """
    gaps = usage.idle[usage.idle[:, 1] - usage.idle[:, 0] > host.noise_s]
    following = {work.span.start_s: work for work in reversed(usage.activities)}
    nexts = [following.get(end_s) for end_s in gaps[:, 1].tolist()]
    lanes = [work.launch.lane if work and work.launch else "" for work in nexts]
    split = _Split(usage, host, gaps, nexts)
    everyone = sorted({work.launch.lane for work in usage.activities if work.launch})
    by_thread = grouped(range(len(gaps)), lambda i: lanes[i])
    unlaunched = np.array(by_thread.pop("", []), dtype=int)
    for thread, of_it in by_thread.items():
        split.launched(np.array(of_it), thread, everyone)
    split.unlaunched(unlaunched)
    return split.causes()


class _Split:
    """The gaps of a GPU while they are split; all arrays have a place for each gap."""

    def __init__(
        self, usage: Usage, host: Host, gaps: Intervals, nexts: Sequence[Activity | None]
    ) -> None:
        self._gpu, self._host, self._gaps, self._nexts = usage.name, host, gaps, nexts
        self._lengths_s = gaps[:, 1] - gaps[:, 0]
        self._parts: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(gaps)))
        self._saved: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(gaps)))
        self._late = gaps.copy()  # when the host was late, by its clock
        self._threads: dict[int, Sequence[str]] = {}  # whose records tell of a gap
        self._waited = _waited(usage, host, nexts)

    def launched(self, which: npt.NDArray[np.int64], thread: str, everyone: Sequence[str]) -> None:
        """Split gaps that end with work which one thread launched."""
        works = [work for i in which if (work := self._nexts[i])]
        called_s, returned_s = intervals_of(work.launch for work in works).T
        waits = np.array([work.memory == "pageable" for work in works])  # in the call that copies
        starts_s, ends_s = self._gaps[which].T
        ahead_s = np.clip(ends_s - called_s, 0.0, _START_S)
        starts_s, ends_s = starts_s - ahead_s, ends_s - ahead_s
        late_s = np.clip(called_s, starts_s, ends_s)  # up to here nothing was launched
        is_long = (returned_s - called_s > _LONG_LAUNCH_S) & ~waits
        within_s = np.where(is_long, returned_s, late_s)
        within_s = np.clip(within_s, late_s, ends_s)
        self._late[which] = np.column_stack((starts_s, late_s))
        self._parts["launch"][which] = within_s - late_s
        waited = self._waited[which]
        self._parts["queued"][which] = np.where(waited, ends_s - within_s, 0.0)
        self._parts["unknown"][which] = np.where(waited, 0.0, ends_s - within_s)
        others = [other for other in everyone if other != thread]
        own = self._host.sets([thread])
        named = covered(intervals_of(self._host.of([thread], _NAMED)))
        silent = covered(np.concatenate((named, *own.values())))
        beside = {sort: without(when, silent) for sort, when in self._host.sets(others).items()}
        rest_s = late_s - starts_s
        for sets, threads in ((own, [thread]), (beside, others)):
            rest_s = rest_s - self._add(which, sets, threads, _SORTS)
        self._parts["elsewhere"][which] = np.maximum(rest_s, 0.0)
        self._threads |= dict.fromkeys(which.tolist(), (thread, *others))

    def unlaunched(self, which: npt.NDArray[np.int64]) -> None:
        """Split gaps of which nobody knows who launched what ended them: only waits are certain."""
        threads = tuple(sorted(self._host.records))
        is_last = np.array([self._nexts[i] is None for i in which], dtype=bool)
        self._parts["ended"][which] = np.where(is_last, self._lengths_s[which], 0.0)
        before = which[~is_last]
        known_s = self._add(before, self._host.sets(threads), threads, _REMOVABLE)
        self._parts["unknown"][before] = np.maximum(self._lengths_s[before] - known_s, 0.0)
        self._threads |= dict.fromkeys(which.tolist(), threads)

    def _add(
        self,
        which: npt.NDArray[np.int64],
        sets: Mapping[str, Intervals],
        threads: Sequence[str],
        sorts: Sequence[str],
    ) -> Seconds:
        """Put down what threads did while they were late; returns how much that is."""
        starts_s, ends_s = self._late[which].T
        total_s = np.zeros(len(which))
        for sort in sorts:
            part_s = length_within(sets[sort], starts_s, ends_s)
            self._parts[sort][which] += part_s
            total_s = total_s + part_s
            if sort in _REMOVABLE:
                whole_s = _whole(self._host.of(threads, sort), starts_s, ends_s)
                saved_s = np.where(part_s > 0, whole_s, 0.0)
                self._saved[sort][which] += saved_s
        return total_s

    def causes(self) -> dict[str, Idle]:
        """Cause -> what it has of all gaps."""
        return {cause: self._idle(cause, s) for cause, s in self._parts.items() if s.sum() > 0}

    def _idle(self, cause: str, parts_s: Seconds) -> Idle:
        saved_s = parts_s
        if cause in _REMOVABLE:
            saved_s = np.minimum(self._saved[cause], self._lengths_s)
        which = np.flatnonzero(parts_s > 0)
        threads = {thread for i in which.tolist() for thread in self._threads[i]}
        records, names = self._host.of(sorted(threads), cause), Counter[str]()
        lengths_s = _lengths(records, covered(self._late[which]))
        for record, length in zip(records, lengths_s.tolist(), strict=True):
            if length:
                names[record.name] += length
        longest = np.argsort(-parts_s.round(9), kind="stable")[:_SHOWN].tolist()
        evidence = [span for i in longest if parts_s[i] > 0 for span in self._evidence(i, cause)]
        total_s, saved = float(parts_s.sum()), float(saved_s.sum())
        listed = [name for name, _ in names.most_common(_SHOWN)]
        if cause == "elsewhere":  # in the longest gap
            named = [span.name for span in self._innermost(longest[0])]
            listed = named or ["no named range"] * self._host.has_ranges
        return Idle(total_s, saved, len(which), float(parts_s.max()), listed, evidence)

    def _innermost(self, i: int) -> list[Span]:
        """The shortest of what the program named that has more than half of a gap, if any."""
        records, late = self._host.of(self._threads[i][:1], _NAMED), self._late[i : i + 1]
        half = _lengths(records, late) > length_s(late) / 2
        return sorted(compress(records, half), key=lambda one: one.duration_s)[:1]

    def _evidence(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap, the gap, and what ended it."""
        start_s, end_s = self._gaps[i].tolist()
        work, late = self._nexts[i], self._late[i : i + 1]
        records = self._host.of(self._threads[i], cause)
        records = self._innermost(i) if cause == "elsewhere" else records
        lengths_s = _lengths(records, late)
        shown = [records[lengths_s.argmax()]] if len(records) and lengths_s.max() > 0 else []
        if not shown and work and work.launch and cause in ("launch", "queued", "elsewhere"):
            shown = [work.launch]
        shown.append(Span(f"{self._gpu} idle", self._gpu, start_s, end_s, "host"))
        return [*shown, work.span] if work else shown


def _lengths(records: Sequence[Span], within: Intervals) -> Seconds:
    """Of each record, how much lies within a set of times."""
    return length_within(within, *intervals_of(records).T)


def _whole(records: Sequence[Span], starts_s: Seconds, ends_s: Seconds) -> Seconds:
    """Of the records that were under way between each start and end, the whole length."""
    when = covered(intervals_of(records))
    sums_s = np.concatenate(([0.0], np.cumsum(when[:, 1] - when[:, 0])))
    first = np.searchsorted(when[:, 1], starts_s, side="right")
    last = np.searchsorted(when[:, 0], ends_s, side="left")
    return sums_s[np.maximum(first, last)] - sums_s[first]


def _waited(usage: Usage, host: Host, nexts: Sequence[Activity | None]) -> npt.NDArray[np.bool_]:
    """Of each work, whether an event was to be waited for before it in its stream."""
    asked = {id(work): -1.0 for work in nexts if work}
    last: dict[str, float] = {}  # of each stream, when its last work was launched
    for done in usage.activities:
        if done.launch:
            if id(done) in asked:
                asked[id(done)] = last.get(done.stream, -np.inf)
            last[done.stream] = done.launch.start_s
    waited = []
    for work in nexts:
        is_seen = False
        if work and work.launch:
            waits_s = host.event_waits.get(work.launch.lane, np.zeros(0))
            between = (waits_s > asked[id(work)]) & (waits_s < work.launch.start_s)
            is_seen = bool(between.any())
        waited.append(is_seen)
    return np.array(waited, dtype=bool)
