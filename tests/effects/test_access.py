"""Accesses against memory of single bytes: who must wait for whom, and for nobody else."""

import random

import pytest

from autopar.effects.access import Accesses, ByteRange

_BYTES = 12
_SIZES = {"bytes": (1, 2), "pieces": (1, 4), "large": (6, _BYTES), "any": (1, _BYTES)}


def noted(tasks):
    """What each task must wait for; tasks are pairs of reads and writes."""
    accesses = Accesses()
    return [accesses.note(number, *task) for number, task in enumerate(tasks)]


def some_stretches(chance, size, at_most=2):
    found = []
    for _ in range(chance.randint(0, at_most)):
        length = chance.randint(*size)
        start = chance.randint(0, _BYTES - length)
        found.append(ByteRange(chance.choice("xy"), start, start + length))
    return found + [ByteRange(chance.choice("xy"))] * (chance.random() < 0.05)


def some_tasks(chance, size, count=30):
    return [(some_stretches(chance, size), some_stretches(chance, size)) for _ in range(count)]


def bytes_of(stretches):
    return {
        (each.memory, at)
        for each in stretches
        for at in range(_BYTES)
        if each.start <= at < each.stop
    }


def conflicts(tasks):
    """For each task, all before it that wrote what it touches, or read what it writes."""
    touched = [tuple(map(bytes_of, task)) for task in tasks]
    return [
        {
            other
            for other, (read, written) in enumerate(touched[:number])
            if written & (reads | writes) or read & writes
        }
        for number, (reads, writes) in enumerate(touched)
    ]


def closure(waits):
    """All that has ended before each task, with what those waited for."""
    ended = []
    for own in waits:
        ended.append(own.union(*(ended[each] for each in own)))
    return ended


X, Y = ByteRange("x"), ByteRange("y")
LEFT, RIGHT, MIDDLE = ByteRange("x", 0, 4), ByteRange("x", 4, 8), ByteRange("x", 2, 6)


@pytest.mark.parametrize(
    ("tasks", "waits"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([([X], []), ([X], [])], [set(), set()], id="readers"),
        pytest.param([([], [X]), ([X], []), ([X], [])], [set(), {0}, {0}], id="one writer"),
        pytest.param([([X], []), ([X], []), ([], [X])], [set(), set(), {0, 1}], id="overwritten"),
        pytest.param([([], [X]), ([], [X]), ([X], [])], [set(), {0}, {1}], id="written twice"),
        pytest.param([([X], [X])] * 3, [set(), {0}, {1}], id="in place"),
        pytest.param([([], [X]), ([], [Y]), ([Y], [X])], [set(), set(), {0, 1}], id="memories"),
        pytest.param([([], [LEFT]), ([], [RIGHT])], [set(), set()], id="neighbours"),
        pytest.param(
            [([], [LEFT]), ([], [RIGHT]), ([MIDDLE], []), ([], [X]), ([LEFT], [])],
            [set(), set(), {0, 1}, {0, 1, 2}, {3}],
            id="parts of a whole",
        ),
        pytest.param(
            [([], [X]), ([], [MIDDLE]), ([LEFT], [])], [set(), {0}, {0, 1}], id="written in part"
        ),
        pytest.param([([X, X], [Y, Y]), ([Y], [])], [set(), {0}], id="named twice"),
    ],
)
def test_cases_by_hand(tasks, waits):
    assert noted(tasks) == waits


@pytest.mark.parametrize("size", _SIZES)
def test_chance_finds_the_conflicts_that_bytes_have(size):
    met = 0
    for seed in range(150):
        tasks = some_tasks(random.Random(seed), _SIZES[size])
        needed, waits = conflicts(tasks), noted(tasks)
        met += sum(map(len, needed))
        assert closure(waits) == closure(needed)
        # Not one is without a conflict of its own: readers don't wait for each other.
        assert all(own <= conflict for own, conflict in zip(waits, needed, strict=True))
    assert met > 1000


def test_what_a_write_covers_is_waited_for_no_more():
    """A program that writes the same memory again and again keeps its waits few."""
    waits = noted([([X], [X]), *([([], [LEFT]), ([], [RIGHT]), ([MIDDLE], []), ([], [X])] * 50)])
    assert max(map(len, waits)) == 4
    assert all(number - min(own) <= 4 for number, own in enumerate(waits) if own)


def test_readers_of_one_memory_wait_for_its_writer_and_never_for_each_other():
    chance = random.Random(0)
    reads = [(some_stretches(chance, _SIZES["any"]), []) for _ in range(200)]
    assert not any(noted(reads))
    assert set().union(*noted([([], [X, Y]), *reads])) == {0}


def test_a_task_does_not_wait_for_itself_and_may_be_noted_in_parts():
    accesses = Accesses()
    assert accesses.note(0, [], [X]) == set()
    assert accesses.note(0, [X], [X]) == set()
    assert accesses.note(1, [X], []) == {0}


def test_numbers_need_not_be_in_a_row():
    accesses = Accesses()
    assert accesses.note(70, [], [X]) == set()
    assert accesses.note(-3, [X], []) == {70}
    assert accesses.note(12, [], [X]) == {70, -3}


def test_memory_is_whatever_has_a_hash():
    accesses = Accesses()
    assert accesses.note(0, [], [ByteRange(("cpu", 3)), ByteRange(7)]) == set()
    assert accesses.note(1, [ByteRange(("cpu", 4)), ByteRange("7")], []) == set()
    assert accesses.note(2, [ByteRange(("cpu", 3))], []) == {0}


def test_stretches_meet_and_cover_as_their_bytes_do():
    every = [
        ByteRange(memory, start, stop)
        for memory in "xy"
        for start in range(5)
        for stop in range(start + 1, 6)
    ]
    for one in every:
        assert ByteRange(one.memory).covers(one)
        assert not one.covers(ByteRange(one.memory))
        for other in every:
            assert one.meets(other) == bool(bytes_of([one]) & bytes_of([other]))
            assert one.covers(other) == (bytes_of([one]) >= bytes_of([other]))


@pytest.mark.parametrize("kind", [list, tuple, iter], ids=lambda kind: kind.__name__)
def test_reads_and_writes_may_be_any_iterables(kind):
    accesses = Accesses()
    assert accesses.note(0, kind([X]), kind([Y])) == set()
    assert accesses.note(1, kind([]), kind([X])) == {0}
    assert accesses.note(2, kind([Y]), kind([])) == {0}


def test_a_stretch_without_bytes_meets_nothing():
    empty = ByteRange("x", 3, 3)
    assert not empty.meets(X)
    assert not X.meets(empty)
    assert noted([([], [X]), ([], [empty]), ([empty], [])]) == [set(), set(), set()]
