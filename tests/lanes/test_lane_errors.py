"""Errors of tasks on lanes: each arrives, once, as it was."""

import asyncio
import concurrent.futures
import dataclasses
import traceback

import pytest
from lane_forms import caught, fail

from autopar import TaskGraph, cpu_lane, timeline_of_handles

pytestmark = pytest.mark.usefixtures("forms_run_in_time")


class TakesNoNote(Exception):
    add_note = None


class NotesAreNoList(Exception):
    __notes__ = "none"


class NoDict(BaseException):
    __slots__ = ("a",)


class Fussy(Exception):
    def add_note(self, text):
        raise TypeError("no notes")


class Unequal(Exception):
    def __eq__(self, other):
        raise TypeError("not to be compared")

    __hash__ = None


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int = 3


_ERRORS = [StopIteration(3), StopAsyncIteration(), GeneratorExit(), SystemExit(2)]
_ERRORS += [KeyboardInterrupt(), concurrent.futures.CancelledError(), asyncio.CancelledError()]
_ERRORS += [TimeoutError(), TakesNoNote(), NotesAreNoList(), NoDict(), Fussy(), Unequal(), Frozen()]
_ERRORS += [ExceptionGroup("two", [ValueError(), KeyError()]), concurrent.futures.TimeoutError()]


@pytest.fixture(params=_ERRORS, ids=lambda each: type(each).__name__)
def raised(request):
    error = request.param

    def raising():
        raise error

    raising.error = error
    return raising


@pytest.mark.parametrize("read", ["result", "wait", "lane", "leaving", "span", "dependent"])
def test_an_error_arrives_once_and_as_it_was(raised, read):
    def run():
        with cpu_lane() as lane:
            handle = lane.submit(raised)
            if read == "lane":
                seen.append(caught(lane.wait))
                lane.wait()
            elif read == "dependent":
                dependent = caught(lane.submit(int, after=[handle]).result)
                assert "failed" in str(dependent)
                seen.append(dependent.__cause__)
            elif read == "span":
                seen.append(caught(lambda: timeline_of_handles([handle])))
            elif read != "leaving":
                seen.append(caught(getattr(handle, read)))
            assert lane.submit(abs, -1).result() == 1

    seen = []
    left = caught(run)
    if read == "leaving":
        seen.append(left)
    else:
        assert left is None, "it came twice"
    assert len(seen) == 1
    assert seen[0] is raised.error


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


def test_a_second_failure_is_noted_on_the_first_and_arrives_from_its_handle():
    with pytest.raises(ValueError, match="first") as found, cpu_lane(name="lane") as lane:
        lane.submit(fail, "first", name="one")
        second = lane.submit(fail, "second", name="two")
        consequence = lane.submit(int, after=[second])
    assert found.value.__notes__ == [
        "in task 'one' on lane 'lane' (cpu)",
        "task 'two' on lane 'lane' (cpu) failed, too: ValueError('second')",
    ]
    with pytest.raises(ValueError, match="second"):
        second.result()
    with pytest.raises(RuntimeError, match="'two'.*failed"):
        consequence.result()


def test_of_many_failures_some_are_named_and_the_rest_counted():
    with pytest.raises(ValueError, match="first") as found, cpu_lane() as lane:
        for i in range(100):
            lane.submit(fail, "first" if i == 0 else str(i))
    assert len(found.value.__notes__) == 7
    assert found.value.__notes__[-1].startswith("94 more tasks of lane")


def test_errors_of_two_lanes_both_come_out():
    with pytest.raises(ValueError, match="inner") as found, cpu_lane() as outer:
        outer.submit(fail, "outer").wait_until_issued()
        with cpu_lane() as inner:
            inner.submit(fail, "inner")
    assert "ValueError('outer')" in found.value.__notes__[-1]


def test_left_by_an_exception_it_notes_there_what_failed_unseen():
    with pytest.raises(ZeroDivisionError) as found, cpu_lane() as lane:
        lane.submit(fail).wait_until_issued()
        _ = 1 / 0
    assert "failed, too: ValueError('on purpose')" in found.value.__notes__[0]


def test_an_error_that_was_raised_in_the_block_is_not_noted_on_itself():
    with pytest.raises(ValueError, match="on purpose") as found, cpu_lane() as lane:
        lane.submit(fail).result()
    assert len(found.value.__notes__) == 1


def test_a_generator_that_is_closed_raises_what_failed_unseen():
    def batches():
        with cpu_lane() as lane:
            yield lane.submit(fail)
            yield 2

    loader = batches()
    next(loader).wait_until_issued()
    with pytest.raises(ValueError, match="on purpose"):
        loader.close()


@pytest.mark.parametrize("serial", [False, True])
def test_in_a_graph_too_an_error_arrives_as_it_was(raised, serial):
    if isinstance(raised.error, Frozen):
        pytest.skip("Python's own contextlib can't let it through")
    graph = TaskGraph(cpu_lanes=2)
    graph.add(raised)
    assert caught(graph.run_serial if serial else graph.run) is raised.error
