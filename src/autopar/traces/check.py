"""Check: what a profiler recorded, record by record; what can't be right costs only itself."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autopar.display.format import format_seconds
from autopar.refusal import what
from autopar.timeline.groups import grouped
from autopar.timeline.intervals import covered, length_s
from autopar.traces.communication import COMMUNICATION
from autopar.traces.trace import HOST, NONE, UNKNOWN, Records, Rows, Tag, Trace

LATEST_US = 1e17  # the year 5138; some profilers count from 1970
LONGEST_S = 1e6  # no profile lasts eleven days
MOST_NUMBER = 2**63  # of correlations and sizes
_MOST_HARM = 0.01  # of a GPU's busy time; with more in doubt, no figure of it is given
_TOLERANCE_S = 1e-6  # profilers' own clocks agree no better than this
_MOST = 0.9  # of all records
_FAR_S = 600.0  # from the middle, if that is a hundred times as far as most records are
_MOST_SKEW_S = 1e-4  # by which two clocks may disagree; beyond it the record is wrong
_LONGEST_WAIT_S = 60.0  # a launch that waits for a minute is a launch of something else
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_MOST_NAMES = 10_000  # to keep; programs have hundreds
_DIRECTIONS = {"HtoD": "from host", "HtoA": "from host", "DtoH": "to host", "AtoH": "to host"}
_DIRECTIONS |= {"PtoP": "to a peer", "DtoD": "within"}
_DIRECTION = re.compile("|".join(_DIRECTIONS))
_MEMORY = re.compile(r"\b(Pinned|Pageable)\b")

Mask = npt.NDArray[np.bool_]
Seconds = npt.NDArray[np.float64]


class _Fault(NamedTuple):
    """What can't be right."""

    place: str  # which GPU, or the host; empty if the record does not say
    words: str
    harm_s: float  # of how much time it is; NaN if that is not known


def evidence_of(
    work: Rows,
    calls: Rows,
    ranges: Rows,
    operators: Rows,
    python: Rows,
    *,
    handed: Mapping[str, str] = MappingProxyType({}),
    in_order: Collection[str] = (),
) -> Trace:
    """What records say, in seconds; those that can't be right are left out or cut, and counted.

    A GPU is in doubt where they may be more than a hundredth of its busy time.

    Args:
        work: What GPUs did.
        calls: Calls of the runtime and the driver.
        ranges: What the program named.
        operators: Of PyTorch, also those within others.
        python: Functions of Python.
        handed: Thread -> the one that it works for.
        in_order: GPUs on which kernels of a stream can't overlap. From compute capability 9 on
            they can, by design: a kernel may be launched before the one that it depends on ends.
    """
    check = _Check((work, calls, ranges, operators, python))
    called, named, operated, run = map(check.usable, (calls, ranges, operators, python))
    done = check.possible(check.usable(work), called, in_order)
    doubts, warnings = _judged(check.faults, done, sum(map(len, (called, named, operated, run))))
    if check.skew_s:
        skew = format_seconds(check.skew_s)
        warnings.append(f"Work starts up to {skew} before its launch: clocks differ by as much.")
    # The thread that is first to name a range, or to do anything, is the host.
    first = next((its for its in (named, operated, called) if len(its)), NONE)
    main = next((first.tags[place].lane for place in first.tagged[:1].tolist()), "")
    return Trace(
        done,
        _on_host(called, main),
        _on_host(_outermost(operated), main),
        _on_host(named, main),
        _on_host(run, main),
        {_on_thread(own, main): _on_thread(other, main) for own, other in handed.items()},
        tuple(warnings),
        doubts,
        alignment_error_s=check.skew_s,
    )


def work_tag(name: str, gpu: str, stream: str, *, is_copy: bool = False) -> Tag:
    """Work of a GPU; a copy's lane is told by its name, as `Memcpy DtoH (Device -> Pinned)`."""
    if not is_copy:
        kind = "communication" if COMMUNICATION.match(name) else "compute"
        return Tag(name, clean(f"{gpu} {stream}"), kind, gpu, stream)
    way, memory = _DIRECTION.search(name), _MEMORY.search(name)
    lane = clean(f"{gpu} copies {_DIRECTIONS[way[0]] if way else 'of another kind'}")
    return Tag(name, lane, "copy", gpu, stream, memory[0].lower() if memory else "")


def number(value: object) -> float:
    """What a file has as a number, also as text; NaN for all else."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def whole_number(value: object) -> int:
    """What a file has as a whole number from zero on; `UNKNOWN` for all else."""
    return value if type(value) is int and 0 <= value < MOST_NUMBER else UNKNOWN


@functools.lru_cache(_MOST_NAMES)  # so that each is kept once, however often it comes
def clean(text: str) -> str:
    """Text that can be printed and drawn: what no file of text may hold is replaced."""
    return _UNWRITABLE.sub("\ufffd", text)


class _Check:
    """What is found out about some lists of records."""

    def __init__(self, lists: Iterable[Rows]) -> None:
        starts_us = np.concatenate([rows.starts_us for rows in lists])
        starts_us = starts_us[(starts_us > 0) & (starts_us < LATEST_US)]
        middle_us = float(np.median(starts_us)) if len(starts_us) else 0.0
        # In whole thousands of seconds: seconds since 1970 would have steps of a quarter of a µs.
        self._zero_us = middle_us // 1e9 * 1e9
        self._middle_s = (middle_us - self._zero_us) / 1e6
        apart_s = np.abs(starts_us - middle_us) / 1e6
        most_s = float(np.quantile(apart_s, _MOST)) if len(apart_s) else 0.0
        self._far_s = min(max(_FAR_S, 100 * most_s), LONGEST_S)
        self.faults: list[_Fault] = []
        self.skew_s = 0.0  # by how much work starts before its launch, if clocks can be why

    @np.errstate(over="ignore", invalid="ignore")  # some times are NaN, or far too large
    def usable(self, rows: Rows) -> Records:
        """The records that have a time, near that of most others, and a place; by start."""
        records = rows.records(self._zero_us)
        starts_s, ends_s = records.times_s.T
        lengths_s = ends_s - starts_s
        # A call may be too short for its clock, and begin a trace; a kernel is not, and does not.
        is_host = records.where(lambda tag: tag.kind == HOST)
        lasts = (lengths_s > 0) | ((lengths_s == 0) & is_host)
        starts = (starts_s > -self._zero_us / 1e6) | ((starts_s == 0) & is_host)
        is_near = np.abs(starts_s - self._middle_s) < self._far_s  # so written that NaN is none
        has_time = lasts & starts & is_near & (lengths_s < LONGEST_S)
        # It is what it says of itself, or was too short for its clock.
        is_sized = (lengths_s >= 0) & (lengths_s < LONGEST_S) & (np.abs(starts_s) < LATEST_US / 1e6)
        harms_s = np.where(is_sized, np.maximum(lengths_s, _TOLERANCE_S), np.nan)
        records = self._without(records, ~has_time, "which can't be", harms_s)
        has_place = records.where(lambda tag: tag.kind == HOST or bool(tag.gpu and tag.stream))
        why = "and does not say of which GPU and stream it is"
        return self._without(records, ~has_place, why).sorted()

    def possible(self, work: Records, calls: Records, in_order: Collection[str]) -> Records:
        """The work whose times can be beside its launch and other work of its queue.

        Copies wait for what is before them, and older GPUs' kernels too, so what of them lies
        before its end is left out; nodes of a CUDA graph do not, though all are of one stream.
        """
        # Of a call of the runtime and the one of the driver that it makes, the first.
        has_launch = np.flatnonzero(calls.launches != UNKNOWN)
        ids, first = np.unique(calls.launches[has_launch], return_index=True)
        # One that two processes have tells nothing.
        processes = calls.coded(lambda tag: tag.lane.rpartition("thread ")[0])[1][has_launch]
        group = np.searchsorted(ids, calls.launches[has_launch])
        is_shared = np.isin(ids, ids[group[processes != processes[first][group]]])
        ids, first = ids[~is_shared], first[~is_shared]
        at = np.searchsorted(ids, work.launches)
        is_known = np.append(ids, UNKNOWN)[at] == work.launches
        launches = np.where(is_known, np.append(has_launch[first], UNKNOWN)[at], UNKNOWN)
        is_before = (work.launches != UNKNOWN) & ~is_known
        work = replace(work, launches=launches)
        ahead_s = np.append(calls.times_s[:, 0], np.nan)[launches] - work.times_s[:, 0]
        skews_s = ahead_s[(ahead_s > _TOLERANCE_S) & (ahead_s <= _MOST_SKEW_S)]
        self.skew_s = float(skews_s.max(initial=0.0))
        is_wrong = (ahead_s > _MOST_SKEW_S) | (-ahead_s > _LONGEST_WAIT_S)
        work = self._without(work, is_wrong, "which is before its launch, or a minute after it")
        is_copy = work.where(lambda tag: tag.kind == "copy")
        is_node = calls.where(lambda tag: "GraphLaunch" in tag.name)
        is_node = np.append(is_node, False)[work.launches]
        # So may those be whose launch was before the recording.
        is_node |= is_before[~is_wrong] & is_known.any()
        overlaps_s = np.zeros(len(work))  # with what is before it
        for (gpu, _), its in work.groups(lambda tag: (tag.gpu, tag.stream)).items():
            starts_s, ends_s = work.times_s[its].T
            reached_s = np.append(-np.inf, np.maximum.accumulate(ends_s))[:-1]
            # Of the work before, that which ends last.
            longest = np.where(ends_s > reached_s, np.arange(len(its)), 0)
            before = its[np.append(0, np.maximum.accumulate(longest))[:-1]]
            waits = ((gpu in in_order) | is_copy[its] | is_copy[before]) & ~is_node[its]
            waits &= reached_s - starts_s > _TOLERANCE_S
            overlaps_s[its] = np.where(waits, np.minimum(reached_s, ends_s) - starts_s, 0.0)
        overlap = overlaps_s > 0
        self._without(work, overlap, "and overlaps other work of its stream", overlaps_s)
        times_s = work.times_s.copy()
        times_s[overlap, 0] += overlaps_s[overlap]
        sizes_bytes = np.where(overlap, UNKNOWN, work.sizes_bytes)
        cut = replace(work, times_s=times_s, sizes_bytes=sizes_bytes)
        return cut[times_s[:, 1] > times_s[:, 0]].sorted()

    def _without(
        self, records: Records, is_wrong: Mask, why: str, harms_s: Seconds | None = None
    ) -> Records:
        """The records without those that are wrong, which are put down."""
        lengths_s = records.times_s[:, 1] - records.times_s[:, 0]
        harms_s = lengths_s if harms_s is None else harms_s
        for i in np.flatnonzero(is_wrong).tolist():
            tag, start_us = records.tags[records.tagged[i]], 1e6 * float(records.times_s[i, 0])
            place = HOST if tag.kind == HOST else tag.gpu
            words = (
                f"the record of {what(tag.name)} on {place or 'a GPU'} starts at "
                f"{round(start_us + self._zero_us, 3)} µs and takes "
                f"{round(1e6 * float(lengths_s[i]), 3)} µs, {why}"
            )
            self.faults.append(_Fault(place, words, float(harms_s[i])))
        return records[~is_wrong]


def _judged(
    faults: Iterable[_Fault], work: Records, host_count: int
) -> tuple[dict[str, str], list[str]]:
    """GPU, or `host` -> why it is in doubt; and sentences on what is wrong with the others."""
    by_gpu = work.groups(lambda tag: tag.gpu)
    by_place = grouped(faults, lambda fault: fault.place)
    anywhere = by_place.pop("", []) if by_gpu else []  # may be of any GPU
    doubts: dict[str, str] = {}
    warnings: list[str] = []
    for place in sorted({*by_gpu, *by_place}):
        its = by_place.get(place, []) + (anywhere if place != HOST else [])
        if not its:
            continue
        times_s = work.times_s[by_gpu[place]] if place in by_gpu else work.times_s[:0]
        good = host_count if place == HOST else len(times_s)
        # Of the host by number, as one wait may be longer than all else.
        share = len(its) / (len(its) + good) if place == HOST else _share(its, times_s)
        size = f", {min(100 * share, 100):.1f} % of what it did" if good else ""
        end = "" if share > _MOST_HARM else ": they were left out or cut short"
        words = (
            f"{len(its):,} of {len(its) + good:,} records of {place or 'GPUs'} can't be right"
            f"{size}{end}. The first: {its[0].words}."
        )
        if share > _MOST_HARM:
            doubts[place] = words
        else:
            warnings.append(words)
    return doubts, warnings


def _share(faults: Sequence[_Fault], times_s: Seconds) -> float:
    """How much of a GPU's busy time can't be right, at most."""
    usual_s = float(np.median(times_s[:, 1] - times_s[:, 0])) if len(times_s) else math.inf
    harm_s = sum(usual_s if math.isnan(fault.harm_s) else fault.harm_s for fault in faults)
    busy_s = length_s(covered(times_s))
    return harm_s / busy_s if busy_s else math.inf


def _outermost(operators: Records) -> Records:
    """Those that lie in no other of their thread."""
    starts_s, ends_s = operators.times_s.T
    operators = operators[np.lexsort((-ends_s, starts_s))]
    is_outer = np.ones(len(operators), dtype=bool)
    for its in operators.groups(lambda tag: tag.lane).values():
        ends_s = operators.times_s[its, 1]
        is_outer[its[1:]] = ends_s[1:] > np.maximum.accumulate(ends_s)[:-1]
    return operators[is_outer]


def _on_host(records: Records, main: str) -> Records:
    """Records of threads, the main one of which is named `host`."""
    tags = (tag._replace(lane=_on_thread(tag.lane, main)) for tag in records.tags)
    return replace(records, tags=tuple(tags))


def _on_thread(lane: str, main: str) -> str:
    return HOST if lane == main else clean(f"{HOST} {lane}")
