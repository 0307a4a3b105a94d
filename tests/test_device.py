"""Processors by name, and waits that name what they wait for."""

import threading

import pytest
import torch

from autopar import (
    cpu,
    describe,
    empty_heap,
    empty_pinned_pool,
    gpu,
    in_fresh_process,
    num_gpus,
    synchronize,
    try_gpu,
)
from autopar import try_all_gpus as all_gpus
from autopar.device import new_stream, present
from autopar.machine import page_faults, processor_names


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


@pytest.mark.parametrize("count", [0, 1, 2])
def test_devices_by_the_books_names(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    gpus = [torch.device("cuda", i) for i in range(count)]
    assert (num_gpus(), all_gpus()) == (count, gpus or [cpu()])
    assert try_gpu() == all_gpus()[0]
    assert try_gpu(5) == cpu() == torch.device("cpu")
    for name in (cpu(), "cpu", "cpu:0"):
        assert present(name) == cpu()


def test_without_names_every_gpu_in_use_is_waited_for(waited, monkeypatch):
    synchronize()
    assert waited == [gpu(0), gpu(2)]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    synchronize()
    empty_pinned_pool()
    assert waited == [gpu(0), gpu(2)], "nothing before CUDA is used"


def test_named_devices_and_no_others_are_waited_for(waited):
    synchronize("cuda:1", 0, cpu(), "cuda")
    assert waited == [gpu(1), gpu(0), gpu(2)]
    with pytest.raises(ValueError, match="cuda:3"):
        synchronize(0, 3)
    assert waited == [gpu(1), gpu(0), gpu(2)], "nothing if one is not there"


@pytest.mark.parametrize(
    ("count", "name", "match"),
    [
        (0, 0, r"cuda:0, which is not on this machine: it has cpu.*try_gpu\(0\)"),
        (2, 2, r"cuda:2.*it has cuda:0, cuda:1.*try_gpu\(2\)"),
        (2, "meta", "'meta'; expected the CPU or a CUDA GPU"),
        (2, "gpu", "'gpu'; expected the CPU or a CUDA GPU, as 'cpu', 'cuda:0', autopar.gpu"),
        (2, torch.ones(9), "device is of type Tensor; expected .* or a tensor's x.device"),
        (2, True, "True; expected the CPU or a CUDA GPU"),
        (2, 128, "128; expected the CPU or a CUDA GPU"),
    ],
)
def test_devices_that_are_not_there_are_refused(monkeypatch, count, name, match):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ValueError, match=match):
        synchronize(name)


def faults_of_new_tensors():
    """Page faults of new tensors where others have been freed, and once the heap is empty."""

    def faults():
        before = page_faults()
        tensors = [torch.ones(25_000) for _ in range(200)]  # small enough to come from the heap
        return tensors, page_faults() - before

    first, _ = faults()
    last = torch.ones(25_000)  # or the end of the heap would go back by itself
    del first
    again, count = faults()
    del again
    empty_heap()
    empty = faults()[1]
    del last
    return [count, empty]


def test_a_new_tensor_gets_the_systems_pages_once_the_heap_is_empty():
    if not page_faults():
        pytest.skip("this system counts no page faults")
    count, empty = in_fresh_process(faults_of_new_tensors)  # whose heap nothing else has used
    assert empty > 10 * count + 100


# -- on GPUs --------------------------------------------------------------------------------------


def busy(device, spin, ms):
    """Queue work on a device that is not the current one; return an event after it."""
    with torch.cuda.device(device):
        spin(ms)
        return torch.cuda.current_stream().record_event()


@pytest.mark.gpu
@pytest.mark.parametrize("names", [(), (0,), ("cuda",), (gpu(0), "cpu")])
def test_waits_until_the_gpu_is_done(spin, names):
    event = busy(gpu(0), spin, 30)
    assert not event.query()
    synchronize(*names)
    assert event.query()


@pytest.mark.gpu(2)
def test_without_names_it_waits_for_every_gpu_and_named_for_that_alone(spin):
    before = torch.cuda.current_device()
    events = [busy(device, spin, 30) for device in all_gpus()]
    synchronize()
    assert all(event.query() for event in events)
    long, short = busy(gpu(0), spin, 300), busy(gpu(1), spin, 30)
    synchronize(gpu(1))
    assert short.query()
    assert not long.query()
    assert torch.cuda.current_device() == before
    synchronize()


@pytest.mark.gpu
def test_a_new_stream_is_nobody_elses(spin):
    others = [torch.cuda.Stream(gpu(0)) for _ in range(40)]  # torch has 32, and begins anew
    streams = [new_stream(gpu(0)) for _ in range(40)]
    assert len(set(streams)) == 40
    assert set(streams).isdisjoint(others)
    assert [new_stream(gpu(0), priority=p).priority for p in (0, -1)] == [0, -1]
    torch.zeros(1, device=gpu(0)).item()  # the first one may wait for all streams
    with torch.cuda.stream(streams[0]):
        assert torch.cuda.current_stream() == streams[0]
        spin(30)
        event = streams[0].record_event()
    torch.zeros(1, device=gpu(0)).item()  # nor does the default stream wait for it
    assert not event.query()
    event.synchronize()


@pytest.mark.gpu
def test_streams_are_used_again_and_made_in_threads_of_their_own():
    addresses, x = [], torch.ones(8, 8, device=gpu(0))

    def make():
        addresses.extend(new_stream(gpu(0)).cuda_stream for _ in range(3))
        with torch.cuda.stream(new_stream(gpu(0))):
            x.mm(x)  # cuBLAS warns of a thread that has nothing to do with a GPU yet

    for _ in range(5):
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    assert len(addresses) == 15
    assert len(set(addresses)) == 1  # each was let go of at once


@pytest.mark.gpu
def test_the_pinned_pool_can_be_emptied():
    pinned = torch.empty(2**20, pin_memory=True)
    del pinned
    before = torch.cuda.host_memory_stats()["num_host_free"]
    empty_pinned_pool()
    assert torch.cuda.host_memory_stats()["num_host_free"] > before


@pytest.mark.gpu
def test_gpus_describe_themselves():
    pynvml = pytest.importorskip("pynvml", reason="reads buses and links")
    machine = describe()
    gpus, name = machine["hardware"]["gpus"], torch.cuda.get_device_name(0)
    assert len(gpus) == num_gpus()
    for fields in gpus:
        assert fields["memory_bytes"] > 2**30
        assert fields["multiprocessors"] > 0
        assert len(fields["peer_access_to"]) < num_gpus()
        assert fields["pcie_generation"] >= 1
        assert fields["pcie_width_lanes"] >= 1
        assert 0 <= fields["nvlinks_active"] <= pynvml.NVML_NVLINK_MAX_LINKS
    assert processor_names([gpu(0)]) == f"1 × {name}"
    assert name not in processor_names([cpu()])
    assert name in str(machine)
