"""Lanes plot: matplotlib's axes, and the lanes of a timeline on them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from autopar.display.format import format_seconds, origins_of, printable, unit_of
from autopar.display.rows import COLOURS, HEIGHTS, LANE, Row, lane_height, lanes_of, scale_of
from autopar.display.titles import Label, not_hidden
from autopar.refusal import check_type
from autopar.timeline.span import Timeline
from autopar.timing.measurement import check_positive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMALL = 7  # points, for what must be on the figure but is not what it shows
_HATCHES = {"copy": "////", "communication": "xxxx"}
# The line of a limit, on all figures.
LIMIT: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.2}
_RIM = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"}
_GAP = 7  # between lanes, which are measured in points


def axes_of(heights: Sequence[float], ax: Axes | None = None, beside: float = 0.9) -> list[Axes]:
    """The axes given, or panels of a new figure: their inches, and those of what is around them."""
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    if ax is None:
        figsize = plt.rcParams["figure.figsize"][0], beside + sum(heights)
        how: dict[str, Any] = {"figsize": figsize, "height_ratios": heights, "sharex": True}
        grid = plt.subplots(len(heights), layout="constrained", squeeze=False, **how)[1]
        axes = list(grid.flat)
    else:
        check_type("ax", ax, Axes, "the axes to draw on, one alone, as of plt.subplots().")
        axes = [ax]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return axes


def draw_panels(
    timelines: Collection[Timeline], limit_s: float | None, ax: Axes | None, above: float
) -> list[Axes]:
    """Draw timelines on one scale, with some inches above each."""
    whole_s = scale_of(timelines, None if limit_s is None else check_positive("limit_s", limit_s))
    panels = [(list(lanes_of(one, whole_s)), not_hidden(one, whole_s)) for one in timelines]
    heights = [
        sum(lane_height(rows) + _GAP for _, rows in lanes) + LANE * bool(exposed)
        for lanes, exposed in panels
    ]
    axes = axes_of([above + height / 72 for height in heights], ax)
    for one, (lanes, exposed) in zip(axes, panels, strict=True):
        _draw_lanes(lanes, one, limit_s, whole_s, exposed)
    finish(axes[-1], unit_of(whole_s)[0], origins_of(timelines))
    return axes


def finish(ax: Axes, unit: str, beneath: Sequence[str]) -> None:
    """Say the unit of time, and beneath it where this is from: it may be taken out of its page."""
    ax.set_xlabel(f"time ({unit})")
    if beneath:
        how: dict[str, Any] = {"xycoords": ("axes fraction", ax.xaxis.label)}
        how |= {"textcoords": "offset points", "fontsize": _SMALL, "ha": "right", "va": "top"}
        ax.annotate("\n".join(beneath), (1, 0), (0, -2), **how)


def _draw_lanes(
    lanes: Sequence[tuple[str, list[Row]]],
    ax: Axes,
    limit_s: float | None,
    whole_s: float,
    exposed: Label | None,
) -> None:
    """Draw lanes from the top down, their labels, the limit and the bracket under them."""
    from matplotlib.patches import Rectangle

    scale_s = unit_of(whole_s)[1]
    write = partial(ax.text, parse_math=False, fontsize="small", ha="center")
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
                size = span.duration_s / scale_s, LANE - height
                text = write(x, below, printable(span.name), ha="left", va="top", clip_on=True)
                text.set_fontsize(_SMALL)
                text.set_clip_path(Rectangle((x, below), *size, transform=ax.transData))
            for label in row.labels:
                x, middle = (label.start_s + label.end_s) / 2 / scale_s, y + height / 2
                write(x, middle, printable(label.words), va="center", bbox={**_RIM, "alpha": 0.8})
        middles.append(top + lane_height(rows) / 2)
        top += lane_height(rows) + _GAP
    for tick in ax.set_yticks(middles, [printable(lane) for lane, _ in lanes]):
        tick.label1.set_parse_math(False)  # a lane may be called $0
    if exposed:
        left, right = exposed.start_s / scale_s, exposed.end_s / scale_s
        bracket = {"arrowstyle": "|-|,widthA=0.2,widthB=0.2"}
        ax.annotate("", (left, top), (right, top), arrowprops=bracket)
        middle = (left + right) / 2
        write(middle, top + _GAP / 2, printable(exposed.words), va="top", bbox=_RIM)
        top += LANE
    ax.set_ylim(top - _GAP / 2, 0)  # the first lane on top
    ax.set_xlim(0, 1.03 * whole_s / scale_s)
    if limit_s is not None:
        ax.axvline(limit_s / scale_s, **LIMIT)
        words, at = f"limit {format_seconds(limit_s)}", (limit_s / scale_s, 1)
        how: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center"}
        ax.annotate(words, at, (0, 2), textcoords="offset points", fontsize=_SMALL, **how)
