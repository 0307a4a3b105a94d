"""Copy pipelines on the CPU: what comes when, how far ahead, to which thread, and in the end."""

import contextlib
import itertools
import time

import pytest
import torch
from pipeline_ways import VERBS, ahead, call, first_elements, numbers

from autopar.transfer.copy_stream import CopyStream
from autopar.transfer.pipeline import CopyPipeline

# -- one at a time --------------------------------------------------------------------------------


def test_a_handle_outlives_its_pipeline_and_tells_when_it_ran():
    with CopyPipeline("cpu") as pipeline:
        handles = [pipeline.to_host_async(torch.full((1 << 20,), i)) for i in range(3)]
    for i, handle in enumerate(handles):
        assert handle.result()[-1] == i
        span = handle.span
        assert (span.name, span.kind) == (handle.name, "copy")
        assert "to host" in span.lane
        assert handle.alignment_error_s == 0
        assert handle.device == torch.device("cpu")
    assert handles[0].span.start_s <= handles[1].span.start_s <= handles[2].span.start_s


def test_a_span_reaches_from_before_the_copy_to_behind_it(monkeypatch):
    copied_s = []

    def copy(stream, to, source):
        copied_s.append(time.perf_counter())
        to.copy_(source)

    monkeypatch.setattr(CopyStream, "copy", copy)
    with CopyPipeline("cpu", slots=2, slot_bytes=1024) as pipeline:
        for size in (1 << 13, 0):
            span = pipeline.to_host_async(torch.ones(size)).span
            assert span.start_s <= copied_s.pop() <= span.end_s


def test_memory_that_a_handles_copy_reads_is_kept_for_it(pipeline, monkeypatch):
    kept = []
    monkeypatch.setattr(CopyStream, "outlives", lambda stream, tensor: kept.append(tensor.nbytes))
    pipeline.to_host_async(torch.ones(1000)).result()
    assert kept == [4000]


# -- order, and how far ahead ---------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("size", [4, 100])
@pytest.mark.usefixtures("company")
def test_only_so_many_items_are_asked_for_ahead(verb, slots, size):
    """Of large items a fixed number, of small ones as many as fit into the slots."""
    asked = 0

    def source():
        nonlocal asked
        for asked in range(1, 101):
            yield torch.full((size,), asked, dtype=torch.int32)

    with CopyPipeline("cpu", slots=slots, slot_bytes=128) as pipeline:
        results = call(pipeline, verb, source())
        assert asked == 0
        most = ahead(slots)
        if verb == "map":  # one lot on the device, one on the way to the host
            most *= 2
        if size == 4:
            most *= 8
        for i, result in enumerate(results, 1):
            assert result[0] == i
            assert asked <= i + most
            # What is to be worked on comes soon, and others after it.
            early = i + 1 if verb != "to_host" and i <= 5 else i - 1 + ahead(slots)
            assert asked >= min(100, early)
        assert asked == 100


@pytest.mark.usefixtures("together")
def test_a_small_item_does_not_bring_many_large_ones_with_it():
    """After it the next ones may be of any size, and memory is bounded all the same."""
    asked_bytes = 0

    def source():
        nonlocal asked_bytes
        for i in range(100):
            size = 1024 if i % 8 else 1
            asked_bytes += size
            yield torch.full((size,), i, dtype=torch.uint8)

    got_bytes = 0
    with CopyPipeline("cpu", slots=2, slot_bytes=1024) as pipeline:
        for result in pipeline.to_host(source()):
            got_bytes += result.nbytes
            assert asked_bytes - got_bytes <= (ahead(2) + 1) * 2 * 1024


def test_items_are_copied_while_the_next_one_is_computed(streams):
    def source():
        for i in range(8):
            if i:
                streams[0].wait_for_copies(i)
            yield torch.full((100,), i, dtype=torch.int64)

    with CopyPipeline("cpu", slots=3, slot_bytes=1024) as pipeline:
        assert first_elements(pipeline.to_host(source())) == list(range(8))


def test_batches_are_copied_while_the_caller_works_on_one(streams):
    with CopyPipeline("cpu", slots=3, slot_bytes=1024) as pipeline:
        for i, batch in enumerate(pipeline.prefetch(numbers(8, 100))):
            streams[0].wait_for_copies(min(8, i + 2))
            assert batch[0] == i


def test_map_copies_both_ways_while_it_computes(streams):
    calls = 0

    def fn(batch):
        nonlocal calls
        calls += 1
        streams[0].wait_for_copies(min(8, calls + 1))  # the next batch has come
        if calls > 1:
            streams[1].wait_for_copies(calls - 1)  # the result before has gone
        return -batch

    with CopyPipeline("cpu", slots=3, slot_bytes=1024) as pipeline:
        # The way from the host is the first to be used.
        assert first_elements(pipeline.map(fn, numbers(8, 100))) == [-i for i in range(8)]


@pytest.mark.usefixtures("company")
def test_two_turns_taken_by_turns(pipeline):
    pairs = zip(
        pipeline.to_host(numbers(20)),
        pipeline.to_host(numbers(20, 300)),
        pipeline.prefetch(numbers(20)),
        pipeline.map(torch.neg, numbers(20)),
        strict=True,
    )
    for i, tensors in enumerate(pairs):
        assert first_elements(tensors) == [i, i, i, -i]
        assert pipeline.to_host_async(tensors[0]).result()[0] == i


@pytest.mark.usefixtures("company")
def test_a_source_that_uses_the_pipeline(pipeline):
    def source():
        for batch in pipeline.prefetch(numbers(20)):
            yield pipeline.to_host_async(batch).result() + 1

    assert first_elements(pipeline.to_host(source())) == list(range(1, 21))


# -- threads --------------------------------------------------------------------------------------


def test_threads_may_take_turns(pipeline, in_time):
    results = in_time(lambda: pipeline.to_host(numbers(20)))
    assert next(results)[0] == 0
    assert in_time(lambda: next(results))[0] == 1
    assert first_elements(results) == list(range(2, 20))


# -- what travels together -------------------------------------------------------------------------


@pytest.mark.usefixtures("together")
def test_more_and_more_travel_together_while_they_come_soon(streams, monkeypatch):
    """From one to as many as fit into a slot, and back to one once they come late."""
    copies = []

    def source():
        for i in range(2000):
            if i == 1000:
                monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 0)
            yield torch.full((4,), i)

    with CopyPipeline("cpu", slots=1, slot_bytes=1024) as pipeline:
        for i, result in enumerate(pipeline.to_host(source())):
            assert result[0] == i
            copies.append(streams[0].copies)
    assert copies[0] <= 3
    assert [copies[i + 32] - copies[i] for i in range(300, 800, 32)] == [1] * 16
    assert [b - a for a, b in itertools.pairwise(copies[1500:1900])] == [1] * 399


def test_none_waits_for_others_that_come_late(streams, monkeypatch):
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 0)
    with CopyPipeline("cpu") as pipeline:
        assert first_elements(pipeline.to_host(x for x in numbers(50))) == list(range(50))
    assert streams[0].copies == 50


@pytest.mark.parametrize(
    ("size_bytes", "most"),
    [(1 << 18, 64), (1 << 20, 16), (3 << 20, 5), (8 << 20, 2), ((8 << 20) + 1, 1)],
)
@pytest.mark.usefixtures("together")
def test_what_travels_together_is_of_limited_size(streams, size_bytes, most):
    """What is kept of a few should not keep much else."""
    count = most + 7
    with CopyPipeline("cpu", slot_bytes=1 << 24) as pipeline:
        list(pipeline.to_host([torch.ones(size_bytes, dtype=torch.uint8)] * count))
    assert streams[0].copies == -(-count // most)


@pytest.mark.usefixtures("together")
def test_large_ones_among_small_ones_go_alone(streams):
    sizes = [1, 2000, 1, 1, 1024, 1, 513, 512, 512, 1] * 20
    items = [torch.full((size,), i % 251, dtype=torch.uint8) for i, size in enumerate(sizes)]
    with CopyPipeline("cpu", slot_bytes=1024) as pipeline:
        results = list(pipeline.to_host(items))
    assert all(map(torch.equal, results, items))
    blocks = {result.untyped_storage().data_ptr(): result.untyped_storage() for result in results}
    assert all(len(block) <= 1024 or len(block) == 2000 for block in blocks.values())
    assert len(blocks) < len(items)


def test_what_has_gaps_is_copied_once_and_no_more(pipeline, monkeypatch):
    clones, clone = [], torch.Tensor.clone

    def counting(tensor, *args, **options):
        clones.append(tensor)
        return clone(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "clone", counting)
    list(pipeline.to_host([torch.ones(2000)[::2], torch.ones(1000)]))
    assert [tensor.stride() for tensor in clones] == [(2,)]


def test_a_batchs_blocks_are_of_limited_size():
    """They are freed together, so a small one that is kept must not keep much else."""
    large = 1 << 23
    batch = [torch.ones(n, dtype=torch.uint8) for n in (large, large // 2, 1, large, 1, 1)]
    batch.append(torch.ones(large + 1, dtype=torch.uint8))
    with CopyPipeline("cpu", slot_bytes=1 << 25) as pipeline:
        (results,) = pipeline.prefetch([batch])
    blocks = [result.untyped_storage().data_ptr() for result in results]
    assert [len(list(same)) for _, same in itertools.groupby(blocks)] == [3, 3, 1]


@pytest.mark.usefixtures("together")
def test_a_load_follows_the_stream_of_its_first_item_though_the_source_has_ended(monkeypatch):
    current, marked = ["main"], []

    class Switched(CopyStream):
        def caller(self):
            return current[0]

        def caller_mark(self):
            marked.append(current[0])

    @contextlib.contextmanager
    def on(stream):
        before, current[0] = current[0], stream
        yield
        current[0] = before

    def source():
        for i in range(20):  # the last one is asked for with more, of which there are none
            with on(i):
                yield torch.full((4,), i)

    monkeypatch.setattr("autopar.transfer.pipeline.copy_stream", Switched)
    monkeypatch.setattr(torch.cuda, "stream", on)
    with CopyPipeline("cpu", slots=3) as pipeline:
        assert first_elements(pipeline.to_host(source())) == list(range(20))
    assert marked == [0, 16]
