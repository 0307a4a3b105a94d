"""Predictions of a copy pipeline: against a simulation by ticks, and closed forms."""

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prediction import COMPUTE, FROM_HOST, TO_HOST, Prediction

from autopar import newest_record

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
