"""Ordinary memory of results is used again, but never while anything leads to it."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.transfer.pipeline import CopyPipeline
from autopar.transfer.reuse import ReusedMemory

_NUMBERS = 1 << 18  # of an item, which is not small then
HOLDS = {  # what somebody keeps of a result, and its numbers
    "nothing": lambda x: None,
    "it": lambda x: x,
    "a view": lambda x: x[5:9],
    "a later view": lambda x: x.view(2, -1).t(),
    "an array": lambda x: x.numpy(),
    "part of an array": lambda x: x.numpy()[3:7],
    "its data": lambda x: x.data,
    "its memory": lambda x: x.untyped_storage(),
    "a capsule": lambda x: torch.utils.dlpack.to_dlpack(x),
    "a graph that has saved it": lambda x: (torch.ones(1, requires_grad=True) * x).grad_fn,
    "a closure": lambda x: lambda: x,
    "a parameter": torch.nn.Parameter,
    "what other processes have": lambda x: x.share_memory_(),
    "more memory": lambda x: x.resize_(2 * _NUMBERS)[:_NUMBERS],
}
READS = {
    "its memory": lambda kept: torch.tensor([], dtype=torch.float32).set_(kept),
    "a capsule": torch.utils.dlpack.from_dlpack,
    "a graph that has saved it": lambda kept: kept._saved_other,
    "a closure": lambda kept: kept(),
}


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from([*HOLDS, "nothing", "nothing"]), min_size=20, max_size=40))
def test_what_somebody_keeps_of_a_result_stays_as_it_is(kinds):
    kept = []
    with CopyPipeline("cpu") as pipeline, pytest.MonkeyPatch.context() as patch:
        patch.setattr("autopar.transfer.parcel.Parcels._small_bytes", 0)
        sizes = [_NUMBERS + 2 * (i % 3) for i in range(len(kinds))]
        items = (torch.full((size,), float(i)) for i, size in enumerate(sizes))
        for i, (kind, x) in enumerate(zip(kinds, pipeline.to_host(items), strict=True)):
            assert x.shape == (sizes[i],)
            assert x.eq(i).all()
            assert not x._is_view()
            assert len(x.untyped_storage()) == x.nbytes
            kept.append((i, kind, HOLDS[kind](x)))
            del x
    for i, kind, value in kept:
        if value is not None:
            numbers = torch.as_tensor(READS.get(kind, lambda same: same)(value))
            assert numbers.detach().eq(i).all(), kind


def test_memory_is_used_again_and_so_much_kept_and_given_back_at_the_end():
    with CopyPipeline("cpu", slots=3, slot_bytes=1 << 24) as pipeline:
        places = set()
        for count in (30, 20):
            for x in pipeline.to_host(torch.ones(3 << 20) for _ in range(count)):  # none is small
                places.add(x.data_ptr())
                del x
        assert len(places) <= 8
        assert 6 <= len(pipeline._memory._given) <= 8
        [*pipeline.to_host(torch.ones(8 << 20) for _ in range(20))]
        given = pipeline._memory._given
        assert [len(one) for one in given] == [8 << 22] * 3
        kept = weakref.ref(given[0].untyped_storage())
        del given
    gc.collect()
    assert kept() is None


def test_of_small_results_nothing_is_kept():
    some = ReusedMemory(1 << 30)
    some.like(torch.ones(9))
    assert not some._given
