"""Intervals in numpy: by hand, and against brute force."""

from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.timeline.intervals import (
    as_array,
    clipped,
    common,
    covered,
    length_s,
    length_within,
    without,
)

# Few intervals on few ticks: many touch, nest, are equal or have no length.
PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), max_size=7)


def ticks(pairs):
    return {tick for start, end in pairs for tick in range(int(start), int(end))}


@settings(max_examples=300)
@given(PAIRS, PAIRS)
def test_against_a_set_of_ticks(first, second):
    one, other = covered(as_array(first)), covered(as_array(second))
    assert length_s(one) == len(ticks(first))
    both, rest = common(one, other), without(one, other)
    assert ticks(both.tolist()) == ticks(first) & ticks(second)
    assert ticks(rest.tolist()) == ticks(first) - ticks(second)
    for disjoint in (one, both, rest):
        assert (disjoint[:, 0] < disjoint[:, 1]).all()
        assert (disjoint[1:, 0] > disjoint[:-1, 1]).all(), "in order, and none touches the next"
    which, parts = clipped(as_array(first), other)
    for i, pair in enumerate(first):
        assert ticks(parts[which == i].tolist()) == ticks([pair]) & ticks(second)
    within = [len(ticks([pair]) & ticks(second)) for pair in first]
    assert length_within(other, *as_array(first).T).tolist() == within
