"""Captures, without a GPU: what can't be captured, asked for or replayed is refused by name."""

import pytest
import torch
from graph_checks import labels

from autopar import TaskGraph
from autopar.graph import capture


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
