"""Task graphs that fail, are interrupted, or are refused: nothing hangs, and the error says why."""

import contextlib
import json
import random
import re
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from graph_checks import labels

from autopar import TaskGraph
from autopar.lanes.lane import Lane

pytestmark = pytest.mark.usefixtures("threads_gone")

_WAIT_S = 10


# -- failures -------------------------------------------------------------------------------------


class Faulty:
    """Twenty tasks, each named by its number, any of which can be made to fail."""

    def __init__(self, seed=0):
        chance = random.Random(seed)
        self.error, self.at, self.begun = None, None, []
        self.graph, self.tasks, self.before = TaskGraph(cpu_lanes=3), [], []
        for number in range(20):
            near = range(max(0, number - 6), number)
            sources = chance.sample(near, min(len(near), chance.randint(0, 2)))
            given = [self.tasks[source] for source in sources]
            self.tasks.append(self.graph.add(self.work, number, given, name=f"task {number}"))
            self.before.append(set(sources).union(*(self.before[each] for each in sources)))
        self.expected = self.graph.run()[self.tasks]

    def work(self, number, given):
        self.begun.append(number)
        if number == self.at:
            raise self.error
        return sum(given, torch.full((3,), number / 7)).tanh()


@pytest.mark.parametrize("kind", [ValueError, MemoryError, SystemExit])
@pytest.mark.parametrize("at", range(20))
def test_a_failure_anywhere_is_told_and_nothing_hangs(in_time, at, kind):
    work = Faulty()
    work.error, work.at = kind("on purpose"), at
    with pytest.raises(kind, match="on purpose") as caught:
        in_time(work.graph.run)
    lanes = {entry.job: entry.lane for entry in work.graph.plan().schedule.entries}
    assert caught.value.__notes__ == [f"in task 'task {at}' on lane '{lanes[at]}' (cpu)"]
    work.error = kind("once more")
    in_time(lambda: look_at_all(work, at, kind))
    work.at = None
    assert all(map(torch.equal, in_time(work.graph.run)[work.tasks], work.expected))
    assert all(map(torch.equal, in_time(work.graph.run_serial)[work.tasks], work.expected))


def look_at_all(work, at, kind):
    """What was done before the failure can be had; what was not says why."""
    with work.graph.start() as run:
        with pytest.raises(kind, match="once more"):
            run[work.tasks[at]]
        with contextlib.suppress(RuntimeError):
            run.wait()
        done = set(run.spans)
        assert work.before[at] <= done
        assert not any(at in work.before[number] for number in done)
        for number, task in enumerate(work.tasks):
            if number in done:
                assert torch.equal(run[task], work.expected[number])
            elif number != at:
                why = f"'task {number}' has no result.* because task 'task {at}' failed"
                with pytest.raises(RuntimeError, match=why) as caught:
                    run[task]
                assert caught.value.__cause__ is work.error


def test_nothing_is_begun_after_a_failure(in_time):
    graph, ran = TaskGraph(cpu_lanes=2), []
    fail = graph.add(lambda: 1 / 0, cost_s=1.0)
    other = graph.add(ran.append, 1, cost_s=0.5)
    graph.order(fail, other)
    for number in range(10):
        graph.order(other, graph.add(ran.append, number))
    for run in (graph.run, graph.run_serial):
        with pytest.raises(ZeroDivisionError):
            in_time(run)
    assert ran == []


def test_a_block_left_by_an_exception_begins_nothing_more(gate):
    graph, ran = TaskGraph(cpu_lanes=1), []
    held = graph.add(gate)
    later = graph.add(ran.append, held)
    with pytest.raises(ZeroDivisionError), graph.start() as run:
        assert gate.begun.wait(_WAIT_S)
        opening = threading.Timer(0.02, gate.open)
        opening.start()
        _ = 1 / 0
    opening.join()
    assert (gate.finished, ran) == (True, [])
    with pytest.raises(RuntimeError, match=r"'append'.*was not run.*broken off"):
        run[later]


def test_a_thread_that_does_not_start_ends_the_run(monkeypatch, in_time):
    graph, submit, runs, begun = TaskGraph(cpu_lanes=2), Lane.submit, [], threading.Event()
    one, two = graph.add(begun.set), graph.add(torch.ones, 2)
    for _ in range(2):
        graph.add(print, one, two)

    def no_second(lane, fn, *args):
        runs.append((fn, args))
        if len(runs) == 2:
            assert begun.wait(_WAIT_S)
            raise RuntimeError("can't start new thread")
        return submit(lane, fn, *args)

    monkeypatch.setattr(Lane, "submit", no_second)
    try:
        with pytest.raises(RuntimeError, match="new thread"):
            in_time(graph.run, timeout_s=2)
    except AssertionError:
        work, args = runs[1]
        work.__self__.stop()
        work(*args)  # does nothing, and lets the others go
        time.sleep(0.1)
        raise


def test_ctrl_c_ends_every_wait_and_nothing_more_is_begun(run_program):
    done = run_program("graph_interrupted.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for how in ("run", "start", "waitall", "result", "run_serial"):
        assert found[how]["s"] is not None, f"{how}: the wait ended before it was interrupted"
        assert found[how]["s"] < 0.5, how
        assert found[how]["later"] == 0, f"{how}: tasks were begun afterwards"
    assert found["threads"] == 0
    assert found["equal"]


# -- refusals -------------------------------------------------------------------------------------


@pytest.fixture
def made():
    """A graph of two tasks that note that they ran, a tensor of it, and a task of another graph."""
    graph, ran = TaskGraph(cpu_lanes=2), []
    x = torch.ones(2)
    first = graph.add(ran.append, 1, name="first")
    graph.add(torch.add, x, 1, name="sum")
    elsewhere = TaskGraph().add(torch.ones, 2, name="elsewhere")
    yield SimpleNamespace(graph=graph, first=first, x=x, elsewhere=elsewhere)
    assert ran == []


REFUSED = {
    "no function": (TypeError, r"fn is tensor.*add\(fn, x\)", lambda m, add: m.graph.add(m.x)),
    "other's": (ValueError, "'elsewhere'.*'new'.*another", lambda m, add: add(m.elsewhere)),
    "other's inside": (ValueError, "'new'.*another", lambda m, add: add({"a": [m.elsewhere]})),
    "writes other's": (
        ValueError,
        "'elsewhere'.*'new'.*another",
        lambda m, add: add(m.x, writes=[m.elsewhere]),
    ),
    "writes no argument": (
        ValueError,
        "'new'.*expected one of its arguments",
        lambda m, add: add(m.x, writes=[m.first]),
    ),
    "writes a number": (TypeError, "'new' holds 3; expected", lambda m, add: add(3, writes=[3])),
    "orders other's": (
        ValueError,
        "'elsewhere'.*another",
        lambda m, add: m.graph.order(m.first, m.elsewhere),
    ),
    "cost": (ValueError, "cost_s of task 'new' is -1", lambda m, add: add(m.x, cost_s=-1)),
    "no cost": (ValueError, "'new' is nan", lambda m, add: add(m.x, cost_s=float("nan"))),
    "endless": (ValueError, "'new' is inf", lambda m, add: add(m.x, cost_s=float("inf"))),
    "lanes": (ValueError, "cpu_lanes is 0", lambda m, add: TaskGraph(cpu_lanes=0)),
    "half lanes": (ValueError, "cpu_lanes is 1.5", lambda m, add: TaskGraph(cpu_lanes=1.5)),
    "streams": (ValueError, "streams is -1", lambda m, add: TaskGraph(streams=-1)),
    "repeats": (ValueError, "repeats is 0", lambda m, add: m.graph.measure(0)),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_cannot_be_run_is_refused_before_anything_runs(made, refused):
    kind, match, ask = REFUSED[refused]
    before = made.graph.plan()
    with pytest.raises(kind, match=match):
        ask(made, lambda *args, **options: made.graph.add(print, *args, name="new", **options))
    assert made.graph.plan() is before


@pytest.mark.parametrize("device", ["cuda:99", 99, "meta", "nowhere"])
def test_a_device_that_is_not_there_is_refused_with_the_tasks_name(made, device):
    with pytest.raises(ValueError, match="device is") as caught:
        made.graph.add(torch.neg, made.x, device=device, name="new")
    assert caught.value.__notes__ == ["in task 'new'"]


def test_what_lies_elsewhere_is_not_written():
    with labels():
        graph, x = TaskGraph(), torch.ones(2)
        there = graph.add(torch.neg, x, device="cuda:0")
        for value, device in ((x, "cuda:0"), (there, "cpu"), (there, "cuda:1")):
            with pytest.raises(ValueError, match="task 'add_' on .* is to write to .*lost"):
                graph.add(torch.Tensor.add_, value, 1, writes=[value], device=device)


@pytest.mark.parametrize("run", ["run", "run_serial", "measure", "plan"])
def test_a_circle_is_refused_and_named(made, run):
    then = made.graph.add(print, made.first, name="then")
    made.graph.order(then, made.first)
    with pytest.raises(ValueError, match=r"circle: .*'first' -> 'then'|'then' -> 'first'"):
        getattr(made.graph, run)()
    with pytest.raises(ValueError, match="circle"), made.graph.start():
        pass


_SERIAL = ["run_serial", "measure"]


@pytest.mark.parametrize("second", ["start", "run", *_SERIAL])
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
        gate.open()
    opening.join()
    graph.run()


def test_lanes_are_kept_open_by_one_block_and_closed_after_it(made):
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


def test_what_is_no_task_of_the_run_is_refused(made):
    graph = TaskGraph()
    task = graph.add(torch.ones, 2)
    run = graph.run()
    later = graph.add(torch.neg, task)
    for wrong in (later, made.first, [later]):
        with pytest.raises(KeyError, match="no task"):
            run[wrong]
    for hidden in ({task}, [frozenset([task])]):
        with pytest.raises(KeyError, match="'ones'.* lies in a container of another kind"):
            run[hidden]
    for leaf in ("ones", 0, None, torch.ones(2)):
        with pytest.raises(KeyError, match="is no task; expected what graph.add returned"):
            run[leaf]
    assert run[3, None, {"a": task}][:2] == (3, None)


def test_a_run_says_how_it_stands(gate):
    graph = TaskGraph(cpu_lanes=1)
    graph.add(gate)
    with graph.start() as run:
        assert repr(run) == "<Run: 1 tasks and copies, under way>"
        gate.open()
    assert re.fullmatch(r"<Run: 1 tasks and copies, done in .* .?s>", repr(run))
    graph.add(lambda: 1 / 0, name="odd")
    with contextlib.suppress(ZeroDivisionError), graph.start() as run:
        pass
    assert repr(run) == "<Run: 2 tasks and copies, failed in task 'odd'>"
