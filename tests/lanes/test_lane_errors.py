"""Errors of tasks: each arrives, once, as it was, and tells what else has failed."""

import asyncio
import concurrent.futures
import dataclasses
import functools
import traceback

import pytest
import torch
from lane_forms import WAIT_S, caught, fail

from autopar import CopyPipeline, TaskGraph, cpu_lane, timeline_of_handles

pytestmark = pytest.mark.usefixtures("forms_run_in_time")

# -- as it was ------------------------------------------------------------------------------------


def refuse(*_):
    raise TypeError


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int = 3


class NoDict(BaseException):
    __slots__ = ("a",)


_ODD = {  # errors to which no notes can be added, or that can't be compared
    "TakesNoNote": {"add_note": None},
    "NotesAreNoList": {"__notes__": "none"},
    "Fussy": {"add_note": refuse},
    "Unequal": {"__eq__": refuse, "__hash__": None},
}
_ERRORS = [StopIteration(3), StopAsyncIteration(), GeneratorExit(), SystemExit(2), TimeoutError()]
_ERRORS += [KeyboardInterrupt(), concurrent.futures.CancelledError(), asyncio.CancelledError()]
_ERRORS += [type(name, (Exception,), members)() for name, members in _ODD.items()]
_ERRORS += [NoDict(), Frozen(), ExceptionGroup("two", [ValueError(), KeyError()])]


@pytest.fixture(params=_ERRORS, ids=lambda each: type(each).__name__)
def raised(request):
    error = request.param

    def raising():
        raise error

    raising.error = error
    return raising


READS = {  # how an error comes to be seen
    "result": lambda lane, handle: handle.result,
    "wait": lambda lane, handle: handle.wait,
    "span": lambda lane, handle: functools.partial(timeline_of_handles, [handle]),
    "lane": lambda lane, handle: lane.wait,
    "dependent": lambda lane, handle: lane.submit(int, after=[handle]).result,
    "leaving": lambda lane, handle: int,
}


@pytest.mark.parametrize("read", READS)
def test_an_error_arrives_once_and_as_it_was(raised, read):
    def run():
        with cpu_lane() as lane:
            handle = lane.submit(raised)
            seen.append(caught(READS[read](lane, handle)))
            assert lane.submit(abs, -1).result() == 1
            if read == "lane":
                lane.wait()

    seen = []
    seen.append(caught(run))
    (error,) = (error for error in seen if error is not None)
    if read == "dependent":
        assert "failed" in str(error)
        error = error.__cause__
    assert error is raised.error


@pytest.mark.parametrize("serial", [False, True])
def test_in_a_graph_too_an_error_arrives_as_it_was(raised, serial):
    if isinstance(raised.error, Frozen):
        pytest.skip("Python's own contextlib can't let it through")
    graph = TaskGraph(cpu_lanes=2)
    graph.add(raised)
    assert caught(graph.run_serial if serial else graph.run) is raised.error

    def start():
        with graph.start():
            pass

    assert caught(start) is raised.error


def test_one_error_raised_by_two_tasks_arrives_from_each():
    error = ValueError("one for all")

    def one():
        raise error

    def two():
        raise error

    with cpu_lane() as lane:
        handles = [lane.submit(one), lane.submit(two), lane.submit(one)]
        lane.submit(int).result()
        for handle, name in zip(handles, ("one", "two", "one"), strict=True):
            counts = []
            for _ in range(3):  # and its traceback does not grow
                assert caught(handle.result) is error
                frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
                assert name in frames
                counts.append(len(frames))
            assert counts[-1] == counts[-2]


# -- to whom --------------------------------------------------------------------------------------


def test_dependents_do_not_run_and_say_why(new_lane):
    ran = []
    with new_lane(name="left") as left, cpu_lane(name="right") as right:
        first = left.submit(fail, name="breaks")
        second = right.submit(ran.append, first, name="second")
        third = left.submit(ran.append, 3, after=[second], name="third")
        right.submit(ran.append, "fine").wait()
        with pytest.raises(RuntimeError, match="'second' on lane 'right'.*waits for") as found:
            third.result()
    assert ran == ["fine"]
    assert f"in task 'third' on lane 'left' ({left.device})" in found.value.__notes__
    because = found.value.__cause__
    assert "'breaks' on lane 'left'" in str(because)
    assert isinstance(because.__cause__, ValueError)


@pytest.mark.parametrize("later", [0, 1, 5])
@pytest.mark.parametrize("wait", [False, True])
def test_the_first_unseen_error_is_raised_at_the_latest_on_leaving(new_lane, later, wait):
    with pytest.raises(ValueError, match="first") as found, new_lane() as lane:
        lane.submit(int)
        lane.submit(fail, "first", name="first")
        lane.submit(fail, "second")
        for _ in range(later):  # results are let go of meanwhile; errors must not be
            last = lane.submit(int)
            last.result()
        if wait:
            lane.wait()
            pytest.fail("waiting for the lane raises, too")
    assert "'first'" in found.value.__notes__[0]


def test_the_first_error_is_the_first_also_if_a_later_one_is_still_to_come(gate, open_soon):
    with pytest.raises(ValueError, match="first"), cpu_lane() as lane:
        lane.submit(fail, "first")
        lane.submit(int).result()
        lane.submit(lambda: (gate(), fail("second")))
        assert gate.begun.wait(WAIT_S)
        open_soon()


def test_a_generator_that_is_closed_raises_what_failed_unseen():
    def batches():
        with cpu_lane() as lane:
            yield lane.submit(fail)
            yield 2

    loader = batches()
    next(loader)._wait_until_issued()
    with pytest.raises(ValueError, match="on purpose"):
        loader.close()


# -- with notes -----------------------------------------------------------------------------------


def first(lane):
    return lane.submit(fail, "first", name="one")


def second(lane, text="second"):
    return lane.submit(fail, text, name="two")


_ONE = "in task 'one' on lane 'lane' (cpu)"
_TWO = "task 'two' on lane 'lane' (cpu) failed, too: ValueError: second"
_MANY = [_ONE, *(_TWO.replace("second", str(i)) for i in range(5))]
_MANY += ["94 more tasks of lane 'lane' failed, too"]
_ALIKE = [_ONE, _TWO, "8 more tasks of lane 'lane' failed, too"]


@pytest.mark.parametrize(
    ("block", "notes"),
    [
        (lambda lane: first(lane).result(), [_ONE]),
        (lambda lane: (first(lane), second(lane)), [_ONE, _TWO]),
        (lambda lane: (first(lane), lane.submit(int, after=[second(lane)])), [_ONE, _TWO]),
        (lambda lane: (second(lane)._wait_until_issued(), fail("first")), [_TWO]),
        (lambda lane: (first(lane), [second(lane, str(i)) for i in range(99)]), _MANY),
        (lambda lane: (first(lane), [second(lane) for _ in range(9)]), _ALIKE),
    ],
    ids=["none", "another", "and its waiter", "before the block", "many", "alike"],
)
def test_an_error_tells_its_task_and_what_else_has_failed_unseen(block, notes):
    with pytest.raises(ValueError, match="first") as found, cpu_lane(name="lane") as lane:
        block(lane)
    assert found.value.__notes__ == notes


def test_errors_of_a_map_say_map():
    with CopyPipeline("cpu") as pipeline, pytest.raises(ValueError, match="on purpose") as found:
        list(pipeline.map(lambda x: fail(), [torch.ones(1)]))
    assert found.value.__notes__ == ["in item 0 of map from cpu"]
