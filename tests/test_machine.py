"""What this machine is, in words and numbers, and how much it gives."""

import itertools
import socket
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from autopar.machine import Capacity, capacity, describe, processor_names, settle_threads


class NvmlError(Exception):
    pass


def fake_nvml(**functions):
    """The NVML module with some functions; others fail as on a driver that is too old."""

    def missing(*_):
        raise NvmlError("Function Not Found")

    names = (
        "nvmlInit nvmlShutdown nvmlSystemGetDriverVersion nvmlDeviceGetHandleByUUID "
        "nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetMaxPcieLinkWidth nvmlDeviceGetNvLinkState"
    )
    working = {"nvmlInit": lambda: None, "nvmlShutdown": lambda: None} | functions
    return SimpleNamespace(
        NVMLError=NvmlError,
        NVML_NVLINK_MAX_LINKS=18,
        NVML_FEATURE_ENABLED=1,
        **{name: working.get(name, missing) for name in names.split()},
    )


@pytest.fixture
def two_gpus(monkeypatch):
    """As torch would describe a machine with two GPUs that reach each other."""
    properties = SimpleNamespace(
        name="NVIDIA H200",
        total_memory=140 * 2**30,
        multi_processor_count=132,
        major=9,
        minor=0,
        uuid="0a-1b",
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda i, j: True)


def test_fields_and_their_units():
    machine = describe()
    hardware, software = machine["hardware"], machine["software"]
    assert set(machine) == {"hardware", "software"}
    assert hardware["cpu"]
    assert hardware["cpu_cores"] >= 1
    assert hardware["torch_threads"] == torch.get_num_threads()
    assert hardware["memory_bytes"] > 2**28
    assert len(hardware["gpus"]) == torch.cuda.device_count()
    assert software["torch"] == torch.__version__
    assert software["python"] == ".".join(map(str, sys.version_info[:3]))
    assert all(software[each] for each in ("cuda", "driver", "os"))


def test_neither_the_hosts_name_nor_a_path_is_told():
    text = repr(describe())
    assert socket.gethostname() not in text
    assert "/home/" not in text
    assert sys.prefix not in text


def test_it_reads_as_a_list(two_gpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    lines = str(describe()).splitlines()
    assert lines[0] == "hardware"
    assert "  gpus[1]" in lines
    assert f"    memory_bytes: {140 * 2**30} (140.0 GiB)" in lines
    assert "    peer_access_to: cuda:0" in lines
    assert f"  torch: {torch.__version__}" in lines


def test_gpus_buses_and_links(two_gpus, monkeypatch):
    asked = []
    nvml = fake_nvml(
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 5,
        nvmlDeviceGetMaxPcieLinkWidth=lambda handle: 16,
        nvmlDeviceGetNvLinkState=lambda handle, link: int(link != 3),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    machine = describe()
    first, second = machine["hardware"]["gpus"]
    assert first == {
        "name": "NVIDIA H200",
        "memory_bytes": 140 * 2**30,
        "multiprocessors": 132,
        "compute_capability": "9.0",
        "pcie_generation": 5,
        "pcie_width_lanes": 16,
        "nvlinks_active": 17,
        "peer_access_to": ["cuda:1"],
    }
    assert second["peer_access_to"] == ["cuda:0"]
    assert machine["software"]["driver"] == "580.1"
    assert set(asked) == {"GPU-0a-1b"}
    assert processor_names() == "2 x NVIDIA H200"
    assert processor_names([torch.device("cuda:1"), torch.device("cpu")]) == "1 x NVIDIA H200"


@pytest.mark.parametrize(
    ("nvml", "why"),
    [(None, "not read: needs nvidia-ml-py"), (fake_nvml(), "not read: Function Not Found")],
)
def test_fields_that_cannot_be_read_say_why(two_gpus, monkeypatch, nvml, why):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None makes the import fail
    machine = describe()
    assert machine["software"]["driver"] == why
    for field in ("pcie_generation", "pcie_width_lanes", "nvlinks_active"):
        if nvml is None or field != "nvlinks_active":
            assert machine["hardware"]["gpus"][0][field] == why


def test_processors_of_a_machine_without_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    name = describe()["hardware"]["cpu"]
    assert processor_names() == f"{name}, {torch.get_num_threads()} threads"
    assert processor_names([]) == processor_names()
    assert describe()["software"]["driver"] == "no GPU"


@pytest.mark.parametrize("workers", [1, 2, None])
def test_capacity_measures_something_and_leaves_no_trace(workers):
    threads = set(threading.enumerate())
    before = torch.get_num_threads()
    found = capacity(workers, rounds=3, size=256)
    assert found.workers == (workers or before)
    assert found.cores > 0
    assert torch.get_num_threads() == before
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [before]
    assert set(threading.enumerate()) <= threads


def number_in_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


class Matrix:
    """Watches, during its products, what number a thread gets that runs its first operator then."""

    def __init__(self, error):
        self.found, self.calls, self.error = [], itertools.count(1), error

    def mm(self, _):
        self.found.append(number_in_new_thread())
        if self.error is not None and next(self.calls) == 50:
            raise self.error
        torch.ones(100, 100).mm(torch.ones(100, 100))


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("error", [None, ZeroDivisionError(), KeyboardInterrupt()])
def test_capacity_leaves_the_numbers_of_all_threads_as_they_were(monkeypatch, number, error):
    """The caller's, which need not be the default, and the default of threads yet to begin."""
    default, matrix = number_in_new_thread(), Matrix(error)
    monkeypatch.setattr("autopar.machine.torch.rand", lambda *_: matrix)
    told = []

    def caller():
        settle_threads(number)
        try:
            capacity(2, rounds=2)
        except BaseException as failure:
            told.append(failure)
        told.append(torch.get_num_threads())

    thread = threading.Thread(target=caller)
    thread.start()
    thread.join()
    assert told == ([] if error is None else [error]) + [number]
    assert set(matrix.found) == {default}
    assert number_in_new_thread() == default


def test_capacity_whose_threads_cannot_settle_says_so_and_does_not_wait_for_them(
    monkeypatch, in_time
):
    calls = itertools.count()

    def settle(_):
        if next(calls):
            raise MemoryError

    monkeypatch.setattr("autopar.machine.settle_threads", settle)
    with pytest.raises((MemoryError, threading.BrokenBarrierError)):
        in_time(lambda: capacity(3))


class RoundsClock:
    """A clock by which work takes 1 s alone, and 1.6 s when all workers are at it."""

    def __init__(self, workers):
        self.workers = workers
        self.readings = itertools.count()
        self.thread = threading.local()

    def perf_counter(self):
        reading = next(self.readings) - 2 * self.workers  # after the warm-up
        starts = self.thread.starts = not getattr(self.thread, "starts", False)
        if starts:
            return 0.0
        alone = reading >= 0 and reading % (2 + 2 * self.workers) < 2
        return 1.0 if alone else 1.6


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_capacity_counts_what_all_get_done_in_units_of_one_alone(monkeypatch, workers):
    monkeypatch.setattr("autopar.machine.time", RoundsClock(workers))
    assert capacity(workers, rounds=2, size=8).cores == pytest.approx(workers / 1.6)


def test_capacity_in_words():
    assert str(Capacity(2, 1.0834)) == "2 threads at once do the matrix work of 1.08 alone"


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"workers": -1}, {"workers": 1, "rounds": 0}])
def test_capacity_needs_a_worker_and_a_round(wrong):
    with pytest.raises(ValueError, match="at least one of each"):
        capacity(**wrong)
