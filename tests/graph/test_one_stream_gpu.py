"""Traced code on one GPU is run by who calls `run`, on the current stream, as eager code is."""

import pytest
import torch

from autopar import Run, TaskGraph

pytestmark = pytest.mark.gpu


def code(x):
    for _ in range(20):
        x = torch.relu(x @ x) / 50
    return x


def test_it_is_queued_on_the_current_stream_behind_what_is_there(spin):
    x = torch.rand(64, 64, device="cuda")
    graph, result = TaskGraph.trace(code, x)
    want = code(x + 1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        spin(20)
        x.add_(1)
        run = graph.run()
        assert stream.query()  # `run` has waited
        assert torch.equal(run[result], want)


def test_times_are_there_for_those_who_ask():
    graph, _ = TaskGraph.trace(code, torch.rand(64, 64, device="cuda"))
    with pytest.raises(RuntimeError, match=r"expected run\(timed=True\)"):
        _ = graph.run().timeline
    for run in (graph.run(timed=True), graph.run_serial()):
        assert len(run.timeline.spans) == len(graph.plan().nodes)
    with graph.start(timed=True) as run:
        pass
    assert len(run.timeline.spans) == len(graph.plan().nodes)


def test_a_run_is_on_the_current_stream_after_one_that_a_launcher_had():
    graph, result = TaskGraph.trace(code, torch.rand(64, 64, device="cuda"))
    with graph.start() as run:
        started = run[result]
    assert torch.equal(graph.run()[result], started)


def test_after_measuring_it_has_the_streams_with_which_it_was_faster():
    def two(x, y):
        return code(x), code(y)

    given = [torch.rand(64, 64, device="cuda") for _ in range(2)]
    graph, result = TaskGraph.trace(two, *given)
    assert len(graph.plan().schedule.lanes) == 1
    graph.measure()
    for run in (graph.run(), graph.run_serial()):
        assert all(map(torch.equal, run[result], two(*given)))


@pytest.mark.parametrize(("chain", "count"), [(False, 4), (True, 1)], ids=["beside", "a chain"])
def test_it_has_several_streams_if_they_could_gain_and_runs_were_faster(monkeypatch, chain, count):
    """Kernels may leave room for others, which no plan can know."""
    monkeypatch.setattr(Run, "wall_s", property(lambda run: 1 / len(run.plan.schedule.lanes)))
    graph, x = TaskGraph(cpu_lanes=1), torch.rand(64, 64, device="cuda")
    last = x
    for _ in range(4):
        task = graph.add(torch.mm, x, last, cost_s=1.0)
        last = task if chain else x
    graph.measure()
    assert len(graph.plan().schedule.lanes) == count


def test_an_error_ends_it_and_the_next_run_is_whole():
    x = torch.ones(4, device="cuda")
    graph = TaskGraph(streams=1)
    graph.add(torch.mm, x, x)
    graph.add(torch.add, x, 1, out=torch.empty(4, device="cuda"))
    with pytest.raises(RuntimeError) as raised:
        graph.run()
    assert "in task 'mm' on lane 'cuda:0'" in raised.value.__notes__[0]


def test_memory_is_as_in_eager_code():
    def wide(x):
        for _ in range(30):
            x = x * 1.5
        return x

    x = torch.ones(1 << 20, device="cuda")
    graph, result = TaskGraph.trace(wide, x)
    for call in (lambda: wide(x), lambda: graph.run()[result]):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        value = call()
        assert torch.cuda.max_memory_allocated() - before <= 3 * value.nbytes
        del value


@pytest.mark.gpu(2)
def test_what_moves_to_another_gpu_is_no_barrier():
    def spread(x, y):
        return x.exp().to("cuda:1").log(), y.sin()

    x, y = torch.rand(8, device="cuda:0"), torch.rand(8, device="cuda:1")
    graph, result = TaskGraph.trace(spread, x, y)
    plan = graph.plan()
    assert not any(told.unknown for told in plan._hazards.told)
    assert all(map(torch.equal, graph.run()[result], spread(x, y)))


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("run", ["run", "run_serial"])
def test_a_cpu_task_that_is_the_first_to_use_cuda_is_waited_for(run_program, lanes, run):
    """In a process of its own, as there is one first time."""
    done = run_program("first_use_of_cuda.py", lanes, run)
    assert done.returncode == 0, done.stderr
