"""Task graphs on two GPUs and the CPU: the same bits, whichever lane is late, and no races.

Inputs are computed just before, behind a delay; results are used at once, on the caller's streams.
"""

import contextlib
import gc
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from graph_checks import Case, around_calls
from graph_programs import LABELS, Program

from autopar import TaskGraph

pytestmark = pytest.mark.gpu(2)

_GPUS = [torch.device("cuda", i) for i in range(2)]
_N = 2**22
_SHARES, _EACH = 10, 50  # 500 random graphs in all


def synchronize():
    for gpu in _GPUS:
        torch.cuda.synchronize(gpu)


class Late:
    """Makes what is on one lane late by random times: a stream by kernels, a worker by sleep."""

    def __init__(self, spin):
        self._spin, self._chance, self._held = spin, random.Random(0), set()

    def choose(self, plan, lane):
        self._held = {entry.job for entry in plan.schedule.entries if entry.lane == lane}

    def delay(self, node):
        if node.number in self._held and self._chance.random() < 0.7:
            ms = self._chance.uniform(0.1, 1.0)
            on_gpu = node.device.type == "cuda" or node.source is not None
            self._spin(ms) if on_gpu else time.sleep(ms / 1e3)


@pytest.fixture
def late(spin):
    late = Late(spin)
    with around_calls(late.delay):
        yield late


def on_gpus(seed):
    program = Program(random.Random(seed), LABELS, homes=LABELS)
    return Case(program, on=lambda x, home: x.to(home))


def computed_late(case, spin):
    """Compute the given tensors anew on the current streams, behind a delay; poison until then."""
    staged = {home: fresh.to(home) for home, fresh in case.fresh.items()}
    for buffer in case.buffers.values():
        buffer.fill_(-1)
    synchronize()
    for home, buffer in case.buffers.items():
        if buffer.is_cuda:
            with torch.cuda.device(buffer.device):
                spin(1)
                torch.add(staged[home], 0, out=buffer)
        else:
            buffer.copy_(staged[home])


def wrong(case, spin, run=None):
    computed_late(case, spin)
    return case.wrong((run or case.graph.run)().__getitem__)


@contextlib.contextmanager
def side_streams():
    with contextlib.ExitStack() as stack:
        for gpu in reversed(_GPUS):  # the first GPU stays the current one
            stack.enter_context(torch.cuda.stream(torch.cuda.Stream(gpu)))
        yield


@pytest.mark.parametrize("share", range(_SHARES))
def test_random_graphs_give_the_bits_of_the_program(spin, late, share):
    mistakes = {}
    for seed in range(share * _EACH, (share + 1) * _EACH):
        case = on_gpus(seed)
        plan = case.graph.plan()
        lanes = sorted(plan.schedule.lanes)
        assert plan.faults() == []
        late.choose(plan, lanes[seed % len(lanes)])
        with side_streams() if seed % 2 else contextlib.nullcontext():
            mistakes[seed] = wrong(case, spin)
    assert {seed: mistake for seed, mistake in mistakes.items() if mistake} == {}


def test_each_lane_may_be_late_and_lanes_may_be_kept(spin, late):
    for seed in range(1000, 1025):
        case = on_gpus(seed)
        plan = case.graph.plan()
        with case.graph:
            for lane in plan.schedule.lanes:
                late.choose(plan, lane)
                assert wrong(case, spin) == [], (seed, lane)


@pytest.mark.usefixtures("late")
def test_the_twin_gives_the_bits_of_the_program(spin):
    for seed in range(2000, 2030):
        case = on_gpus(seed)
        assert wrong(case, spin, case.graph.run_serial) == [], seed


@pytest.mark.parametrize(
    ("owner", "name"), [(torch.cuda.Stream, "wait_event"), (torch.cuda.Event, "synchronize")]
)
def test_a_missing_wait_is_found(spin, late, monkeypatch, owner, name):
    wait = getattr(owner, name)

    def careless(*args):
        if threading.current_thread() is threading.main_thread():
            wait(*args)

    monkeypatch.setattr(owner, name, careless)
    found = 0
    for seed in range(12):
        case = on_gpus(seed)
        for lane in case.graph.plan().schedule.lanes:
            late.choose(case.graph.plan(), lane)
            found += bool(wrong(case, spin))
            synchronize()
    assert found > 0


def test_csan_reports_every_seeded_race_and_nothing_else(run_program):
    """Over 200 graphs, in processes beside each other: CSAN is slow."""
    at_once, each = 8, 25
    with ThreadPoolExecutor(at_once) as pool:
        starts = range(0, at_once * each, each)
        ended = list(pool.map(lambda first: run_program("graph_csan.py", first, each), starts))
    for done in ended:
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["trouble"] == []
        assert [graph["reports"] for graph in found["graphs"]] == [0] * each, done.stderr
        assert all(graph["equal"] for graph in found["graphs"])
        assert all(graph["all_seen"] for graph in found["graphs"]), "CSAN saw no tasks"
        assert len(found["races"]) == 6
        for race, (without, with_it) in found["races"].items():
            assert without == 0, f"{race}: reported although all is well\n{done.stderr}"
            assert with_it > 0, f"{race}: not reported"


# -- what the caller does before and after --------------------------------------------------------


@pytest.mark.parametrize("safe", [True, False])
def test_results_are_used_late_on_a_side_stream_while_the_next_run_is_on(spin, monkeypatch, safe):
    """Their memory is free by then, and the next run's results would get it."""
    if not safe:
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    x = torch.zeros(_N, device=_GPUS[0])
    graph, sides = TaskGraph(), [torch.cuda.Stream(gpu) for gpu in _GPUS]
    here = graph.add(torch.add, x, 1)
    tasks = [here, graph.add(torch.mul, here, 1, device=_GPUS[1])]
    gc.collect()
    torch.cuda.empty_cache()  # or the next run could get memory that earlier tests have left
    # There before, as taking memory from the driver would wait for all that is under way.
    seen = [[torch.empty(_N, device=gpu) for gpu in _GPUS] for _ in range(6)]
    with graph:
        graph.run()
        synchronize()
        gc.collect()
        gc.freeze()  # or to search what was loaded by now could take longer than the spin
        for i, outs in enumerate(seen):
            x.fill_(i)
            run = graph.run()
            for task, side, out in zip(tasks, sides, outs, strict=True):
                with torch.cuda.stream(side):
                    spin(60)
                    torch.add(run[task], 0, out=out)
            del run
            gc.collect()
    synchronize()
    assert all(bool((out == i + 1).all()) for i, outs in enumerate(seen) for out in outs) == safe


def test_one_result_is_used_while_another_task_is_on(spin):
    done, issued = torch.cuda.Event(), threading.Event()

    def slow(x):
        spin(300)
        done.record()
        issued.set()
        return x + 1

    x = torch.ones(_N, device=_GPUS[0])
    graph = TaskGraph()
    quick, held = graph.add(torch.neg, x), graph.add(slow, x)
    for _ in range(2):  # the first time loads kernels, which may wait
        issued.clear()
        with graph.start() as run:
            assert bool((run[quick] == -1).all())
            assert issued.wait(10)
            busy = not done.query()
            assert bool((run[held] == 2).all())
    assert busy


def test_times_are_told_for_every_task_and_copy():
    x = torch.ones(256, 256, device=_GPUS[0])
    graph = TaskGraph(cpu_lanes=2)
    task = x
    for device in (_GPUS[0], _GPUS[1], "cpu", _GPUS[1], _GPUS[0], "cpu", _GPUS[0]):
        task = graph.add(torch.mm, task, x, device=device)
    count = len(graph.plan().nodes)
    for run in (graph.run(timed=True), graph.run_serial()):
        assert len(run.timeline.spans) == count
        assert run.wall_s >= run.timeline.makespan_s - 1e-4  # by three clocks
    graph.measure(2)
    assert graph.plan().limit_s > 0
    assert graph.plan().faults() == []


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_autograd_is_as_the_caller_has_it(mode):
    w = torch.ones(4, device=_GPUS[0], requires_grad=True)
    graph = TaskGraph()
    there = graph.add(torch.mul, graph.add(torch.mul, w, 3), 2, device=_GPUS[1])
    back = graph.add(torch.sum, there, device="cpu")
    with mode():
        result = graph.run()[back]
    assert result.requires_grad == (mode is torch.enable_grad)
    assert result.is_inference() == (mode is torch.inference_mode)
    if result.requires_grad:
        (gradient,) = torch.autograd.grad(result, w)
        assert gradient.tolist() == [6, 6, 6, 6]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_task_on_the_cpu_may_return_a_tensor_of_a_gpu(spin, device):
    def made():
        spin(50)
        return torch.full((_N,), 3.0, device=_GPUS[0])

    graph = TaskGraph(cpu_lanes=3)
    task = graph.add(made)
    twice = [graph.add(torch.mul, task, 2, device=device) for _ in range(3)]
    for _ in range(3):
        run = graph.run()
        assert all(bool((value == 6).all()) for value in run[twice])


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_single_number_on_a_gpu_is_copied_where_it_is_needed(device):
    graph = TaskGraph()
    here = graph.add(torch.ones, 2, device="cpu")
    task = graph.add(torch.add, here, torch.tensor(2.0, device=_GPUS[0]), device=device)
    assert graph.run()[task].tolist() == [3, 3]
