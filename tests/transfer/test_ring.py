"""Rings on made-up streams: whatever is late, every bit is right."""

import ctypes
import gc
import queue
import random
import threading
import time
import weakref

import pytest
import torch
from late_streams import (
    VERBS,
    EarlyStream,
    ErraticStream,
    LateCallers,
    LateStream,
    Mark,
    check,
    make_moves_late,
    poisoned,
    poisoning,
)
from pipeline_ways import values_of
from torch.multiprocessing.reductions import StorageWeakRef

from autopar.transfer import ring
from autopar.transfer.copy_stream import CopyStream
from autopar.transfer.pipeline import CopyPipeline
from autopar.transfer.ring import move_bytes
from autopar.transfer.workers import Workers


@pytest.fixture
def streams(use_streams, monkeypatch):
    """As `use_streams`, where new memory is poisoned, and no other marks are known."""
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoning(getattr(torch, name)))
    monkeypatch.setattr(LateStream, "pinned_memory", set())
    monkeypatch.setattr(torch.cuda, "Event", Mark)
    return use_streams


# -- any work, on any stream ----------------------------------------------------------------------


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", [LateStream, ErraticStream, EarlyStream, CopyStream])
def test_random_work_comes_out_bit_for_bit(streams, monkeypatch, kind, verb, seed):
    chance = random.Random(seed)
    streams(kind)
    make_moves_late(monkeypatch)
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", chance.choice((0, 1e9)))
    monkeypatch.setattr("autopar.transfer.to_device._DIRECT_BYTES", chance.choice((0, 64, 1 << 16)))
    slots, slot_bytes = chance.randint(1, 5), chance.choice((16, 48, 64, 200, 512, 4096))
    threads = chance.randint(1, 4)
    with CopyPipeline("cpu", slots=slots, slot_bytes=slot_bytes, threads=threads) as pipeline:
        for _ in range(2):
            verb(pipeline, chance)


@pytest.mark.parametrize("kind", [LateStream, EarlyStream, CopyStream])
def test_batches_of_pinned_and_other_tensors(streams, kind):
    """One of a batch's copies is queued at once, and others once their slots were filled."""
    streams(kind)

    def batches():
        batch = [torch.empty(100, dtype=torch.uint8) for _ in range(5)]
        batch += [torch.empty(1 << 21, dtype=torch.uint8), batch[0][:0], batch[1][100:]]
        for i in (1, 2, 5, 6):
            LateStream.pinned_memory.add(batch[i].untyped_storage().data_ptr())
        for i in range(6):
            for j, tensor in enumerate(batch):
                tensor.fill_(10 * i + j)
            yield batch
            for tensor in batch:
                poisoned(tensor)

    with CopyPipeline("cpu", slot_bytes=1 << 18) as pipeline:
        for i, batch in enumerate(pipeline.prefetch(batches())):
            assert [values_of(x) for x in batch[:6]] == [{10 * i + j} for j in range(6)]
            assert [len(x) for x in batch[5:]] == [1 << 21, 0, 0]


@pytest.mark.parametrize("pinned", [False, True])
def test_batches_of_a_list_may_be_overwritten_once_the_next_one_is_there(streams, pinned):
    made = streams(LateCallers)
    batches = [torch.full((1 << 19,), i, dtype=torch.uint8) for i in range(8)]
    if pinned:
        LateStream.pinned_memory.update(x.untyped_storage().data_ptr() for x in batches)
    taken = []
    with CopyPipeline("cpu", slots=2, slot_bytes=1 << 18) as pipeline:
        for i, batch in enumerate(pipeline.prefetch(batches)):
            taken.append(batch)
            if i:
                poisoned(batches[i - 1])
        made[0].compute.run_until(made[0].compute.taken)
    assert [values_of(x) for x in taken] == [{i} for i in range(8)]


@pytest.mark.parametrize("order", [(0,), (1,), (0, 1), (1, 0), (0, 0, 1, 1)])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_every_copy_comes_after_what_the_caller_has_queued(streams, order, slots):
    """The memory that a batch arrives in may be what the caller's queued work still reads."""
    made = streams(LateStream)
    batch = [torch.ones(1 << 20, dtype=torch.uint8) for _ in order]  # none goes with another
    for pinned, tensor in zip(order, batch, strict=True):
        if pinned:
            LateStream.pinned_memory.add(tensor.untyped_storage().data_ptr())
    with CopyPipeline("cpu", slots=slots, slot_bytes=1 << 18) as pipeline:
        results = pipeline.prefetch([batch])
        ready = made[0].compute
        ready(list)
        next(results)
    waits = [isinstance(entry, Mark) and entry.work is ready for entry in made[0].log]
    assert waits.index(True) < made[0].log.index("copy")


_LARGE = 1 << 19


@pytest.mark.parametrize("pinned", [False, True])
def test_what_nobody_else_knows_is_copied_without_a_clone_once_it_is_computed(streams, pinned):
    made = streams(LateStream)

    def computed(number):
        """A tensor of the number that nobody else knows, filled once somebody waits for it."""
        result = torch.empty(_LARGE, dtype=torch.uint8)
        memory = StorageWeakRef(result.untyped_storage())  # nobody is to see that it is known
        at = result.data_ptr()  # it may have been cloned already, and be gone
        made[0].compute(lambda: memory.expired() or ctypes.memset(at, number, _LARGE))
        return result

    out = [torch.empty(_LARGE, dtype=torch.uint8) for _ in range(8)]
    if pinned:
        LateStream.pinned_memory.update(each.untyped_storage().data_ptr() for each in out)
    with CopyPipeline("cpu", slot_bytes=1 << 18) as pipeline:
        results = pipeline.to_host((computed(i) for i in range(8)), out)
        assert [values_of(x) for x in results] == [{i} for i in range(8)]


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("source", [40, 1 << 10])
def test_leaving_waits_for_what_was_sent(streams, slots, threads, source):
    streams(ErraticStream)
    with CopyPipeline("cpu", slots=slots, slot_bytes=64, threads=threads) as pipeline:
        handles = [pipeline.to_host_async(torch.full((source,), i)) for i in range(20)]
    assert all(handle.done() for handle in handles)
    assert [handle.result()[-1].item() for handle in handles] == list(range(20))


def test_a_delivery_waits_for_room_and_for_no_more(streams, in_time):
    streams(LateStream)
    handles, under_way = [], []

    def deliver():  # in a thread that changes nothing by asking
        with CopyPipeline("cpu", slots=1, slot_bytes=_LARGE) as pipeline:
            for _ in range(20):
                handles.append(pipeline.to_host_async(torch.ones(_LARGE, dtype=torch.uint8)))
                under_way.append(sum(not handle.done() for handle in handles))

    in_time(deliver)
    assert under_way == [1, 2, *[3] * 18]


@pytest.mark.parametrize("verb", ["to_host", "prefetch"])
def test_workers_move_while_the_caller_is_elsewhere(monkeypatch, verb):
    moved = threading.Semaphore(0)

    def move_and_say_so(*to_from):
        move_bytes(*to_from)
        if threading.current_thread() is not threading.main_thread():
            moved.release()

    monkeypatch.setattr("autopar.transfer.ring.move_bytes", move_and_say_so)
    items = [torch.full((1 << 21,), i, dtype=torch.uint8) for i in range(24)]
    with CopyPipeline("cpu", slots=4, slot_bytes=1 << 21, threads=2) as pipeline:
        for i, result in enumerate(getattr(pipeline, verb)(items)):
            assert values_of(result) == {i}
            if 1 < i < 7:  # it is elsewhere until they have moved the next one
                assert moved.acquire(timeout=10)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.usefixtures("together")
def test_workers_move_what_travels_together(monkeypatch, given):
    handed, submit = [], Workers.submit
    monkeypatch.setattr(Workers, "submit", lambda own, work: (handed.append(1), submit(own, work)))
    items = [torch.full((1 << 16,), i, dtype=torch.uint8) for i in range(64)]
    out = list(map(torch.empty_like, items)) if given else None
    with CopyPipeline("cpu", slot_bytes=1 << 22, threads=2) as pipeline:
        results = list(pipeline.to_host(items, out))
    assert all(map(torch.equal, results, items))
    assert handed


@pytest.mark.parametrize("verb", ["to_host", "prefetch"])
@pytest.mark.usefixtures("no_collector")
def test_a_worker_that_collects_an_iterator_of_its_ring_waits_for_nobody(
    monkeypatch, in_time, verb
):
    """The caller waits for the worker meanwhile, and is at work on the ring."""
    begun, waiting, is_done = threading.Event(), threading.Event(), ring._is_done_aside

    def collect_and_move(*to_from):
        if threading.current_thread().name == "autopar copies":
            begun.set()
            waiting.wait(1)
            time.sleep(2e-3)
            gc.collect()
        move_bytes(*to_from)

    def wait_for_worker(chunk):
        if chunk.moving is not None and not chunk.moving.done():
            begun.wait(1)
        waiting.set()
        return is_done(chunk)

    def run():
        with CopyPipeline("cpu", slots=3, slot_bytes=1 << 21, threads=4) as pipeline:
            left = getattr(pipeline, verb)(items)
            next(left)
            circle = [left]
            circle.append(circle)
            gone = weakref.ref(left)
            del left, circle
            monkeypatch.setattr(ring, "move_bytes", collect_and_move)
            monkeypatch.setattr(ring, "_is_done_aside", wait_for_worker)
            check(items, getattr(pipeline, verb)(items))
            assert gone() is None

    items = [torch.full((1 << 21,), i, dtype=torch.uint8) for i in range(12)]
    in_time(run)


@pytest.mark.parametrize("pinned", [False, True])
def test_no_copy_is_left_that_writes_to_out_once_a_turn_is_broken_off(streams, pinned):
    made = streams(LateStream)
    out = [torch.zeros(_LARGE, dtype=torch.uint8) for _ in range(9)]
    if pinned:
        LateStream.pinned_memory.update(each.untyped_storage().data_ptr() for each in out)
    with CopyPipeline("cpu", slots=2, slot_bytes=1 << 18) as pipeline:
        results = pipeline.to_host([torch.ones_like(each) for each in out], out)
        next(results)
        results.close()
        for each in out:
            each.fill_(7)
        made[0].mark().synchronize()
    assert [values_of(each) for each in out] == [{7}] * 9


@pytest.mark.parametrize(
    ("threads", "moves", "count", "each"),
    [
        (24, 6, 3, 8),
        (16, 6, 4, 4),
        (15, 6, 3, 4),
        (6, 6, 3, 2),
        (4, 6, 4, 1),
        (2, 6, 2, 1),
        (16, 2, 2, 8),
        (16, 1, 1, 16),
    ],
)
def test_workers_take_a_power_of_two_of_threads_each(threads, moves, count, each):
    seen, workers = queue.SimpleQueue(), Workers(threads, moves)
    for _ in range(9):
        workers.submit(lambda: seen.put(torch.get_num_threads()))
    assert [seen.get(timeout=60) for _ in range(9)] == [each] * 9
    assert len(workers._threads) == count
    workers.stop()
