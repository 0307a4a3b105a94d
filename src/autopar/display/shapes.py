"""Shapes: the bars, time axis and legend of a drawing, as SVG text.

Lengths across are percentages and lengths down are pixels, so bars take whatever width a page has
while text keeps its size: a drawing reads on a telephone as on a desk. Lane names stand above
their bars for the same reason.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence

from autopar.display.format import format_seconds, like, shortened, unit_of
from autopar.display.text import by_kind, by_lane
from autopar.timeline.span import Span, Timeline

COLOURS = {
    "compute": "#3b76c4",
    "copy": "#d9822b",
    "communication": "#1f9e89",
    "host": "#7a869a",
}
HEIGHTS = {"compute": 22, "copy": 15, "communication": 18, "host": 8}  # more than colours differ
# Where lines of hatching go from the corner of a tile, one way or both; no line is a plain bar.
HATCHED = {"copy": ('y2="5"',), "communication": ('y2="5"', 'x2="5"')}
MANY_SPANS = 1_000  # in a lane; beyond it neighbours that nobody can tell apart are one
LINE = 18  # pixels that a line of text takes
_BAR = max(HEIGHTS.values())
_LAYER = 22  # pixels down from a named range to those within it
_NAMED = 0.03  # share of the width; of a narrower range not even the first letters can be read
_PIXELS = 900  # of a wide page, by which half a pixel is meant
_TICKS = 5  # at most, after zero: their labels must stand side by side on a telephone
_STEPS = (1, 2, 2.5, 5, 10)
_PALER = 0.75
PALEST = 0.25  # still seen
_EDGE = 0.08  # share of the width; half a label on a telephone
_LONGEST_NAME = 44  # characters of text that fit across a telephone

Drawn = tuple[Span, float]  # a span, or one for several, and the share of its time that was busy


def panel(
    name: str, timeline: Timeline, scale_s: float, key: str, top: int
) -> tuple[list[str], int]:
    """A heading, and for each lane its name with its bars below.

    Args:
        name: What the timeline is called; without it there is no heading.
        timeline: Spans, the first starting at zero.
        scale_s: The time in seconds for which the full width stands.
        key: What makes ids unique.
        top: Where to begin, in pixels from the top.

    Returns:
        Elements, and where they end in pixels from the top.
    """
    parts, y = [], top
    if name:
        y += LINE
        words = f"{shortened(name, _LONGEST_NAME)}: {format_seconds(timeline.makespan_s)}"
        parts.append(f'<text y="{y - 4}" font-weight="bold">{html.escape(words)}</text>')
    for lane, many, kinds in lanes_of(timeline, scale_s):
        y += LINE
        parts.append(f'<text y="{y - 5}">{html.escape(shortened(lane, _LONGEST_NAME))}</text>')
        below = _BAR
        for kind, drawn in kinds.items():
            named = kind == "host" and not many
            layers = layers_of(drawn) if named else [drawn]
            for at, layer in enumerate(layers):
                bars = _bars(layer, many, scale_s, y + at * _LAYER)
                parts.append(f"<g {_look(kind, key)}>\n{bars}\n</g>")
                parts += _names(layer, scale_s, y + at * _LAYER + HEIGHTS[kind]) if named else []
            below = max(below, len(layers) * _LAYER if named else 0)
        y += below + 6
    return parts, y + 8


def layers_of(drawn: Iterable[Drawn]) -> list[list[Drawn]]:
    """Spans in layers of which none overlaps itself: what lies in another is a layer deeper.

    >>> step, forward, last = Span("s", "x", 0, 4), Span("f", "x", 1, 2), Span("l", "x", 4, 5)
    >>> layers = layers_of([(step, 1.0), (forward, 1.0), (last, 1.0)])
    >>> [[span.name for span, _ in layer] for layer in layers]
    [['s', 'l'], ['f']]
    """
    layers: list[list[Drawn]] = []
    for one in sorted(drawn, key=lambda one: (one[0].start_s, -one[0].end_s)):
        free = (layer for layer in layers if layer[-1][0].end_s <= one[0].start_s)
        layer = next(free, None)
        if layer is None:
            layers.append(layer := [])
        layer.append(one)
    return layers


def lanes_of(
    timeline: Timeline, scale_s: float
) -> Iterator[tuple[str, bool, dict[str, list[Drawn]]]]:
    """For each lane its name, whether its spans are very many, and what is drawn of each kind."""
    for lane, alone in by_lane(timeline).items():
        many = len(alone.spans) > MANY_SPANS
        kinds = {
            kind: thinned(same, scale_s) if many else [(span, 1.0) for span in same]
            for kind, same in by_kind(alone).items()
        }
        yield lane, many, kinds


def thinned(spans: Sequence[Span], scale_s: float) -> list[Drawn]:
    """Spans of one lane and kind, where short ones less than half a pixel apart are one.

    Spans of a pixel or more stay as they are, so that the long ones among many are still seen.
    """
    pixel_s = scale_s / _PIXELS
    groups: list[list[Span]] = []
    for span in spans:
        last = groups[-1][-1] if groups else None
        near = last is not None and span.start_s - last.end_s < pixel_s / 2
        if near and last is not None and max(last.duration_s, span.duration_s) < pixel_s:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [_as_one(group) for group in groups]


def axis(scale_s: float, top: int, bottom: int) -> list[str]:
    """Lines at round times from `top` to `bottom`, their labels beneath."""
    parts = []
    unit, unit_s = unit_of(scale_s)
    for tick_s in ticks(scale_s):
        x = _across(tick_s, scale_s)
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="{top}" y2="{bottom}" stroke="currentColor" '
            f'stroke-opacity="0.18"/>'
        )
        parts.append(_text(f"{tick_s / unit_s:.6g} {unit}", tick_s / scale_s, bottom + 13))
    return parts


def ticks(scale_s: float) -> list[float]:
    """Round times in seconds from zero to `scale_s`, six at most.

    >>> ticks(18.9)
    [0.0, 5.0, 10.0, 15.0]
    """
    rough = scale_s / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    # Rounding may leave the last step a hair too short; then the next is taken below.
    step = next(size * power for size in _STEPS if size * power >= rough * (1 - 1e-9))
    return [i * step for i in range(math.floor(scale_s / step * (1 + 1e-9)) + 1)]


def limit_line(limit_s: float, scale_s: float, bottom: int) -> str:
    """A dashed line from top to bottom at the limit, with its label at the top."""
    x = _across(limit_s, scale_s)
    label = _text(f"limit {format_seconds(limit_s)}", limit_s / scale_s, LINE - 6)
    return (
        f'<line class="autopar-limit" x1="{x}" x2="{x}" y1="{LINE - 2}" y2="{bottom}" '
        f'style="stroke:var(--autopar-limit, currentColor)" stroke-width="1.5" '
        f'stroke-dasharray="5 3"/>\n{label}'
    )


def legend(kinds: Iterable[str], key: str, top: int) -> list[str]:
    """A swatch and a word for each kind, drawn as its bars are."""
    parts, x = [], 0
    for kind in kinds:
        height = HEIGHTS[kind] * 2 // 3
        parts.append(
            f'<rect {_look(kind, key)} x="{x}" y="{top + 14 - height}" width="18" '
            f'height="{height}"/><text x="{x + 24}" y="{top + 12}">{kind}</text>'
        )
        x += 38 + 7 * len(kind)
    return parts


def patterns(kinds: Iterable[str], key: str) -> str:
    """The hatching of those kinds that have one, for who sees no colours and for print."""
    # Its colour is set here, since a bar is filled with either a colour or a pattern.
    size = 'width="5" height="5"'
    parts = []
    for kind in kinds:
        if ends := HATCHED.get(kind):
            lines = "".join(
                f'<line {end} stroke="#000" stroke-width="2" stroke-opacity="0.45"/>'
                for end in ends
            )
            parts.append(
                f'<pattern id="{key}-{kind}" {size} patternUnits="userSpaceOnUse" '
                f'patternTransform="rotate(45)">'
                f'<rect {size} style="fill:{_colour(kind)}"/>{lines}</pattern>'
            )
    return f"<defs>{''.join(parts)}</defs>"


def _bars(drawn: Iterable[Drawn], many: bool, scale_s: float, top: int) -> str:
    bars: list[str] = []
    opacity, end_s = 1.0, -math.inf
    for span, busy in drawn:
        if many:  # as dark as it is busy: idle gaps too narrow to draw still show
            opacity = max(PALEST, busy)
        else:  # of neighbours that touch every second one is paler, so that they can be counted
            touches = span.start_s - end_s < 2 * scale_s / _PIXELS
            opacity = _PALER if touches and opacity == 1 else 1.0
        bars.append(_bar(span, opacity, scale_s, top))
        end_s = span.end_s
    return "\n".join(bars)


def _names(drawn: Iterable[Drawn], scale_s: float, top: int) -> list[str]:
    """The names of ranges below their bars, cut where the bar ends."""
    return [
        f'<svg x="{_across(span.start_s, scale_s)}" y="{top}" '
        f'width="{_across(span.duration_s, scale_s)}" height="{_LAYER - HEIGHTS["host"]}">'
        f'<text y="10" font-size="10">{html.escape(span.name)}</text></svg>'
        for span, _ in drawn
        if span.duration_s >= _NAMED * scale_s
    ]


def _bar(span: Span, opacity: float, scale_s: float, top: int) -> str:
    start = like(span.start_s, span.end_s).split()[0]
    words = (
        f"{span.name}: {format_seconds(span.duration_s)}, "
        f"from {start} to {like(span.end_s, span.end_s)}"
    )
    faded = f' opacity="{opacity:.2f}"' if opacity < 1 else ""
    return (
        f'<rect x="{_across(span.start_s, scale_s)}" y="{top}" '
        f'width="{_across(span.duration_s, scale_s)}" height="{HEIGHTS[span.kind]}"{faded}>'
        f"<title>{html.escape(words)}</title></rect>"
    )


def _as_one(group: Sequence[Span]) -> Drawn:
    if len(group) == 1:
        return group[0], 1.0
    whole, first = Timeline(tuple(group)), group[0]
    one = Span(f"{len(group):,} spans", first.lane, whole.start_s, whole.end_s, first.kind)
    return one, whole.busy_s() / (whole.makespan_s or 1.0)


def _look(kind: str, key: str) -> str:
    # The stroke keeps a span visible that is thinner than a pixel.
    fill = f"url(#{key}-{kind})" if kind in HATCHED else _colour(kind)
    return f'class="autopar-{kind}" style="fill:{fill};stroke:{_colour(kind)};stroke-width:0.5"'


def _colour(kind: str) -> str:
    return f"var(--autopar-{kind}, {COLOURS[kind]})"


def _text(words: str, share: float, y: int) -> str:
    # Kept inside the drawing: from its edges text runs inwards.
    anchor = "start" if share < _EDGE else "end" if share > 1 - _EDGE else "middle"
    x = _across(share, 1.0)
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _across(seconds: float, scale_s: float) -> str:
    return f"{100 * seconds / scale_s:.4f}".rstrip("0").rstrip(".") + "%"
