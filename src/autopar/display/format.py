"""Unit: how figures and names are written: times, numbers, shares, and text from anyone's files."""

from __future__ import annotations

import math
import re

from autopar.timing.measurement import format_seconds as format_seconds

NOTHING = "-"  # a cell for which nothing is known; an empty one would read as a mistake
_SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_MOST_DECIMALS = 3
# What neither HTML nor XML may have in its text, and a terminal obeys.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


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


def percent(part: float, whole: float = 1.0) -> str:
    """A share as text; of nothing there is none.

    >>> percent(0.982), percent(1, 4), percent(0, 0)
    ('98.2 %', '25.0 %', '0.0 %')
    """
    return f"{100 * (part / whole) if whole else 0.0:.1f} %"


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


def shortened(name: str, most: int = 70) -> str:
    """A name of at most `most` characters, for a table: names of kernels run to thousands.

    >>> shortened("gemm", 4), shortened("gemms", 4)
    ('gemm', 'gem…')
    """
    return name if len(name) <= most else name[: most - 1] + "\u2026"


def printable(text: str) -> str:
    """A text without characters that a terminal obeys, or that a page or file can't have."""
    return _FORBIDDEN.sub("\ufffd", text)
