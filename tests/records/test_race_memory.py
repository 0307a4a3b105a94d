"""Race: memory that ways share, and what one leaves there, is no result of another."""

import collections

import numpy
import pytest
import torch

import autopar as ap

_X = torch.arange(4.0)

pytestmark = pytest.mark.filterwarnings("ignore:nothing was timed, as results differ")


def test_a_result_that_an_earlier_way_has_left_is_no_result():
    buffer, fresh = torch.empty(4), torch.empty(4)
    array = buffer.numpy()
    alone, bytes_ = numpy.empty(4), bytearray()
    for filled, forgotten in (
        (lambda: buffer.copy_(2 * _X), lambda: buffer),
        (lambda: (buffer.copy_(2 * _X), array)[1], lambda: array),
        (lambda: fresh.copy_(2 * _X), lambda: fresh.numpy()),  # by which torch shares it
        (lambda: (buffer.copy_(2 * _X), array)[1], lambda: buffer.view(4).numpy()),
        (lambda: numpy.copyto(alone, [0, 2, 4, 6]) or alone, lambda: alone[:]),
        (lambda: numpy.copyto(alone, [0, 2, 4, 6]) or [alone[1:]], lambda: [alone[1:]]),
        (
            lambda: numpy.copyto(alone, 3) or torch.from_numpy(alone),
            lambda: torch.from_numpy(alone),
        ),
        (lambda: numpy.copyto(alone, 3) or alone, lambda: torch.from_numpy(alone).numpy()),
        (lambda: bytes_.append(1) or bytes_, lambda: bytes_),
    ):
        ways = {"filled": filled, "forgotten": forgotten}

        def reset():
            buffer.fill_(torch.nan)
            fresh.fill_(torch.nan)
            alone.fill(numpy.nan)
            bytes_.clear()

        assert ap.race(ways, reset=reset).checks == {"forgotten: equal to filled": False}
        with pytest.raises(ValueError, match="'forgotten' return the same memory.*reset="):
            ap.race(ways)


def _filled(out, value=3):
    with torch.inference_mode():
        out[...] = value
    return out


def _inferred():
    with torch.inference_mode():
        return torch.ones(2, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 2),
        lambda: torch.ones(2, 2, dtype=torch.bfloat16).t(),
        lambda: torch.ones(2, 2, dtype=torch.complex64).real,
        lambda: torch.nn.Linear(2, 2, bias=False).weight,
        _inferred,
        lambda: numpy.ones((2, 2)),
        lambda: numpy.ones((2, 2), dtype=">f4")[::-1],
    ],
)
def test_ways_may_share_memory_that_each_fills_or_none_does(make):
    held = make()
    was = held + 0
    assert ap.race({"one": lambda: (held, 1), "other": lambda: (held, 1)}, repeats=3).measurements
    assert (held == was).all()
    for one, other in (
        (lambda: _filled(held), lambda: _filled(held)),
        (lambda: _filled(held[0]), lambda: _filled(held[1])),
    ):
        assert ap.race({"one": one, "other": other}, repeats=3).measurements
    with pytest.raises(ValueError, match="the same memory"):
        ap.race({"one": lambda: _filled(held), "half": lambda: (_filled(held[:1]), held)[1]})
    assert (held == 3).all()


def test_whole_numbers_in_rows_of_their_own_share_nothing():
    for rows in (torch.zeros(2, 2, dtype=torch.int64), numpy.zeros((2, 2), dtype=int)):
        ways = {f"row {i}": lambda row=rows[i]: _filled(row) for i in range(2)}
        assert ap.race(ways, repeats=3).measurements
        with pytest.raises(ValueError, match="'whole' return the same memory"):
            ap.race({**ways, "whole": lambda rows=rows: rows[1]})


@pytest.mark.parametrize(
    ("held", "change"),
    [
        (torch.zeros(4), lambda held: held.add_(1)),
        (numpy.zeros(4), lambda held: held.fill(3)),
        ({1}, lambda held: held.add(4)),
        (bytearray(b"1"), lambda held: held.extend(b"4")),
        ({"a": 1}, lambda held: held.update(a=4)),
        (collections.deque([1]), lambda held: held.appendleft(4)),
    ],
)
def test_what_ways_share_is_compared_as_it_was(held, change):
    ways = {"one": lambda: held, "other": lambda: (change(held), held)[1]}
    assert ap.race(ways).checks == {"other: equal to one": False}


def test_what_is_expected_is_kept_as_it_was():
    buffer = torch.full((4,), 2.0)
    ways = {"right": lambda: buffer.fill_(2), "wrong": lambda: buffer.fill_(3)}
    assert [*ap.race(ways, expected=buffer).checks.values()] == [True, False]
