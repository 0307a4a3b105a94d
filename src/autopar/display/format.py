"""Format: how times, numbers, names and origins are written and sorted, wherever shown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from autopar.timeline.span import Timeline
from autopar.timing.measurement import Measurement
from autopar.units import figures as figures
from autopar.units import format_seconds as format_seconds
from autopar.units import unit_of as unit_of

NO_SHARE = "saved below 0 % or above 100 %: by noise, or as parts hinder each other"
NOTHING = "-"  # a cell for which nothing is known; an empty one would read as a mistake
_BLANKS = str.maketrans("\t\n\r", "   ")
# What neither HTML nor XML may have in its text, and a terminal obeys.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


def median_of(one: Measurement) -> str:
    """The median in words that say whether it is noisy, for a sentence."""
    return format_seconds(one.median_s) + " (noisy)" * bool(one.warning)


def times_as_fast(speedup: float) -> str:
    """A speed-up as text: 1.00 is one of exactly 1, as 0.995 and 1.004 are not."""
    is_near = round(speedup, 2) == 1 != speedup
    return f"{speedup:.{2 + is_near}f} ×"


def like(seconds: float, model_s: float) -> str:
    """Seconds in the unit of `model_s`, to the tenth, or with two figures where that is less."""
    unit, scale_s = unit_of(model_s)
    value = seconds / scale_s
    return f"{value:.1f} {unit}" if abs(value) >= 1 else f"{figures(value, 2)} {unit}"


def percent(part: float, whole: float = 1.0) -> str:
    """A share as text; of nothing there is none."""
    return f"{100 * (part / whole) if whole else 0.0:.1f} %"


def shortened(name: str, most: int = 70) -> str:
    """A name in a line of at most `most` characters: names of kernels run to thousands."""
    name = name.translate(_BLANKS)
    return name if len(name) <= most else name[: most - 1] + "\u2026"


def printable(text: str) -> str:
    """A text without characters that a terminal obeys, or that a page or file can't have."""
    return _FORBIDDEN.sub("\ufffd", text)


def by_number(words: str) -> list[int | str]:
    """What sorts rank 2 before rank 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", words)]


def origins_of(things: Iterable[Measurement | Timeline]) -> tuple[str, ...]:
    """The origins of measurements or timelines, each once, without empty ones."""
    return tuple(dict.fromkeys(thing.origin for thing in things if thing.origin))


def short_origins(origins: Sequence[str]) -> list[str]:
    """Each origin as the machine alone, where that tells it from the others."""
    machines = {origin: origin.split(", ")[0] or NOTHING for origin in origins}
    told = machines if len({*machines.values()}) == len(machines) else {}
    return [told.get(origin, origin or NOTHING) for origin in origins]


def badge(origin: str) -> str:
    """An origin as HTML that a style sheet can mark as recorded or live."""
    kind = "recorded" if origin.startswith("recorded") else "live"
    return f'<span class="autopar-{kind}">{html.escape(origin)}</span>'
