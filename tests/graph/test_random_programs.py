"""Random programs: whichever lane is late, all comes out as in the program, step by step."""

import dataclasses
import random
import time

import pytest
from graph_checks import Case, around_calls, labels, without_a_wait
from graph_programs import CPU, Program
from hypothesis import strategies as st
from random_cases import hold_for_all, shares

from autopar.graph.node import Result


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


# -- that these checks can fail -------------------------------------------------------------------


def without_one(plan):
    """Plans that each lack one wait, and what the lack of it is called."""
    for schedule, wait in without_a_wait(plan.schedule):
        fault = f"does not wait for {plan.nodes[wait].name!r}"
        yield dataclasses.replace(plan, schedule=schedule), fault


def without_a_copy(plan):
    """Plans in each of which one task reads what lies on another device, instead of its copy."""
    source_of = {node.number: node.leaves[0] for node in plan.nodes if node.fn is None}
    for node in plan.nodes:
        for i, leaf in enumerate(node.leaves):
            source = source_of.get(leaf.node) if isinstance(leaf, Result) else None
            if isinstance(source, Result):
                leaves = (*node.leaves[:i], source, *node.leaves[i + 1 :])
                changed = dataclasses.replace(node, leaves=leaves)
                nodes = (*plan.nodes[: node.number], changed, *plan.nodes[node.number + 1 :])
                yield dataclasses.replace(plan, nodes=nodes), "reads a result on"


@pytest.mark.parametrize("broken_plans", [without_one, without_a_copy])
def test_a_dropped_wait_and_a_missed_copy_are_faults_of_the_plan_and_show(broken_plans):
    shows = []
    with labels():
        for number in range(20):
            case = Case(Program(random.Random(number)))
            for plan, fault in broken_plans(case.graph.plan()):
                assert any(fault in sentence for sentence in plan.faults())
                shows.append(any(case.simulate(order, plan) for order in case.orders()))
    assert sum(shows) >= 5, f"in {sum(shows)} of {len(shows)}"  # many may alias, and do not
