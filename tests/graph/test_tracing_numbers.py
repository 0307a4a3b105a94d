"""Numbers that the data decides are refused, whatever code does with them; shapes stay shapes."""

import pytest
import torch
from tracing_checks import numbers

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")

SHAPE = torch.Size([3, 2])


def caught(x):
    try:
        return x, f"{x.sum().item():.2f}"
    except Exception:
        return x, "none"


READ = [
    *(caught, lambda x: print(x.sum().item()), lambda x: {x[x > 0].shape[0]: x}),
    *(lambda x: x * x.sum().item(), lambda x: x.nonzero(), lambda x: x.unique()),
    *(
        lambda x: x.tolist(),
        lambda x: round((x > 0).any().item()),
        lambda x: x.masked_select(x > 0),
    ),
    *(lambda x: x.repeat_interleave(x.long()), lambda x: torch.split(x, x.long().tolist())),
]


@pytest.mark.parametrize("fn", READ)
def test_a_number_that_only_a_run_has_is_refused(fn, capfd):
    with pytest.raises(ValueError, match="depends on the data|by tolist"):
        TaskGraph.trace(fn, numbers(4))
    assert capfd.readouterr() == ("", "")


def test_a_shape_is_given_and_returned_as_one():
    graph, result = TaskGraph.trace(lambda x, s: [x.view(s), s, {1: x.shape}], numbers(6), SHAPE)
    value, *shapes = graph.run()[result]
    assert value.shape == SHAPE
    assert repr(shapes) == "[torch.Size([3, 2]), {1: torch.Size([6])}]"
    graph, result = TaskGraph.trace(lambda x: x.shape, numbers(2))
    assert repr(graph.run()[result]) == "torch.Size([2])"
