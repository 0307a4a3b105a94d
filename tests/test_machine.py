"""What this machine is, in words and numbers, and how much it gives."""

import itertools
import mmap
import socket
import sys
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from leftovers import threads_of_a_new_thread

from autopar import Capacity, capacity, describe
from autopar.machine import page_faults, processor_names, settle_threads


class NvmlError(Exception):
    pass


def nvml_of(**functions):
    """NVML on a driver that knows no functions but those it is given."""
    missing = Mock(side_effect=NvmlError("Function Not Found"))
    asked = dict.fromkeys(("nvmlSystemGetDriverVersion", "nvmlDeviceGetHandleByUUID"), missing)
    numbers = {"NVML_NVLINK_MAX_LINKS": 18, "NVML_FEATURE_ENABLED": 1}
    return Mock(NVMLError=NvmlError, **numbers, **asked | functions)


@pytest.fixture
def two_gpus(monkeypatch):
    """As torch would describe a machine with two GPUs that reach each other."""
    properties = {"name": "NVIDIA H200", "total_memory": 140 * 2**30, "multi_processor_count": 132}
    properties |= {"major": 9, "minor": 0, "uuid": "0a-1b"}
    told = {
        "device_count": lambda: 2,
        "get_device_properties": lambda _: SimpleNamespace(**properties),
        "get_device_name": lambda _: "NVIDIA H200",
        "can_device_access_peer": lambda i, j: True,
    }
    for name, function in told.items():
        monkeypatch.setattr(torch.cuda, name, function)


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
    assert all(software[field] for field in ("cuda", "driver", "os"))
    for private in (socket.gethostname(), "/home/", sys.prefix):
        assert private not in repr(machine)


def test_gpus_buses_and_links_read_as_a_list(two_gpus, monkeypatch):
    asked = []
    nvml = nvml_of(
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
    assert nvml.nvmlInit.call_count == nvml.nvmlShutdown.call_count > 0
    lines = str(machine).splitlines()
    assert lines[0] == "hardware"
    assert "  gpus[1]" in lines
    assert f"    memory_bytes: {140 * 2**30} (140.0 GiB)" in lines
    assert "    peer_access_to: cuda:0" in lines
    assert f"  torch: {torch.__version__}" in lines
    assert processor_names() == "2 × NVIDIA H200"
    assert processor_names([torch.device("cuda:1"), torch.device("cpu")]) == "1 × NVIDIA H200"


@pytest.mark.parametrize(
    ("nvml", "why"),
    [(None, "not read: needs nvidia-ml-py"), (nvml_of(), "not read: Function Not Found")],
)
def test_fields_that_cannot_be_read_say_why(two_gpus, monkeypatch, nvml, why):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None makes the import fail
    machine = describe()
    assert machine["software"]["driver"] == why
    for field in ("pcie_generation", "pcie_width_lanes", "nvlinks_active"):
        assert machine["hardware"]["gpus"][0][field] == why


def test_processors_of_a_machine_without_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    machine = describe()
    assert processor_names() == f"{machine['hardware']['cpu']}, {torch.get_num_threads()} threads"
    assert processor_names([]) == processor_names()
    assert machine["software"]["driver"] == "no GPU"
    assert "  gpus: none" in str(machine).splitlines()


class Matrix:
    """Watches, during its products, what number a thread gets that runs its first operator then."""

    def __init__(self, error):
        self.numbers, self.calls, self.error = [], itertools.count(1), error

    def mm(self, _):
        self.numbers.append(threads_of_a_new_thread())
        if self.error is not None and next(self.calls) == 50:
            raise self.error
        torch.ones(100, 100).mm(torch.ones(100, 100))


@pytest.mark.parametrize("error", [None, ZeroDivisionError(), KeyboardInterrupt()])
def test_capacity_leaves_the_numbers_of_all_threads_as_they_were(monkeypatch, threads_gone, error):
    """The caller's, which need not be the default, and the default of threads yet to begin."""
    default, matrix = threads_of_a_new_thread(), Matrix(error)
    monkeypatch.setattr("autopar.machine.torch.rand", lambda *_: matrix)
    outcome = []

    def caller():
        settle_threads(3)
        try:
            capacity(2)
        except BaseException as failure:
            outcome.append(failure)
        outcome.append(torch.get_num_threads())

    thread = threading.Thread(target=caller)
    thread.start()
    thread.join()
    assert outcome == ([] if error is None else [error]) + [3]
    assert set(matrix.numbers) == {default}
    assert threads_of_a_new_thread() == default


def test_capacity_does_not_wait_for_threads_that_cannot_settle(monkeypatch, in_time):
    calls = itertools.count()

    def settle(_):
        if next(calls):
            raise MemoryError

    monkeypatch.setattr("autopar.machine.settle_threads", settle)
    monkeypatch.setattr("autopar.machine._STUCK_S", 0.5)
    with pytest.raises(RuntimeError):  # as errors of pools and barriers are
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
            return 100.0
        alone = reading >= 0 and reading % (2 + 2 * self.workers) < 2
        return 101.0 if alone else 101.6


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_capacity_counts_what_all_get_done_in_units_of_one_alone(monkeypatch, workers):
    monkeypatch.setattr("autopar.machine.time", RoundsClock(workers))
    assert capacity(workers).cores == pytest.approx(workers / 1.6)
    assert str(Capacity(2, 1.0834)) == (
        "2 threads at once multiply matrices 1.08 times as fast as one thread alone, measured now; "
        "a busy machine gives less"
    )


def test_new_pages_are_counted_and_used_ones_are_not(monkeypatch):
    pytest.importorskip("resource")
    pages = mmap.mmap(-1, 64 * 2**20)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # of large pages so few are new that others hide them
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    before = page_faults()
    memory = torch.frombuffer(pages, dtype=torch.uint8).fill_(1)
    after = page_faults()
    memory.fill_(2)
    assert after - before >= len(pages) // 2**16  # by pages of at most 64 KiB
    assert page_faults() - after <= (after - before) // 2
    monkeypatch.setitem(sys.modules, "resource", None)  # where the system does not count
    assert page_faults() == 0
