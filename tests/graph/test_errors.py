"""Errors and ends: nothing hangs, nothing more is begun, and the error says which task and why."""

import contextlib
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import strategies as st
from interruptions import interrupted_at
from lane_forms import WAIT_S, caught, require_waits_end
from random_cases import hold_for_all, shares

from autopar import TaskGraph
from autopar.graph.execution import Execution
from autopar.lanes.handle import awaited
from autopar.lanes.lane import Lane


class Faulty:
    """Twenty tasks, each named by its number, any of which can be made to fail."""

    def __init__(self, lanes):
        chance = random.Random(0)
        self.error, self.at = None, None
        self.graph, self.tasks, self.before = TaskGraph(cpu_lanes=lanes), [], []
        for number in range(20):
            near = range(max(0, number - 6), number)
            sources = chance.sample(near, min(len(near), chance.randint(0, 2)))
            given = [self.tasks[source] for source in sources]
            options = {"name": f"task {number}", "writes": ()}
            self.tasks.append(self.graph.add(self.work, number, given, **options))
            self.before.append(set(sources).union(*(self.before[source] for source in sources)))
        self.expected = self.graph.run()[self.tasks]

    def work(self, number, given):
        if number == self.at:
            raise self.error
        return sum(given, torch.full((3,), number / 7)).tanh()


@shares
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_failure_anywhere_is_told_and_nothing_hangs(share, lanes, in_time):
    work = Faulty(lanes)
    lane_of = {entry.job: entry.lane for entry in work.graph.plan().schedule.entries}

    def told(at, kind):
        work.at = at
        for run in (work.graph.run, work.graph.run_serial):
            work.error = kind("on purpose")
            with pytest.raises(kind, match="on purpose") as caught:
                in_time(run)
            assert caught.value.__notes__ == [f"in task 'task {at}' on lane '{lane_of[at]}' (cpu)"]
        work.error = kind("once more")
        in_time(lambda: look_at_all(work, at, kind))
        work.at = None
        for run in (work.graph.run, work.graph.run_serial):
            assert all(map(torch.equal, in_time(run)[work.tasks], work.expected))

    kinds = st.sampled_from([ValueError, MemoryError, SystemExit, KeyboardInterrupt])
    hold_for_all(told, st.integers(0, 19), kinds, share=share, examples=20)


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


@pytest.mark.parametrize("lanes", [1, 2])
def test_nothing_is_begun_after_a_failure(in_time, lanes):
    graph, ran = TaskGraph(cpu_lanes=lanes), []
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
        assert gate.begun.wait(WAIT_S)
        opening = threading.Timer(0.02, gate.open)
        opening.start()
        _ = 1 / 0
    opening.join()
    assert (gate.finished, ran) == (True, [])
    with pytest.raises(RuntimeError, match=r"'append'.*was not run.*broken off"):
        run[later]


def test_what_a_task_raised_is_told_where_another_error_ends_the_block():
    def fails():
        raise ValueError("a bad batch")

    def block(graph):
        with graph.start() as run:
            yield run

    for end, error in (("throw", KeyError), ("close", ValueError)):
        graph = TaskGraph(cpu_lanes=1)
        graph.add(fails, name="bad")
        blocks = block(graph)
        next(blocks)._execution.join()
        with pytest.raises(error) as raised:
            getattr(blocks, end)(*[KeyError("body")] * (end == "throw"))
        assert any("task 'bad'" in note for note in raised.value.__notes__)


def test_a_thread_that_does_not_start_ends_the_run(monkeypatch, in_time):
    graph, submit, runs, begun = TaskGraph(cpu_lanes=2), Lane.submit, [], threading.Event()
    one, two = graph.add(begun.set, writes=()), graph.add(torch.ones, 2)
    for _ in range(2):
        graph.add(print, one, two)

    def no_second(lane, fn, *args, **kwargs):
        runs.append(fn)
        if len(runs) == 2:
            assert begun.wait(WAIT_S)
            raise RuntimeError("can't start new thread")
        return submit(lane, fn, *args, **kwargs)

    monkeypatch.setattr(Lane, "submit", no_second)
    with pytest.raises(RuntimeError, match="new thread"):
        in_time(graph.run)


def test_ctrl_c_ends_every_wait_and_nothing_more_is_begun(run_program):
    waits = require_waits_end(run_program("interrupted.py", "graph"))
    assert waits == ["run", "start", "waitall", "result", "run_serial"]


@pytest.mark.parametrize("how", ["run", "start"])
def test_ctrl_c_anywhere_in_a_run_comes_out_and_nobody_waits_for_ever(in_time, how):
    """At every place where Python hears a signal; another thread waits for the same results."""
    graph, ran = TaskGraph(cpu_lanes=2), [1, 2, 3]
    first = graph.add(lambda: (time.sleep(0.002), 1)[1], writes=())
    tasks = [first, graph.add(max, first, 2, writes=()), graph.add(max, first, 3, writes=())]

    def run(known):
        if how == "run":
            return graph.run()[tasks]
        with graph.start() as running:
            known.append(running)
            return running[tasks]

    def ask(known):
        while not known:
            time.sleep(1e-4)
        return known[0] and caught(lambda: known[0][tasks])

    def interrupted(number):
        known, errors = [], []
        with ThreadPoolExecutor(1) as others:
            asking = others.submit(ask, known)
            places = interrupted_at(number, lambda: errors.append(caught(lambda: run(known))))
            known.append(None)
            asking.result(WAIT_S)
        assert graph.run()[tasks] == ran, f"after place {number}"
        came_out = isinstance(errors[0], KeyboardInterrupt)
        assert came_out or number >= places, f"place {number} did not come out"
        return number < places

    with graph:
        graph.run()
        last = in_time(lambda: next(n for n in itertools.count() if not interrupted(n)), 120)
    assert last > 100


@pytest.mark.parametrize("wait", ["waitall", "result"])
def test_who_waits_for_a_run_goes_on_where_ctrl_c_cuts_off_its_end(in_time, monkeypatch, wait):
    graph, waiting, found = TaskGraph(cpu_lanes=1), [], []

    def look():
        waiting.append(threading.get_ident())
        found.append(caught(graph.waitall if wait == "waitall" else lambda: graph._run[later]))

    def fail_once_it_is_waited_for():
        other.start()
        while not waiting or waiting[0] not in awaited:
            time.sleep(1e-3)
        raise ValueError("on purpose")

    def cut_off(execution, number):
        raise KeyboardInterrupt

    graph.add(fail_once_it_is_waited_for)
    later, other = graph.add(int), threading.Thread(target=look)
    monkeypatch.setattr(Execution, "_issue", cut_off)
    with pytest.raises(KeyboardInterrupt):
        in_time(graph.run)
    other.join(WAIT_S)
    assert not other.is_alive()
    assert isinstance(found[0], ValueError if wait == "waitall" else RuntimeError)
