"""Units: how seconds and other numbers are written, so that they read alike everywhere."""

from __future__ import annotations

import math

_MOST_DECIMALS = 3


def format_seconds(seconds: float) -> str:
    """Seconds in the unit a reader expects, with four figures: `130.9 ms`, `12.50 µs`."""
    if seconds == 0 or not math.isfinite(seconds):
        return f"{seconds:g} s"
    seconds = float(f"{seconds:.4g}")  # first, or 0.99996 s would be 1000.0 ms
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= scale:
            return f"{figures(seconds / scale, 4)} {unit}"
    return f"{figures(seconds / 1e-6, 4)} µs"


def figures(value: float, count: int = 3) -> str:
    """A number with `count` figures and at most three decimals: `612`, `55.1`, `0.052`."""
    whole = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else count
    return f"{value:.{min(_MOST_DECIMALS, max(0, count - 1 - whole))}f}"
