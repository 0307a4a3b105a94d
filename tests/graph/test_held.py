"""What tasks use is what they hold when a run begins; autograd has one history for a tensor."""

from functools import partial

import pytest
import torch
from torch import nn

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")


# -- what is held is what is held when a run begins ------------------------------------------------


HOLDERS = {  # something that is called, how it comes to hold another tensor, and when it does not
    "a module": lambda x: (layer := Held(x), lambda y: setattr(layer, "held", y)),
    "weights that are assigned": lambda x: (
        layer := Held(nn.Parameter(x, requires_grad=False)),
        lambda y: layer.load_state_dict({"held": y}, assign=True),
    ),
    "a list that is given": lambda x: (
        partial(torch.cat, held := [x]),
        lambda y: held.__setitem__(0, y),
    ),
    "layers": lambda x: (layers := nn.Sequential(), lambda y: layers.append(Held(y))),
    "a closure": lambda x: rebound(x),
    "memory of its own": lambda x: (x.clone, lambda y: setattr(x, "data", y)),
    "a larger part": lambda x: (
        (part := x.new_zeros(0).set_(x.untyped_storage(), 0, (1,))).clone,
        lambda y: part.set_(y.untyped_storage(), 0, (3,)),
    ),
}


class Held(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.held = held

    def forward(self, *_):
        return self.held.clone()


def rebound(x):
    def rebind(y):
        nonlocal x
        x = y

    return lambda: x.clone(), rebind


def reader_of(graph, kind):
    """Adds a reader of nothing that is written, and what lets it read something else."""
    read, rebind = HOLDERS[kind](torch.zeros(3))
    given = [torch.zeros(3)] if kind == "layers" else []
    is_operator = kind in ("a list that is given", "memory of its own", "a larger part")
    options = {} if is_operator else {"writes": ()}
    return lambda: graph.add(read, *given, **options), rebind


@pytest.mark.parametrize("kind", HOLDERS)
def test_who_writes_what_is_held_when_a_run_begins_comes_first(kind):
    other = torch.zeros(3)
    graph = TaskGraph(cpu_lanes=2)
    add_reader, rebind = reader_of(graph, kind)
    writer, reader = graph.add(other.add_, 1), add_reader()
    assert graph.plan().nodes[reader.number].before == set()
    rebind(other)
    for n in range(1, 3):
        run = graph.run()
        assert run.plan.nodes[reader.number].before == {writer.number}
        assert run[reader].tolist() == [n] * 3


# -- autograd has one history for all parts of a tensor -------------------------------------------

_WEIGHT = torch.ones(2, requires_grad=True)
PARTS = {
    "operators": lambda graph, part: graph.add(torch.Tensor.mul_, part, _WEIGHT),
    "functions": lambda graph, part: graph.add(part_times_weight, part, _WEIGHT, writes=[part]),
}


def part_times_weight(part, weight):
    part.mul_(weight)


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("on", [True, False])
def test_parts_of_a_tensor_are_written_at_once_but_not_where_autograd_tracks_them(kind, on):
    base, graph = torch.ones(3, 2), TaskGraph(cpu_lanes=3)
    first, second, third = [PARTS[kind](graph, part) for part in base]
    for is_on in (on, not on, on):
        with torch.set_grad_enabled(is_on):
            nodes = graph.plan().nodes
            assert nodes[second.number].before == ({first.number} if is_on else set())
            assert nodes[third.number].before == ({second.number} if is_on else set())


def test_gradients_by_way_of_parts_are_those_of_the_program():
    for _ in range(10):
        gradients = []
        for is_graph in (True, False):
            weight, graph = torch.ones(2, requires_grad=True), TaskGraph(cpu_lanes=4)
            base = weight.expand(8, 2).clone()
            for part in [base[i] for i in range(8)] * 3:
                call = graph.add if is_graph else lambda fn, *args: fn(*args)
                call(torch.Tensor.mul_, part, weight)
            graph.run()
            base.sum().backward()
            gradients.append(weight.grad)
        assert torch.equal(*gradients)
