"""Layouts against brute force over the elements' places in memory."""

import itertools
from collections import Counter

import torch
from hypothesis import strategies as st
from random_cases import hold_for_all

from autopar.transfer.layout import (
    Layout,
    flat,
    is_dense,
)


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
        block = torch.cat([torch.zeros(64, dtype=torch.uint8), row, torch.ones(7).byte()])
        back = layout.within(block, 64)
        assert torch.equal(back, view)
        assert back.stride() == view.stride()
        assert torch.equal(layout.within(row.clone()), view)
        if view.numel():
            assert row.data_ptr() == view.data_ptr()
            assert back.data_ptr() == block.data_ptr() + 64

    hold_for_all(check, views(), share=0, examples=600)
    assert min(found[True], found[False]) > 50
