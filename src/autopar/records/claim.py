"""Claim: a sentence about a machine, held against what was measured there, with a verdict.

Whether results are right is a check, and stops a page. How times compare is a claim: on another
machine it may not hold, and then the page says so.
"""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NoReturn, TypeVar

import numpy as np

from autopar.display.format import badge, printable
from autopar.files import append_line
from autopar.refusal import check_type, check_words, what
from autopar.timing.measurement import Measurement

CLAIMS_TO = "AUTOPAR_CLAIMS_TO"  # environment: a file to which each claim adds a line of JSON
HOLDS, FAILS, UNSURE = "holds", "does not hold here", "too noisy to tell"
_CLASSES = {HOLDS: "holds", FAILS: "fails", UNSURE: "unsure"}  # of the box on a page
_RESAMPLES = 1000  # a twentieth of them lies outside of the interval: enough to tell where it ends
_OUTSIDE = 0.05  # share of the resamples beyond either end of the interval, together
_ENOUGH = 6  # samples: the interval of fewer is their range, and misses more than 5 % of medians
_DIGITS = 12  # more than the four that are shown by rule; what differs beyond is rounding

Figure = Callable[[Mapping[str, float]], float]
_T = TypeVar("_T")


class ByLabel(dict[str, _T]):
    """What was measured by label, and for which labels it was asked; others are refused."""

    def __init__(self, by_label: Mapping[str, _T]) -> None:
        super().__init__(by_label)
        self.asked = set[str]()

    def __getitem__(self, label: str) -> _T:
        self.asked.add(label)
        return super().__getitem__(label)

    def __missing__(self, label: str) -> NoReturn:
        known = ", ".join(map(repr, self))
        msg = f"nothing was measured under {label!r}; expected one of the labels {known}."
        raise KeyError(msg)


@dataclass(frozen=True, repr=False)
class Estimate:
    """A figure derived from timings, as `Record.estimate` makes it.

    >>> import autopar as ap
    >>> ap.Estimate(1.9, 1.8, 2.0, samples=20)
    <Estimate: 1.9, from 1.8 to 2, samples 20>
    """

    value: float  #: The figure.
    low: float  #: The lower end of its 95 % interval, a bootstrap's.
    high: float  #: The upper end.
    samples: int = 0  #: How many each of the timings has, at least; none for an exact number.
    origin: str = ""  #: Where and when it was measured, in words.
    machine: str = ""  #: What it was measured on, in words.
    note: str = ""  #: What is to be said of it beside.

    def __repr__(self) -> str:
        ends = f"from {self.low:.4g} to {self.high:.4g}"
        where = f", {self.origin}" if self.origin else ""
        return f"<Estimate: {self.value:.4g}, {ends}, samples {self.samples}{where}>"


def estimate(figure: Figure, measurements: Mapping[str, Measurement]) -> Estimate:
    """A figure by medians in seconds, with its 95 % interval.

    Rounds are drawn again, with repetition, for all measurements of as many rounds alike: ways that
    took turns met the same moods of the machine. A figure that some samples don't give, as a
    quotient by zero, has no interval.
    """
    expected = "a function of seconds by label: lambda s: s['a'] / s['b']."
    check_type("figure", figure, Callable, expected)
    medians_s = {}
    for label, measurement in measurements.items():
        values_s = np.array(measurement.values_s)
        drawn = np.random.default_rng(0).integers(len(values_s), size=(_RESAMPLES, len(values_s)))
        medians_s[label] = [measurement.median_s, *np.median(values_s[drawn], axis=1).tolist()]
    figures, asked = [], set[str]()
    for i in range(1 + _RESAMPLES):
        seconds = ByLabel({label: of[i] for label, of in medians_s.items()})
        try:
            figures.append(float(figure(seconds)))
        except (ZeroDivisionError, ValueError):  # as of shares that no run can have
            figures.append(math.nan)
        asked |= seconds.asked
    value, *resampled = figures
    low, high = np.quantile(resampled, (_OUTSIDE / 2, 1 - _OUTSIDE / 2))  # NaN if one of them is
    counts = [len(measurements[label].values_s) for label in asked]
    low, high = float(np.minimum(value, low)), float(np.maximum(value, high))
    return Estimate(value, low, high, samples=min(counts, default=0))


@dataclass(frozen=True, repr=False)
class Claim:
    """A sentence, its bound, the figure that `claim` has held against it, and the verdict.

    >>> import autopar as ap
    >>> ap.claim("Two workers are faster than one.", 1.9, at_least=1.5).verdict
    'holds'
    """

    sentence: str  #: What is claimed, in words.
    estimate: Estimate  #: The figure.
    low: float = -math.inf  #: What it has to reach.
    high: float = math.inf  #: What it may not exceed.
    unit: str = ""  #: What it counts; `%` shows a share in percent.

    @property
    def verdict(self) -> str:
        """`holds`, `does not hold here`, or `too noisy to tell` if the interval has the bound."""
        if self.low <= self.estimate.low and self.estimate.high <= self.high:
            return HOLDS
        return FAILS if self.estimate.high < self.low or self.estimate.low > self.high else UNSURE

    @property
    def bound(self) -> str:
        """The bound in words."""
        if self.low == -math.inf:
            return f"at most {self._shown(self.high)}"
        if self.high == math.inf:
            return f"at least {self._shown(self.low)}"
        return f"between {self._shown(self.low)} and {self._shown(self.high)}"

    @property
    def measured(self) -> str:
        """The figure in words, with its interval if it has one."""
        value, estimate = self._shown(self.estimate.value), self.estimate
        if math.isnan(estimate.low):
            return f"{value} (no interval: the times vary too much for one)"
        if estimate.low == estimate.high:
            return value
        ends = f"{self._shown(estimate.low)} to {self._shown(estimate.high)}"
        kind = "range" if estimate.samples < _ENOUGH else "95 % interval"
        return f"{value} ({ends}: {kind}, {estimate.samples} samples)"

    def __bool__(self) -> NoReturn:
        """Refuse to be a condition: a claim may also be too noisy to tell."""
        msg = f"a Claim is neither true nor false; ask for its verdict, which is {self.verdict!r}."
        raise TypeError(msg)

    def _shown(self, value: float) -> str:
        """A figure or a bound as text, with as many digits as tell the one from the other."""
        bounds = {self.low, self.high} - {value}
        is_share = self.unit == "%"
        for more in range(_DIGITS):
            form = f"z.{1 + more}%" if is_share else f"z.{4 + more}g"
            shown = format(value, form)
            if shown not in [format(bound, form) for bound in bounds]:
                break
        return shown.replace("%", " %") if is_share else f"{shown} {self.unit}".rstrip()

    def __str__(self) -> str:
        where = f" [{self.estimate.origin}]" if self.estimate.origin else ""
        note = f" ({self.estimate.note})" if self.estimate.note else ""
        words = f"{self.sentence} {self.measured}; {self.bound}.{where}{note}"
        return printable(f"Claim {self.verdict}: {words}")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        where = badge(self.estimate.origin) if self.estimate.origin else ""
        return printable(
            f'<div class="autopar-claim autopar-claim-{_CLASSES[self.verdict]}">'
            f"<p><strong>Claim: {self.verdict}.</strong> {html.escape(self.sentence)}</p>"
            f"<p>Measured: {html.escape(self.measured)}; claimed: {html.escape(self.bound)}. "
            f"{where} {html.escape(self.estimate.note)}</p></div>"
        )


def real(argument: str, value: Any, expected: str) -> float:
    """The value as a float, unless it is no number, or one that no float holds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        msg = f"{argument} is {what(value)}; expected {expected}"
        raise TypeError(msg)
    try:
        return float(value)
    except OverflowError:
        msg = f"{argument} is larger than a float can be; expected {expected}"
        raise ValueError(msg) from None


def claim(
    sentence: str,
    value: Estimate | float,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    unit: str = "",
) -> Claim:
    """Hold a sentence against a figure; the verdict says whether it is true on this machine.

    Nothing is measured again where it is too noisy: to go on until a figure pleases is no evidence.

    Args:
        sentence: What is claimed, in words; a whole sentence.
        value: The figure, as `Record.estimate` gives it; or a number, which has no interval.
        at_least: What it has to reach.
        at_most: What it may not exceed; also beside the other.
        unit: What it counts, as `×` or `µs`; `%` shows a share in percent.

    Raises:
        ValueError: No sentence, no bound, or two of which the second is the smaller; a number that
            is too large; an interval that ends before it begins.
        TypeError: The figure or a bound is no number, or the unit no text. (A figure of timings
            that some samples don't give is too noisy to tell.)

    >>> import autopar as ap
    >>> ap.claim("Two workers are faster than one.", 1.9, at_least=1.5, unit="×")
    Claim holds: Two workers are faster than one. 1.9 ×; at least 1.5 ×.
    """
    check_words("sentence", sentence, "what is claimed, in words, as a whole sentence.")
    if not isinstance(value, Estimate):
        value = Estimate(value, value, value)
    expected = "a number, or what Record.estimate returns. Compute it from what was measured."
    ends = [real(name, getattr(value, name), expected) for name in ("value", "low", "high")]
    value = replace(value, value=ends[0], low=ends[1], high=ends[2])
    if value.low > value.high:
        msg = f"value is from {value.low:g} to {value.high:g}; expected the lower end first."
        raise ValueError(msg)
    at_least = real("at_least", at_least, expected)
    at_most = real("at_most", at_most, expected)
    check_type("unit", unit, str, "text, as unit='×'; leave it out where there is none.")
    if not at_least <= at_most or (at_least, at_most) == (-math.inf, math.inf):
        expected = "at_least=, at_most=, or both, the smaller first."
        msg = f"the bounds of the claim are {at_least:g} to {at_most:g}; expected {expected}"
        raise ValueError(msg)
    claimed = Claim(sentence, value, at_least, at_most, unit)
    if path := os.environ.get(CLAIMS_TO):
        names = ("sentence", "verdict", "measured", "bound")
        line = {name: getattr(claimed, name) for name in names}
        line |= {"origin": value.origin, "machine": value.machine}
        append_line(path, json.dumps(line))
    return claimed
