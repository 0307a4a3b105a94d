"""Ranks: several processes side by side: who waits for whom, and who is always last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autopar.display.format import NOTHING, format_seconds, like, percent, shortened
from autopar.display.table import Table, tabulate
from autopar.timeline.intervals import Intervals, covered, length_s, without
from autopar.traces.communication import ends_together
from autopar.traces.trace import Records, Seconds, Tag
from autopar.traces.utilization import OTHER_LANES, Usage, View

_DEVIATIONS = 3  # of a fair coin's sum of heads from the half of all, as one in 700 has
_CLEAR = 0.25  # of all waiting; of two ranks that are as slow, each has less to itself
_MOST_NAMED = 5  # stragglers in words; figures have all
_WIDEST = 24  # characters of a rank's name, so that a line fits a terminal
_MOST = 0.95  # the share of collectives that an error is of, and that must be possible
_CLOCK_S = 1e-6  # profilers' own clocks agree no better than this
_UNMATCHED = "No collectives could be matched with certainty, so who waited for whom is not known."
_HEADERS = (
    *("rank", "busy", "computing", "communication", "exposed", "waiting", "idle", "came last"),
)
_FEWEST = 5  # fewer collectives agree on a clock by chance
Gpus = dict[str, tuple[Usage, float]]


class Collectives(NamedTuple):
    """Those of one group of ranks, in order; times are arrays by collective and rank."""

    ranks: tuple[str, ...]
    starts_s: Seconds
    ends_s: Seconds


class Rank(NamedTuple):
    """What one rank did in communication; times are of unions of intervals."""

    communication_s: float  # in kernels that communicate, matched or not
    waiting_s: float  # of these, before the last of the ranks had begun the same collective
    collectives: int  # that were matched
    came_last: int  # how many of them it began later than all others, by more than the error
    late_s: float  # by how much in all: so long the others waited for it alone


class Ranks(NamedTuple):
    """Ranks whose collectives could be matched.

    Times of a file plus its offset are on one clock, that of one of the ranks. In 95 % of the
    matched collectives the ends on all ranks lie no further apart than the error, in seconds.
    """

    offsets_s: dict[str, float]
    error_s: float
    matched: tuple[Collectives, ...]  # on the common clock
    of: dict[str, Rank]
    waits: dict[str, Intervals]  # when each waited for the last of the others, on its own clock
    stragglers: tuple[str, ...]  # that hold the others up

    def data(self) -> dict[str, Any]:
        """All figures but the collectives themselves, to be written as JSON."""
        of = {name: rank._asdict() for name, rank in self.of.items()}
        clocks = {"offsets_s": self.offsets_s, "error_s": self.error_s}
        return {**clocks, "of": of, "stragglers": list(self.stragglers)}


def gpus_of(views: Mapping[str, View]) -> Gpus:
    """Rank -> its GPU, and where the zero of its clock is; each of several GPUs is a rank."""
    gpus: Gpus = {}
    for name, view in views.items():
        its = [usage for usage in view.usages if usage.name != OTHER_LANES]
        ranks = [f"{name} {gpu.name}" for gpu in its] if len(its) > 1 else [name]
        gpus |= {rank: (gpu, view.trace.zero_s) for rank, gpu in zip(ranks, its, strict=False)}
    return gpus


def compare_ranks(gpus: Gpus) -> Ranks | None:
    """Match the collectives of several ranks, and align their clocks by what ends together.

    None where nothing can be matched with certainty.
    """
    sent = {rank: gpu.work.of("communication") for rank, (gpu, _) in gpus.items()}
    work = {rank: records for rank, records in sent.items() if len(records)}
    groups = _matched(work)
    offsets_s = _clocks(groups)
    matched = [
        Collectives(ranks, *(times_s + [offsets_s[it] for it in ranks] for times_s in both_s))
        for ranks, *both_s in groups
        if ranks[0] in offsets_s
    ]
    if not matched:
        return None
    apart_s = np.concatenate([np.ptp(group.ends_s, axis=1) for group in matched])
    error_s = max(_CLOCK_S, float(np.quantile(apart_s, _MOST)))
    seen = defaultdict[str, list[Seconds]](list)
    for ranks, starts_s, ends_s in matched:
        first_s, (second_s, last_s) = starts_s.min(axis=1), np.sort(starts_s).T[-2:]
        # How long the last rank alone was waited for, and any rank by the first.
        waited_s = last_s - second_s, last_s - first_s
        for rank, started_s, ended_s in zip(ranks, starts_s.T, ends_s.T, strict=True):
            late_s = started_s - np.where(started_s == last_s, second_s, last_s)
            seen[rank].append(np.stack((started_s, np.minimum(last_s, ended_s), late_s, *waited_s)))
    of, waits, stragglers = {}, {}, []
    for rank in [rank for rank in work if rank in offsets_s]:
        started_s, ended_s, late_s, *waits_s = np.concatenate(seen[rank], axis=1)
        waits[rank] = covered(np.column_stack((started_s, ended_s))) - offsets_s[rank]
        sums_s = length_s(covered(work[rank].times_s)), length_s(waits[rank])
        beyond_s = late_s[late_s > error_s]
        of[rank] = Rank(*sums_s, len(late_s), len(beyond_s), float(beyond_s.sum()))
        if _holds_up(of[rank].late_s, *(np.where(s > error_s, s, 0.0) for s in waits_s)):
            stragglers.append(rank)
    first_s = gpus[next(iter(of))][1]  # traces have their own zero, so that times are precise
    offsets_s = {rank: offsets_s[rank] - (gpus[rank][1] - first_s) for rank in of}
    return Ranks(offsets_s, error_s, tuple(matched), of, waits, tuple(stragglers))


def _holds_up(late_s: float, alone_s: Seconds, waited_s: Seconds) -> bool:
    """Whether others waited for a rank alone far longer than they do for any by chance.

    Of two equally slow ranks each is waited for half of the time, so two thirds at least is asked,
    and more than chance gives once in seven hundred times.
    """
    sum_s, by_chance_s = alone_s.sum(), _DEVIATIONS * np.linalg.norm(alone_s) / 2
    is_most = late_s - sum_s / 2 > max(sum_s / 6, by_chance_s)
    return bool(is_most and late_s > _CLEAR * waited_s.sum())


def _matched(work: Mapping[str, Records]) -> list[Collectives]:
    """The collectives of ranks, by group and order, each rank still on its own clock.

    Where the profiler tells no group, it is by kernel and order, of kernels that all ranks have.
    A group is left out if one of its ranks has others than the rest, or in another order, or if
    they can't be the same.
    """
    calls: dict[tuple[str, str], dict[str, Records]] = {}
    for rank, records in work.items():
        for key, collectives in records.parts(_group_of).items():
            calls.setdefault(key, {})[rank] = collectives
    matched = []
    for (group, kernel), of_rank in calls.items():
        named = [[r.tags[i].collective for i in r.tagged.tolist()] for r in of_rank.values()]
        is_known = group or (kernel and len(of_rank) == len(work))
        if not is_known or len(named) < 2 or any(names != named[0] for names in named):
            continue
        times_s = np.stack([records.times_s for records in of_rank.values()], axis=1)
        starts_s, ends_s = times_s.transpose(2, 0, 1)
        offsets_s = np.median(ends_s[:, :1] - ends_s, axis=0)
        begun_s, ended_s = (starts_s + offsets_s).max(axis=1), (ends_s + offsets_s).min(axis=1)
        is_of_each = len(np.unique(starts_s, axis=1).T) == len(of_rank)  # none is a copy of another
        possible = begun_s <= ended_s + _CLOCK_S  # none ends before all have begun
        is_enough = possible.sum() >= max(_FEWEST, _MOST * len(possible))
        if is_of_each and is_enough and _fits_only_so(ends_s):
            matched.append(Collectives(tuple(of_rank), starts_s[possible], ends_s[possible]))
    return matched


def _group_of(tag: Tag) -> tuple[str, str]:
    """The group of a collective that all ranks end together, or the kernel; else nothing."""
    name, _, group = tag.collective.partition(" of group ")
    if not ends_together(tag.name, name):
        return "", ""
    return group, "" if group else tag.name


def _fits_only_so(ends_s: Seconds) -> bool:
    """Whether ends agree much better than if one rank's record began a collective later."""

    def apart_s(first: Seconds, others: Seconds) -> Seconds:
        difference_s = first[:, :1] - others[:, 1:]
        mean_s: Seconds = np.abs(difference_s - np.median(difference_s, axis=0)).mean(axis=0)
        return mean_s

    shifted_s = np.minimum(apart_s(ends_s[1:], ends_s[:-1]), apart_s(ends_s[:-1], ends_s[1:]))
    return bool((shifted_s > 2 * apart_s(ends_s, ends_s) + _CLOCK_S).all())


def _clocks(groups: Sequence[Collectives]) -> dict[str, float]:
    """What to add to the times of each rank, so that all are on the clock of one.

    Ranks that share no group with the others have no common clock; of such sets the largest stays.
    """
    best: dict[str, float] = {}
    left = [*groups]
    while left:
        offsets_s = {left[0].ranks[0]: 0.0}
        while near := [group for group in left if not offsets_s.keys().isdisjoint(group.ranks)]:
            left = [group for group in left if offsets_s.keys().isdisjoint(group.ranks)]
            for group in near:
                first = next(i for i, rank in enumerate(group.ranks) if rank in offsets_s)
                known_s = group.ends_s[:, first] + offsets_s[group.ranks[first]]
                by_s = np.median(known_s[:, None] - group.ends_s, axis=0).tolist()
                offsets_s = dict(zip(group.ranks, by_s, strict=True)) | offsets_s
        best = max(best, offsets_s, key=len)
    return best


def side_by_side(ranks: Ranks | None, gpus: Gpus) -> list[str | Table]:
    """Who waited for whom, and what each rank did; its GPU gets to know when it waited.

    Nothing is said of fewer than two.
    """
    if len(gpus) < 2:
        return []
    longest_s = max(length_s(gpu.busy) + length_s(gpu.idle) for gpu, _ in gpus.values())
    rows = []
    for name, (gpu, _) in gpus.items():
        waiting = came_last = NOTHING
        if ranks and (rank := ranks.of.get(name)):
            gpu.waiting = ranks.waits[name]
            waiting = like(rank.waiting_s, longest_s)
            came_last = f"{rank.came_last:,} of {rank.collectives:,}"
        computing, communicating = gpu.when("compute"), gpu.when("communication")
        sets = (gpu.busy, computing, communicating, without(communicating, computing), gpu.idle)
        *busy, idle = (like(length_s(times), longest_s) for times in sets)
        rows.append((shortened(name, _WIDEST), *busy, waiting, idle, came_last))
    said = [_UNMATCHED] * any("communication" in gpu.sorts for gpu, _ in gpus.values())
    notes = ["Exposed: communication while the same rank did not compute."]
    if ranks:
        error, clocks_s = format_seconds(ranks.error_s), ranks.offsets_s.values()
        count = sum(len(group.starts_s) for group in ranks.matched)
        notes += [
            "Waiting: in a collective that the last of these ranks had not begun.",
            f"Came last: began a collective later than all other ranks, by more than {error}.",
            f"Clocks were up to {format_seconds(max(clocks_s) - min(clocks_s))} apart. They are "
            f"aligned by how {count:,} collectives end,",
            f"of which {percent(_MOST)} then agree within {error}.",
        ]
        by_late_s = sorted(ranks.stragglers, key=lambda name: -ranks.of[name].late_s)
        said = [
            f"{name} holds the others up: it came last to {rank.came_last:,} of "
            f"{rank.collectives:,} collectives, and they waited {format_seconds(rank.late_s)} for "
            f"it alone."
            for name in by_late_s[:_MOST_NAMED]
            for rank in [ranks.of[name]]
        ]
    return [*said, tabulate(_HEADERS, rows, caption="What each rank did", notes=notes)]
