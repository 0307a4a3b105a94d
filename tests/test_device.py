"""Processors by name, and waits that name what they wait for."""

import pytest
import torch

from autopar.device import cpu, empty_heap, empty_pinned_pool, gpu, present, synchronize


@pytest.fixture
def waited(monkeypatch):
    """A machine with three GPUs, of which 0 and 2 were used; what was waited for, in order."""
    log = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "synchronize", log.append)
    monkeypatch.setattr("autopar.device.has_context", lambda index: index != 1)
    return log


def test_without_names_every_gpu_in_use_is_waited_for(waited):
    synchronize()
    assert waited == [gpu(0), gpu(2)]


def test_nothing_is_waited_for_before_cuda_is_used(waited, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    synchronize()
    assert waited == []


def test_named_devices_and_no_others_are_waited_for(waited):
    synchronize("cuda:1", 0, cpu(), "cuda")
    assert waited == [gpu(1), gpu(0), gpu(2)]


def test_nothing_is_waited_for_if_one_device_is_not_there(waited):
    with pytest.raises(ValueError, match="cuda:3"):
        synchronize(0, 3)
    assert waited == []


@pytest.mark.parametrize("name", [cpu(), "cpu", "cpu:0", torch.device("cpu", 0)])
def test_the_cpu_is_always_there(name):
    assert present(name) == cpu()
    synchronize(name)


@pytest.mark.parametrize(
    ("count", "name", "match"),
    [
        (0, 0, r"cuda:0, which is not on this machine: it has cpu.*try_gpu\(0\)"),
        (0, "cuda", r"not on this machine.*try_gpu\(0\)"),
        (2, 2, r"cuda:2.*it has cuda:0, cuda:1.*try_gpu\(2\)"),
        (2, "meta", "meta; expected the CPU or a CUDA GPU"),
        (2, "nonsense", "'nonsense'; expected the CPU or a CUDA GPU"),
    ],
)
def test_devices_that_are_not_there_are_refused(monkeypatch, count, name, match):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for refuse in (present, synchronize):
        with pytest.raises(ValueError, match=match):
            refuse(name)


def test_emptying_a_pinned_pool_that_nobody_made_does_nothing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    empty_pinned_pool()


def test_a_new_tensor_gets_the_systems_pages_once_the_heap_is_empty():
    resource = pytest.importorskip("resource")

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        made = [torch.ones(25_000) for _ in range(200)]  # small enough to come from the heap
        return made, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    first, _ = faults()
    if resource.getrusage(resource.RUSAGE_SELF).ru_minflt == 0:
        pytest.skip("this system counts no page faults")
    last = torch.ones(25_000)  # or the end of the heap would go back by itself
    del first
    again, count = faults()
    del again
    empty_heap()
    assert faults()[1] > 10 * count + 100
    del last
