"""Raw samples and what is derived from them."""

import math
import re

import pytest

from autopar.timing.measurement import Measurement, check_label, format_seconds, hidden_share


def test_statistics_are_derived_from_the_samples_in_their_order():
    products = Measurement("products", [4, 1, 3, 2, 5], flops=6e12, size_bytes=9e9, origin="here")
    assert products.values_s == (4.0, 1.0, 3.0, 2.0, 5.0)
    assert (products.median_s, products.iqr_s) == (3.0, 2.0)
    assert (products.min_s, products.max_s) == (1.0, 5.0)
    assert (products.tflops_per_s, products.gb_per_s) == (2.0, 3.0)
    assert products.spread == pytest.approx(2 / 3)
    assert products.speedup_over(Measurement("slower", (6, 6, 6))) == 2.0


def test_no_rate_without_an_amount():
    plain = Measurement("plain", (1, 1, 1))
    assert plain.tflops_per_s is None
    assert plain.gb_per_s is None


@pytest.mark.parametrize(
    ("values_s", "noisy"),
    [((1.0, 1.0, 1.0), False), ((1.0, 1.0, 1.05, 1.1), False), ((0.8, 1.0, 1.3), True)],
)
def test_noise_is_told(values_s, noisy):
    measured = Measurement("work", values_s)
    assert bool(measured.warning) == noisy
    assert ("noisy" in str(measured)) == noisy
    assert str(measured).startswith("work: 1.0")


@pytest.mark.parametrize("bad_s", [0.0, -1.0, math.nan, math.inf])
def test_refuses_samples_that_are_no_times(bad_s):
    with pytest.raises(ValueError, match="'work'.*finite and above zero"):
        Measurement("work", (1.0, bad_s, 1.0))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_refuses_too_few_samples(count):
    with pytest.raises(ValueError, match=f"has {count} samples.*at least 3"):
        Measurement("work", (1.0,) * count)


@pytest.mark.parametrize("label", ["", "  ", None, 7])
def test_refuses_a_label_that_names_nothing(label):
    for refuse in (check_label, lambda label: Measurement(label, (1, 1, 1))):
        with pytest.raises(ValueError, match="expected a few words"):
            refuse(label)


@pytest.mark.parametrize(
    ("parts_s", "together_s", "share"),
    [
        ([4, 1], 5, 0.0),
        ([4, 1], 4, 1.0),
        ([2, 2, 2], 4, 0.5),
        ([4, 1], 3.75, 1.25),
        ([4, 1], 6, -1.0),
    ],
)
def test_hidden_share(parts_s, together_s, share):
    assert hidden_share(iter(parts_s), together_s) == share


@pytest.mark.parametrize("parts_s", [[], [1.0], [1.0, 0.0]])
def test_one_part_can_hide_behind_nothing(parts_s):
    with pytest.raises(ValueError, match=re.escape(f"parts_s is {parts_s}; expected")):
        hidden_share(parts_s, 1.0)


@pytest.mark.parametrize("together_s", [3.5, 0.0, -1.0, math.nan])
def test_together_takes_no_less_than_the_longest_part_but_for_noise(together_s):
    with pytest.raises(ValueError, match=f"together_s is {together_s}, .* alone 4.*same work"):
        hidden_share([4, 1], together_s)


@pytest.mark.parametrize("argument", ["flops", "size_bytes"])
@pytest.mark.parametrize("amount", [-1, 0, math.nan, math.inf, "1e9"])
def test_refuses_amounts_of_work_that_cannot_be(argument, amount):
    with pytest.raises(ValueError, match=f"{argument} is {amount!r}; expected .*above zero"):
        Measurement("work", (1, 1, 1), **{argument: amount})


def test_it_says_itself_in_one_line():
    many = Measurement("products", [0.001] * 500, origin="here")
    assert repr(many) == "<Measurement: products, median 1.000 ms, samples 500, here>"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1, "1.000 s"),
        (99.123, "99.12 s"),
        (0.13094, "130.9 ms"),
        (0.0123456, "12.35 ms"),
        (12.5e-6, "12.50 us"),
        (5e-9, "0.005 us"),
        (-0.002, "-2.000 ms"),
        (1234.5, "1234 s"),
    ],
)
def test_seconds_in_the_unit_a_reader_expects(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("seconds", [0.99996, 0.00099996])
def test_rounding_up_takes_the_next_unit(seconds):
    assert format_seconds(seconds).startswith("1.000 ")
