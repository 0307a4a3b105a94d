"""What `writes` says: taken at its word for the plan, watched in runs, and held to by a check."""

import collections
import copy
import dataclasses
import functools
import operator
import re
import threading

import numpy as np
import pytest
import torch
from torch import nn

from autopar import TaskGraph
from autopar.effects.memory import memory_in
from autopar.torch_private import pytree

pytestmark = pytest.mark.usefixtures("threads_gone")

_WAIT_S = 10
X = torch.ones(3)


def adds_one(x):
    x.add_(1)


class Box:
    def __init__(self, held):
        self.held = held


# -- what is read: arguments, and what the function holds -----------------------------------------


def test_who_writes_a_layers_weight_comes_after_those_who_use_the_layer():
    graph, layer = TaskGraph(cpu_lanes=3), nn.Linear(3, 3).requires_grad_(False)
    uses = [graph.add(layer, X, writes=()) for _ in range(2)]
    writer = graph.add(torch.Tensor.add_, layer.weight, 1)
    later = graph.add(layer, X, writes=())
    nodes = graph.plan().nodes
    assert nodes[writer.number].before == {task.number for task in uses}
    assert nodes[later.number].before == {writer.number}


@pytest.mark.parametrize("box", [Box, lambda x: lambda: x, lambda x: {1: Box([x])}, lambda x: {x}])
def test_tensors_inside_of_an_argument_or_a_function_are_read(box):
    x = torch.zeros(3)
    held, graph = box(x), TaskGraph(cpu_lanes=3)
    writer = graph.add(x.add_, 1)
    inside = graph.add(lambda held: None, held, writes=())
    closure = graph.add(lambda: held, writes=())
    nodes = graph.plan().nodes
    assert nodes[inside.number].before == nodes[closure.number].before == {writer.number}


def test_an_array_that_a_task_reads_is_waited_for():
    graph, array = TaskGraph(cpu_lanes=3), np.zeros(3)
    writer = graph.add(array.fill, 1, writes=[array])
    reader = graph.add(np.sum, array, writes=())
    assert graph.plan().nodes[reader.number].before == {writer.number}


def test_memory_is_looked_for_where_it_lies_when_a_run_begins():
    one, other = torch.zeros(4), torch.ones(4)
    graph = TaskGraph(cpu_lanes=2)
    writer, reader = graph.add(one.add_, 1), graph.add(torch.clone, other)
    assert graph.plan().nodes[reader.number].before == set()
    other.data = one
    run = graph.run()
    assert run.plan.nodes[reader.number].before == {writer.number}
    assert run[reader].tolist() == [1] * 4


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


def test_the_caller_may_fill_one_half_while_a_task_reads_the_other(gate):
    buf = torch.zeros(2, 4)
    graph = TaskGraph()
    total = graph.add(lambda x: (gate(), x.sum())[1], buf[0])
    with graph.start() as run:
        assert gate.begun.wait(_WAIT_S)
        buf[1].fill_(7)
        gate.open()
        assert run[total] == 0


def test_what_is_said_is_no_news():
    """Writes of results, views of them, what is written again and again, and by whom it is read."""
    x = torch.zeros(4)
    graph = TaskGraph(cpu_lanes=2)
    made = graph.add(torch.clone, x)
    view = graph.add(lambda x: x.view(2, 2), made)
    for _ in range(3):
        graph.add(adds_one, view, writes=[view])
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
    with pytest.raises(
        RuntimeError, match=r"task 'first' changed args\[0\].*\(4,\).*`writes`"
    ) as why:
        graph.run()
    assert why.value.__notes__[0].startswith("in task 'first' on lane")
    assert ran == []


def test_an_alarm_names_all_who_may_have_done_it(gate):
    """A version counter does not say who has moved it: a reader may be the first to notice."""
    x, begun, done = torch.zeros(4), threading.Event(), threading.Event()

    def writes(x):
        assert begun.wait(_WAIT_S)
        x.add_(1)
        done.set()
        gate()

    def reads(x):
        begun.set()
        assert done.wait(_WAIT_S)

    graph = TaskGraph(cpu_lanes=2)
    graph.add(writes, x, writes=())
    graph.add(reads, x, writes=())
    opening = threading.Timer(1, gate.open)
    opening.start()
    with pytest.raises(RuntimeError, match=r"task 'reads' or 'writes', which ran at once, changed"):
        graph.run()
    opening.join()


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


BOXES = {
    "object": Box,
    "normal": lambda x: torch.distributions.Normal(x, torch.ones(4)),
    "closure": lambda x: lambda: x,
    "partial": lambda x: functools.partial(torch.add, x),
    "nested": lambda x: {"box": [Box({"x": x})]},
}


@pytest.mark.parametrize("kind", BOXES)
def test_what_a_result_holds_is_watched(kind):
    graph = TaskGraph(cpu_lanes=2)
    held = graph.add(BOXES[kind], graph.add(torch.clone, torch.zeros(4)))
    graph.add(lambda held: next(memory_in(held)).add_(1), held, writes=())
    with pytest.raises(RuntimeError, match=r"changed args\[0\]"):
        graph.run()


def test_what_a_result_holds_is_refused_by_a_copy_that_would_leave_it_behind():
    graph = TaskGraph()
    graph.add(operator.attrgetter("held"), Box(torch.zeros(4)))
    (node,) = graph.plan().nodes
    copy = dataclasses.replace(node, fn=None, keywords=None, device=torch.device("meta"))
    with pytest.raises(TypeError, match="a Box with tensors on cpu"):
        copy.call([])


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


@pytest.mark.parametrize("reads", [reads_a_global, lambda: _GLOBAL.view(3)])
def test_a_check_tells_of_a_tensor_that_is_read_without_being_given_and_that_another_changes(reads):
    assert checked((reads, ())) == []  # nobody changes it
    (sentence,) = checked((reads, ()), (_GLOBAL.add_, 1, None))
    assert sentence.endswith(
        "reads a tensor of shape (3,) that 'add_' changes: make it an argument"
    )
    assert sentence.startswith("'reads_a_global' " if reads is reads_a_global else "'<lambda> in ")


@pytest.mark.parametrize(
    "fn",
    [
        lambda: adds_one(_GLOBAL),
        lambda: _GLOBAL.add_(1),
        lambda: [_GLOBAL.add_(1)],
        lambda: _GLOBAL[1:].add_(1),
        lambda: (_GLOBAL.add_(1), _GLOBAL)[1],
        lambda: torch.add(_GLOBAL, 1, out=_GLOBAL),
        lambda: _GLOBAL.detach().add_(1),
        lambda: _GLOBAL.view(3, 1).add_(1),
    ],
)
def test_a_check_tells_of_a_tensor_that_is_changed_and_in_no_writes(fn):
    (sentence,) = checked((fn, ()))
    assert re.match(
        r"'<lambda> in .*' changes a tensor of shape \(.*\), and its `writes`", sentence
    )
    assert checked((fn, [_GLOBAL])) == []


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


def test_a_check_tells_of_a_tensor_that_is_returned_without_being_given():
    graph = TaskGraph(cpu_lanes=2)
    shown = graph.add(lambda: _GLOBAL, writes=(), name="shows")
    assert graph.check() == []
    graph.add(torch.Tensor.add_, shown, 1)
    assert graph.check() == [
        "'shows' reads a tensor of shape (3,) that 'add_' changes: make it an argument"
    ]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x + 1).add_(1),
        lambda x: torch.from_numpy(x.numpy().copy()).add_(1),
        lambda x: torch.tensor([1.0, 2.0]).mul_(2).sum(),
        lambda x: [torch.zeros(3).add_(x) for _ in range(3)],
        lambda x: torch.from_numpy(x.numpy().copy()),
        lambda x: x.clone().view(3, 1).add_(1)[1:],
    ],
)
def test_a_check_is_silent_about_what_a_task_makes_itself(fn):
    assert checked(*[(fn, X, ())] * 2) == []


# -- containers are the caller's own; those with tasks are made anew, and not to be changed --------


def test_iterators_that_tasks_make_are_gone_through_in_order():
    graph = TaskGraph(cpu_lanes=3)
    numbers = graph.add(iter, (1, 2, 3))
    tasks = [graph.add(next, numbers) for _ in range(3)]
    graph.check()
    assert graph.run()[tasks] == [1, 2, 3]
    assert [graph.plan().nodes[each.number].before >= {each.number - 1} for each in tasks[1:]]


CHANGES = {
    "an item that is set": (lambda held: operator.setitem(held, "x", X), {"y": 1}),
    "a value": (lambda held: held.update(x=held["x"] + 1), {"x": torch.zeros(3)}),
    "a list that grows": (lambda held: held.append(torch.ones(1)), [torch.zeros(3)]),
    "of lists": (lambda held: held.append(torch.ones(1)), [[torch.zeros(3)]]),
    "a deque": (lambda held: held.append(3), collections.deque([2])),
    "the order": (lambda held: held.reverse(), [2, 3]),
    "from one to another": (lambda held: held[1].append(held[0].pop()), [[2, 3], [4]]),
    "another key": (lambda held: held.update(b=held.pop("a")), {"a": 3}),
    "a tensor lost": (lambda held: held.pop(), [torch.zeros(1)]),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_container_is_the_callers_own_and_one_with_a_task_in_it_is_not_to_be_changed(kind):
    change, given = CHANGES[kind]
    graph, mine, plain = TaskGraph(), copy.deepcopy(given), copy.deepcopy(given)
    graph.add(change, mine)
    graph.add(lambda: None)
    graph.run()
    change(plain)
    assert str(mine) == str(plain)
    graph = TaskGraph()
    tasks = pytree.tree_map(lambda leaf: graph.add(operator.pos, leaf), given)
    graph.add(change, tasks, name="changes")
    message = "task 'changes' changes a list or a dict.*return what it makes"
    with pytest.raises(RuntimeError, match=message):
        graph.check()


def test_an_option_may_be_taken_out():
    graph = TaskGraph()
    options = {"rate": graph.add(float, 1), "x": graph.add(torch.zeros, 1)}
    graph.add(lambda options: options.pop("rate"), options)
    assert graph.check() == []


def test_what_is_said_of_a_view_holds_for_the_result_that_it_shows():
    graph = TaskGraph(cpu_lanes=2)
    made = graph.add(torch.zeros, 4)
    view = graph.add(torch.Tensor.view, made, 2, 2)
    graph.add(lambda view, made: view.add_(1), view, made, writes=[view])
    for _ in range(2):
        assert graph.run()[made].tolist() == [1] * 4
