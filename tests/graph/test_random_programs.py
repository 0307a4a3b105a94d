"""Random programs: whichever lane is late, all comes out as in the program, step by step."""

import dataclasses
import random
import time

import pytest
import torch
from graph_checks import Case, around_calls, labels, rushing, simulated
from graph_programs import CPU, Program
from hypothesis import strategies as st
from random_cases import hold_for_all, shares

from autopar import TaskGraph
from autopar.graph.node import Result

pytestmark = pytest.mark.usefixtures("threads_gone")


@st.composite
def programs(draw, **options):
    """Whatever goes wrong is shown with as few steps as show it."""
    return Program(draw(st.randoms(use_true_random=False)), **options)


@shares
@pytest.mark.parametrize("copies_written", [False, True])
def test_whichever_lane_is_late_the_bits_are_those_of_the_program(share, copies_written):
    """On labels of two GPUs and the CPU, by an adversary who chooses who goes on."""

    def right(program):
        case = Case(program)
        assert case.graph.plan().faults() == []
        for order in case.orders():
            assert case.simulate(order) == []

    with labels():
        hold_for_all(right, programs(copies_written=copies_written), share=share, examples=60)


@shares
def test_cpu_lanes_give_what_the_program_gives_and_its_twin_too(share):
    chance = random.Random(share)

    def late(node):
        if chance.random() < 0.3:
            time.sleep(chance.uniform(0, 5e-4))

    def right(program):
        case = Case(program)
        for run in (case.graph.run, case.graph.run_serial, case.graph.run):
            case.reset()
            assert case.wrong(run().__getitem__) == []

    with around_calls(late):
        hold_for_all(right, programs(devices=CPU), share=share, examples=30)


def test_a_written_copy_is_not_read_in_place_of_its_source():
    with labels():
        graph = TaskGraph()
        x = graph.add(torch.ones, 2)
        there = graph.add(lambda value: value, x, device="cuda:1")
        graph.add(torch.Tensor.add_, there, 1, writes=[there])
        again = graph.add(torch.mul, x, 1, device="cuda:1")
        results = simulated(graph.plan(), min)
        assert torch.equal(results[again.number], torch.ones(2))


# -- that these checks can fail -------------------------------------------------------------------


def with_a_wait_dropped(plan):
    """Plans that each lack one wait, with the job that does not wait, and for which."""
    schedule = plan.schedule
    for place, entry in enumerate(schedule.entries):
        for wait in entry.waits:
            waits = tuple(other for other in entry.waits if other != wait)
            entries = list(schedule.entries)
            entries[place] = entry._replace(waits=waits)
            changed = dataclasses.replace(schedule, entries=tuple(entries))
            yield dataclasses.replace(plan, schedule=changed), entry.job, wait


def with_a_copy_missed(plan):
    """Plans in each of which one task reads what lies on another device, instead of its copy."""
    source_of = {node.number: node.leaves[0] for node in plan.nodes if node.fn is None}
    for node in plan.nodes:
        for i, leaf in enumerate(node.leaves):
            source = source_of.get(leaf.node) if isinstance(leaf, Result) else None
            if isinstance(source, Result):
                leaves = (*node.leaves[:i], source, *node.leaves[i + 1 :])
                changed = dataclasses.replace(node, leaves=leaves)
                nodes = (*plan.nodes[: node.number], changed, *plan.nodes[node.number + 1 :])
                yield dataclasses.replace(plan, nodes=nodes)


def test_a_dropped_wait_and_a_missed_copy_are_faults_of_the_plan_and_show():
    by_data, by_memory, by_copies = [], [], []
    with labels():
        for number in range(25):
            case = Case(Program(random.Random(number)))
            plan = case.graph.plan()
            for broken, job, wait in with_a_wait_dropped(plan):
                name = plan.nodes[wait].name
                assert any(f"does not wait for {name!r}" in fault for fault in broken.faults())
                kind = by_data if Result(wait) in plan.nodes[job].leaves else by_memory
                kind.append(bool(case.simulate(rushing(broken, job), broken)))
            for broken in with_a_copy_missed(plan):
                assert any("reads a result on" in fault for fault in broken.faults())
                by_copies.append(any(case.simulate(order, broken) for order in case.orders()))
    assert len(by_data) + len(by_memory) > 150
    assert sum(by_data) > 0.9 * len(by_data)  # some take an argument and do nothing with it
    assert sum(by_memory) > 0.3 * len(by_memory)  # many results may alias, and don't
    assert sum(by_copies) >= 5
