"""Leaving a lane: it waits for its work, also for what that submits; Ctrl-C and errors end it."""

import functools
import gc
import itertools
import threading
from concurrent.futures import CancelledError

import pytest
from interruptions import interrupted_at
from lane_forms import WAIT_S, caught, fail, require_waits_end

from autopar import cpu_lane
from autopar.lanes.cpu import _end_all
from autopar.lanes.outcome import Outcome

# -- what tasks submit ----------------------------------------------------------------------------


def test_leaving_runs_what_tasks_submit_to_their_own_lane_and_to_one_around_it(
    new_lane, gate, open_soon
):
    ran = []

    def task(left):
        ran.append(left)
        if left:
            lane.submit(task, left - 1)
        else:
            outer.submit(ran.append, "outside")

    with cpu_lane() as outer:
        with new_lane() as lane:
            lane.submit(task, 20, after=[outer.submit(gate)])
            open_soon()
        assert ran[:21] == list(range(20, -1, -1))
    assert ran[21:] == ["outside"]


def test_leaving_waits_for_what_a_task_of_another_lane_has_submitted(gate, open_soon):
    ran = []
    with cpu_lane() as outer:
        with cpu_lane() as inner:
            outer.submit(lambda: inner.submit(lambda: (gate(), ran.append("inside")))).result()
            open_soon()
        assert ran == ["inside"]


def test_what_a_task_submits_to_a_lane_that_was_left_is_refused(gate):
    with pytest.raises(RuntimeError, match="'inner'.*was left"), cpu_lane() as outer:
        with cpu_lane(name="inner") as inner:
            outer.submit(lambda: (gate(), inner.submit(int)))
        gate.open()


def test_an_error_of_what_a_task_has_submitted_comes_out_on_leaving():
    with pytest.raises(ValueError, match="on purpose"), cpu_lane() as lane:
        lane.submit(lambda: lane.submit(lambda: lane.submit(fail)))


# -- by an exception ------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["returns", "fails", "submits"])
def test_left_by_an_exception_it_drops_what_waits_and_waits_for_what_runs(gate, leave, task):
    end = {"returns": int, "fails": fail, "submits": lambda: lane.submit(int)}[task]
    ran = []
    with pytest.raises(ZeroDivisionError) as found, cpu_lane(name="left") as lane:
        begun = lane.submit(lambda: (gate(), end()))
        queued = lane.submit(ran.append, 1, name="queued")
        leave(queued)
    assert begun.done()
    assert ran == []
    with pytest.raises(CancelledError, match="'queued'.*dropped"):
        queued.result()
    notes = "".join(getattr(found.value, "__notes__", ()))
    assert {"returns": "", "fails": "on purpose", "submits": "'left' (cpu) was left"}[task] in notes


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


# -- Ctrl-C ---------------------------------------------------------------------------------------


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


def test_ctrl_c_anywhere_in_a_submit_comes_out_and_leaves_nothing_behind(new_lane):
    """At every place where Python hears a signal, of one that can begin and of one that waits."""
    for waits in (False, True):
        for number in itertools.count():
            gate, errors, ran = threading.Event(), [], []
            with cpu_lane() as other, new_lane() as lane:
                held = other.submit(gate.wait, 10)
                if waits:
                    lane.submit(abs, -1, after=[held])
                else:
                    gate.set()
                    held.result()
                submit = functools.partial(lane.submit, ran.append, 1)
                places = interrupted_at(number, lambda: errors.append(caught(submit)))  # noqa: B023
                gate.set()
                later = [lane.submit(abs, -i) for i in range(3)]
                from_elsewhere = other.submit(lambda: lane.submit(abs, -7).result())
                assert [each.result() for each in (*later, from_elsewhere)] == [0, 1, 2, 7], number
            if places <= number:
                break
            assert isinstance(errors[0], KeyboardInterrupt), f"place {number} did not come out"
            assert not (waits and ran), f"place {number}: it ran although it was dropped"
            assert not [*lane._pending, *lane._unseen], f"place {number} leaves something behind"
        assert number > 20


def test_a_drop_that_is_cut_off_anywhere_leaves_the_task_dropped_or_to_be_run():
    for number in itertools.count():
        outcome, called = Outcome(), []
        outcome.call_when_done(functools.partial(called.append, 1))
        places = interrupted_at(number, outcome.drop)
        assert outcome.begin() != outcome.done(), f"place {number}"
        if places <= number:
            break
    assert (number > 2, called) == (True, [1])


def test_a_task_that_was_cut_off_as_it_began_ends_with_that(gate):
    with cpu_lane() as lane:
        lane.submit(gate)
        cut_off = lane.submit(int)
        assert cut_off._issued.begin()
        gate.open()
        assert lane.submit(abs, -1).result() == 1
        assert cut_off.done()
        with pytest.raises(KeyboardInterrupt, match="cut off as it began"):
            cut_off.result()


def test_a_worker_that_begins_after_its_lane_was_left_ends_at_once(monkeypatch):
    late = []

    def start(thread):
        late.append(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt), cpu_lane():
            pass
    (thread,) = late
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_the_thread_of_a_lane_that_is_never_left_ends_with_the_lane():
    """As where Ctrl-C comes again while it is left, or before anybody holds what it would leave."""
    lane = cpu_lane()
    assert lane.__enter__().submit(abs, -1).result() == 1
    thread = lane._worker
    del lane
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


# -- ends that nobody has planned -----------------------------------------------------------------


_OFTEN = ["many", "exit", "fork", "run", "operators"]
_SELDOM = ["idle", "blocked", "exception", "thread", "queue"]
_ENDS = [*_OFTEN, *(pytest.param(each, marks=pytest.mark.stress) for each in _SELDOM)]


@pytest.mark.parametrize("how", _ENDS)
def test_a_process_ends_although_a_lane_was_not_left(run_program, how):
    done = run_program("lane_left_open.py", how)
    assert done.returncode == (3 if how == "exit" else 0), done.stderr
    assert done.stdout.split() == ["first", "last"]
    assert done.stderr == ""


def test_the_end_of_a_forked_process_is_none_of_its_parents_lanes(monkeypatch):
    """Whatever lock of theirs a thread had as it was forked is taken there for ever."""
    with cpu_lane() as lane, lane._admitting:
        monkeypatch.setattr("autopar.lanes.cpu.os.getpid", lambda: -1)
        ends = threading.Thread(target=_end_all)
        ends.start()
        ends.join(WAIT_S)
        assert not ends.is_alive()
        monkeypatch.undo()
        assert lane.submit(abs, -1).result() == 1


def test_a_wait_as_the_process_ends_does_not_last_for_ever(run_program):
    done = run_program("lane_left_open.py", "waits")
    assert done.returncode == 0
    assert "CancelledError" in done.stderr


@pytest.mark.parametrize("cannot", ["threading.Thread.start", "settle_threads"])
def test_a_lane_whose_thread_cannot_start_says_so_and_leaves_nothing(monkeypatch, cannot):
    monkeypatch.setattr(f"autopar.lanes.cpu.{cannot}", lambda *_: fail("can't start new thread"))
    lane = cpu_lane()
    with pytest.raises(ValueError, match="can't start new thread"), lane:
        pass
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="was left"):
        lane.submit(int)


def test_a_submit_that_fails_leaves_nothing_to_wait_for(monkeypatch, new_lane):
    with new_lane() as lane:
        with monkeypatch.context() as patch:
            patch.setattr(lane, "_go_on", lambda: fail("no memory"))
            assert "no memory" in str(caught(lambda: lane.submit(int)))
        assert lane.submit(abs, -1).result() == 1
