"""Results of copy pipelines: every bit, in the form of what came, and in whose memory."""

import dataclasses
import weakref
from collections import OrderedDict, deque
from pathlib import Path
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
    comes_true,
    every_way,
    filled,
    on_devices,
)
from torch.utils import _pytree as pytree

from autopar.transfer.pipeline import CopyPipeline

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


LAYOUTS = {
    "transposed": lambda x: x.transpose(1, 3),
    "permuted": lambda x: x.permute(2, 0, 3, 1),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "with gaps": lambda x: x[:, ::2, :, 1::3],
    "with an offset": lambda x: x[1:],
    "a column": lambda x: x[0, 0, :, 1],
    "expanded": lambda x: x[:1].expand(9, -1, -1, -1),
    "overlapping": lambda x: x.flatten().unfold(0, 4, 1),
    "flipped": lambda x: x.flip(0, 3),
    "conjugate": lambda x: x.conj(),
    "conjugate, transposed": lambda x: x.conj().transpose(1, 3),
    "conjugate, with gaps": lambda x: x[:, ::2].conj(),
    "negative": lambda x: x.conj().imag,
    "negative, dense": torch._neg_view,
    "real": lambda x: x.real,
    "an element": lambda x: x[1, 1, 1, 1],
    "none of them": lambda x: x[:, :0],
    "as bytes": lambda x: x.view(torch.uint8),
    "a parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("slot_bytes", "sizes"), [(512, (2, 9, 9)), (8192, (2, 2, 2, 2, 2)), (8192, (2, 9, 2))]
)
@pytest.mark.usefixtures("together")
def test_any_layout(layout, slot_bytes, sizes):
    views = [
        LAYOUTS[layout](filled((2, 4, size, 5), torch.complex64, seed))
        for seed, size in enumerate(sizes)
    ]
    with CopyPipeline("cpu", slot_bytes=slot_bytes) as pipeline:
        results = list(all_ways(pipeline, views))
    for view, result in zip(views * len(WAYS), results, strict=True):
        expected = torch.empty_like(view).copy_(view)  # as .to() does it from device to device
        assert bits_of(result) == bits_of(expected)
        assert result.stride() == expected.stride()
        assert not result.is_conj()
        assert not result.is_neg()


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.usefixtures("together")
def test_small_ones_travel_together(streams, alike):
    items = [torch.full((3 if alike else i % 5,), i) for i in range(100)]
    with CopyPipeline("cpu", slots=2, slot_bytes=512) as pipeline:
        for kind in (list, iter):
            assert all(map(torch.equal, pipeline.to_host(kind(items)), items))
        assert streams[0].copies < 100


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


def test_the_page_on_slots_tells_those_that_there_are_by_default():
    page = "gallery/copies/plot_7_reach_the_limit_with_few_slots.py"
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    pipeline = CopyPipeline("cpu")
    mib = pipeline.slot_bytes >> 20
    assert f"slots={pipeline.slots}, slot_bytes={mib} << 20" in text
    assert f"{2 * pipeline.slots * mib} MiB" in text


def test_a_slot_is_no_larger_than_asked():
    assert CopyPipeline("cpu", slot_bytes=1000).slot_bytes == 512
    assert CopyPipeline("cpu", slot_bytes=1).slot_bytes == 1
    assert CopyPipeline("cpu", slot_bytes=1024).slot_bytes == 1024


@every_way
def test_nothing_to_copy(pipeline, way):
    assert list(WAYS[way](pipeline, [])) == []


@every_way
@pytest.mark.usefixtures("company")
def test_results_of_inference_mode_outlive_it_whatever_travels_together(pipeline, way):
    with torch.inference_mode():
        items = [torch.ones(()), *[torch.ones(2)] * 2, torch.ones(0), torch.ones(6)[::2]] * 3
        inside = list(WAYS[way](pipeline, items))
    outside = list(WAYS[way](pipeline, items))
    assert all(map(torch.equal, inside + outside, items + items))
    ahead = inside if way != "to_host_async" else []  # which takes nothing ahead
    assert not any(result.is_inference() for result in ahead + outside)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_strides_do_not_depend_on_what_travels_along(pipeline, count):
    item = torch.ones(1, 1, 4, 4).to(memory_format=torch.channels_last)
    for result in pipeline.to_host([item] * count):
        assert result.stride() == item.stride()


# -- batches --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Number:
    x: int


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


# -- results are the caller's ---------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("sizes", [(4,), (1, 2, 4), (1000,)])
@pytest.mark.usefixtures("together")
def test_autograd_takes_each_result_by_itself(pipeline, way, sizes):
    """One is written to, one requires gradients, and one is kept for backward."""
    items = [torch.full((sizes[i % len(sizes)],), float(i)) for i in range(12)]
    weight = torch.tensor(3.0, requires_grad=True)
    results = list(WAYS[way](pipeline, items))
    assert all(result.is_leaf and not result.requires_grad for result in results)
    losses = [result.mul_(weight).sum() for result in results[::3]]
    losses += [(result.requires_grad_() ** 2).sum() for result in results[1::3]]
    losses += [(weight * result).sum() for result in results[2::3]]
    assert all(map(torch.equal, results[::3], [item * 3 for item in items[::3]]))
    sum(losses).backward()
    assert weight.grad == sum(item.sum() for item in items[::3] + items[2::3])
    assert all(torch.equal(results[i].grad, 2 * items[i]) for i in range(1, 12, 3))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "to_host_async"])
@pytest.mark.parametrize("sizes", [(0, 1, 2, 4), (4,), (1000,)])
@pytest.mark.usefixtures("company", "no_collector")
def test_a_result_that_the_caller_drops_is_gone(pipeline, way, sizes):
    for result in WAYS[way](pipeline, [torch.ones(sizes[i % len(sizes)]) for i in range(12)]):
        watched = weakref.ref(result)
        del result
        assert comes_true(lambda watched=watched: watched() is None)
