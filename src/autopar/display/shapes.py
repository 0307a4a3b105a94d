"""Shapes: the bars, time axis and legend of a drawing, as elements of SVG.

Lengths across are percentages and lengths down are pixels, so bars take whatever width a page has
while text keeps its size: a drawing reads on a telephone as on a desk. Lane names stand above
their bars for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement

from autopar.display.format import format_seconds, like, unit_of
from autopar.display.rows import COLOURS, HEIGHTS, LINE, Label, Row, layout_of
from autopar.timeline.span import Timeline

_TICKS = 5  # at most, after zero: their labels must stand side by side on a telephone
_STEPS = (1, 2, 2.5, 5, 10)
_LETTER = 0.01  # share of the width that half a letter takes on a telephone
# Words have a rim in the page's colour: of this site, of a notebook, and of any other page or file.
_BEHIND = "var(--color-background-primary, var(--jp-layout-color0, Canvas))"
_RIM = f"paint-order:stroke;stroke-linejoin:round;stroke:{_BEHIND};stroke-width:4px"
_WIDE_RIM = _RIM.replace("4px", "8px")  # covers a line between words, too
# On a bar words have the page's colour, on which the bar's stands out, and a rim of the bar's own;
# where no page sets colours, white is readable on those that compute, and black on all others.
_ON_BAR = "fill:var(--color-background-primary, {});stroke-width:3px;stroke:{}"
_LIMIT = {"style": "stroke:var(--autopar-limit, currentColor)", "stroke_width": 1.5}


def add(parent: Element, tag: str, text: str = "", /, **attributes: object) -> Element:
    """Add an element; a name of an attribute has `_` for `-`, and one at its end is left out."""
    named = {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    element = SubElement(parent, tag, named)
    element.text = text
    return element


def add_shapes(
    svg: Element,
    panels: Iterable[tuple[str, Timeline]],
    kinds: Iterable[str],
    scale_s: float,
    limit_s: float | None,
) -> None:
    """Add all that is seen: panels under one another, the axis and the limit, and the legend."""
    # From the back: bars lie over the axis' lines, and rims of words break the limit's line.
    axis, bars, limit, words = (add(svg, "g") for _ in range(4))
    axis.set("class", "autopar-axis")
    words.set("style", _RIM)
    top = LINE if limit_s else 0
    layout = layout_of(panels, scale_s, top)
    for heading in layout.headings:
        weight = {"font_weight": "bold"} if heading.of_panel else {}
        add(words, "text", heading.words, y=heading.bottom, **weight)
    for row in layout.rows:
        _add_row(bars, words, row, scale_s)
    for y, label in layout.brackets:
        left, right = label.start_s / scale_s, label.end_s / scale_s
        for x1, x2, up in ((left, left, 6), (left, right, 0), (right, right, 6)):
            _add_line(bars, "bracket", x1, x2, y + 2 - up, y + 2)
        _add_text(words, label, scale_s, y + LINE)
    _add_axis(axis, scale_s, top, layout.height)
    if limit_s:
        at = limit_s / scale_s
        _add_line(limit, "limit", at, at, LINE - 2, layout.height, stroke_dasharray="5 3")
        name = Label(limit_s, limit_s, f"limit {format_seconds(limit_s)}")
        _add_text(limit, name, scale_s, LINE - 6)
    x, y = 0, layout.height + LINE + 4
    for kind in kinds:  # a legend, drawn as the bars are
        height = HEIGHTS[kind] * 2 // 3
        add(svg, "rect", **_look(kind), x=x, y=y + 14 - height, width=18, height=height)
        add(svg, "text", kind, x=x + 24, y=y + 12)
        x += 38 + 7 * len(kind)
    svg.set("height", str(y + LINE + 4))


def _add_row(bars: Element, words: Element, row: Row, scale_s: float) -> None:
    """Add the bars of a row, which say what they are, and the words to be drawn over them."""
    group = add(bars, "g", **_look(row.kind), data_lane=row.lane)
    for span, opacity in row.bars:
        ends = {"x": _across(span.start_s / scale_s), "width": _across(span.duration_s / scale_s)}
        bar = add(group, "rect", **ends, y=row.top, height=HEIGHTS[row.kind])
        if opacity < 1:
            bar.set("opacity", f"{opacity:.2f}")
        start, end = like(span.start_s, span.end_s).split()[0], like(span.end_s, span.end_s)
        add(bar, "title", f"{span.name}: {format_seconds(span.duration_s)}, from {start} to {end}")
    for start_s, end_s, text in row.labels:
        style = _ON_BAR.format("#fff" if row.kind == "compute" else "#000", _colour(row.kind))
        where = {
            "x": _across((start_s + end_s) / 2 / scale_s),
            "y": (row.top + row.bottom) // 2 + 4,
        }
        add(words, "text", text, **where, text_anchor="middle", style=style)


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
        time = Label(i * step, i * step, f"{i * step / unit_s:.6g} {unit}")
        _add_text(axis, time, scale_s, bottom + 13)


def _look(kind: str) -> dict[str, str]:
    # The stroke keeps a span visible that is thinner than a pixel.
    style = f"fill:{_colour(kind)};stroke:{_colour(kind)};stroke-width:0.5"
    return {"class_": f"autopar-{kind}", "style": style}


def _colour(kind: str) -> str:
    return f"var(--autopar-{kind}, {COLOURS[kind]})"


def _add_line(
    parent: Element, name: str, left: float, right: float, y1: int, y2: int, **more: object
) -> None:
    ends = {"x1": _across(left), "x2": _across(right), "y1": y1, "y2": y2}
    add(parent, "line", class_=f"autopar-{name}", **ends, **_LIMIT, **more)


def _add_text(parent: Element, label: Label, scale_s: float, y: int) -> None:
    # Kept inside the drawing: near its edges text runs inwards, from where what it names ends.
    half, middle_s = len(label.words) * _LETTER, (label.start_s + label.end_s) / 2
    anchor, at_s = "middle", middle_s
    if middle_s < half * scale_s:
        anchor, at_s = "start", label.start_s
    elif middle_s > (1 - half) * scale_s:
        anchor, at_s = "end", label.end_s
    place = {"x": _across(at_s / scale_s), "y": y, "text_anchor": anchor, "style": _WIDE_RIM}
    add(parent, "text", label.words, **place)


def _across(share: float) -> str:
    return f"{100 * share:.4f}".rstrip("0").rstrip(".") + "%"
