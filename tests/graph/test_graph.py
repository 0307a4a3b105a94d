"""Task graphs: any order that a plan allows gives the same bits; waits, costs and times."""

import dataclasses
import itertools
import random
import threading
import time

import numpy as np
import pytest
import torch
from graph_checks import Case, labels, rushing, simulated, starving
from graph_programs import CPU, Program
from sampling import every

from autopar import TaskGraph
from autopar.effects import memory, operators
from autopar.effects.access import Accesses
from autopar.graph.execution import Execution
from autopar.graph.node import Node, Result

pytestmark = pytest.mark.usefixtures("threads_gone")

_WAIT_S = 10
_EACH = 200
_SHARES = [range(start, start + _EACH) for start in range(0, 10_000, _EACH)]


# -- random graphs over labels of devices ---------------------------------------------------------


def mistakes(seeds, **options):
    """What comes out wrong, by the seed of the program and the number of the order."""
    found = {}
    with labels():
        for seed in seeds:
            case = Case(Program(seed, **options))
            assert case.graph.plan().faults() == []
            for number, order in enumerate(case.orders()):
                if wrong := case.simulate(order):
                    found[seed, number] = wrong
    return found


@pytest.mark.parametrize("seeds", every(len(_SHARES), _SHARES, str))
def test_every_order_gives_the_bits_of_the_program(seeds):
    assert mistakes(seeds) == {}


@pytest.mark.parametrize("seeds", every(2, [range(25), range(25, 100)], str))
def test_every_lane_may_be_late(seeds):
    with labels():
        for seed in seeds:
            case = Case(Program(seed))
            for lane in case.graph.plan().schedule.lanes:
                assert case.simulate(starving(random.Random(seed), {lane})) == [], (seed, lane)


@pytest.mark.parametrize("seeds", every(2, [range(50), range(50, 300)], str))
def test_copies_that_are_written_are_nobody_elses(seeds):
    assert mistakes(seeds, copies_written=True) == {}


def test_a_written_copy_is_not_read_in_place_of_its_source():
    with labels():
        graph = TaskGraph()
        x = graph.add(torch.ones, 2)
        there = graph.add(lambda value: value, x, device="cuda:1")
        graph.add(torch.Tensor.add_, there, 1, writes=[there])
        again = graph.add(torch.mul, x, 1, device="cuda:1")
        results = simulated(graph.plan(), min)
        assert torch.equal(results[again.number], torch.ones(2))


# -- that these checks can fail -------------------------------------------------------------------


def with_a_wait_dropped(plan):
    """Plans that each lack one wait, with the job that does not wait, and for which."""
    schedule = plan.schedule
    for place, entry in enumerate(schedule.entries):
        for wait in entry.waits:
            waits = tuple(each for each in entry.waits if each != wait)
            entries = list(schedule.entries)
            entries[place] = entry._replace(waits=waits)
            changed = dataclasses.replace(schedule, entries=tuple(entries))
            yield dataclasses.replace(plan, schedule=changed), entry.job, wait


def with_a_copy_missed(plan):
    """Plans in each of which one task reads what lies on another device, instead of its copy."""
    source_of = {each.number: each.leaves[0] for each in plan.nodes if each.fn is None}
    for node in plan.nodes:
        for i, leaf in enumerate(node.leaves):
            source = source_of.get(leaf.node) if isinstance(leaf, Result) else None
            if isinstance(source, Result):
                leaves = (*node.leaves[:i], source, *node.leaves[i + 1 :])
                changed = dataclasses.replace(node, leaves=leaves)
                nodes = (*plan.nodes[: node.number], changed, *plan.nodes[node.number + 1 :])
                yield dataclasses.replace(plan, nodes=nodes)


def test_a_dropped_wait_is_found():
    seen = []
    with labels():
        for seed in range(40):
            case = Case(Program(seed))
            for plan, job, wait in with_a_wait_dropped(case.graph.plan()):
                name = plan.nodes[wait].name
                assert any(f"does not wait for {name!r}" in fault for fault in plan.faults())
                needs = Result(wait) in plan.nodes[job].leaves
                seen.append((needs, bool(case.simulate(rushing(plan, job), plan))))
    assert len(seen) > 200
    data, hazards = ([found for needs, found in seen if needs is kind] for kind in (True, False))
    assert sum(data) > 0.9 * len(data)  # some take an argument and do nothing with it
    assert sum(hazards) > 0.3 * len(hazards)  # many results may alias, and don't


def test_a_missed_copy_is_found():
    seen = []
    with labels():
        for seed in range(40):
            case = Case(Program(seed))
            for plan in with_a_copy_missed(case.graph.plan()):
                assert any("reads a result on" in fault for fault in plan.faults())
                seen += [any(case.simulate(order, plan) for order in case.orders())]
    assert sum(seen) >= 10


FAULTS = {
    "hazards are not noted": (Accesses, "note", lambda *_: set()),
    "everything is fresh": ("autopar.graph.task_graph", "returns_fresh", lambda fn: True),
    "copies are none": (Node, "_copied", lambda node, tensor: tensor),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found(fault):
    owner, name, wrong = FAULTS[fault]
    found = 0
    with labels(), pytest.MonkeyPatch.context() as patch:  # taken back before the labels are
        target = (f"{owner}.{name}", wrong) if isinstance(owner, str) else (owner, name, wrong)
        patch.setattr(*target)
        for seed in range(100):
            case = Case(Program(seed))
            found += any(case.simulate(order) for order in case.orders())
    assert found >= 10, f"only in {found} of 100 graphs"


# -- where memory lies ----------------------------------------------------------------------------

_X = torch.ones(3, 3)
UNDECLARED = {
    "einsum": (torch.einsum, "ij->ji", _X),
    "broadcast_tensors": (torch.broadcast_tensors, _X, _X),
    "meshgrid": (torch.meshgrid, [_X[0]]),
    "atleast_1d": (torch.atleast_1d, _X),
    "atleast_2d": (torch.atleast_2d, _X),
    "atleast_3d": (torch.atleast_3d, _X.reshape(3, 3, 1)),
    "type_as": (torch.Tensor.type_as, _X, _X),
    "sum_to_size": (torch.Tensor.sum_to_size, _X, 3, 3),
    "conj_physical": (torch.conj_physical, _X),
    "dequantize": (torch.dequantize, _X),
    "to_dense": (torch.Tensor.to_dense, _X),
    "unsafe_chunk": (torch.unsafe_chunk, _X, 2),
    "unsafe_split": (torch.unsafe_split, _X, 1),
    "cartesian_prod": (torch.cartesian_prod, _X[0]),
    "histogramdd": (torch.histogramdd, _X, [_X[0], _X[1], _X[2]]),
    "_foreach_neg_": (torch._foreach_neg_, [_X]),
    "dropout": (torch.dropout, _X, 0.5, False),
    "split": (torch.split, _X, 1),
    "reshape": (torch.reshape, _X, (9,)),
    "contiguous": (torch.Tensor.contiguous, _X),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    UNDECLARED,
)
def test_an_operator_that_may_return_its_argument_is_not_called_fresh(name):
    fn, *args = UNDECLARED[name]
    read = {each.memory for each in memory.ranges_of(args)}
    result = [*args[0]] if fn(*args) is None else fn(*args)
    assert read & {each.memory for each in memory.ranges_of(result)}, "it is fresh after all"
    assert not operators.returns_fresh(fn)


def test_tensors_made_of_one_array_are_the_same_memory():
    array = np.zeros(8)
    graph = TaskGraph(cpu_lanes=2)
    graph.add(torch.add, torch.from_numpy(array), 1)
    ahead = torch.from_numpy(array[2:])
    graph.add(torch.Tensor.add_, ahead, 5, writes=[ahead])
    read, write = graph.plan().nodes
    assert write.before == {read.number}


# -- random graphs on CPU lanes -------------------------------------------------------------------


@pytest.fixture
def sleepy(monkeypatch):
    """Each task begins late by a random time, or not."""
    chance, call = random.Random(0), Node.call

    def late(node, results, **how):
        if chance.random() < 0.3:
            time.sleep(chance.uniform(0, 5e-4))
        return call(node, results, **how)

    monkeypatch.setattr(Node, "call", late)


@pytest.mark.usefixtures("sleepy")
@pytest.mark.parametrize("count", every(2, [25, 150]))
@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
def test_random_graphs_give_on_cpu_lanes_what_their_twins_give(lanes, count):
    for seed in range(lanes * 1000, lanes * 1000 + count):
        program = Program(seed, CPU)
        program.options["cpu_lanes"] = lanes
        case = Case(program)
        for run in (case.graph.run, case.graph.run_serial, case.graph.run):
            case.reset()
            assert case.wrong(run().__getitem__) == [], (seed, run)


@pytest.mark.parametrize("lanes", [2, 4])
def test_independent_tasks_run_at_once(lanes):
    meeting = threading.Barrier(lanes)
    graph = TaskGraph(cpu_lanes=lanes)
    tasks = [graph.add(meeting.wait, _WAIT_S) for _ in range(lanes)]
    run = graph.run()
    assert sorted(run[tasks]) == list(range(lanes))
    assert len(run.timeline.lanes) == lanes


def test_a_chain_keeps_its_lane():
    graph = TaskGraph(cpu_lanes=3)
    chain = [graph.add(threading.get_ident)]
    for _ in range(20):
        chain.append(graph.add(lambda before: threading.get_ident(), chain[-1], cost_s=1e-3))
        graph.add(time.sleep, 1e-4, cost_s=5e-4)
    assert len(set(graph.run()[chain])) == 1
    entries = {entry.job: entry for entry in graph.plan().schedule.entries}
    assert not any(entries[task.number].waits for task in chain)


# -- waiting, costs and times ---------------------------------------------------------------------


def test_one_result_can_be_had_while_others_run(gate):
    graph = TaskGraph(cpu_lanes=2)
    held = graph.add(gate, 7)
    free = graph.add(torch.ones, 2)
    graph.waitall()  # nothing runs yet
    with graph.start() as run:
        assert run[free].tolist() == [1, 1]
        assert gate.begun.wait(_WAIT_S)
        assert not gate.finished
        gate.open()
        graph.waitall()
        assert gate.finished
        assert run[{"a": [held]}] == {"a": [7]}
    assert run[held] == 7


@pytest.mark.parametrize("first", [True, False])
def test_a_task_that_is_issued_while_somebody_begins_to_wait_is_not_missed(first):
    """Between the look whether it is issued and the wait for it."""

    class Meanwhile(dict):
        def setdefault(self, number, lock):
            if first:
                execution._issue(number)
            lock = super().setdefault(number, lock)
            if not first:
                execution._issue(number)
            return lock

    graph = TaskGraph()
    task = graph.add(torch.ones, 1)
    plan = graph.plan()
    execution = Execution(plan, {}, plan.shares)
    execution._awaited = Meanwhile()
    wait = execution.wait_until_issued
    waiter = threading.Thread(target=wait, args=(task.number,), daemon=True)
    waiter.start()
    waiter.join(_WAIT_S)
    assert not waiter.is_alive()


def test_a_plan_is_kept_until_something_changes():
    graph = TaskGraph(cpu_lanes=2)
    one, two = graph.add(torch.ones, 2), graph.add(torch.zeros, 2)
    plan = graph.plan()
    assert (graph.run().plan, graph.run_serial().plan, graph.plan()) == (plan,) * 3
    graph.order(one, two)
    ordered = graph.plan()
    graph.measure(1)
    measured = graph.plan()
    graph.add(torch.neg, two)
    assert len({id(each) for each in (plan, ordered, measured, graph.plan())}) == 4


def test_measured_costs_steer_the_plan():
    graph = TaskGraph(cpu_lanes=2)
    short = [graph.add(time.sleep, 1e-3) for _ in range(4)]
    long = graph.add(time.sleep, 20e-3)
    first = [entry.job for entry in graph.plan().schedule.entries[:2]]
    assert first == [each.number for each in short[:2]]
    graph.measure(2)
    assert graph.plan().schedule.entries[0].job == long.number
    assert 20e-3 <= graph.plan().makespan_s < 1
    assert graph.plan().limit_s <= graph.plan().makespan_s


def test_a_plan_of_guessed_costs_says_so():
    graph = TaskGraph(cpu_lanes=2)
    graph.add(torch.ones, 2, cost_s=1e-3)
    said = {repr: "<Plan: 1 tasks and 0 copies on 1 lanes, 1.000 ms", str: "makespan 1.000 ms"}
    for text_of, wanted in said.items():
        assert wanted in text_of(graph.plan())
        assert "guessed" not in text_of(graph.plan())
    graph.add(torch.ones, 2)
    for text_of in said:
        assert "some costs are guessed: take them by graph.measure()" in text_of(graph.plan())
    graph.measure(1)
    assert not any("guessed" in text_of(graph.plan()) for text_of in said)


@pytest.mark.parametrize("run", ["run", "run_serial"])
def test_times_are_told(run):
    graph = TaskGraph(cpu_lanes=2)
    tasks = [graph.add(time.sleep, 2e-3, name=f"nap {n}") for n in range(6)]
    graph.order(tasks[0], tasks[5])
    done = getattr(graph, run)()
    assert sorted(span.name for span in done.timeline.spans) == [f"nap {n}" for n in range(6)]
    assert set(done.cost_s) == {task.number for task in tasks}
    assert all(cost_s >= 2e-3 for cost_s in done.cost_s.values())
    assert done.wall_s >= done.timeline.makespan_s >= 2 * 2e-3
    assert done.limit_s >= 3 * 2e-3  # nothing was known: by its own times, on two lanes
    assert done.spans[tasks[0].number].end_s <= done.spans[tasks[5].number].start_s


# -- what a worker thread inherits ----------------------------------------------------------------


@pytest.mark.parametrize("run", ["run", "run_serial"])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_autograd_is_as_the_caller_has_it(run, mode):
    w = torch.ones(2, requires_grad=True)
    graph = TaskGraph(cpu_lanes=2)
    loss = graph.add(torch.sum, graph.add(torch.mul, w, 3))
    for each in (mode, torch.enable_grad):  # one run leaves nothing behind for the next
        with each():
            result = getattr(graph, run)()[loss]
        assert result.requires_grad == (each is torch.enable_grad)
        assert result.is_inference() == (each is torch.inference_mode)
    (gradient,) = torch.autograd.grad(result, w)
    assert gradient.tolist() == [3, 3]


def test_tasks_in_every_kind_of_argument_are_found():
    graph = TaskGraph()
    one, two = graph.add(torch.ones, 2), graph.add(torch.full, (2,), 2.0)

    def gathered(first, *rest, key):
        return [first, *itertools.chain(*rest), *key.values()]

    task = graph.add(gathered, one, [two], (one, two), key={"a": two})
    assert [x[0].item() for x in graph.run()[task]] == [1, 2, 1, 2, 2]


def test_what_is_called_need_not_be_hashable():
    @dataclasses.dataclass
    class Scale:
        by: float

        def __call__(self, x):
            return x * self.by

    graph = TaskGraph()
    task = graph.add(Scale(3), torch.ones(2))
    assert graph.run()[task].tolist() == [3, 3]
