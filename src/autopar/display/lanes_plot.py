"""Lanes plot: matplotlib's axes, and the lanes of a timeline on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autopar.display.format import format_seconds, origins_of, printable, unit_of
from autopar.display.rows import (
    COLOURS,
    HEIGHTS,
    LANE,
    Label,
    lane_height,
    lanes_of,
    not_hidden,
    scale_of,
)
from autopar.refusal import check_type
from autopar.timeline.span import Timeline
from autopar.timing.measurement import check_positive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The line of a limit, on all figures.
LIMIT: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.2}
_HATCHES = {"copy": "////", "communication": "xxxx"}
_RIM = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
_SMALL = 7  # points, for what must be on the figure but is not what it shows
_GAP = 7  # between lanes, which are measured in points


def axes_of(heights: Sequence[float], ax: Axes | None = None, beside: float = 0.9) -> list[Axes]:
    """The axes given, or panels of a new figure: their inches, and those of what is around them."""
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    if ax is None:
        figsize = plt.rcParams["figure.figsize"][0], beside + sum(heights)
        how: dict[str, Any] = {"figsize": figsize, "height_ratios": heights, "sharex": True}
        axes = plt.subplots(len(heights), layout="constrained", squeeze=False, **how)[1]
        axes = list(axes.flat)
    else:
        check_type("ax", ax, Axes, "the axes to draw on, one alone, as of plt.subplots().")
        axes = [ax]
        if len(heights) > 1:
            msg = f"ax is one, for {len(heights)} panels; expected it for one. Leave it out."
            raise ValueError(msg)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return axes


def draw_panels(
    panels: Mapping[str, Timeline], limit_s: float | None, ax: Axes | None
) -> list[Axes]:
    """Draw timelines on one scale, with room above each for its name."""
    if limit_s is not None:
        check_positive("limit_s", limit_s)
    whole_s = scale_of(panels.values(), limit_s)
    lanes = [[*lanes_of(one, whole_s)] for one in panels.values()]
    exposed = [not_hidden(one, whole_s) for one in panels.values()]
    heights = [
        sum(lane_height(rows) + _GAP for _, rows in panel) + LANE * max(1, len(beneath))
        for panel, beneath in zip(lanes, exposed, strict=True)
    ]
    above = 0.4 * (len(panels) > 1)  # inches
    axes = axes_of([above + height / 72 for height in heights], ax)
    for one, rows, beneath in zip(axes, lanes, exposed, strict=True):
        _draw_lanes(one, rows, beneath, whole_s, limit_s)
    finish(axes[-1], unit_of(whole_s)[0], origins_of(panels.values()))
    return axes


def finish(ax: Axes, unit: str, beneath: Sequence[str]) -> None:
    """Say the unit of time, and beneath it where this is from: it may be taken out of its page."""
    ax.set_xlabel(f"time ({unit})")
    write_beneath(ax, beneath)


def write_beneath(ax: Axes, lines: Sequence[str]) -> None:
    """Write small lines beneath the label of the horizontal axis."""
    how: dict[str, Any] = {"xycoords": ("axes fraction", ax.xaxis.label)}
    how |= {"textcoords": "offset points", "fontsize": _SMALL, "ha": "right", "va": "top"}
    if lines:
        ax.annotate("\n".join(lines), (1, 0), (0, -2), **how)


def _draw_lanes(
    ax: Axes,
    lanes: Sequence[tuple[str, Sequence[Any]]],
    exposed: Sequence[Label],
    whole_s: float,
    limit_s: float | None,
) -> None:
    """Draw lanes from the top down, their labels, the limit and the brackets under them."""
    scale_s, middles, top = unit_of(whole_s)[1], [], _GAP / 2

    def write(label: Label, y: float) -> None:
        x = (label.start_s + label.end_s) / 2 / scale_s
        how: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False, "bbox": _RIM}
        ax.text(x, y, printable(label.words), fontsize="small", **how)

    for _, rows in lanes:
        for kind, down, bars, labels in rows:
            y = top + down + (LANE - HEIGHTS[kind]) / 2 * (len(rows) == 1)
            ax.broken_barh(
                [(span.start_s / scale_s, span.duration_s / scale_s) for span, _ in bars],
                (y, HEIGHTS[kind]),
                facecolor=[(COLOURS[kind], opacity) for _, opacity in bars],
                edgecolor="white",
                linewidth=0.0,
                hatch=_HATCHES.get(kind),
            )
            for label in labels:
                write(label, y + HEIGHTS[kind] / 2)
        middles.append(top + lane_height(rows) / 2)
        top += lane_height(rows) + _GAP
    for tick in ax.set_yticks(middles, [printable(lane) for lane, _ in lanes]):
        tick.label1.set_parse_math(False)  # a lane may be called $0
    for label in exposed:
        ends = label.start_s / scale_s, label.end_s / scale_s
        bracket = {"arrowstyle": "|-|,widthA=0.2,widthB=0.2"}
        ax.annotate("", (ends[0], top), (ends[1], top), arrowprops=bracket)
        write(label, top + LANE / 2)
        top += LANE
    ax.set_ylim(top - _GAP / 2, 0)  # the first lane on top
    ax.set_xlim(0, 1.03 * whole_s / scale_s)
    if limit_s is not None:
        ax.axvline(limit_s / scale_s, **LIMIT)
        words, at = f"limit {format_seconds(limit_s)}", (limit_s / scale_s, 1)
        how: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center"}
        ax.annotate(words, at, (0, 2), textcoords="offset points", fontsize=_SMALL, **how)
