"""What `writes` says: taken at its word for the plan, watched in runs, and held to by a check."""

import functools
import re
import threading

import numpy as np
import pytest
import torch
from torch import nn

from autopar import TaskGraph
from autopar.effects.calls import name_of
from autopar.effects.memory import memory_in

pytestmark = pytest.mark.usefixtures("threads_gone")

_WAIT_S = 10
X = torch.ones(3)


def adds_one(x):
    x.add_(1)


class Box:
    def __init__(self, held):
        self.held = held


HOLD = {
    "object": Box,
    "normal": lambda x: torch.distributions.Normal(x, torch.ones(4)),
    "closure": lambda x: lambda: x,
    "partial": lambda x: functools.partial(torch.add, x),
    "nested": lambda x: {"box": [Box({"x": x})]},
    "set": lambda x: {x},
}


# -- what is read: arguments, and what the function holds -----------------------------------------


@pytest.mark.parametrize("hold", [*HOLD.values(), torch.Tensor.numpy], ids=[*HOLD, "array"])
def test_who_writes_what_arguments_and_functions_hold_waits_for_readers_and_they_for_it(hold):
    x = torch.zeros(4)
    graph, held = TaskGraph(cpu_lanes=3), hold(x)

    def readers():
        inside = graph.add(lambda held: None, held, writes=())
        return {inside.number, graph.add(lambda: held, writes=()).number}

    early, writer, late = readers(), graph.add(x.add_, 1).number, readers()
    nodes = graph.plan().nodes
    assert nodes[writer].before == early
    assert all(nodes[number].before == {writer} for number in late)


def test_who_reads_an_array_waits_for_who_says_that_it_writes_it():
    graph, array = TaskGraph(cpu_lanes=3), np.zeros(3)
    writer = graph.add(array.fill, 1, writes=[array])
    reader = graph.add(np.sum, array, writes=())
    assert graph.plan().nodes[reader.number].before == {writer.number}


# -- no false alarm -------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [torch.unbind, lambda x: x.split(1), lambda x: x.view(3, 3)])
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
    for _ in range(5):
        run = graph.run()
        assert len(run.timeline.lanes) == 3
        assert run[sums] == 0
    assert buf.sum() == 5 * 6


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


def test_tensors_may_be_changed_between_runs_and_grow_in_them():
    x, model, grows = torch.zeros(4), nn.Linear(4, 4), torch.zeros(2)
    graph = TaskGraph(cpu_lanes=2)
    task = graph.add(lambda x: model(x).sum() + x.sum(), x)
    graph.add(lambda x: x.resize_(x.numel() + 1000).fill_(1), grows, writes=[grows])
    total = graph.add(torch.sum, grows)
    for n in range(3):
        x.fill_(n)
        with torch.no_grad():
            model.weight.zero_()
            model.bias.fill_(n)
        assert graph.run()[task, total] == (8 * n, 1000 * n + 1002)


# -- alarms ---------------------------------------------------------------------------------------


def test_nothing_is_begun_after_an_alarm():
    graph, ran, x = TaskGraph(cpu_lanes=1), [], torch.zeros(4)
    first = graph.add(adds_one, x, name="first", writes=())
    graph.order(first, graph.add(ran.append, 1))
    message = r"task 'first', or one that ran at once, changed args\[0\].*\(4,\).*`writes`"
    with pytest.raises(RuntimeError, match=message) as why:
        graph.run()
    assert why.value.__notes__[0].startswith("in task 'first' on lane")
    assert ran == []


@pytest.mark.parametrize(
    ("give", "name"),
    [
        (lambda x: ([], {"x": x}), r"kwargs\['x'\]"),
        (lambda x: ([[torch.ones(1), {"a": x}]], {}), r"args\[0\]\[1\]\['a'\]"),
        (lambda x: ([torch.ones(4), x], {}), r"args\[1\]"),
    ],
)
@pytest.mark.parametrize("change", [adds_one, lambda x: x.resize_(2).add_(1)])
def test_an_alarm_names_the_argument(give, name, change):
    graph, x = TaskGraph(), torch.zeros(4)
    args, kwargs = give(x)
    graph.add(lambda *args, **kwargs: change(x), *args, writes=(), **kwargs)
    with pytest.raises(RuntimeError, match=f"changed {name}, a tensor"):
        graph.run()


@pytest.mark.parametrize("kind", HOLD)
def test_what_a_result_holds_is_watched(kind):
    graph = TaskGraph(cpu_lanes=2)
    held = graph.add(HOLD[kind], graph.add(torch.clone, torch.zeros(4)))
    graph.add(lambda held: next(memory_in(held)).add_(1), held, writes=())
    with pytest.raises(RuntimeError, match=r"changed args\[0\]"):
        graph.run()


# -- a check: one sentence for what is not said, none for its twin --------------------------------

_GLOBAL = torch.zeros(3)


def reads_a_global():
    return _GLOBAL + 1


def checked(*tasks):
    """What a check says of tasks, each a function, its arguments, and what it says it writes."""
    graph = TaskGraph(cpu_lanes=2)
    for fn, *args, writes in tasks:
        graph.add(fn, *args, writes=writes)
    return graph.check()


NOT_GIVEN = "reads a tensor of shape (3,) that 'add_' changes: make it an argument"


@pytest.mark.parametrize(
    "read",
    [reads_a_global, lambda: _GLOBAL.view(3), lambda: _GLOBAL],
    ids=["used", "view", "returned"],
)
def test_a_check_tells_of_a_tensor_that_is_read_without_being_given_and_that_another_changes(read):
    assert checked((read, ())) == []  # nobody changes it
    (sentence,) = checked((read, ()), (_GLOBAL.add_, 1, None))
    assert sentence == f"{name_of(read)!r} {NOT_GIVEN}"


CHANGE = {
    "in a function": lambda: adds_one(_GLOBAL),
    "returned": lambda: _GLOBAL.add_(1),
    "returned in a list": lambda: [_GLOBAL.add_(1)],
    "a part": lambda: _GLOBAL[1:].add_(1),
    "an output": lambda: torch.add(_GLOBAL, 1, out=_GLOBAL),
    "detached": lambda: _GLOBAL.detach().add_(1),
    "a view": lambda: _GLOBAL.view(3, 1).add_(1),
}


@pytest.mark.parametrize("kind", CHANGE)
def test_a_check_tells_of_a_tensor_that_is_changed_and_in_no_writes(kind):
    (sentence,) = checked((CHANGE[kind], ()))
    assert re.match(
        r"'<lambda> in .*' changes a tensor of shape \(.*\), and its `writes`", sentence
    )
    assert checked((CHANGE[kind], [_GLOBAL])) == []


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
        lambda x: torch.from_numpy(x.numpy().copy()),
        lambda x: torch.tensor([1.0, 2.0]).mul_(2).sum(),
        lambda x: [torch.zeros(3).add_(x) for _ in range(3)],
        lambda x: x.clone().view(3, 1).add_(1)[1:],
    ],
)
def test_a_check_is_silent_about_what_a_task_makes_itself(fn):
    assert checked(*[(fn, X, ())] * 2) == []


# -- containers are the caller's own; those with tasks are made anew, and not to be changed --------
