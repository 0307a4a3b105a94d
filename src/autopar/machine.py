"""Machine: what this computer is, for people and for records, and how much it really gives."""

from __future__ import annotations

import _thread
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from autopar.device import num_gpus

Fields = dict[str, Any]

_settling = threading.Lock()


class Description(dict[str, Fields]):
    """`{"hardware": {...}, "software": {...}}`, which prints as a readable list.

    Units are in the names of the fields; a field that could not be read says why.
    """

    def __str__(self) -> str:
        lines: list[str] = []
        for part, fields in self.items():
            lines += [part, *_lines(fields, indent=2)]
        return "\n".join(lines)


def describe() -> Description:
    """This machine: CPU, memory, GPUs, buses and links, and the software that was asked.

    Bus, driver and links come from nvidia-ml-py (`pip install autopar[nvidia]`), and say so where
    they can't be read. Neither the host's name nor any path is part of it.
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
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "a CPU of unknown name"


def processor_names(devices: Iterable[torch.device] | None = None) -> str:
    """The machine's processors in a few words: `2 x NVIDIA H200`, or the CPU's name.

    Args:
        devices: Name only these. All GPUs if not given, and the CPU where there are none.
    """
    named = [torch.device("cuda", i) for i in range(num_gpus())] if devices is None else [*devices]
    gpus = [torch.cuda.get_device_name(each) for each in named if each.type == "cuda"]
    if not gpus:
        return f"{cpu_name()}, {torch.get_num_threads()} threads"
    counts = {name: gpus.count(name) for name in gpus}
    return " and ".join(f"{count} x {name}" for name, count in counts.items())


@dataclass(frozen=True)
class Capacity:
    """How much work a machine does when all its hardware threads are busy.

    Args:
        workers: Threads that worked at once.
        cores: What they got done, in units of what one of them does alone.
    """

    workers: int
    cores: float

    def __str__(self) -> str:
        return f"{self.workers} threads at once do the matrix work of {self.cores:.2f} alone"


def capacity(workers: int | None = None, *, rounds: int = 5, size: int = 384) -> Capacity:
    """Measure how many cores' worth of matrix work this machine gives, in about half a second.

    Two hardware threads of one core give about 1.1, not 2, and a virtual machine can change its
    mind: any limit for CPU work must come from this probe, in the same run, not from a count.

    Args:
        workers: Threads to keep busy; by default as many as torch uses.
        rounds: Pairs of one-alone and all-together; the median of their ratios counts.
        size: Side of the square float32 matrices.

    Raises:
        ValueError: Fewer than one worker or round.
    """
    workers = torch.get_num_threads() if workers is None else workers
    if workers < 1 or rounds < 1:
        msg = f"workers is {workers} and rounds {rounds}; expected at least one of each"
        raise ValueError(msg)
    x = torch.rand(size, size)
    barrier = threading.Barrier(workers)

    def work(together: bool) -> tuple[float, float]:
        if together:
            barrier.wait()
        start_s = time.perf_counter()
        for _ in range(10):
            x.mm(x)
        return start_s, time.perf_counter()

    def join_in(together: bool) -> tuple[float, float]:
        try:
            settle_threads(1)
        except BaseException:
            barrier.abort()  # the others wait there for this one
            raise
        return work(together)

    ratios = []
    with ThreadPoolExecutor(workers) as pool:
        try:
            list(pool.map(join_in, [True] * workers))  # starts and warms every thread
            for _ in range(rounds):
                alone = pool.submit(work, False).result()
                spans = list(pool.map(work, [True] * workers))
                together_s = max(end for _, end in spans) - min(start for start, _ in spans)
                ratios.append(workers * (alone[1] - alone[0]) / together_s)
        except BaseException:
            barrier.abort()  # who waits there for one that was not begun
            raise
    return Capacity(workers, statistics.median(ratios))


def settle_threads(threads: int) -> None:
    """Fix the number of intra-op threads of the calling thread, which must be a new one.

    Its number also becomes the default of threads yet to run an operator, so another one puts that
    back: in this one it would change the number again. And a thread takes over the default at its
    first operator, also after its own number was set; asking for the number counts as one.
    """
    with _settling:  # else one thread could take another's number for the default
        default = torch.get_num_threads()
        if threads != default:
            torch.set_num_threads(threads)
            torch.get_num_threads()
            restored = threading.Lock()
            restored.acquire()
            # Lighter than a `Thread`: it makes up a third of what opening a lane costs.
            _thread.start_new_thread(_restore, (default, restored))
            restored.acquire()


def _restore(default: int, restored: threading.Lock) -> None:
    try:
        torch.set_num_threads(default)
    finally:
        restored.release()


def _describe_gpu(i: int) -> Fields:
    properties = torch.cuda.get_device_properties(i)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "pcie_generation": _nvml_of(i, lambda nvml, h: nvml.nvmlDeviceGetMaxPcieLinkGeneration(h)),
        "pcie_width_lanes": _nvml_of(i, lambda nvml, h: nvml.nvmlDeviceGetMaxPcieLinkWidth(h)),
        "nvlinks_active": _nvml_of(i, _active_nvlinks),
        "peer_access_to": [
            f"cuda:{j}"
            for j in range(num_gpus())
            if j != i and torch.cuda.can_device_access_peer(i, j)
        ],
    }


def _active_nvlinks(nvml: Any, handle: Any) -> int:
    active = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:
            break  # links are numbered without gaps: past the last one
    return active


def _nvml_of(i: int, read: Callable[[Any, Any], Any]) -> Any:
    """Read one field of a GPU; found by its UUID, as NVML ignores CUDA_VISIBLE_DEVICES."""
    uuid = f"GPU-{torch.cuda.get_device_properties(i).uuid}"
    return _nvml(lambda nvml: read(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)))


def _nvml(read: Callable[[Any], Any]) -> Any:
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


def _lines(fields: Fields, indent: int) -> list[str]:
    lines = []
    for name, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for i, each in enumerate(value):
                lines += [f"{'':{indent}}{name}[{i}]", *_lines(each, indent + 2)]
        else:
            shown = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
            if name.endswith("_bytes") and isinstance(value, int):
                shown = f"{value} ({value / 2**30:.1f} GiB)"
            lines.append(f"{'':{indent}}{name}: {shown}")
    return lines
