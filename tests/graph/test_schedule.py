"""Schedules: every job once and in time, close to the optimum, at any speed of lanes."""

import heapq
import random
from collections import Counter
from functools import cache
from itertools import pairwise, permutations

import pytest
from graph_checks import without_a_wait
from hypothesis import strategies as st
from random_cases import hold_for_all, shares

from autopar import graph
from autopar.graph.schedule import Entry, Job, Resource, Schedule, faults, limit_s, schedule

_GPU = Resource(lanes=4, at_once=1)
_RESOURCES = {"gpu 0": _GPU, "gpu 1": _GPU, "cpu": Resource(2, 2), "copy": Resource()}
_NO_LESS = 1 - 1e-9  # of a sum in another order


def a_graph(chance, count, density, costs=None):
    """Jobs in a random order, each after a share of those that could be before it."""
    numbers = chance.sample(range(count), count)
    jobs = [None] * count
    for i, number in enumerate(numbers):
        after = tuple(other for other in numbers[:i] if chance.random() < density)
        cost_s = chance.choice(costs or (1, 2, 3, 5, 8, 10 * chance.random()))
        jobs[number] = Job(f"j{number}", chance.choice([*_RESOURCES]), cost_s, after)
    return jobs


def a_chain(count, resource, start=0):
    after = [(), *((start + i,) for i in range(count - 1))]
    return [Job(f"j{start + i}", resource, 1.0, own) for i, own in enumerate(after)]


_WIDE = [Job(f"j{i}", ("cpu", "gpu 1")[i % 2], 1.0, (0,)) for i in range(1, 20)]
SPECIAL = [
    [],
    a_chain(40, "gpu 0"),
    [Job("first", "cpu", 2.0), *_WIDE, Job("last", "copy", 1.0, tuple(range(1, 20)))],
    [Job("a", "cpu", 1), Job("b", "gpu 0", 1, (0, 0)), Job("c", "cpu", 1, (1, 0, 1))],
]
DENSITIES = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
chances = st.randoms(use_true_random=False)


def tails(jobs):
    """Seconds from each job's start to the end of the longest chain."""

    @cache
    def tail(number):
        after = [other for other, job in enumerate(jobs) if number in job.after]
        return jobs[number].cost_s + max(map(tail, after), default=0)

    return [tail(number) for number in range(len(jobs))]


# -- every job once, in time, with no needless wait -----------------------------------------------


@shares
def test_every_job_runs_once_where_and_when_it_may_and_no_wait_is_needless(share):
    def right(chance):
        costs = chance.choice((None, (0, 0, 1, 2.5), (0.0,)))
        count = chance.choice((1, 10, 25, 60))
        check(a_graph(chance, count, chance.choice(DENSITIES), costs))

    hold_for_all(right, chances, share=share, examples=40)
    for jobs in (*SPECIAL, a_graph(random.Random(share), 300, 0.01)):
        check(jobs)


def check(jobs):
    plan = schedule(jobs, _RESOURCES)
    assert plan.jobs == tuple(jobs)
    assert list(plan.entries) == sorted(plan.entries, key=lambda entry: entry.start_s)
    assert faults(plan) == []
    assert not is_mistaken(plan)
    end_s, work_s = {}, Counter()
    for entry in plan.entries:
        job = jobs[entry.job]
        assert entry.end_s == entry.start_s + job.cost_s
        assert entry.start_s >= max((end_s[before] for before in job.after), default=0)
        assert set(entry.waits) <= set(job.after)
        end_s[entry.job] = entry.end_s
        work_s[job.resource] += job.cost_s / min(_RESOURCES[job.resource])
    assert plan.makespan_s == max(end_s.values(), default=0)
    bound_s = limit_s(jobs, _RESOURCES)
    assert bound_s == pytest.approx(max([*tails(jobs), *work_s.values()], default=0))
    assert plan.makespan_s >= bound_s * _NO_LESS
    assert all(faults(hasty) for hasty, _ in without_a_wait(plan))
    for lane, entries in plan.lanes.items():
        assert [entry for entry in plan.entries if entry.lane == lane] == list(entries)
        assert all(one.end_s <= other.start_s for one, other in pairwise(entries))
    for resource, (most_lanes, at_once) in _RESOURCES.items():
        here = [entry for entry in plan.entries if jobs[entry.job].resource == resource]
        assert {entry.lane.partition(" #")[0] for entry in here} <= {resource}
        assert len({entry.lane for entry in here}) <= most_lanes
        for entry in here:
            running = [other for other in here if other.start_s <= entry.start_s < other.end_s]
            assert len(running) <= at_once


@pytest.mark.parametrize("resource", ["gpu 0", "cpu"])
def test_chains_stay_on_their_lanes_and_wait_for_nothing(resource):
    plan = schedule([*a_chain(8, resource), *a_chain(8, resource, 8)], _RESOURCES)
    chains = {frozenset(entry.job for entry in lane) for lane in plan.lanes.values()}
    assert chains == {frozenset(range(8)), frozenset(range(8, 16))}
    assert not any(entry.waits for entry in plan.entries)


@pytest.mark.parametrize("resource", [_GPU, Resource(2, 2), Resource(2, 5), Resource()])
def test_a_wide_graph_uses_all_lanes_and_a_gpus_streams_make_nothing_shorter(resource):
    jobs = [Job(f"j{i}", "here", 1.0) for i in range(16)]
    plan = schedule(jobs, {"here": resource})
    assert [len(lane) for lane in plan.lanes.values()] == [16 // resource.lanes] * resource.lanes
    assert plan.makespan_s == limit_s(jobs, {"here": resource}) == 16 / min(resource)


# -- close to the optimum -------------------------------------------------------------------------


def optimum_s(jobs, resources):
    """The shortest of all: jobs in every order, each as early as those before it let it begin."""

    def makespan_s(order):
        free_s = {name: [0.0] * min(resource) for name, resource in resources.items()}
        end_s = {}
        for job in map(jobs.__getitem__, order):
            if not end_s.keys() >= {*job.after}:
                return float("inf")
            free = free_s[job.resource]
            start_s = max([heapq.heappop(free), *(end_s[before] for before in job.after)])
            end_s[jobs.index(job)] = start_s + job.cost_s
            heapq.heappush(free, start_s + job.cost_s)
        return max(end_s.values(), default=0)

    return min(map(makespan_s, permutations(range(len(jobs)))))


@shares
def test_schedules_are_close_to_the_optimum(share):
    chance, ratios = random.Random(share), []
    for i in range(100):
        costs = (0, 1, 1, 4) if i % 10 == 9 else None
        jobs = a_graph(chance, chance.randint(1, 6), chance.uniform(0.05, 0.5), costs)
        best_s, makespan_s = optimum_s(jobs, _RESOURCES), schedule(jobs, _RESOURCES).makespan_s
        assert makespan_s >= best_s * _NO_LESS
        assert best_s >= limit_s(jobs, _RESOURCES) * _NO_LESS
        ratios.append(makespan_s / best_s if best_s else 1.0)
    assert sorted(ratios)[95] <= 1.05


@pytest.mark.parametrize(("count", "density"), [(10, 0.1), (60, 0.05), (300, 0.01), (100, 0)])
def test_the_job_of_highest_rank_goes_first(count, density):
    """Without tries, whatever could begin in place of another has no more to come after it."""
    plan = schedule(a_graph(random.Random(0), count, density), _RESOURCES, tries=0)
    ranks, end_s = tails(plan.jobs), {entry.job: entry.end_s for entry in plan.entries}
    for i, entry in enumerate(plan.entries):
        for other in plan.entries[i + 1 :]:
            _, resource, _, after = plan.jobs[other.job]
            if resource == plan.jobs[entry.job].resource and other.start_s > entry.start_s:
                able_s = max((end_s[before] for before in after), default=0)
                assert able_s > entry.start_s or ranks[entry.job] >= ranks[other.job]


def test_tries_make_schedules_shorter_and_are_the_same_every_time():
    shorter, chance = 0, random.Random(0)
    for _ in range(20):
        jobs = a_graph(chance, chance.choice((10, 25, 60)), chance.uniform(0.02, 0.2))
        first, plan = schedule(jobs, _RESOURCES, tries=0), schedule(jobs, _RESOURCES)
        assert plan.makespan_s <= first.makespan_s
        shorter += plan.makespan_s < first.makespan_s
        assert schedule(jobs, _RESOURCES) == plan
    assert shorter >= 5


# -- what may go wrong in a run is a fault ---------------------------------------------------------


def with_entry(plan, at, **changes):
    entry = plan.entries[at]._replace(**changes)
    return Schedule(plan.jobs, (*plan.entries[:at], entry, *plan.entries[at + 1 :]))


def is_mistaken(plan):
    """Whether some speed of lanes lets a job begin too early, or never.

    Lanes run their jobs in order, and wait for nothing but what is said; so a job comes after all
    that has ended before what it waits for, and before it on its lane.
    """
    jobs = [entry.job for entry in plan.entries]
    if Counter(jobs) != Counter(range(len(plan.jobs))):
        return True
    ended, last = {}, {}
    for entry in plan.entries:
        near = {*entry.waits, *last.get(entry.lane, ())}
        if not near <= ended.keys():
            return True
        ended[entry.job] = near.union(*(ended[before] for before in near))
        last[entry.lane] = (entry.job,)
    return not all(ended[number].issuperset(plan.jobs[number].after) for number in jobs)


def changed(plan, chance):
    """A schedule with one change, which is a mistake or not."""
    entries, at = plan.entries, chance.randrange(len(plan.entries))
    entry, other = entries[at], chance.choice(entries)
    rest = (*entries[:at], *entries[at + 1 :])
    waits = [wait for wait in entry.waits if chance.random() < 0.5]
    return chance.choice(
        [
            with_entry(plan, at, waits=tuple(waits)),
            with_entry(plan, at, waits=(*waits, other.job)),
            with_entry(plan, at, lane=other.lane),
            Schedule(plan.jobs, rest),
            Schedule(plan.jobs, (*rest, entry)),
            Schedule(plan.jobs, (*entries, entry)),
        ]
    )


@shares
def test_just_what_may_go_wrong_in_a_run_is_a_fault(share):
    def told(chance):
        plan = schedule(a_graph(chance, chance.randint(2, 12), 0.3), _RESOURCES, tries=0)
        mutant = changed(plan, chance)
        assert is_mistaken(mutant) == bool(faults(mutant))

    hold_for_all(told, chances, share=share, examples=150)


def test_faults_name_the_jobs():
    jobs = Job("load", "cpu", 1), Job("train", "gpu 0", 1, (0,)), Job("save", "cpu", 1, (1,))
    load, train = Entry(0, "cpu", (), 0, 1), Entry(1, "gpu 0", (0,), 1, 2)
    save = Entry(2, "cpu", (1,), 2, 3)
    assert faults(Schedule(jobs, (load, train, save))) == []
    early = train._replace(waits=())
    assert faults(Schedule(jobs, (load, early, save))) == ["'train' does not wait for 'load'"]
    assert faults(Schedule(jobs, (load, save, train))) == [
        "'save' waits for 'train', which is not issued before",
        "'save' does not wait for 'train'",
    ]
    assert faults(Schedule(jobs, (load, train))) == ["not every job is there once"]
    assert faults(Schedule(jobs[:1], (load._replace(waits=(7,)),))) != []


# -- what is shown ---------------------------------------------------------------------------------


def test_a_schedule_shows_lanes_names_and_times():
    jobs = [Job("load", "cpu", 2.0), Job("go", "gpu 0", 3.0, (0,)), Job("save", "copy", 1.0, (1,))]
    assert str(schedule(jobs, _RESOURCES)).splitlines() == [
        "copy:",
        "  5.000 s to 6.000 s  save, after 'go'",
        "cpu #0:",
        "  0 s to 2.000 s  load",
        "gpu 0 #0:",
        "  2.000 s to 5.000 s  go, after 'load'",
        "makespan 6.000 s",
    ]


def test_the_room_offers_what_schedules_are_made_of():
    assert [getattr(graph, name) for name in graph.__all__] == [Entry, Job, Resource, Schedule]
    with pytest.raises(AttributeError, match="'autopar.graph' has no attribute 'Nothing'"):
        graph.Nothing  # noqa: B018
