"""A lane: tasks in order, beside those of other lanes, and results once they are there."""

import contextlib
import contextvars
import threading
import weakref

import pytest
import torch
from lane_forms import WAIT_S, caught, fail
from leftovers import threads_of_a_new_thread
from pipeline_ways import comes_true
from torch.utils import _pytree as pytree

from autopar import Lane, TaskGraph, cpu_lane, timeline_of_handles

pytestmark = pytest.mark.usefixtures("forms_run_in_time")

# -- order and waits ------------------------------------------------------------------------------


def test_one_lane_keeps_order(new_lane):
    ran = []
    with new_lane() as lane:
        for i in range(100):
            lane.submit(ran.append, i)
    assert ran == list(range(100))


def test_two_lanes_really_run_at_once():
    barrier = threading.Barrier(2)  # one thread alone never gets past it
    with cpu_lane() as first, cpu_lane() as second:
        met = [lane.submit(barrier.wait, WAIT_S) for lane in (first, second)]
        assert sorted(handle.result() for handle in met) == [0, 1]


def test_submitting_does_not_wait_and_no_result_comes_before_it_is_there(gate):
    arrived = []
    with cpu_lane() as lane:
        handle = lane.submit(gate, 7)
        waiting = threading.Thread(target=lambda: arrived.append(handle.result()))
        waiting.start()
        assert gate.begun.wait(WAIT_S)
        assert not handle.done()
        waiting.join(0.05)
        assert waiting.is_alive()
        assert arrived == []
        gate.open()
        waiting.join(WAIT_S)
        assert arrived == [7]
        assert handle.done()
        assert handle.result() == 7


@pytest.mark.parametrize(
    "given",
    [
        lambda one: ((one,), {}),
        lambda one: ((), {"x": one}),
        lambda one: (([0, (one,)],), {}),
        lambda one: ((), {"x": {"zero": 0, "one": [one]}}),
        lambda one: ((), {"after": iter([one])}),
    ],
    ids=["argument", "keyword", "in a list", "in a dict", "after"],
)
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_task_waits_for_handles_however_they_are_given(gate, given, lanes):
    began = threading.Event()

    def dependent(x=1):
        began.set()
        return pytree.tree_leaves(x)[-1] + 1

    with cpu_lane() as first, cpu_lane() as second:
        one = first.submit(gate, 1)
        args, options = given(one)
        two = (first, second)[lanes - 1].submit(dependent, *args, **options)
        assert gate.begun.wait(WAIT_S)
        assert not began.wait(0.05)
        assert not two.done()
        gate.open()
        assert two.result() == 2
        assert one.span.start_s <= one.span.end_s <= two.span.start_s <= two.span.end_s


def test_containers_without_handles_are_the_callers_own_and_others_as_they_were_given(gate):
    out = []
    with cpu_lane() as lane:
        numbers = [lane.submit(gate, 1), 2]
        filled = lane.submit(lambda out, numbers: out.extend(numbers), out, numbers)
        numbers.append(lane.submit(fail))
        gate.open()
        filled.wait()
        assert isinstance(caught(numbers[-1].wait), ValueError)
    assert out == [1, 2]


def test_waiting_for_a_lane_covers_what_was_submitted(gate, open_soon):
    with cpu_lane() as lane:
        handles = [lane.submit(gate), lane.submit(int)]
        open_soon()
        lane.wait()
        assert all(handle.done() for handle in handles)
        lane.submit(int).result()  # and it takes work again


# -- what they are called -------------------------------------------------------------------------


def test_handles_say_what_they_are():
    with cpu_lane(name="left", kind="host") as lane:
        handles = [lane.submit(int), lane.submit(lambda: 1, name="one")]
        timeline = timeline_of_handles(iter(handles))
    assert isinstance(lane, Lane)
    assert str(handles[1]) == "task 'one' on lane 'left' (cpu)"
    assert [(span.name, span.lane, span.kind) for span in timeline.spans] == [
        ("int", "left", "host"),
        ("one", "left", "host"),
    ]
    assert timeline.alignment_error_s == 0
    assert timeline_of_handles([]).spans == ()
    assert cpu_lane().name != cpu_lane().name


def test_a_timeline_of_handles_may_be_off_by_as_much_as_any_of_them(monkeypatch):
    errors_s = {"exact": 0.0, "rough": 1e-6}
    with cpu_lane() as lane:
        handles = [lane.submit(int, name=name) for name in errors_s]
    told = property(lambda handle: errors_s[handle.name])
    monkeypatch.setattr(type(handles[0]), "alignment_error_s", told)
    assert timeline_of_handles(handles).alignment_error_s == 1e-6


def test_tasks_are_annotated_with_their_names(monkeypatch):
    names = []

    @contextlib.contextmanager
    def noting(name):
        names.append(name)
        yield
        names.append("end")

    monkeypatch.setattr("autopar.lanes.submission.annotate", noting)
    with cpu_lane() as lane:
        lane.submit(names.append, "runs", name="forward")
    assert names == ["forward", "runs", "end"]


# -- what a worker thread has ---------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_of_operators_are_the_lanes_alone_also_of_one_opened_in_a_task(threads):
    def inner():
        with cpu_lane(threads + 2) as lane:
            return lane.submit(torch.get_num_threads).result()

    before = torch.get_num_threads()
    with cpu_lane(threads) as lane, cpu_lane(threads + 1) as other, cpu_lane() as plain:
        assert lane.submit(inner).result() == threads + 2
        numbers = [each.submit(torch.get_num_threads).result() for each in (lane, other, plain)]
        assert numbers == [threads, threads + 1, 1]
        assert torch.get_num_threads() == threads_of_a_new_thread() == before
    assert torch.get_num_threads() == threads_of_a_new_thread() == before


def test_context_variables_hold_in_tasks_and_end_with_them():
    variable = contextvars.ContextVar("variable", default="before")

    def get_and_set():
        found = variable.get()
        variable.set("in a task")
        return found

    with cpu_lane() as lane:
        before = lane.submit(get_and_set)
        token = variable.set("of the caller")
        after, graph = lane.submit(get_and_set), TaskGraph()
        tasks = [graph.add(get_and_set), graph.add(variable.get)]
        found = graph.run()[tasks]
        variable.reset(token)
        assert (before.result(), after.result()) == ("before", "of the caller")
    assert found[0] == "of the caller"
    assert variable.get() == "before"


# -- what a lane keeps ----------------------------------------------------------------------------


def test_results_go_with_their_handles():
    with cpu_lane() as lane:
        handle = lane.submit(torch.zeros, 3)
        dependent = lane.submit(torch.neg, handle)
        results = [weakref.ref(task.result()) for task in (handle, dependent)]
        del handle, dependent
        assert comes_true(lambda: not any(result() is not None for result in results))


# -- misuse ---------------------------------------------------------------------------------------


def test_a_lane_takes_work_inside_one_with_block(new_lane):
    lane = new_lane(name="left")
    with pytest.raises(RuntimeError, match=rf"'left' .* is not open yet.*with {new_lane.__name__}"):
        lane.submit(int)
    with lane:
        with pytest.raises(RuntimeError, match="is open"), lane:
            pass
        assert lane.submit(int).result() == 0  # and it was not closed by that
    with pytest.raises(RuntimeError, match="was left.*Make a new one"):
        lane.submit(int)
    with pytest.raises(RuntimeError, match="was left"), lane:
        pass
