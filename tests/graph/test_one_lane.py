"""What one CPU lane does is done by who calls `run`; and which graphs have one."""

import itertools
import threading
import time
from types import SimpleNamespace

import pytest
import torch

import autopar as ap
from autopar.graph.graph_lanes import LaneCounts, fastest

RUNS = ["run", "run_serial"]


def graph_of(*fns, **how):
    graph = ap.TaskGraph(**{"cpu_lanes": 1, **how})
    return graph, [graph.add(fn) for fn in fns]


def test_the_calling_thread_does_it_and_started_runs_have_a_thread_of_their_own():
    graph, (task,) = graph_of(threading.get_ident)
    for run in RUNS:
        assert getattr(graph, run)()[task] == threading.get_ident()
    with graph.start() as run:
        assert run[task] != threading.get_ident()


@pytest.mark.parametrize("run", RUNS)
def test_other_threads_wait_for_it(run, in_time):
    begun, ended = threading.Event(), []

    def task():
        begun.set()
        waiting.join(0.05)  # it waits for all that time
        ended.append("task")

    def wait():
        begun.wait(10)
        graph.waitall()
        ended.append("waiting")

    graph, _ = graph_of(task)
    waiting = threading.Thread(target=wait)
    waiting.start()
    getattr(graph, run)()
    in_time(waiting.join)
    assert ended == ["task", "waiting"]


@pytest.mark.parametrize("run", RUNS)
def test_a_task_that_waits_for_its_own_run_is_refused(run, in_time):
    graph, _ = graph_of(lambda: graph.waitall())
    with pytest.raises(RuntimeError, match="awaited by a task of its own lane"):
        in_time(getattr(graph, run))


def raise_(error):
    raise error


def test_traced_code_has_one_lane_until_it_is_measured_and_as_many_as_are_given():
    branches = [torch.ones(3), torch.zeros(3)]
    graph, _ = ap.TaskGraph.trace(lambda: [x.exp().log() for x in branches])
    assert len(graph.plan().schedule.lanes) == 1
    graph = ap.TaskGraph(cpu_lanes=2)
    graph.add_traced(lambda: [x.exp().log() for x in branches])
    assert len(graph.plan().schedule.lanes) == 2


MAY_GAIN = {  # how many tasks are in a chain and beside it, costs that are known, and lanes
    "a chain": (8, 0, [], 1),
    "nearly a chain": (9, 2, [], 1),
    "beside others": (8, 8, [], 2),
    "one cost is known": (0, 8, [1.0], 2),
    "all take no time": (0, 8, [0.0] * 8, 2),
}


@pytest.mark.parametrize("kind", MAY_GAIN)
def test_before_it_is_measured_a_graph_has_several_lanes_where_they_may_gain(monkeypatch, kind):
    chain, beside, costs_s, lanes = MAY_GAIN[kind]
    monkeypatch.setattr("autopar.graph.graph_lanes.os.cpu_count", lambda: 2)
    graph, last = ap.TaskGraph(), torch.ones(3)
    for _ in range(chain):
        last = graph.add(torch.exp, last)
    for _, cost_s in itertools.zip_longest(range(beside), costs_s):
        graph.add(torch.exp, torch.ones(3), cost_s=cost_s)
    assert graph.plan().cpu_lanes == lanes


GAIN = {  # seconds foreseen of four, taken by one here, by one there and by four, and lanes
    "several are faster": (1.0, 4.0, 4.0, 1.0, 4),
    "no more than chance": (1.0, 4.0, 4.0, 3.9, 1),
    "one is faster": (1.0, 4.0, 4.0, 6.0, 1),
    "by the plan they can't gain": (3.9, 4.0, 4.0, 1.0, 1),
    "the calling thread's core was slow": (1.0, 4.0, 1.0, 1.0, 1),
    "the lane's core was slow": (1.0, 1.0, 4.0, 1.0, 1),
}


@pytest.mark.parametrize("kind", GAIN)
def test_several_lanes_must_gain_as_foreseen_and_whatever_core_a_thread_is_on(kind):
    foreseen_s, here_s, there_s, four_s, lanes = GAIN[kind]
    few = SimpleNamespace(makespan_s=4.0, _is_for_one_thread=True)
    many = SimpleNamespace(_least_s=foreseen_s)
    plans = {LaneCounts(1): few, LaneCounts(4): many}
    few_s = {True: here_s, False: there_s}
    best = fastest(plans, 3, lambda plan, here: few_s[here] if plan is few else four_s)
    assert best.cpu_lanes == lanes


@pytest.mark.parametrize(
    ("cost_s", "chain", "lanes"),
    [(None, False, 4), (1.0, False, 4), (1.0, True, 1)],
    ids=["measured", "given", "a chain"],
)
def test_plans_have_the_lanes_with_which_runs_were_faster(monkeypatch, cost_s, chain, lanes):
    monkeypatch.setattr("autopar.graph.graph_lanes.os.cpu_count", lambda: 4)
    monkeypatch.setattr(ap.Run, "wall_s", property(lambda run: 1 / run.plan.cpu_lanes))
    graph, last = ap.TaskGraph(), None
    for _ in range(4):
        task = graph.add(lambda _: time.sleep(5e-3), last, cost_s=cost_s, writes=())
        last = task if chain else None
    graph.measure()
    assert graph.plan().cpu_lanes == lanes


def test_measuring_leaves_no_threads_beside_which_those_of_one_lane_would_sleep_sooner():
    graph = ap.TaskGraph()
    for _ in range(4):
        graph.add(time.sleep, 1e-3, writes=())
    with graph:
        before = threading.active_count()
        graph.run()
        graph.measure()
        assert threading.active_count() == before


def test_after_ctrl_c_in_measuring_runs_have_lanes_that_are_open():
    graph, tasks = graph_of(*[threading.get_ident] * 4, cpu_lanes=2)
    with graph:
        graph.run()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            close = graph._lanes._kept.close
            patch.setattr(graph._lanes._kept, "close", lambda: close() or raise_(KeyboardInterrupt))
            graph.measure()
        assert graph.run()[tasks]


def test_a_slow_time_of_the_machine_meets_all_numbers_of_lanes_alike(monkeypatch):
    """As the first runs are slow, those that were all measured first would seem to be slower."""
    monkeypatch.setattr("autopar.graph.graph_lanes.os.cpu_count", lambda: 4)
    walls_s = itertools.chain([9.0] * 6, itertools.repeat(1.0))
    monkeypatch.setattr(ap.Run, "wall_s", property(lambda run: next(walls_s)))
    graph = ap.TaskGraph()
    for _ in range(4):
        graph.add(torch.neg, torch.ones(1))
    graph.measure()
    assert len(graph.plan().schedule.lanes) == 1


def test_an_error_that_another_thread_has_seen_is_raised_in_the_run(in_time):
    graph = ap.TaskGraph(cpu_lanes=2)
    graph.add(raise_, ValueError("once"))

    def wait():
        with pytest.raises(ValueError, match="once"):
            graph.waitall()

    def run():
        with graph.start():
            waiting = threading.Thread(target=wait)
            waiting.start()
            waiting.join()

    with pytest.raises(ValueError, match="once"):
        in_time(run)
