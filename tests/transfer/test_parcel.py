"""Parcels and their loads: what travels together, latches, parts, and loads that end."""

import ctypes
import itertools

import pytest
import torch
from hypothesis import strategies as st
from random_cases import hold_for_all

from autopar.device import cpu
from autopar.transfer.copy_stream import CopyStream
from autopar.transfer.layout import flat
from autopar.transfer.load import Part
from autopar.transfer.to_device import ToDeviceParcels
from autopar.transfer.to_host import ToHostParcels

# -- parts ----------------------------------------------------------------------------------------


@st.composite
def staged_parts(draw):
    """A stretch of device memory, and pieces of host memory with gaps between them."""
    pieces, at = [], 0
    for size in draw(st.lists(st.sampled_from((0, 1, 2, 5, 9, 16)), max_size=4)):
        piece = torch.arange(at, at + size, dtype=torch.uint8)
        pieces.append((at, piece.view(torch.int32).view(2, 2).T if size == 16 else piece))
        at += size + draw(st.sampled_from((0, 0, 1, 4)))
    return Part(torch.arange(at, dtype=torch.uint8), tuple(pieces), staged=True)


def test_a_parts_chunks_cover_it_once_with_all_the_host_memory_that_it_has():
    def check(part, slot_bytes):
        chunks = list(part.cut(slot_bytes))
        covered = [byte for on_device, _ in chunks for byte in on_device.tolist()]
        assert covered == list(range(part.device.numel()))
        assert all(0 < len(on_device) <= slot_bytes for on_device, _ in chunks)
        assert all(len(on_device) == slot_bytes for on_device, _ in chunks[:-1])
        found = []
        for on_device, stretches in chunks:
            for at, address, size in stretches:
                bytes_ = list(ctypes.string_at(address, size))
                assert size > 0
                assert bytes_ == on_device[at : at + size].tolist()
                found += bytes_
        assert found == [byte for _, piece in part.host for byte in flat(piece).tolist()]

    sizes = st.sampled_from((1, 2, 4, 8, 64, 128))
    hold_for_all(check, staged_parts(), sizes, share=0, examples=400)


# -- loads ----------------------------------------------------------------------------------------


# -- parcels --------------------------------------------------------------------------------------


def carry(load):
    """Copy what a load has, to the host, as a ring would."""
    for part in load.parts:
        for at, host in part.host:
            flat(host).copy_(flat(part.device)[at : at + host.nbytes])


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
    monkeypatch.setattr("autopar.transfer.to_host._SOON_S", 1e9)
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
    monkeypatch.setattr("autopar.transfer.to_host._SOON_S", 0)
    assert counts(parcels_of(torch.ones(1) for _ in range(50))) == [1] * 50
    assert counts(parcels_of((torch.ones(1) for _ in range(50)), given=False)) == [1] * 50


def test_fewer_travel_together_once_they_come_late(monkeypatch):
    monkeypatch.setattr("autopar.transfer.to_host._SOON_S", 1e9)
    parcels = parcels_of(torch.ones(1) for _ in range(1000))
    found = []
    for load in parcels:
        carry(load)
        found.append(len(parcels.unpack(load)))
        if found[-1] > 50:
            monkeypatch.setattr("autopar.transfer.to_host._SOON_S", 0)
    falling = found[found.index(max(found)) :]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == 1
    assert sum(found) == 1000


@pytest.mark.parametrize("given", [False, True])
def test_only_small_ones_travel_together(monkeypatch, given):
    monkeypatch.setattr("autopar.transfer.to_host._SOON_S", 1e9)
    sizes = [1, 2000, 1, 1, 1024, 1, 513, 512, 512, 1] * 20
    found = counts(parcels_of((torch.ones(n).byte() for n in sizes), given=given))
    ends = list(itertools.accumulate(found))
    assert ends[-1] == len(sizes)
    for count, end in zip(found, ends, strict=True):
        own = sizes[end - count : end]
        assert count == 1 or sum(own) <= 1024
    assert max(found) > 1


@pytest.mark.parametrize(
    ("size_bytes", "most"),
    [(1 << 18, 64), ((1 << 18) + 1, 15), (1 << 20, 4), (2 << 20, 2), ((2 << 20) + 1, 1)],
)
@pytest.mark.parametrize("given", [False, True])
def test_what_travels_together_is_of_limited_size(monkeypatch, size_bytes, most, given):
    """Tiny ones fill a slot; of others, what is kept of a few should not keep much else."""
    monkeypatch.setattr("autopar.transfer.to_host._SOON_S", 1e9)
    items = [torch.ones(size_bytes, dtype=torch.uint8)] * 90
    found = counts(parcels_of(items, slot_bytes=1 << 24, given=given))
    assert max(found) == most
    assert sum(found) == 90


def test_what_has_gaps_is_copied_once_and_no_more():
    clones, clone = [], torch.Tensor.clone

    def counting(tensor, *args, **options):
        clones.append(tensor)
        return clone(tensor, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", counting)
        list(parcels_of([torch.ones(2000)[::2], torch.ones(1000)], given=True))
    assert [tensor.stride() for tensor in clones] == [(2,), (1,)]


def test_a_batchs_blocks_are_of_limited_size():
    """They are freed together, so a small one that is kept must not keep much else."""
    batch = [
        torch.ones(n, dtype=torch.uint8) for n in (1 << 19, 1 << 19, 1, 1 << 20, 1, 1, 1 << 22)
    ]
    (load,) = ToDeviceParcels(CopyStream(cpu()), iter([batch]), given=True)
    assert [len(part.host) for part in load.parts] == [2, 1, 1, 2, 1]
