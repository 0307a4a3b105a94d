"""Origin: where and when figures were taken, as everything that shows them says it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Protocol


class FromSomewhere(Protocol):
    """Anything with an origin in words: a Measurement, a Timeline."""

    @property
    def origin(self) -> str:
        """Where and when this was taken, in words; empty if nobody said."""
        ...


def origins_of(things: Iterable[FromSomewhere]) -> tuple[str, ...]:
    """The origins of measurements or timelines, each once, without empty ones."""
    return tuple(dict.fromkeys(thing.origin for thing in things if thing.origin))


def badge(origin: str) -> str:
    """An origin as HTML that a style sheet can mark as recorded or live.

    >>> badge("recorded on 2 x NVIDIA H200")
    '<span class="autopar-recorded">recorded on 2 x NVIDIA H200</span>'
    """
    kind = "recorded" if origin.startswith("recorded") else "live"
    return f'<span class="autopar-{kind}">{html.escape(origin)}</span>'


def short_names(origins: Sequence[str], nothing: str = "-") -> list[str]:
    """Each origin in as few words as tell it from the others: the machine, where that does.

    >>> short_names(["CPU, 8 threads", "recorded on H200, 2026", "CPU, 8 threads"])
    ['CPU', 'recorded on H200', 'CPU']
    """
    short = {origin: origin.split(",")[0] for origin in origins}
    if len(set(short.values())) < len(short):
        short = {origin: origin for origin in origins}
    return [short[origin] or nothing for origin in origins]
