"""Idle: what the host did while a GPU had nothing to do, each gap split over all of it."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np

from autopar.display.format import format_seconds, shortened
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
from autopar.traces.findings import CAUSES, SHOWN, Finding
from autopar.traces.trace import HOST, UNKNOWN, Mask, Places, Records, Seconds, Trace
from autopar.traces.utilization import WITHIN, Usage, sort_of

_NOISE_S = 2e-6  # shorter gaps are between any two kernels, and within a profiler's own error
# In which work begins on an idle GPU, once a call or an event lets it. To issue a copy and to start
# one takes 13 µs each (measured on an H200: a staged copy; 1 MiB at 33 GB/s in place of 55).
_START_S = 20e-6
_LONG_S = 100e-6  # most calls take 3 to 10 µs
# From one launch to the next, if the host does nothing else: 9 µs for a product in eager PyTorch
# (measured on an H200: 64 in 549 µs). With a program's own code between them, 15 runtimes ran tasks
# of 100 µs well at best (Task Bench); this is twice as much.
_STEP_S = 200e-6
_BETWEEN_S = 20e-6  # two calls of a loop that asks whether something is done
_MUCH = 0.1  # of the busy time: so much between kernels that follow closely is worth a word
# What a thread can be seen to do, the first that holds of a moment.
_DONE = ("synchronised", "allocated", "launch", "loader", "peers", "operators", "cpu")
_RECORDS = {  # cause -> the sorts of records that show it, if they are not called the same
    "synchronised": ("synchronised", "asked"),
    "cpu": ("operators",),
    "elsewhere": ("named",),
}
_SORTS = ("profiler", *_DONE, "asked", "named")
_CODES = {sort: code for code, sort in enumerate(_SORTS)}
# Some is told by the name of a call or a range: `cudaMalloc_v3020`, `cuMemcpyDtoH_v2`, torch's
# loader.
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


def noise_s(trace: Trace) -> float:
    """Of shorter gaps nothing is known. One record far off does not hide all the others."""
    return max(_NOISE_S, min(trace.alignment_error_s, _START_S))


class Host:
    """What the threads of a trace's host did, by sort.

    On its axis of time, threads follow one another, further apart than the trace is long. So gaps
    are looked at once, and not once for each thread. Threads of which one hands its work over to
    the other, as to autograd's, are as one.
    """

    def __init__(self, trace: Trace) -> None:
        records, work = trace.host, trace.work
        self.records = records
        threads, codes = records.coded(lambda tag: tag.lane)
        at = {thread: i for i, thread in enumerate(threads)}
        as_one = [at.get(trace.handed.get(thread, thread), i) for thread, i in at.items()]
        self.threads = np.array(as_one, dtype=np.int64)[codes]
        self.noise_s = noise_s(trace)
        is_call = records.where(lambda tag: tag.kind == "call")
        self.sorts = _sorts_of(records, work)
        self.of = {sort: np.flatnonzero(self.sorts == code) for sort, code in _CODES.items()}
        every = np.concatenate((records.times_s, work.times_s))
        self._apart_s = 2 * float(np.ptp(every)) + 1.0 if len(every) else 0.0
        self.on_axis = records.times_s + self.shift(self.threads)
        # While a loader was awaited, too, nobody knows what for.
        profiler, loader = (covered(records.times_s[self.of[s]]) for s in ("profiler", "loader"))
        self.profiler = without(profiler, loader)
        launches = np.unique(work.launches[work.launches != UNKNOWN])
        starts_s = self.on_axis[:, 0]
        is_launch = is_call & records.where(lambda tag: "Launch" in tag.name)
        is_launch[launches] = True  # that of other work may be outside of the window
        self.did = self._in_turn(np.sort(starts_s[is_launch]))
        is_event_wait = is_call & records.where(lambda tag: bool(_WAITS_FOR_EVENT.match(tag.name)))
        self._before_s = [np.sort(starts_s[which]) for which in (is_event_wait, launches)]
        self._ends_s = np.sort(work.times_s[:, 1])

    def shift(self, threads: Places) -> Intervals:
        """What to add to times of some threads, so that they are on the axis of all."""
        return (self._apart_s * threads[:, None]).astype(np.float64)

    def waited(self, launches: Places, gaps: Intervals) -> Mask:
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
        """Sort -> when threads did it: of each moment the first sort that holds."""
        did, taken = {}, as_array([])
        steps = np.column_stack((launches_s[:-1], launches_s[1:]))
        for sort in _DONE:
            when = covered(self.on_axis[self.of[_RECORDS.get(sort, (sort,))[0]]])
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
        is_other = ~np.isin(self.sorts, [_CODES["asked"], _CODES["named"]])
        asked = covered(self.on_axis[self.of["asked"]])
        edges_s = np.concatenate(([-np.inf], asked.ravel(), [np.inf])).reshape(-1, 2)
        apart = edges_s[np.diff(edges_s)[:, 0] > _BETWEEN_S]
        when = without(without(_ALWAYS, apart), covered(self.on_axis[is_other]))
        return when[when[:, 1] - when[:, 0] > _LONG_S] if len(asked) else asked


@cache
def _sort_told(name: str) -> str:
    match = _TOLD.match(name)
    return match.lastgroup or "" if match else ""


def _sorts_of(records: Records, work: Records) -> Places:
    """Of each record of the host its place in `_SORTS`."""
    sorts_told, codes = records.coded(
        lambda tag: (
            _sort_told(tag.name) or ("named" if tag.kind in ("range", "python") else "operators")
        )
    )
    sorts = np.array([_CODES[sort] for sort in sorts_told], dtype=np.int64)[codes]
    work = work[work.launches != UNKNOWN]
    # What takes no longer has launched something, and waited for nobody.
    sorts[(sorts == _CODES["peers"]) & (records.lengths_s <= _STEP_S)] = _CODES["operators"]
    # A copy of pageable memory waits, whatever its call is named; one within a GPU does not.
    sorts[work.launches[work.where(lambda tag: sort_of(tag) == WITHIN)]] = _CODES["operators"]
    is_long = records.where(lambda tag: tag.kind == "call") & (records.lengths_s > _LONG_S)
    sorts[is_long & (sorts == _CODES["operators"])] = _CODES["launch"]
    is_pageable = work.where(lambda tag: tag.memory == "pageable")
    sorts[work.launches[is_pageable]] = _CODES["synchronised"]
    return sorts


def idle_of(usage: Usage, host: Host) -> list[Finding]:
    """The idle time of a GPU by what it is due to; gaps within a profiler's error have no cause.

    Work that begins on an idle GPU was launched a moment before. Up to that launch the host was
    late, and what its thread did meanwhile is the cause. What others did is none: nobody knows
    whether it waited for them. From then on the work stood in its queue.
    """
    gaps = _Gaps(usage, host)
    findings = [gaps.finding(cause) for cause, s in gaps.parts_s.items() if s.any()]
    lengths_s = usage.idle[:, 1] - usage.idle[:, 0]
    brief_s = lengths_s[lengths_s <= _NOISE_S]  # of a GPU's own clock, which no other concerns
    if (sum_s := float(brief_s.sum())) > _MUCH * length_s(usage.busy):
        why = f"{len(brief_s):,} times it was idle {CAUSES['brief'].what}"
        findings.append(Finding("brief", usage.name, sum_s, why, (), sum_s, len(brief_s)))
    return findings


class _Gaps:
    """The gaps of a GPU, split; all arrays have a place for each gap."""

    def __init__(self, usage: Usage, host: Host) -> None:
        self._usage, self._host = usage, host
        gaps = self._gaps = usage.idle[usage.idle[:, 1] - usage.idle[:, 0] > host.noise_s]
        starts_s = usage.work.times_s[:, 0]
        at = np.searchsorted(starts_s, gaps[:, 1])
        follows = np.append(starts_s, np.nan)[at] == gaps[:, 1]
        self._nexts = np.where(follows, at, UNKNOWN)  # of work, that which ends the gap
        self._launches = np.append(usage.work.launches, UNKNOWN)[self._nexts]
        self._threads = np.append(host.threads, UNKNOWN)[self._launches]
        self.parts_s: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(gaps)))
        self._late = gaps.copy()  # when the host was late, by its clock
        self._take_queued(np.flatnonzero(self._launches != UNKNOWN))
        self._late_on_axis = self._late + host.shift(self._threads)
        self._split()

    def _take_queued(self, which: Places) -> None:
        """Take off the end of gaps in which their work was launched already, and stood in a queue.

        Not so if the launch took long: the host was in it.
        """
        host, launches = self._host, self._launches[which]
        called_s, returned_s = host.records.times_s[launches].T
        starts_s, ends_s = self._gaps[which].T
        ahead_s = np.clip(ends_s - called_s, 0.0, _START_S)
        starts_s, ends_s = starts_s - ahead_s, ends_s - ahead_s
        until_s = np.where(host.sorts[launches] == _CODES["launch"], returned_s, called_s)
        late_s = np.clip(until_s, starts_s, ends_s)
        self._late[which] = np.column_stack((starts_s, late_s))
        is_staged = self._usage.work.where(lambda tag: tag.memory == "pageable")
        is_staged = is_staged[self._nexts[which]]
        is_queued = ~is_staged & host.waited(launches, self._gaps[which])
        of = {"staged": is_staged, "queued": is_queued, "unknown": ~is_staged & ~is_queued}
        for cause, holds in of.items():
            self.parts_s[cause][which] = (ends_s - late_s) * holds

    def _split(self) -> None:
        """Split gaps over what the thread did that launched what ends them; of others, no cause."""
        host, launched = self._host, self._launches != UNKNOWN
        lengths_s = self._late[:, 1] - self._late[:, 0]
        ended = self._nexts == UNKNOWN
        self.parts_s["ended"] = np.where(ended, lengths_s, 0.0)
        self.parts_s["profiler"] = length_within(host.profiler, *self._late.T) * launched
        of, pieces = clipped(self._late, without(_ALWAYS, host.profiler))
        pieces = pieces + host.shift(self._threads[of])  # without a thread, where nothing is
        for sort, when in host.did.items():
            within_s = length_within(when, *pieces.T)
            self.parts_s[sort] += np.bincount(of, within_s, len(lengths_s))
        rest_s = lengths_s - np.sum([self.parts_s[sort] for sort in ("profiler", *_DONE)], axis=0)
        rest_s = np.where(ended, 0.0, np.maximum(rest_s, 0.0))
        self.parts_s["elsewhere"] = rest_s * launched
        self.parts_s["unknown"] += rest_s * ~launched

    def finding(self, cause: str) -> Finding:
        """What a cause has of all gaps, the gaps with most of it, and what the host did then."""
        parts_s = self.parts_s[cause]
        saved_s = self._saved(cause) if cause in _REMOVABLE else parts_s
        which = np.flatnonzero(parts_s > 0)
        longest = which[np.argsort(-saved_s[which].round(9), kind="stable")][:SHOWN].tolist()
        evidence = [span for i in longest for span in self._evidence(i, cause)]
        names = ", ".join(map(shortened, self._names(cause, which))) or "a launch"
        cost, most = format_seconds(float(saved_s.sum())), format_seconds(float(saved_s.max()))
        count = "Once" if len(which) == 1 else f"{len(which):,} times"
        why = f"{count} it was idle {CAUSES[cause].what.format(names=names)}"
        if cause in _REMOVABLE:
            why += f" Without that the gaps would be up to {cost} shorter, one of them by {most}."
            # By what else the host did in the same gaps.
            if (more_s := float((saved_s - parts_s).sum())) >= saved_s.sum() / 100:
                why += f" Of this, {format_seconds(more_s)} is counted in other findings, too."
        else:
            why += f" Longest for {most}."
        if cause == "elsewhere" and len(self._host.of["named"]):  # in the longest gap
            inside = [span.name for span in self._longest(longest[0], cause)]
            why += f" Then it was in {shortened(inside[0]) if inside else 'no named range'}."
        sums_s = float(saved_s.sum()), float(parts_s.sum())
        return Finding(cause, self._usage.name, sums_s[0], why, evidence, sums_s[1], len(which))

    def _saved(self, cause: str) -> Seconds:
        """By how much each gap would shrink without a cause, at most."""
        parts_s = self.parts_s[cause]
        # Of what was under way in the gap, the whole length.
        when = self._host.did[cause]
        sums_s = np.append(0.0, np.cumsum(when[:, 1] - when[:, 0]))
        first = np.searchsorted(when[:, 1], self._late_on_axis[:, 0], side="right")
        last = np.searchsorted(when[:, 0], self._late_on_axis[:, 1], side="left")
        saved_s = (parts_s > 0) * (sums_s[np.maximum(first, last)] - sums_s[first])
        taken = [self.parts_s[other] for other in _WAITS_TOO if other != cause]
        left_s = self._gaps[:, 1] - self._gaps[:, 0] - np.sum(taken, axis=0)
        # Where a thread then did something unknown for longer, that may have been a wait, too.
        left_s = np.where(self.parts_s["elsewhere"] > saved_s, parts_s, left_s)
        return np.asarray(np.clip(saved_s, parts_s, np.maximum(left_s, parts_s)))

    def _records(self, cause: str) -> tuple[Records, Intervals, Intervals]:
        """Records that may show a cause, with their times, and when gaps are on these."""
        host = self._host
        its = [host.of[sort] for sort in _RECORDS.get(cause, (cause,)) if sort in _SORTS]
        which = np.concatenate([np.array([], dtype=np.int64), *its])
        if cause == "profiler":  # which has threads of its own
            return host.records[which], host.records.times_s[which], self._late
        return host.records[which], host.on_axis[which], self._late_on_axis

    def _names(self, cause: str, which: Places) -> list[str]:
        """What the host did in some gaps, that with the longest share first."""
        records, times_s, late = self._records(cause)
        names, of = records.coded(lambda tag: tag.name)
        by_name_s = np.bincount(of, length_within(covered(late[which]), *times_s.T), len(names))
        most = np.argsort(-by_name_s, kind="stable")[:SHOWN].tolist()
        return [names[i] for i in most if by_name_s[i]]

    def _longest(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap; of ranges the innermost with most of it."""
        records, times_s, late = self._records(cause)
        start_s, end_s = late[i]
        lengths_s = np.minimum(times_s[:, 1], end_s) - np.maximum(times_s[:, 0], start_s)
        if cause == "elsewhere":
            spans = records[lengths_s > (end_s - start_s) / 2].spans()
            return sorted(spans, key=lambda one: one.duration_s)[:1]
        return records[lengths_s.argmax()[None]].spans() if (lengths_s > 0).any() else []

    def _evidence(self, i: int, cause: str) -> list[Span]:
        """The record with the longest share of a gap, or its launch; the gap; and what ended it."""
        name, (start_s, end_s) = self._usage.name, self._gaps[i].tolist()
        launches, nexts = self._launches[i : i + 1], self._nexts[i : i + 1]
        shown = self._longest(i, cause)
        if not shown and launches[0] != UNKNOWN and cause in ("queued", "staged", "elsewhere"):
            (call,) = self._host.records[launches].spans()
            shown = [replace(call, name=f"next launch: {call.name}")]
        shown.append(Span(f"{name} idle", name, start_s, end_s, HOST))
        return shown + (self._usage.work[nexts].spans() if nexts[0] != UNKNOWN else [])
