"""Forms in which people use lanes, each right or refused by name; none silent, none hanging."""

import contextlib
import contextvars
import gc
import math
import threading
import weakref

import pytest
import torch
from lane_forms import WAIT_S, caught, fail

from autopar import CopyPipeline, TaskGraph, cpu_lane, cuda_lane

pytestmark = pytest.mark.usefixtures("forms_run_in_time")


# -- what tasks submit ----------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [1, 20])
def test_leaving_runs_what_tasks_submit_to_their_own_lane(gate, open_soon, deep):
    ran = []

    def task(left):
        gate()
        ran.append(left)
        if left:
            lane.submit(task, left - 1)

    with cpu_lane() as lane:
        lane.submit(task, deep)
        open_soon()
    assert ran == list(range(deep, -1, -1))


@pytest.mark.parametrize("by", ["an inner lane's", "an outer lane's"])
def test_leaving_runs_what_tasks_submit_to_another_open_lane(gate, open_soon, by):
    ran = []
    with cpu_lane() as outer:
        with cpu_lane() as inner:
            one, other = (inner, outer) if by == "an inner lane's" else (outer, inner)
            first = one.submit(lambda: other.submit(lambda: (gate(), ran.append("second"))))
            second = first.result()
            open_soon()
        assert by == "an inner lane's" or ran == ["second"]
        second.result()
    assert ran == ["second"]


def test_what_a_task_submits_to_a_lane_that_was_left_is_refused(gate):
    with pytest.raises(RuntimeError, match="'inner'.*was left"), cpu_lane() as outer:
        with cpu_lane(name="inner") as inner:
            outer.submit(lambda: (gate(), inner.submit(int)))
        gate.open()


def test_an_error_of_what_a_task_has_submitted_comes_out_on_leaving():
    with pytest.raises(ValueError, match="on purpose"), cpu_lane() as lane:
        lane.submit(lambda: lane.submit(lambda: lane.submit(fail)))


def test_a_task_that_submits_to_its_lane_while_that_is_left_by_an_exception_does_not_hang(
    gate, leave
):
    with pytest.raises(ZeroDivisionError) as caught, cpu_lane(name="left") as lane:
        first = lane.submit(lambda: (gate(), lane.submit(int)))
        leave(lane.submit(int))
    assert "'left' (cpu) was left" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="was left"):
        first.result()


# -- waits that could never end -------------------------------------------------------------------


@pytest.mark.parametrize("wait", ["result", "wait", "span", "lane", "leaving"])
@pytest.mark.parametrize("whom", ["itself", "later"])
def test_a_task_that_waits_for_its_own_lane_is_refused(gate, wait, whom):
    def impatient():
        gate()
        handle = known[whom]
        if wait == "span":
            return handle.span
        if wait == "leaving":
            return lane.__exit__(None, None, None)
        return (lane.wait if wait == "lane" else getattr(handle, wait))()

    with cpu_lane() as lane:
        known = {"itself": lane.submit(impatient), "later": lane.submit(int)}
        gate.open()
        with pytest.raises(RuntimeError, match="of its own lane"):
            known["itself"].result()


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("how", ["result", "after", "lane"])
def test_lanes_whose_tasks_wait_for_each_other_are_refused(count, how):
    """Each lane's task waits for the next lane's: the last to begin closes the circle."""
    barrier = threading.Barrier(count)

    def ring(i):
        barrier.wait(WAIT_S)
        following = (i + 1) % count
        if how == "result":
            return handles[following].result()
        if how == "lane":
            return lanes[following].wait()
        return lanes[following].submit(int, after=[handles[i]], name="after it").result()

    handles = []
    with contextlib.ExitStack() as stack:
        lanes = [stack.enter_context(cpu_lane(name=f"lane {i}")) for i in range(count)]
        with cpu_lane() as submitting:  # in the barrier none can begin before all are known
            assert submitting
            handles += [lanes[i].submit(ring, i) for i in range(count)]
        found = [caught(handle.result) for handle in handles]
        for lane in lanes:
            with contextlib.suppress(RuntimeError):
                lane.wait()
    refused = [each for each in found if isinstance(each, RuntimeError)]
    assert refused
    assert any(
        "No such wait can end" in "".join(map(str, (each, each.__cause__))) for each in refused
    )


def test_a_wait_in_one_direction_is_no_circle(gate):
    with cpu_lane() as one, cpu_lane() as other, cpu_lane() as third:
        first = one.submit(gate, 1)
        second = other.submit(lambda: first.result() + 1)
        later = third.submit(lambda: first.result() + second.result())
        gate.open()
        assert later.result() == 3


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("ask", ["a later one", "itself", "the run", "the graph"])
def test_a_task_that_asks_its_own_run_is_refused(gate, lanes, ask):
    def asks():
        gate()
        known = {"a later one": later, "itself": task}
        waits = {"the run": runs[0].wait, "the graph": graph.waitall}
        return runs[0][known[ask]] if ask in known else waits[ask]()

    runs, graph = [], TaskGraph(cpu_lanes=lanes)
    task = graph.add(asks)
    later = graph.add(abs, -1)
    refused = pytest.raises(RuntimeError, match="of the same run|of its own lane")
    with refused, graph.start() as run:
        runs.append(run)
        gate.open()


def test_a_task_that_waits_for_a_lane_that_asks_its_run_is_refused(gate):
    """Over the wait of another task of the run, too: of the one asked for, for this one."""

    def asks():
        gate()
        return lane.submit(lambda: runs[0][last]).result()

    runs, graph = [], TaskGraph(cpu_lanes=2)
    first = graph.add(asks)
    last = graph.add(lambda x, y: (x, y), first, graph.add(abs, -1))
    refused = pytest.raises(RuntimeError, match="No such wait can end")
    with cpu_lane() as lane, refused, graph.start() as run:
        runs.append(run)
        gate.open()


# -- nothing is left behind -----------------------------------------------------------------------


@pytest.mark.parametrize("cannot", ["start", "settle"])
def test_a_lane_whose_thread_cannot_start_says_so_and_leaves_nothing(monkeypatch, cannot):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    if cannot == "start":
        monkeypatch.setattr("autopar.lanes.cpu.threading.Thread.start", refuse)
    else:
        monkeypatch.setattr("autopar.lanes.cpu.settle_threads", refuse)
    lane = cpu_lane()
    with pytest.raises(RuntimeError, match="can't start new thread"), lane:
        pass
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="was left"):
        lane.submit(int)


def test_a_submit_that_cannot_queue_leaves_nothing_to_wait_for(monkeypatch):
    def refuse(*_):
        raise MemoryError

    with cpu_lane() as lane:
        with monkeypatch.context() as patch:
            patch.setattr(lane, "_go_on", refuse)
            with pytest.raises(MemoryError):
                lane.submit(int)
        assert lane.submit(abs, -1).result() == 1


class Given:
    """What a task is given, and whether it is still there."""


READS = ["result", "lane", "leaving", "dependent", "twice", "unread", "goes on"]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("ends", ["fails", "returns", "is refused"])
def test_what_a_task_was_given_goes_with_its_error(new_lane, read, ends):
    """Without the collector of circles: nobody knows when that comes."""

    def task(given):
        if ends == "is refused":
            own[0].result()
        return fail() if ends == "fails" else None

    def run():
        given = Given()
        watched.append(weakref.ref(given))
        with new_lane() as lane:
            if new_lane is cuda_lane:  # which launches it at once
                begin.set()
            handle = lane.submit(lambda given: (begin.wait(WAIT_S), task(given)), given)
            own.append(handle)
            begin.set()
            if read == "lane":
                caught(lane.wait)
            elif read == "dependent":
                caught(lane.submit(int, after=[handle]).result)
            elif read == "unread":
                handle.wait_until_issued()
                del handle
                fail("something else")
            elif read == "goes on":
                caught(handle.result)
                own.clear()
                del handle, given
                lane.submit(int).result()  # the worker has let go of the one before
                assert watched[0]() is None
                return
            elif read != "leaving":
                for _ in range(2 if read == "twice" else 1):
                    caught(handle.result)
            del handle  # or this frame holds it, and its error this frame

    watched, own, begin = [], [], threading.Event()
    gc.collect()
    gc.disable()
    try:
        assert not isinstance(caught(run), AssertionError)
        own.clear()
        assert watched[0]() is None
    finally:
        gc.enable()


_WRONG = [None, "a", 1.5, True, -1, 0, 10**12, math.nan, [], ...]
_REFUSED = {  # how an argument is given, and which of these values are right there
    "threads": (cpu_lane, ()),
    "kind": (lambda value: cpu_lane(kind=value), ()),
    "device": (cuda_lane, (None, 0)),
    "cpu_lanes": (lambda value: TaskGraph(cpu_lanes=value), (None,)),
    "streams": (lambda value: TaskGraph(streams=value), (None,)),
    "cost_s": (lambda value: TaskGraph().add(int, cost_s=value), (None, 0, 1.5, 10**12)),
    "slots": (lambda value: CopyPipeline("cpu", slots=value), (10**12,)),
}


@pytest.mark.parametrize("value", _WRONG, ids=repr)
@pytest.mark.parametrize("argument", _REFUSED)
def test_what_no_number_or_place_can_be_is_refused_by_the_arguments_name(argument, value):
    call, right = _REFUSED[argument]
    if value not in right:
        with pytest.raises(ValueError, match=f"^{argument}.* is .*; expected "):
            call(value)


@pytest.mark.parametrize("value", [1.5, True, 0, [], object], ids=repr)
def test_what_no_name_or_list_can_be_is_refused_by_the_arguments_name(value):
    with cpu_lane() as lane:
        for argument, refused in (
            ("name", lambda: cpu_lane(name=value)),
            ("name", lambda: lane.submit(int, name=value)),
            ("name", lambda: TaskGraph().add(int, name=value)),
            ("after", lambda: lane.submit(int, after=value or None)),
            ("writes of task 'int'", lambda: TaskGraph().add(int, writes=value or torch.ones(2))),
        ):
            with pytest.raises(TypeError, match=f"^{argument} is .*; expected "):
                refused()


@pytest.mark.parametrize(
    ("arguments", "after", "match"),
    [
        ((torch.ones(1),), (), r"expected a function.*submit\(fn, x\)"),
        ((None,), (), "expected a function"),
        ((int,), (3,), r"after\[0\] is of type int; expected a Handle"),
    ],
)
def test_submitting_what_cannot_be_run(arguments, after, match):
    with cpu_lane() as lane, pytest.raises(TypeError, match=match):
        lane.submit(*arguments, after=after)


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


def test_errors_of_a_map_say_map():
    with CopyPipeline("cpu") as pipeline, pytest.raises(ValueError, match="on purpose") as caught:
        list(pipeline.map(lambda x: fail(), [torch.ones(1)]))
    assert caught.value.__notes__ == ["in item 0 of map from cpu"]
