"""Idle: what the host did while a GPU had nothing to do, each gap split over all of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from autopar.display.format import shortened
from autopar.timeline.intervals import Intervals, common, covered, length_s, length_within, without
from autopar.timeline.span import Span
from autopar.traces.findings import CAUSES, SHOWN, START_S, Finding
from autopar.traces.trace import HOST, UNKNOWN, Mask, Places, Seconds, Tag, Trace
from autopar.traces.utilization import BRIEF_S, NEVER, WITHIN, Usage, View, sort_of

_NOISE_S = 2e-6  # shorter gaps are between any two kernels, and within a profiler's own error
_TICK_S = 1e-9  # of profilers' clocks; less is the error of sums
_LONG_S = 100e-6  # most calls take 3 to 10 µs
# From one launch to the next, if the host does nothing else: 9 µs for a product in eager PyTorch
# (measured on an H200: 64 in 549 µs). With a program's own code between them, 15 runtimes ran tasks
# of 100 µs well at best (Task Bench); this is twice as much.
_STEP_S = 200e-6
_BETWEEN_S = 20e-6  # two calls of a loop that asks whether something is done
# What a thread can be seen to do, by the sorts of its records: the first that holds of a moment.
_DONE = (
    *("loader", "profiler", "synchronised", "allocated", "launch", "peers"),
    *("operators", "cpu", "called", "asked"),
)
_RECORDS = {  # cause -> the sorts of records that show it, if they are not called the same
    "synchronised": ("synchronised", "asked"),
    "operators": ("cpu", "called"),
    "elsewhere": ("named",),
}
_SORTS = {"call": "called", "range": "named", "python": "named", "profiler": "profiler"}  # of kinds
# What is told by the name of a call, as `cudaMalloc_v3020` and `cuMemcpyDtoH_v2`, and what by that
# of torch's own ranges and operators. The names of a program tell nothing.
_CALLS = re.compile(
    r"(?!.*(?:Async|Peer))(?:cu(?:da)?|hip)(?:(?P<synchronised>\w*Synchronize|Memcpy)"
    r"|(?P<asked>(?:Event|Stream)Query)"
    r"|(?P<allocated>(?:Mem)?(?:Host)?(?:Malloc|Alloc|Free|Register|Unregister)"
    r"|Mem(?:Create|Map|Unmap|Release|SetAccess)))"
)
_TORCHS = re.compile(r"(?P<loader>enumerate\(DataLoader\))|(?P<peers>c10d::|gloo:)")
_WAITS_FOR_EVENT = re.compile(r"(?:cu(?:da)?|hip)StreamWaitEvent")
_REMOVABLE = ("synchronised", "allocated")  # without them, the host is ahead by all of their time
# Without a wait, a thread may have to wait just as long for these.
_WAITS_TOO = ("allocated", "loader", "peers", "profiler")


class Host:
    """What the threads of a trace's host did, by sort.

    On its axis of time, threads follow one another, further apart than the trace is long: so gaps
    are looked at once, not once for each. Threads of which one works for the other are as one.
    """

    def __init__(self, trace: Trace) -> None:
        records, work = trace.host, trace.work
        self.records = records
        # Of shorter gaps nothing is known. One record far off does not hide all the others.
        self.noise_s = max(_NOISE_S, min(trace.alignment_error_s, START_S))
        self.threads = records.coded(lambda tag: trace.handed.get(tag.lane, tag.lane))[1]
        self.sorts = _sorts_of(trace)
        every = np.concatenate((records.times_s, work.times_s))
        self._whole = np.array([[every.min(initial=0.0), every.max(initial=0.0)]])
        self._apart_s = 2 * float(np.ptp(every)) + 1.0 if len(every) else 1.0
        self.on_axis = records.times_s + self.shift(self.threads)
        is_launch = records.where(lambda tag: tag.kind == "call" and "Launch" in tag.name)
        # Launches of other work may be outside of the window.
        is_launch[work.launches[work.launches != UNKNOWN]] = True
        is_wait = records.where(lambda tag: bool(_WAITS_FOR_EVENT.match(tag.name)))
        marks = np.flatnonzero(is_launch | is_wait)
        marks = marks[np.argsort(self.on_axis[marks, 0], kind="stable")]
        same = self.threads[marks[1:]] == self.threads[marks[:-1]]
        # Launches right before which their thread let work wait for an event.
        self._let_wait = marks[1:][is_wait[marks[:-1]] & same]
        self.did = self._in_turn(is_launch)
        self.seen = covered(np.concatenate([*self.did.values()]))
        self._ends_s = np.sort(work.times_s[:, 1])
        # Batches that workers make come no earlier if the host asks for them earlier.
        is_worker = records.where(lambda tag: "MultiProcessingDataLoader" in tag.name)
        awaited = is_worker & (self.sorts == "loader") & (records.lengths_s > _LONG_S)
        self.awaited_s = records.times_s[awaited, 1].max(initial=-np.inf)

    def shift(self, threads: Places) -> Intervals:
        """What to add to times of some threads, so that they are on the axis of all."""
        return (self._apart_s * threads[:, None]).astype(np.float64)

    def waits(self, usage: Usage) -> Intervals:
        """When the thread that launched most of a GPU's computing was in a wait or long launch."""
        launches = usage.work.of("compute").launches
        threads = self.threads[launches[launches != UNKNOWN]]
        if not len(threads):
            return NEVER
        shift = self.shift(np.array([np.bincount(threads).argmax()]))
        waited = covered(np.concatenate((self.did["synchronised"], self.did["launch"])))
        return common(waited, self._whole + shift) - shift

    def waited(self, launches: Places, gaps: Intervals) -> Mask:
        """Whether the work of launches, each of which ends a gap, waited for an event.

        Its thread let it wait, right before; and as it began, work of another GPU ended.
        """
        last = np.searchsorted(self._ends_s, gaps[:, 1], side="right") - 1
        last_s = np.append(self._ends_s, -np.inf)[last]
        is_let = (last_s > gaps[:, 0]) & (gaps[:, 1] - last_s < START_S)
        return np.asarray(np.isin(launches, self._let_wait) & is_let)

    def _in_turn(self, is_launch: Mask) -> dict[str, Intervals]:
        """Cause -> when threads did what shows it: of each moment the first that holds."""
        launches_s = np.sort(self.on_axis[is_launch, 0])
        steps = np.column_stack((launches_s[:-1], launches_s[1:]))
        when = {"operators": steps[steps[:, 1] - steps[:, 0] <= _STEP_S]}  # one after the other
        # What the profiler does has threads of its own, and holds up each that launches, if that
        # begins nothing meanwhile.
        is_profiler = self.sorts == "profiler"
        shifts = self.shift(np.unique(self.threads[is_launch]))
        profiler = (self.records.times_s[is_profiler] + shifts[:, None]).reshape(-1, 2)
        first, last = np.searchsorted(np.sort(self.on_axis[~is_profiler, 0]), profiler).T
        when["profiler"] = profiler[first == last]
        # To do nothing but ask whether something is done, again and again, is to wait.
        asked = covered(self.on_axis[self.sorts == "asked"])
        again = np.column_stack((asked[:-1, 0], asked[1:, 1]))
        when["asked"] = again[asked[1:, 0] - asked[:-1, 1] <= _BETWEEN_S]
        did, taken = {}, NEVER
        for cause in _DONE:
            times_s = covered(when[cause] if cause in when else self.on_axis[self.sorts == cause])
            did[cause] = without(times_s, taken)
            taken = covered(np.concatenate((taken, times_s)))
        # Calls that take no time to speak of, and in no operator, are a part of launching.
        for cause, sort in (("operators", "called"), ("synchronised", "asked")):
            did[cause] = covered(np.concatenate((did[cause], did.pop(sort))))
        return did


def _told_sort(tag: Tag) -> str:
    match = (_CALLS if tag.kind == "call" else _TORCHS).match(tag.name)
    return (match and match.lastgroup) or _SORTS.get(tag.kind, "cpu")


def _sorts_of(trace: Trace) -> npt.NDArray[np.object_]:
    """Of each record of the host, what its thread did then, in a word."""
    records, work = trace.host, trace.work[trace.work.launches != UNKNOWN]
    told, codes = records.coded(_told_sort)
    sorts = np.array(told, dtype=object)[codes]
    # A copy of pageable memory waits, whatever its call is named; one within a GPU does not.
    sorts[work.launches[work.where(lambda tag: sort_of(tag) == WITHIN)]] = "called"
    sorts[(sorts == "called") & (records.lengths_s > _LONG_S)] = "launch"
    # An operator that takes no longer is a part of launching, and waits for nobody.
    sorts[np.isin(sorts, ("cpu", "peers")) & (records.lengths_s <= _STEP_S)] = "called"
    sorts[work.launches[work.where(lambda tag: tag.memory == "pageable")]] = "synchronised"
    return sorts


class Gaps:
    """The gaps of a GPU, split over what they are due to; arrays have a place for each gap.

    Work that begins on an idle GPU was launched a moment before. Up to that launch the host was
    late, and what its thread did meanwhile is the cause. What others did is none: nobody knows
    whether it waited for them, nor whether work waits for a thread that only fetches. From then on
    the work stood in its queue. Gaps within a profiler's error have no cause.
    """

    def __init__(self, view: View, usage: Usage, host: Host) -> None:
        self._usage, self._host, self._gaps = usage, host, usage.idle
        gaps, work, is_whole = usage.idle, usage.work, view.range_name is None
        self._lengths_s = gaps[:, 1] - gaps[:, 0]
        # While another GPU is at work, this one may wait for that.
        self._alone_s = self._lengths_s - length_within(view.shared, *gaps.T)
        self._late = gaps.copy()  # when the host was late, by its clock
        self._parts_s: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(gaps)))
        at = np.searchsorted(work.times_s[:, 0], gaps[:, 1])
        follows = np.append(work.times_s[:, 0], np.nan)[at] == gaps[:, 1]
        # A range may end in the middle of a gap, and of what was cut off nobody knows.
        ended = ~follows & (is_whole and not view.trace.is_cut)
        is_known = (follows | (not is_whole)) & (self._lengths_s > host.noise_s)
        # After the last work, its thread is meant.
        launches = np.where(is_known, work.launches[np.minimum(at, len(work) - 1)], UNKNOWN)
        threads = np.append(host.threads, UNKNOWN)
        feeding = threads[work.launches[work.where(lambda tag: not tag.lane.endswith(" to host"))]]
        feeding = np.unique(feeding[feeding != UNKNOWN])
        if len(feeding):
            launches[~np.isin(threads[launches], feeding)] = UNKNOWN
        self._is_alone = len(feeding) <= 1
        self._take_queued(np.flatnonzero((launches != UNKNOWN) & (at < len(work))), launches)
        # What the host does sooner is waited for longer: in the next collective, or till a batch of
        # a loader's workers comes.
        sent = np.vstack((usage.when("communication"), [(np.inf, np.inf)]))
        nexts_s = sent[np.searchsorted(sent[:, 0], gaps[:, 1])].T
        self._waits_anyway = length_within(usage.waiting, *nexts_s) > _LONG_S
        self._waits_anyway |= gaps[:, 0] < host.awaited_s
        self._on_axis = self._late + host.shift(threads[launches])
        shifts = host.shift(np.unique(threads[launches]))
        self._shared = (view.shared + shifts[:, None]).reshape(-1, 2)
        self._split(launches != UNKNOWN, ended)

    def _take_queued(self, which: Places, launches: Places) -> None:
        """Take off the end of gaps in which their work was launched already, and stood in a queue.

        Not so while the host was in the launch, unless that waited for an event or copied.
        """
        host, gaps, launches = self._host, self._gaps[which], launches[which]
        called_s, returned_s = host.records.times_s[launches].T
        is_queued = host.waited(launches, gaps)
        is_launching = np.isin(host.sorts[launches], ("launch", "called")) & ~is_queued
        is_launching &= returned_s - called_s > START_S
        until_s = np.where(is_launching, returned_s, called_s)
        starts_s, ends_s = (gaps - np.clip(gaps[:, 1] - until_s, 0.0, START_S)[:, None]).T
        late_s = np.clip(until_s, starts_s, ends_s)
        self._late[which] = np.column_stack((starts_s, late_s))
        for cause, holds in (("queued", is_queued), ("unknown", ~is_queued)):
            self._parts_s[cause][which] = (ends_s - late_s) * holds

    def _split(self, launched: Mask, ended: Mask) -> None:
        """Split gaps over what the thread did that launched what ends them; of others, no cause."""
        parts_s, did, times_s = self._parts_s, self._host.did, self._on_axis.T
        lengths_s = self._late[:, 1] - self._late[:, 0]
        parts_s["ended"] = lengths_s * ended
        # Without a thread, where nothing is.
        parts_s |= {cause: length_within(when, *times_s) for cause, when in did.items()}
        alone = {cause: without(when, self._shared) for cause, when in did.items()}
        # Of parts, while no other GPU is at work.
        self._sure_s = {cause: length_within(when, *times_s) for cause, when in alone.items()}
        self._left_s = self._alone_s - sum(self._sure_s.values())
        rest_s = lengths_s - sum(parts_s[cause] for cause in ("ended", *self._sure_s))
        # A thread beside others may do nothing because nothing is left for it to do.
        is_known = launched & self._is_alone
        parts_s["elsewhere"] = rest_s * is_known
        parts_s["unknown"] += rest_s * ~is_known
        is_brief = self._lengths_s <= np.where(launched, BRIEF_S, _NOISE_S)
        parts_s["brief"] = parts_s["unknown"] * is_brief
        parts_s["unknown"] -= parts_s["brief"]
        for seconds in parts_s.values():
            seconds[seconds < _TICK_S] = 0.0

    def findings(self) -> list[Finding]:
        """A finding for each cause that some gap has, whatever it costs."""
        return [self._finding(cause) for cause, part_s in self._parts_s.items() if part_s.any()]

    def _finding(self, cause: str) -> Finding:
        """What a cause has of all gaps, the gaps with most of it, and what the host did then."""
        parts_s = self._parts_s[cause]
        saved_s = self._saved(cause) if cause in _REMOVABLE else self._sure_s.get(cause, parts_s)
        if cause in {*self._sure_s, "elsewhere"} - {"loader"}:
            saved_s = saved_s * ~self._waits_anyway
        if cause != "queued":  # which is a wait for another GPU
            alone_s = self._alone_s if cause in self._sure_s else self._left_s
            saved_s = np.minimum(saved_s, alone_s).clip(0.0)
        count = int((saved_s >= _TICK_S).sum())
        most = np.argsort(-saved_s.round(9), kind="stable")[: min(count, SHOWN)].tolist()
        longest = [*self._longest(most, cause)]
        seen, nothing = longest, "Python, from one launch to the next"
        if cause == "elsewhere":
            seen, nothing = longest[:1], "no named range"
        names = dict.fromkeys(span.name for spans in seen for span in spans) or [nothing]
        times = "Once" if count == 1 else f"{count:,} times"
        what = CAUSES[cause].what.format(names=", ".join(map(shortened, names)))
        why = f"{times} it was idle {what}"
        name, evidence = self._usage.name, []
        for spans, (start_s, end_s) in zip(longest, self._gaps[most].tolist(), strict=True):
            evidence += [*spans, Span(f"{name} idle", name, start_s, end_s, HOST)]
        cost_s, idle_s, count = float(saved_s.sum()), float(parts_s.sum()), int((parts_s > 0).sum())
        return Finding(cause, name, cost_s, why, evidence, idle_s, count)

    def _saved(self, cause: str) -> Seconds:
        """By how much each gap would shrink without a cause, at most."""
        parts_s, when = self._parts_s[cause], self._host.did[cause]
        # From where what was under way in the gap began, until the launch that ended it.
        starts_s, ends_s = self._on_axis.T
        first = np.searchsorted(when[:, 1], starts_s, side="right")
        begun_s = np.minimum(starts_s, np.append(when[:, 0], np.inf)[first])
        whole_s = length_within(when, begun_s, ends_s)
        taken = [self._parts_s[other] for other in _WAITS_TOO if other != cause]
        left_s = self._lengths_s - np.sum(taken, axis=0)
        # Where a thread then did for longer what is unknown, or may need what was waited for.
        other_s = self._parts_s["elsewhere"] + self._parts_s["cpu"]
        saved_s = np.where(other_s > whole_s, 0.0, np.minimum(whole_s, left_s))
        return np.where(parts_s > 0, np.maximum(saved_s, parts_s), 0.0)

    def _longest(self, gaps: list[int], cause: str) -> Iterator[list[Span]]:
        """The record with the longest share of each gap, or the innermost range of what is left.

        That has most of the time in which the thread was seen to do nothing else.
        """
        host, late, sorts = self._host, self._on_axis, _RECORDS.get(cause, (cause,))
        which = np.flatnonzero(np.isin(host.sorts, sorts))
        times_s = host.on_axis[which]
        if cause == "profiler":  # which has threads of its own
            times_s, late = host.records.times_s[which], self._late
        for i in gaps:
            part = late[i : i + 1]
            if cause == "elsewhere":
                part = without(part, host.seen)
            shares_s = length_within(part, *times_s.T)
            least_s = length_s(part) / 2 if cause == "elsewhere" else shares_s.max(initial=0.0)
            fits = which[(shares_s > 0) & (shares_s >= least_s)]
            lengths_s = host.records.lengths_s[fits]
            yield host.records[fits[np.argsort(lengths_s, kind="stable")[:1]]].spans()
