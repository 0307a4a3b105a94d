"""Findings: why a trace has no more overlap, each finding with its cost and its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np

from autopar.display.format import figures, format_seconds
from autopar.timeline.intervals import Intervals, common, covered, length_s, length_within, without
from autopar.traces.causes import CAUSES, SHOWN, START_S, Finding
from autopar.traces.trace import UNKNOWN, Records
from autopar.traces.utilization import BRIEF_S, Usage, View, sort_of

LEAST_SHARE = 0.01  # of the window; what costs less is not why a program is slow
_UNEXPLAINED = 0.1  # of the window; less that is idle for no known cause is no finding
HIDEABLE = ("copy", "communication")  # what computing can hide
_FASTER = ("pageable", "small copies")  # what makes copies shorter, not only hides them
# Nobody knows what could be saved of these: they are told all the same, if there is much of it.
_FACTS = ("brief", "queued", "ended", "unknown")


def findings_of(
    view: View, idle: Iterable[Finding], waits: Callable[[Usage], Intervals]
) -> list[Finding]:
    """What a view could save, most expensive first; what costs too little to matter is left out.

    What only hides work saves no more than all after it could begin sooner; see `_sooner_s`.
    """
    window_s = length_s(view.window)
    every = chain(idle, *(_of_work(view, usage, waits(usage)) for usage in view.usages))
    least = dict.fromkeys(CAUSES, LEAST_SHARE) | dict.fromkeys(_FACTS, _UNEXPLAINED)
    found = [finding for finding in every if finding.cost_s >= least[finding.cause] * window_s]
    return sorted(found, key=lambda finding: -finding.cost_s)


def _sooner_s(view: View, moved: Intervals, rest: Records, waits: Intervals) -> float:
    """How much sooner all would end if a GPU did some of its work at other times, and the rest so.

    What comes after moves forward with it, until work that was launched too late to begin sooner.
    Where the host waited, its launches move forward too, by no more than it waited. Where no
    launches are known, nothing limits it.
    """
    whole_s, (starts_s, ends_s) = length_s(moved), rest.times_s.T
    is_first = starts_s >= np.maximum.accumulate(np.append(-np.inf, ends_s))[:-1]
    firsts = rest[is_first & (rest.launches != UNKNOWN)]
    if not len(firsts) or not whole_s:
        return whole_s
    starts_s, returned_s = firsts.times_s[:, 0], view.trace.host.times_s[firsts.launches, 1]
    begin_s = moved[:1, 0]
    ahead_s = np.maximum(starts_s - returned_s - START_S, 0.0)
    ahead_s -= length_within(moved, begin_s, starts_s)
    # From wait to wait, and at last to the end.
    parts_s = np.split(ahead_s, np.searchsorted(starts_s, waits[:, 1]))
    sums_s = [*length_within(moved, begin_s, waits[:, 1]).tolist(), whole_s]
    waits_s = [*(waits[:, 1] - waits[:, 0]).tolist(), 0.0]
    host_s = gpu_s = before_s = 0.0
    for part_s, sum_s, wait_s in zip(parts_s, sums_s, waits_s, strict=True):
        gpu_s = sum_s + min(gpu_s - before_s, host_s + float(part_s.min(initial=np.inf)))
        host_s, before_s = min(host_s + wait_s, gpu_s), sum_s
    # At the end the GPU alone is at work, or the host.
    own_s = np.concatenate((waits[:, 1], view.ranges.times_s[:, 1], returned_s)).max()
    return min(gpu_s, host_s + max(float(view.window[-1, 1] - own_s), 0.0))


def _of_work(view: View, usage: Usage, waits: Intervals) -> Iterator[Finding]:
    """What nothing computes beside; where nothing is computed, nothing could."""
    computing = usage.when("compute")
    left = usage.work[usage.work.where(lambda tag: sort_of(tag) in HIDEABLE)]
    for key, cause in CAUSES.items():
        if not cause.rule:
            continue
        holds = cause.rule(left, usage)
        group, left = left[holds], left[~holds]
        rest = usage.work[~np.isin(usage.work.tagged, np.unique(group.tagged))]
        # While another GPU computes, this one may wait for that.
        beside = covered(np.concatenate((rest.times_s, view.computing)))
        exposed = without(covered(group.times_s), beside)
        if key not in _FASTER:  # nor do moments between kernels count
            exposed = exposed[exposed[:, 1] - exposed[:, 0] > BRIEF_S]
        waited_s = length_s(common(exposed, usage.waiting))
        cost_s = length_s(exposed) - waited_s
        exposed_s = length_within(without(exposed, usage.waiting), *group.times_s.T).round(9)
        sort, one, many = "copy", "copy", "copies"
        if key == "communication":
            sort, one, many = "communication", "exchange", "exchanges"
        if key not in _FASTER:  # no more than is computed without them can be beside them
            unused_s = length_s(without(computing, usage.when(sort)))
            cost_s = min(cost_s, unused_s, _sooner_s(view, exposed, rest, waits))
        if cost_s <= 0:
            continue
        waited = "some of it may be waiting for the others"
        if waited_s:
            waited = f"{format_seconds(waited_s)} more were waiting for other ranks"
        streams = ", ".join(sorted({tag.stream for tag in group.present}))
        of_all = f" of {len(group):,} {many}" if len(group) > 1 else f" {one}"
        work = _amount(group[exposed_s > 0], of_all)
        why = cause.what.format(work=work, waited=waited, streams=streams)
        most = np.argsort(-exposed_s, kind="stable")[: min(SHOWN, int((exposed_s > 0).sum()))]
        yield Finding(key, usage.name, cost_s, why, group[most].spans())


def _amount(work: Records, of_all: str) -> str:
    """How many there were, and how much they moved and how fast, if the trace tells."""
    sized = work[work.sizes_bytes != UNKNOWN]
    size_bytes, busy_s = int(sized.sizes_bytes.sum()), length_s(covered(sized.times_s))
    if not size_bytes or not busy_s:
        return f"{len(work):,}{of_all}"
    rate = figures(size_bytes / busy_s / 1e9)
    return f"{len(work):,}{of_all}, {figures(size_bytes / 1e6)} MB at {rate} GB/s,"
