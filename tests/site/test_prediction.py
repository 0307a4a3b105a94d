"""Predictions of a copy pipeline: against a simulation by ticks, a graph's limit, closed forms."""

from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prediction import COMPUTE, FROM_HOST, TO_HOST, Prediction

from autopar import newest_record
from autopar.graph.schedule import Entry, Job, Resource, Schedule, faults, limit_s

COUNTS = st.integers(1, 7)
TIMES = st.integers(1, 5)  # ticks: sums of whole numbers are exact
COPIES = st.integers(0, 5)
SETTINGS = st.builds(Prediction, COUNTS, TIMES, COPIES, COPIES, COUNTS, st.integers(1, 3))
many = settings(max_examples=100, deadline=None, derandomize=True)


def stages_of(one):
    seconds = {FROM_HOST: one.from_host_s, COMPUTE: one.compute_s, TO_HOST: one.to_host_s}
    return {lane: stage_s for lane, stage_s in seconds.items() if stage_s}


def by_ticks(one):
    """Start of each stage, found by trying at each tick which of the streams' heads can begin."""
    stages = [*stages_of(one)]
    stream = {1: "AAA", 2: "BAB", 3: "BAC"}[one.streams]
    queues = {name: [] for name in stream}
    # Chunk i is begun behind what chunk i - slots ends with.
    place = {lane: number for number, lane in enumerate(stages)}
    for chunk in range(one.chunks):
        for lane in stages:
            begun = (chunk - one.slots, len(stages)) if place[lane] == 0 else (chunk, place[lane])
            name = stream[[FROM_HOST, COMPUTE, TO_HOST].index(lane)]
            queues[name].append((begun, chunk, lane))
    queues = {name: deque(sorted(queue)) for name, queue in queues.items()}
    running, ended, begun, tick = {}, set(), {}, 0
    while any(queues.values()) or running:
        ended |= {one for one, end in running.items() if end <= tick}
        running = {one: end for one, end in running.items() if end > tick}
        for name, queue in queues.items():
            busy = any(by == name for *_, by in running)
            if not busy and queue:
                _, chunk, lane = queue[0]
                done = {(chunk, lane) for chunk, lane, _ in ended}
                before = stages[: place[lane]]
                under_way = {chunk for chunk, _ in begun} - {
                    chunk for chunk in range(one.chunks) if (chunk, stages[-1]) in done
                }
                free = place[lane] > 0 or len(under_way) < one.slots
                if free and all((chunk, each) in done for each in before):
                    queue.popleft()
                    begun[chunk, lane] = tick
                    running[chunk, lane, name] = tick + stages_of(one)[lane]
        tick += 1
    return begun


def starts_of(one):
    return {(int(span.name.split()[1]), span.lane): span.start_s for span in one.timeline.spans}


@many
@given(SETTINGS)
def test_stages_begin_when_a_simulation_by_ticks_begins_them(one):
    assert starts_of(one) == by_ticks(one)


@many
@given(SETTINGS)
def test_no_stage_overtakes_what_it_depends_on_and_no_slot_is_shared(one):
    stages = [*stages_of(one)]
    numbers = {key: i for i, key in enumerate((c, s) for c in range(one.chunks) for s in stages)}
    jobs = []
    for chunk, lane in numbers:
        place = stages.index(lane)
        after = [numbers[chunk, stages[place - 1]]] if place else []
        if not place and chunk >= one.slots:
            after.append(numbers[chunk - one.slots, stages[-1]])
        jobs.append(Job("", lane, stages_of(one)[lane], tuple(after)))
    starts, timeline = starts_of(one), one.timeline
    for (chunk, lane), number in numbers.items():
        for before in jobs[number].after:
            other = next(key for key, value in numbers.items() if value == before)
            assert starts[chunk, lane] >= starts[other] + jobs[before].cost_s
    ordered = sorted(numbers, key=lambda key: (starts[key], stages.index(key[1])))
    entries = [
        Entry(numbers[key], key[1], jobs[numbers[key]].after, starts[key], 0) for key in ordered
    ]
    assert faults(Schedule(tuple(jobs), tuple(entries))) == []
    assert timeline.makespan_s >= limit_s(jobs, {lane: Resource() for lane in stages})
    assert timeline.makespan_s >= one.limit_s >= max(timeline.busy_s(lane) for lane in stages)
    assert Counter(span.lane for span in timeline.spans) == dict.fromkeys(stages, one.chunks)


def makespan_s(one, slots, streams):
    return replace(one, slots=slots, streams=streams).timeline.makespan_s


@many
@given(SETTINGS)
def test_one_stream_or_slot_takes_the_sum_and_three_of_each_the_limit(one):
    times = (one.from_host_s, one.compute_s, one.to_host_s)
    all_s = [one.chunks * stage_s for stage_s in times]
    for count in (1, 2, 3, one.chunks):
        assert makespan_s(one, count, 1) == sum(all_s)
        assert makespan_s(one, 1, min(count, 3)) == sum(all_s)
    closed_s = sum(all_s) / one.chunks + (one.chunks - 1) / one.chunks * max(all_s)
    assert one.limit_s == pytest.approx(closed_s)
    for slots in (3, 4, one.chunks + 3):
        assert makespan_s(one, slots, 3) == one.limit_s
        if not (one.from_host_s and one.to_host_s):
            assert makespan_s(one, slots - 1, 2) == one.limit_s


@many
@given(SETTINGS)
def test_more_slots_or_streams_are_never_slower(one):
    rows = [[makespan_s(one, slots, streams) for slots in range(1, 9)] for streams in (1, 2, 3)]
    for line in (*rows, *zip(*rows, strict=True)):
        assert [*line] == sorted(line, reverse=True)


def test_the_limit_is_the_records_and_its_timeline_is_met():
    record = newest_record("e3_compute_and_copy")
    count = record.parameters["count"]
    compute_s, copy_s = (record.measurements[part].min_s / count for part in ("products", "copies"))
    for streams, way in ((1, "one stream"), (2, "two streams")):
        one = Prediction(count, compute_s, to_host_s=copy_s, slots=count, streams=streams)
        assert one.limit_s == pytest.approx(record.limit_s(["products", "copies"], pieces=count))
        seen = record.timelines[way]
        assert one.timeline.makespan_s == pytest.approx(seen.makespan_s, rel=0.05)
        assert one.timeline.hidden() == pytest.approx(seen.hidden(), abs=0.05)
