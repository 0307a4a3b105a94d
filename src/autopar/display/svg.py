"""Svg: timelines on one time scale, as inline SVG for a page and as text for a terminal."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, tostring

from autopar.display import plot
from autopar.display.format import badge, format_seconds, origins_of, printable
from autopar.display.page import page
from autopar.display.rows import scale_of
from autopar.display.shapes import add, add_shapes
from autopar.display.show import show
from autopar.display.text import MARKS, lane_table, panels_of, picture, sentences
from autopar.files import path_of, write_atomically
from autopar.refusal import check_type
from autopar.timeline.chrome_trace import trace_bytes
from autopar.timeline.span import KINDS, Timeline
from autopar.timing.measurement import check_positive

_KEY = "autopar-KEY"  # begins ids, until the content is known
_MOST_EMBEDDED = 20_000  # spans; a trace of more would weigh a page down by half a megabyte


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
        lines.append("   ".join(f"{MARKS[kind]} {kind}" for kind in self.kinds))
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
        if path.suffix == ".svg":
            write_atomically(path, printable(as_svg(self)) + "\n")
        elif path.suffix == ".html":
            write_atomically(path, page(self.title, self._repr_html_()))
        elif path.suffix == ".png":
            plot.save(self._plotted(), path)
        else:
            msg = f"path is {str(path)!r}; expected a name that ends in .svg, .html or .png."
            raise ValueError(msg)

    def _plotted(self) -> Any:
        """The drawing on matplotlib's axes."""
        return plot.timeline(dict(self.panels), limit_s=self.limit_s, title=self.title)

    def _repr_html_(self) -> str:
        badges = " ".join(map(badge, self.origins))
        return printable(
            '<figure class="autopar-figure" style="margin:1em 0">\n'
            f'<p class="autopar-title"><strong>{html.escape(self.title)}</strong></p>\n'
            f"{as_svg(self)}\n<figcaption>\n{_paragraph(self.caption)}\n{badges}\n</figcaption>\n"
            f"{_details(self)}\n</figure>"
        )


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
        caption: How to read it; what can be computed is said without it.
        limit_s: The least time possible in seconds, drawn as a dashed line.

    Raises:
        TypeError: `timelines` is neither a Timeline nor a mapping to such.
        ValueError: There is nothing to draw, there is no title, or the limit is not a time.

    >>> from autopar.timeline.span import Span
    >>> copies = Span("D2H", "bus", 3.0, 5.0, "copy")
    >>> print(draw(Timeline((Span("mm", "stream", 0.0, 4.0), copies)), title="A copy, half hidden"))
    A copy, half hidden
    makespan: 5.000 s
      stream  |################################################            | busy 4.000 s
      bus     |                                    ========================| busy 2.000 s
      copies 50.0 % hidden behind compute
    # compute   = copy
    """
    panels = panels_of("timelines", timelines)
    if not isinstance(title, str) or not title.strip():
        msg = f"title is {title!r}; expected a few words, as in 'Copies behind products'."
        raise ValueError(msg)
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


def as_svg(drawing: Drawing) -> str:
    """The picture alone, which can stand in a page or in a file of its own."""
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
    svg.set("aria-labelledby", f"{_KEY}-title {_KEY}-desc")
    for name, value in (("width", "100%"), ("font-size", "12"), ("fill", "currentColor")):
        svg.set(name, value)
    svg.set("style", "display:block")
    add(svg, "title", drawing.title, id=f"{_KEY}-title")
    add(svg, "desc", " ".join(_words(drawing)), id=f"{_KEY}-desc")
    add_shapes(svg, drawing.panels, drawing.kinds, drawing.scale_s, drawing.limit_s)
    text = tostring(svg, encoding="unicode")
    # Ids from the content: a page holds many drawings, and comes out the same when built again.
    content = text + drawing.caption  # a page may have one picture twice, under two captions
    digest = hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()
    return text.replace(_KEY, f"autopar-{digest[:10]}")


def _words(drawing: Drawing) -> list[str]:
    """What the picture shows, a text for each panel, and what is true of all."""
    said = []
    for name, timeline in drawing.panels:
        # Where panels come from different places, each says its own; the badges don't tell which.
        where = [f"({timeline.origin})"] * bool(len(drawing.origins) > 1 and timeline.origin)
        said.append(" ".join([f"{name}:"] * bool(name) + sentences(timeline) + where))
    timelines = [timeline for _, timeline in drawing.panels]
    if drawing.limit_s:
        said.append(f"Dashed: the limit, {format_seconds(drawing.limit_s)}.")
        if any(timeline.makespan_s < drawing.limit_s for timeline in timelines):
            said.append("It is computed from times measured in other runs: one may end before it.")
    return said


def _details(drawing: Drawing) -> str:
    parts = ["<details><summary>The same in words, in tables and as files</summary>"]
    parts += map(_paragraph, _words(drawing))
    for name, timeline in drawing.panels:
        parts.append(lane_table(timeline, f"{name or drawing.title}: lanes")._repr_html_())
        parts.append(_download(timeline, f"{drawing.title} {name}"))
    return "\n".join([*parts, "</details>"])


def _paragraph(words: str) -> str:
    return f"<p>{html.escape(words)}</p>" if words else ""


def _download(timeline: Timeline, name: str) -> str:
    if len(timeline.spans) > _MOST_EMBEDDED:
        many = f"{len(timeline.spans):,} spans, too many to carry in this page"
        return f"<p>The trace has {many}; <code>write_trace</code> writes it to a file.</p>"
    data = base64.b64encode(gzip.compress(trace_bytes(timeline), mtime=0)).decode()
    file = (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "timeline") + ".json.gz"
    link = f'<a download="{file}" href="data:application/gzip;base64,{data}">{file}</a>'
    return f"<p>{link}, a trace that ui.perfetto.dev opens</p>"
