"""Faults for lack of memory or threads: nothing leaks, and work goes on."""

import gc
import itertools
import threading

import pytest
import torch
from pipeline_faults import FROM_HOST, SIZES, SLOT_BYTES, VERBS, NoRoom, ends, named
from pipeline_ways import DEVICES

from autopar import CopyPipeline

pytestmark = pytest.mark.stress


# -- out of memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError, MemoryError])
@pytest.mark.parametrize(("slots", "call"), [(1, 0), (2, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_no_room_for_a_slot_says_so_and_is_no_end(bench, verb, slots, call, kind, device):
    calls = itertools.count()

    def pinned(own, size_bytes):
        if next(calls) == call:
            raise kind("no room for a slot")
        return own(size_bytes)

    bench.on_stream["pinned"] = pinned
    with bench.pipeline(device, "packed", slots) as pipeline:
        with pytest.raises(kind, match="no room for a slot") as caught:
            list(VERBS[verb](pipeline, bench.source(verb), bench))
        note = f"while pinning {slots} slots of {SLOT_BYTES} bytes; give fewer slots or a smaller"
        assert any(note in each for each in caught.value.__notes__)
        del caught
        gc.collect()
        assert [slot() for slot in bench.slots] == [None] * call
        assert bench.works(pipeline)
        assert bench.run(verb, pipeline)[1] is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_slots_that_no_machine_has_room_for(bench, verb, device):
    bench.pipeline(device)
    with CopyPipeline(device, slot_bytes=1 << 50) as pipeline:
        with pytest.raises(RuntimeError) as caught:
            list(VERBS[verb](pipeline, bench.source(verb), bench))
        assert "give fewer slots or a smaller slot_bytes" in caught.value.__notes__[0]
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_an_item_that_no_machine_has_room_for(bench, verb, device):
    """A tensor of few bytes that would be many on the other side."""

    def huge():
        on = "cpu" if verb in FROM_HOST else device
        breaks_later = torch.zeros(1, dtype=torch.int32, device=on).expand(1 << 50)
        yield from itertools.islice(bench.source(verb), 2)
        yield breaks_later

    with bench.pipeline(device, "alone") as pipeline:
        received, error = bench.take(verb, VERBS[verb](pipeline, huge(), bench))
        assert isinstance(error, RuntimeError)
        assert received == (0 if verb == "to_host_async" else 2)
        assert 2 in named(error) or verb == "to_host_async"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("call", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("verb", ["to_host", "to_host pinned out", "prefetch", "map"])
@ends
def test_no_room_for_a_tensor_is_named(bench, verb, call, given, size, kind, device):
    """On either side: for a result, for what small ones travel in, or for a clone."""
    with bench.pipeline(device, size) as pipeline:
        tensors = list(bench.source(verb))
        results = VERBS[verb](pipeline, tensors if given else iter(tensors), bench)
        with NoRoom(call, kind) as room:
            received, error = bench.take(verb, results)
        if room.calls_left >= 0:
            assert (received, error) == (bench.count, None)
        else:
            assert error is None or received in named(error)  # there may be another way without
        del tensors, error
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.gpu
@pytest.mark.parametrize("verb", ["to_host", "prefetch", "map", "to_host_async"])
@ends
def test_a_full_gpu_gives_the_items_before_and_works_again(bench, verb):
    """The allocator itself refuses: this process may take no more than a little."""
    total = torch.cuda.get_device_properties(0).total_memory
    large = 1 << 24

    def source():
        on = "cpu" if verb in FROM_HOST else "cuda:0"
        yield from itertools.islice(bench.source(verb), 3)
        big = torch.zeros(large, dtype=torch.int32, device=on)
        torch.cuda.empty_cache()
        allowed = torch.cuda.memory_reserved(0) + (8 << 20)  # for what is small
        torch.cuda.set_per_process_memory_fraction(allowed / total, 0)
        yield big  # a copy of it finds no room

    with bench.pipeline("cuda:0", "alone") as pipeline:
        try:
            received, error = bench.take(verb, VERBS[verb](pipeline, source(), bench))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, 0)
        assert isinstance(error, torch.OutOfMemoryError)
        assert received == (0 if verb == "to_host_async" else 3)
        assert 3 in named(error) or verb == "to_host_async"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_no_more_threads(bench, verb, call, device):
    """The caller does what no worker is there for."""
    calls, start = itertools.count(), threading.Thread.start

    def start_some(thread):
        if next(calls) >= call:
            msg = "can't start new thread"
            raise RuntimeError(msg)
        start(thread)

    with bench.pipeline(device, threads=2) as pipeline:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_some)
            assert bench.run(verb, pipeline) == (bench.count, None)
        assert bench.works(pipeline)
        assert bench.run(verb, pipeline)[1] is None
