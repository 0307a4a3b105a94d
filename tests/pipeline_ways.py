"""What tests of copy pipelines share: small tensors, and every way through a pipeline."""

import threading
import time
from collections import namedtuple

import pytest
import torch

from autopar.transfer.copy_stream import CopyStream

_WAIT_S = 10  # for what should come at once
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
on_devices = pytest.mark.parametrize("device", DEVICES)
VERBS = ["to_host", "prefetch", "map"]

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32),
    *(torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.float8_e5m2),
    *(torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz, torch.float8_e8m0fnu),
    *(torch.float4_e2m1fn_x2, torch.bits8, torch.bits16),
)
Pair = namedtuple("Pair", "first second")


class Noting(CopyStream):
    """A stream that counts its copies, and can be waited for."""

    def __init__(self, device):
        super().__init__(device)
        self.copies = 0
        self._copied = threading.Condition()

    def copy(self, to, source):
        super().copy(to, source)
        with self._copied:
            self.copies += 1
            self._copied.notify_all()

    def wait_for_copies(self, count):
        with self._copied:
            assert self._copied.wait_for(lambda: self.copies >= count, _WAIT_S)


def comes_true(condition):
    """Whether it does, soon: threads on their way out of a copy let go of things a bit later."""
    give_up_s = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > give_up_s:
            return False
        time.sleep(1e-3)
    return True


def bits_of(tensor):
    """All the bits of a dense tensor, as they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).tolist()


def filled(shape, dtype, seed=0):
    """Any bits; of bools, those that there are."""
    dice = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel() * dtype.itemsize
    bits = torch.randint(256, (count,), dtype=torch.uint8, generator=dice)
    return (bits > 100 if dtype == torch.bool else bits.view(dtype)).view(shape)


def blank(item, pin):
    """Host memory like an item's, full of zeros."""
    return torch.empty_like(item, pin_memory=pin).zero_()


def ahead(slots):
    """How many large items may be asked for ahead: one for each slot, and two that wait."""
    return slots + 2


def numbers(count, size=4):
    """Small tensors, each full of its own number."""
    return [torch.full((size,), i) for i in range(count)]


def first_elements(tensors):
    return [tensor.flatten()[0].item() for tensor in tensors]


WAYS = {
    "to_host, a list": lambda pipeline, xs: pipeline.to_host(list(xs)),
    "to_host, a tuple": lambda pipeline, xs: pipeline.to_host(tuple(xs)),
    "to_host, a generator": lambda pipeline, xs: pipeline.to_host(x for x in xs),
    "to_host, an iterator": lambda pipeline, xs: pipeline.to_host(iter(xs)),
    "prefetch, a list": lambda pipeline, xs: pipeline.prefetch(list(xs)),
    "prefetch, a generator": lambda pipeline, xs: pipeline.prefetch(x for x in xs),
    "map": lambda pipeline, xs: pipeline.map(lambda x: x, xs),
    "to_host_async": lambda pipeline, xs: [
        handle.result() for handle in [pipeline.to_host_async(x) for x in xs]
    ],
}


def all_ways(pipeline, items):
    """The items once through each way."""
    for way in WAYS.values():
        yield from way(pipeline, items)


every_way = pytest.mark.parametrize("way", WAYS)


def call(pipeline, verb, source, **options):
    """The results of a verb for a source that is on the side that the verb copies from."""
    if verb == "map":
        return pipeline.map(torch.clone, source, **options)
    return getattr(pipeline, verb)(source, **options)


def side(verb, device):
    """The device that a verb's items have to be on."""
    return device if verb.startswith("to_host") else "cpu"


def values_of(tensor):
    """The least and the greatest, which are one where nothing of it was overwritten."""
    return {tensor.min().item(), tensor.max().item()}
