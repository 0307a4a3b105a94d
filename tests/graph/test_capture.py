"""Captures that fail, without a GPU: the first cause comes out, and what was begun is mended."""

import pytest
import torch
from graph_checks import labels

from autopar import TaskGraph
from autopar.graph import capture


class Graph:
    """Stands for a CUDA graph whose methods fail as one likes."""

    def __init__(self, **failing):
        self.failing, self.done = failing, []

    def __getattr__(self, name):
        def method(*args, **kwargs):
            self.done.append(name)
            if name in self.failing:
                raise self.failing[name]

        return method


@pytest.fixture
def mended(monkeypatch):
    """What was mended."""
    found = []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(capture, "_mend", lambda *args: found.append(args))
    return found


def test_what_is_not_on_one_gpu_is_refused_by_name():
    with pytest.raises(ValueError, match="no tasks"):
        TaskGraph().capture()
    with labels():
        graph = TaskGraph()
        graph.add(torch.ones, 3, device="cuda:0")
        graph.add(torch.neg, torch.ones(3), name="on the CPU")
        with pytest.raises(ValueError, match="'on the CPU'.*expected all tasks on one GPU"):
            graph.capture()


def test_what_is_no_task_and_inputs_of_other_shapes_are_refused():
    task, two = TaskGraph().add(torch.ones, 2, name="ones"), torch.ones(2)
    captured = capture.Captured(None, (), ["value"], [two, two], 1)
    assert captured[{"a": [task, 3]}] == {"a": ["value", 3]}
    for wrong in ("ones", 0):
        with pytest.raises(KeyError, match=f"the key is {wrong!r}; expected a task, as graph.add"):
            captured[wrong]
    with pytest.raises(KeyError, match="'ones'.* lies in a container of another kind"):
        captured[{task}]
    with pytest.raises(ValueError, match="given 1 inputs; expected 2"):
        captured.replay(two)
    for wrong in (torch.ones(3), two.double()):
        with pytest.raises(
            ValueError, match=r"inputs\[1\] is \(.*expected \(2,\) of torch.float32"
        ):
            captured.replay(two, wrong)


def test_a_capture_that_ends_well_needs_no_mending(mended):
    graph = Graph()
    with capture._recorded(graph, ["a generator"]):
        pass
    assert graph.done == ["register_generator_state", "capture_begin", "capture_end"]
    assert mended == []


@pytest.mark.parametrize("error", [LookupError("of the task"), KeyboardInterrupt(), SystemExit()])
@pytest.mark.parametrize("failing", [{}, {"capture_end": RuntimeError("invalidated")}])
def test_what_the_task_raises_comes_out_whatever_fails_after_it(
    mended, monkeypatch, error, failing
):
    graph = Graph(**failing)
    with pytest.raises(type(error)) as caught, capture._recorded(graph, []):
        raise error
    assert caught.value is error
    assert graph.done == ["capture_begin", "capture_end"]
    assert mended == [(graph, (0, 7), [])]
    monkeypatch.setattr(capture, "_mend", lambda *_: {}["while mending"])
    with pytest.raises(type(error)), capture._recorded(Graph(), []):
        raise error


@pytest.mark.parametrize("name", ["capture_begin", "capture_end"])
def test_errors_of_the_capture_itself_come_out_when_there_is_no_other(mended, name):
    graph = Graph(**{name: RuntimeError("no")})
    with pytest.raises(RuntimeError) as caught, capture._recorded(graph, []):
        pass
    assert caught.value is graph.failing[name]
    assert len(mended) == 1
