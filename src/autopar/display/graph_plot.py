"""Graph plot: a plan on matplotlib axes, as boxes in layers with arrows between them.

Or a column for each device, with its tasks in the order in which they run. `graph_layout` says
where boxes stand. Matplotlib, networkx and numpy are imported when they are needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from autopar.display.graph_layout import (
    Arrow,
    arrows_of,
    columns_of,
    in_layers,
    is_copy,
    rows_of,
    without,
)
from autopar.display.rows import COLOURS
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

_Spot = tuple[float, float]


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
    start: float  # the middle of the first layer, in cells
    cell: _Spot  # points, across and down: what a layer and a place take
    box: _Spot
    size: _Spot


def draw_plan(
    plan: Planned,
    ax: Axes | None,
    *,
    title: str,
    axes_of: Callable[[float], Axes],
    columns: bool = False,
    hide: Sequence[str] = (),
) -> Axes:
    """Draw a plan, as `plot.graph` says; `axes_of` makes axes of a height in inches."""
    check_type("plan", plan, Planned, "a plan. Pass graph.plan() of a graph, run.plan of a run.")
    if hide:
        plan = without(plan, hide)
    schedule, arrows = plan.schedule, arrows_of(plan)
    if not schedule.entries:
        but = " but those to hide" if hide else ""
        msg = f"plan has no tasks{but}; expected at least one. Add it first: graph.add(fn, x)."
        raise ValueError(msg)
    if columns:
        return _in_columns(schedule, arrows, ax, title, axes_of)
    looks = _looks({entry.lane for entry in schedule.entries})
    rows, places, ways = in_layers(len(schedule.entries), arrows)
    shape = len(rows), max(places.values()) + 0.5
    if ax is None:
        height = _grid(*shape, _WIDTH - _EDGE, _MOST_HEIGHT).size[1] + _EDGE
        ax = axes_of(height / 72 + 0.4 + 0.05 * len(looks) + 0.3 * bool(title))
    ax.set_axis_off()
    ax.set_title(title)
    kinds = {True: "waits for another lane", False: "needs no wait"}
    there = set(arrows.values())
    width, height = _room(ax, looks, [(wait, kinds[wait]) for wait in kinds if wait in there])
    grid = _grid(*shape, width - _EDGE, height - _EDGE)
    left, top = (width - grid.size[0]) / 2, (height - grid.size[1]) / 2
    spots = {}
    for layer, point in ((layer, point) for layer, row in enumerate(rows) for point in row):
        x, y = (layer + grid.start, places[point])[:: -1 if grid.flow else 1]
        spots[point] = left + x * grid.cell[0], top + y * grid.cell[1]
    for number, entry in enumerate(schedule.entries):
        name = " ".join(schedule.jobs[entry.job].name.split())
        _draw_box(ax, spots[number], grid.box, name, looks[entry.lane])
    # Side by side in the order in which they come, so that they don't cross at the end.
    came = sorted(arrows, key=lambda arrow: spots[ways[arrow][-2]][1 - grid.flow])
    for into in grouped(came, lambda arrow: arrow[1]).values():
        for i, arrow in enumerate(into):
            port = 0.7 * ((i + 0.5) / len(into) - 0.5) * grid.box[1 - grid.flow]
            _draw_arrow(ax, [spots[point] for point in ways[arrow]], grid, port, arrows[arrow])
    return ax


def _in_columns(
    schedule: Any,
    arrows: Collection[Arrow],
    ax: Axes | None,
    title: str,
    axes_of: Callable[[float], Axes],
) -> Axes:
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
    if ax is None:
        ax = axes_of((_HEADER + _COLUMN[1] * (max(rows) + 1)) / 72 + 0.3 + 0.3 * bool(title))
    ax.set_axis_off()
    ax.set_title(title)
    kinds = {"waits for another lane": waits, "is next on its lane": following}
    width, height = _room(
        ax, {}, [(bool(kind is waits), name) for name, kind in kinds.items() if kind]
    )
    cell = (width - _EDGE) / len(names), min(_COLUMN[1], (height - _HEADER) / (max(rows) + 1))
    box = min(_BOX[0], _COLUMN[0] * cell[0]), min(_BOX[1], 0.7 * cell[1])
    places = {name: (i + 0.5) * cell[0] for i, name in enumerate(names)}
    spots = [
        (places[columns[lane]], _HEADER + (row + 0.5) * cell[1])
        for lane, row in zip(lanes, rows, strict=True)
    ]
    for name, place in places.items():
        ax.text(place, _HEADER / 2, name, ha="center", va="center", fontsize=_SMALL + 2)
    for task, entry in enumerate(schedule.entries):
        kind = "copy" if is_copy(entry.lane) else "compute"
        colours = COPY if kind == "copy" else COMPUTE
        style = {"edgecolor": "#2b3038", "linewidth": 0.8, "linestyle": "-"}
        if kind == "copy":
            style["linestyle"] = (0, (3, 2))
        look = _Look("", colours[COLOURS[kind]], {"facecolor": COLOURS[kind], **style})
        _draw_box(ax, spots[task], box, " ".join(schedule.jobs[entry.job].name.split()), look)
    for start, end in following:
        _draw_arrow(ax, [spots[start], spots[end]], _Grid(1, 0, cell, box, box), 0, False)
    for start, end in waits:
        _draw_wait(ax, spots[start], spots[end], box, cell[0])
    return ax


def _draw_wait(ax: Axes, start: _Spot, end: _Spot, box: _Spot, column: float) -> None:
    """Draw an arrow between columns, from side to side, or down where it is one column."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    way = int(end[0] > start[0]) - int(end[0] < start[0])
    if abs(end[0] - start[0]) > 1.5 * column:  # below the columns that it passes
        below, enters = start[1] + box[1] / 2, end[0] - way * box[0] / 2
        points = [(start[0], below), (start[0], end[1]), (start[0], end[1]), (enters, end[1])]
    elif way:
        leaves, enters = start[0] + way * box[0] / 2, end[0] - way * box[0] / 2
        bend = (leaves + enters) / 2
        points = [(leaves, start[1]), (bend, start[1]), (bend, end[1]), (enters, end[1])]
    else:  # between two lanes of a column: around what lies between them
        side, out = start[0] + box[0] / 2, start[0] + 0.62 * box[0]
        points = [(side, start[1]), (out, start[1]), (out, end[1]), (side, end[1])]
    arrow = FancyArrowPatch(
        path=Curve(points, [Curve.MOVETO, *[Curve.CURVE4] * 3]),
        arrowstyle="-|>",
        mutation_scale=7,
        linewidth=_ARROW_WIDTHS[True],
        color=_ARROW,
        fill=True,
        zorder=2,
    )
    ax.add_patch(arrow)


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
    cell = min(most[0], width / cells[0]), min(most[1], height / cells[1])
    box = min(_BOX[0], shares[0] * cell[0]), min(high, shares[1] * cell[1])
    size = cell[0] * cells[0], cell[1] * cells[1]
    return _Grid(flow, shares[flow] / 2, cell, box, size)


def _looks(lanes: Collection[str]) -> dict[str, _Look]:
    """How each lane looks: those that compute first, each kind by name, with numbers as numbers."""

    def rank(lane: str) -> list[tuple[str, int]]:
        return [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", lane)]

    looks: dict[str, _Look] = {}
    for copies, colours, line in ((False, COMPUTE, "-"), (True, COPY, (0, (3, 2)))):
        alike = [lane for lane in sorted(lanes, key=rank) if is_copy(lane) == copies]
        for number, lane in enumerate(alike):
            turn, place = divmod(number, len(colours))
            letter = ascii_uppercase[len(looks) % 26] * (len(looks) // 26 + 1)  # after Z: AA, BB
            colour, ink = list(colours.items())[place]
            style = {"facecolor": colour, "edgecolor": "#2b3038", "linestyle": line}
            looks[lane] = _Look(letter, ink, {**style, "linewidth": 0.8 + 0.7 * turn})
    return looks


def _room(ax: Axes, looks: dict[str, _Look], kinds: Collection[tuple[bool, str]]) -> _Spot:
    """Measure axes in points, with a legend at their bottom; the room above it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(label=f"{look.letter}: {lane}".replace("$", r"\$"), **look.box)
        for lane, look in looks.items()
    ]
    handles += [
        Line2D([], [], color=_ARROW, lw=_ARROW_WIDTHS[wait], label=name) for wait, name in kinds
    ]
    figure = ax.figure.canvas.figure
    figure.draw_without_rendering()  # so that the axes have their size
    points = 72 / figure.dpi
    width, height = ax.get_window_extent().width * points, ax.get_window_extent().height * points
    how: dict[str, Any] = {"loc": "lower center", "fontsize": _SMALL, "frameon": False}
    if not handles:
        ax.set(xlim=(0, width), ylim=(height, 0))
        return width, height
    for columns in range(min(6, len(handles)), 0, -1):
        legend = ax.legend(handles=handles, ncols=columns, borderaxespad=0, **how)
        size = legend.get_window_extent()
        if size.width * points <= width:
            break
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    return width, height - min(size.height * points + 6, 0.75 * height)


def _draw_box(ax: Axes, middle: _Spot, size: _Spot, name: str, look: _Look) -> None:
    """Draw a box with its lane's letter, and the name beside it, or below it in a narrow box."""
    from matplotlib.patches import Rectangle

    (x, y), (width, height) = middle, size
    style = {**look.box, "linewidth": min(look.box["linewidth"], height / 8), "zorder": 3}
    box = ax.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, **style))
    lines = int(height / _LINE + 0.2)  # most names have no letters that reach below the others
    used = _LETTER * (1.5 + len(look.letter)) if look.letter else 0.0
    if lines > 2 and width < _NARROW:
        words = [(x, y - height / 3, look.letter, "bold")]
        words += [(x, y + height / 6, _label(name, width, lines - 1), "normal")]
    else:
        words = [(x - (width - used) / 2, y, look.letter, "bold")]
        words += [(x + max(0, used / 2 - 1), y, _label(name, width - used, lines), "normal")]
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


def _draw_arrow(ax: Axes, stops: Sequence[_Spot], grid: _Grid, port: float, wait: bool) -> None:
    """Draw an arrow that bends between layers, past places, and ends `port` beside a middle."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    flow, half = grid.flow, grid.box[grid.flow] / 2
    points, codes = [], []
    for i, (start, end) in enumerate(pairwise(stops)):
        leaves, enters = start[flow] + half, end[flow] - half
        aside, to = start[1 - flow], end[1 - flow] + port * (i == len(stops) - 2)
        bend = (leaves + enters) / 2
        points += [(leaves, aside), (bend, aside), (bend, to), (enters, to)]
        codes += [Curve.LINETO if i else Curve.MOVETO, *[Curve.CURVE4] * 3]
    arrow = FancyArrowPatch(
        path=Curve([point[:: -1 if flow else 1] for point in points], codes),
        arrowstyle="-|>" if wait else "->",
        mutation_scale=7 if wait else 5,
        linewidth=_ARROW_WIDTHS[wait],
        color=_ARROW,
        fill=wait,
        zorder=2 if wait else 1,
    )
    ax.add_patch(arrow)
