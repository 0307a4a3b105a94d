"""Intervals in numpy: by hand, and against brute force."""

from __future__ import annotations

import random

import pytest
from sampling import every

from autopar.timeline.intervals import (
    as_array,
    at_once,
    clipped,
    common,
    covered,
    length_s,
    longest,
    overlapping,
    without,
)
from autopar.timeline.span import Span

TICKS = 24
Pairs = list[tuple[float, float]]


def some(rng: random.Random) -> Pairs:
    """Few intervals on few ticks: many touch, nest, are equal or have no length."""
    starts = [rng.randrange(TICKS) for _ in range(rng.randrange(7))]
    return [(float(s), float(rng.randint(s, TICKS))) for s in starts]


def ticks(pairs: Pairs) -> set[int]:
    return {tick for start, end in pairs for tick in range(int(start), int(end))}


@pytest.mark.parametrize("seed", every(10, range(300)))
def test_against_a_set_of_ticks(seed: int) -> None:
    rng = random.Random(seed)
    groups = [some(rng) for _ in range(rng.randint(1, 4))]
    first, second = some(rng), some(rng)
    one, other = covered(as_array(first)), covered(as_array(second))
    assert length_s(one) == len(ticks(first))
    assert (one[1:, 0] > one[:-1, 1]).all(), "disjoint, in order, and none touches the next"
    assert ticks(common(one, other).tolist()) == ticks(first) & ticks(second)
    assert ticks(without(one, other).tolist()) == ticks(first) - ticks(second)
    counts: dict[int, float] = {0: 0}
    for tick in ticks(second):
        count = sum(tick in ticks(group) for group in groups)
        counts[count] = counts.get(count, 0) + 1
    assert at_once([covered(as_array(group)) for group in groups], other) == counts
    expected = [bool(ticks([pair]) & ticks(second)) for pair in first if pair[1] > pair[0]]
    lasting = as_array([pair for pair in first if pair[1] > pair[0]])
    assert overlapping(lasting, other).tolist() == expected
    for start, end in first:
        inside = clipped(Span("s", "lane", start, end), other)
        assert ticks(inside) == ticks([(start, end)]) & ticks(second)


def test_nothing_is_nothing() -> None:
    empty, some_time = as_array([]), as_array([(0.0, 2.0)])
    assert covered(empty).shape == common(empty, some_time).shape == (0, 2)
    assert without(some_time, empty).tolist() == [[0.0, 2.0]]
    assert without(empty, some_time).tolist() == []
    assert at_once([], some_time) == {0: 2.0}
    assert at_once([some_time], empty) == {0: 0.0}
    assert longest(empty) is None
    assert overlapping(some_time, empty).tolist() == [False]


def test_the_longest_is_the_first_of_equals() -> None:
    assert longest(as_array([(0, 1), (2, 4), (5, 7)])) == (2.0, 4.0)
