"""Lanes on the CPU: order, waits, errors and leaving, proven with gates and barriers."""

import contextlib
import json
import threading
import time
import weakref
from concurrent.futures import CancelledError

import pytest
import torch
from lane_forms import WAIT_S, fail, require_waits_end
from leftovers import threads_of_a_new_thread
from torch.utils import _pytree as pytree

from autopar import cpu_lane, timeline_of_handles
from autopar.lanes.lane import Lane

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
        with pytest.raises(ValueError, match="on purpose"):
            numbers[-1].result()
    assert out == [1, 2]


def test_waiting_for_a_lane_covers_what_was_submitted(gate, open_soon):
    with cpu_lane() as lane:
        handles = [lane.submit(gate), lane.submit(int)]
        open_soon()
        lane.wait()
        assert all(handle.done() for handle in handles)
        lane.submit(int).result()  # and it takes work again


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


def test_lanes_have_names_of_their_own():
    assert cpu_lane().name != cpu_lane().name
    with pytest.raises(ValueError, match=r"^threads is 'left'; .* a name is given as name="):
        cpu_lane("left")


# -- errors ---------------------------------------------------------------------------------------


def test_dependents_do_not_run_and_say_why(new_lane):
    ran = []
    with new_lane(name="left") as left, cpu_lane(name="right") as right:
        first = left.submit(fail, name="breaks")
        second = right.submit(ran.append, first, name="second")
        third = left.submit(ran.append, 3, after=[second], name="third")
        right.submit(ran.append, "fine").wait()
        with pytest.raises(RuntimeError, match="'second' on lane 'right'.*waits for") as caught:
            third.result()
    assert ran == ["fine"]
    assert f"in task 'third' on lane 'left' ({left.device})" in caught.value.__notes__
    because = caught.value.__cause__
    assert "'breaks' on lane 'left'" in str(because)
    assert isinstance(because.__cause__, ValueError)


@pytest.mark.parametrize("later", [0, 1, 5])
@pytest.mark.parametrize("wait", [False, True])
def test_the_first_unseen_error_is_raised_at_the_latest_on_leaving(new_lane, later, wait):
    with pytest.raises(ValueError, match="first") as caught, new_lane() as lane:
        lane.submit(int)
        lane.submit(fail, "first", name="first")
        lane.submit(fail, "second")
        for _ in range(later):  # results are let go of meanwhile; errors must not be
            last = lane.submit(int)
            last.result()
        if wait:
            lane.wait()
            pytest.fail("waiting for the lane raises, too")
    assert "'first'" in caught.value.__notes__[0]


def test_the_first_error_is_the_first_also_if_a_later_one_is_still_to_come(gate, open_soon):
    with pytest.raises(ValueError, match="first"), cpu_lane() as lane:
        lane.submit(fail, "first")
        lane.submit(int).result()
        lane.submit(lambda: (gate(), fail("second")))
        assert gate.begun.wait(WAIT_S)
        open_soon()


# -- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_fails", [False, True])
def test_left_by_an_exception_it_drops_what_waits_and_waits_for_what_runs(gate, leave, task_fails):
    ran = []
    with pytest.raises(ZeroDivisionError), cpu_lane() as lane:
        begun = lane.submit(lambda: (gate(), task_fails and fail()))
        queued = lane.submit(ran.append, 1, name="queued")
        leave(queued)
    assert begun.done()
    assert ran == []
    with pytest.raises(CancelledError, match="'queued'.*dropped"):
        queued.result()


def test_what_waits_for_a_dropped_task_says_so(gate, leave):
    with cpu_lane() as outer:
        with pytest.raises(ZeroDivisionError), cpu_lane() as inner:
            inner.submit(gate)
            queued = inner.submit(int, name="queued")
            dependent = outer.submit(int, after=[queued])
            leave(queued)
        with pytest.raises(RuntimeError, match="'queued'.*was dropped"):
            dependent.result()


def test_nested_lanes_end_when_the_inner_waits_for_the_outer(gate, leave):
    with pytest.raises(ZeroDivisionError), cpu_lane() as outer, cpu_lane() as inner:
        leave(inner.submit(int, after=[outer.submit(gate)]))


# What a stream was given can't be taken back, so leaving its lane has to wait for that.
@pytest.mark.parametrize(
    ("kind", "waits"),
    [
        ("cpu", ["result", "wait", "leaving"]),
        pytest.param("cuda", ["result", "wait"], marks=pytest.mark.gpu),
    ],
)
def test_ctrl_c_ends_every_wait_and_the_next_run_is_unharmed(run_program, kind, waits):
    assert require_waits_end(run_program("interrupted.py", kind)) == waits


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_ctrl_c_anywhere_in_a_submit_comes_out_and_leaves_nothing_behind(run_program, kind):
    done = run_program("lane_interrupted.py", kind)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["places"] > 40
    assert report["wrong"] == {}


@pytest.mark.parametrize(
    "how",
    [
        "blocked",
        "exit",
        "fork",
        *(pytest.param(each, marks=pytest.mark.stress) for each in ("idle", "exception", "thread")),
    ],
)
def test_a_process_ends_although_a_lane_was_not_left(run_program, how):
    done = run_program("lane_left_open.py", how)
    assert done.returncode == (3 if how == "exit" else 0), done.stderr
    assert done.stdout.split() == ["first", "last"]
    assert done.stderr == ""


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


# -- what a worker thread inherits ----------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_of_operators_are_the_lanes_alone_also_of_one_opened_in_a_task(threads):
    def inner():
        with cpu_lane(threads + 2) as lane:
            return lane.submit(torch.get_num_threads).result()

    before = torch.get_num_threads()
    with cpu_lane(threads) as lane, cpu_lane(threads + 1) as other:
        assert lane.submit(inner).result() == threads + 2
        numbers = [each.submit(torch.get_num_threads).result() for each in (lane, other)]
        assert numbers == [threads, threads + 1]
        assert torch.get_num_threads() == threads_of_a_new_thread() == before
    assert torch.get_num_threads() == threads_of_a_new_thread() == before


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


def test_results_go_with_their_handles():
    with cpu_lane() as lane:
        handle = lane.submit(torch.zeros, 3)
        dependent = lane.submit(torch.neg, handle)
        results = [weakref.ref(task.result()) for task in (handle, dependent)]
        del handle, dependent
        give_up_s = time.perf_counter() + WAIT_S
        while any(result() is not None for result in results):
            # The worker may be on its way out of the task still.
            assert time.perf_counter() < give_up_s, "the lane holds on to a result"
            time.sleep(1e-3)
