"""Graph plot: a plan on matplotlib axes, as boxes in rows with arrows between them.

In layers a task's row is the longest way from a start, and rows are sorted by the mean of their
neighbours' places (Sugiyama, Tagawa and Toda, 1981). In columns each device has one, and a task
stands below all that it comes after. Matplotlib and networkx are imported when they are needed.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from autopar.display.lanes_plot import axes_of
from autopar.display.rows import COLOURS, by_number
from autopar.refusal import check_type
from autopar.timeline.span import Timeline

if TYPE_CHECKING:
    import networkx
    from matplotlib.axes import Axes

# Colours of lanes that compute and of those that copy, and of letters on them. Neighbours differ in
# lightness too, for readers who confuse red and green; beyond these the letters tell.
COMPUTE = {COLOURS["compute"]: "w", "#f0dc6a": "k", "#36a077": "k", "#8c2f6b": "w", "#9bd0ee": "k"}
COPY = {COLOURS["copy"]: "k", "#f6c795": "k", "#8a4b12": "w"}
_ARROW = COLOURS["host"]  # stands out on white and on black
_ON_GPU = re.compile(r"cuda:(\d+)\b")
_MOST_BESIDE = 8  # boxes whose names can be read; wider layers stand beside each other
_FEWEST = 4  # columns that there is room for: a box as wide as the figure would be a banner
_BOX, _BESIDE, _ACROSS_BOX = (0.88, 0.66), (0.74, 0.68), (0.62, 0.8)  # of a cell, across and down
_CELL = {False: 30.0, True: 15.0}  # points from box to box downwards; fewer where there are many
_MOST_HEIGHT = 936.0  # points; beyond, boxes are lower
_SMALL, _LINE, _LETTER = 7, 8.5, 4.3  # points: the font, its lines, and how wide most letters are
_ENTRY = 85  # points across that an entry of the legend takes, mostly
_FEWEST_LETTERS = 6  # of a name that is shortened
_PASSAGE = 0.4  # of a box: how wide the place is where an arrow passes a layer
_MOST_TASKS = 200  # arrows among more can't be followed anyway: they pass behind boxes
_SWEEPS = 24  # after fewer the order hardly changes any more

Point = int | tuple[int, int]  # a task's number, or whose arrow passes which layer


@runtime_checkable
class Planned(Protocol):
    """What has a schedule, as the plan of a task graph does."""

    @property
    def schedule(self) -> Any:
        """Jobs in the order in which they are issued, each on its lane, with its waits."""


class _Grid(NamedTuple):
    places: Mapping[Point, tuple[float, float]]  # in cells, across and down
    arrows: Sequence[tuple[Sequence[Point], bool]]  # what an arrow touches; whether it is a wait
    box: tuple[float, float]
    across: bool = False  # whether layers follow each other from left to right
    titles: Sequence[str] = ()  # of columns


def draw_plan(
    whole: networkx.DiGraph, ax: Axes | None, *, title: str, columns: bool, hide: Collection[str]
) -> Axes:
    """Draw the graph of a plan, as `plot.graph` says."""
    if not (graph := without(whole, hide)):
        but = " but those to hide" if hide else ""
        msg = f"plan has no tasks{but}; expected at least one. Add it first: graph.add(fn, x)."
        raise ValueError(msg)
    grid = (_in_columns if columns else _in_layers)(graph)
    wide, high = np.max([*grid.places.values()], axis=0) + 0.5
    if ax is None:
        points = (high + bool(grid.titles)) * _CELL[grid.across]
        (ax,) = axes_of([min(points, _MOST_HEIGHT) / 72], beside=0.8)
    margin = max(0.0, _FEWEST - wide) / 2
    ax.set(xlim=(-margin, wide + margin), ylim=(high, -0.8 * bool(grid.titles)))
    ax.set_axis_off()
    ax.set_title(title, parse_math=False)
    for i, column in enumerate(grid.titles):
        ax.text(i + 0.5, -0.4, column, ha="center", va="center", fontsize=_SMALL + 2)
    looks = _looks({lane for _, lane in graph.nodes(data="lane")}, lettered=not columns)
    implied = "is next on its lane" if columns else "needs no wait"
    _add_legend(ax, {} if columns else looks, {wait for _, wait in grid.arrows}, implied)
    for points, wait in grid.arrows:
        _draw_arrow(ax, [np.array(grid.places[point]) for point in points], wait, grid)
    figure = ax.figure.canvas.figure
    figure.draw_without_rendering()  # so that the axes have their size
    cell = np.abs(ax.transData.transform((1, 1)) - ax.transData.transform((0, 0)))
    for task, job in graph.nodes.items():
        points = np.array(grid.box) * cell * 72 / figure.dpi
        name = " ".join(job["name"].split())
        _draw_box(ax, grid.places[task], grid.box, points, name, *looks[job["lane"]])
    return ax


def is_copy(lane: str) -> bool:
    """Whether a lane copies: devices have no blanks in their names, what is between them has."""
    return " to " in lane or " from " in lane


def graph_of(plan: Planned) -> networkx.DiGraph:
    """The tasks by their number in the order of issue, with what comes after what.

    `wait` tells arrows to another lane from those that the order on the lanes implies.
    """
    import networkx

    check_type("plan", plan, Planned, "a plan. Pass graph.plan() of a graph, run.plan of a run.")
    schedule, graph = plan.schedule, networkx.DiGraph()
    number = {entry.job: place for place, entry in enumerate(schedule.entries)}
    for task, entry in enumerate(schedule.entries):
        job = schedule.jobs[entry.job]
        graph.add_node(task, name=job.name, lane=entry.lane)
        for before in sorted({*job.after, *entry.waits} & number.keys()):
            graph.add_edge(number[before], task, wait=before in entry.waits)
    return graph


def graph_of_run(
    timeline: Timeline, arrows: Mapping[str, float], names: Callable[[str], str]
) -> networkx.DiGraph:
    """The same of a plan's run, from its timeline and the plan's arrows."""
    import networkx

    number, graph = {span.name: n for n, span in enumerate(timeline.spans)}, networkx.DiGraph()
    for task, span in enumerate(timeline.spans):
        graph.add_node(task, name=names(span.name), lane=span.lane)
    for arrow, wait in arrows.items():
        before, is_arrow, then = arrow.partition(" -> ")
        if is_arrow:  # a record has other values, too
            graph.add_edge(number[before], number[then], wait=bool(wait))
    return graph


def without(graph: networkx.DiGraph, hide: Collection[str]) -> networkx.DiGraph:
    """A graph without some tasks: what comes after one comes after what that one came after."""
    for task, name in [*graph.nodes(data="name")]:
        if name in hide:
            for before, _, wait in [*graph.in_edges(task, data="wait")]:
                for _, after, late in [*graph.out_edges(task, data="wait")]:
                    there = graph.get_edge_data(before, after, {"wait": False})
                    graph.add_edge(before, after, wait=wait or late or there["wait"])
            graph.remove_node(task)
    return graph


def _in_layers(graph: networkx.DiGraph) -> _Grid:
    """Layers by the longest way from a start; arrows run beside the boxes of those they pass."""
    import networkx

    rows: list[list[Point]] = [*map(list, networkx.topological_generations(graph))]
    layer = {task: number for number, row in enumerate(rows) for task in row}
    arrows, drawn = [], networkx.DiGraph()
    drawn.add_nodes_from(graph)
    for a, b, wait in graph.edges(data="wait"):
        passed = range(layer[a] + 1, layer[b]) if len(graph) <= _MOST_TASKS else ()
        for number in passed:
            if (a, number) not in drawn:  # arrows from one task share what they pass
                rows[number].append((a, number))
        points = [a, *((a, number) for number in passed), b]
        networkx.add_path(drawn, points)
        arrows.append((points, wait))
    places = _sorted(drawn, rows)
    across = max(map(len, rows)) > max(_MOST_BESIDE, len(rows))
    spots = {
        point: (number + 0.5, places[point]) if across else (places[point], number + 0.5)
        for number, row in enumerate(rows)
        for point in row
    }
    return _Grid(spots, arrows, _ACROSS_BOX if across else _BOX, across)


def _sorted(graph: networkx.DiGraph, rows: Sequence[list[Point]]) -> dict[Point, float]:
    """Places in rows near the mean of neighbours', in its order: from above and below by turns."""
    wide = {point: 1.0 if isinstance(point, int) else _PASSAGE for point in graph}
    breadth = max(sum(wide[point] for point in row) for row in rows)
    places = {point: (i + 0.5) / len(row) * breadth for row in rows for i, point in enumerate(row)}
    for sweep in range(_SWEEPS):
        up = sweep % 2 and sweep < _SWEEPS - 4  # the last times downwards: so chains are straight
        first, then = (graph.succ, graph.pred) if up else (graph.pred, graph.succ)
        for row in rows[::-1] if up else rows:
            near = {point: first[point] or then[point] or [point] for point in row}
            means = {point: fmean(map(places.__getitem__, near[point])) for point in row}
            row.sort(key=means.__getitem__)
            taken = np.array([wide[point] for point in row])
            packed = taken.cumsum() - taken / 2  # where they are if all stand at one end
            shift = np.array([*map(means.__getitem__, row)]) - packed
            ends = np.maximum.accumulate(shift), np.minimum.accumulate(shift[::-1])[::-1]
            packed += np.clip(np.mean(ends, axis=0), 0, breadth - taken.sum())
            places.update(zip(row, packed.tolist(), strict=True))
    return places


def _in_columns(graph: networkx.DiGraph) -> _Grid:
    """A column for each device, and one for its copies, beside which the CPU stands."""
    import networkx

    lanes = dict(graph.nodes(data="lane"))
    gpus = {lane: int(found[1]) for lane in lanes.values() if (found := _ON_GPU.match(lane))}
    left = sorted(set(gpus.values()))[: (len(set(gpus.values())) + 1) // 2]
    places: dict[str, tuple[int, int, bool, str]] = {}
    for lane in lanes.values():
        number, copies = gpus.get(lane, 0), is_copy(lane)
        side, title = (1, "CPU") if lane.split(" ")[0] == "cpu" else (3, lane)
        if lane in gpus:
            side, title = (0 if number in left else 2), f"GPU {number}{', copies' * copies}"
        places[lane] = side, number, copies == (side == 0), title
    columns = sorted({*places.values()})
    following = [
        pair for lane in places for pair in pairwise(task for task in graph if lanes[task] == lane)
    ]
    # Of the waits those that others imply are left out: they would hide what holds a task up.
    needed = networkx.transitive_reduction(networkx.DiGraph([*graph.edges, *following])).edges
    waits = [pair for pair in needed if lanes[pair[0]] != lanes[pair[1]]]
    rows, lowest = dict[int, int](), dict.fromkeys(columns, -1)
    for task in graph:
        column = places[lanes[task]]
        above = [lowest[column], *(rows[before] for before in graph.pred[task])]
        rows[task] = lowest[column] = 1 + max(above)
    spots: dict[Point, tuple[float, float]] = {
        t: (columns.index(places[lanes[t]]) + 0.5, row + 0.5) for t, row in rows.items()
    }
    arrows = [*((pair, True) for pair in waits), *((pair, False) for pair in following)]
    return _Grid(spots, arrows, _BESIDE, titles=[title for *_, title in columns])


def _looks(lanes: Collection[str], *, lettered: bool) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Letter, ink and box of each lane: those that compute first, with numbers as numbers."""
    looks: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for copies, colours in ((False, [*COMPUTE.items()]), (True, [*COPY.items()])):
        alike = [lane for lane in sorted(lanes, key=by_number) if is_copy(lane) == copies]
        for i, lane in enumerate(alike):
            letter = ascii_uppercase[len(looks) % 26] * (len(looks) // 26 + 1)  # after Z: AA, BB
            turn, place = divmod(i, len(colours)) if lettered else (0, 0)
            colour, ink = colours[place]
            style = {"facecolor": colour, "edgecolor": "#2b3038", "linewidth": 0.8 + 0.7 * turn}
            style["linestyle"] = (0, (3, 2)) if copies else "-"
            looks[lane] = letter * lettered, ink, style
    return looks


def _add_legend(ax: Axes, looks: Mapping[str, Any], waits: Collection[bool], implied: str) -> None:
    """Beneath the axes, what is drawn: lanes, and waits, or what the order on lanes implies."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(label=f"{letter}: {lane}".replace("$", r"\$"), **style)
        for lane, (letter, _, style) in looks.items()
    ]
    for wait, name in ((True, "waits for another lane"), (False, implied)):
        if wait in waits:
            handles.append(Line2D([], [], color=_ARROW, lw=0.6 + 0.9 * wait, label=name))
    if handles:
        how: dict[str, Any] = {"loc": "upper center", "frameon": False, "fontsize": _SMALL}
        fit = int(ax.get_window_extent().width * 72 / ax.figure.canvas.figure.dpi / _ENTRY)
        columns = max(1, min(fit, len(handles)))
        ax.legend(handles=handles, ncols=columns, bbox_to_anchor=(0.5, 0), **how)


def _draw_box(
    ax: Axes,
    place: tuple[float, float],
    box: tuple[float, float],  # in cells
    points: Any,
    name: str,
    letter: str,
    ink: str,
    style: dict[str, Any],
) -> None:
    """Draw a task: a box with the letter of its lane at the left, and its name, where they fit."""
    from matplotlib.patches import Rectangle

    (x, y), (width, height) = place, box
    style = {**style, "linewidth": min(style["linewidth"], points[1] / 8), "zorder": 3}
    patch = ax.add_patch(Rectangle((x - width / 2, y - height / 2), *box, **style))
    used = _LETTER * (len(letter) + 1) * bool(letter)
    room = width * used / points[0]  # of the letter, in cells
    words = _label(name, int((points[0] - used) / _LETTER), int(points[1] / _LINE))
    how: dict[str, Any] = {"fontsize": _SMALL, "color": ink, "ha": "center", "va": "center"}
    how |= {"parse_math": False, "clip_path": patch, "clip_on": True, "linespacing": 1, "zorder": 4}
    if points[1] >= _LINE and used <= points[0]:
        if letter:
            ax.text(x - width / 2 + room / 2, y, letter, weight="bold", **how)
        if words:
            ax.text(x + room / 2, y, words, **how)


def _label(name: str, letters: int, lines: int) -> str:
    """A name in lines; if it is long, without its middle, as names differ at their ends."""
    if letters < min(_FEWEST_LETTERS, len(name)) or not lines:
        return ""
    wrapped = textwrap.wrap(name, letters)
    if len(wrapped) > (lines := min(2, lines)):
        half = letters * lines // 2
        name = f"{name[: half - 1]}\u2026{name[-half:]}"
        wrapped = [name[i : i + letters].strip() for i in range(0, len(name), letters)]
    return "\n".join(wrapped)


def _draw_arrow(ax: Axes, stops: Sequence[Any], wait: bool, grid: _Grid) -> None:
    """Draw an arrow of curves from point to point, which leave and enter boxes at their sides."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    beside = bool(grid.titles) and stops[0][0] != stops[-1][0]  # to another column
    along = np.array([1, 0] if grid.across or beside else [0, 1])
    curves = []
    for start, end in pairwise(stops):
        half = along * np.sign(end - start) * grid.box / 2
        leaves, enters = start + half, end - half
        middle = (leaves + enters) / 2
        bends = np.where(along, middle, leaves), np.where(along, middle, enters)
        curves += [leaves, *bends, enters]
    codes = [Curve.LINETO, *[Curve.CURVE4] * 3] * (len(curves) // 4)
    arrow = FancyArrowPatch(
        path=Curve(curves, [Curve.MOVETO, *codes[1:]]),
        arrowstyle="-|>" if wait else "->",
        mutation_scale=7 if wait else 5,
        linewidth=0.6 + 0.9 * wait,
        color=_ARROW,
        fill=wait,
        zorder=2 if wait else 1,
    )
    ax.add_patch(arrow)
