"""Copy pipelines on the CPU: every bit comes out, in batches and from `map`, too."""

import dataclasses
from collections import OrderedDict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pipeline_ways import (
    DTYPES,
    WAYS,
    Pair,
    all_ways,
    bits_of,
    every_way,
    filled,
    first_elements,
    numbers,
    on_devices,
)
from torch.utils import _pytree as pytree

from autopar.transfer.pipeline import CopyPipeline

pytestmark = pytest.mark.usefixtures("threads_gone")


# -- bit for bit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.usefixtures("company")
def test_any_dtype_and_shape(pipeline, dtype):
    shapes = [(), (5,), (5,), (0,), (3, 8), (2, 0, 3), (40, 56), (1,), (1,), (1,)]
    items = [filled(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    for item, result in zip(items * len(WAYS), all_ways(pipeline, items), strict=True):
        assert (result.dtype, result.shape) == (item.dtype, item.shape)
        assert result.stride() == item.stride()
        assert bits_of(result) == bits_of(item)


BLANKS = {  # by where results go
    "fresh memory": lambda items: None,
    "memory given": lambda items: list(map(torch.zeros_like, items)),
    "memory with gaps": lambda items: [torch.zeros(2 * len(x), dtype=x.dtype)[::2] for x in items],
}


@pytest.mark.parametrize("into", BLANKS)
@pytest.mark.parametrize("kind", [list, iter])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.usefixtures("together")
def test_small_ones_travel_together(streams, alike, kind, into):
    items = [torch.full((3 if alike else i % 5,), i) for i in range(100)]
    out = BLANKS[into](items)
    with CopyPipeline("cpu", slots=2, slot_bytes=512) as pipeline:
        results = list(pipeline.to_host(kind(items), out=out))
        assert streams[0].copies < 50
    assert all(map(torch.equal, results, items))
    assert out is None or all(result is target for result, target in zip(results, out, strict=True))


@pytest.mark.usefixtures("together")
def test_a_batchs_small_ones_travel_together(streams):
    batch = {i: filled((i,), DTYPES[i % 5]) for i in range(20)}
    with CopyPipeline("cpu", slots=2, slot_bytes=4096) as pipeline:
        (result,) = pipeline.prefetch([batch])
        assert streams[0].copies == 1
    assert list(result) == list(batch)
    assert all(torch.equal(result[i], batch[i]) for i in batch)


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
@pytest.mark.parametrize("threads", [1, 3])
def test_large_ones_travel_in_chunks(streams, slots, threads):
    large = filled((3, 1 << 20), torch.uint8)
    with CopyPipeline("cpu", slots=slots, slot_bytes=1 << 19, threads=threads) as pipeline:
        (result,) = pipeline.to_host([large])
        assert streams[0].copies == 6
        (back,) = pipeline.prefetch([result.mT])
        assert streams[1].copies == 6
    assert torch.equal(result, large)
    assert torch.equal(back, large.mT)


def test_a_slot_is_no_larger_than_asked():
    assert CopyPipeline("cpu", slot_bytes=1000).slot_bytes == 512
    assert CopyPipeline("cpu", slot_bytes=1).slot_bytes == 1
    assert CopyPipeline("cpu", slot_bytes=1024).slot_bytes == 1024


@pytest.mark.parametrize("threads", [1, 2])
def test_slots_smaller_than_the_gaps_in_a_block(in_time, threads):
    """Some chunks of it hold nothing at all."""
    batch = [torch.full((n,), n, dtype=torch.uint8) for n in (1, 70, 0, 3)]

    def run():
        with CopyPipeline("cpu", slots=2, slot_bytes=16, threads=threads) as pipeline:
            return list(pipeline.prefetch([batch] * 3))

    for result in in_time(run, 5):
        assert all(map(torch.equal, result, batch))


@every_way
def test_nothing_to_copy(pipeline, way):
    assert list(WAYS[way](pipeline, [])) == []


@every_way
@pytest.mark.usefixtures("company")
def test_tensors_of_inference_mode(pipeline, way):
    with torch.inference_mode():
        items = numbers(10)
        inside = list(WAYS[way](pipeline, items))
    outside = list(WAYS[way](pipeline, items))
    assert first_elements(inside) == first_elements(outside) == list(range(10))
    assert not any(result.is_inference() for result in outside)


# -- batches --------------------------------------------------------------------------------------
BATCHES = {
    "tuple": lambda x: (x, x + 1),
    "list": lambda x: [x, [x + 1], []],
    "dict": lambda x: {"b": x, "a": {"c": x + 1}, 3: None},
    "ordered": lambda x: OrderedDict(b=x, a=x + 1),
    "named": lambda x: Pair(x, Pair(x + 1, "text")),
    "mixed": lambda x: ({"x": [x, (x + 1,)]}, 3, "text", None, 2.5, {1, 2}, b"bytes"),
    "twice": lambda x: (x, x),
    "none": lambda x: ("no", ["tensor", {}]),
    "number": lambda x: 3,
    "deque": lambda x: deque([x]),
    "torch's named tuple": lambda x: torch.return_types.max((x, x)),
    "objects": lambda x: [x, np.ones(3), torch.float32, len, True, range(3), {"a": {"b"}}],
    "objects that hold no tensors": lambda x: [x, SimpleNamespace(y=3), Number(3)],
}


@dataclasses.dataclass
class Number:
    x: int


@on_devices
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("size", [0, 1000])
@pytest.mark.parametrize("verb", ["a list", "a generator", "map"])
def test_batches_keep_their_form(kind, size, verb, device):
    batches = [BATCHES[kind](torch.full((size,), i)) for i in range(8)]
    with CopyPipeline(device, slot_bytes=1024) as pipeline:
        if verb == "map":
            results, nothing = [], torch.ones(1, device=device)
            list(pipeline.map(lambda batch: (results.append(batch), nothing)[1], batches))
        else:
            results = list(pipeline.prefetch(batches if verb == "a list" else iter(batches)))
    assert len(results) == 8
    for batch, result in zip(batches, results, strict=True):
        before, form = pytree.tree_flatten(batch)
        after, form_after = pytree.tree_flatten(result)
        assert type(result) is type(batch)
        assert form == form_after
        for x, y in zip(before, after, strict=True):
            if isinstance(x, torch.Tensor):
                assert y.device == torch.device(device)
                assert torch.equal(x, y.cpu())
                assert y is not x
            else:
                assert y is x


# -- map ------------------------------------------------------------------------------------------
