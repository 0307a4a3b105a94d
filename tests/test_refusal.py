"""What is refused, by its name; and what messages and reprs say of values, never their numbers."""

import functools
import math

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
    assert repr(pipeline) == "<CopyPipeline: cpu, 6 slots, not open yet>"
    assert repr(graph.run()).startswith("<Run: 1 task and 0 copies, done")


_USES = {
    "add": lambda it: it + 1,
    "radd": lambda it: X + it,
    "rmatmul": lambda it: numpy.ones((2, 2)) @ it,
    "neg": lambda it: -it,
    "lt": lambda it: it < 3,
    "getitem": lambda it: it[:2],
    "float": float,
    "sum": torch.sum,
    "stack": lambda it: torch.stack([X, it]),
    "linear": torch.nn.Linear(2, 2),
    "eq": lambda it: it == X,
    "bool": bool,
    "len": len,
    "index": range,
    "array": numpy.asarray,
    "format": "{:.3f}".format,
}


@pytest.mark.parametrize("operation", _USES)
def test_what_is_taken_for_its_result_says_how_to_get_it(lane, operation):
    handle = lane.submit(torch.ones, 2)
    with pytest.raises(TypeError, match=rf"'{operation}' got a Handle.*call its \.result\(\)"):
        _USES[operation](handle)
    with pytest.raises(AttributeError, match="no attribute 'shape', being no result; call its"):
        handle.shape  # noqa: B018
    other = lane.submit(abs, -1)
    assert handle == handle
    assert handle != other
    assert handle != None  # noqa: E711 (the operator itself)
    assert {other: 0, handle: 1}[handle]
    assert f"{handle}" == str(handle)
    task = ap.TaskGraph().add(torch.ones, 2)
    with pytest.raises(TypeError, match=rf"'{operation}' got a Task.*as run\[task\]"):
        _USES[operation](task)


def test_what_stands_for_a_result_elsewhere_is_refused(lane):
    graph, handle = ap.TaskGraph(), lane.submit(abs, -1)
    task = graph.add(abs, -1)
    with pytest.raises(TypeError, match=r"got a Task.*as run\[task\]"):
        lane.submit(max, [task, 3]).result()
    with pytest.raises(TypeError, match=r"'max' got a Handle.*call its \.result\(\)"):
        graph.add(max, [handle, 3])


def submit(*given, **options):
    with ap.cpu_lane() as lane:
        lane.submit(*given, **options)


def measure(**options):
    ap.measure(lambda: pytest.fail("it ran"), **{"label": "a", **options})


def record(**options):
    ap.recorded(lambda: pytest.fail("it ran"), **{"name": "a", "parameters": {}, **options})


LARGE = 10**12  # which is a number that may be right, and not to be tried
_WRONG = [None, "a", 1.5, True, -1, 0, LARGE, math.nan, [], ..., object]
_VALUES = {  # how an argument is given, and which of these values are right there
    "threads": (ap.cpu_lane, ()),
    "kind": (lambda value: ap.cpu_lane(kind=value), ()),
    "device": (ap.cuda_lane, (None, 0)),
    "device of a matrix": (lambda value: ap.workload.matrix(2, value), (0,)),
    "cpu_lanes": (lambda value: ap.TaskGraph(cpu_lanes=value), (None,)),
    "streams": (lambda value: ap.TaskGraph(streams=value), (None,)),
    "cost_s": (lambda value: ap.TaskGraph().add(int, cost_s=value), (None, 0, 1.5, LARGE)),
    "slots": (lambda value: ap.CopyPipeline("cpu", slots=value), (LARGE,)),
    "i": (ap.gpu, (0,)),  # of one that is too large torch would make GPU 0
    "i that may be there": (ap.try_gpu, (0, LARGE)),
    "workers": (ap.capacity, (None,)),
    "size": (ap.workload.product_flops, (LARGE,)),
    "size of a matrix": (ap.workload.matrix, (LARGE,)),
    "count": (lambda value: ap.workload.product_bytes(2, value), (0, LARGE)),
    "seed": (lambda value: ap.workload.matrix(2, seed=value), (0, LARGE)),
    "cycles": (lambda value: ap.workload.delay("cpu", value), (0, LARGE)),
    "repeats": (lambda value: measure(repeats=value), (LARGE,)),
    "warmup": (lambda value: measure(warmup=value), (0, LARGE)),
    "calls": (lambda value: measure(calls=value), (LARGE,)),
    "flops": (lambda value: measure(flops=value), (None, 1.5, LARGE)),
    "size_bytes": (lambda value: measure(size_bytes=value), (None, 1.5, LARGE)),
    "ranks": (lambda value: ap.on_ranks(len, ranks=value), (LARGE,)),
    "timeout_s": (lambda value: ap.on_ranks(len, ranks=1, timeout_s=value), (None, 1.5, LARGE)),
    "gpus": (lambda value: record(gpus=value), (0, LARGE)),
}
_TYPES = {  # and what is said
    "name": (lambda value: ap.cpu_lane(name=value), (None, "a"), "text"),
    "name of a task": (lambda value: submit(int, name=value), (None, "a"), "text"),
    "name in a graph": (lambda value: ap.TaskGraph().add(int, name=value), (None, "a"), "text"),
    "after": (lambda value: submit(int, after=value), ([], "a"), "a list"),
    r"after\[0\]": (lambda value: submit(int, after=[value]), (), "a Handle"),
    "writes": (lambda value: ap.TaskGraph().add(int, writes=value), (None, [], "a"), ""),
    "fn": (lambda value: submit([value]), (), r"a function.*submit\(fn, x\)"),
    "setup": (lambda value: measure(setup=value), (None, object), "a function"),
}


@pytest.mark.parametrize("value", _WRONG, ids=repr)
@pytest.mark.parametrize("argument", [*_VALUES, *_TYPES])
def test_what_an_argument_cannot_be_is_refused_by_its_name(argument, value):
    call, right, *said = (_VALUES | _TYPES)[argument]
    if not any(value is each or value == each for each in right):
        said = f"^{argument.split(' ')[0]}.* is .*; expected {''.join(said)}"
        with pytest.raises(TypeError if argument in _TYPES else ValueError, match=said):
            call(value)


def step(x, *, scale=1):
    return x


def anything(**options):
    return options


class Steps:
    def step(self, x):
        return x


class Scaled(torch.nn.Module):
    def __call__(self, x, *, scale):
        return super().__call__(x) * scale

    def forward(self, x):
        return x


_MISSPELT = [
    (step, {"write": ()}, "write= is no argument of 'step', nor.*expected one of x, scale"),
    (step, {"scale": 1, "label": "a"}, "label= is no argument of 'step'"),
    (torch.nn.Linear(2, 2), {"inptu": X}, "inptu= is no argument of 'forward', nor"),
    (Steps().step, {"before": []}, "before= is no argument of 'step'"),
]


@pytest.mark.parametrize(("fn", "keywords", "said"), _MISSPELT)
def test_a_keyword_that_nobody_takes_is_refused_where_it_is_given(lane, fn, keywords, said):
    for give in (ap.TaskGraph().add, lane.submit):
        with pytest.raises(TypeError, match=f"^{said}"):
            give(fn, 1, **keywords)


def test_a_keyword_that_a_function_may_take_is_its_own(lane):
    linear = torch.nn.Linear(2, 2)
    graph, calls = (
        ap.TaskGraph(),
        [
            (anything, (), {"write": 1}),
            (step, (), {"x": 1, "scale": 2, "name": "a"}),
            (functools.partial(step, scale=2), (3,), {}),
            (int, ("11",), {"base": 2}),
            (linear, (), {"input": torch.ones(2)}),
            (functools.partial(linear, input=torch.ones(2)), (), {}),
            (Scaled(), (torch.ones(2),), {"scale": 2}),
            (torch.sum, (), {"input": X, "axis": 0, "keepdims": True}),
            (torch.ones, (2,), {"requires_grad": True}),
        ],
    )
    found = [lane.submit(fn, *given, **options).result() for fn, given, options in calls]
    assert found[:4] == [{"write": 1}, 1, 3, 3]
    assert [tuple(x.shape) for x in found[4:]] == [(2,), (2,), (2,), (1, 30), (2,)]
    tasks = [graph.add(fn, *given, **options) for fn, given, options in calls]
    assert graph.run()[tasks[:4]] == found[:4]
