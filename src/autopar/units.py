"""Units: how seconds and other numbers are written, so that they read alike everywhere."""

from __future__ import annotations

import math

_MOST_DECIMALS = 3
_UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}  # and how many seconds they are


def unit_of(seconds: float) -> tuple[str, float]:
    """The unit that `format_seconds` writes a time in, and its length in seconds."""
    written_s = abs(float(f"{seconds:.4g}"))  # or 0.99996 s would be 1000.0 ms
    fitting = (unit for unit in _UNITS.items() if not 0 < written_s < unit[1])
    return next(fitting, ("µs", 1e-6))


def format_seconds(seconds: float) -> str:
    """Seconds in the unit a reader expects, with four figures: `130.9 ms`, `12.50 µs`."""
    if seconds == 0 or not math.isfinite(seconds):
        return f"{seconds:g} s"
    unit, unit_s = unit_of(seconds)
    return f"{figures(float(f'{seconds:.4g}') / unit_s, 4)} {unit}"


def figures(value: float, count: int = 3) -> str:
    """A number with `count` figures and at most three decimals: `612`, `55.1`, `0.052`."""
    whole = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else count
    return f"{value:.{min(_MOST_DECIMALS, max(0, count - 1 - whole))}f}"
