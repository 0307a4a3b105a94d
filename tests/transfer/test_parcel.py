"""Parcels and their loads: what travels together, latches, parts, and loads that end."""

import ctypes
import itertools
import random
import sys
import threading
import weakref
from concurrent.futures import CancelledError

import pytest
import torch

from autopar.device import cpu
from autopar.lanes.handle import Handle
from autopar.transfer.copy_stream import CopyStream, Past
from autopar.transfer.layout import flat
from autopar.transfer.load import Latch, Load, Part
from autopar.transfer.parcel import ToDeviceParcels, ToHostParcels, lone_load

_WAIT_S = 10  # for what should come at once


# -- latches --------------------------------------------------------------------------------------


def waiting_for(latch):
    """A thread that waits for a latch, and an event that tells when it no longer does."""
    passed = threading.Event()
    thread = threading.Thread(target=lambda: (latch.synchronize(), passed.set()), daemon=True)
    thread.start()
    return passed


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("waiting", [1, 3])
def test_a_latch_opens_at_the_last_count(count, waiting):
    called = []
    latch = Latch(count, lambda: called.append(count))
    passed = [waiting_for(latch) for _ in range(waiting)]
    for _ in range(count - 1):
        latch.count_down()
    assert not passed[0].wait(0.02)
    assert called == []
    latch.count_down()
    assert all(each.wait(_WAIT_S) for each in passed)
    assert called == [count]
    latch.synchronize()


def test_what_follows_is_done_before_anybody_passes(gate):
    latch = Latch(1, gate)
    passed = waiting_for(latch)
    counting = threading.Thread(target=latch.count_down)
    counting.start()
    assert gate.begun.wait(_WAIT_S)
    assert not passed.wait(0.02)
    gate.open()
    assert passed.wait(_WAIT_S)
    counting.join(_WAIT_S)


@pytest.mark.parametrize("counted", [0, 1, 2, 3, 4])
def test_an_opened_latch_stays_open_and_nothing_follows(counted):
    called = []
    latch = Latch(3, lambda: called.append(1))
    for _ in range(counted):
        latch.count_down()
    passed = waiting_for(latch)
    for _ in range(3):
        latch.open()
    assert passed.wait(_WAIT_S)
    for _ in range(5):
        latch.count_down()
        latch.synchronize()
    assert called == [1] * (counted >= 3)


@pytest.fixture
def hasty_switches():
    """Let threads take over from each other wherever they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("opening", [False, True])
@pytest.mark.usefixtures("hasty_switches")
def test_many_threads_count_one_latch(opening):
    for _ in range(20):
        called = []
        latch = Latch(8 * 50, lambda called=called: called.append(1))
        barrier = threading.Barrier(8)

        def count(latch=latch, barrier=barrier):
            barrier.wait(_WAIT_S)
            for i in range(50):
                latch.count_down()
                if opening and i == 25:
                    latch.open()

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        latch.synchronize()
        for thread in threads:
            thread.join(_WAIT_S)
        assert called == [1] or (opening and called == [])


def test_a_latch_lets_go_of_what_follows():
    for end in (Latch.count_down, Latch.open):

        class Followed:
            def __call__(self):
                pass

        followed = Followed()
        watched = weakref.ref(followed)
        latch = Latch(1, followed)
        del followed
        assert watched() is not None
        end(latch)
        assert watched() is None


# -- parts ----------------------------------------------------------------------------------------


def part_by(chance):
    """A stretch of device memory, and pieces of host memory with gaps between them."""
    pieces, at = [], 0
    for _ in range(chance.randrange(5)):
        size = chance.choice((0, 1, 2, 5, 9, 16))
        piece = torch.arange(at, at + size, dtype=torch.uint8)
        pieces.append((at, piece.view(torch.int32).view(2, 2).T if size == 16 else piece))
        at += size + chance.choice((0, 0, 1, 4))
    return Part(torch.arange(at, dtype=torch.uint8), tuple(pieces), staged=True)


@pytest.mark.parametrize("slot_bytes", [1, 2, 4, 8, 64, 128])
def test_a_parts_chunks_cover_it_once(slot_bytes):
    chance = random.Random(slot_bytes)
    for _ in range(100):
        part = part_by(chance)
        chunks = [on_device for on_device, _, _ in part.cut(slot_bytes)]
        assert part.chunks(slot_bytes) == len(chunks)
        assert [size for _, size, _ in part.cut(slot_bytes)] == list(map(len, chunks))
        covered = [byte for chunk in chunks for byte in chunk.tolist()]
        assert covered == list(range(part.device.numel()))
        assert all(0 < len(chunk) <= slot_bytes for chunk in chunks)
        assert all(len(chunk) == slot_bytes for chunk in chunks[:-1])


@pytest.mark.parametrize("slot_bytes", [1, 2, 4, 8, 64, 128])
def test_a_chunks_pieces_are_all_the_host_memory_that_it_has(slot_bytes):
    chance = random.Random(slot_bytes)
    for _ in range(100):
        part = part_by(chance)
        whole = [byte for _, piece in part.host for byte in flat(piece).tolist()]
        found = []
        for on_device, _, stretches in part.cut(slot_bytes):
            for at, address, size in stretches:
                bytes_ = list(ctypes.string_at(address, size))
                assert size > 0
                assert bytes_ == on_device[at : at + size].tolist()
                found += bytes_
        assert found == whole


def test_what_needs_no_slot_has_no_chunks():
    assert Part(torch.ones(9), ((0, torch.ones(9)),), staged=False).chunks(4) == 0


# -- loads ----------------------------------------------------------------------------------------


def load_of(chunks, value="value", **options):
    load = Load("item 3 of a test", CopyStream(cpu()), (), value, **options)
    load.expect(chunks)
    return load


def test_a_load_is_over_once_its_chunks_are_copied():
    load = load_of(2)
    load.chunk_read()
    load.chunk_copied()
    assert not load.over
    load.chunk_read()
    load.wait_until_read()
    assert not load.over
    load.chunk_copied()
    assert load.over
    load.wait()
    load.wait_until_queued()
    assert load.unpack() == ["value"]


def test_a_load_without_chunks_is_over_at_once():
    load = load_of(0)
    assert load.over
    load.wait()
    load.wait_until_read()
    assert load.unpack() == ["value"]


@pytest.mark.parametrize("ends_on_host", [False, True])
def test_a_load_tells_its_handle(ends_on_host):
    load = Load("item 3 of a test", CopyStream(cpu()), (), "value", ends_on_host=ends_on_host)
    load.handle = Handle("copy", "lane", cpu(), "copy")
    load.expect(1)
    load.begin()
    assert not load.handle.done()
    load.chunk_copied()
    assert load.handle.result() == "value"
    assert load.handle.span.start_s <= load.handle.span.end_s


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("with_handle", [False, True])
@pytest.mark.parametrize("wait", [Load.wait, Load.wait_until_queued])
def test_a_failed_load_raises_its_first_error_where_it_is_waited_for(counted, with_handle, wait):
    load = Load("item 3 of a test", CopyStream(cpu()), (), "value")
    if with_handle:
        load.handle = Handle("copy", "lane", cpu(), "copy")
    load.expect(2)
    for _ in range(counted):
        load.chunk_read()
        load.chunk_copied()
    load.fail(KeyError("first"))
    load.fail(KeyError("second"))
    for _ in range(2):
        load.chunk_read()
        load.chunk_copied()
    load.wait_until_read()
    with pytest.raises(KeyError, match="first") as caught:
        wait(load)
    assert caught.value.__notes__ == ["in item 3 of a test"]
    if with_handle:
        with pytest.raises(KeyError, match="first"):
            load.handle.result()


def test_a_load_that_is_over_does_not_fail():
    load = load_of(1)
    load.chunk_copied()
    load.fail(KeyError("too late"))
    load.wait()


def test_a_load_that_is_given_up_keeps_its_memory_for_the_copies_and_says_so(monkeypatch):
    kept = []
    monkeypatch.setattr(CopyStream, "outlives", lambda stream, tensor: kept.append(tensor))
    parts = tuple(Part(torch.ones(3), (), staged=True) for _ in range(2))
    load = Load("item 3 of a test", CopyStream(cpu()), parts, "value")
    load.expect(1)
    load.abandon()
    assert [tensor is part.device for tensor, part in zip(kept, parts, strict=True)] == [True] * 2
    assert list(map(id, load.device_tensors())) == [id(part.device) for part in parts]
    with pytest.raises(CancelledError, match="dropped before it was copied"):
        load.wait()


def test_what_waits_on_the_stream_waits_for_the_caller(monkeypatch):
    ready = Past()
    monkeypatch.setattr(CopyStream, "caller_mark", lambda stream: ready)
    load = load_of(1)
    assert load.before["ready"] is ready
    assert load.before["room"] is ready
    load.before["given"].synchronize()


# -- parcels --------------------------------------------------------------------------------------


def carry(load):
    """Copy what a load has, to the host, as a ring would."""
    load.expect(1)
    for part in load.parts:
        for at, host in part.host:
            flat(host).copy_(part.device[at : at + host.nbytes])
    load.chunk_copied()


def parcels_of(source, slot_bytes=1024, **options):
    return ToHostParcels(CopyStream(cpu()), slot_bytes, iter(source), **options)


def counts(parcels):
    """How many items each load brings, if each is taken before the next is made."""
    found = []
    for load in parcels:
        carry(load)
        found.append(len(parcels.unpack(load)))
    parcels.raise_failure()
    return found


def test_more_and_more_travel_together_while_they_come_soon(monkeypatch):
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 1e9)
    found = counts(parcels_of(torch.ones(1) for _ in range(1000)))
    assert found[0] == 1
    assert sum(found) == 1000
    growing = found[: found.index(max(found)) + 1]
    assert growing == sorted(set(growing))
    assert all(b <= 4 * a for a, b in itertools.pairwise(growing))
    growing.pop()
    assert max(found) == 256  # as many as fit into a slot
    assert set(found[len(growing) : -1]) == {256}


def test_none_waits_for_others_that_come_late(monkeypatch):
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 0)
    assert counts(parcels_of(torch.ones(1) for _ in range(50))) == [1] * 50
    assert counts(parcels_of((torch.ones(1) for _ in range(50)), given=False)) == [1] * 50


def test_fewer_travel_together_once_they_come_late(monkeypatch):
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 1e9)
    parcels = parcels_of(torch.ones(1) for _ in range(1000))
    found = []
    for load in parcels:
        carry(load)
        found.append(len(parcels.unpack(load)))
        if found[-1] > 50:
            monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 0)
    falling = found[found.index(max(found)) :]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == 1
    assert sum(found) == 1000


@pytest.mark.parametrize("given", [False, True])
def test_only_small_ones_travel_together(monkeypatch, given):
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 1e9)
    sizes = [1, 2000, 1, 1, 1024, 1, 513, 512, 512, 1] * 20
    found = counts(parcels_of((torch.ones(n).byte() for n in sizes), given=given))
    ends = list(itertools.accumulate(found))
    assert ends[-1] == len(sizes)
    for count, end in zip(found, ends, strict=True):
        own = sizes[end - count : end]
        assert count == 1 or sum(own) <= 1024
    assert max(found) > 1


def test_large_items_do_not_travel_together_even_if_they_fit_a_slot(monkeypatch):
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 1e9)
    large = (torch.ones(1 << 17) for _ in range(12))
    assert counts(parcels_of(large, slot_bytes=1 << 30)) == [1] * 12


@pytest.mark.parametrize("given", [False, True])
def test_errors_name_the_item_and_come_after_those_before(monkeypatch, given):
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 1e9)

    def source():
        yield from (torch.ones(1) for _ in range(20))
        raise KeyError("on purpose")

    parcels = parcels_of(source(), given=given)
    with pytest.raises(KeyError, match="on purpose") as caught:
        counts(parcels)
    assert caught.value.__notes__ == ["in item 20 of to_host from cpu"]
    parcels.raise_failure()  # only once
    assert parcels._number == 20


def test_a_small_source_is_stacked_and_memory_of_its_own_is_not_cloned():
    made = []

    def fresh(i):
        result = torch.full((1000,), i)
        made.append(result.data_ptr())
        return result

    for load in parcels_of(fresh(i) for i in range(3)):
        assert load.parts[0].device.data_ptr() == made[-1]
        carry(load)


@pytest.mark.parametrize("source", [list, iter])
def test_memory_of_others_is_cloned(source):
    tensors = [torch.full((1000,), i) for i in range(3)]
    loads = list(parcels_of(source(tensors), given=source is list))
    for tensor, load in zip(tensors, loads, strict=True):
        (part,) = load.parts
        own = part.device.untyped_storage().data_ptr()
        assert own != tensor.untyped_storage().data_ptr()


def test_what_has_gaps_is_copied_once_and_no_more():
    clones, clone = [], torch.Tensor.clone

    def counting(tensor, *args, **options):
        clones.append(tensor)
        return clone(tensor, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", counting)
        list(parcels_of([torch.ones(2000)[::2], torch.ones(1000)], given=True))
    assert [tensor.stride() for tensor in clones] == [(2,), (1,)]


def test_a_lone_load_takes_a_slot_of_any_size():
    load = lone_load(CopyStream(cpu()), torch.arange(5000), pin=False)
    carry(load)
    assert torch.equal(load.unpack()[0], torch.arange(5000))


def test_who_is_given_up_as_it_comes_to_its_end_keeps_its_memory_for_the_copies(monkeypatch):
    stream, fail, kept = CopyStream(cpu()), Load.fail, []
    monkeypatch.setattr(stream, "outlives", kept.append)
    load = lone_load(stream, torch.arange(5000), pin=False)

    def arrives_first(own, error):
        own._arrive()
        fail(own, error)

    monkeypatch.setattr(Load, "fail", arrives_first)
    load.abandon()
    assert kept == [*load.device_tensors()]


def test_a_lone_load_refuses_what_cannot_be_copied():
    with pytest.raises(ValueError, match="requires grad"):
        lone_load(CopyStream(cpu()), torch.ones(3, requires_grad=True), pin=False)


def test_a_batchs_blocks_are_of_limited_size():
    """They are freed together, so a small one that is kept must not keep much else."""
    batch = [
        torch.ones(n, dtype=torch.uint8) for n in (1 << 19, 1 << 19, 1, 1 << 20, 1, 1, 1 << 22)
    ]
    (load,) = ToDeviceParcels(CopyStream(cpu()), iter([batch]), given=True)
    assert [len(part.host) for part in load.parts] == [2, 1, 1, 2, 1]


def test_where_tensors_lie_in_a_block_any_dtype_may_start():
    sizes = (1, 3, 64, 65, 7)
    batch = [torch.ones(n, dtype=torch.uint8) for n in sizes]
    (load,) = ToDeviceParcels(CopyStream(cpu()), iter([batch]), given=True)
    (part,) = load.parts
    assert [at for at, _ in part.host] == [0, 64, 128, 192, 320]
    results = load.unpack()[0]
    starts = [each.data_ptr() - part.device.data_ptr() for each in results]
    assert starts == [0, 64, 128, 192, 320]
    assert [each.numel() for each in results] == list(sizes)
