"""What tasks put back, go through or keep for themselves: what keeps the order, what need not."""

import collections
import contextlib
import functools
import types
import warnings

import pytest
import torch
from torch import nn

from autopar import TaskGraph
from autopar.graph.node import ancestors

pytestmark = pytest.mark.usefixtures("threads_gone")

_zero = torch.zeros(3)


class Bag:
    def __init__(self, held):
        self.held = held
        self.other = None


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
    nodes = graph.plan().nodes
    assert [ancestors(nodes, n) >= {n - 1} for n in range(1, len(tasks))] == [True] * 4
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


def test_what_a_function_made_once_is_found_in_order_and_models_at_once():
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
    graph.check()
    nodes = graph.plan().nodes
    assert [nodes[n].before for n in (1, 2)] == [{0}, {1}]
    assert nodes[3].before == nodes[4].before == {2}


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
        (lambda held, i: held.append(i), collections.deque([2])),
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
        f"{graph.plan().nodes[1].name!r} comes after 'switched_off', as one may change what the "
        f"other uses"
    ]


class Counter:
    n = 0

    def __call__(self):
        self.n += 1


class SlottedCounter:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def __call__(self):
        self.n += 1


@pytest.mark.parametrize("kind", [Counter, SlottedCounter])
def test_objects_that_count_stay_in_order(kind):
    graph, counter = TaskGraph(cpu_lanes=2), kind()
    for name in ("one", "other"):
        graph.add(counter, name=name)
    assert graph.check() == ["'other' comes after 'one', as one may change what the other uses"]


def test_draws_from_a_generator_that_only_a_check_finds_stay_in_order():
    generators = {"own": torch.Generator()}

    def draws():  # neither the function nor the generator has a name that the code tells
        held = globals()["_hidden"]["own"]
        return getattr(torch, "".join("rand"))(3, generator=held)

    globals()["_hidden"] = generators
    graph = TaskGraph(cpu_lanes=2)
    for name in ("one", "other"):
        graph.add(draws, name=name)
    assert graph.check() == ["'other' comes after 'one', as one may change what the other uses"]
    del globals()["_hidden"]


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
    nodes = graph.plan().nodes
    assert [ancestors(nodes, 2) >= {0}, ancestors(nodes, 3) >= {1}] == [True] * 2


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


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (lambda held: held.update(b=held.pop("a")), {"a": 3}),
        (lambda held: held.pop(), [torch.zeros(1)]),
    ],
    ids=["another key", "a tensor lost"],
)
def test_containers_keep_their_form_and_their_tensors(change, given):
    graph = TaskGraph()
    graph.add(change, given)
    with pytest.raises(RuntimeError, match="changes a list or a dict"):
        graph.check()


def test_what_is_said_of_a_view_holds_for_the_result_that_it_shows():
    graph = TaskGraph(cpu_lanes=2)
    made = graph.add(torch.zeros, 4)
    view = graph.add(torch.Tensor.view, made, 2, 2)
    graph.add(lambda view, made: view.add_(1), view, made, writes=[view])
    for _ in range(2):
        assert graph.run()[made].tolist() == [1] * 4
