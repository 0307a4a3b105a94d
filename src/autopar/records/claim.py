"""Claim: a sentence about a machine, held against what was measured there, with a verdict.

Whether results are right is a check, and stops a page. How times compare is a claim: on another
machine it may not hold, and then the page says so.
"""

from __future__ import annotations

import html
import json
import math
import os
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real

import numpy as np

from autopar.display.format import badge
from autopar.files import append_line
from autopar.refusal import check_type, several, what
from autopar.timing.measurement import Measurement

CLAIMS_TO = "AUTOPAR_CLAIMS_TO"  # environment: a file to which each claim adds a line of JSON
HOLDS, FAILS, UNSURE = "holds", "does not hold here", "too noisy to tell"
_CLASSES = {HOLDS: "holds", FAILS: "fails", UNSURE: "unsure"}  # of the box on a page
_RESAMPLES = 1000  # a twentieth of them lies outside of the interval: enough to tell where it ends
_ENOUGH = 6  # samples: the interval of fewer is their range, and misses more than 5 % of medians
_DIGITS = 12  # more than the four that are shown by rule; what differs beyond is rounding
_OUTSIDE = 0.05  # share of the resamples beyond either end of the interval, together

Figure = Callable[[Mapping[str, float]], float]


@dataclass(frozen=True, repr=False)
class Estimate:
    """A figure derived from timings, as `Record.estimate` makes it.

    >>> Estimate(1.9, 1.8, 2.0, samples=20)
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


def interval(
    figure: Figure, measurements: Mapping[str, Measurement]
) -> tuple[float, float, float, int]:
    """A figure by medians in seconds, its 95 % interval, and the fewest samples it is derived from.

    Rounds are drawn again, with repetition, for all measurements of as many rounds alike: ways that
    took turns met the same moods of the machine.
    """
    columns = []
    for values_s in (np.array(one.values_s) for one in measurements.values()):
        count = len(values_s)
        drawn = np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))
        rounds = np.vstack([np.arange(count), drawn])  # first all of them, for the figure
        columns.append(np.median(values_s[rounds], axis=1))
    check_type(
        "figure", figure, Callable, "a function of seconds by label: lambda s: s['a'] / s['b']."
    )
    seconds, figures = _Seconds(), []
    for medians_s in np.reshape(columns, (-1, 1 + _RESAMPLES)).T.tolist():
        seconds.data = dict(zip(measurements, medians_s, strict=True))
        try:
            figures.append(float(figure(seconds)))
        except (ZeroDivisionError, ValueError):  # as of shares that no run can have
            figures.append(math.nan)
    value, *others = figures
    samples = min((len(measurements[label].values_s) for label in seconds.asked), default=0)
    low, high = np.quantile(others, (_OUTSIDE / 2, 1 - _OUTSIDE / 2))  # NaN if one of them is
    return value, float(np.minimum(value, low)), float(np.maximum(value, high)), samples


class _Seconds(UserDict[str, float]):
    """Median seconds by label, and for which labels they were asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = set[str]()

    def __getitem__(self, label: str) -> float:
        self.asked.add(label)
        return super().__getitem__(label)

    def __missing__(self, label: str) -> float:
        raise unmeasured(label, self)


def unmeasured(label: object, labels: Iterable[str]) -> KeyError:
    """The error of a label under which nothing was measured."""
    known = ", ".join(map(repr, labels))
    return KeyError(f"nothing was measured under {label!r}; expected one of the labels {known}.")


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
        estimate = self.estimate
        if math.isnan(estimate.low) and not math.isnan(estimate.value):
            return f"{self._shown(estimate.value)} (no interval: some samples give no such figure)"
        if not estimate.low < estimate.high:
            return self._shown(estimate.value)
        ends = f"{self._shown(estimate.low)} to {self._shown(estimate.high)}"
        kind = "range" if estimate.samples < _ENOUGH else "95 % interval"
        return f"{self._shown(estimate.value)} ({ends}: {kind}, {estimate.samples} samples)"

    def _shown(self, value: float) -> str:
        """A figure or a bound as text, with as many digits as tell the one from the other."""
        for more in range(_DIGITS):
            form = f"{{:z.{1 + more}%}}" if self.unit == "%" else f"{{:z.{4 + more}g}} {self.unit}"
            shown, *others = map(form.format, (value, *({self.low, self.high} - {value})))
            if shown not in others:
                break
        return shown.replace("%", " %").rstrip()

    def __str__(self) -> str:
        where = f" [{self.estimate.origin}]" if self.estimate.origin else ""
        note = f" ({self.estimate.note})" if self.estimate.note else ""
        return f"Claim {self.verdict}: {self.sentence} {self.measured}; {self.bound}.{where}{note}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        where = badge(self.estimate.origin) if self.estimate.origin else ""
        return (
            f'<div class="autopar-claim autopar-claim-{_CLASSES[self.verdict]}">'
            f"<p><strong>Claim: {self.verdict}.</strong> {html.escape(self.sentence)}</p>"
            f"<p>Measured: {html.escape(self.measured)}; claimed: {html.escape(self.bound)}. "
            f"{where} {html.escape(self.estimate.note)}</p></div>"
        )


def claim(
    sentence: str,
    value: Estimate | float,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    between: tuple[float, float] | None = None,
    unit: str = "",
) -> Claim:
    """Hold a sentence against a figure; the verdict says whether it is true on this machine.

    Nothing is measured again where it is too noisy: to go on until a figure pleases is no evidence.

    Args:
        sentence: What is claimed, in words; a whole sentence.
        value: The figure, as `Record.estimate` gives it; or a number, which has no interval.
        at_least: What it has to reach.
        at_most: What it may not exceed.
        between: Both, the smaller first.
        unit: What it counts, as `×` or `µs`; `%` shows a share in percent.

    Raises:
        ValueError: No sentence, no bound, or two of which the second is the smaller; the figure or
            a bound is NaN. A figure of timings that some samples don't give is too noisy to tell.
        TypeError: The figure or a bound is no number.

    >>> claim("Two workers are faster than one.", 1.9, at_least=1.5, unit="×")
    Claim holds: Two workers are faster than one. 1.9 ×; at least 1.5 ×.
    """
    if not isinstance(sentence, str) or not sentence.strip():
        msg = f"sentence is {sentence!r}; expected what is claimed, in words, as a whole sentence."
        raise ValueError(msg)
    if between is not None:
        expected = "the smaller bound and the larger, (1, 2)."
        both = several("between", between, expected)
        if len(both) != 2:
            msg = f"between has {len(both)} bounds; expected {expected}"
            raise ValueError(msg)
        at_least, at_most = both
    bounds = {"at_least": at_least, "at_most": at_most}
    for argument, bound in bounds.items():
        if bound is not None:
            _check_number(argument, bound, "a number")
    low = -math.inf if at_least is None else at_least
    high = math.inf if at_most is None else at_most
    if not low <= high or (low, high) == (-math.inf, math.inf):
        came = f"{low:g} to {high:g}" if math.isfinite(low + high) else "none"
        msg = (
            f"the bounds of the claim are {came}; expected at_least=, at_most=, or "
            f"between=(smaller, larger)."
        )
        raise ValueError(msg)
    if not isinstance(value, Estimate):
        _check_number("value", value, "a number, or what Record.estimate returns")
        value = Estimate(*3 * (float(value),))
    claimed = Claim(sentence, value, low, high, unit)
    if path := os.environ.get(CLAIMS_TO):
        names = ("sentence", "verdict", "measured", "bound")
        line = {name: getattr(claimed, name) for name in names}
        line |= {"origin": value.origin, "machine": value.machine}
        append_line(path, json.dumps(line))
    return claimed


def _check_number(argument: str, value: object, expected: str) -> None:
    """Refuse what is no number, or none that can be compared; True is a verdict of its own."""
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        msg = (
            f"{argument} is {what(value)}; expected {expected}. Compute it from what was measured."
        )
        raise (ValueError if isinstance(value, Real) and value != value else TypeError)(msg)
