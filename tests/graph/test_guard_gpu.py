"""What tasks write without having said so, on a GPU: where a stream's delay would show it."""

import pytest
import torch

from autopar import TaskGraph

pytestmark = pytest.mark.gpu

_GPU = torch.device("cuda", 0)
_N = 2**20


@pytest.fixture
def adds_one_late(spin):
    def add(x):
        spin(5)
        x.add_(1)

    return add


@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_untold_write_is_in_order(adds_one_late, device):
    x = torch.zeros(_N, device=_GPU)
    graph = TaskGraph(cpu_lanes=2)
    graph.add(adds_one_late, x)
    read = graph.add(torch.clone, x, device=device)
    for times in range(1, 5):
        assert graph.run()[read].unique().tolist() == [times]


def test_parts_of_a_buffer_may_be_written_on_streams_at_once(adds_one_late):
    x = torch.zeros(4, _N, device=_GPU)
    graph = TaskGraph(streams=4)
    for part in x[:3]:
        graph.add(adds_one_late, part, writes=[part])
    total = graph.add(torch.sum, x[3])
    for _ in range(3):
        assert graph.run()[total].item() == 0
    assert x.sum(1).tolist() == [3 * _N] * 3 + [0]


def test_measured_times_have_no_observation_in_them():
    """Observing takes some 30 µs an operator, and a stream would wait for them."""
    x, seen = torch.ones(4, device=_GPU), []

    def task(x):
        seen.append(torch._C._len_torch_dispatch_stack())
        return x + 1

    graph = TaskGraph()
    graph.add(task, x)
    graph.measure(3)
    graph.run()
    assert set(seen) == {0}


def test_who_follows_a_function_of_the_cpu_waits_for_what_it_has_queued(adds_one_late):
    """It holds tensors on both sides, so it runs on the CPU, and returns nothing."""
    x, scale = torch.zeros(_N, device=_GPU), torch.ones(1)

    def late():
        assert scale.item() == 1
        adds_one_late(x)

    graph = TaskGraph(cpu_lanes=2)
    task, read = graph.add(late), graph.add(torch.clone, x)
    assert task.device.type == "cpu"
    for times in range(1, 4):
        assert graph.run()[read].unique().tolist() == [times]
