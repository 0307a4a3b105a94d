"""Copy pipelines on GPUs: order, memory, and the caller's streams, with copies late on purpose.

CSAN can't see host memory, freed memory, or any chunk of an item but the first (see
programs/transfer_csan.py). Those are tested here by poison: whoever reads too early finds it.
"""

import time

import pytest
import torch
from lane_forms import equals

from autopar import CopyPipeline
from autopar.transfer import parcel
from autopar.transfer.copy_stream import CudaCopyStream

pytestmark = pytest.mark.gpu
_GPU = torch.device("cuda", 0)
_N = 2**21 + 128  # numbers of four bytes: too large to travel with others
_two = pytest.mark.gpu(2)


# -- memory that is freed or overwritten ----------------------------------------------------------


@pytest.mark.parametrize("safe", [True, False])
def test_the_memory_of_abandoned_batches_is_not_reused_early(late_copies, monkeypatch, safe):
    """Closing the generator drops its batches while copies to them still wait on the stream."""
    late_copies(100)
    if not safe:
        monkeypatch.setattr(CudaCopyStream, "outlives", lambda stream, tensor: None)
    batches = [torch.full((_N,), 7.0) for _ in range(3)]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # so that freed memory is the first to be reused
    with CopyPipeline(_GPU, slots=3, threads=1) as pipeline:
        coming = pipeline.prefetch(iter(batches))
        first = next(coming)
        time.sleep(0.05)  # all three copies are queued, and none of the last two is done
        coming.close()
        mine = [torch.zeros(_N, device=_GPU) for _ in range(4)]
        torch.cuda.synchronize()
        intact = all(equals(x, 0) for x in mine)
    assert intact == safe
    assert equals(first, 7)


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("n", [1003, 100_003])
def test_out_is_written_within_its_bounds_not_too_early_and_once(spin, late_copies, n, pin):
    late_copies(1)
    count, margin, asked = 12, 64, 0
    whole = torch.full((count, n + 2 * margin), -1.0, pin_memory=pin)
    out = [row[margin:-margin] for row in whole]

    def source():
        nonlocal asked
        for i in range(count):
            asked += 1
            spin(0.5)
            yield torch.full((n,), float(i), device=_GPU)

    with CopyPipeline(_GPU, slots=2, slot_bytes=2**16, threads=4) as pipeline:
        for i, result in enumerate(pipeline.to_host(source(), out=out)):
            assert result.data_ptr() == out[i].data_ptr()
            assert equals(result, i)
            assert equals(whole[asked:], -1), "written before its item was there"
            result.fill_(-2.0)
    assert all(equals(row, -2) for row in out), "written after its item was yielded"
    assert equals(whole[:, :margin], -1)
    assert equals(whole[:, -margin:], -1)


# -- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["fresh", "out", "pinned"])
def test_a_result_is_there_while_the_next_one_is_still_computed(spin, to):
    """One stream for both can't do that: there the next item is either not begun or in the way."""
    count = 4
    out = [torch.zeros(_N) for _ in range(count)] if to == "out" else None

    def source(ms):
        for i in range(count):
            spin(ms)
            yield torch.full((_N,), float(i), device=_GPU)

    with CopyPipeline(_GPU, slots=2) as pipeline:
        for ms in (0, 100):  # the first time allocates memory and loads kernels, which may wait
            busy = []
            for i, result in enumerate(pipeline.to_host(source(ms), out, to == "pinned")):
                busy.append(not torch.cuda.current_stream().query())
                assert equals(result, i)
    assert busy == [True] * (count - 1) + [False]


@pytest.mark.parametrize("pin", [False, True])
def test_the_next_batch_is_there_while_this_one_is_still_used(spin, pin):
    batches = [torch.full((_N,), float(i), pin_memory=pin) for i in range(2)]
    side = torch.cuda.Stream()
    with CopyPipeline(_GPU, slots=2) as pipeline:
        for ms in (0, 500):
            coming = pipeline.prefetch(iter(batches))
            first = next(coming)
            spin(ms)
            with torch.cuda.stream(side):
                there = next(coming).clone()
            side.synchronize()
            busy = not torch.cuda.current_stream().query()
            assert equals(there, 1)
            assert equals(first, 0)
    assert busy, "the copy waited for the computing"


def test_an_asynchronous_copy_is_not_waited_for(spin):
    with CopyPipeline(_GPU) as pipeline:
        for ms in (0, 300):
            spin(ms)
            handle = pipeline.to_host_async(torch.full((_N,), 7.0, device=_GPU))
            busy, done = not torch.cuda.current_stream().query(), handle.done()
            assert equals(handle.result(), 7)
            assert handle.done()
    assert (busy, done) == (True, False)


# -- streams, devices and modes of the caller -----------------------------------------------------


@pytest.mark.parametrize("n", [1000, _N])
@pytest.mark.parametrize("owned", [True, False])
def test_an_item_is_copied_behind_the_stream_that_was_current_as_it_came(
    spin, monkeypatch, owned, n
):
    monkeypatch.setattr(parcel, "_SOON_S", 1e9)  # small ones travel together
    streams = [torch.cuda.Stream() for _ in range(2)]

    def made(i):
        if i % 2 == 0:
            spin(4)
        return torch.full((n,), float(i), device=_GPU)

    def source():
        for i in range(16):
            with torch.cuda.stream(streams[i % 2]):
                if owned:
                    yield made(i)
                else:
                    x = made(i)
                    yield x

    with CopyPipeline(_GPU) as pipeline:
        results = list(pipeline.to_host(source()))
    assert [i for i, result in enumerate(results) if not equals(result, i)] == []
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_the_callers_stream_is_the_one_that_is_current_at_the_time(in_time):
    copies, side, main = CudaCopyStream(_GPU), torch.cuda.Stream(), torch.cuda.current_stream()
    for _ in range(2):
        assert copies.caller() == copies.caller() == main
        with torch.cuda.stream(side):
            assert copies.caller() == side
            assert in_time(copies.caller) == torch.cuda.default_stream()  # of another thread
            assert copies.caller() == side
        with torch.cuda.stream(copies._stream):
            assert copies.caller() not in (side, main)
    assert copies.caller() == torch.cuda.current_stream() == main


@pytest.mark.parametrize("pin", [False, True])
def test_a_source_of_batches_may_change_the_stream(late_copies, pin):
    late_copies(2)
    streams = [torch.cuda.Stream() for _ in range(2)]

    def source():
        for i in range(10):
            with torch.cuda.stream(streams[i % 2]):
                yield torch.full((_N,), float(i), pin_memory=pin)

    read = []
    with CopyPipeline(_GPU) as pipeline:
        for batch in pipeline.prefetch(source()):
            read.append(batch + 1)
            del batch
    torch.cuda.synchronize()
    assert [i for i, x in enumerate(read) if not equals(x, i + 1)] == []


@pytest.mark.parametrize("received", ["there", "elsewhere"])
@pytest.mark.parametrize("pin", [False, True])
def test_batches_may_be_used_on_a_side_stream(spin, late_copies, received, pin):
    late_copies(2)
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    batches = (torch.full((_N,), float(i), pin_memory=pin) for i in range(10))
    read = []
    receiving = torch.cuda.stream(side if received == "there" else main)
    with CopyPipeline(_GPU, slots=2) as pipeline, receiving:
        for batch in pipeline.prefetch(batches):
            if received == "elsewhere":
                side.wait_stream(main)
                batch.record_stream(side)
            with torch.cuda.stream(side):
                spin(3)
                read.append(batch + 1)
            del batch
    torch.cuda.synchronize()
    assert [i for i, x in enumerate(read) if not equals(x, i + 1)] == []


@_two
@pytest.mark.parametrize("index", [0, 1])
def test_a_busy_current_device_is_not_waited_for_if_the_pipeline_is_on_another(spin, index):
    device, other = torch.device("cuda", index), torch.device("cuda", 1 - index)

    def there_and_back(pipeline):
        hosts = list(pipeline.to_host(torch.full((_N,), i / 4, device=device) for i in range(4)))
        pinned = list(pipeline.to_host(pipeline.prefetch(iter(hosts)), pin=True))
        handles = [pipeline.to_host_async(batch) for batch in pipeline.prefetch(iter(pinned))]
        return [handle.result() for handle in handles]

    with CopyPipeline(device, slot_bytes=2**20) as pipeline, torch.cuda.device(other):
        there_and_back(pipeline)  # all memory is allocated, and all kernels are loaded
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        spin(1000)
        results = there_and_back(pipeline)
        assert not torch.cuda.current_stream(other).query(), "it waited for the other GPU"
        assert torch.cuda.current_device() == other.index
        torch.cuda.synchronize(other)
    assert all(equals(result, i / 4) for i, result in enumerate(results))
