"""What the guard of a task graph sees, what it costs, and that it never cries wolf."""

import collections
import contextlib
import dataclasses
import functools
import operator
import queue
import sys
import threading
import types
import warnings

import pytest
import torch
from torch import nn

from autopar import TaskGraph
from autopar.effects.observer import Observer
from autopar.effects.reach import memory_in

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


@pytest.fixture
def observed(monkeypatch):
    """The names of operators that an observer has seen."""
    seen, dispatch = [], Observer.__torch_dispatch__

    def noted(own, func, *args, **kwargs):
        seen.append(func._schema.name)
        return dispatch(own, func, *args, **kwargs)

    monkeypatch.setattr(Observer, "__torch_dispatch__", noted)
    return seen


# -- no false alarm -------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [torch.unbind, lambda x: x.split(1), lambda x: x.view(3, 3)])
def test_parts_of_a_buffer_may_be_written_at_once(parts):
    buf = torch.zeros(3, 3)
    graph, call = TaskGraph(cpu_lanes=3), at_once(3)
    one, two, three = parts(buf)
    graph.add(call, adds_one, one, writes=[one])
    graph.add(call, adds_one, two, writes=[two])
    sums = graph.add(call, torch.sum, three)
    for _ in range(5):
        run = graph.run()
        assert len(run.timeline.lanes) == 3
        assert run[sums] == 0
    assert buf.sum() == 5 * 6


def test_parts_that_interleave_may_be_written():
    buf = torch.zeros(3, 3)
    graph = TaskGraph(cpu_lanes=3)
    for column in buf.unbind(1):
        graph.add(adds_one, column, writes=[column])
    for _ in range(5):
        graph.run()
    assert buf.sum() == 5 * 9


def test_parts_of_a_result_may_be_written():
    graph = TaskGraph(cpu_lanes=2)
    parts = graph.add(torch.chunk, torch.zeros(4), 2)
    halves = [graph.add(operator.getitem, parts, n) for n in range(2)]
    for half in halves:
        graph.add(adds_one, half, writes=[half])
    for _ in range(5):
        found = graph.run()[halves]
    assert [half.tolist() for half in found] == [[5, 5]] * 2


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
    assert graph.check() == []


# -- alarms ---------------------------------------------------------------------------------------


def test_nothing_is_begun_after_an_alarm():
    graph, ran, x = TaskGraph(cpu_lanes=1), [], torch.zeros(4)
    first = graph.add(adds_one, x, name="first")
    graph.order(first, graph.add(ran.append, 1))
    with pytest.raises(
        RuntimeError, match=r"task 'first' changed args\[0\].*\(4,\).*`writes`"
    ) as why:
        graph.run()
    assert why.value.__notes__[0].startswith("in task 'first' on lane")
    assert ran == []


def test_an_alarm_names_all_who_may_have_done_it(gate):
    """A version counter does not say who has moved it: a reader may be the first to notice."""
    x, done = torch.zeros(4), threading.Event()

    def writes(x):
        x.add_(1)
        done.set()
        gate()

    def reads(x):
        assert done.wait(_WAIT_S)

    graph = TaskGraph(cpu_lanes=2)
    graph.add(writes, x)
    graph.add(reads, x)
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
    graph.add(lambda *args, **kwargs: x.add_(1), *args, **kwargs)
    with pytest.raises(RuntimeError, match=f"changed {name}, a tensor"):
        graph.run()


def test_a_task_may_begin_to_write_in_a_later_run():
    x, writes = torch.zeros(4), []
    graph = TaskGraph()
    graph.add(lambda x: x.add_(1) if writes else None, x)
    graph.run()
    assert graph.check() == []
    writes.append(True)
    for run in (graph.run, graph.run_serial):
        with pytest.raises(RuntimeError, match=r"changed args\[0\]"):
            run()


def test_without_version_counters_operators_are_observed(observed):
    graph = TaskGraph(cpu_lanes=2)
    made = graph.add(torch.zeros, 4)
    graph.add(adds_one, made)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"changed args\[0\]"):
        graph.run()
    assert "aten::add_" in observed


_hidden = torch.zeros(4)


def reads_what_nobody_sees(x):
    return x.data + operator.attrgetter("_hid" + "den")(sys.modules[__name__])


def test_what_is_read_unseen_is_refused_where_it_is_observed_and_found_by_a_check():
    graph = TaskGraph(cpu_lanes=2)
    graph.add(_hidden.add_, 1)
    graph.add(reads_what_nobody_sees, torch.ones(4))
    with pytest.raises(RuntimeError, match="'reads_what_nobody_sees' reads .* 'add_' writes it"):
        graph.run()
    (found,) = graph.check()
    assert found.startswith("'reads_what_nobody_sees' comes after 'add_'")
    graph.run()


# -- what a check finds ---------------------------------------------------------------------------


def test_what_a_check_has_found_holds_for_tasks_that_are_added_later():
    graph, x = TaskGraph(cpu_lanes=2), torch.zeros(4)
    writer = graph.add(adds_one, x)
    assert graph.check() == []  # nobody else is there yet
    reader = graph.add(torch.clone, x)
    assert graph.plan().nodes[reader.number].before == {writer.number}


def test_a_check_finds_what_is_left_in_an_attribute():
    class Cache:
        value = None

    def fills(x):
        Cache.value = x + 1

    graph = TaskGraph(cpu_lanes=2)
    graph.add(fills, torch.ones(4))
    graph.add(lambda: Cache.value * 2, name="reads")
    assert graph.check() == ["'reads' comes after 'fills', as one changes what the other uses"]


def test_a_check_finds_what_results_share():
    x = torch.zeros(4)
    graph = TaskGraph(cpu_lanes=2)
    shown = graph.add(lambda: operator.attrgetter("_hid" + "den")(sys.modules[__name__]))
    graph.add(torch.Tensor.add_, shown, 1)
    graph.add(_hidden.mul_, 2)
    graph.add(torch.clone, x)
    assert graph.check() == ["'mul_' comes after 'add_', as one changes what the other uses"]


def test_a_check_orders_who_draws_random_numbers():
    graph = TaskGraph(cpu_lanes=2)
    draw = lambda name: vars(torch)[name](3)  # noqa: E731
    tasks = [graph.add(draw, "rand") for _ in range(3)]
    assert len(graph.check()) == 2
    torch.manual_seed(0)
    found = graph.run()[tasks]
    torch.manual_seed(0)
    assert all(torch.equal(each, torch.rand(3)) for each in found)


def test_samples_of_distributions_stay_in_order():
    graph = TaskGraph(cpu_lanes=2)
    normal = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    fns = [
        normal.sample,
        lambda: normal.rsample(),
        lambda: torch.distributions.Exponential(1.0).sample(),
    ]
    tasks = [graph.add(fn) for fn in fns]
    assert graph.plan().nodes[1].before == {0}
    assert graph.plan().nodes[2].before == {1}
    torch.manual_seed(0)
    found = graph.run()[tasks]
    torch.manual_seed(0)
    assert all(map(torch.equal, found, [fn() for fn in fns]))


def test_dropout_of_nothing_draws_no_random_numbers():
    graph, q = TaskGraph(cpu_lanes=2), torch.rand(1, 2, 3, 4)
    attend = nn.functional.scaled_dot_product_attention
    for fn in (attend, lambda *qkv: attend(*qkv)):
        for _ in range(2):
            graph.add(fn, q, q, q)
        graph.add(nn.Dropout().eval(), q)
    assert graph.check() == []
    assert not any(node.before for node in graph.plan().nodes)


def test_a_check_that_fails_says_why_and_can_be_made_again():
    graph, broken, x = TaskGraph(), [True], torch.zeros(4)

    def fails(x):
        x.add_(1)
        if broken:
            raise ValueError("on purpose")

    graph.add(fails, x)
    graph.add(torch.clone, x)
    with pytest.raises(ValueError, match="on purpose"):
        graph.check()
    broken.clear()
    assert len(graph.check()) == 1


# -- what it costs --------------------------------------------------------------------------------


def test_each_task_is_observed_once(observed):
    graph, x = TaskGraph(), torch.ones(4)
    graph.add(lambda x: x + 1, x)
    graph.add(torch.mul, x, 2)  # says all that it writes
    graph.run()
    assert observed == []
    graph.run_serial()
    assert observed == ["aten::add"]
    graph.run_serial()
    graph.run()
    graph.measure(2)
    graph.measure(2, alone=False)
    assert observed == ["aten::add"]
    graph.check()
    assert observed == ["aten::add"] * 2


def test_measured_times_have_no_observation_in_them(observed):
    graph, x, counts = TaskGraph(), torch.ones(4), []
    graph.add(lambda x: (x + 1, counts.append(len(observed))), x)
    graph.measure(3)
    assert counts == [1, 1, 1, 1]


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


@pytest.mark.parametrize(
    "other",
    [
        lambda x, array: torch.from_numpy(array),
        lambda x, array: torch.as_tensor(array),
        lambda x, array: torch.asarray(array),
        lambda x, array: torch.from_numpy(array[1:]),
        lambda x, array: torch.frombuffer(array, dtype=torch.float32),
        lambda x, array: torch.from_dlpack(array),
        lambda x, array: torch.empty(0).set_(x.untyped_storage()),
    ],
    ids=["from_numpy", "as_tensor", "asarray", "part", "frombuffer", "from_dlpack", "storage"],
)
def test_a_check_finds_memory_by_where_it_lies(other):
    x = torch.zeros(4)
    array = x.numpy()
    graph = TaskGraph(cpu_lanes=2)
    graph.add(lambda: other(x, array).add_(1), name="writes")
    total = graph.add(torch.sum, x)
    assert graph.check() == ["'sum' comes after 'writes', as one changes what the other uses"]
    assert graph.run()[total] == x.sum()


def test_memory_that_a_task_makes_of_its_own_array_is_its_own():
    graph = TaskGraph(cpu_lanes=2)
    for _ in range(2):
        graph.add(lambda x: torch.from_numpy(x.numpy().copy()).add_(1), torch.zeros(4))
    assert graph.check() == []


def test_who_makes_a_tensor_smaller_changes_it():
    x = torch.zeros(4)
    graph = TaskGraph(cpu_lanes=2)
    graph.add(lambda x: x.resize_(2).add_(1), x)
    with pytest.raises(RuntimeError, match=r"changed args\[0\]"):
        graph.run()


class Box:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    "box",
    [
        Box,
        lambda x: types.SimpleNamespace(x=x),
        lambda x: dataclasses.make_dataclass("Data", ["x"])(x),
        lambda x: torch.distributions.Normal(x, torch.ones(4)),
        lambda x: collections.UserDict(x=x),
        lambda x: lambda: x,
        lambda x: functools.partial(torch.add, x),
        lambda x: {"box": [Box({"x": x})]},
    ],
    ids=["object", "namespace", "dataclass", "normal", "dict", "closure", "partial", "nested"],
)
def test_what_a_result_holds_is_watched(box):
    x = torch.zeros(4)
    graph = TaskGraph(cpu_lanes=2)
    held = graph.add(box, graph.add(torch.clone, x))
    graph.add(lambda held: next(memory_in(held)).add_(1), held)
    with pytest.raises(RuntimeError, match=r"changed args\[0\]"):
        graph.run()


def test_what_a_result_holds_is_refused_by_a_copy_that_would_leave_it_behind():
    graph = TaskGraph()
    graph.add(operator.attrgetter("x"), Box(torch.zeros(4)))
    (node,) = graph.plan().nodes
    copy = dataclasses.replace(node, fn=None, keywords=None, device=torch.device("meta"))
    with pytest.raises(TypeError, match="a Box with tensors on cpu"):
        copy.call([])


def test_what_hooks_write_is_found_by_a_check():
    weight, seen = torch.ones(3, requires_grad=True), torch.zeros(3)
    weight.grad = torch.zeros(3)
    weight.register_hook(lambda gradient: (seen.add_(gradient), None)[1])

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.mul_(2)
            return gradient

    graph = TaskGraph(cpu_lanes=2)
    loss = graph.add(lambda: Noted.apply(weight * weight).sum(), name="loss")
    graph.add(torch.Tensor.backward, loss, name="backward")
    total = graph.add(torch.sum, seen, name="total")
    (found,) = graph.check()
    assert found.startswith("'total' comes after 'backward'")
    seen.zero_()
    assert graph.run()[total] == 6


# -- places that are bound anew -------------------------------------------------------------------


class Held:
    x = None


class Slotted:
    __slots__ = ("x",)


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("x", torch.zeros(3))


_bound = torch.zeros(3)


def _binds_a_global():
    global _bound
    _bound = 0.5 * _bound + 1
    return _bound.clone()


def _binds_an_attribute(held):
    held.x = torch.zeros(3)

    def step():
        held.x = 0.5 * held.x + 1
        return held.x.clone()

    return step, lambda: held.x.clone()


def _binds_an_item(held, key):
    def step():
        held[key] = 0.5 * held[key] + 1
        return held[key].clone()

    return step, lambda: held[key].clone()


def _binds_a_variable():
    x = torch.zeros(3)

    def step():
        nonlocal x
        x = 0.5 * x + 1
        return x.clone()

    return step, lambda: x.clone()


def _binds_a_parameter():
    layer = nn.Linear(3, 3)

    def step():
        layer.weight = nn.Parameter(0.5 * layer.weight.detach() + 1)
        return layer.weight.detach().clone()

    return step, lambda: layer.weight.detach().clone()


def _binds_both_of_two():
    held = Held()
    held.x, held.y = torch.zeros(3), torch.ones(3)

    def swap():
        held.x, held.y = held.y, held.x
        return held.x.clone()

    return swap, lambda: held.y.clone()


@pytest.mark.parametrize(
    "make",
    [
        lambda: (_binds_a_global, lambda: _bound.clone()),
        lambda: _binds_an_attribute(Held()),
        lambda: _binds_an_attribute(Slotted()),
        lambda: _binds_an_attribute(Running()),
        lambda: _binds_an_attribute(types.SimpleNamespace()),
        lambda: _binds_an_attribute(Held),
        lambda: _binds_an_item({"x": torch.zeros(3)}, "x"),
        lambda: _binds_an_item([torch.zeros(3)], 0),
        lambda: _binds_an_item(torch.nn.ParameterList([torch.zeros(3)]), 0),
        _binds_a_variable,
        _binds_a_parameter,
        _binds_both_of_two,
    ],
    ids=[
        *("global", "object", "slots", "buffer", "namespace", "class"),
        *("dict", "list", "module", "closure", "weight", "swap"),
    ],
)
def test_who_binds_a_place_anew_comes_after_those_before(make):
    bind, read = make()
    graph = TaskGraph(cpu_lanes=3)
    tasks = [graph.add(fn) for fn in (read, bind, read, bind, read)]
    graph.check()
    order = [graph.plan().nodes[each.number].before for each in tasks]
    assert order == [set(), {0}, {1}, {1, 2}, {3}]
    graph.run()
    assert graph.check() == []


class Bag:
    def __init__(self, held):
        self.held = held
        self.other = None


class Listed(list):
    pass


@dataclasses.dataclass(frozen=True)
class Pair:
    h: torch.Tensor
    n: int = 0


class Remembers(nn.Module):
    last: list[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.last = [torch.zeros(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last.append(self.last[-1] + x)
        return x


class Averages(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.5 * self.mean + x
        return x


_calls, _zero = 0, torch.zeros(3)


def _counts_calls(_):
    global _calls
    _calls += 1


def _remembers_in_itself(_):
    _remembers_in_itself.last = (*_remembers_in_itself.last, 1)


_remembers_in_itself.last = ()


def _remembers_in_a_default(_, seen=[]):  # noqa: B006
    seen.append(_zero + 1)
    return seen


def _moves_a_key(held):
    held.move_to_end(next(iter(held)))


def _script(model):
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return torch.jit.script(model)


_CHANGES = {  # what is held, what changes it, and what reads it
    "a pair": (lambda: (_zero, _zero), lambda o: setattr(o, "held", (o.held[0] + 1, _zero)), None),
    "a state": (lambda: None, lambda o: setattr(o, "held", {"h": _zero + 1}), None),
    "a frozen object": (
        lambda: Pair(_zero),
        lambda o: setattr(o, "held", dataclasses.replace(o.held, h=o.held.h + 1)),
        None,
    ),
    "a namespace": (
        lambda: types.SimpleNamespace(h=(_zero,)),
        lambda o: setattr(o.held, "h", (o.held.h[0] + 1,)),
        lambda o: o.held.h,
    ),
    "a counter": (lambda: 0, lambda o: setattr(o, "held", o.held + 1), None),
    "a flag": (lambda: False, lambda o: setattr(o, "held", not o.held), None),
    "a list": (lambda: [_zero], lambda o: o.held.append(o.held[-1] + 1), lambda o: o.held[-1]),
    "a list in a dict": (lambda: {"a": []}, lambda o: o.held["a"].append(1), lambda o: [*o.held]),
    "a list turned round": (lambda: [1, 2], lambda o: o.held.reverse(), lambda o: o.held[0]),
    "a list of its own kind": (
        lambda: Listed([1]),
        lambda o: o.held.append(2),
        lambda o: o.held[0],
    ),
    "a ring": (
        lambda: collections.deque([_zero, _zero + 1], maxlen=2),
        lambda o: o.held.append(_zero + 2),
        lambda o: o.held[0],
    ),
    "a dict": (lambda: {"h": _zero}, lambda o: o.held.update(h=_zero + 1), lambda o: o.held["h"]),
    "a new key": (dict, lambda o: o.held.update({len(o.held): 1}), lambda o: len(o.held)),
    "a key dropped": (
        lambda: dict.fromkeys(range(99)),
        lambda o: o.held.popitem(),
        lambda o: len(o.held),
    ),
    "a key moved": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda o: _moves_a_key(o.held),
        lambda o: next(iter(o.held)),
    ),
    "counts": (
        collections.Counter,
        lambda o: o.held.update("a"),
        lambda o: o.held["a"],
    ),
    "a set": (set, lambda o: o.held.add(len(o.held)), lambda o: len(o.held)),
    "a queue": (
        queue.Queue,
        lambda o: o.held.put(_zero),
        lambda o: o.held.qsize(),
    ),
    "a user's list": (
        lambda: collections.UserList([_zero]),
        lambda o: o.held.append(_zero),
        lambda o: len(o.held),
    ),
    "layers": (
        lambda: nn.Sequential(nn.ReLU(), nn.ReLU()),
        lambda o: o.held.__setitem__(0, nn.ReLU()),
        lambda o: o.held(_zero),
    ),
    "an attribute by vars": (
        lambda: (_zero,),
        lambda o: vars(o).update(held=(_zero + 1,)),
        lambda o: o.held[0],
    ),
    "a global": (lambda: None, _counts_calls, lambda o: _calls),
    "a function's": (lambda: None, _remembers_in_itself, lambda o: _remembers_in_itself.last),
    "a default": (lambda: None, _remembers_in_a_default, lambda o: _remembers_in_a_default),
    "a script's list": (
        lambda: _script(Remembers()),
        lambda o: o.held(_zero + 1),
        lambda o: o.held.last,
    ),
    "a script's buffer": (
        lambda: _script(Averages()),
        lambda o: o.held(_zero + 1),
        lambda o: o.held.mean,
    ),
    "a buffer of a script's part": (
        lambda: _script(nn.Sequential(Averages(), nn.ReLU())),
        lambda o: o.held(_zero + 1),
        lambda o: o.held[0].mean,
    ),
}


@pytest.mark.parametrize("form", _CHANGES)
def test_who_changes_what_python_holds_comes_after_those_before(form):
    make, write, read = _CHANGES[form]
    bag, look = Bag(make()), read or (lambda o: o.held)
    graph = TaskGraph(cpu_lanes=3)
    reads, writes = functools.partial(look, bag), functools.partial(write, bag)
    tasks = [graph.add(fn) for fn in (reads, writes, reads, writes, reads)]
    graph.check()
    order = [graph.plan().nodes[each.number].before for each in tasks]
    assert [0 in order[1], 1 in order[2], 2 in order[3], 3 in order[4]] == [True] * 4
    graph.run()


def _uses_one_attribute(o):
    o.held = (o.held, 1)


def _uses_another(o):
    return o.other


def _reads_a_list(o):
    return sum(o.held)


def _makes_its_own(o):
    own = Bag([])
    own.other = [_zero]
    own.other.append(_zero + 1)
    return own.other


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (lambda: 1, _uses_one_attribute, _uses_another),
        (lambda: [1, 2], _reads_a_list, _reads_a_list),
        (lambda: 1, _makes_its_own, _makes_its_own),
        (
            lambda: nn.Sequential(nn.Linear(3, 3), nn.GELU()),
            lambda o: o.held(_zero),
            lambda o: o.held(_zero),
        ),
        (lambda: _script(nn.Linear(3, 3)), lambda o: o.held(_zero), lambda o: o.held(_zero)),
    ],
    ids=["other attributes", "readers", "own objects", "a model", "a script"],
)
def test_tasks_that_change_nothing_of_each_others_may_run_at_once(make, one, other):
    bag, graph = Bag(make()), TaskGraph(cpu_lanes=3)
    for fn in (one, other, other):
        graph.add(functools.partial(fn, bag))
    assert graph.check() == []


def _says_it_again(o):
    o.held = "a"


def _puts_back(o):
    before, o.held = o.held, 1
    o.held = before


class Switched(nn.Module):
    def forward(self):
        return self.training


def _tries_without_training(o):
    o.held.eval()
    o.held.train()


def _stands_in(o):
    torch.func.functional_call(o.held, {"weight": torch.ones(1, 3)}, (torch.ones(3),))


_kind = type("Kind", (Bag,), {"count": 0})


def _counts_in_its_class(o):
    type(o.held).count += 1


def _counts_in_a_module(o):
    test_guard_state.count += 1


test_guard_state = types.ModuleType("test_guard_state")
test_guard_state.count = 0


def _has_a_gradient(o):
    o.held.grad = torch.ones(3)


def _goes_on(o):
    return next(o.other) if o.other else None


def _begins_anew(o):
    o.other = iter([1, 2, 3, 4, 5])


def _hooks():
    leaf = torch.ones(3, requires_grad=True)
    bag = Bag([])
    leaf.register_hook(lambda grad: bag.held.append(1))
    bag.other = leaf
    return bag


_STATES = {
    "the same again": (lambda: Bag("a"), _says_it_again, lambda o: o.held),
    "put back": (lambda: Bag(0), _puts_back, lambda o: o.held),
    "a mode put back": (lambda: Bag(Switched()), _tries_without_training, lambda o: o.held()),
    "a stand-in": (lambda: Bag(nn.Linear(3, 1)), _stands_in, _stands_in),
    "a class": (lambda: Bag(_kind(1)), _counts_in_its_class, lambda o: o.held.count),
    "a module": (lambda: None, _counts_in_a_module, lambda o: test_guard_state.count),
    "a gradient": (
        lambda: Bag(torch.ones(3, requires_grad=True)),
        _has_a_gradient,
        lambda o: o.held.grad,
    ),
    "an iterator": (lambda: Bag(0), _begins_anew, _goes_on),
    "seeds": (lambda: None, lambda o: torch.manual_seed(0), lambda o: torch.rand(1)),
    "hooks": (_hooks, lambda o: (2 * o.other).sum().backward(), lambda o: len(o.held)),
}


@pytest.mark.parametrize("form", _STATES)
def test_what_is_changed_and_looks_as_before_keeps_the_order_too(form):
    make, write, read = _STATES[form]
    bag, graph = make(), TaskGraph(cpu_lanes=3)
    reads, writes = functools.partial(read, bag), functools.partial(write, bag)
    tasks = [graph.add(fn) for fn in (reads, writes, reads, writes, reads)]
    graph.check()
    order = [graph.plan().nodes[each.number].before for each in tasks]
    assert [0 in order[1], 1 in order[2], 2 in order[3], 3 in order[4]] == [True] * 4
    graph.run()


def test_iterators_that_tasks_make_are_gone_through_in_order():
    graph = TaskGraph(cpu_lanes=3)
    numbers = graph.add(iter, (1, 2, 3))
    tasks = [graph.add(next, numbers) for _ in range(3)]
    graph.check()
    assert graph.run()[tasks] == [1, 2, 3]
    assert [graph.plan().nodes[each.number].before >= {each.number - 1} for each in tasks[1:]]


def test_what_a_list_bound_anew_holds_later_is_looked_at_too():
    bag = Bag([_zero])

    def binds():
        bag.held = [_zero + 1]

    def fills():
        bag.held.append(_zero + 2)

    def counts():
        return len(bag.held)

    def empties():
        bag.held = []

    graph = TaskGraph(cpu_lanes=3)
    tasks = [graph.add(fn) for fn in (binds, fills, counts, empties)]
    graph.check()
    nodes = graph.plan().nodes
    assert 1 in nodes[tasks[2].number].before
    assert graph.run()[tasks[2]] == 2


def test_runs_in_order_after_a_check_look_at_no_objects_again(monkeypatch):
    bag, graph = Bag([_zero]), TaskGraph(cpu_lanes=3)
    for _ in range(3):
        graph.add(functools.partial(_reads_a_list, bag))
    graph.check()
    monkeypatch.setattr("autopar.graph.learning.Reach", None)
    graph.run_serial()


def test_a_method_of_a_script_is_refused():
    with pytest.raises(ValueError, match="is a method of a TorchScript module"):
        TaskGraph().add(_script(Averages()).forward, _zero)


def test_who_makes_what_nobody_else_uses_binds_nothing():
    class Lazy:
        def __init__(self):
            self.cache, self.more = None, {}

        def __call__(self, x):
            if self.cache is None:
                self.cache = torch.arange(3)
                self.more["made"] = self.cache + 1
                self.new = self.cache + 2
            return x + self.cache

    graph = TaskGraph(cpu_lanes=3)
    for _ in range(3):
        graph.add(Lazy(), torch.ones(3))
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()
    for _ in range(2):
        graph.add(lambda x: model(x), torch.ones(3))
    assert graph.check() == []


@pytest.mark.parametrize("give", [lambda x: ({"x": x},), lambda x: ([x],), lambda x: ([[x]],)])
def test_a_container_that_is_made_anew_is_not_to_be_changed(give):
    def changes(held):
        if isinstance(held, dict):
            held["x"] = held["x"] + 1
        else:
            held.append(torch.ones(1))

    graph = TaskGraph()
    graph.add(changes, *give(torch.zeros(3)))
    with pytest.raises(RuntimeError, match="task 'changes' changes a list or a dict"):
        graph.check()


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (lambda held, i: held.append(i), [2]),
        (lambda held, i: held.append(i), collections.deque([2])),
        (lambda held, i: held.update({i: i}), {2: 3}),
        (lambda held, i: held["k"].append(i), {"k": [2]}),
        (lambda held, i: held.reverse(), [2, 3]),
        (lambda held, i: held[1].append(held[0].pop()), [[2, 3], [4]]),
    ],
)
def test_what_is_put_there_may_be_an_argument_and_order_counts(change, given):
    graph = TaskGraph()
    graph.add(change, given, 1)
    with pytest.raises(RuntimeError, match="changes a list or a dict"):
        graph.check()


class _Switch:
    on = True


class _Slotted:
    __slots__ = ("on",)

    def __init__(self):
        self.on = True


@pytest.mark.parametrize("read", [lambda: _Switch, _Switch], ids=["by its class", "by an object"])
@pytest.mark.parametrize("kind", ["class", "slots"])
def test_an_attribute_that_is_set_and_put_back_keeps_the_order(kind, read):
    switch = _Switch if kind == "class" else _Slotted()
    reader = read() if kind == "class" else switch

    def switched_off():
        switch.on = False
        switch.on = True

    graph = TaskGraph(cpu_lanes=2)
    graph.add(switched_off)
    graph.add(lambda: reader.on)
    assert graph.check() == [
        f"{graph.plan().nodes[1].name!r} comes after 'switched_off', as one changes what the other "
        f"uses"
    ]


def test_objects_of_a_class_with_a_default_are_their_own():
    class Counter:
        count = None

        def __call__(self):
            self.count = 1
            return self.count

    graph = TaskGraph(cpu_lanes=2)
    graph.add(Counter())
    graph.add(lambda: 1)
    assert graph.check() == []


def test_asynchronous_generators_and_coroutines_stay_in_order():
    async def numbers():
        for number in range(3):
            yield number

    async def coroutine():
        pass

    def step(awaited):
        with contextlib.suppress(StopIteration):
            awaited.send(None)

    held, waiting = numbers(), coroutine()
    graph = TaskGraph(cpu_lanes=2)
    for _ in range(2):
        graph.add(lambda: step(held.__anext__()))
        graph.add(lambda: step(waiting) if waiting.cr_frame else None)
    graph.check()
    assert {(2, 0), (3, 1)} <= {
        (node.number, before) for node in graph.plan().nodes for before in node.before
    }


def test_numbers_that_would_be_lost_are_refused_and_an_option_may_be_taken_out():
    graph = TaskGraph()
    graph.add(lambda held: held.append(3), collections.deque([1]))
    with pytest.raises(RuntimeError, match="return what it makes"):
        graph.check()
    graph = TaskGraph()
    graph.add(lambda options: options.pop("rate"), {"rate": 0.1, "x": torch.zeros(1)})
    assert graph.check() == []


def test_nested_tensors_are_observed_by_their_values():
    with warnings.catch_warnings(action="ignore"):  # a prototype of torch's
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    graph = TaskGraph(cpu_lanes=3)
    for each in (lambda: nested.mul_(2), lambda: nested.unbind()[0].add_(1)):
        graph.add(each)
    assert len(graph.check()) == 1


def test_an_item_of_a_result_may_be_bound_anew():
    def changes(held):
        held["x"] = held["x"] + 1

    graph = TaskGraph(cpu_lanes=3)
    held = graph.add(lambda: {"x": torch.zeros(3)})
    first = graph.add(lambda held: held["x"].sum(), held)
    graph.add(changes, held)
    last = graph.add(lambda held: held["x"].sum(), held)
    assert len(graph.check()) == 2
    assert graph.run()[[first, last]] == [0, 3]
