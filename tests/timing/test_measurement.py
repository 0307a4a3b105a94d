"""Raw samples and what is derived from them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar import Measurement, hidden_share
from autopar.timing.measurement import format_seconds


def test_statistics_are_derived_from_the_samples_in_their_order():
    products = Measurement("products", [4, 1, 3, 2, 5], flops=6e12, size_bytes=9e9, origin="here")
    assert products.values_s == (4.0, 1.0, 3.0, 2.0, 5.0)
    assert (products.median_s, products.iqr_s) == (3.0, 2.0)
    assert products.min_s == 1.0
    assert (products.tflops_per_s, products.gb_per_s) == (2.0, 3.0)
    assert products.spread == pytest.approx(2 / 3)
    assert products.speedup_over(Measurement("slower", (6, 6, 6))) == 2.0
    assert repr(products) == "<Measurement: products, median 3.000 s, samples 5, here>"
    with pytest.raises(TypeError, match="other is of type int; expected a Measurement"):
        products.speedup_over(3)
    plain = Measurement("plain", (1, 1, 1))
    assert (plain.tflops_per_s, plain.gb_per_s) == (None, None)
    assert repr(plain) == "<Measurement: plain, median 1.000 s, samples 3>"


@pytest.mark.parametrize(
    ("values_s", "noisy"),
    [((1.0, 1.0, 1.0), False), ((1.0, 1.0, 1.05, 1.1), False), ((0.8, 1.0, 1.3), True)],
)
def test_noise_is_told(values_s, noisy):
    measured = Measurement("work", values_s)
    assert (measured.warning == "") == (not noisy)
    assert ("noisy" in str(measured)) == noisy
    assert str(measured).startswith("work: 1.0")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        *[
            ({"values_s": (1.0, bad_s, 1.0)}, "'work'.*finite and above zero")
            for bad_s in (0.0, -1.0, math.nan, math.inf, 10**400, 1e308, True)
        ],
        *[({"values_s": (1.0,) * n}, f"'work' has {n} samples.*at least 3") for n in (0, 2)],
        *[({"label": label}, "expected a few words") for label in ("", "  ", None, 7)],
        *[
            ({argument: amount}, f"{argument} is {amount!r:.40}.*; expected .*above zero")
            for argument in ("flops", "size_bytes")
            for amount in (-1, 0, math.nan, math.inf, 10**400, "1e9")
        ],
    ],
)
def test_samples_labels_and_amounts_that_cannot_be_are_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        Measurement(**{"label": "work", "values_s": (1, 1, 1), **changes})


@pytest.mark.parametrize("times", [3, "123", [1.0, "2", 3.0]])
def test_times_are_several_numbers(times):
    with pytest.raises(TypeError, match="values_s of 'a'.* is .*; expected .*several times"):
        Measurement("a", times)
    with pytest.raises(TypeError, match="parts_s.* is .*; expected .*several times"):
        hidden_share(times, 2)


@pytest.mark.parametrize(("together_s", "share"), [(5, 0.0), (4, 1.0), (3.75, 1.25), (6, -1.0)])
def test_hidden_share(together_s, share):
    assert hidden_share(iter([4, 1]), together_s) == share
    assert hidden_share([2, 2, 2], 4) == 0.5


@pytest.mark.parametrize(
    ("parts_s", "together_s", "match"),
    [
        *[([4, 1], s, "together_s is .*4.*same work") for s in (3.5, math.nan, math.inf, 10**400)],
        *[(parts, 1, "parts_s .*finite") for parts in ([], [1], [1, 0], [1, math.nan], [1, 1e308])],
    ],
)
def test_shares_that_cannot_be_are_refused(parts_s, together_s, match):
    """One part hides behind nothing, and together takes no less than alone, but for noise."""
    with pytest.raises(ValueError, match=match):
        hidden_share(parts_s, together_s)
    with pytest.raises(TypeError, match="together_s is .*; expected .*seconds"):
        hidden_share([1, 2], "3")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (99.123, "99.12 s"),
        (0.99996, "1.000 s"),  # rounding up takes the next unit
        (5e-9, "0.005 µs"),
        (-0.002, "-2.000 ms"),
        (1234.5, "1234 s"),
    ],
)
def test_seconds_in_the_unit_a_reader_expects(seconds, text):
    assert format_seconds(seconds) == text


@given(st.floats(1e-6, 1e4))
def test_seconds_have_four_figures_and_a_whole_part_below_a_thousand(seconds):
    number, unit = format_seconds(seconds).split()
    assert float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit] == pytest.approx(seconds, 6e-4)
    assert "e" not in number
    assert unit == "s" or 1 <= float(number) < 1000
