"""Schedules against an exact optimum, every order of events, and mutants that must be caught."""

import random
from collections import Counter, deque
from functools import cache
from itertools import chain, pairwise

import pytest
from sampling import every

from autopar import graph
from autopar.graph.schedule import Entry, Job, Resource, Schedule, faults, limit_s, schedule

_GPU = Resource(lanes=4, at_once=1)
_RESOURCES = {"gpu 0": _GPU, "gpu 1": _GPU, "cpu": Resource(2, 2), "copy": Resource()}
_DENSITIES = (0.05, 0.1, 0.2, 0.3, 0.5)
_NO_LESS = 1 - 1e-9  # of a sum in another order


def a_graph(chance, count, density, *, costs=None, copies=True):
    """Jobs in a random order, each after a share of those that could be before it."""
    names = list(_RESOURCES)[: 4 if copies else 3]
    numbers = chance.sample(range(count), count)
    jobs = [None] * count
    for i, number in enumerate(numbers):
        after = tuple(each for each in numbers[:i] if chance.random() < density)
        cost_s = chance.choice(costs or (1, 2, 3, 5, 8, 10 * chance.random()))
        jobs[number] = Job(f"j{number}", chance.choice(names), cost_s, after)
    return jobs


def a_chain(count, resource, start=0):
    after = [(), *((start + i,) for i in range(count - 1))]
    return [Job(f"j{start + i}", resource, 1.0, own) for i, own in enumerate(after)]


def graphs():
    chance = random.Random(0)
    for i in range(10):
        yield f"small {i}", a_graph(chance, chance.randint(5, 12), _DENSITIES[i % 5])
        yield f"medium {i}", a_graph(chance, 60, _DENSITIES[i % 5] / 3)
        yield f"some zero {i}", a_graph(chance, 25, _DENSITIES[i % 5], costs=(0, 0, 1, 2.5))
    for i, density in enumerate((0.003, 0.01, 0.05)):
        yield f"large {i}", a_graph(chance, 300, density)
    yield "zero", a_graph(chance, 30, 0.1, costs=(0.0,))
    yield "wide", a_graph(chance, 100, 0)
    yield "dense", a_graph(chance, 30, 1)
    yield "chain", a_chain(40, "gpu 0")
    wide = [Job(f"j{i}", ("cpu", "gpu 1")[i % 2], 1.0, (0,)) for i in range(1, 20)]
    last = Job("last", "copy", 1.0, tuple(range(1, 20)))
    yield "forks", [Job("first", "cpu", 2.0), *wide, last]
    yield "twice", [Job("a", "cpu", 1), Job("b", "gpu 0", 1, (0, 0)), Job("c", "cpu", 1, (1, 0, 1))]
    yield "one", [Job("a", "cpu", 1)]
    yield "empty", []


_GRAPHS = dict(graphs())
every_graph = pytest.mark.parametrize("name", _GRAPHS)


@cache
def made_of(name):
    return schedule(_GRAPHS[name], _RESOURCES)


def tails(jobs):
    """Seconds from each job's start to the end of the longest chain."""

    @cache
    def tail(number):
        after = [each for each, job in enumerate(jobs) if number in job.after]
        return jobs[number].cost_s + max(map(tail, after), default=0)

    return [tail(number) for number in range(len(jobs))]


# The optimum: the shortest of all active schedules. Of what could be next, one job would end
# first; then it, or one that begins before that on its resource, is next there (Giffler-Thompson).


def optimum_s(jobs, resources):
    rest_s = tails(jobs)
    best_s = float("inf")

    def search(end_s, free_s):
        nonlocal best_s
        left = [each for each in range(len(jobs)) if each not in end_s]
        if not left:
            best_s = min(best_s, max(end_s.values(), default=0))
            return
        able = [each for each in left if all(before in end_s for before in jobs[each].after)]
        start_s, work_s = {}, Counter()
        for each in able:
            ends = [end_s[before] for before in jobs[each].after]
            start_s[each] = max(free_s[jobs[each].resource][0], *ends, 0)
        for each in left:
            work_s[jobs[each].resource] += jobs[each].cost_s
        bounds = [start_s[each] + rest_s[each] for each in able]
        bounds += [(sum(free_s[name]) + own) / len(free_s[name]) for name, own in work_s.items()]
        if max(chain(bounds, end_s.values())) >= best_s * _NO_LESS:
            return
        first = min(able, key=lambda each: start_s[each] + jobs[each].cost_s)
        name, until_s = jobs[first].resource, start_s[first] + jobs[first].cost_s
        rivals = [each for each in able if jobs[each].resource == name and start_s[each] < until_s]
        for each in sorted({first, *rivals}, key=lambda each: -rest_s[each]):
            end = start_s[each] + jobs[each].cost_s
            search({**end_s, each: end}, {**free_s, name: sorted([*free_s[name][1:], end])})

    search({}, {name: [0.0] * min(each) for name, each in resources.items()})
    return best_s


def test_the_optimum_of_cases_by_hand():
    two, one = {"cpu": Resource(2, 2)}, dict.fromkeys(("cpu", "copy", "disk"), Resource())
    assert optimum_s([], two) == 0
    assert optimum_s([Job("", "cpu", cost) for cost in (3, 3, 2, 2, 2)], two) == 6
    assert optimum_s([Job("", "cpu", cost) for cost in (0, 4, 0, 5)], one) == 9
    # It pays to leave the CPU idle until the copy is done.
    jobs = [Job("long", "cpu", 5.0), Job("in", "copy", 1.0), Job("short", "cpu", 1.0, (1,))]
    jobs += [Job("out", "copy", 9.0, (2,)), Job("aside", "disk", 0.5)]
    assert schedule(jobs, one, tries=0).makespan_s == 15
    made = schedule(jobs, one)
    assert made.makespan_s == optimum_s(jobs, one) == 11
    assert [entry.start_s for entry in made.entries] == [0, 0, 1, 2, 2]


def test_the_room_offers_what_schedules_are_made_of():
    offered = [getattr(graph, name) for name in graph.__all__]
    assert offered == [Entry, Job, Resource, Schedule]
    with pytest.raises(AttributeError, match="'autopar.graph' has no attribute 'Nothing'"):
        graph.Nothing  # noqa: B018


@pytest.mark.parametrize("seed", range(10))
def test_schedules_are_close_to_the_optimum(seed):
    chance = random.Random(seed)
    ratios = []
    for i in range(100):
        costs = (0, 1, 1, 4) if i % 10 == 9 else None
        count, density = chance.randint(1, 10), _DENSITIES[i % 5]
        jobs = a_graph(chance, count, density, costs=costs, copies=i % 4 == 0)
        best_s, makespan_s = optimum_s(jobs, _RESOURCES), schedule(jobs, _RESOURCES).makespan_s
        assert makespan_s >= best_s * _NO_LESS
        assert best_s >= limit_s(jobs, _RESOURCES) * _NO_LESS
        ratios.append(makespan_s / best_s if best_s else 1.0)
    print(sorted(ratios)[-6:])
    assert sorted(ratios)[95] <= 1.05


@every_graph
def test_every_job_runs_once_and_after_what_it_comes_after(name):
    made = made_of(name)
    assert made.jobs == tuple(_GRAPHS[name])
    assert sorted(entry.job for entry in made.entries) == list(range(len(made.jobs)))
    assert faults(made) == []
    assert list(made.entries) == sorted(made.entries, key=lambda entry: entry.start_s)
    end_s = {entry.job: entry.end_s for entry in made.entries}
    for entry in made.entries:
        job = made.jobs[entry.job]
        assert entry.end_s == entry.start_s + job.cost_s
        assert entry.start_s >= max((end_s[before] for before in job.after), default=0)
    assert made.makespan_s == max(end_s.values(), default=0)
    work_s = Counter()
    for job in made.jobs:
        work_s[job.resource] += job.cost_s / min(_RESOURCES[job.resource])
    no_less_s = limit_s(made.jobs, _RESOURCES)
    assert no_less_s == pytest.approx(max([*tails(made.jobs), *work_s.values()], default=0))
    assert made.makespan_s >= no_less_s * _NO_LESS


@every_graph
def test_lanes_and_resources_run_no_more_at_once_than_they_may(name):
    made = made_of(name)
    for lane, own in made.lanes.items():
        assert [entry for entry in made.entries if entry.lane == lane] == list(own)
        assert all(one.end_s <= other.start_s for one, other in pairwise(own))
    for resource, (lanes, at_once) in _RESOURCES.items():
        own = [each for each in made.entries if made.jobs[each.job].resource == resource]
        assert {each.lane.partition(" #")[0] for each in own} <= {resource}
        assert len({each.lane for each in own}) <= lanes
        for each in own:
            running = [other for other in own if other.start_s <= each.start_s < other.end_s]
            assert len(running) <= at_once


@every_graph
def test_waits_are_for_jobs_of_other_lanes_and_none_is_needless(name):
    made, lanes = made_of(name), {}
    for entry in made.entries:
        assert all(lanes[wait] != entry.lane for wait in entry.waits)
        assert set(entry.waits) <= set(made.jobs[entry.job].after)
        lanes[entry.job] = entry.lane
    for at, _, left in without_one_wait(made):
        assert faults(with_entry(made, at, waits=left))


@pytest.mark.parametrize("name", ["small 0", "small 3", "medium 1", "medium 4", "large 0", "wide"])
def test_the_job_of_highest_rank_goes_first(name):
    """Without tries, whatever could begin in place of another has no more to come after it."""
    made = schedule(_GRAPHS[name], _RESOURCES, tries=0)
    ranks = tails(made.jobs)
    end_s = {entry.job: entry.end_s for entry in made.entries}
    for i, entry in enumerate(made.entries):
        for other in made.entries[i + 1 :]:
            _, resource, _, after = made.jobs[other.job]
            if resource == made.jobs[entry.job].resource and other.start_s > entry.start_s:
                able_s = max((end_s[before] for before in after), default=0)
                assert able_s > entry.start_s or ranks[entry.job] >= ranks[other.job]


def test_tries_make_schedules_shorter_and_are_the_same_every_time():
    shorter = 0
    for name in (each for each in _GRAPHS if "large" not in each):
        first = schedule(_GRAPHS[name], _RESOURCES, tries=0)
        assert made_of(name).makespan_s <= first.makespan_s
        shorter += made_of(name).makespan_s < first.makespan_s
        assert schedule(_GRAPHS[name], _RESOURCES) == made_of(name)
    assert shorter >= 5


@pytest.mark.parametrize("resource", ["gpu 0", "cpu"])
def test_chains_stay_on_their_lanes_and_wait_for_nothing(resource):
    made = schedule([*a_chain(8, resource), *a_chain(8, resource, 8)], _RESOURCES)
    chains = {frozenset(entry.job for entry in own) for own in made.lanes.values()}
    assert chains == {frozenset(range(8)), frozenset(range(8, 16))}
    assert not any(entry.waits for entry in made.entries)
    assert len(schedule(a_chain(8, resource), _RESOURCES).lanes) == 1


@pytest.mark.parametrize("resource", [_GPU, Resource(2, 2), Resource(2, 5), Resource()])
def test_a_wide_graph_uses_all_lanes(resource):
    """A GPU's streams share it, so they make nothing shorter."""
    jobs = [Job(f"j{i}", "here", 1.0) for i in range(16)]
    made = schedule(jobs, {"here": resource})
    assert [len(own) for own in made.lanes.values()] == [16 // resource.lanes] * resource.lanes
    assert made.makespan_s == limit_s(jobs, {"here": resource}) == 16 / min(resource)


# Runs: each lane's jobs in order, with only the waits to hold them back. They begin and end in
# whatever order is worst: a lane that is starved goes on only when no other can.


def run(made, choose):
    """Jobs that begin too early, and those that never end."""
    left = {lane: deque(own) for lane, own in made.lanes.items()}
    running, ended, wrong = set(), set(), []
    while able := [
        lane
        for lane, own in left.items()
        if own and (lane in running or ended.issuperset(own[0].waits))
    ]:
        lane = choose(able)
        if lane in running:
            running.remove(lane)
            ended.add(left[lane].popleft().job)
        else:
            running.add(lane)
            job = made.jobs[left[lane][0].job]
            wrong += [job.name] * (not ended.issuperset(job.after))
    return wrong + [made.jobs[entry.job].name for own in left.values() for entry in own]


def choices(made, seeds):
    for starved in made.lanes:
        yield lambda able, starved=starved: min(able, key=lambda lane: lane == starved)
        yield lambda able, hurried=starved: max(able, key=lambda lane: lane == hurried)
    yield from (random.Random(seed).choice for seed in range(seeds))


@every_graph
def test_no_speed_of_lanes_makes_a_run_go_wrong(name):
    assert not any(run(made_of(name), choose) for choose in choices(made_of(name), seeds=20))


# Mutants: a schedule with one change, which is a mistake or not. What says so is a list of all
# that has ended before each job; `faults` has only the last job of each lane.


def is_mistaken(made):
    jobs = [entry.job for entry in made.entries]
    if Counter(jobs) != Counter(range(len(made.jobs))):
        return True
    ended, last = {}, {}
    for entry in made.entries:
        near = {*entry.waits, *last.get(entry.lane, ())}
        if not near <= ended.keys():
            return True
        ended[entry.job] = near.union(*(ended[each] for each in near))
        last[entry.lane] = (entry.job,)
    return not all(ended[each].issuperset(made.jobs[each].after) for each in jobs)


def with_entry(made, at, **changes):
    entry = made.entries[at]._replace(**changes)
    return Schedule(made.jobs, (*made.entries[:at], entry, *made.entries[at + 1 :]))


def without_one_wait(made):
    """Each entry's place, one of its waits, and its other waits."""
    for at, entry in enumerate(made.entries):
        for wait in entry.waits:
            yield at, wait, tuple(each for each in entry.waits if each != wait)


def mutants_of(made, chance):
    issued, own_lanes = made.entries, made.lanes.values()
    for at, wait, left in without_one_wait(made):
        yield "dropped wait", with_entry(made, at, waits=left)
        for row in (issued, *own_lanes):  # next to it in the order of issue, or on its lane
            for pair in pairwise(entry.job for entry in row):
                if wait in pair:
                    other = pair[wait == pair[0]]
                    yield "wrong wait", with_entry(made, at, waits=(*left, other))
    for at, entry in enumerate(issued):
        late = chance.choice(issued[at:]).job
        yield "late wait", with_entry(made, at, waits=(*entry.waits, late))
        for lane in made.lanes:
            if lane != entry.lane and lane.partition(" #")[0] == made.jobs[entry.job].resource:
                yield "moved", with_entry(made, at, lane=lane)
        left = (*issued[:at], *issued[at + 1 :])
        yield "missing", Schedule(made.jobs, left)
        place = chance.randrange(len(issued) + 1)
        yield "doubled", Schedule(made.jobs, (*issued[:place], entry, *issued[place:]))
    for one, other in chain.from_iterable(map(pairwise, own_lanes)):
        swapped = {one: other, other: one}
        entries = tuple(swapped.get(entry, entry) for entry in issued)
        yield "swapped", Schedule(made.jobs, entries)


@cache
def mutants():
    """Each mutant and its kind."""
    chance = random.Random(0)
    found = {}
    for i in range(40):
        made = schedule(a_graph(chance, chance.randint(8, 30), _DENSITIES[i % 5]), _RESOURCES)
        assert not is_mistaken(made)
        for kind, mutant in mutants_of(made, chance):
            found.setdefault(mutant, kind)
    return found


def test_just_the_mutants_that_are_mistakes_are_reported():
    wrong = Counter(kind for mutant, kind in mutants().items() if is_mistaken(mutant))
    right = Counter(mutants().values()) - wrong
    print("mistakes:", dict(wrong), "none:", dict(right))
    assert len(wrong) == 7
    assert min(wrong.values()) >= 200
    assert sum(wrong.values()) >= 2000
    # A later job to wait for, on the same lane, a swap, and another lane may do no harm.
    assert {"wrong wait", "swapped", "moved"} == set(right)
    assert min(right.values()) >= 50
    assert not [kind for each, kind in mutants().items() if is_mistaken(each) != bool(faults(each))]


@pytest.mark.parametrize("step", every(2, [25, 3]))
def test_what_goes_wrong_in_a_run_is_reported(step):
    found = 0
    for mutant in list(mutants())[::step]:
        wrong = any(run(mutant, choose) for choose in choices(mutant, seeds=3))
        assert not wrong or faults(mutant)
        found += wrong
    assert found >= 2500 / step


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


def test_a_wait_for_a_job_that_is_not_there_is_a_fault():
    assert faults(Schedule((Job("a", "cpu", 1.0),), (Entry(0, "cpu", (7,), 0, 1),)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_jobs_in_a_circle_are_refused_by_name(size):
    jobs = [Job(f"round {i}", "cpu", 1.0, ((i + 1) % size,)) for i in range(size)]
    with pytest.raises(ValueError, match="in a circle: 'round .*; expected an order") as caught:
        schedule([*jobs, Job("apart", "cpu", 1.0)], _RESOURCES)
    assert all(f"'{job.name}'" in str(caught.value) for job in jobs)
    assert "apart" not in str(caught.value)


@pytest.mark.parametrize(("resource", "number"), [("gpu 7", 0), ("cpu", 2), ("cpu", -1)])
def test_what_is_not_there_is_refused(resource, number):
    message = rf"comes after \(0, {number}\); expected numbers of 2 jobs"
    if resource == "gpu 7":
        message = "is to run on 'gpu 7'; expected one of gpu 0, gpu 1, cpu, copy"
    with pytest.raises(ValueError, match=f"'b' {message}"):
        schedule([Job("a", "cpu", 1.0), Job("b", resource, 1.0, (0, number))], _RESOURCES)


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
    assert str(schedule([], _RESOURCES)).startswith("makespan 0")


@pytest.mark.parametrize("cost_s", [-1.0, float("nan"), float("inf")])
def test_costs_that_are_no_time_are_refused_by_name(cost_s):
    with pytest.raises(ValueError, match="job 'odd' costs .* s; expected seconds"):
        schedule([Job("odd", "cpu", cost_s)], _RESOURCES)


@pytest.mark.parametrize("resource", [Resource(0, 1), Resource(1, 0)])
def test_resources_without_lanes_are_refused_by_name(resource):
    with pytest.raises(ValueError, match="resource 'none' is .*; expected at least one lane"):
        schedule([Job("a", "none", 1.0)], {"none": resource})
