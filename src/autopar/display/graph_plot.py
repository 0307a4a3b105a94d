"""Graph plot: a graph's plan on matplotlib axes, as boxes in layers with arrows between them.

Like `plot`, it imports what it draws with when it is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from autopar.display.graph_layout import Arrow, laid_out
from autopar.display.shapes import COLOURS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle
    from matplotlib.text import Text

# Lanes of a plan, and letters on them. Neighbours differ in lightness too, and for readers who
# confuse red and green or blue and yellow; beyond these the outline and the letter tell them apart.
_LANE_COLOURS = {
    "compute": {
        COLOURS["compute"]: "white",
        "#f0dc6a": "black",
        "#36a077": "black",
        "#8c2f6b": "white",
        "#9bd0ee": "black",
    },
    "copy": {COLOURS["copy"]: "black", "#f6c795": "black", "#8a4b12": "white"},
}
_ARROW = COLOURS["host"]  # stands out on white and on black
_ARROW_WIDTHS = {True: 1.5, False: 0.6}  # of waits for another lane, and of what needs none
_POINTS = 72  # to an inch; lengths in the drawing of a plan are in points
_WIDTH, _MOST_HEIGHT = 7.0 * _POINTS, 13.0 * _POINTS  # of a column of text; beyond, boxes are lower
_BOX = (100.0, 18.0)  # what a task's box takes where there is room, across and down
_COPY_SHARE = (0.86, 0.92)  # how much of that a copy's box takes
_NARROW, _HIGH = 50.0, 27.0  # a box that is narrower is as high as this, if it can, for its name
_READABLE = 70.0  # across: if boxes were narrower, layers are drawn downwards if that helps
_GAP, _DROP = 0.45, 25.0  # between layers for arrows' curves: across in boxes, down in points
_ROWS = (27.0, 11.0)  # from box to box in a column: for up to 20, and at least
_SMALL, _LINE = 7, 7.9  # points: text as small as in other figures, and what a line of it takes
_EDGE = 2.5  # beside boxes, and beside words in them
_FEWEST_LETTERS = 3  # of a name that is shortened

_Spot = tuple[float, float]


class Planned(Protocol):
    """What has a schedule, as the plan of a task graph does."""

    @property
    def schedule(self) -> Any:
        """Jobs in the order in which they are issued, each on its lane, with its waits."""


def draw_plan(
    plan: Planned, ax: Axes | None, *, title: str, axes_of: Callable[[float], Axes]
) -> Axes:
    """Draw a plan, as `plot.graph` says.

    Args:
        plan: A graph's plan.
        ax: Where to draw, if there is such a place.
        title: What is drawn.
        axes_of: Makes axes of a height in inches, on a figure as wide as a column of text.

    Raises:
        ValueError: The plan has no tasks.
    """
    from matplotlib.patches import Rectangle

    schedule, arrows = plan.schedule, arrows_of(plan)
    if not schedule.entries:
        msg = "plan has no tasks; expected at least one. Add it first: graph.add(fn, x)."
        raise ValueError(msg)
    looks = _looks({entry.lane for entry in schedule.entries})
    rows, places, breadth, ways = laid_out(len(schedule.entries), arrows)
    if ax is None:
        height = min(_Frame(len(rows), breadth, _WIDTH).sides[1], _MOST_HEIGHT)
        ax = axes_of(height / _POINTS + 0.4 + 0.05 * len(looks) + 0.3 * bool(title))
    ax.set_axis_off()
    ax.set_title(title)
    width, height, beneath = _room(ax, looks, set(arrows.values()))
    ax.set_xlim(0, width)
    ax.set_ylim(height + beneath, 0)
    frame = _Frame(len(rows), breadth, width, height)
    spots = {p: frame.spot(layer, places[p]) for layer, row in enumerate(rows) for p in row}
    sizes = dict.fromkeys(spots, frame.box)
    for number, entry in enumerate(schedule.entries):
        job, look = schedule.jobs[entry.job], looks[entry.lane]
        (x, y), (wide, high) = spots[number], frame.box
        if _is_copy(job.resource):
            sizes[number] = wide, high = wide * _COPY_SHARE[0], high * _COPY_SHARE[1]
        style = {**look.style, "linewidth": min(look.style["linewidth"], high / 8)}
        box = Rectangle((x - wide / 2, y - high / 2), wide, high, zorder=3, **style)
        ax.add_patch(box)
        if high >= 0.8 * _LINE:  # it is for letters that reach below the others
            _write(ax, box, " ".join(job.name.split()), look)
    # Side by side in the order in which they come, so that they don't cross at the end.
    came = sorted(arrows, key=lambda arrow: (arrow[1], spots[ways[arrow][-2]][1 - frame.flow]))
    for then, group in groupby(came, key=lambda arrow: arrow[1]):
        into = list(group)
        for i, arrow in enumerate(into):
            port = 0.7 * ((i + 0.5) / len(into) - 0.5) * sizes[then][1 - frame.flow]
            stops = [(spots[point], sizes[point][frame.flow] / 2) for point in ways[arrow]]
            _draw_arrow(ax, stops, frame.flow, port, wait=arrows[arrow])
    return ax


def arrows_of(plan: Planned) -> dict[Arrow, bool]:
    """What comes after what, as (before, after) -> whether it is a wait for another lane.

    What is no wait is implied by waits and by the order on the lanes. Numbers are places in the
    order of issue.
    """
    schedule = plan.schedule
    place_of = {entry.job: place for place, entry in enumerate(schedule.entries)}
    arrows = {}
    for place, entry in enumerate(schedule.entries):
        for job in {*schedule.jobs[entry.job].after, *entry.waits} & place_of.keys():
            arrows[place_of[job], place] = job in entry.waits
    return dict(sorted(arrows.items()))


class _Frame:
    """Where boxes are, in points from the upper left corner of the axes, and how large.

    Layers are `depth` many and up to `breadth` boxes broad. Without a height it takes a good one.
    """

    def __init__(
        self, depth: int, breadth: float, width: float, height: float | None = None
    ) -> None:
        beside = min(_BOX[0], (width - 2 * _EDGE) / (depth + _GAP * (depth - 1)))
        below = min(_BOX[0], 0.88 * (width - 2 * _EDGE) / breadth)
        self.flow = int(beside < min(_READABLE, below))  # the axis from layer to layer
        high = _HIGH if self.flow and below < _NARROW else _BOX[1]
        few, least = _ROWS
        row = min(few, max(least, 20 * few / breadth))
        drawn = high + (depth - 1) * (high + _DROP) if self.flow else row * max(2.0, breadth)
        self.sides = width, drawn if height is None else height
        rows = 1.6 * depth if self.flow else breadth / 0.78  # that fit below each other
        self.box = below if self.flow else beside, min(high, self.sides[1] / rows)
        along, aside = self.sides[:: -1 if self.flow else 1]
        step, pitch = (3 * high, 1.4 * _BOX[0]) if self.flow else (1.8 * _BOX[0], 2.2 * high)
        self.step = min(step, (along - 2 * _EDGE - self.box[self.flow]) / max(1, depth - 1))
        self.pitch = min(pitch, aside / breadth)
        self.start = (along - self.step * (depth - 1)) / 2, (aside - self.pitch * breadth) / 2

    def spot(self, layer: int, place: float) -> _Spot:
        """The middle of a box, or of where an arrow passes."""
        along, aside = self.start[0] + layer * self.step, self.start[1] + place * self.pitch
        return (aside, along) if self.flow else (along, aside)


class _Look(NamedTuple):
    """What the boxes of a lane have in common: its letter, the colour of letters, and the box."""

    letter: str
    ink: str
    style: dict[str, Any]


def _is_copy(resource: str) -> bool:
    # Devices have no blanks in their names; what copies between them is named by both.
    return " to " in resource or " from " in resource


def _looks(lanes: Collection[str]) -> dict[str, _Look]:
    """How each lane looks: those that compute first, each kind by name, with numbers as numbers."""

    def rank(lane: str) -> list[tuple[str, int]]:
        return [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", lane)]

    looks: dict[str, _Look] = {}
    for kind, colours in _LANE_COLOURS.items():
        alike = [lane for lane in sorted(lanes, key=rank) if _is_copy(lane) == (kind == "copy")]
        for number, lane in enumerate(alike):
            turn, place = divmod(number, len(colours))
            letter = ascii_uppercase[len(looks) % 26] * (len(looks) // 26 + 1)  # after Z: AA, BB
            colour, ink = list(colours.items())[place]
            dashes = (0, (3, 2)) if kind == "copy" else "-"
            style = {"facecolor": colour, "edgecolor": "#2b3038", "linestyle": dashes}
            looks[lane] = _Look(letter, ink, {**style, "linewidth": 0.8 + 0.7 * turn})
    return looks


def _room(
    ax: Axes, looks: Mapping[str, _Look], waits: Collection[bool]
) -> tuple[float, float, float]:
    """Add a legend at the bottom of the axes; what it leaves across and down, and what it takes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [
        Patch(label=f"{look.letter}: {lane}", **look.style) for lane, look in looks.items()
    ]
    for wait, name in ((True, "waits for another lane"), (False, "needs no wait")):
        if wait in waits:
            handles.append(Line2D([], [], color=_ARROW, lw=_ARROW_WIDTHS[wait], label=name))
    figure = ax.figure.canvas.figure
    figure.draw_without_rendering()  # so that the axes have their size
    whole, points = ax.get_window_extent(), _POINTS / figure.dpi
    how: dict[str, Any] = {"loc": "lower center", "fontsize": _SMALL, "frameon": False}
    for columns in range(min(6, len(handles)), 0, -1):
        legend = ax.legend(handles=handles, ncols=columns, borderaxespad=0, **how)
        for text in legend.get_texts():
            text.set_parse_math(False)
        size = legend.get_window_extent()
        if size.width <= whole.width:
            break
    beneath = min(size.height + 6 / points, 0.75 * whole.height)
    return whole.width * points, (whole.height - beneath) * points, beneath * points


def _draw_arrow(
    ax: Axes, stops: Sequence[tuple[_Spot, float]], flow: int, port: float, *, wait: bool
) -> None:
    """Draw an arrow past the middles of boxes and passages, each half as long as is told.

    It bends between layers, runs straight past one, and ends `port` beside the last one's middle.
    """
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    points, codes = [], []
    for i, ((start, half), (end, end_half)) in enumerate(pairwise(stops)):
        leaves, enters = start[flow] + half, end[flow] - end_half
        aside, to = start[1 - flow], end[1 - flow] + port * (i == len(stops) - 2)
        middle = (leaves + enters) / 2
        points += [(leaves, aside), (middle, aside), (middle, to), (enters, to)]
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


def _write(ax: Axes, box: Rectangle, name: str, look: _Look) -> None:
    """Write a lane's letter and a task's name into a box: side by side, else one on the other."""
    left, top = box.get_x() + _EDGE, box.get_y()
    width, height = box.get_width() - 2 * _EDGE, box.get_height()
    lines = int(height / _LINE)
    how: dict[str, Any] = {"color": look.ink, "fontsize": _SMALL, "zorder": 4, "linespacing": 1.0}
    how |= {"parse_math": False, "clip_on": True, "va": "center_baseline"}
    letter = ax.text(left, top + height / 2, look.letter, weight="bold", **how)
    text = ax.text(0, 0, name, ha="center", **how)
    used = _wide(letter) + _EDGE
    if _wide(text) > width - used and lines > 2:
        letter.set_y(top + height / 6)
        used, top, height, lines = 0.0, top + height / 3, height * 2 / 3, lines - 1
    text.set_position((left + (used + width) / 2, top + height / 2))
    fits = _fit(text, width - used, lines)
    for words, keep in ((letter, _wide(letter) <= width), (text, fits)):
        words.set_clip_path(box)  # should the figure get smaller later
        if not keep:
            words.remove()


def _fit(text: Text, width: float, lines: int) -> bool:
    """Break a text and shorten its parts until they fit; whether they do."""
    name = text.get_text()
    parts = [name]
    breaks = [match.end() for match in re.finditer(r"[^\w]+|_", name) if match.end() < len(name)]
    if _wide(text) > width and lines > 1 and breaks:
        middle = min(breaks, key=lambda place: abs(2 * place - len(name)))
        parts = [name[:middle].rstrip(), name[middle:]]
        text.set_verticalalignment("center")
    short = []
    for part in parts:
        for form in _forms(part, int(width)):  # no letter is narrower than a point
            text.set_text(form)
            if _wide(text) <= width:
                short.append(form)
                break
    text.set_text("\n".join(short))
    return len(short) == len(parts)


def _forms(name: str, most: int) -> Iterator[str]:
    """A name, then with ever more letters out of its middle, since names differ at their ends."""
    yield name
    for kept in range(min(len(name) - 1, most), _FEWEST_LETTERS - 1, -1):
        start = kept // 2
        yield name[:start].rstrip() + "\u2026" + name[len(name) - kept + start :].lstrip()


def _wide(text: Text) -> float:
    """How wide a text is, in points."""
    figure = text.get_figure()
    assert figure is not None
    return text.get_window_extent().width * _POINTS / figure.dpi
