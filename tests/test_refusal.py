"""What messages and reprs say of values: what they are, never their numbers."""

import functools
import re

import numpy
import pytest
import torch

import autopar as ap

X = torch.ones(30, 30)


@pytest.fixture
def lane():
    with ap.cpu_lane(name="L") as lane:
        yield lane


@pytest.mark.parametrize(
    "refused",
    [
        lambda lane: lane.submit(X),
        lambda lane: lane.submit(abs, 1, after=[X]),
        lambda lane: ap.timeline_of_handles([X]),
        lambda lane: ap.TaskGraph().add(X),
        lambda lane: ap.TaskGraph().run()[X],
        lambda lane: ap.CopyPipeline("cpu").map(X, [X]),
        lambda lane: ap.CopyPipeline("cpu", slots=X),
    ],
)
def test_errors_name_a_tensors_type_and_not_its_numbers(lane, refused):
    with pytest.raises((TypeError, ValueError, KeyError), match=r"of type Tensor; expected") as e:
        refused(lane)
    assert len(str(e.value)) < 200
    assert "1." not in str(e.value)


def test_one_for_several_and_several_for_one_are_named(lane):
    with pytest.raises(TypeError, match=r"handles is <Handle.*expected a list of what"):
        ap.timeline_of_handles(lane.submit(abs, -1))
    with ap.CopyPipeline("cpu") as pipeline, pytest.raises(TypeError, match="of type list"):
        pipeline.to_host_async([X])
    with pytest.raises(ValueError, match=r"kind is 'communication'; expected one of compute, copy"):
        ap.cpu_lane(kind="communication")


def test_reprs_say_what_it_is_in_one_line(lane):
    handle, graph, pipeline = lane.submit(abs, -1, name="t"), ap.TaskGraph(), ap.CopyPipeline("cpu")
    graph.add(abs, -1)
    assert repr(lane) == "<CpuLane: 'L' (cpu), is open>"
    assert repr(handle) == "<Handle: task 't' on lane 'L' (cpu)>"
    assert repr(graph).startswith("<TaskGraph: 1 task and 0 copies, ")
    assert repr(pipeline) == "<CopyPipeline: cpu, 3 slots, not open yet>"
    assert repr(graph.run()).startswith("<Run: 1 task and 0 copies, done")


_USES = {
    "add": lambda stand_in: stand_in + 1,
    "reversed": lambda stand_in: X + stand_in,
    "numpy": lambda stand_in: numpy.ones((2, 2)) * stand_in,
    "getitem": lambda stand_in: stand_in[:2],
    "float": float,
    "len": len,
    "format": "{:.3f}".format,
    "sum": torch.sum,
    "stack": lambda stand_in: torch.stack([X, stand_in]),
    "linear": torch.nn.Linear(2, 2),
    "==": lambda stand_in: stand_in == X,
    "bool": bool,
    "array": numpy.asarray,
}


@pytest.mark.parametrize("use", _USES)
def test_what_stands_for_a_result_is_not_taken_for_it(lane, use):
    handle, task = lane.submit(torch.ones, 2), ap.TaskGraph().add(torch.ones, 2)
    for stand_in, how in ((handle, r"call its \.result\(\)"), (task, r"as run\[task\]")):
        with pytest.raises(TypeError) as error:
            _USES[use](stand_in)
        if use in ("==", "bool", "array"):  # which say how, as else nothing would be wrong
            assert re.search(f"'{use}' got a {type(stand_in).__name__}, .*{how}", str(error.value))


def test_handles_and_tasks_can_be_told_apart_and_kept_by_key(lane):
    one, other = lane.submit(abs, -1), lane.submit(abs, -1)
    assert one == one
    assert one != other
    assert one != None  # noqa: E711 (the operator itself)
    assert {other: 0, one: 1}[one]


def test_what_stands_for_a_result_elsewhere_is_refused(lane):
    graph, handle = ap.TaskGraph(), lane.submit(abs, -1)
    task = graph.add(abs, -1)
    with pytest.raises(TypeError, match=r"'max' got a Task.*as run\[task\]"):
        lane.submit(max, [task, 3])
    with pytest.raises(TypeError, match=r"'max' got a Handle.*call its \.result\(\)"):
        graph.add(max, [handle, 3])


def test_a_lane_by_its_common_name_says_who_makes_lanes():
    for made in (lambda: ap.Lane("cpu"), lambda: ap.Lane(), lambda: ap.Lane("a", ap.cpu(), "copy")):
        with pytest.raises(TypeError, match=r"Lane makes no lanes; take cpu_lane\(\) or cuda_lane"):
            made()


def step(x, *, scale=1):
    return x


def anything(**options):
    return options


class Steps:
    def step(self, x):
        return x


_MISSPELT = [
    (step, {"write": ()}, "write= is no argument of 'step', nor.*expected one of x, scale"),
    (step, {"scale": 1, "label": "a"}, "label= is no argument of 'step'"),
    (torch.nn.Linear(2, 2), {"inptu": X}, "inptu= is no argument of 'forward', nor"),
    (Steps().step, {"before": []}, "before= is no argument of 'step'"),
]


@pytest.mark.parametrize(("fn", "keywords", "said"), _MISSPELT)
def test_a_keyword_that_nobody_takes_is_refused_where_it_is_given(lane, fn, keywords, said):
    with pytest.raises(TypeError, match=f"^{said}"):
        lane.submit(fn, 1, **keywords)


def test_a_keyword_that_a_function_may_take_is_its_own(lane):
    assert lane.submit(anything, write=1).result() == {"write": 1}
    assert lane.submit(step, x=1, scale=2, name="a").result() == 1
    assert lane.submit(functools.partial(step, scale=2), 3).result() == 3
    assert lane.submit(int, "11", base=2).result() == 3
    assert lane.submit(torch.nn.Linear(2, 2), input=torch.ones(2)).result().shape == (2,)


@pytest.mark.parametrize(("fn", "keywords", "said"), _MISSPELT)
def test_a_keyword_that_no_task_takes_is_refused_where_it_is_added(fn, keywords, said):
    graph = ap.TaskGraph()
    with pytest.raises(TypeError, match=f"^{said}"):
        graph.add(fn, 1, **keywords)
    with pytest.raises(TypeError, match="^place= is no argument of 'mm', nor .* mat2"):
        graph.add(torch.mm, X, X, place="cpu")
    graph.add(torch.sum, input=X, axis=0, keepdims=True)
    graph.add(torch.ones, 2, requires_grad=True)
    graph.add(functools.partial(torch.nn.Linear(2, 2), input=torch.ones(2)))
    three = graph.add(step, x=3, scale=2, writes=(), name="a")
    assert graph.run()[three] == 3
