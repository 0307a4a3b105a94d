"""What functions hold and what `writes` says: looked up for each plan, and held to by a check."""

import functools
import operator
import re
import threading

import numpy as np
import pytest
import torch
from torch import nn

from autopar import TaskGraph
from autopar.effects.calls import name_of

_WAIT_S = 10
X = torch.ones(3)


def adds_one(x):
    x.add_(1)


def waits_of(graph):
    return [sorted(node.before) for node in graph.plan().nodes]


class Box(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.held = held

    def forward(self, *_):
        return self.held.clone()


# -- what is read: arguments, and what the function holds -----------------------------------------

HOLD = {
    "object": Box,
    "closure": lambda x: lambda: x,
    "partial": lambda x: functools.partial(torch.add, x),
    "nested": lambda x: {"box": [Box({"x": x})]},
    "set": lambda x: {x},
    "array": torch.Tensor.numpy,
    "slice": lambda x: slice(x[0], None),
    "array of objects": lambda x: np.array([x, None], dtype=object),
}


@pytest.mark.parametrize("kind", HOLD)
def test_who_writes_what_arguments_and_functions_hold_waits_for_readers_and_they_for_it(kind):
    x = torch.zeros(4)
    graph, held = TaskGraph(cpu_lanes=3), HOLD[kind](x)
    for fn, *args in ((lambda held: None, held), (lambda: held,)) * 2:
        if len(graph.plan().nodes) == 2:
            graph.add(x.add_, 1)
        graph.add(fn, *args, writes=())
    assert waits_of(graph) == [[], [], [0, 1], [2], [2]]


def test_who_reads_an_array_waits_for_who_says_that_it_writes_it():
    graph, array = TaskGraph(cpu_lanes=3), np.zeros(3)
    graph.add(array.fill, 1, writes=[array])
    graph.add(np.sum, array, writes=())
    assert waits_of(graph) == [[], [0]]


def test_a_graph_is_not_what_a_method_of_its_holder_uses():
    class Trainer:
        def __init__(self):
            self.graph = TaskGraph(cpu_lanes=2)

        def step(self, x):
            return x * 2

    trainer = Trainer()
    for x in (torch.ones(1), torch.ones(1)):
        trainer.graph.add(trainer.step, x, writes=())
        trainer.graph.add(x.add_, 1)
    assert waits_of(trainer.graph) == [[], [0], [], [2]]


# -- what is held is what is held when a run begins -----------------------------------------------

REBIND = {  # something that is called, how it comes to hold another tensor, and when it does not
    "a module": lambda x: (layer := Box(x), lambda y: setattr(layer, "held", y)),
    "weights that are assigned": lambda x: (
        layer := Box(nn.Parameter(x, requires_grad=False)),
        lambda y: layer.load_state_dict({"held": y}, assign=True),
    ),
    "a list that is given": lambda x: (
        functools.partial(torch.cat, held := [x]),
        lambda y: held.__setitem__(0, y),
    ),
    "memory of its own": lambda x: (x.clone, lambda y: setattr(x, "data", y)),
}


@pytest.mark.parametrize("kind", REBIND)
def test_who_writes_what_is_held_when_a_run_begins_comes_first(kind):
    other, graph = torch.zeros(3), TaskGraph(cpu_lanes=2)
    read, rebind = REBIND[kind](torch.zeros(3))
    graph.add(other.add_, 1)
    reader = graph.add(read, writes=())
    assert waits_of(graph) == [[], []]
    rebind(other)
    for n in range(1, 3):
        assert graph.run()[reader].tolist() == [n] * 3
        assert waits_of(graph) == [[], [0]]


def test_lists_that_are_written_are_looked_into_for_each_run():
    first, then, held = torch.zeros(3), torch.zeros(3), []
    held.append(first)
    graph = TaskGraph(cpu_lanes=2)
    graph.add(torch._foreach_add_, held, 1)
    graph.add(then.mul_, 2)
    assert waits_of(graph) == [[], []]
    held[:] = [then]
    assert waits_of(graph) == [[], [0]]


# -- parts of one tensor --------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [torch.unbind, lambda x: x.view(3, 3)])
def test_parts_of_a_buffer_may_be_written_at_once(parts):
    buf, meeting = torch.zeros(3, 3), threading.Barrier(3)

    def at_once(fn, *args):
        meeting.wait(_WAIT_S)
        value = fn(*args)
        meeting.wait(_WAIT_S)
        return value

    graph = TaskGraph(cpu_lanes=3)
    one, two, three = parts(buf)
    graph.add(at_once, adds_one, one, writes=[one])
    graph.add(at_once, adds_one, two, writes=[two])
    sums = graph.add(at_once, torch.sum, three, writes=())
    for _ in range(3):
        run = graph.run()
        assert len(run.timeline.lanes) == 3
        assert run[sums] == 0
    assert buf.sum() == 3 * 6


WEIGHT = torch.ones(2, requires_grad=True)
PARTS = {
    "operators": lambda graph, part: graph.add(torch.Tensor.mul_, part, WEIGHT),
    "functions": lambda graph, part: graph.add(operator.imul, part, WEIGHT, writes=[part]),
}


@pytest.mark.parametrize("read", [slice(3, 3), slice(None)])
def test_an_empty_part_is_in_order_with_the_whole_whose_changes_it_counts(read):
    x, graph = torch.ones(8), TaskGraph(cpu_lanes=2)
    graph.add(torch.sum, x[read])
    graph.add(torch.Tensor.add_, x if read.start else x[3:3], 1)
    assert graph.plan().nodes[1].before == {0}


@pytest.mark.parametrize("kind", PARTS)
def test_but_not_where_autograd_tracks_them_which_has_one_history_for_all(kind):
    base, graph = torch.ones(3, 2), TaskGraph(cpu_lanes=3)
    for part in base:
        PARTS[kind](graph, part)
    for is_on in (True, False, True):
        with torch.set_grad_enabled(is_on):
            assert waits_of(graph) == ([[], [0], [1]] if is_on else [[], [], []])


# -- alarms in a run ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("give", "name"),
    [
        (lambda x: ([], {"x": x}), r"kwargs\['x'\]"),
        (lambda x: ([[torch.ones(1), {"a": x}]], {}), r"args\[0\]\[1\]\['a'\]"),
        (lambda x: ([Box(x)], {}), r"args\[0\]"),
    ],
)
@pytest.mark.parametrize("is_result", [False, True])
def test_an_alarm_names_the_argument(give, name, is_result):
    graph, x = TaskGraph(), torch.zeros(4)
    args, kwargs = give(x)
    args = [graph.add(lambda value=value: value) if is_result else value for value in args]
    graph.add(lambda *args, **kwargs: adds_one(x), *args, writes=(), **kwargs)
    wanted = r"args\[0\]" if is_result and args else name
    message = rf"'<lambda>.*', or one that ran at once, changed {wanted}, a .*\(4,\).*`writes`"
    with pytest.raises(RuntimeError, match=message):
        graph.run()


def test_what_is_said_is_no_news():
    """Writes of results, views of them, what is written again and again, and by whom it is read."""
    x = torch.zeros(4)
    graph = TaskGraph(cpu_lanes=2)
    made = graph.add(torch.clone, x)
    view = graph.add(lambda x: x.view(2, 2), made)
    for _ in range(3):
        graph.add(lambda view, made: adds_one(view), view, made, writes=[view])
        graph.add(adds_one, x, writes=[x])
        sums = [graph.add(lambda *xs: float(sum(x.sum() for x in xs)), x, made, view)]
    for n in range(1, 4):
        assert graph.run()[sums] == [12 * n + 2 * (12 * (n - 1) + 12)]


# -- a check: one sentence for what is not said, none for its twin --------------------------------

_KEPT = torch.zeros(3)


def checked(*tasks):
    """What a check says of tasks, each a function, its arguments, and what it says it writes."""
    graph = TaskGraph(cpu_lanes=2)
    for fn, *args, writes in tasks:
        graph.add(fn, *args, writes=writes)
    return graph.check()


NOT_GIVEN = "reads a tensor of shape (3,) that 'add_' changes: make it an argument"


@pytest.mark.parametrize(
    "read", [lambda: _KEPT + 1, lambda: _KEPT.view(3), lambda: _KEPT], ids=["used", "view", "back"]
)
def test_a_check_tells_of_a_tensor_that_is_read_without_being_given_and_that_another_changes(read):
    assert checked((read, ())) == []  # nobody changes it
    (sentence,) = checked((read, ()), (_KEPT.add_, 1, None))
    assert sentence == f"{name_of(read)!r} {NOT_GIVEN}"


CHANGE = {
    "in a function": lambda: adds_one(_KEPT),
    "returned in a list": lambda: [_KEPT.add_(1)],
    "an output": lambda: torch.add(_KEPT, 1, out=_KEPT),
    "detached": lambda: _KEPT.detach().add_(1),
    "a view": lambda: _KEPT.view(3, 1)[1:].add_(1),
}


@pytest.mark.parametrize("kind", CHANGE)
def test_a_check_tells_of_a_tensor_that_is_changed_and_in_no_writes(kind):
    (sentence,) = checked((CHANGE[kind], ()))
    wanted = r"'<lambda> in .*' changes a tensor of shape \(.*\), and its `writes`"
    assert re.match(wanted, sentence)
    assert checked((CHANGE[kind], [_KEPT])) == []
    assert checked((CHANGE[kind], [_KEPT[:2]])) == [sentence]


def test_a_check_tells_who_changes_a_result_that_it_was_not_given():
    graph, kept = TaskGraph(cpu_lanes=2), []
    graph.add(lambda: (kept.append(torch.zeros(3)), kept[-1])[1], name="makes")
    graph.add(lambda: kept[-1].add_(1), writes=(), name="changes")
    (sentence,) = graph.check()
    assert sentence.startswith("'changes' changes a tensor of shape (3,)")


def test_a_check_tells_of_random_numbers():
    own, unsaid = torch.Generator(), torch.Generator()
    graph = TaskGraph(cpu_lanes=2)
    graph.add(nn.Dropout(), X, writes=(), name="drops")
    graph.add(nn.Dropout().eval(), X, writes=(), name="does not")
    graph.add(lambda chance: torch.rand(1, generator=chance), own, writes=[own], name="says")
    graph.add(lambda chance: torch.rand(1, generator=chance), unsaid, writes=(), name="its own")
    assert graph.check() == [
        "'drops' draws random numbers: leave its `writes` out",
        "'its own' draws from a generator, and its `writes` does not hold that: add it",
    ]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.from_numpy(x.numpy().copy()).add_(1),
        lambda x: torch.tensor([1.0, 2.0]).mul_(2).sum(),
        lambda x: [torch.zeros(3).add_(x) for _ in range(3)],
        lambda x: x.clone().view(3, 1).add_(1)[1:],
    ],
)
def test_a_check_is_silent_about_what_a_task_makes_itself(fn):
    assert checked(*[(fn, X, ())] * 2) == []
