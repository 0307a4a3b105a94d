"""Collectives: the same call matched across ranks, and their clocks aligned by how it ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
import numpy.typing as npt

from autopar.traces.communication import ends_together
from autopar.traces.trace import Records, Tag

MOST = 0.95  # the share of collectives that an error is of, and that must be possible
CLOCK_S = 1e-6  # profilers' own clocks agree no better than this
_FEWEST = 5  # fewer collectives agree on a clock by chance

_NUMBERED = re.compile(r"\w+ \d+ of group ")

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Collectives:
    """Those of one group of ranks, in order; times are arrays by collective and rank."""

    ranks: tuple[str, ...]
    starts_s: Times
    ends_s: Times


def matched(work: Mapping[str, Records]) -> list[Collectives]:
    """The collectives of ranks, by group and order, each rank still on its own clock.

    Where the profiler tells no group, it is by kernel and order, of kernels that all ranks have.
    A group is left out if one of its ranks has others than the rest, or in another order.
    """
    calls: dict[tuple[str, str], dict[str, Records]] = {}
    for rank, records in work.items():
        for group, its in records.parts(_group_of).items():
            calls.setdefault(group, {})[rank] = its
    found = (
        _of_group(of_rank, is_named=bool(group))
        for (group, kernel), of_rank in calls.items()
        if group or (kernel and len(of_rank) == len(work))
    )
    return [collectives for collectives in found if collectives]


def aligned(groups: Iterable[Collectives]) -> tuple[dict[str, float], list[Collectives]]:
    """What to add to the times of each rank, and the collectives on the clock of the first.

    Ranks that share no group with the others have no common clock; of such sets the largest stays.
    """
    best: dict[str, float] = {}
    left = every = list(groups)
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
    moved = []
    for group in every:
        if group.ranks[0] in best:
            by = np.array([best[rank] for rank in group.ranks])
            moved.append(replace(group, starts_s=group.starts_s + by, ends_s=group.ends_s + by))
    return best, moved


def _group_of(tag: Tag) -> tuple[str, str]:
    """The group of a collective that all ranks end together, or the kernel; else nothing."""
    name, _, group = tag.collective.partition(" of group ")
    if not ends_together(tag.name, name.partition(" ")[0]):
        return "", ""
    return group, "" if group else tag.name


def _of_group(of_rank: Mapping[str, Records], *, is_named: bool) -> Collectives | None:
    """The collectives of a group, if each rank has the same ones and they can be the same."""
    lists = [its.coded(lambda tag: tag.collective) for its in of_rank.values()]
    named = [[names[code] for code in codes.tolist()] for names, codes in lists]
    is_numbered = is_named and all(
        name[: name.index(" of ")].count(" ") for names, _ in lists for name in names
    )
    shared = set.intersection(*map(set, named))
    # Then one that a rank lacks does not matter.
    kept = [[not is_numbered or name in shared for name in names] for names in named]
    named = [list(compress(names, which)) for names, which in zip(named, kept, strict=True)]
    if len(named) < 2 or not named[0] or any(names != named[0] for names in named):
        return None
    times_s = [its.times_s[which] for its, which in zip(of_rank.values(), kept, strict=True)]
    starts_s, ends_s = np.stack(times_s, axis=1).transpose(2, 0, 1)
    offsets_s = np.median(ends_s[:, :1] - ends_s, axis=0)
    begun_s, ended_s = (starts_s + offsets_s).max(axis=1), (ends_s + offsets_s).min(axis=1)
    possible = begun_s <= ended_s + CLOCK_S  # none ends before all have begun
    if possible.sum() < max(_FEWEST, MOST * len(possible)):
        return None
    if not (is_numbered or _fits_only_so(ends_s)):
        return None
    return Collectives(tuple(of_rank), starts_s[possible], ends_s[possible])


def _fits_only_so(ends_s: Times) -> bool:
    """Whether ends agree much better than if one rank's record began a collective later."""

    def apart_s(first: Times, others: Times) -> Times:
        difference_s = first[:, :1] - others[:, 1:]
        mean_s: Times = np.abs(difference_s - np.median(difference_s, axis=0)).mean(axis=0)
        return mean_s

    shifted_s = np.minimum(apart_s(ends_s[1:], ends_s[:-1]), apart_s(ends_s[:-1], ends_s[1:]))
    return bool((shifted_s > 2 * apart_s(ends_s, ends_s) + CLOCK_S).all())
