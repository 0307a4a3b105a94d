"""Layouts and chunks against brute force over the bytes in memory."""

import ctypes
import itertools
from collections import Counter

import torch
from hypothesis import strategies as st
from random_cases import hold_for_all

from autopar.transfer.layout import Layout, flat, is_dense
from autopar.transfer.load import Part


def places(tensor):
    """Where in memory each element lies, counted in elements from the first."""
    ranges = [range(n) for n in tensor.shape]
    steps = tensor.stride()
    return [
        sum(i * step for i, step in zip(index, steps, strict=True))
        for index in itertools.product(*ranges)
    ]


@st.composite
def views(draw):
    """A view with any shape and strides."""
    shape = draw(st.lists(st.sampled_from((0, 1, 1, 2, 3)), max_size=4))
    steps, step = [0] * len(shape), draw(st.sampled_from((1, 1, 1, 2)))
    for dimension in draw(st.permutations(range(len(shape)))):
        steps[dimension] = draw(st.sampled_from((step, step, step, step, 0, step + 1, 7)))
        step *= max(1, shape[dimension])
    last = sum((n - 1) * each for n, each in zip(shape, steps, strict=True) if n)
    offset = draw(st.integers(0, 3))
    return torch.arange(offset + max(0, last) + 1.0).as_strided(shape, steps, offset)


def test_a_dense_tensor_fills_its_memory_and_is_its_bytes_and_its_layout():
    found = Counter()

    def check(view):
        dense = sorted(places(view)) == list(range(view.numel()))
        found[dense] += 1
        assert is_dense(view) == dense, (view.shape, view.stride())
        if not dense:
            return
        row = flat(view)
        assert row.shape == (view.nbytes,)
        assert row.dtype == torch.uint8
        layout = Layout.of(view)
        assert layout.size_bytes == view.nbytes
        block = torch.cat([row, torch.ones(7).byte()])
        back = layout.within(block)
        assert torch.equal(back, view)
        assert back.stride() == view.stride()
        if view.numel():
            assert row.data_ptr() == view.data_ptr()
            assert back.data_ptr() == block.data_ptr()

    hold_for_all(check, views(), share=0, examples=600)
    assert min(found[True], found[False]) > 50


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
