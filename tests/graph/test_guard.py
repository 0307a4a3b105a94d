"""What the guard of a task graph sees, what it costs, and that it never cries wolf."""

import dataclasses
import functools
import operator
import threading

import pytest
import torch
from torch import nn

from autopar import TaskGraph
from autopar.effects.memory import memory_in

pytestmark = pytest.mark.usefixtures("threads_gone")

_WAIT_S = 10


def adds_one(x):
    x.add_(1)


def at_once(count):
    """A function that goes on once so many calls of it are under way."""
    meeting = threading.Barrier(count)

    def call(fn, *args):
        meeting.wait(_WAIT_S)
        value = fn(*args)
        meeting.wait(_WAIT_S)
        return value

    return call


# -- no false alarm -------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [torch.unbind, lambda x: x.split(1), lambda x: x.view(3, 3)])
def test_parts_of_a_buffer_may_be_written_at_once(parts):
    buf = torch.zeros(3, 3)
    graph, call = TaskGraph(cpu_lanes=3), at_once(3)
    one, two, three = parts(buf)
    graph.add(call, adds_one, one, writes=[one])
    graph.add(call, adds_one, two, writes=[two])
    sums = graph.add(call, torch.sum, three, writes=())
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


def test_tensors_may_be_changed_between_runs():
    x, model = torch.zeros(4), nn.Linear(4, 4)
    graph = TaskGraph()
    task = graph.add(lambda x: model(x).sum() + x.sum(), x)
    for n in range(3):
        x.fill_(n)
        with torch.no_grad():
            model.weight.zero_()
            model.bias.fill_(n)
        assert graph.run()[task] == 8 * n


def test_a_model_may_be_trained_by_tasks():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
    optimizer = torch.optim.Adam(model.parameters())
    graph = TaskGraph(cpu_lanes=2)
    loss = graph.add(torch.sum, graph.add(model, torch.rand(8, 4)))
    graph.add(optimizer.zero_grad)
    graph.add(torch.Tensor.backward, loss)
    graph.add(optimizer.step)
    before = [each.clone() for each in model.parameters()]
    for _ in range(3):
        graph.run()
    assert model[1].num_batches_tracked == 3
    assert not any(map(torch.equal, before[:2], list(model.parameters())[:2]))


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
def test_an_alarm_names_the_argument(give, name):
    graph, x = TaskGraph(), torch.zeros(4)
    args, kwargs = give(x)
    graph.add(lambda *args, **kwargs: x.add_(1), *args, writes=(), **kwargs)
    with pytest.raises(RuntimeError, match=f"changed {name}, a tensor"):
        graph.run()


# -- where tensors lie ----------------------------------------------------------------------------


def test_memory_is_looked_for_where_it_lies_when_a_run_begins():
    one, other = torch.zeros(4), torch.ones(4)
    graph = TaskGraph(cpu_lanes=2)
    writer, reader = graph.add(one.add_, 1), graph.add(torch.clone, other)
    assert graph.plan().nodes[reader.number].before == set()
    other.data = one
    run = graph.run()
    assert run.plan.nodes[reader.number].before == {writer.number}
    assert run[reader].tolist() == [1] * 4


def test_a_buffer_may_grow_in_a_task():
    buf = torch.zeros(2)
    graph = TaskGraph(cpu_lanes=2)
    graph.add(lambda x: x.resize_(x.numel() + 1000).fill_(1), buf, writes=[buf])
    total = graph.add(torch.sum, buf)
    assert [graph.run()[total].item() for _ in range(3)] == [1002, 2002, 3002]


@pytest.mark.parametrize("run", ["run", "run_serial", "check"])
def test_autocast_is_as_the_caller_has_it(run):
    graph = TaskGraph(cpu_lanes=2)
    dtypes = []
    graph.add(lambda x: dtypes.append(torch.mm(x, x).dtype), torch.ones(2, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        getattr(graph, run)()
    graph.run()
    assert dtypes == [torch.bfloat16, torch.float32]


# -- other ways to the same memory ----------------------------------------------------------------


def test_who_makes_a_tensor_smaller_changes_it():
    x = torch.zeros(4)
    graph = TaskGraph(cpu_lanes=2)
    graph.add(lambda x: x.resize_(2).add_(1), x, writes=())
    with pytest.raises(RuntimeError, match=r"changed args\[0\]"):
        graph.run()


class Box:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    "box",
    [
        Box,
        lambda x: torch.distributions.Normal(x, torch.ones(4)),
        lambda x: lambda: x,
        lambda x: functools.partial(torch.add, x),
        lambda x: {"box": [Box({"x": x})]},
    ],
    ids=["object", "normal", "closure", "partial", "nested"],
)
def test_what_a_result_holds_is_watched(box):
    x = torch.zeros(4)
    graph = TaskGraph(cpu_lanes=2)
    held = graph.add(box, graph.add(torch.clone, x))
    graph.add(lambda held: next(memory_in(held)).add_(1), held, writes=())
    with pytest.raises(RuntimeError, match=r"changed args\[0\]"):
        graph.run()


def test_what_a_result_holds_is_refused_by_a_copy_that_would_leave_it_behind():
    graph = TaskGraph()
    graph.add(operator.attrgetter("x"), Box(torch.zeros(4)))
    (node,) = graph.plan().nodes
    copy = dataclasses.replace(node, fn=None, keywords=None, device=torch.device("meta"))
    with pytest.raises(TypeError, match="a Box with tensors on cpu"):
        copy.call([])
