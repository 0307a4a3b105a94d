"""Lanes plot: matplotlib's axes, and the lanes of a timeline on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autopar.display.format import format_seconds, printable, unit_of
from autopar.display.rows import COLOURS, HEIGHTS, LANE, Row, lane_height
from autopar.display.titles import Label
from autopar.refusal import check_type

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALL = 7  # points, for what must be on the figure but is not what it shows
Lanes = Sequence[tuple[str, list[Row]]]
_HATCHES = {"copy": "////", "communication": "xxxx"}
# The line of a limit, on all figures.
LIMIT: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.2}
_RIM = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
_GAP = 7  # between lanes, which are measured in points


def axes_of(height_inches: float, ax: Axes | None = None) -> Axes:
    """The axes given, or those of a new figure of some height."""
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    if ax is not None:
        check_type("ax", ax, Axes, "the axes to draw on, one alone, as of plt.subplots().")
        return ax
    figsize = plt.rcParams["figure.figsize"][0], height_inches
    return plt.subplots(layout="constrained", figsize=figsize)[1]


def height_inches(lanes: Lanes, exposed: Label | None) -> float:
    """How high the axes of some lanes are."""
    return (sum(lane_height(rows) + _GAP for _, rows in lanes) + LANE * bool(exposed)) / 72


def draw_lanes(
    lanes: Lanes, ax: Axes, limit_s: float | None, whole_s: float, exposed: Label | None
) -> None:
    """Draw lanes from the top down, their labels, the limit and the bracket under them."""
    from matplotlib.patches import Rectangle

    scale_s = unit_of(whole_s)[1]
    middles, top = [], _GAP / 2
    for _, rows in lanes:
        for row in rows:
            height, named = HEIGHTS[row.kind], [bar.span for bar in row.bars if bar.named]
            y = top + row.top + (0 if named or row.top else (LANE - height) / 2)
            ax.broken_barh(
                [(bar.span.start_s / scale_s, bar.span.duration_s / scale_s) for bar in row.bars],
                (y, height),
                facecolor=[(COLOURS[row.kind], bar.opacity) for bar in row.bars],
                edgecolor="white",
                linewidth=0.0,
                hatch=_HATCHES.get(row.kind),
            )
            for span in named:  # beneath its bar, and cut where that ends
                x, below = span.start_s / scale_s, y + height
                end = (span.duration_s / scale_s, LANE - height)
                text = ax.text(x, below, printable(span.name), fontsize=SMALL, va="top")
                text.set(parse_math=False, clip_on=True)
                text.set_clip_path(Rectangle((x, below), *end, transform=ax.transData))
            for label in row.labels:
                x, middle = (label.start_s + label.end_s) / 2 / scale_s, y + height / 2
                text = ax.text(x, middle, printable(label.words), ha="center", va="center")
                text.set(parse_math=False, fontsize="small", bbox=_RIM)
        middles.append(top + lane_height(rows) / 2)
        top += lane_height(rows) + _GAP
    for tick in ax.set_yticks(middles, [printable(lane) for lane, _ in lanes]):
        tick.label1.set_parse_math(False)  # a lane may be called $0
    if exposed:
        left, right = exposed.start_s / scale_s, exposed.end_s / scale_s
        ax.annotate(
            "", (left, top), (right, top), arrowprops={"arrowstyle": "|-|,widthA=0.2,widthB=0.2"}
        )
        text = ax.text(
            (left + right) / 2, top + _GAP / 2, printable(exposed.words), ha="center", va="top"
        )
        text.set(parse_math=False, fontsize="small", bbox={**_RIM, "alpha": 1.0})
        top += LANE
    ax.set_ylim(top - _GAP / 2, 0)  # the first lane on top
    ax.set_xlim(0, 1.03 * whole_s / scale_s)
    ax.spines[["top", "right"]].set_visible(False)
    if limit_s is not None:
        ax.axvline(limit_s / scale_s, **LIMIT)
        words, at = f"limit {format_seconds(limit_s)}", (limit_s / scale_s, 1)
        how: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center"}
        ax.annotate(words, at, (0, 2), textcoords="offset points", fontsize=SMALL, **how)
