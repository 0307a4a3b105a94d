"""Lanes plot: matplotlib's axes, and the lanes of timelines on them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autopar.display.format import format_seconds, origins_of, printable, unit_of
from autopar.display.rows import COLOURS, HEIGHTS, LINE, Label, layout_of, scale_of
from autopar.refusal import check_type
from autopar.timeline.span import Timeline
from autopar.timing.measurement import check_positive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The line of a limit, on all figures.
LIMIT: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.2}
_HATCHES = {"copy": "////", "communication": "xxxx"}
_RIM = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
_BRACKET = {"arrowstyle": "|-|,widthA=0.2,widthB=0.2", "shrinkA": 0, "shrinkB": 0}
_SMALL = 7  # points, for what must be on the figure but is not what it shows
_SMALL_PER_INCH = 16  # of its letters
_AROUND = 0.9  # inches that title and time axis take


def axes_of(points: float, ax: Axes | None = None, around: float = _AROUND) -> Axes:
    """The axes given, or those of a new figure, so many points high and inches around them."""
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    if ax is None:
        figsize = plt.rcParams["figure.figsize"][0], around + points / 72
        ax = plt.subplots(figsize=figsize, layout="constrained")[1]
    check_type("ax", ax, Axes, "the axes to draw on, one alone, as of plt.subplots().")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def draw_lanes(panels: Mapping[str, Timeline], limit_s: float | None, ax: Axes | None) -> Axes:
    """Draw timelines under one another on one scale, a pixel of their layout as a point."""
    if limit_s is not None:
        check_positive("limit_s", limit_s)
    scale_s = scale_of(panels.values(), limit_s)
    unit, unit_s = unit_of(scale_s)
    layout = layout_of(panels.items(), scale_s)
    ax = axes_of(layout.height, ax)

    def write(label: Label, y: float) -> None:
        x = (label.start_s + label.end_s) / 2 / unit_s
        how: dict[str, Any] = {"ha": "center", "va": "center", "bbox": _RIM, "parse_math": False}
        ax.text(x, y, printable(label.words), fontsize="small", **how)

    for heading in layout.headings:
        weight = "bold" if heading.of_panel else "normal"
        words = printable(heading.words)
        ax.text(0, heading.bottom, words, fontsize="small", weight=weight, parse_math=False)
    for row in layout.rows:
        ax.broken_barh(
            [(span.start_s / unit_s, span.duration_s / unit_s) for span, _ in row.bars],
            (row.top, HEIGHTS[row.kind]),
            facecolor=[(COLOURS[row.kind], opacity) for _, opacity in row.bars],
            edgecolor="white",
            linewidth=0.0,
            hatch=_HATCHES.get(row.kind),
        )
        for label in row.labels:
            write(label, (row.top + row.bottom) / 2)
    for y, label in layout.brackets:
        ends = label.start_s / unit_s, label.end_s / unit_s
        ax.annotate("", (ends[0], y), (ends[1], y), arrowprops=_BRACKET)
        write(label, y + LINE - 6)
    ax.set(xlim=(0, 1.03 * scale_s / unit_s), ylim=(layout.height, 0), yticks=[])
    if limit_s is not None:
        ax.axvline(limit_s / unit_s, **LIMIT)
        above: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center"}
        above |= {"xytext": (0, 2), "textcoords": "offset points", "fontsize": _SMALL}
        ax.annotate(f"limit {format_seconds(limit_s)}", (limit_s / unit_s, 1), **above)
    finish(ax, unit, origins_of(panels.values()))
    return ax


def finish(ax: Axes, unit: str, beneath: Sequence[str]) -> None:
    """Say the unit of time, and beneath it where this is from: it may be taken out of its page."""
    ax.set_xlabel(f"time ({unit})")
    write_beneath(ax, beneath)


def write_beneath(ax: Axes, lines: Sequence[str]) -> None:
    """Write small lines beneath the label of the horizontal axis, none wider than the figure."""
    across = int(_SMALL_PER_INCH * ax.figure.canvas.figure.get_figwidth())
    how: dict[str, Any] = {"xycoords": ("axes fraction", ax.xaxis.label)}
    how |= {"textcoords": "offset points", "fontsize": _SMALL, "ha": "right", "va": "top"}
    if lines:
        broken = [textwrap.fill(printable(line), across) for line in lines]
        ax.annotate("\n".join(broken), (1, 0), (0, -2), **how)
