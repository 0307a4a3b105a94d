"""What holds in a thread holds in what it gives to GPUs, whichever thread launches it."""

import pytest
import torch
from lane_forms import equals, lane_on

from autopar import TaskGraph, cpu_lane, cuda_lane
from autopar.device import synchronize

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("grad", [False, True])
def test_grad_mode_and_device_are_right_whoever_launches(gate, grad):
    def state(_):
        current = torch.cuda.current_stream()
        return torch.is_grad_enabled(), torch.cuda.current_device(), current == lane._stream

    last = torch.cuda.device_count() - 1
    with cpu_lane() as worker, cuda_lane(last) as lane, torch.set_grad_enabled(grad):
        at_once = lane.submit(state, None)
        later = lane.submit(state, worker.submit(gate))
        gate.open()
        assert at_once.result() == later.result() == (grad, last, True)


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
@pytest.mark.parametrize("held", [False, True])
def test_autocast_is_the_submitters_whoever_launches(gate, place, held):
    x = torch.ones(8, 8, device="cuda:0")
    with cpu_lane() as worker, lane_on(place) as lane:
        after = [worker.submit(gate)] if held else []
        with torch.autocast("cuda", dtype=torch.bfloat16):
            low = lane.submit(torch.mm, x, x, after=after)
        full = lane.submit(torch.mm, x, x)
        gate.open()
        assert low.result().dtype == torch.bfloat16
        assert full.result().dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")
    assert torch.is_autocast_cache_enabled()


def test_no_task_reads_a_weight_that_another_stream_has_yet_to_cast(spin):
    """Autocast keeps casts of weights for all threads, and knows nothing of streams."""
    size = 1024
    weight = torch.ones(size, size, device="cuda:0", requires_grad=True)
    x = torch.ones(size, size, device="cuda:0", dtype=torch.bfloat16)
    synchronize()

    def late():
        spin(30)
        return x @ weight

    with torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(5):
            with cuda_lane(0) as one, cuda_lane(0) as other:
                # What is freed here is what a cast would get, if it came too late.
                one.submit(torch.full, (size, size), float("nan"), device="cuda:0").result()
                results = [one.submit(late), other.submit(torch.matmul, x, weight)]
                mine = x @ weight
                assert all(equals(each.result(), size) for each in results)
                assert equals(mine, size)


@pytest.mark.gpu(2)
def test_a_cpu_task_finds_the_submitters_gpu_and_a_stream_its_own():
    def where():
        return torch.cuda.current_device(), torch.ones(1, device="cuda").device.index

    with cpu_lane() as worker, cuda_lane(0) as lane:
        for index in (1, 0, 1):
            with torch.cuda.device(index):
                assert worker.submit(where).result() == (index, index)
                assert lane.submit(where).result() == (0, 0)
                assert torch.cuda.current_device() == index


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
def test_a_stream_that_a_task_leaves_current_is_no_other_tasks_and_its_work_is_waited_for(
    place, spin
):
    def current():
        return torch.cuda.current_device(), torch.cuda.current_stream(last)

    def leave():
        torch.cuda.set_stream(torch.cuda.Stream(last))  # which makes its GPU the current one
        spin(50)
        return torch.full((), 3.0, device=torch.device("cuda", last))

    last = torch.cuda.device_count() - 1
    torch.ones(1, device=torch.device("cuda", last))  # from now on workers have a stream there
    mine = current()
    with lane_on(place) as lane:
        before = lane.submit(current).result()
        assert lane.submit(leave).result().item() == 3.0
        assert lane.submit(current).result() == before
        assert current() == mine


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_stream_that_a_graphs_task_leaves_current_is_neither_another_tasks_nor_the_callers(lanes):
    def leave():
        torch.cuda.set_stream(torch.cuda.Stream())
        return torch.cuda.current_stream()

    graph = TaskGraph(cpu_lanes=lanes)
    left, after = graph.add(leave), graph.add(torch.cuda.current_stream)
    mine = torch.cuda.current_stream()
    for run in (graph.run, graph.run_serial):
        stream, later = run()[[left, after]]
        assert stream != later
        assert torch.cuda.current_stream() == mine
