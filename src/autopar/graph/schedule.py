"""Schedule: which lane a job goes to, when, and what it waits for; jobs, lanes and waits as data.

    jobs and what each must come after  ->  order by rank  ->  lanes  ->  waits that are needed

A schedule is made before anything runs. What runs it does each lane's jobs in order, waits for
the ends that they name, and for nothing else.
"""

from __future__ import annotations

import heapq
import operator
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from autopar.timing.measurement import format_seconds

# Orders by other ranks are tried too, as long as that is this quick: few jobs, many tries.
_TRIED_JOBS = 2000
_MOST_TRIES = 150
_NO_MORE = 1 + 1e-9  # of a sum in another order
_SPREADS = (0.1, 0.3, 1.0)  # of the longest chain: how far chance moves costs, in turn

Placed = tuple[float, float, int]  # start, end, and number of a job, in the order of placing


class Job(NamedTuple):
    """Something to do on a resource.

    Args:
        name: For people.
        resource: Where it runs, by name.
        cost_s: Seconds that it takes by itself.
        after: Numbers of jobs, counted in the order they are given, that must end before it.
    """

    name: str
    resource: str
    cost_s: float
    after: tuple[int, ...] = ()


class Resource(NamedTuple):
    """What jobs run on.

    Args:
        lanes: How many in-order queues it has.
        at_once: How many of its jobs run at the same time; a GPU's streams share one GPU.
    """

    lanes: int = 1
    at_once: int = 1


class Entry(NamedTuple):
    """A job in its place.

    Args:
        job: Its number.
        lane: The in-order queue that it is on.
        waits: Jobs on other lanes whose ends it waits for, and which no other wait implies.
        start_s: When it begins in the simulation.
        end_s: When it ends there.
    """

    job: int
    lane: str
    waits: tuple[int, ...]
    start_s: float
    end_s: float


_Jobs = Sequence[Job]
_Resources = dict[str, Resource]
_Simulated = tuple[float, list[Placed]]  # when the last job ends, and where all are


@dataclass(frozen=True)
class Schedule:
    """Jobs in the order in which they are issued, each on its lane, with its waits.

    Args:
        jobs: What was to be scheduled.
        entries: In an order of issue: each comes after all that it waits for.
    """

    jobs: tuple[Job, ...]
    entries: tuple[Entry, ...]

    @property
    def lanes(self) -> dict[str, tuple[Entry, ...]]:
        """Each lane's entries, in order."""
        lanes: dict[str, list[Entry]] = {}
        for entry in self.entries:
            lanes.setdefault(entry.lane, []).append(entry)
        return {lane: tuple(entries) for lane, entries in sorted(lanes.items())}

    @property
    def makespan_s(self) -> float:
        """When the last job ends in the simulation, in seconds."""
        return max((entry.end_s for entry in self.entries), default=0.0)

    def __str__(self) -> str:
        rows = []
        for lane, entries in self.lanes.items():
            rows.append(f"{lane}:")
            for entry in entries:
                job = self.jobs[entry.job]
                waits = ", ".join(f"{self.jobs[number].name!r}" for number in entry.waits)
                at = f"{format_seconds(entry.start_s)} to {format_seconds(entry.end_s)}"
                rows.append(f"  {at}  {job.name}" + (f", after {waits}" if waits else ""))
        return "\n".join([*rows, f"makespan {format_seconds(self.makespan_s)}"])


def schedule(jobs: _Jobs, resources: _Resources, *, tries: int | None = None) -> Schedule:
    """Order jobs, give them lanes, and find the waits that they need.

    Of jobs that could go next, the one goes first that has most to come after it (its upward
    rank). Where there are few jobs, chance tries other orders, as many as `tries` says, and the
    shortest schedule is kept. A ValueError says that jobs wait for each other in a circle.
    """
    order, costs_s = _topological(jobs), [job.cost_s for job in jobs]
    ranks = _upward_ranks(jobs, order, costs_s)
    # One after another any order is as long, and that of the program needs the least memory.
    in_turn = [min(resource) for resource in resources.values()] == [1]
    best = _by_rank(jobs, resources, range(0, -len(jobs), -1) if in_turn else ranks)
    if tries is None:
        tries = min(_MOST_TRIES, _TRIED_JOBS // max(1, len(jobs)))
    floor_s, chance = limit_s(jobs, resources), random.Random(0)
    for number in range(tries):
        if best[0] <= floor_s * _NO_MORE:
            break
        spread_s = _SPREADS[number % len(_SPREADS)] * max(ranks)
        # All above zero, so that who comes after another has the lower rank of both.
        others_s = [cost_s + spread_s * chance.uniform(0.01, 1) for cost_s in costs_s]
        others = _upward_ranks(jobs, order, others_s)
        other = _by_rank(jobs, resources, others)
        best = min(best, other, key=operator.itemgetter(0))
    return Schedule(tuple(jobs), _on_lanes(jobs, resources, best[1]))


def limit_s(jobs: _Jobs, resources: _Resources) -> float:
    """Seconds that no schedule can beat: the longest chain, or the busiest resource's work."""
    work_s = dict.fromkeys(resources, 0.0)
    for job in jobs:
        work_s[job.resource] += job.cost_s / min(resources[job.resource])
    ranks = _upward_ranks(jobs, _topological(jobs), [job.cost_s for job in jobs])
    return max([0.0, *ranks, *work_s.values()])


def _topological(jobs: _Jobs) -> list[int]:
    """All jobs, each behind those that it comes after; a ValueError names those in a circle."""
    try:
        return [*TopologicalSorter(dict(enumerate(job.after for job in jobs))).static_order()]
    except CycleError as error:
        circle = " -> ".join(repr(jobs[number].name) for number in error.args[1])
        msg = f"tasks wait for each other in a circle: {circle}; expected an order. Leave one out."
        raise ValueError(msg) from None


def _upward_ranks(jobs: _Jobs, order: Sequence[int], costs_s: Sequence[float]) -> list[float]:
    """Seconds from each job's start to the end of the longest chain that begins with it."""
    ranks = [0.0] * len(jobs)  # of what comes after, until it is the job's turn
    for number in reversed(order):
        ranks[number] += costs_s[number]
        for before in jobs[number].after:
            ranks[before] = max(ranks[before], ranks[number])
    return ranks


def _by_rank(jobs: _Jobs, resources: _Resources, ranks: Sequence[float]) -> _Simulated:
    """When the last job ends, and where all are, if those of the highest rank are begun first."""
    sorter = TopologicalSorter({number: job.after for number, job in enumerate(jobs)})
    sorter.prepare()
    ready: dict[str, list[tuple[float, int]]] = {name: [] for name in resources}
    free = {name: min(resource) for name, resource in resources.items()}
    placed: list[Placed] = []
    running: list[tuple[float, int]] = []
    now_s = 0.0
    while sorter.is_active():
        for number in sorter.get_ready():
            heapq.heappush(ready[jobs[number].resource], (-ranks[number], number))
        for name, waiting in ready.items():
            while free[name] and waiting:
                number = heapq.heappop(waiting)[1]
                end_s = now_s + jobs[number].cost_s
                placed.append((now_s, end_s, number))
                heapq.heappush(running, (end_s, number))
                free[name] -= 1
        now_s, ended = running[0][0], []
        while running and running[0][0] <= now_s:
            ended.append(heapq.heappop(running)[1])
            free[jobs[ended[-1]].resource] += 1
        sorter.done(*ended)
    return now_s, placed


def _on_lanes(jobs: _Jobs, resources: _Resources, placed: list[Placed]) -> tuple[Entry, ...]:
    """Give each job a lane, a chain's or that which is idle the longest, and the waits it needs."""
    lanes = {
        name: [name] if resource.lanes == 1 else [f"{name} #{i}" for i in range(resource.lanes)]
        for name, resource in resources.items()
    }
    last: dict[str, int] = {}  # each lane's last job so far
    free_s = defaultdict[str, float](float)
    at: dict[int, tuple[str, int]] = {}  # each job's lane, and its place among all
    ended: dict[int, dict[str, int]] = {}  # the place of the last on each lane, once a job has
    entries: list[Entry] = []
    for start_s, end_s, number in placed:
        job = jobs[number]
        names = lanes[job.resource]
        chain = [lane for lane in names if last.get(lane) in job.after]
        lane = max(chain, key=free_s.__getitem__) if chain else min(names, key=free_s.__getitem__)
        past = dict(ended[last[lane]]) if lane in last else {}
        waits = []
        for before in sorted(set(job.after), key=lambda before: at[before][1], reverse=True):
            if past.get(at[before][0], -1) < at[before][1]:
                waits.append(before)
                for other, place in ended[before].items():
                    past[other] = max(place, past.get(other, -1))
        at[number] = lane, len(entries)
        past[lane] = len(entries)
        last[lane], ended[number], free_s[lane] = number, past, end_s
        entries.append(Entry(number, lane, tuple(sorted(waits)), start_s, end_s))
    return tuple(entries)


def faults(schedule: Schedule) -> list[str]:
    """What is wrong with a schedule: whatever could begin before it may, or never.

    It holds if each job is on one lane, once, and all that it must come after is before it on its
    lane, or before something that it waits for, and so on.
    """
    jobs = schedule.jobs
    if sorted(entry.job for entry in schedule.entries) != list(range(len(jobs))):
        return ["not every job is there once"]
    wrong: list[str] = []
    ended, of_lane = dict[int, int](), dict[str, int]()  # jobs, as bits, once one or a lane has
    for entry in schedule.entries:
        name, past = jobs[entry.job].name, of_lane.get(entry.lane, 0)
        for wait in entry.waits:
            if wait not in ended:
                late = repr(jobs[wait].name) if 0 <= wait < len(jobs) else f"job {wait}"
                wrong.append(f"{name!r} waits for {late}, which is not issued before")
            past |= ended.get(wait, 0)
        wrong += [
            f"{name!r} does not wait for {jobs[before].name!r}"
            for before in jobs[entry.job].after
            if not past >> before & 1
        ]
        ended[entry.job] = of_lane[entry.lane] = past | 1 << entry.job
    return wrong
