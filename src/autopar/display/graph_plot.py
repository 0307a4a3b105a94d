"""Graph plot: a plan on matplotlib axes, as boxes in layers with arrows between them.

Or a column for each device, with its tasks in the order in which they run. `graph_layout` says
where boxes stand. Matplotlib and networkx are imported when they are needed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from autopar.display.graph_layout import (
    Arrow,
    arrows_of,
    columns_of,
    in_layers,
    is_copy,
    rows_of,
    without,
)
from autopar.display.lanes_plot import axes_of
from autopar.display.rows import COLOURS
from autopar.display.titles import by_number
from autopar.refusal import check_type
from autopar.timeline.groups import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours of lanes that compute and of those that copy, and of letters on them. Neighbours differ in
# lightness too, for readers who confuse red and green; beyond these outline and letter tell.
COMPUTE = {COLOURS["compute"]: "w", "#f0dc6a": "k", "#36a077": "k", "#8c2f6b": "w", "#9bd0ee": "k"}
COPY = {COLOURS["copy"]: "k", "#f6c795": "k", "#8a4b12": "w"}
_ARROW = COLOURS["host"]  # stands out on white and on black
_ARROW_WIDTHS = {True: 1.5, False: 0.6}  # of waits for another lane, and of what needs none
_WIDTH, _MOST_HEIGHT = 504.0, 936.0  # points: of a column of text; beyond, boxes are lower
_BOX = (100.0, 18.0)  # points: a task's box where there is room, across and down
_NARROW, _HIGH = 50.0, 27.0  # a box that is narrower has its letter on top, and is as high as this
_READABLE = 70.0  # across: if boxes were narrower, layers are drawn downwards if that helps
_SMALL, _LINE, _LETTER = 7, 7.9, 4.3  # points: the font, its lines, and how wide most letters are
_FEWEST_LETTERS = 4  # of a name that is shortened
_EDGE = 4.0  # points for the outlines of boxes at the edges
_COLUMN = (0.74, 28.0)  # how much of a column a box takes, and points from row to row
_HEADER = 16.0  # points above the rows, for what the columns are

_Spot = npt.NDArray[np.float64]  # points, across and down


@runtime_checkable
class Planned(Protocol):
    """What has a schedule, as the plan of a task graph does."""

    @property
    def schedule(self) -> Any:
        """Jobs in the order in which they are issued, each on its lane, with its waits."""


class _Look(NamedTuple):
    letter: str
    ink: str
    box: dict[str, Any]  # arguments of its patch


class _Grid(NamedTuple):
    flow: int  # layers follow each other across (0) or down (1)
    start: _Spot  # how far in the middle of the first layer is
    cell: _Spot  # what a layer and a place take
    box: _Spot
    size: _Spot


def draw_plan(
    plan: Planned, ax: Axes | None, *, title: str, columns: bool = False, hide: Sequence[str] = ()
) -> Axes:
    """Draw a plan, as `plot.graph` says."""
    check_type("plan", plan, Planned, "a plan. Pass graph.plan() of a graph, run.plan of a run.")
    if hide:
        plan = without(plan, hide)
    if not plan.schedule.entries:
        but = " but those to hide" if hide else ""
        msg = f"plan has no tasks{but}; expected at least one. Add it first: graph.add(fn, x)."
        raise ValueError(msg)
    draw = _in_columns if columns else _in_layers
    return draw(plan.schedule, arrows_of(plan), ax, title)


def _in_layers(schedule: Any, arrows: dict[Arrow, bool], ax: Axes | None, title: str) -> Axes:
    """Draw tasks by the longest way from a start, and arrows past those in between."""
    looks = _looks({entry.lane for entry in schedule.entries})
    rows, places, ways = in_layers(len(schedule.entries), arrows)
    shape = len(rows), max(places.values()) + 0.5
    height = _grid(*shape, _WIDTH - _EDGE, _MOST_HEIGHT).size[1] + _EDGE
    height += 72 * (0.4 + 0.05 * len(looks))
    ax, width, height = _prepared(ax, title, height, looks, arrows.values(), "needs no wait")
    grid = _grid(*shape, width - _EDGE, height - _EDGE)
    along, half = np.eye(2)[grid.flow], grid.box[grid.flow] / 2
    corner = (np.array([width, height]) - grid.size) / 2 + grid.start
    spots = {
        point: corner + np.where(along, layer, places[point]) * grid.cell
        for layer, row in enumerate(rows)
        for point in row
    }
    _draw_boxes(ax, schedule, spots, grid.box, looks)
    # Side by side in the order in which they come, so that they don't cross at the end.
    came = sorted(arrows, key=lambda arrow: spots[ways[arrow][-2]][1 - grid.flow])
    for into in grouped(came, lambda arrow: arrow[1]).values():
        for i, arrow in enumerate(into):
            port = 0.7 * ((i + 0.5) / len(into) - 0.5) * grid.box * (1 - along)
            stops = [spots[point] for point in ways[arrow]]
            ends = [(one + half * along, to - half * along) for one, to in pairwise(stops)]
            ends[-1] = ends[-1][0], ends[-1][1] + port
            _draw_arrow(ax, [_bent(*pair, grid.flow) for pair in ends], arrows[arrow])
    return ax


def _in_columns(schedule: Any, arrows: Collection[Arrow], ax: Axes | None, title: str) -> Axes:
    """Draw a column for each device, and one for its copies, with rows downwards."""
    import networkx

    lanes = [entry.lane for entry in schedule.entries]
    columns = columns_of(dict.fromkeys(lanes))
    names = [*dict.fromkeys(columns.values())]
    rows = rows_of([columns[lane] for lane in lanes], arrows)
    following = [
        pair
        for tasks in grouped(range(len(lanes)), lanes.__getitem__).values()
        for pair in pairwise(tasks)
    ]
    # Of the waits those that others imply are left out: they would hide what holds a task up.
    needed = networkx.transitive_reduction(networkx.DiGraph([*arrows, *following])).edges
    waits = [arrow for arrow in needed if lanes[arrow[0]] != lanes[arrow[1]]]
    kinds = [True] * len(waits) + [False] * len(following)
    height = _HEADER + _COLUMN[1] * (max(rows) + 1) + 72 * 0.3
    ax, width, height = _prepared(ax, title, height, {}, kinds, "is next on its lane")
    cell = (width - _EDGE) / len(names), min(_COLUMN[1], (height - _HEADER) / (max(rows) + 1))
    box = np.minimum(_BOX, (_COLUMN[0] * cell[0], 0.7 * cell[1]))
    spots = {
        task: np.array([names.index(columns[lane]) + 0.5, row + 0.5]) * cell + (0, _HEADER)
        for task, (lane, row) in enumerate(zip(lanes, rows, strict=True))
    }
    for i, name in enumerate(names):
        place = (i + 0.5) * cell[0]
        ax.text(place, _HEADER / 2, name, ha="center", va="center", fontsize=_SMALL + 2)
    looks = {lane: _look("", is_copy(lane)) for lane in columns}
    _draw_boxes(ax, schedule, spots, box, looks)
    for start, end in following:
        leaves, enters = spots[start] + (0, box[1] / 2), spots[end] - (0, box[1] / 2)
        _draw_arrow(ax, [_bent(leaves, enters, 1)], False)
    for start, end in waits:
        _draw_arrow(ax, [_between(spots[start], spots[end], box, cell[0])], True)
    return ax


def _bent(start: _Spot, end: _Spot, flow: int) -> list[_Spot]:
    """A curve that leaves and enters along the flow: its ends, and two points that bend it."""
    along, middle = np.eye(2)[flow], (start + end) / 2
    return [start, np.where(along, middle, start), np.where(along, middle, end), end]


def _between(start: _Spot, end: _Spot, box: _Spot, column: float) -> list[_Spot]:
    """A curve between columns, from side to side, or down where it is one column."""
    across, down = np.diag(box / 2)
    to_right = np.sign(end[0] - start[0])
    enters = end - to_right * across
    if abs(end[0] - start[0]) > 1.5 * column:  # below the columns that it passes
        corner = np.array([start[0], end[1]])
        return [start + down, corner, corner, enters]
    if to_right:
        return _bent(start + to_right * across, enters, 0)
    out = 1.24 * across  # around what lies between two lanes of a column
    return [start + across, start + out, end + out, end + across]


def _grid(depth: int, breadth: float, width: float, height: float) -> _Grid:
    """Layers from left to right where their boxes are wide enough to read, else downwards."""
    below = 0.88 * width / breadth
    if 0.72 * width / (depth - 0.28) >= min(_READABLE, below):
        flow, shares, high = 0, (0.72, 0.78), _BOX[1]
        most = 1.8 * _BOX[0], max(11.0, min(27.0, 540 / breadth))  # lower ones where they are many
        cells = depth - 1 + shares[0], max(2.0, breadth)
    else:
        flow, shares, high = 1, (0.88, 0.52), _HIGH if below < _NARROW else _BOX[1]
        most = 1.4 * _BOX[0], high + 25  # room for arrows' curves
        cells = breadth, depth - 1 + shares[1]
    cell = np.minimum(most, np.divide((width, height), cells))
    taken = shares * cell
    box = np.minimum((_BOX[0], high), taken)
    return _Grid(flow, np.eye(2)[flow] * taken / 2, cell, box, cell * cells)


def _look(letter: str, copies: bool, number: int = 0) -> _Look:
    """How the lane of this number, of those that copy or of the others, looks."""
    colours = COPY if copies else COMPUTE
    turn, place = divmod(number, len(colours))
    colour, ink = list(colours.items())[place]
    line = (0, (3, 2)) if copies else "-"
    style = {"facecolor": colour, "edgecolor": "#2b3038", "linestyle": line}
    return _Look(letter, ink, {**style, "linewidth": 0.8 + 0.7 * turn})


def _looks(lanes: Collection[str]) -> dict[str, _Look]:
    """How each lane looks: those that compute first, each kind by name, with numbers as numbers."""
    looks: dict[str, _Look] = {}
    for copies in (False, True):
        alike = [lane for lane in sorted(lanes, key=by_number) if is_copy(lane) == copies]
        for number, lane in enumerate(alike):
            letter = ascii_uppercase[len(looks) % 26] * (len(looks) // 26 + 1)  # after Z: AA, BB
            looks[lane] = _look(letter, copies, number)
    return looks


def _prepared(
    ax: Axes | None,
    title: str,
    points_high: float,
    looks: Mapping[str, _Look],
    waits: Collection[bool],
    implied: str,
) -> tuple[Axes, float, float]:
    """Axes in points with a title and a legend at their bottom, and the room above that.

    The legend has lanes, and what arrows there are: waits, or what the order on lanes implies.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if ax is None:
        (ax,) = axes_of([points_high / 72], beside=0.3 * bool(title))
    ax.set_axis_off()
    ax.set_title(title)
    handles: list[Any] = [
        Patch(label=f"{look.letter}: {lane}".replace("$", r"\$"), **look.box)
        for lane, look in looks.items()
    ]
    handles += [
        Line2D([], [], color=_ARROW, lw=_ARROW_WIDTHS[wait], label=name)
        for wait, name in ((True, "waits for another lane"), (False, implied))
        if wait in waits
    ]
    figure = ax.figure.canvas.figure
    figure.draw_without_rendering()  # so that the axes have their size
    points = 72 / figure.dpi
    width, height = points * np.array(ax.get_window_extent().size)
    ax.set(xlim=(0, width), ylim=(height, 0))
    how: dict[str, Any] = {"loc": "lower center", "fontsize": _SMALL, "frameon": False}
    taken = 0.0
    for columns in range(min(6, len(handles)), 0, -1):
        legend = ax.legend(handles=handles, ncols=columns, borderaxespad=0, **how)
        size = points * np.array(legend.get_window_extent().size)
        taken = min(size[1] + 6, 0.75 * height)
        if size[0] <= width:
            break
    return ax, width, height - taken


def _draw_boxes(
    ax: Axes, schedule: Any, spots: Mapping[Any, _Spot], size: _Spot, looks: Mapping[str, _Look]
) -> None:
    """Draw boxes with their lanes' letters, and the names beside them, or below in narrow boxes."""
    from matplotlib.patches import Rectangle

    width, height = size
    lines = int(height / _LINE + 0.2)  # most names have no letters that reach below the others
    for number, entry in enumerate(schedule.entries):
        name, look = " ".join(schedule.jobs[entry.job].name.split()), looks[entry.lane]
        (x, y), corner = spots[number], spots[number] - size / 2
        style = {**look.box, "linewidth": min(look.box["linewidth"], height / 8), "zorder": 3}
        box = ax.add_patch(Rectangle(tuple(corner), width, height, **style))
        used = _LETTER * (1.5 + len(look.letter)) if look.letter else 0.0
        if lines > 2 and width < _NARROW:
            words = [(x, y - height / 3, look.letter, "bold")]
            words += [(x, y + height / 6, _label(name, width, lines - 1), "normal")]
        else:
            words = [(x - (width - used) / 2, y, look.letter, "bold")]
            beside = x + max(0, used / 2 - 1)
            words += [(beside, y, _label(name, width - used, lines), "normal")]
        for left, at, text, weight in words:
            if lines and text and used <= width:
                shown = ax.text(left, at, text, color=look.ink, weight=weight, fontsize=_SMALL)
                shown.set(ha="center", va="center" if "\n" in text else "center_baseline", zorder=4)
                shown.set(parse_math=False, linespacing=1.0, clip_path=box, clip_on=True)


def _label(name: str, width: float, lines: int) -> str:
    """A name in one or two lines, without letters from their middle: names differ at their ends."""
    most, parts = int(width / _LETTER), [name]
    breaks = [match.end() for match in re.finditer(r"[^\w]+|_", name) if match.end() < len(name)]
    if len(name) > most and lines > 1 and breaks:
        middle = min(breaks, key=lambda place: abs(2 * place - len(name)))
        parts = [name[:middle].rstrip(), name[middle:]]
    if most <= _FEWEST_LETTERS < max(map(len, parts)):
        return ""
    return "\n".join(
        part if len(part) <= most else f"{part[: most // 2]}\u2026{part[-((most - 1) // 2) :]}"
        for part in parts
    )


def _draw_arrow(ax: Axes, curves: Sequence[Sequence[_Spot]], wait: bool) -> None:
    """Draw an arrow of curves with straight lines between them."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    codes = [Curve.LINETO, *[Curve.CURVE4] * 3] * len(curves)
    arrow = FancyArrowPatch(
        path=Curve([point for curve in curves for point in curve], [Curve.MOVETO, *codes[1:]]),
        arrowstyle="-|>" if wait else "->",
        mutation_scale=7 if wait else 5,
        linewidth=_ARROW_WIDTHS[wait],
        color=_ARROW,
        fill=wait,
        zorder=2 if wait else 1,
    )
    ax.add_patch(arrow)
