"""Ordinary memory of results is used again, but never while anything leads to it."""

import gc
import re
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.transfer import reuse
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
    "nothing, but no memory": lambda x: x.untyped_storage().resize_(0) and None,
    "nothing, but less": lambda x: x.untyped_storage().resize_(100) and None,
    "nothing, after an array": lambda x: x.numpy().sum() and None,
}
READS = {
    "its memory": lambda kept: torch.tensor([], dtype=torch.float32).set_(kept),
    "a capsule": torch.utils.dlpack.from_dlpack,
    "a graph that has saved it": lambda kept: kept._saved_other,
    "a closure": lambda kept: kept(),
}


@settings(max_examples=12)
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
        assert len(places) <= 7
        assert 5 <= len(pipeline._memory._given) <= 7
        held = {x.data_ptr(): x for x in pipeline.to_host(torch.ones(3 << 20) for _ in range(9))}
        assert held.keys().isdisjoint(one.data_ptr() for one in pipeline._memory._given)
        for x in pipeline.to_host(torch.ones(8 << 20) for _ in range(20)):
            del x
        given = pipeline._memory._given
        assert [len(one) for one in given] == [8 << 22] * 2
        kept = weakref.ref(given[0].untyped_storage())
        del given
    gc.collect()
    assert kept() is None


def test_memory_that_arrays_have_had_is_not_kept():
    with CopyPipeline("cpu") as pipeline:
        for x in pipeline.to_host(torch.ones(3 << 20) for _ in range(9)):
            assert x.numpy().all()
            del x
        assert not pipeline._memory._given


@pytest.mark.parametrize("kept", [False, True])
def test_of_other_sizes_no_more_is_kept_than_there_is_room_for(kept):
    room_bytes, results = 6 << 20, []
    some = ReusedMemory(room_bytes, most=8)
    for size_bytes in range(1 << 20, 2 << 20, 1 << 14):
        results += [some.like(torch.ones(size_bytes, dtype=torch.uint8))][:kept]
        unused = sum(map(len, some._given)) - (2 << 20)  # but for the one that was just made
        assert kept or unused <= room_bytes
        assert len(some._given) <= 8


@pytest.mark.parametrize("size_bytes", [9, 2 << 20], ids=["small", "used again"])
def test_what_is_not_used_any_more_goes_as_soon_as_anything_is_asked_for(size_bytes):
    some, x = ReusedMemory(6 << 20, most=8), torch.ones(size_bytes, dtype=torch.uint8)
    results = [some.like(torch.ones(4 << 20, dtype=torch.uint8)) for _ in range(5)]
    results.append(some.like(x))
    results.clear()
    results.append(some.like(x))
    assert sum(map(len, some._given)) <= 8 << 20  # with the one in use


def test_garbage_that_asks_for_memory_in_between_gets_other_memory(monkeypatch):
    some, found, is_only_memory = ReusedMemory(1 << 30, most=8), [], reuse.is_only_memory
    x = torch.ones(1 << 20)
    some.like(x)

    def asked(*args, **options):
        only = is_only_memory(*args, **options)
        if only and not found:
            found.append(None)
            found[0] = some.like(x)
        return only

    monkeypatch.setattr(reuse, "is_only_memory", asked)
    assert some.like(x).data_ptr() != found[0].data_ptr()


def test_moves_are_no_changes_of_other_rows():
    weight, out = torch.ones(1, requires_grad=True), torch.empty(3, 3 << 20)
    with CopyPipeline("cpu") as pipeline:
        rows = [torch.ones(3 << 20) for _ in out]
        loss = sum((weight * x).sum() for x in pipeline.to_host(rows, out))
        assert all(x._version == 0 for x in pipeline.to_host(rows))
    loss.backward()
    assert weight.grad.item() == out.numel()


def test_of_small_results_nothing_is_kept():
    some = ReusedMemory(1 << 30, most=8)
    some.like(torch.ones(9))
    assert not some._given


def test_fresh_memory_is_asked_for_in_large_pages():
    """Each page that is touched first costs a fault, of any size."""
    smaps = Path("/proc/self/smaps")
    if not Path("/sys/kernel/mm/transparent_hugepage").exists() or not smaps.exists():
        pytest.skip("the system has no large pages, or does not tell of them")
    block = ReusedMemory(1 << 30, most=8).like(torch.ones(16 << 20))
    middle = block.data_ptr() + block.nbytes // 2
    for line in smaps.read_text().splitlines():
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= middle < int(found[2], 16)
        elif line.startswith("VmFlags:") and inside:
            assert "hg" in line.split()
            return
    pytest.fail("its mapping is not listed")
