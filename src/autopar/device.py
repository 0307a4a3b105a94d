"""Device: this machine's processors by D2L's names, and a wait that names what it waits for."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref

import torch

from autopar.refusal import what, whole_number
from autopar.torch_private import empty_host_cache, has_context

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: it doesn't wait for the default stream
_free_streams: dict[tuple[int, int], list[int]] = {}  # addresses, by device and priority
_LAST_INDEX = 127  # torch keeps a device's number in a byte, and takes the last bits of more


def cpu() -> torch.device:
    """The CPU.

    >>> import autopar as ap
    >>> ap.cpu()
    device(type='cpu')
    """
    return torch.device("cpu")


def gpu(i: int = 0) -> torch.device:
    """The `i`-th GPU, whether or not it is there.

    Raises:
        ValueError: `i` is no whole number from 0 to 127.

    >>> import autopar as ap
    >>> ap.gpu(1)
    device(type='cuda', index=1)
    """
    whole_number("i", i, 0, _LAST_INDEX, of=", the number of a GPU")
    return torch.device("cuda", i)


def num_gpus() -> int:
    """How many GPUs PyTorch sees here.

    >>> import torch
    >>> import autopar as ap
    >>> ap.num_gpus() == torch.cuda.device_count()
    True
    """
    return torch.cuda.device_count()


def try_gpu(i: int = 0) -> torch.device:
    """The `i`-th GPU if it is there, else the CPU.

    Raises:
        ValueError: `i` is no whole number from 0 on.

    >>> import autopar as ap
    >>> ap.try_gpu(1_000)  # which is nowhere
    device(type='cpu')
    """
    whole_number("i", i, 0, of=", the number of a GPU")
    return gpu(i) if num_gpus() > i else cpu()


def try_all_gpus() -> list[torch.device]:
    """All GPUs, or `[cpu()]` on a machine without one.

    >>> import autopar as ap
    >>> len(ap.try_all_gpus()) == max(1, ap.num_gpus())  # the CPU where there is none
    True
    """
    return [gpu(i) for i in range(num_gpus())] or [cpu()]


def present(device: torch.device | str | int) -> torch.device:
    """The device with its index, refused if not here; `0` is a GPU, `"cuda"` the current one."""
    here = ", ".join(map(str, try_all_gpus()))
    try:
        processor = gpu(device) if isinstance(device, int) else torch.device(device)
        if processor.type not in ("cpu", "cuda"):
            raise TypeError(device)
    except (RuntimeError, TypeError, ValueError) as error:
        msg = (
            f"device is {what(device)}; expected the CPU or a CUDA GPU, as 'cpu', 'cuda:0', "
            f"autopar.gpu(0) or a tensor's x.device. This machine has {here}."
        )
        raise ValueError(msg) from error
    if processor.type == "cpu":
        return cpu()
    if processor.index is None and num_gpus():
        processor = gpu(torch.cuda.current_device())
    if processor.index is None or processor.index >= num_gpus():
        msg = (
            f"device is {processor}, which is not on this machine: it has {here}. Pass one "
            f"of these, or take try_gpu({processor.index or 0}), which falls back to the CPU."
        )
        raise ValueError(msg)
    return processor


def synchronize(*devices: torch.device | str | int) -> None:
    """Wait until the devices have finished all work given to them; with none named, all devices.

    `torch.cuda.synchronize()` without a device waits for the current device only; this never
    depends on which device is current. A CPU needs no wait: its operators return when done.

    Raises:
        ValueError: A device that is not on this machine.

    >>> import autopar as ap
    >>> ap.synchronize(ap.cpu())  # nothing is under way there
    """
    for device in list(map(present, devices)) if devices else used_gpus():
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def used_gpus() -> list[torch.device]:
    """GPUs that this process has given anything to; asking others takes memory for a context."""
    if not torch.cuda.is_initialized():
        return []
    return [torch.device("cuda", i) for i in range(num_gpus()) if has_context(i)]


def empty_pinned_pool() -> None:
    """Give back the pinned memory that torch keeps for reuse, so that the next use pays again.

    >>> import autopar as ap
    >>> ap.empty_pinned_pool()
    """
    if torch.cuda.is_initialized():
        empty_host_cache()


def empty_heap() -> None:
    """Give what Python and torch have freed back to the system, so that new tensors need its pages.

    Without this a new tensor may get memory that an earlier one has touched, which takes a fraction
    of the time to write. Does nothing where the C library is not GNU's.

    >>> import autopar as ap
    >>> ap.empty_heap()
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def new_stream(device: torch.device, *, priority: int = 0) -> torch.cuda.Stream:
    """A CUDA stream that nothing else in the process uses; lower priorities go first.

    Torch hands out the same 32 streams again and again, so two parts of a program that ask it may
    get one stream: each waits for the other's work then, and a capture takes up both.
    """
    driver = _driver()
    if driver is None:
        return torch.cuda.Stream(device, priority=priority)
    torch.cuda.init()
    free = _free_streams.setdefault((device.index, priority), [])
    with torch.cuda.device(device):
        torch.cuda.mem_get_info()  # lets this thread call the driver, and cuBLAS, for this GPU
        try:
            address = free.pop()
        except IndexError:  # none was given back
            handle = ctypes.c_void_p()
            error = driver.cuStreamCreateWithPriority(ctypes.byref(handle), _NON_BLOCKING, priority)
            if error or handle.value is None:
                msg = f"{device} makes no more CUDA streams (error {error} of its driver)"
                raise RuntimeError(msg) from None
            address = handle.value
        stream = torch.cuda.ExternalStream(address, device)
    vars(stream)["life"] = life = _Life()  # a weak reference to the stream never tells its end
    weakref.finalize(life, free.append, address).atexit = False
    return stream


class _Life:
    """What is there as long as a stream."""


@functools.cache
def _driver() -> ctypes.CDLL | None:
    """CUDA's driver, where there is one by its name on Linux."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
