"""Ranks: several processes side by side: who waits for whom, and who is always last."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autopar.display.format import NOTHING, format_seconds, like, percent, shortened
from autopar.display.table import Table, tabulate
from autopar.timeline.intervals import Intervals, covered, length_s, without
from autopar.traces.collectives import CLOCK_S, MOST, Collectives, Times, aligned, matched
from autopar.traces.trace import Records, Trace
from autopar.traces.utilization import OTHER_LANES, Usage

_DEVIATIONS = 3  # of a fair coin's count of heads from the half of its throws
_MOST_NAMED = 5  # stragglers in a table's notes
_WIDEST = 24  # characters of a rank's name, so that a line fits a terminal


class Rank(NamedTuple):
    """What one rank did in communication; times are of unions of intervals."""

    communication_s: float  # in kernels that communicate, matched or not
    waiting_s: float  # of these, before the last of the ranks had begun the same collective
    collectives: int  # that were matched
    came_last: int  # how many of them it began later than all others, by more than the error
    late_s: float  # by how much in all: so long the others waited for it alone


@dataclass(frozen=True)
class Ranks:
    """Ranks whose collectives could be matched.

    Times of a trace plus its offset are on one clock, that of one of the ranks. In 95 % of the
    matched collectives the ends on all ranks lie no further apart than the error, in seconds.
    """

    offsets_s: dict[str, float]
    error_s: float
    matched: tuple[Collectives, ...]  # on the common clock
    of: dict[str, Rank]
    waits: dict[str, Intervals]  # when each waited for the last of the others, on its own clock

    @property
    def stragglers(self) -> tuple[str, ...]:
        """Ranks that come last, by more than the error, in most of their collectives.

        Of two equally slow ranks each comes last in half of them, so it is two thirds at least,
        and of few collectives so many that chance would not do it once in seven hundred times.
        """
        return tuple(
            name
            for name, (_, _, count, came_last, _) in self.of.items()
            if came_last - count / 2 > max(count / 6, _DEVIATIONS * math.sqrt(count) / 2)
        )


def compare_ranks(traces: Mapping[str, Trace]) -> Ranks | None:
    """Match the collectives of several ranks, and align their clocks by what ends together.

    Of a trace with several GPUs each is a rank, named `trace GPU`. None where
    nothing can be matched with certainty.
    """
    work: dict[str, Records] = {}
    for name, trace in traces.items():
        every = trace.trusted().work
        gpus = [gpu for gpu in every.groups(lambda tag: tag.gpu) if gpu]
        sent = every[every.where(lambda tag: tag.kind == "communication" and bool(tag.gpu))]
        for gpu, its in sent.parts(lambda tag: tag.gpu).items():
            work[_named(name, gpu, len(gpus))] = its
    every_s, groups = aligned(matched(work))
    if not groups:
        return None
    apart_s = np.concatenate([np.ptp(group.ends_s, axis=1) for group in groups])
    error_s = max(CLOCK_S, float(np.quantile(apart_s, MOST)))
    offsets_s = {rank: every_s[rank] for rank in work if rank in every_s}
    waits: dict[str, list[Intervals]] = {rank: [] for rank in offsets_s}
    lates_s: dict[str, list[Times]] = {rank: [] for rank in offsets_s}
    for group in groups:
        last_but_one_s, last_s = np.sort(group.starts_s, axis=1)[:, -2:].T
        last = group.starts_s.argmax(axis=1)
        for i, (rank, starts_s) in enumerate(zip(group.ranks, group.starts_s.T, strict=True)):
            waits[rank].append(np.column_stack((starts_s, np.minimum(last_s, group.ends_s[:, i]))))
            lates_s[rank].append(np.where(last == i, last_s - last_but_one_s, 0.0))
    of, waiting = {}, {}
    for rank, offset_s in offsets_s.items():
        late_s = np.concatenate(lates_s[rank])
        beyond_s = late_s[late_s > error_s]
        waiting[rank] = covered(np.concatenate(waits[rank])) - offset_s
        times_s = length_s(covered(work[rank].times_s)), length_s(waiting[rank])
        of[rank] = Rank(*times_s, len(late_s), len(beyond_s), float(beyond_s.sum()))
    return Ranks(offsets_s, error_s, tuple(groups), of, waiting)


def side_by_side(ranks: Ranks | None, usages: Mapping[str, Sequence[Usage]]) -> list[str | Table]:
    """Who waited for whom, and what each rank did, from the usages of each trace.

    Nothing is said of fewer than two. Each usage gets to know when it waited.
    """
    gpus = {name: [gpu for gpu in its if gpu.name != OTHER_LANES] for name, its in usages.items()}
    shown = [(_named(name, gpu.name, len(its)), gpu) for name, its in gpus.items() for gpu in its]
    for rank, gpu in shown:
        gpu.waiting = ranks.waits.get(rank, gpu.waiting) if ranks else gpu.waiting
    if len(shown) < 2:
        return []
    longest_s = max(length_s(gpu.busy) + length_s(gpu.idle) for _, gpu in shown)
    rows = []
    for rank, gpu in shown:
        computing, communicating = gpu.when("compute"), gpu.when("communication")
        sets = (gpu.busy, computing, communicating, without(communicating, computing), gpu.idle)
        *busy, idle = (like(length_s(times), longest_s) for times in sets)
        waiting = came_last = NOTHING
        if ranks and (its := ranks.of.get(rank)):
            waiting = like(its.waiting_s, longest_s)
            came_last = f"{its.came_last:,} of {its.collectives:,}"
        rows.append((shortened(rank, _WIDEST), *busy, waiting, idle, came_last))
    headers = ("rank", "busy", "computing", "communication", "exposed", "waiting", "idle")
    notes = ["Exposed: communication while the same rank did not compute."]
    if ranks:
        error, clocks_s = format_seconds(ranks.error_s), ranks.offsets_s.values()
        count = sum(len(group.starts_s) for group in ranks.matched)
        apart = format_seconds(max(clocks_s) - min(clocks_s))
        notes += [
            "Waiting: in a collective that the last of these ranks had not begun.",
            f"Came last: began a collective later than all other ranks, by more than {error}.",
            f"Clocks were up to {apart} apart. They are aligned by how {count:,} collectives end,",
            f"of which {percent(MOST)} then agree within {error}.",
        ]
    caption = "What each rank did"
    return [*_verdict(ranks), tabulate((*headers, "came last"), rows, caption=caption, notes=notes)]


def _named(trace: str, gpu: str, count: int) -> str:
    return f"{trace} {gpu}" if count > 1 else trace


def _verdict(ranks: Ranks | None) -> Iterator[str]:
    if ranks is None:
        yield "No collectives could be matched with certainty, so who waited for whom is not known."
        return
    stragglers = sorted(ranks.stragglers, key=lambda rank: -ranks.of[rank].late_s)
    for rank in stragglers[:_MOST_NAMED]:
        its = ranks.of[rank]
        yield (
            f"{rank} holds the others up: it came last to {its.came_last:,} of {its.collectives:,} "
            f"collectives, and they waited {format_seconds(its.late_s)} for it alone."
        )
    if len(stragglers) > _MOST_NAMED:
        yield f"So do {len(stragglers) - _MOST_NAMED:,} more ranks."
    if not stragglers:
        rank = max(ranks.of, key=lambda rank: ranks.of[rank].waiting_s)
        yield (
            f"No rank is the last to most collectives. The longest wait for others is that of "
            f"{rank}, {format_seconds(ranks.of[rank].waiting_s)} in all."
        )
