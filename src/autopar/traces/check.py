"""Check: what a profiler recorded, record by record; what can't be right costs only itself."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from autopar.display.format import format_seconds
from autopar.refusal import what
from autopar.timeline.intervals import length_s
from autopar.traces.communication import COMMUNICATION
from autopar.traces.trace import HOST, UNKNOWN, Mask, Places, Records, Rows, Seconds, Tag, Trace

LATEST_US = 1e17  # the year 5138; some profilers count from 1970
LONGEST_US = 1e12  # no profile lasts eleven days
_MOST_NUMBER = 2**63  # of correlations and sizes
_MOST_HARM = 0.01  # of a GPU's busy time; with more in doubt, no figure of it is given
_TOLERANCE_S = 1e-6  # profilers' own clocks agree no better than this
_MOST = 0.9  # of all records
_FAR_US = 3.6e9  # an hour from the middle, if that is a hundred times as far as most records are
_MOST_SKEW_S = 1e-4  # by which two clocks may disagree; beyond it the record is wrong
_FAR_S = 60.0  # from all else; work may wait for another rank for as long as it likes
_WHY = (  # a record can't be right, in the order in which that is looked for
    "which can't be",
    "and does not say of which GPU and stream it is",
    "which is before its launch, or a minute away from all that the host did",
    "and overlaps other work of its stream",
)
_NO_TIME, _NO_PLACE, _NO_LAUNCH, _OVERLAPS = range(len(_WHY))
_DIRECTIONS = {
    **dict.fromkeys(("HtoD", "HtoA"), "from host"),
    **dict.fromkeys(("DtoH", "AtoH"), "to host"),
    "PtoP": "to a peer",
    "DtoD": "within",
}
_DIRECTION = re.compile("|".join(_DIRECTIONS))
_MEMORY = re.compile(r"\b(Pinned|Pageable)\b")


def evidence_of(rows: Rows, handed: Mapping[str, str], in_order: Collection[str]) -> Trace:
    """What records say, in seconds; those that can't be right are left out or cut, and counted.

    A GPU is in doubt where they may be more than a hundredth of its busy time. Kernels of a stream
    can't overlap on GPUs that are `in_order`; from compute capability 9 on they can, by design.
    """
    records, wrong, harms_s, zero_us = _timed(rows)
    is_host = records.where(lambda tag: tag.place == HOST)
    places = np.flatnonzero(is_host & (wrong == UNKNOWN))
    host = records[places[~_lies_within(records[places])]]
    places = np.flatnonzero(~is_host & (wrong == UNKNOWN))
    work, is_node, ahead_s = _launched(records[places], host)
    is_stray = ahead_s > _MOST_SKEW_S
    if np.isfinite(ahead_s).any():  # launches are recorded, so the host was from start to end
        is_stray |= _far_away(work, host)
    wrong[places[is_stray]] = _NO_LAUNCH
    skew_s = float(ahead_s[(ahead_s > _TOLERANCE_S) & ~is_stray].max(initial=0.0))
    places, work = places[~is_stray], work[~is_stray]
    overlaps_s, spoilt_s = _overlaps(work, is_node[~is_stray], in_order)
    is_cut = overlaps_s > 0
    wrong[places[is_cut]], harms_s[places[is_cut]] = _OVERLAPS, spoilt_s[is_cut]
    times_s = work.times_s + overlaps_s[:, None] * (1, 0)
    sizes_bytes = np.where(is_cut, UNKNOWN, work.sizes_bytes)
    work = replace(work, times_s=times_s, sizes_bytes=sizes_bytes)
    work = work[work.lengths_s > 0].sorted()
    doubts, warnings = _judged(records, wrong, harms_s, work, zero_us)
    if skew_s:
        skew = format_seconds(skew_s)
        warnings.append(f"Work starts up to {skew} before its launch: clocks differ by as much.")
    lanes = _named_threads(host)
    tags = tuple(tag._replace(lane=lanes.get(tag.lane, tag.lane)) for tag in host.tags)
    handed = {lanes[own]: lanes[to] for own, to in handed.items() if {own, to} <= lanes.keys()}
    return Trace(
        *(work, replace(host, tags=tags), handed, tuple(warnings), doubts),
        alignment_error_s=skew_s,
        zero_s=zero_us / 1e6,
    )


def work_tag(name: str, gpu: str, stream: str, *, is_copy: bool = False) -> Tag:
    """Work of a GPU; a copy's lane is told by its name, as `Memcpy DtoH (Device -> Pinned)`."""
    if not is_copy:
        kind = "communication" if COMMUNICATION.match(name) else "compute"
        return Tag(name, f"{gpu} {stream}", kind, gpu, stream)
    way, memory = _DIRECTION.search(name), _MEMORY.search(name)
    lane = f"{gpu} copies {_DIRECTIONS[way[0]] if way else 'of another kind'}"
    return Tag(name, lane, "copy", gpu, stream, memory[0].lower() if memory else "")


def number(value: object) -> float:
    """What a file has as a number, also as text; NaN for all else."""
    try:
        return float(value) if type(value) in (float, int, str) else math.nan  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return math.nan


def whole_number(value: object) -> int:
    """What a file has as a whole number from zero on; `UNKNOWN` for all else."""
    return value if type(value) is int and 0 <= value < _MOST_NUMBER else UNKNOWN


@np.errstate(over="ignore", invalid="ignore")  # some times are NaN, or far too large
def _timed(rows: Rows) -> tuple[Records, Places, Seconds, float]:
    """Records by start, what is wrong with each and the harm that may do, and when zero is."""
    starts_us, lengths_us = np.reshape(rows.times_us, (-1, 2)).T
    known_us = starts_us[(starts_us > 0) & (starts_us < LATEST_US)]
    middle_us = float(np.median(known_us)) if len(known_us) else 0.0
    most_us = float(np.quantile(np.abs(known_us - middle_us), _MOST)) if len(known_us) else 0.0
    far_us = min(max(_FAR_US, 100 * most_us), LONGEST_US)
    # From whole thousands of seconds: seconds since 1970 would have steps of a quarter of a µs.
    zero_us = middle_us // 1e9 * 1e9
    records = rows.records(zero_us)
    is_host = records.where(lambda tag: tag.place == HOST)
    # A call may be too short for its clock; a kernel is not. NaN is neither from zero on nor near.
    is_sized = (lengths_us >= 0) & (lengths_us < LONGEST_US)
    is_timed = is_sized & (is_host | (lengths_us > 0))
    is_timed &= (starts_us >= 0) & (np.abs(starts_us - middle_us) < far_us)
    has_place = is_host | records.where(lambda tag: bool(tag.gpu and tag.stream))
    wrong = np.where(is_timed, np.where(has_place, UNKNOWN, _NO_PLACE), _NO_TIME)
    good_us = lengths_us[is_timed & ~is_host]
    usual_us = float(np.median(good_us)) if len(good_us) else 0.0
    harms_us = np.maximum(np.where(is_sized, lengths_us, usual_us), 1e6 * _TOLERANCE_S)
    order = np.lexsort((-records.times_s[:, 1], records.times_s[:, 0]))
    return records[order], wrong[order], harms_us[order] / 1e6, zero_us


def _lies_within(host: Records) -> Mask:
    """Of what the host did, whether it is an operator within another of its thread."""
    is_operator = host.where(lambda tag: tag.kind == "operator")
    is_inner = np.zeros(len(host), dtype=bool)
    for places in host.groups(lambda tag: tag.lane).values():
        places = places[is_operator[places]]
        ends_s = host.times_s[places, 1]
        is_inner[places[1:]] = ends_s[1:] <= np.maximum.accumulate(ends_s)[:-1]
    return is_inner


def _launched(work: Records, host: Records) -> tuple[Records, Mask, Seconds]:
    """Work with the places of its launches among the host's records.

    Also whether each may be a node of a CUDA graph, as what was launched before the recording may;
    and by how much it is ahead of its launch, NaN if it has none.
    """
    # Of a call of the runtime and the one of the driver that it makes, the first.
    calls = np.flatnonzero(host.where(lambda tag: tag.kind == "call") & (host.launches != UNKNOWN))
    ids, first = np.unique(host.launches[calls], return_index=True)
    at = np.searchsorted(ids, work.launches)
    has_launch = work.launches != UNKNOWN
    is_known = has_launch & (np.append(ids, UNKNOWN)[at] == work.launches)
    launches = np.where(is_known, np.append(calls[first], UNKNOWN)[at], UNKNOWN)
    is_graph = np.append(host.where(lambda tag: "GraphLaunch" in tag.name), False)
    is_node = is_graph[launches] | (has_launch & ~is_known & is_known.any())
    ahead_s = np.append(host.times_s[:, 0], np.nan)[launches] - work.times_s[:, 0]
    return replace(work, launches=launches), is_node, ahead_s


def _far_away(work: Records, host: Records) -> Mask:
    """Whether work is a minute before, or after, all that the host did and all work till then."""
    starts_s, ends_s = work.times_s.T
    nexts_s = np.minimum(np.append(starts_s, np.inf)[1:], host.times_s[:, 0].min())
    reached_s = np.maximum.accumulate(np.append(host.times_s[:, 1].max(), ends_s))[:-1]
    before, after = nexts_s - np.maximum.accumulate(ends_s), starts_s - reached_s
    is_before = np.logical_or.accumulate(before[::-1] > _FAR_S)[::-1]
    return np.asarray(is_before | np.logical_or.accumulate(after > _FAR_S))


def _overlaps(work: Records, is_node: Mask, in_order: Collection[str]) -> tuple[Seconds, Seconds]:
    """By how much work overlaps what it had to wait for, and the harm if either is wrong.

    Copies wait for what is before them on their stream, and older GPUs' kernels too. On newer
    ones a kernel may begin while the one before it runs. A third is wrong while an earlier one
    runs if the one between has ended, or if all three began at the same time. Nodes of a CUDA
    graph do not wait, though all are of one stream.
    """
    is_copy = work.where(lambda tag: tag.kind == "copy")
    overlaps_s, spoilt_s = np.zeros(len(work)), np.zeros(len(work))
    for (gpu, _), places in work.groups(lambda tag: (tag.gpu, tag.stream)).items():
        starts_s, ends_s = work.times_s[places].T
        befores_s = np.append([-np.inf, -np.inf], np.maximum.accumulate(ends_s))
        reached_s, earlier_s = befores_s[1:-1], befores_s[:-2]
        is_third = np.append([np.nan, np.nan], starts_s)[:-2] == starts_s
        is_third |= np.append(np.inf, ends_s)[:-1] <= starts_s
        waits = (gpu in in_order) | is_copy[places]
        waits |= is_third & (earlier_s - starts_s > _TOLERANCE_S)
        waits &= ~is_node[places] & (reached_s - starts_s > _TOLERANCE_S)
        overlaps_s[places] = np.where(waits, np.minimum(reached_s, ends_s) - starts_s, 0.0)
        # Of what is still running, all until the next begins.
        until_s = np.minimum(reached_s, np.append(starts_s, np.inf)[1:])
        spoilt_s[places] = np.where(waits, np.maximum(until_s - starts_s, overlaps_s[places]), 0.0)
    return overlaps_s, spoilt_s


@np.errstate(over="ignore", invalid="ignore")
def _judged(
    records: Records, wrong: Places, harms_s: Seconds, work: Records, zero_us: float
) -> tuple[dict[str, str], list[str]]:
    """GPU, or `host` -> why it is in doubt; and sentences on what is wrong with the others."""
    by_place = records.groups(lambda tag: tag.place)
    nowhere = by_place.pop("", np.array([], dtype=np.int64))  # may be of any GPU
    if not len(work) and len(nowhere):
        by_place["GPUs"] = nowhere
    busy_s = {gpu: length_s(when) for gpu, when in work.sets(lambda tag: tag.gpu).items()}
    doubts: dict[str, str] = {}
    warnings: list[str] = []
    for place, places in sorted(by_place.items()):
        places = places if place == HOST else np.union1d(places, nowhere)
        bad = places[wrong[places] != UNKNOWN]
        if not len(bad):
            continue
        # Of the host one wait may be longer than all else.
        counted, harm_s = len(bad) / len(places), float(harms_s[bad].sum())
        share = counted if place == HOST else harm_s / busy_s.get(place, 1e-9)
        tag, (start_s, end_s) = records.tags[records.tagged[bad[0]]], records.times_s[bad[0]]
        start_us, length_us = 1e6 * float(start_s) + zero_us, 1e6 * float(end_s - start_s)
        is_doubtful = share > _MOST_HARM
        size = f", {100 * share:.1f} % of what it did" if share <= 1 else ""
        words = (
            f"{len(bad):,} of {len(places):,} records of {place} can't be right{size}"
            f"{'' if is_doubtful else ': they were left out or cut short'}. The first: the record "
            f"of {what(tag.name)} on {tag.place or 'a GPU'} starts at {round(start_us, 3)} µs and "
            f"takes {round(length_us, 3)} µs, {_WHY[wrong[bad[0]]]}."
        )
        if is_doubtful:
            doubts[place] = words
        else:
            warnings.append(words)
    return doubts, warnings


def _named_threads(host: Records) -> dict[str, str]:
    """Thread -> what it is called: the first to name a range, or to do anything, is the host."""
    threads = {tag.lane for tag in host.tags if tag.place == HOST}
    lanes = {lane: f"{HOST} thread {lane.partition('thread ')[2]}" for lane in threads}
    if len({*lanes.values()}) < len(lanes):  # the process tells them apart
        lanes = {lane: f"{HOST} {lane}" for lane in threads}
    firsts = (host.of(kind) for kind in ("range", "operator", "call"))
    main = next((records.tags[records.tagged[0]].lane for records in firsts if len(records)), "")
    return {**lanes, main: HOST}
