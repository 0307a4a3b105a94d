"""Graph plot: a plan on matplotlib axes, as boxes in rows with arrows between them.

In layers a task's row is the longest way from a start, and rows are sorted by the mean of their
neighbours' places (Sugiyama, Tagawa and Toda, 1981). In columns each device has one, and a task
stands below all that it comes after. Matplotlib and networkx are imported with this, which `plot`
imports when it is called.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from string import ascii_uppercase
from typing import Any, Protocol, runtime_checkable

import networkx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.path import Path as Line

from autopar.display.format import by_number, printable
from autopar.display.rows import COLOURS
from autopar.refusal import check_type
from autopar.timeline.span import Timeline

# Colours of lanes that compute and of those that copy, and of words on them. Neighbours differ in
# lightness too, for readers who confuse red and green; beyond these the letters tell.
COMPUTE = {COLOURS["compute"]: "w", "#f0dc6a": "k", "#36a077": "k", "#8c2f6b": "w", "#9bd0ee": "k"}
COPY = {COLOURS["copy"]: "k", "#f6c795": "k", "#8a4b12": "w"}
_ARROW = COLOURS["host"]  # stands out on white and on black
_ON_GPU = re.compile(r"cuda:(\d+)\b")
_FEWEST = 4  # columns that there is room for: a box as wide as the figure would be a banner
_BOX = np.array([0.8, 0.66])  # of a cell, across and down
_CELL = 30.0  # points from box to box downwards
_MOST_HEIGHT = 936.0  # points; beyond, boxes are lower
_SMALL, _LINE, _LETTER = 7, 8.5, 4.3  # points: the font, its lines, and how wide most letters are
_FEWEST_LETTERS = 6  # of a name that is shortened
_PASSAGE = 0.4  # of a cell: how wide the place is where an arrow passes a layer
_SWEEPS = 25  # after fewer the order hardly changes any more; the last is downwards

Point = int | tuple[int, int]  # a task's number, or whose arrow passes which layer
Places = dict[Point, tuple[float, float]]  # in cells, across and down
Arrow = tuple[Sequence[Point], bool]  # what it touches; whether it is a wait


@runtime_checkable
class Planned(Protocol):
    """What has a schedule, as the plan of a task graph does."""

    @property
    def schedule(self) -> Any:
        """Jobs in the order in which they are issued, each on its lane, with its waits."""


def draw_graph(
    graph: networkx.DiGraph,
    axes_of: Callable[[float], Axes],
    *,
    columns: bool,
    hide: Collection[str],
) -> Axes:
    """Draw the graph of a plan, as `plot.graph` says, on axes for a height in points."""
    _remove(graph, hide)
    if not graph:
        but = " but those to hide" if hide else ""
        msg = f"plan has no tasks{but}; expected at least one. Add it first: graph.add(fn, x)."
        raise ValueError(msg)
    headers, places, arrows = (_in_columns if columns else _in_layers)(graph)
    wide, high = np.max([*places.values()], axis=0) + 0.5
    ax = axes_of(min(_CELL * (high + bool(headers)), _MOST_HEIGHT))
    margin = max(0.0, _FEWEST - wide) / 2
    ax.set(xlim=(-margin, wide + margin), ylim=(high, -0.8 * bool(headers)))
    ax.set_axis_off()
    for i, header in enumerate(headers):
        ax.text(i + 0.5, -0.4, header, ha="center", va="center", fontsize=_SMALL + 2)
    lanes = {lane for _, lane in graph.nodes(data="lane")}
    looks = _looks(lanes, lettered=not columns and len(lanes) > 1)
    _add_legend(ax, looks, {wait for _, wait in arrows}, columns)
    for points, wait in arrows:
        _add_arrow(ax, [np.array(places[point]) for point in points], wait, columns)
    ax.figure.canvas.figure.draw_without_rendering()  # so that the axes have their size
    cell = np.abs(ax.transData.transform((1, 1)) - ax.transData.transform((0, 0)))
    points = _BOX * cell * 72 / ax.figure.canvas.figure.dpi
    for task, job in graph.nodes.items():
        letter, ink, style = looks[job["lane"]]
        _add_box(ax, np.array(places[task]), points, letter + job["name"], ink, style)
    return ax


def graph_of(
    plan: Planned | Timeline, arrows: Mapping[str, float], names: Callable[[str], str]
) -> networkx.DiGraph:
    """The tasks by their number in the order of issue, with what comes after what.

    `wait` tells arrows to another lane from those that the order on the lanes implies. Those of a
    run, which has a timeline alone, are given by name, among the other values of a record.
    """
    if isinstance(plan, Timeline):
        tasks = [(names(span.name), span.lane) for span in plan.spans]
        number = {span.name: task for task, span in enumerate(plan.spans)}
        edges = [
            (number[before], number[task], bool(wait))
            for arrow, wait in arrows.items()
            for before, is_arrow, task in [arrow.partition(" -> ")]
            if is_arrow
        ]
    else:
        expected = "a plan. Pass graph.plan() of a graph, run.plan of a run."
        check_type("plan", plan, Planned, expected)
        jobs, entries = plan.schedule.jobs, plan.schedule.entries
        tasks = [(jobs[entry.job].name, entry.lane) for entry in entries]
        place = {entry.job: task for task, entry in enumerate(entries)}
        edges = [
            (place[before], task, before in entry.waits)
            for task, entry in enumerate(entries)
            for before in sorted({*jobs[entry.job].after, *entry.waits} & place.keys())
        ]
    graph = networkx.DiGraph()
    for task, (name, lane) in enumerate(tasks):
        graph.add_node(task, name=name, lane=lane)
    graph.add_weighted_edges_from(edges, weight="wait")
    return graph


def is_copy(lane: str) -> bool:
    """Whether a lane copies: devices have no blanks in their names, what is between them has."""
    return " to " in lane or " from " in lane


def _remove(graph: networkx.DiGraph, hide: Collection[str]) -> None:
    """Take out tasks: what comes after one comes after what that one came after."""
    for task, name in [*graph.nodes(data="name")]:
        if name in hide:
            for before, _, wait in [*graph.in_edges(task, data="wait")]:
                for _, after, late in [*graph.out_edges(task, data="wait")]:
                    known = graph.get_edge_data(before, after, {"wait": False})
                    graph.add_edge(before, after, wait=wait or late or known["wait"])
            graph.remove_node(task)


def _in_layers(graph: networkx.DiGraph) -> tuple[list[str], Places, list[Arrow]]:
    """Layers by the longest way from a start; arrows run beside the boxes of those they pass."""
    rows: list[list[Point]] = [*map(list, networkx.topological_generations(graph))]
    layer = {task: number for number, row in enumerate(rows) for task in row}
    arrows: list[Arrow] = []
    drawn = networkx.create_empty_copy(graph)
    for before, task, wait in graph.edges(data="wait"):
        # Arrows from one task share what they pass.
        passed = [(before, number) for number in range(layer[before] + 1, layer[task])]
        for point in passed:
            if point not in drawn:
                rows[point[1]].append(point)
        networkx.add_path(drawn, points := [before, *passed, task])
        arrows.append((points, wait))
    across = _sorted(drawn, rows)
    places = {point: (across[point], y + 0.5) for y, row in enumerate(rows) for point in row}
    return [], places, arrows


def _sorted(graph: networkx.DiGraph, rows: Sequence[list[Point]]) -> dict[Point, float]:
    """Places in rows near the mean of neighbours', in its order: from above and below by turns."""
    widths = {point: 1.0 if isinstance(point, int) else _PASSAGE for point in graph}
    places = {point: float(i) for row in rows for i, point in enumerate(row)}
    for sweep in range(_SWEEPS):
        neighbours = graph.succ if sweep % 2 else graph.pred
        for row in rows[::-1] if sweep % 2 else rows:
            near = {point: neighbours[point] or [point] for point in row}
            means = {point: fmean(places[other] for other in near[point]) for point in row}
            row.sort(key=means.__getitem__)
            taken = np.array([widths[point] for point in row])
            packed = taken.cumsum() - taken / 2  # where they are if all stand at one end
            shift = np.array([means[point] for point in row]) - packed
            ends = np.maximum.accumulate(shift), np.minimum.accumulate(shift[::-1])[::-1]
            places.update(zip(row, (packed + np.mean(ends, axis=0)).tolist(), strict=True))
    left = min(places[point] - widths[point] / 2 for point in graph)
    return {point: place - left for point, place in places.items()}


def _in_columns(graph: networkx.DiGraph) -> tuple[list[str], Places, list[Arrow]]:
    """A column for each device, and one for its copies, beside which the CPU stands."""
    lanes = dict(graph.nodes(data="lane"))
    gpus = {lane: int(on_gpu[1]) for lane in lanes.values() if (on_gpu := _ON_GPU.match(lane))}
    numbers = sorted({*gpus.values()})
    left = numbers[: (len(numbers) + 1) // 2]
    columns: dict[str, tuple[int, int, bool, str]] = {}  # what they are sorted by, and titles
    for lane in lanes.values():
        number, copies = gpus.get(lane, 0), is_copy(lane)
        side, title = (1, "CPU") if lane.split(" ")[0] == "cpu" else (3, lane)
        if lane in gpus:
            side, title = (0 if number in left else 2), f"GPU {number}{', copies' * copies}"
        columns[lane] = side, number, copies == (side == 0), title
    order = sorted({*columns.values()})
    following = [
        pair for lane in columns for pair in pairwise(task for task in graph if lanes[task] == lane)
    ]
    # Of the waits those that others imply are left out: they would hide what holds a task up.
    needed = networkx.transitive_reduction(networkx.DiGraph([*graph.edges, *following])).edges
    arrows: list[Arrow] = [(pair, True) for pair in needed if lanes[pair[0]] != lanes[pair[1]]]
    arrows += [(pair, False) for pair in following]
    rows, lowest = dict[int, int](), dict.fromkeys(order, -1)
    for task in graph:
        column = columns[lanes[task]]
        above = [lowest[column], *(rows[before] for before in graph.pred[task])]
        rows[task] = lowest[column] = 1 + max(above)
    columned = {task: order.index(columns[lane]) for task, lane in lanes.items()}
    places: Places = {task: (columned[task] + 0.5, row + 0.5) for task, row in rows.items()}
    return [title for *_, title in order], places, arrows


def _looks(lanes: Collection[str], *, lettered: bool) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Letter, ink and box of each lane: those that compute first, with numbers as numbers."""
    looks: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for copies, colours in ((False, [*COMPUTE.items()]), (True, [*COPY.items()])):
        alike = [lane for lane in sorted(lanes, key=by_number) if is_copy(lane) == copies]
        for i, lane in enumerate(alike):
            letter = ascii_uppercase[len(looks) % 26] * (len(looks) // 26 + 1)  # after Z: AA, BB
            colour, ink = colours[i % len(colours) * lettered]
            style = {"facecolor": colour, "edgecolor": "#2b3038", "ls": "--" if copies else "-"}
            looks[lane] = f"{letter}: " * lettered, ink, style
    return looks


def _add_legend(ax: Axes, looks: Mapping[str, Any], waits: Collection[bool], columns: bool) -> None:
    """Beneath the axes, what is drawn: lanes, and waits, or what the order on lanes implies."""
    handles: list[Any] = [
        Patch(label=f"{letter}{lane}".replace("$", r"\$"), **style)
        for lane, (letter, _, style) in looks.items()
        if not columns
    ]
    names = "is next on its lane" if columns else "on the same lane", "waits for another lane"
    for wait in sorted(waits, reverse=True):
        handles.append(Line2D([], [], color=_ARROW, lw=0.6 + 0.9 * wait, label=names[wait]))
    if handles:
        how: dict[str, Any] = {"loc": "upper center", "frameon": False, "fontsize": _SMALL}
        ax.legend(handles=handles, ncols=min(4, len(handles)), bbox_to_anchor=(0.5, 0), **how)


def _add_box(ax: Axes, place: Any, points: Any, name: str, ink: str, style: dict[str, Any]) -> None:
    """Add a task: a box, so many points wide and high, with as much of its name as there fits."""
    box = ax.add_patch(Rectangle(place - _BOX / 2, *_BOX, zorder=3, **style))
    letters, lines = (points / (_LETTER, _LINE)).astype(int)
    name, words = printable(name), ""
    if lines and letters >= min(_FEWEST_LETTERS, len(name)):
        words = textwrap.fill(name, letters, max_lines=min(2, lines), placeholder="\u2026")
    how: dict[str, Any] = {"fontsize": _SMALL, "color": ink, "ha": "center", "va": "center"}
    how |= {"parse_math": False, "clip_path": box, "clip_on": True, "linespacing": 1, "zorder": 4}
    ax.text(place[0], place[1], words, **how)


def _add_arrow(ax: Axes, stops: Sequence[Any], wait: bool, columns: bool) -> None:
    """Add an arrow from point to point, which leaves and enters boxes at their sides."""
    beside = columns and stops[0][0] != stops[-1][0]  # to another column
    ends = []
    for start, end in pairwise(stops):
        half = np.array([1, 0] if beside else [0, 1]) * np.sign(end - start) * _BOX / 2
        ends += [start + half, end - half]
    look: dict[str, Any] = {"arrowstyle": "-|>" if wait else "->", "color": _ARROW, "fill": wait}
    look |= {"mutation_scale": 7 if wait else 5, "linewidth": 0.6 + 0.9 * wait}
    ax.add_patch(FancyArrowPatch(path=Line(ends), zorder=2 if wait else 1, **look))
