"""Unit: the unit of time in which a reader expects a figure, and figures that share one."""

from __future__ import annotations

import math

from autopar.measurement import format_seconds

_SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_MOST_DECIMALS = 3


def unit_of(seconds: float) -> tuple[str, float]:
    """The unit that `format_seconds` writes a time in, and its length in seconds.

    >>> unit_of(0.131)
    ('ms', 0.001)
    """
    unit = format_seconds(seconds).split()[1]
    return unit, _SCALES[unit]


def like(seconds: float, model_s: float) -> str:
    """Seconds in the unit of `model_s`, to the tenth, or with two figures where that is less.

    >>> like(0.0123, 0.131), like(0.000021, 0.131)
    ('12.3 ms', '0.021 ms')
    """
    unit, scale_s = unit_of(model_s)
    value = seconds / scale_s
    return f"{value:.{1 if abs(value) >= 1 else decimals(value, 2)}f} {unit}"


def figures(value: float, count: int = 3) -> str:
    """A number with `count` figures, none of them as an exponent.

    >>> figures(611.73), figures(55.06), figures(0.0521)
    ('612', '55.1', '0.052')
    """
    return f"{value:.{decimals(value, count)}f}"


def decimals(value: float, count: int) -> int:
    """How many decimals give a number `count` figures; at most three."""
    if value == 0:
        return 0
    return min(_MOST_DECIMALS, max(0, count - 1 - math.floor(math.log10(abs(value)))))
