"""Svg: timelines on one time scale, as inline SVG for a page and as text for a terminal.

Lengths across are percentages and lengths down are pixels, so bars take whatever width a page has
while text keeps its size: a drawing reads on a telephone as on a desk. Lane names stand above
their bars for the same reason.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from autopar.display import plot
from autopar.display.format import badge, format_seconds, origins_of, printable, unit_of
from autopar.display.page import page
from autopar.display.rows import COLOURS, HEIGHTS, LINE, Label, Row, layout_of, scale_of
from autopar.display.show import show
from autopar.display.text import lane_table, legend, panels_of, picture, sentences, to_look_at
from autopar.files import path_of, write_atomically
from autopar.refusal import check_type, check_words
from autopar.timeline.chrome_trace import trace_bytes
from autopar.timeline.span import KINDS, Timeline
from autopar.timing.measurement import check_positive

_KEY = "autopar-KEY"  # begins ids, until the content is known
_MOST_EMBEDDED = 20_000  # spans; a trace of more would weigh a page down by half a megabyte
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


@dataclass(frozen=True, repr=False)
class Drawing:
    """Timelines under one another, with what they show in words; made by `draw`.

    `panels` are pairs of a name and a timeline; title, caption and limit are those of `draw`.

    >>> import tempfile
    >>> import autopar as ap
    >>> timeline = ap.Timeline([ap.Span("mm", "GPU 0", 0, 2e-3)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ap.draw(timeline, title="One product").save(f"{folder}/product.svg")
    """

    panels: tuple[tuple[str, Timeline], ...]
    title: str
    caption: str = ""
    limit_s: float | None = None

    @property
    def scale_s(self) -> float:
        """The time in seconds for which the full width stands, in every panel."""
        return scale_of((timeline for _, timeline in self.panels), self.limit_s)

    @property
    def origins(self) -> tuple[str, ...]:
        """Where and when the timelines were recorded, each once."""
        return origins_of(timeline for _, timeline in self.panels)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of span that there are."""
        present = {span.kind for _, timeline in self.panels for span in timeline.spans}
        return tuple(kind for kind in KINDS if kind in present)

    def __str__(self) -> str:
        """The drawing in characters."""
        lines = [self.title]
        for name, timeline in self.panels:
            lines += picture(timeline, self.scale_s, name)
        lines += [f"limit {format_seconds(self.limit_s)}"] if self.limit_s else []
        lines.append(legend(self.kinds))
        return printable("\n".join([*lines, *self.origins]))

    __repr__ = __str__

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the drawing to a file, as the ending of its name says.

        Args:
            path: `.svg` for the picture alone, `.html` for a page with the figures as well, or
                `.png` for an image by matplotlib. Its folder must exist.

        Raises:
            ValueError: The name ends in none of these.
            FileNotFoundError: The folder does not exist.
        """
        path = path_of(path)
        if (ending := path.suffix.lower()) == ".svg":
            write_atomically(path, printable(_svg(self)) + "\n")
        elif ending == ".html":
            write_atomically(path, page(self.title, self._repr_html_()))
        elif ending == ".png":
            plot.save(self._plotted(), path)
        else:
            msg = f"path is {str(path)!r}; expected a name that ends in .svg, .html or .png."
            raise ValueError(msg)

    def _plotted(self) -> Any:
        return plot.timeline(dict(self.panels), limit_s=self.limit_s, title=self.title)

    def _repr_html_(self) -> str:
        own, look = self.caption, to_look_at(self.panels)
        captions = [own] if own.startswith("Look at ") else [*[own] * bool(own), look]
        below = "".join(map(_paragraph, captions)) + " ".join(map(badge, self.origins))
        details = [*map(_paragraph, _said(self))]
        for name, timeline in self.panels:
            details.append(lane_table(timeline, f"{name or self.title}: lanes")._repr_html_())
            details.append(_download(timeline, f"{self.title} {name}"))
        return printable(
            '<figure class="autopar-figure" style="margin:1em 0">\n'
            f'<p class="autopar-title"><strong>{html.escape(self.title)}</strong></p>\n'
            f"{_svg(self)}\n<figcaption>\n{below}\n</figcaption>\n"
            "<details><summary>The same in words, in tables and as files</summary>\n"
            + "\n".join([*details, "</details>\n</figure>"])
        )

    def panel(self, name: str) -> str:
        """One of several timelines alone as HTML, on the time scale of all, beside its code."""
        one = ((name, dict(self.panels)[name]),)
        alone = replace(self, panels=one, title=f"{self.title}: {name}", limit_s=None)
        shown = f'class="autopar-way" data-name="{html.escape(name)}">{_svg(alone, self.scale_s)}'
        return printable(f"<figure {shown}{' '.join(map(badge, alone.origins))}</figure>")


def draw(
    timelines: Timeline | Mapping[str, Timeline],
    *,
    title: str,
    caption: str = "",
    limit_s: float | None = None,
) -> Drawing:
    """Draw timelines under one another, on one time scale, so that their lengths compare.

    Every panel starts at zero, with its first span.

    Args:
        timelines: One timeline, or name -> timeline for a panel each.
        title: What is drawn, in a few words.
        caption: How to read it; what can be computed is said without it. One that begins with
            "Look at" is shown in the place of a line that says how long each timeline takes.
        limit_s: The least time possible in seconds, drawn as a dashed line.

    Raises:
        TypeError: `timelines` is neither a Timeline nor a mapping to such.
        ValueError: There is nothing to draw, there is no title, or the limit is not a time.

    >>> import autopar as ap
    >>> run = ap.Timeline([ap.Span("mm", "stream", 0, 4), ap.Span("D2H", "bus", 3, 5, "copy")])
    >>> print(ap.draw(run, title="A copy, half hidden"))
    A copy, half hidden
    makespan: 5.000 s
      stream  |################################################            | busy 4.000 s
      bus     |                                    ========================| busy 2.000 s
      copies 50.0 % hidden behind compute
    # compute   = copy   . less than half of a mark's time
    """
    panels = panels_of(timelines)
    check_words("title", title, "a few words, as in 'Copies behind products'.")
    check_type("caption", caption, str, "a few words.")
    limit = None if limit_s is None else check_positive("limit_s", limit_s)
    return Drawing(tuple(panels.items()), title, caption, limit)


def show_timelines(
    timelines: Timeline | Mapping[str, Timeline],
    name: str,
    *,
    title: str,
    caption: str = "",
    limit_s: float | None = None,
) -> Drawing:
    """Show timelines as an image, and return them as `draw` draws them, to be a cell's last value.

    Arguments and errors are those of `draw`; `name` is what the image's file is called, where
    there is no window to show it in.

    >>> import contextlib
    >>> import tempfile
    >>> import autopar as ap
    >>> run = ap.Timeline([ap.Span("mm", "GPU 0", 0, 2e-3)])
    >>> with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    ...     drawing = ap.show_timelines(run, "product", title="One product")  # doctest: +ELLIPSIS
    wrote product.png
    One product
    ...
    """
    drawing = draw(timelines, title=title, caption=caption, limit_s=limit_s)
    drawing._plotted()
    plot.show(name)
    show(drawing)
    return drawing


def _svg(drawing: Drawing, scale_s: float | None = None) -> str:
    """The picture alone, for a page or a file of its own; on another scale it has no legend."""
    look = {"width": "100%", "font-size": "12", "fill": "currentColor", "style": "display:block"}
    named = {"role": "img", "aria-labelledby": f"{_KEY}-title {_KEY}-desc"}
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **named, **look})
    _add(svg, "title", drawing.title, id=f"{_KEY}-title")
    _add(svg, "desc", " ".join(_said(drawing)), id=f"{_KEY}-desc")
    # From the back: bars lie over the axis' lines, and rims of words break the limit's line.
    axis, bars, limit, words = (_add(svg, "g") for _ in range(4))
    axis.set("class", "autopar-axis")
    words.set("style", _RIM)
    top = LINE if drawing.limit_s else 0
    kinds, scale_s = ((), scale_s) if scale_s else (drawing.kinds, drawing.scale_s)
    layout = layout_of(drawing.panels, scale_s, top)
    for y, text, is_bold in layout.headings:
        _add(words, "text", text, y=y, **({"font_weight": "bold"} if is_bold else {}))
    for row in layout.rows:
        _add_row(bars, words, row)
    for bracket in layout.brackets:
        left, right, y, _ = bracket
        for x1, x2, up in ((left, left, 6), (left, right, 0), (right, right, 6)):
            _add_line(bars, "bracket", x1, x2, y + 2 - up, y + 2)
        _add_words(words, bracket._replace(y=y + LINE))
    _add_axis(axis, scale_s, top, layout.height)
    if drawing.limit_s:
        at = drawing.limit_s / scale_s
        _add_line(limit, "limit", at, at, LINE - 2, layout.height, stroke_dasharray="5 3")
        _add_words(limit, Label(at, at, LINE - 6, f"limit {format_seconds(drawing.limit_s)}"))
    x, y = 0, layout.height + LINE + 4
    for kind in kinds:  # a legend, drawn as the bars are
        height = HEIGHTS[kind] * 2 // 3
        _add(svg, "rect", **_look(kind), x=x, y=y + 14 - height, width=18, height=height)
        _add(svg, "text", kind, x=x + 24, y=y + 12)
        x += 38 + 7 * len(kind)
    svg.set("height", str(y + LINE * bool(kinds) + 4))
    text = tostring(svg, encoding="unicode")
    # Ids from the content: a page holds many drawings, and comes out the same when built again.
    content = (text + drawing.caption).encode(errors="backslashreplace")  # pictures may be equal
    digest = hashlib.sha256(content).hexdigest()
    return text.replace(_KEY, f"autopar-{digest[:10]}")


def _add_row(bars: Element, words: Element, row: Row) -> None:
    """Add the bars of a row, which say what they are, and the words to be drawn over them."""
    group = _add(bars, "g", **_look(row.kind), data_lane=row.lane)
    for left, width, opacity, said in row.bars:
        across = {"x": _across(left), "width": _across(width)}
        bar = _add(group, "rect", **across, y=row.top, height=HEIGHTS[row.kind])
        if opacity < 1:
            bar.set("opacity", f"{opacity:.2f}")
        _add(bar, "title", said)
    style = _ON_BAR.format("#fff" if row.kind == "compute" else "#000", _colour(row.kind))
    for left, right, y, text in row.labels:
        middle = {"x": _across((left + right) / 2), "y": y + 4, "text_anchor": "middle"}
        _add(words, "text", text, **middle, style=style)


def _add_axis(axis: Element, scale_s: float, top: int, bottom: int) -> None:
    """Lines at round times from `top` to `bottom`, six at most, their labels beneath."""
    rough = scale_s / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    # Rounding may leave the last step a hair too short; then the next is taken below.
    step = next(size * power for size in _STEPS if size * power >= rough * (1 - 1e-9))
    unit, unit_s = unit_of(scale_s)
    for i in range(math.floor(scale_s / step * (1 + 1e-9)) + 1):
        at, ink = i * step / scale_s, {"stroke": "currentColor", "stroke_opacity": 0.18}
        _add(axis, "line", x1=_across(at), x2=_across(at), y1=top, y2=bottom, **ink)
        _add_words(axis, Label(at, at, bottom + 13, f"{i * step / unit_s:.6g} {unit}"))


def _add_line(
    parent: Element, name: str, left: float, right: float, y1: int, y2: int, **more: object
) -> None:
    ends = {"x1": _across(left), "x2": _across(right), "y1": y1, "y2": y2}
    _add(parent, "line", class_=f"autopar-{name}", **ends, **_LIMIT, **more)


def _add_words(parent: Element, label: Label) -> None:
    # Kept inside the drawing: near its edges text runs inwards, from where what it names ends.
    left, right, y, words = label
    half, middle = len(words) * _LETTER, (left + right) / 2
    anchor, at = "middle", middle
    if middle < half:
        anchor, at = "start", left
    elif middle > 1 - half:
        anchor, at = "end", right
    _add(parent, "text", words, x=_across(at), y=y, text_anchor=anchor, style=_WIDE_RIM)


def _add(parent: Element, tag: str, text: str = "", /, **attributes: object) -> Element:
    """Add an element; a name of an attribute has `_` for `-`, and one at its end is left out."""
    named = {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    element = SubElement(parent, tag, named)
    element.text = text
    return element


def _look(kind: str) -> dict[str, str]:
    # The stroke keeps a span visible that is thinner than a pixel.
    style = f"fill:{_colour(kind)};stroke:{_colour(kind)};stroke-width:0.5"
    return {"class_": f"autopar-{kind}", "style": style}


def _colour(kind: str) -> str:
    return f"var(--autopar-{kind}, {COLOURS[kind]})"


def _across(share: float) -> str:
    return f"{100 * share:.4f}".rstrip("0").rstrip(".") + "%"


def _said(drawing: Drawing) -> list[str]:
    """What the picture shows, a text for each panel, and what is true of all."""
    said = []
    for name, timeline in drawing.panels:
        # Where panels come from different places, each says its own; the badges don't tell which.
        where = [f"({timeline.origin})"] * bool(len(drawing.origins) > 1 and timeline.origin)
        said.append(" ".join([f"{name}:"] * bool(name) + sentences(timeline) + where))
    if drawing.limit_s:
        said.append(f"Dashed: the limit, {format_seconds(drawing.limit_s)}.")
        if any(timeline.makespan_s < drawing.limit_s for _, timeline in drawing.panels):
            said.append("It is computed from times measured in other runs: one may end before it.")
    return said


def _paragraph(words: str) -> str:
    return f"<p>{html.escape(words).replace(' %', '&nbsp;%')}</p>"


def _download(timeline: Timeline, name: str) -> str:
    if len(timeline.spans) > _MOST_EMBEDDED:
        many = f"{len(timeline.spans):,} spans, too many to carry in this page"
        return f"<p>The trace has {many}; <code>write_trace</code> writes it to a file.</p>"
    data = base64.b64encode(gzip.compress(trace_bytes(timeline), mtime=0)).decode()
    file = (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "timeline") + ".json.gz"
    link = f'<a download="{file}" href="data:application/gzip;base64,{data}">{file}</a>'
    return f"<p>{link}, a trace that ui.perfetto.dev opens</p>"
