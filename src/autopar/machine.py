"""Machine: what this computer is, for people and for records, and how much it really gives."""

from __future__ import annotations

import _thread
import contextlib
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from autopar.device import gpu, num_gpus, try_all_gpus
from autopar.refusal import whole_number

Fields = dict[str, Any]

_MOST_WORKERS = 1024  # more than machines have cores; a million would take all memory
_ROUNDS, _SIZE = 5, 384  # pairs of one thread and all, multiplying matrices of this side
_STUCK_S = 10.0  # a thread that isn't there by then never settled
_settling = threading.Lock()


class Description(dict[str, Fields]):
    """`{"hardware": {...}, "software": {...}}`, which prints as a readable list.

    Units are in the names of the fields; a field that could not be read says why.
    """

    def __str__(self) -> str:
        return "\n".join(_lines(self, ""))


def describe() -> Description:
    """This machine: CPU, memory, GPUs, buses and links, and the software that was asked.

    Bus, driver and links come from nvidia-ml-py (`pip install autopar[nvidia]`), and say so where
    they can't be read. Neither the host's name nor any path is part of it.

    >>> import autopar as ap
    >>> ap.describe()["hardware"]["cpu_cores"] > 0
    True
    """
    hardware = {
        "cpu": cpu_name(),
        "cpu_cores": os.cpu_count() or "not read: this system does not tell",
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": _memory_bytes(),
        "gpus": [_describe_gpu(i) for i in range(num_gpus())],
    }
    software = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none: this build of torch has no CUDA",
        "driver": _nvml(lambda nvml: nvml.nvmlSystemGetDriverVersion()) if num_gpus() else "no GPU",
        "python": platform.python_version(),
        "os": platform.platform(),
    }
    return Description(hardware=hardware, software=software)


@cache
def cpu_name() -> str:
    """The CPU's model name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "a CPU of unknown name"


def processor_names(devices: Iterable[torch.device] | None = None) -> str:
    """The machine's or some devices' GPUs: `2 × NVIDIA H200`, or the CPU where there are none."""
    devices = try_all_gpus() if devices is None else devices
    gpus = [torch.cuda.get_device_name(device) for device in devices if device.type == "cuda"]
    if not gpus:
        threads = torch.get_num_threads()
        return f"{cpu_name()}, {threads} thread{'s' * (threads != 1)}"
    counts = {name: gpus.count(name) for name in gpus}
    return " and ".join(f"{count} × {name}" for name, count in counts.items())


def page_faults() -> int:
    """How many pages of memory the system has had to give this process; 0 where it doesn't count.

    >>> page_faults() >= 0
    True
    """
    try:
        import resource
    except ImportError:  # Windows has no such module
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@dataclass(frozen=True)
class Capacity:
    """How much a machine does: `workers` threads at once get done what `cores` alone would.

    >>> import autopar as ap
    >>> ap.Capacity(workers=4, cores=2.1).cores
    2.1
    """

    workers: int
    cores: float

    def __str__(self) -> str:
        return (
            f"{self.workers} threads at once multiply matrices {self.cores:.2f} times as fast as "
            f"one thread alone, measured now; a busy machine gives less"
        )


def capacity(workers: int | None = None) -> Capacity:
    """Measure how many cores' worth of matrix work this machine gives, in about half a second.

    Two hardware threads of one core give about 1.1, not 2, and a virtual machine can change its
    mind: any limit for CPU work must come from this probe, in the same run, not from a count.

    Args:
        workers: Threads to keep busy; by default as many as torch uses.

    Raises:
        ValueError: `workers` is no whole number from 1 to 1,024.

    >>> import autopar as ap
    >>> 0 < ap.capacity(2).cores < 8
    True
    """
    workers = torch.get_num_threads() if workers is None else workers
    whole_number("workers", workers, most=_MOST_WORKERS)
    x = torch.rand(_SIZE, _SIZE)
    barrier = threading.Barrier(workers, timeout=_STUCK_S)

    def work(together: bool) -> tuple[float, float]:
        if together:
            barrier.wait()
        start_s = time.perf_counter()
        for _ in range(10):
            x.mm(x)
        return start_s, time.perf_counter()

    ratios = []
    with ThreadPoolExecutor(workers, initializer=settle_threads, initargs=(1,)) as pool:
        try:
            list(pool.map(work, [True] * workers))  # starts and warms every thread
            for _ in range(_ROUNDS):
                start_s, end_s = pool.submit(work, False).result()
                starts_s, ends_s = zip(*pool.map(work, [True] * workers), strict=True)
                ratios.append(workers * (end_s - start_s) / (max(ends_s) - min(starts_s)))
        finally:
            barrier.abort()  # for those that wait there for one that was not begun
    return Capacity(workers, statistics.median(ratios))


def settle_threads(threads: int) -> None:
    """Fix the number of intra-op threads of the calling thread, which must be a new one.

    It also becomes the default of threads yet to run an operator, so another thread puts that back:
    in this one it would change the number again. And a thread takes over the default at its first
    operator, also after its own number was set; asking for the number counts as one.
    """
    with _settling:  # else one thread could take another's number for the default
        _choose_routines()
        default = torch.get_num_threads()
        if threads != default:
            torch.set_num_threads(threads)
            torch.get_num_threads()
            restored = threading.Lock()
            restored.acquire()
            # Lighter than a `Thread`: it makes up a third of what opening a lane costs.
            _thread.start_new_thread(_restore, (default, restored))
            restored.acquire()


@cache
def _choose_routines() -> None:
    """Let MKL choose its routines for this CPU, in one thread.

    Where several threads were the first to use them at once, the bits of `exp`, `sin` and others
    were not those of later calls in 1 of 30 processes (torch 2.13).
    """
    torch.ones(1, device="cpu").exp()


def _restore(default: int, restored: threading.Lock) -> None:
    try:
        torch.set_num_threads(default)
    finally:
        restored.release()


def _describe_gpu(i: int) -> Fields:
    properties = torch.cuda.get_device_properties(i)

    def ask(read: Callable[[Any, Any], Any]) -> Any:  # by UUID: NVML ignores CUDA_VISIBLE_DEVICES
        uuid = f"GPU-{properties.uuid}"
        return _nvml(lambda nvml: read(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)))

    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "pcie_generation": ask(lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
        "pcie_width_lanes": ask(lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
        "nvlinks_active": ask(_active_nvlinks),
        "peer_access_to": [
            str(gpu(j))
            for j in range(num_gpus())
            if j != i and torch.cuda.can_device_access_peer(i, j)
        ],
    }


def _active_nvlinks(nvml: Any, handle: Any) -> int:
    active = 0
    with contextlib.suppress(nvml.NVMLError):  # links are numbered without gaps
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            active += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
    return active


def _nvml(read: Callable[[Any], Any]) -> Any:
    """What NVIDIA's management library says, or why it says nothing."""
    try:
        import pynvml
    except ImportError:
        return "not read: needs nvidia-ml-py"
    try:
        pynvml.nvmlInit()
        try:
            return read(pynvml)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"not read: {error}"


def _memory_bytes() -> int | str:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return "not read: this system does not tell"


def _lines(fields: Fields, indent: str) -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield f"{indent}{name}"
            yield from _lines(value, f"{indent}  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from _lines({f"{name}[{i}]": part for i, part in enumerate(value)}, indent)
        elif isinstance(value, list):
            yield f"{indent}{name}: {', '.join(value) or 'none'}"
        elif name.endswith("_bytes") and isinstance(value, int):
            yield f"{indent}{name}: {value} ({value / 2**30:.1f} GiB)"
        else:
            yield f"{indent}{name}: {value}"
