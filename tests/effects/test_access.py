"""Accesses against memory of single bytes: who must wait for whom, and for nobody else."""

import numpy as np
import pytest
from hypothesis import strategies as st
from random_cases import hold_for_all

from autopar.effects.access import ANYWHERE, Accesses, ByteRange, Places
from autopar.effects.memory import ranges_of

_BYTES = 12
_SIZES = {"bytes": (1, 2), "pieces": (1, 4), "large": (6, _BYTES), "any": (0, _BYTES)}


def ranges(least, most):
    """Ranges of so many bytes of two memories; in a few cases all of one, or of both."""
    parts = [
        ByteRange(memory, start, start + size)
        for memory in "xy"
        for size in range(least, most + 1)
        for start in range(_BYTES + 1 - size)
    ]
    return st.sampled_from([*parts, *map(ByteRange, "xy"), ANYWHERE])


def noted(tasks):
    """What each task must wait for; tasks are pairs of reads and writes, gone through once."""
    accesses = Accesses()
    return [accesses.note(number, *map(iter, task)) for number, task in enumerate(tasks)]


def bytes_of(stretches):
    return {
        (memory, at)
        for each in stretches
        for memory in ("xy" if each is ANYWHERE else each.memory)
        for at in range(2 * _BYTES)
        if each.start <= at < each.stop
    }


def conflicts(tasks):
    """For each task, all before it that wrote what it touches, or read what it writes."""
    touched = [tuple(map(bytes_of, task)) for task in tasks]
    anywhere = [ANYWHERE in writes for _, writes in tasks]
    return [
        {
            other
            for other, (read, written) in enumerate(touched[:number])
            if written & (reads | writes) or read & writes or anywhere[other] or anywhere[number]
        }
        for number, (reads, writes) in enumerate(touched)
    ]


def closure(waits):
    """All that has ended before each task, with what those waited for."""
    ended = []
    for own in waits:
        ended.append(own.union(*(ended[each] for each in own)))
    return ended


@pytest.mark.parametrize("size", _SIZES)
def test_tasks_wait_for_the_conflicts_that_bytes_have(size):
    met = []

    def right(tasks):
        needed, waits = conflicts(tasks), noted(tasks)
        met.extend(map(len, needed))
        assert closure(waits) == closure(needed)
        # Not one is without a conflict of its own: readers don't wait for each other.
        assert all(own <= conflict for own, conflict in zip(waits, needed, strict=True))

    some = st.lists(ranges(*_SIZES[size]), max_size=2)
    hold_for_all(
        right, st.lists(st.tuples(some, some), min_size=10, max_size=30), share=0, examples=60
    )
    assert sum(met) > 1000


@pytest.mark.parametrize("rows", [slice(2, None), slice(None, 1, -1), slice(3, 4)])
def test_an_array_meets_its_views_wherever_they_begin_and_they_no_rows_but_their_own(rows):
    array = np.zeros((4, 2))
    whole, view, before = ranges_of([array, array[rows], array[:2]])
    places = Places()
    places.add(view)
    assert places.at(whole)
    assert not places.covers(whole)
    assert not places.at(before)
    places.add(whole)
    assert places.covers(view)
    places = Places()
    places.add(ANYWHERE)
    assert places.covers(whole)


X = ByteRange("x")
LEFT, RIGHT, MIDDLE = ByteRange("x", 0, 4), ByteRange("x", 4, 8), ByteRange("x", 2, 6)


def test_what_a_write_covers_is_waited_for_no_more():
    """A program that writes the same memory again and again keeps its waits few."""
    waits = noted([([X], [X]), *([([], [LEFT]), ([], [RIGHT]), ([MIDDLE], []), ([], [X])] * 50)])
    assert waits[1:5] == [{0}, {0}, {1, 2}, {0, 1, 2, 3}]
    assert all(number - min(own) <= 4 for number, own in enumerate(waits) if own)
