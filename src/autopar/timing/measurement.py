"""Measurement: raw seconds under a label, and the statistics derived from them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from autopar.refusal import check_type, check_words, positive, several
from autopar.units import format_seconds as format_seconds

Limit = float | Mapping[str, float] | None  # seconds: for all labels, by label, or none

MIN_SAMPLES = 3  # quartiles of fewer samples are the samples themselves
LABEL = "a few words. Say what is measured, as in 'GPU1 alone'."
_TIMES = "several times in seconds, as in [0.11, 0.12, 0.10]."
_SAMPLE = "seconds, finite and above zero, below 1e12. Measure more work in one sample."
_MOST_S = 1e12  # no clock counts 30,000 years; sums of times are finite so
_NOISY_SPREAD = 0.10  # IQR over median; torch.utils.benchmark warns from the same 10 % on


@dataclass(frozen=True, repr=False)
class Measurement:
    """Raw samples of one piece of work; every statistic is derived from them.

    Args:
        label: What was measured, in words.
        values_s: One wall-clock time in seconds for each repeat, in the order taken.
        flops: Floating-point operations of one repeat, if a rate is wanted.
        size_bytes: Bytes that one repeat moves, if a bandwidth is wanted.
        origin: Where and when this was measured, in words.

    Raises:
        ValueError: An empty label, fewer than three samples, a sample or an amount that is
            not a positive finite number.

    >>> import autopar as ap
    >>> products = ap.Measurement("10 products", (2.0, 1.0, 3.0), flops=4e12)
    >>> products.iqr_s, products.tflops_per_s
    (1.0, 2.0)
    >>> products
    <Measurement: 10 products, median 2.000 s, samples 3>
    """

    label: str
    values_s: tuple[float, ...]
    flops: float | None = None
    size_bytes: float | None = None
    origin: str = ""

    def __post_init__(self) -> None:
        check_words("label", self.label, LABEL)
        for argument, amount in (("flops", self.flops), ("size_bytes", self.size_bytes)):
            if amount is not None:
                check_positive(argument, amount)
        of = f"values_s of {self.label!r}"
        values_s = several(of, self.values_s, _TIMES, Real)
        for i, value_s in enumerate(values_s):
            positive(f"{of}[{i}]", value_s, _SAMPLE, _MOST_S)
        if len(values_s) < MIN_SAMPLES:
            expected = f"expected at least {MIN_SAMPLES}, so that there is a spread. Measure again."
            msg = f"{of} has {len(values_s)} samples; {expected}"
            raise ValueError(msg)
        object.__setattr__(self, "values_s", tuple(map(float, values_s)))

    @property
    def median_s(self) -> float:
        """Median of the samples, in seconds."""
        return statistics.median(self.values_s)

    @property
    def iqr_s(self) -> float:
        """Interquartile range of the samples, in seconds."""
        lower, _, upper = statistics.quantiles(self.values_s, n=4, method="inclusive")
        return upper - lower

    @property
    def min_s(self) -> float:
        """Fastest sample, in seconds."""
        return min(self.values_s)

    @property
    def spread(self) -> float:
        """Interquartile range over median, a fraction."""
        return self.iqr_s / self.median_s

    @property
    def warning(self) -> str:
        """Why the median should be doubted, or an empty string."""
        if self.spread <= _NOISY_SPREAD:
            return ""
        share = f"{100 * self.spread:.0f} %"
        return f"noisy: the middle half of the samples spreads over {share} of the median"

    @property
    def tflops_per_s(self) -> float | None:
        """Arithmetic rate in TFLOP/s, where `flops` is known."""
        return None if self.flops is None else self.flops / 1e12 / self.median_s

    @property
    def gb_per_s(self) -> float | None:
        """Bandwidth in GB/s (1e9 bytes), where `size_bytes` is known."""
        return None if self.size_bytes is None else self.size_bytes / 1e9 / self.median_s

    def speedup_over(self, other: Measurement) -> float:
        """How many times faster this is than `other`, by medians."""
        check_type("other", other, Measurement, "a Measurement, as measure(...) returns it.")
        return other.median_s / self.median_s

    def __repr__(self) -> str:
        median, where = format_seconds(self.median_s), f", {self.origin}" if self.origin else ""
        return f"<Measurement: {self.label}, median {median}, samples {len(self.values_s)}{where}>"

    def __str__(self) -> str:
        warning = f" ({self.warning})" if self.warning else ""
        return f"{self.label}: {format_seconds(self.median_s)}{warning}"


def hidden_share(parts_s: Iterable[float], together_s: float) -> float:
    """Share of what overlap could save that was saved, from wall-clock times.

    0 is serial, 1 is the best possible: all but the longest part cost nothing. Noise may carry it
    beyond either; below 0 is slower than serial, as where parts take bandwidth from each other.

    Args:
        parts_s: Times of the parts alone, in seconds; at least two.
        together_s: Time of all of them run together, in seconds.

    Raises:
        ValueError: Fewer than two parts, one that takes no time, or a time together that is less
            than the longest part takes alone, by more than noise.

    >>> import autopar as ap
    >>> ap.hidden_share([4.0, 1.0], 4.25)
    0.75
    """
    parts: list[float] = list(several("parts_s", parts_s, _TIMES, Real))
    check_type("together_s", together_s, Real, "a time in seconds, as of a Measurement.median_s.")
    if len(parts) < 2 or not all(0 < part < _MOST_S for part in parts):
        msg = f"parts_s is {parts}; expected two or more times, all finite and above zero."
        raise ValueError(msg)
    if not (1 - _NOISY_SPREAD) * max(parts) <= together_s < _MOST_S:  # also catches NaN
        msg = (
            f"together_s is {together_s!r}, and the longest of parts_s alone {max(parts)!r}; "
            f"expected a finite time, and no less together than alone. The runs did not do the "
            f"same work, or the clock did not wait for all of it: name every device in "
            f"measure(..., devices=)."
        )
        raise ValueError(msg)
    return (sum(parts) - together_s) / (sum(parts) - max(parts))


def check_positive(argument: str, value: float) -> float:
    """Refuse a limit that no time can be held against, or an amount that gives no rate."""
    expected = "a number, finite and above zero. Compute it from the work and, for a limit, a known"
    return positive(argument, value, f"{expected} peak rate, or leave it out.")


def limits_of(labels: Sequence[str], limits_s: Limit) -> tuple[float | None, ...]:
    """The limit for each label in seconds, None where it has none."""
    if not isinstance(limits_s, Mapping):
        return (None if limits_s is None else check_positive("limit_s", limits_s),) * len(labels)
    return tuple(map(by_label("limit_s", limits_s, labels).get, labels))


def by_label(
    argument: str,
    given: Mapping[str, float],
    labels: Sequence[str],
    check: Callable[[str, float], float] = check_positive,
) -> dict[str, float]:
    """Label -> number, refused if one is of another label or doesn't pass the check."""
    check_type(argument, given, Mapping, f"label -> number, as in {{{labels[0]!r}: 1e-5}}.")
    require_labels(argument, given, labels)
    return {label: check(f"{argument}[{label!r}]", number) for label, number in given.items()}


def require_labels(argument: str, named: Iterable[str], labels: Sequence[str]) -> None:
    """Refuse labels of which one is none of those known."""
    for label in named:
        if label not in labels:
            known = ", ".join(map(repr, dict.fromkeys(labels)))
            msg = f"{argument} names {label!r}; expected one of the labels {known}."
            raise ValueError(msg)
