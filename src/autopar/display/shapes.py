"""Shapes: the bars, time axis and legend of a drawing, as SVG text.

Lengths across are percentages and lengths down are pixels, so bars take whatever width a page has
while text keeps its size: a drawing reads on a telephone as on a desk. Lane names stand above
their bars for the same reason.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable

from autopar.display.format import format_seconds, like, shortened, unit_of
from autopar.display.rows import COLOURS, HEIGHTS, LAYER, Bar, lane_height, lanes_of
from autopar.display.titles import Label, not_hidden
from autopar.timeline.span import Timeline

KEY = "autopar-KEY"  # begins ids; a drawing puts its own in its place
LINE = 18  # pixels that a line of text takes
# Where lines of hatching go from the corner of a tile, one way or both; no line is a plain bar.
_HATCHED = {"copy": ('y2="5"',), "communication": ('y2="5"', 'x2="5"')}
_TICKS = 5  # at most, after zero: their labels must stand side by side on a telephone
_STEPS = (1, 2, 2.5, 5, 10)
_LETTER = 0.01  # share of the width that half a letter takes on a telephone
# The page's colour: of this site, of a notebook, and of any other page or file.
_BEHIND = "var(--color-background-primary, var(--jp-layout-color0, Canvas))"
_RIM = f'style="paint-order:stroke;stroke:{_BEHIND};stroke-width:4px"'  # words read on any bar
_WIDE_RIM = _RIM.replace("4px", "8px;stroke-linejoin:round")  # covers a line between words, too
_LONGEST_NAME = 44  # characters of text that fit across a telephone


def panel(
    name: str, timeline: Timeline, scale_s: float, top: int
) -> tuple[list[str], list[str], int]:
    """Bars from `top` on, the words to be drawn over them and over lines, and where they end."""
    parts, over, y = [], [], top
    if name:
        y += LINE
        words = f"{shortened(name, _LONGEST_NAME)}: {format_seconds(timeline.makespan_s)}"
        over.append(f'<text y="{y - 4}" font-weight="bold" {_RIM}>{html.escape(words)}</text>')
    for lane, rows in lanes_of(timeline, scale_s):
        y += LINE
        title = html.escape(shortened(lane, _LONGEST_NAME))
        over.append(f'<text y="{y - 5}" {_RIM}>{title}</text>')
        for row in rows:
            bars = "\n".join(_bar(bar, scale_s, y + row.top) for bar in row.bars)
            parts.append(f"<g {_look(row.kind)}>\n{bars}\n</g>")
            below = y + row.top + HEIGHTS[row.kind]
            parts += [_name(bar, scale_s, below) for bar in row.bars if bar.named]
            middle = y + row.top + HEIGHTS[row.kind] // 2 + 4
            over += [_label(label, scale_s, middle) for label in row.labels]
        y += lane_height(rows) + 6
    if exposed := not_hidden(timeline, scale_s):
        parts += _bracket(exposed, scale_s, y)
        ends = exposed.start_s / scale_s, exposed.end_s / scale_s
        over.append(_text(exposed.words, sum(ends) / 2, y + LINE, ends))
        y += LINE + 6
    return parts, over, y + 8


def axis(scale_s: float, top: int, bottom: int) -> list[str]:
    """Lines at round times from `top` to `bottom`, six at most, their labels beneath."""
    rough = scale_s / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    # Rounding may leave the last step a hair too short; then the next is taken below.
    step = next(size * power for size in _STEPS if size * power >= rough * (1 - 1e-9))
    unit, unit_s = unit_of(scale_s)
    parts = []
    for i in range(math.floor(scale_s / step * (1 + 1e-9)) + 1):
        x = _across(i * step, scale_s)
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="{top}" y2="{bottom}" stroke="currentColor" '
            f'stroke-opacity="0.18"/>'
        )
        parts.append(_text(f"{i * step / unit_s:.6g} {unit}", i * step / scale_s, bottom + 13))
    return parts


def limit_line(limit_s: float, scale_s: float, bottom: int) -> str:
    """A dashed line from top to bottom at the limit, with its label at the top."""
    x = _across(limit_s, scale_s)
    label = _text(f"limit {format_seconds(limit_s)}", limit_s / scale_s, LINE - 6)
    return (
        f'<line class="autopar-limit" x1="{x}" x2="{x}" y1="{LINE - 2}" y2="{bottom}" '
        f'style="stroke:var(--autopar-limit, currentColor)" stroke-width="1.5" '
        f'stroke-dasharray="5 3"/>\n{label}'
    )


def legend(kinds: Iterable[str], top: int) -> list[str]:
    """A swatch and a word for each kind, drawn as its bars are."""
    parts, x = [], 0
    for kind in kinds:
        height = HEIGHTS[kind] * 2 // 3
        parts.append(
            f'<rect {_look(kind)} x="{x}" y="{top + 14 - height}" width="18" '
            f'height="{height}"/><text x="{x + 24}" y="{top + 12}">{kind}</text>'
        )
        x += 38 + 7 * len(kind)
    return parts


def patterns(kinds: Iterable[str]) -> str:
    """The hatching of those kinds that have one, for who sees no colours and for print."""
    # Its colour is set here, since a bar is filled with either a colour or a pattern.
    size = 'width="5" height="5"'
    parts = []
    for kind in kinds:
        if kind in _HATCHED:
            ink = 'stroke="#000" stroke-width="2" stroke-opacity="0.45"'
            lines = "".join(f"<line {end} {ink}/>" for end in _HATCHED[kind])
            parts.append(
                f'<pattern id="{KEY}-{kind}" {size} patternUnits="userSpaceOnUse" '
                f'patternTransform="rotate(45)">'
                f'<rect {size} style="fill:{_colour(kind)}"/>{lines}</pattern>'
            )
    return f"<defs>{''.join(parts)}</defs>"


def _bar(bar: Bar, scale_s: float, top: int) -> str:
    span, (start, _) = bar.span, like(bar.span.start_s, bar.span.end_s).split()
    end = like(span.end_s, span.end_s)
    words = f"{span.name}: {format_seconds(span.duration_s)}, from {start} to {end}"
    faded = f' opacity="{bar.opacity:.2f}"' if bar.opacity < 1 else ""
    return (
        f'<rect x="{_across(span.start_s, scale_s)}" y="{top}" '
        f'width="{_across(span.duration_s, scale_s)}" height="{HEIGHTS[span.kind]}"{faded}>'
        f"<title>{html.escape(words)}</title></rect>"
    )


def _name(bar: Bar, scale_s: float, top: int) -> str:
    """A range's name below its bar, cut where the bar ends."""
    return (
        f'<svg x="{_across(bar.span.start_s, scale_s)}" y="{top}" '
        f'width="{_across(bar.span.duration_s, scale_s)}" height="{LAYER - HEIGHTS["host"]}">'
        f'<text y="10" font-size="10">{html.escape(bar.span.name)}</text></svg>'
    )


def _label(label: Label, scale_s: float, middle: int) -> str:
    """Words over bars, with a rim in the page's colour so that they read on any."""
    x = _across((label.start_s + label.end_s) / 2, scale_s)
    words = html.escape(label.words)
    return f'<text x="{x}" y="{middle}" text-anchor="middle" {_RIM}>{words}</text>'


def _bracket(label: Label, scale_s: float, top: int) -> list[str]:
    """A line beneath a stretch of time, turned up at both ends."""
    start, end = _across(label.start_s, scale_s), _across(label.end_s, scale_s)
    return [
        f'<line class="autopar-bracket" x1="{left}" x2="{right}" y1="{top + above}" '
        f'y2="{top + 2}" style="stroke:var(--autopar-limit, currentColor)" stroke-width="1.5"/>'
        for left, right, above in ((start, start, -4), (start, end, 2), (end, end, -4))
    ]


def _look(kind: str) -> str:
    # The stroke keeps a span visible that is thinner than a pixel.
    fill = f"url(#{KEY}-{kind})" if kind in _HATCHED else _colour(kind)
    return f'class="autopar-{kind}" style="fill:{fill};stroke:{_colour(kind)};stroke-width:0.5"'


def _colour(kind: str) -> str:
    return f"var(--autopar-{kind}, {COLOURS[kind]})"


def _text(words: str, share: float, y: int, ends: tuple[float, float] | None = None) -> str:
    # Kept inside the drawing: near its edges text runs inwards, from where what it names ends.
    half = len(words) * _LETTER
    left, right = ends or (share, share)
    anchor, at = "middle", share
    if share < half:
        anchor, at = "start", left
    elif share > 1 - half:
        anchor, at = "end", right
    x = _across(at, 1.0)
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {_WIDE_RIM}>{html.escape(words)}</text>'


def _across(seconds: float, scale_s: float) -> str:
    return f"{100 * seconds / scale_s:.4f}".rstrip("0").rstrip(".") + "%"
