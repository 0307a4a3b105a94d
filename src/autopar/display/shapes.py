"""Shapes: the bars, time axis and legend of a drawing, as elements of SVG.

Lengths across are percentages and lengths down are pixels, so bars take whatever width a page has
while text keeps its size: a drawing reads on a telephone as on a desk. Lane names stand above
their bars for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, SubElement

from autopar.display.format import format_seconds, like, shortened, unit_of
from autopar.display.rows import COLOURS, HEIGHTS, lane_height, lanes_of, not_hidden
from autopar.timeline.span import Timeline

KEY = "autopar-KEY"  # begins ids; a drawing puts its own in its place
_LINE = 18  # pixels that a line of text takes
# Where lines of hatching go from the corner of a tile, one way or both; no line is a plain bar.
_HATCHED = {"copy": ("y2",), "communication": ("y2", "x2")}
_TICKS = 5  # at most, after zero: their labels must stand side by side on a telephone
_STEPS = (1, 2, 2.5, 5, 10)
_LETTER = 0.01  # share of the width that half a letter takes on a telephone
# The page's colour: of this site, of a notebook, and of any other page or file.
_BEHIND = "var(--color-background-primary, var(--jp-layout-color0, Canvas))"
_RIM = f"paint-order:stroke;stroke-linejoin:round;stroke:{_BEHIND};stroke-width:4px"  # on lines
_WIDE_RIM = _RIM.replace("4px", "8px")  # covers a line between words, too
# On a bar words have the page's colour, on which the bar's stands out, and a rim of the bar's own;
# where no page sets colours, white is readable on those that compute, and black on all others.
_ON_BAR = "fill:var(--color-background-primary, {});stroke-width:3px;stroke:{}"
_LIMIT = {"style": "stroke:var(--autopar-limit, currentColor)", "stroke_width": 1.5}
_LONGEST_NAME = 44  # characters of text that fit across a telephone


def add(parent: Element, tag: str, text: str = "", /, **attributes: object) -> Element:
    """Add an element; a name of an attribute has `_` for `-`, and one at its end is left out."""
    named = {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    element = SubElement(parent, tag, named)
    element.text = text
    return element


def add_shapes(
    svg: Element,
    panels: Sequence[tuple[str, Timeline]],
    kinds: Sequence[str],
    scale_s: float,
    limit_s: float | None,
) -> None:
    """Add all that is seen: panels under one another, the axis and the limit, and the legend."""
    _add_patterns(svg, kinds)
    # From the back: bars lie over the axis' lines, and rims of words break the limit's line.
    axis, bars, limit, words = (add(svg, "g") for _ in range(4))
    axis.set("class", "autopar-axis")
    words.set("style", _RIM)
    y = top = _LINE if limit_s else 0
    for name, timeline in panels:
        y = _add_panel(bars, words, name, timeline, scale_s, y)
    _add_axis(axis, scale_s, top, y)
    if limit_s:
        at = limit_s / scale_s
        _add_line(limit, "limit", at, at, _LINE - 2, y, stroke_dasharray="5 3")
        _add_text(limit, f"limit {format_seconds(limit_s)}", at, _LINE - 6)
    x, y = 0, y + _LINE + 4
    for kind in kinds:  # a legend, drawn as the bars are
        height = HEIGHTS[kind] * 2 // 3
        add(svg, "rect", **_look(kind), x=x, y=y + 14 - height, width=18, height=height)
        add(svg, "text", kind, x=x + 24, y=y + 12)
        x += 38 + 7 * len(kind)
    svg.set("height", str(y + _LINE + 4))


def _add_panel(
    bars: Element, words: Element, name: str, timeline: Timeline, scale_s: float, y: int
) -> int:
    """Add bars, and the words to be drawn over them, from a height on; where they end."""
    if name:
        y += _LINE
        above = f"{shortened(name, _LONGEST_NAME)}: {format_seconds(timeline.makespan_s)}"
        add(words, "text", above, y=y - 4, font_weight="bold")
    for lane, rows in lanes_of(timeline, scale_s):
        y += _LINE
        add(words, "text", shortened(lane, _LONGEST_NAME), y=y - 5)
        for kind, down, row, labels in rows:
            group = add(bars, "g", **_look(kind), data_lane=f"{name}: {lane}" if name else lane)
            for span, opacity in row:
                ends = {"x": _across(span.start_s / scale_s)}
                ends["width"] = _across(span.duration_s / scale_s)
                bar = add(group, "rect", **ends, y=y + down, height=HEIGHTS[kind])
                if opacity < 1:
                    bar.set("opacity", f"{opacity:.2f}")
                start, end = like(span.start_s, span.end_s).split()[0], like(span.end_s, span.end_s)
                hover = f"{span.name}: {format_seconds(span.duration_s)}, from {start} to {end}"
                add(bar, "title", hover)
            for start_s, end_s, text in labels:
                style = _ON_BAR.format("#fff" if kind == "compute" else "#000", _colour(kind))
                how = {"text_anchor": "middle", "style": style}
                middle = _across((start_s + end_s) / 2 / scale_s)
                add(words, "text", text, x=middle, y=y + down + HEIGHTS[kind] // 2 + 4, **how)
        y += lane_height(rows) + 6
    for start_s, end_s, text in not_hidden(timeline, scale_s):
        left, right = start_s / scale_s, end_s / scale_s
        for x1, x2, up in ((left, left, 6), (left, right, 0), (right, right, 6)):
            _add_line(bars, "bracket", x1, x2, y + 2 - up, y + 2)
        _add_text(words, text, (left + right) / 2, y + _LINE, (left, right))
        y += _LINE + 10
    return y + 8


def _add_axis(axis: Element, scale_s: float, top: int, bottom: int) -> None:
    """Lines at round times from `top` to `bottom`, six at most, their labels beneath."""
    rough = scale_s / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    # Rounding may leave the last step a hair too short; then the next is taken below.
    step = next(size * power for size in _STEPS if size * power >= rough * (1 - 1e-9))
    unit, unit_s = unit_of(scale_s)
    for i in range(math.floor(scale_s / step * (1 + 1e-9)) + 1):
        x, ink = _across(i * step / scale_s), {"stroke": "currentColor", "stroke_opacity": 0.18}
        add(axis, "line", x1=x, x2=x, y1=top, y2=bottom, **ink)
        _add_text(axis, f"{i * step / unit_s:.6g} {unit}", i * step / scale_s, bottom + 13)


def _add_patterns(svg: Element, kinds: Iterable[str]) -> None:
    """The hatching of those kinds that have one, for who sees no colours and for print."""
    defs, size = add(svg, "defs"), {"width": 5, "height": 5}
    for kind in kinds:
        if kind in _HATCHED:
            how = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
            tile = add(defs, "pattern", id=f"{KEY}-{kind}", **size, **how)
            # Its colour is set here, since a bar is filled with either a colour or a pattern.
            add(tile, "rect", **size, style=f"fill:{_colour(kind)}")
            for end in _HATCHED[kind]:
                ink = {"stroke": "#000", "stroke_width": 2, "stroke_opacity": 0.45}
                add(tile, "line", **{end: 5}, **ink)


def _look(kind: str) -> dict[str, str]:
    # The stroke keeps a span visible that is thinner than a pixel.
    fill = f"url(#{KEY}-{kind})" if kind in _HATCHED else _colour(kind)
    style = f"fill:{fill};stroke:{_colour(kind)};stroke-width:0.5"
    return {"class_": f"autopar-{kind}", "style": style}


def _colour(kind: str) -> str:
    return f"var(--autopar-{kind}, {COLOURS[kind]})"


def _add_line(
    parent: Element, name: str, left: float, right: float, y1: int, y2: int, **more: object
) -> None:
    ends = {"x1": _across(left), "x2": _across(right), "y1": y1, "y2": y2}
    add(parent, "line", class_=f"autopar-{name}", **ends, **_LIMIT, **more)


def _add_text(
    parent: Element, words: str, share: float, y: int, ends: tuple[float, float] | None = None
) -> None:
    # Kept inside the drawing: near its edges text runs inwards, from where what it names ends.
    half, (left, right) = len(words) * _LETTER, ends or (share, share)
    anchor, at = "middle", share
    if share < half:
        anchor, at = "start", left
    elif share > 1 - half:
        anchor, at = "end", right
    add(parent, "text", words, x=_across(at), y=y, text_anchor=anchor, style=_WIDE_RIM)


def _across(share: float) -> str:
    return f"{100 * share:.4f}".rstrip("0").rstrip(".") + "%"
