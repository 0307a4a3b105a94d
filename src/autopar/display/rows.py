"""Rows: where the bars of a timeline stand, whether SVG or matplotlib draws them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from autopar.display.titles import Label, labels_of, titled, words_of
from autopar.timeline.groups import grouped
from autopar.timeline.span import Span, Timeline

COLOURS = {
    "compute": "#3b76c4",
    "copy": "#d9822b",
    "communication": "#1f9e89",
    "host": "#7a869a",
}
HEIGHTS = {"compute": 22, "copy": 15, "communication": 18, "host": 8}  # more than colours differ
LANE = max(HEIGHTS.values())
LAYER = 22  # down from a named range to those within it, with room for its name
MANY_SPANS = 1_000  # in a lane; beyond it neighbours that nobody can tell apart are one
PIXEL = 1 / 900  # share of a wide page
_NAMED = 0.03  # share of the width; of a narrower range not even the first letters can be read
_PALER = 0.75
_PALEST = 0.25  # still seen


class Bar(NamedTuple):
    """A span, or one for several, and how it is drawn."""

    span: Span
    opacity: float
    named: bool = False  # has its name beneath


class Row(NamedTuple):
    """Bars of one kind, none of which lies in another."""

    kind: str
    top: int  # pixels below the top of the lane, which is LANE high or higher
    bars: list[Bar]
    labels: list[Label]  # what stands in the bars


def scale_of(timelines: Iterable[Timeline], limit_s: float | None) -> float:
    """The time in seconds for which the full width stands, in every panel."""
    longest_s = max(timeline.makespan_s for timeline in timelines)
    return max(longest_s, limit_s or 0.0) or 1.0  # never zero: it is divided by


def lanes_of(timeline: Timeline, scale_s: float) -> Iterator[tuple[str, list[Row]]]:
    """For each lane its title and rows, from zero on, for a drawing that is `scale_s` wide."""
    for title, spans in titled(timeline.rebased())[0]:
        rows = []
        for kind, same in grouped(spans, attrgetter("kind")).items():
            if len(spans) > MANY_SPANS:
                layers = [_thinned(same, scale_s)]
            else:
                nested = _layers(same) if kind == "host" else [same]
                layers = [_told_apart(layer, scale_s) for layer in nested]
            others = [span for span in spans if span.kind != kind]
            labels = [] if kind == "host" else labels_of(same, others, scale_s)
            rows += [Row(kind, depth * LAYER, bars, labels) for depth, bars in enumerate(layers)]
        yield title, rows


def lane_height(rows: Sequence[Row]) -> int:
    """How high a lane is, in pixels."""
    named = any(bar.named for row in rows for bar in row.bars)
    return max(LANE, max(row.top for row in rows) + LAYER * named)


def _layers(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans in layers of which none overlaps itself: what lies in another is a layer deeper."""
    layers: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        for layer in layers:
            if layer[-1].end_s <= span.start_s:
                layer.append(span)
                break
        else:
            layers.append([span])
    return layers


def _told_apart(spans: Sequence[Span], scale_s: float) -> list[Bar]:
    """Bars of which, where they touch, every second one is paler, so that they can be counted."""
    bars: list[Bar] = []
    for span in spans:
        touches = bars and span.start_s - bars[-1].span.end_s < 2 * PIXEL * scale_s
        opacity = _PALER if touches and bars[-1].opacity == 1 else 1.0
        named = span.kind == "host" and span.duration_s >= _NAMED * scale_s
        bars.append(Bar(span, opacity, named))
    return bars


def _thinned(spans: Sequence[Span], scale_s: float) -> list[Bar]:
    """Bars of very many spans: short ones less than half a pixel apart are one, as dark as busy.

    Spans of a pixel or more stay as they are, so that the long ones among many are still seen.
    """
    pixel_s = PIXEL * scale_s
    groups: list[list[Span]] = []
    for span in spans:
        last = groups[-1][-1] if groups else None
        near = last and span.start_s - last.end_s < pixel_s / 2
        if last and near and max(last.duration_s, span.duration_s) < pixel_s:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [_as_one(group) for group in groups]


def _as_one(group: Sequence[Span]) -> Bar:
    first, whole = group[0], Timeline(tuple(group))
    if len(group) == 1:
        return Bar(first, 1.0)
    # Idle gaps that are too narrow to draw still show.
    busy = whole.busy_s() / (whole.makespan_s or 1.0)
    one = Span(words_of(group), first.lane, whole.start_s, whole.end_s, first.kind)
    return Bar(one, max(_PALEST, busy))
