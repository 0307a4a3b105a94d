"""Waits for real GPUs, and what they say of themselves."""

import importlib.util
import threading

import pytest
import torch

from autopar.device import (
    cpu,
    empty_pinned_pool,
    gpu,
    new_stream,
    num_gpus,
    present,
    synchronize,
    try_all_gpus,
)
from autopar.machine import describe, processor_names

pytestmark = pytest.mark.gpu


def busy(device, spin, ms):
    """Queue work on a device that is not the current one; return an event after it."""
    with torch.cuda.device(device):
        spin(ms)
        return torch.cuda.current_stream().record_event()


@pytest.mark.parametrize("names", [(), (0,), ("cuda:0",), ("cuda",), (gpu(0), "cpu")])
def test_waits_until_the_gpu_is_done(spin, names):
    event = busy(gpu(0), spin, 30)
    assert not event.query()
    synchronize(*names)
    assert event.query()


@pytest.mark.gpu(2)
def test_without_names_it_waits_for_every_gpu(spin):
    events = [busy(device, spin, 30) for device in try_all_gpus()]
    synchronize()
    assert all(event.query() for event in events)


@pytest.mark.gpu(2)
def test_named_it_waits_for_that_gpu_alone(spin):
    long, short = busy(gpu(0), spin, 300), busy(gpu(1), spin, 30)
    synchronize(gpu(1))
    assert short.query()
    assert not long.query()
    synchronize()


def test_the_current_gpu_stays_the_current_one(spin):
    before = torch.cuda.current_device()
    for device in try_all_gpus():
        busy(device, spin, 1)
    synchronize()
    synchronize(*try_all_gpus())
    assert torch.cuda.current_device() == before


def test_gpus_beyond_the_last_are_refused():
    with pytest.raises(ValueError, match=f"cuda:{num_gpus()}, which is not on this machine"):
        present(num_gpus())
    assert present("cuda") == gpu(torch.cuda.current_device())


def test_a_new_stream_is_nobody_elses(spin):
    others = [torch.cuda.Stream(gpu(0)) for _ in range(40)]  # torch has 32, and begins anew
    own = [new_stream(gpu(0)) for _ in range(40)]
    assert len(set(own)) == 40
    assert set(own).isdisjoint(others)
    torch.zeros(1, device=gpu(0)).item()  # the first one may wait for all streams
    with torch.cuda.stream(own[0]):
        assert torch.cuda.current_stream() == own[0]
        spin(30)
        event = own[0].record_event()
    torch.zeros(1, device=gpu(0)).item()  # nor does the default stream wait for it
    assert not event.query()
    event.synchronize()


def test_streams_are_used_again_and_made_in_threads_of_their_own():
    made, x = [], torch.ones(8, 8, device=gpu(0))

    def make():
        made.extend(new_stream(gpu(0)).cuda_stream for _ in range(3))
        with torch.cuda.stream(new_stream(gpu(0))):
            x.mm(x)  # cuBLAS warns of a thread that has nothing to do with a GPU yet

    for _ in range(5):
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    assert len(made) == 15
    assert len(set(made)) == 1  # each was let go of at once


def test_a_new_stream_keeps_its_priority():
    assert [new_stream(gpu(0), priority=p).priority for p in (0, -1)] == [0, -1]


def test_the_pinned_pool_can_be_emptied():
    pinned = torch.empty(2**20, pin_memory=True)
    del pinned
    before = torch.cuda.host_memory_stats()["num_host_free"]
    empty_pinned_pool()
    assert torch.cuda.host_memory_stats()["num_host_free"] > before


def test_gpus_describe_themselves():
    machine = describe()
    gpus = machine["hardware"]["gpus"]
    assert len(gpus) == num_gpus()
    for each in gpus:
        assert each["memory_bytes"] > 2**30
        assert each["multiprocessors"] > 0
        assert len(each["peer_access_to"]) < num_gpus()
        if importlib.util.find_spec("pynvml"):
            assert each["pcie_generation"] >= 1
            assert each["pcie_width_lanes"] >= 1
            assert isinstance(each["nvlinks_active"], int)
        else:
            assert each["pcie_generation"] == "not read: needs nvidia-ml-py"
    assert processor_names([gpu(0)]) == f"1 x {torch.cuda.get_device_name(0)}"
    assert torch.cuda.get_device_name(0) not in processor_names([cpu()])
    assert torch.cuda.get_device_name(0) in str(machine)
