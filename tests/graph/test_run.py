"""What a run does at once, what it returns and tells, and the plan that it follows."""

import contextlib
import itertools
import re
import threading
import time

import pytest
import torch

from autopar import Run, TaskGraph, cpu_lane

_WAIT_S = 10
both_ways = pytest.mark.parametrize("run", ["run", "run_serial"])


# -- what is at once ------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [2, 4])
def test_independent_tasks_run_at_once(lanes):
    meeting = threading.Barrier(lanes)
    graph = TaskGraph(cpu_lanes=lanes)
    tasks = [graph.add(meeting.wait, _WAIT_S, writes=()) for _ in range(lanes)]
    run = graph.run()
    assert sorted(run[tasks]) == list(range(lanes))
    assert len(run.timeline.lanes) == lanes


def test_one_result_can_be_had_while_others_run(gate):
    graph = TaskGraph(cpu_lanes=2)
    held = graph.add(gate, 7, writes=())
    free = graph.add(torch.ones, 2)
    graph.waitall()  # nothing runs yet
    with graph.start() as run:
        assert repr(run) == "<Run: 2 tasks and 0 copies, under way>"
        assert run[free].tolist() == [1, 1]
        assert gate.begun.wait(_WAIT_S)
        assert not gate.finished
        gate.open()
        graph.waitall()
        assert gate.finished
        assert run[{"a": [held]}] == {"a": [7]}
    assert run[held] == 7


def test_a_run_that_is_started_is_asked_in_its_block_and_has_no_other():
    graph = TaskGraph()
    task = graph.add(torch.ones, 2)
    run = graph.start()
    for ask in (lambda: run[task], lambda: run.wait(), lambda: run.timeline):
        with pytest.raises((TypeError, AttributeError), match=r"with graph.start\(\) as run"):
            ask()
    with run:
        pass
    with pytest.raises(RuntimeError, match="started before; expected one block for each"), run:
        pass


@pytest.mark.parametrize("second", ["start", "run", "run_serial", "measure"])
def test_a_graph_that_runs_is_not_run_again_meanwhile(gate, second):
    graph = TaskGraph(cpu_lanes=2)
    graph.add(gate)
    opening = threading.Timer(0.5, gate.open)  # in case that it is let in
    opening.start()
    with graph.start():
        assert gate.begun.wait(_WAIT_S)
        with pytest.raises(RuntimeError, match=r"is running.*waitall"):
            if second == "start":
                graph.start().__enter__()
            getattr(graph, second)()
        opening.cancel()
        gate.open()
    opening.join()
    graph.run()


def test_lanes_are_kept_open_by_one_block_and_closed_after_it():
    graph = TaskGraph(cpu_lanes=2)
    task = graph.add(threading.get_ident)
    before = threading.active_count()
    with graph:
        threads = {graph.run()[task] for _ in range(3)}
        assert threading.active_count() > before
        with pytest.raises(RuntimeError, match="open already"), graph:
            pass
        assert {graph.run()[task]} == threads
    assert len(threads) == 1
    assert threading.active_count() == before
    with graph:
        graph.run()


# -- what a run returns and tells -----------------------------------------------------------------


def test_what_is_no_task_of_the_run_is_refused():
    graph = TaskGraph()
    task = graph.add(torch.ones, 2)
    run = graph.run()
    later, elsewhere = graph.add(torch.neg, task), TaskGraph().add(torch.ones, 2)
    for wrong in (later, elsewhere, [later]):
        with pytest.raises(KeyError, match="no task"):
            run[wrong]
    for hidden in ({task}, [frozenset([task])]):
        with pytest.raises(KeyError, match="'ones'.* lies in a container of another kind"):
            run[hidden]
    with pytest.raises(TypeError, match="not iterable"):  # as other libraries ask what they get
        iter(task)
    for leaf in ("ones", 0, None, torch.ones(2)):
        with pytest.raises(KeyError, match="expected a task, as graph.add returns it"):
            run[leaf]
    assert run[3, None, {"a": task}][:2] == (3, None)


def test_a_run_says_how_it_stands():
    graph = TaskGraph(cpu_lanes=1)
    graph.add(torch.ones, 2)
    assert re.fullmatch(r"<Run: 1 task and 0 copies, done in .* .?s>", repr(graph.run()))
    graph.add(lambda: 1 / 0, name="odd")
    with contextlib.suppress(ZeroDivisionError), graph.start() as run:
        pass
    assert repr(run) == "<Run: 2 tasks and 0 copies, failed in task 'odd'>"


@both_ways
def test_times_are_told(run):
    graph = TaskGraph(cpu_lanes=2)
    tasks = [graph.add(time.sleep, 2e-3, name=f"nap {n}") for n in range(6)]
    graph.order(tasks[0], tasks[5])
    done = getattr(graph, run)()
    assert sorted(span.name for span in done.timeline.spans) == [f"nap {n}" for n in range(6)]
    assert set(done.cost_s) == {task.number for task in tasks}
    assert all(cost_s >= 2e-3 for cost_s in done.cost_s.values())
    assert done.wall_s >= done.timeline.makespan_s >= 2 * 2e-3
    assert done.limit_s >= 3 * 2e-3  # nothing was known: by its own times, on two lanes
    assert done.spans[tasks[0].number].end_s <= done.spans[tasks[5].number].start_s


@both_ways
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_autograd_is_as_the_caller_has_it(run, mode):
    w = torch.ones(2, requires_grad=True)
    graph = TaskGraph(cpu_lanes=2)
    loss = graph.add(torch.sum, graph.add(torch.mul, w, 3))
    for now in (mode, torch.enable_grad):  # one run leaves nothing behind for the next
        with now():
            result = getattr(graph, run)()[loss]
        assert result.requires_grad == (now is torch.enable_grad)
        assert result.is_inference() == (now is torch.inference_mode)
    (gradient,) = torch.autograd.grad(result, w)
    assert gradient.tolist() == [3, 3]


@pytest.mark.parametrize("run", ["run", "run_serial", "check"])
def test_autocast_is_as_the_caller_has_it(run):
    graph = TaskGraph(cpu_lanes=2)
    dtypes = []
    graph.add(lambda x: dtypes.append(torch.mm(x, x).dtype), torch.ones(2, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        getattr(graph, run)()
    graph.run()
    assert dtypes == [torch.bfloat16, torch.float32]


# -- the plan -------------------------------------------------------------------------------------


def test_a_plan_is_kept_until_something_changes():
    graph = TaskGraph(cpu_lanes=2)
    one, two = graph.add(torch.ones, 2), graph.add(torch.zeros, 2)
    plan = graph.plan()
    assert (graph.run().plan, graph.run_serial().plan, graph.plan()) == (plan,) * 3
    graph.order(one, two)
    ordered = graph.plan()
    graph.measure(1)
    measured = graph.plan()
    graph.add(torch.neg, two)
    assert len({id(plan) for plan in (plan, ordered, measured, graph.plan())}) == 4


def test_measured_costs_steer_the_plan():
    graph = TaskGraph(cpu_lanes=2)
    short = [graph.add(time.sleep, 1e-3, writes=()) for _ in range(4)]
    long = graph.add(time.sleep, 20e-3, writes=())
    first = [entry.job for entry in graph.plan().schedule.entries[:2]]
    assert first == [task.number for task in short[:2]]
    graph.measure(2)
    assert graph.plan().schedule.entries[0].job == long.number
    assert 20e-3 <= graph.plan().makespan_s < 1
    assert graph.plan().limit_s <= graph.plan().makespan_s


def test_of_runs_beside_each_other_the_first_is_not_counted(monkeypatch):
    """Twins: one after another all count, as one has warmed them up."""
    for alone, count in ((False, 2), (True, 1)):
        costs_s = itertools.count(1)
        monkeypatch.setattr(Run, "cost_s", property(lambda _, to=costs_s: {0: next(to)}))
        graph = TaskGraph(cpu_lanes=1)
        graph.add(torch.ones, 2)
        graph.measure(1, alone=alone)
        assert graph.plan().makespan_s == count


def test_a_plan_of_guessed_costs_says_so():
    graph = TaskGraph(cpu_lanes=2)
    graph.add(torch.ones, 2, cost_s=1e-3)
    told = {repr: "<Plan: 1 task and 0 copies on 1 lane, 1.000 ms", str: "makespan 1.000 ms"}
    for text_of, wanted in told.items():
        assert wanted in text_of(graph.plan())
        assert "guessed" not in text_of(graph.plan())
    graph.add(torch.ones, 2)
    for text_of in told:
        assert "some costs are guessed: take them by graph.measure()" in text_of(graph.plan())
    graph.measure(1)
    assert not any("guessed" in text_of(graph.plan()) for text_of in told)


def test_a_plan_tells_which_tasks_keep_the_order_of_the_program():
    graph = TaskGraph()
    graph.add(torch.neg, torch.ones(1))
    graph.add(torch.relu, torch.ones(1))
    assert "order of the program" not in str(graph.plan())
    graph.add(print, name="prints")
    assert str(graph.plan()).endswith("as nothing says what they change: 'prints'")
    for _ in range(5):
        graph.add(print)
    assert str(graph.plan()).endswith("'prints', 'print', 'print', 'print', 'print', ...")


def test_in_another_process_open_lanes_are_refused_and_where_they_are_it_goes_on(monkeypatch):
    graph = TaskGraph(cpu_lanes=2)
    one, two = graph.add(torch.ones, 2), graph.add(torch.zeros, 2)
    total = graph.add(torch.add, one, two)
    with graph:
        graph.run()
        with monkeypatch.context() as child:
            child.setattr("os.getpid", lambda: -1)
            with pytest.raises(RuntimeError, match="lane .* is open in another process"):
                graph.run()
        assert graph.run()[total].tolist() == [1, 1]


def test_what_objects_show_has_a_text_of_its_own():
    """Names of public objects: each has a docstring, or is told of in that of its class."""
    with cpu_lane() as lane:
        graph = TaskGraph()
        task = graph.add(int)
        shown = [graph, task, graph.plan(), graph.run(), graph.start(), lane, lane.submit(int)]
    for each in shown:
        kind = type(each)
        told = "".join(base.__doc__ or "" for base in kind.__mro__)
        for name in (name for name in dir(each) if not name.startswith("_")):
            own = getattr(kind, name, None)
            is_told = isinstance(own, property) or callable(own)
            assert own.__doc__ if is_told else f" {name}: " in told, f"{kind.__name__}.{name}"
