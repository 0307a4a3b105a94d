"""Plan plot: a graph's plan on matplotlib axes, as boxes in layers with arrows between them.

Like `plot`, it imports matplotlib when it is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from autopar.layers import Layout, Planned, arrows_of, layout
from autopar.shapes import COLOURS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.patches import FancyArrowPatch, Rectangle
    from matplotlib.text import Text

FIGURE_INCHES = 7.0  # the width of a text column, as of other figures
_SMALL = 7  # points, as in other figures

# Lanes of a plan. Neighbours differ in lightness too, and for readers who confuse red and green or
# blue and yellow; beyond these the outline and the letter tell lanes apart.
_LANE_COLOURS = {
    "compute": (COLOURS["compute"], "#f0dc6a", "#36a077", "#8c2f6b", "#9bd0ee"),
    "copy": (COLOURS["copy"], "#f6c795", "#8a4b12"),
}
_ARROW = COLOURS["host"]  # stands out on white and on black
_MOST_COLUMNS = 6  # of the legend
_INK = "#2b3038"  # of outlines
_POINTS = 72  # to an inch; lengths in the drawing of a plan are in points
_BOX = (100.0, 18.0)  # what a task's box takes where there is room, across and down
_NARROW = 50.0  # a box that is narrower is to be as high as this, if it can, for its name
_HIGH = 27.0
_COPY_SHARE = (0.86, 0.92)  # how much of all that a copy's box takes
_READABLE = 70.0  # across: if boxes were narrower, layers are drawn downwards if that helps
_GAP = 0.45  # from layer to layer across, in boxes; the curves of arrows need it
_DROP = 25.0  # the same downwards, in points
_ROWS = (27.0, 11.0)  # from box to box in a column: for up to 20, and at least
_MOST_INCHES = 13.0  # boxes get lower beyond it, and have no names
_EDGE = 2.5  # beside boxes, and beside words in them
_LINE = 7.9  # that a line of small text takes
_FEWEST_LETTERS = 3  # of a name that is shortened


def draw_plan(
    plan: Planned, ax: Axes | None, *, title: str, axes_of: Callable[[float], Axes]
) -> Axes:
    """Draw a plan, as `plot.graph` says.

    Args:
        plan: A graph's plan.
        ax: Where to draw, if there is such a place.
        title: What is drawn.
        axes_of: Makes axes of a height in inches, on a figure of `FIGURE_INCHES`.

    Raises:
        ValueError: The plan has no tasks.
    """
    boxes, arrows = _boxes(plan), arrows_of(plan)
    before: list[list[int]] = [[] for _ in boxes]
    for first, then in arrows:
        before[then].append(first)
    made = layout(before)
    looks = _looks({box.lane for box in boxes})
    if ax is None:
        drawn = _Frame(made, FIGURE_INCHES * _POINTS).height / _POINTS
        ax = axes_of(min(drawn, _MOST_INCHES) + 0.4 + 0.05 * len(looks) + 0.3 * bool(title))
    ax.set_axis_off()
    ax.set_title(title)
    frame = _Frame(made, *_room(ax, _lane_handles(looks, set(arrows.values()))))
    ax.set_xlim(0, frame.width)
    ax.set_ylim(frame.height + frame.beneath, 0)
    _draw_arrows(ax, frame, boxes, arrows)
    _draw_boxes(ax, frame, boxes, looks)
    return ax


class _Box(NamedTuple):
    """A task or a copy as it is drawn."""

    name: str
    lane: str
    is_copy: bool


class _Look(NamedTuple):
    """What the boxes of a lane have in common."""

    letter: str
    colour: str
    is_copy: bool
    outline: float  # in points

    @property
    def ink(self) -> str:
        """The colour of letters on the lane's own that is easier to read."""
        red, green, blue = (int(self.colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
        return "black" if light > 0.183 else "white"  # there both contrast by 4.6 to 1


class _Frame:
    """Where the parts of a plan's drawing are, in points from the upper left corner of the axes.

    Args:
        made: The plan's tasks in layers.
        width: Across.
        height: Down; as much as is good for it if not given.
        beneath: Below these, for the legend.
    """

    def __init__(
        self, made: Layout, width: float, height: float | None = None, beneath: float = 0.0
    ) -> None:
        self.made, self.width, self.beneath = made, width, beneath
        width -= 2 * _EDGE  # for the outlines
        depth = max(made.layers) + 1
        beside = min(_BOX[0], width / (depth + _GAP * (depth - 1)))
        below = min(_BOX[0], 0.88 * width / made.breadth)
        self.across = beside >= min(_READABLE, below)
        if self.across:
            few, least = _ROWS
            pitch = min(few, max(least, 20 * few / made.breadth))
            self.height = pitch * max(2.0, made.breadth) if height is None else height
            self.step = min(_BOX[0] * 1.8, (width - beside) / max(1, depth - 1))
            self.pitch = min(2.2 * _BOX[1], self.height / made.breadth)
            self.box = beside, min(_BOX[1], 0.78 * self.pitch)
        else:
            down = _BOX[1] if below >= _NARROW else _HIGH
            self.height = down + (depth - 1) * (down + _DROP) if height is None else height
            down = min(down, self.height / (1.6 * depth))
            self.step = min(3 * down, (self.height - down) / max(1, depth - 1))
            self.pitch = min(1.4 * _BOX[0], width / made.breadth)
            self.box = below, down
        along, aside = (self.width, self.height) if self.across else (self.height, self.width)
        self.start = (along - self.step * (depth - 1)) / 2
        self.side = (aside - self.pitch * made.breadth) / 2

    def size(self, box: _Box) -> tuple[float, float]:
        """What a box takes across and down."""
        across, down = _COPY_SHARE if box.is_copy else (1.0, 1.0)
        return self.box[0] * across, self.box[1] * down

    def at(self, along: float, place: float) -> tuple[float, float]:
        """A point, by its distance from the first layer and by its place across the layers."""
        along, aside = self.start + along, self.side + place * self.pitch
        return (along, aside) if self.across else (aside, along)

    def middle(self, number: int) -> tuple[float, float]:
        """The middle of a box."""
        return self.at(self.made.layers[number] * self.step, self.made.places[number])

    def way(
        self, arrow: tuple[int, int], boxes: Sequence[_Box], port: float
    ) -> list[tuple[float, float]]:
        """Points that an arrow passes: its start, two in each layer that it passes by, its end.

        Args:
            arrow: Numbers of the boxes from which and to which it goes.
            boxes: All of them.
            port: Where it ends on the box's side, from -0.5 to 0.5.
        """
        first, then = arrow
        layers, places = self.made.layers, self.made.places
        own, other = (0, 1) if self.across else (1, 0)
        leaves = layers[first] * self.step + self.size(boxes[first])[own] / 2
        ends = layers[then] * self.step - self.size(boxes[then])[own] / 2
        aside = 0.7 * port * self.size(boxes[then])[other] / self.pitch
        way = [(leaves, places[first])]
        for layer, place in enumerate(self.made.ways.get(arrow, ()), start=layers[first] + 1):
            way += [(layer * self.step + side * self.box[own] / 2, place) for side in (-1, 1)]
        way.append((ends, places[then] + aside))
        return [self.at(*point) for point in way]


def _boxes(plan: Planned) -> list[_Box]:
    made = plan.schedule
    if not made.entries:
        msg = "plan has no tasks; expected at least one. Add it first: graph.add(fn, x)."
        raise ValueError(msg)
    jobs = [made.jobs[entry.job] for entry in made.entries]
    return [
        _Box(" ".join(job.name.split()), entry.lane, _is_copy(job.resource))
        for job, entry in zip(jobs, made.entries, strict=True)
    ]


def _is_copy(resource: str) -> bool:
    # Devices have no blanks in their names; what copies between them is named by both.
    return " to " in resource or " from " in resource


def _looks(lanes: Collection[str]) -> dict[str, _Look]:
    """How each lane looks: those that compute first, each kind by name, with numbers as numbers."""

    def rank(lane: str) -> tuple[bool, list[tuple[str, int]]]:
        parts = re.findall(r"(\D*)(\d*)", lane)
        return _is_copy(lane), [(text, int(digits or -1)) for text, digits in parts]

    looks: dict[str, _Look] = {}
    used = {"compute": 0, "copy": 0}
    for number, lane in enumerate(sorted(lanes, key=rank)):
        kind = "copy" if _is_copy(lane) else "compute"
        turn, colour = divmod(used[kind], len(_LANE_COLOURS[kind]))
        used[kind] += 1
        colours = _LANE_COLOURS[kind]
        looks[lane] = _Look(_letters(number), colours[colour], kind == "copy", 0.8 + 0.7 * turn)
    return looks


def _letters(number: int) -> str:
    """A to Z, then AA and so on."""
    rest, last = divmod(number, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("A") + last)


def _lane_handles(looks: Mapping[str, _Look], waits: Collection[bool]) -> list[Artist]:
    """What the legend explains: lanes, and the two kinds of arrow."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [
        Patch(label=f"{look.letter}: {lane}", **_style(look)) for lane, look in looks.items()
    ]
    names = {True: "waits for another lane", False: "needs no wait"}
    handles += [
        Line2D([], [], color=_ARROW, linewidth=_arrow_width(wait), label=names[wait])
        for wait in sorted(waits, reverse=True)
    ]
    return handles


def _room(ax: Axes, handles: list[Artist]) -> tuple[float, float, float]:
    """Add a legend at the bottom of the axes, as wide as they are.

    Returns:
        Points across and down that are left for boxes, and points below these.
    """
    figure = ax.figure.canvas.figure
    figure.draw_without_rendering()  # so that the axes have their size
    whole, points = ax.get_window_extent(), _POINTS / figure.dpi
    for columns in range(min(_MOST_COLUMNS, len(handles)), 0, -1):
        legend = ax.legend(
            handles=handles,
            loc="lower center",
            fontsize=_SMALL,
            frameon=False,
            ncols=columns,
            borderaxespad=0,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
        size = legend.get_window_extent()
        if size.width <= whole.width:
            break
    beneath = min(size.height + 6 / points, 0.75 * whole.height)
    return whole.width * points, (whole.height - beneath) * points, beneath * points


def _style(look: _Look) -> dict[str, Any]:
    return {
        "facecolor": look.colour,
        "edgecolor": _INK,
        "linewidth": look.outline,
        "linestyle": (0, (3, 2)) if look.is_copy else "-",
    }


def _arrow_width(wait: bool) -> float:
    return 1.5 if wait else 0.6


def _draw_arrows(
    ax: Axes, frame: _Frame, boxes: Sequence[_Box], arrows: Mapping[tuple[int, int], bool]
) -> None:
    places, ways = frame.made.places, frame.made.ways
    ends: dict[int, list[tuple[int, int]]] = {}
    for arrow in arrows:
        ends.setdefault(arrow[1], []).append(arrow)
    for into in ends.values():
        # Side by side in the order in which they come, so that they don't cross at the end.
        into.sort(key=lambda arrow: (ways.get(arrow) or (places[arrow[0]],))[-1])
        for i, arrow in enumerate(into):
            way = frame.way(arrow, boxes, (i + 0.5) / len(into) - 0.5)
            ax.add_patch(_arrow(way, across=frame.across, wait=arrows[arrow]))


def _arrow(way: list[tuple[float, float]], *, across: bool, wait: bool) -> FancyArrowPatch:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    points, codes = [way[0]], [Curve.MOVETO]
    for i in range(0, len(way) - 1, 2):
        (x, y), (to_x, to_y) = way[i], way[i + 1]
        if i:  # straight past a layer, then a bend to the next
            points.append((x, y))
            codes.append(Curve.LINETO)
        half_x, half_y = (x + to_x) / 2, (y + to_y) / 2
        bend = [(half_x, y), (half_x, to_y)] if across else [(x, half_y), (to_x, half_y)]
        points += [*bend, (to_x, to_y)]
        codes += [Curve.CURVE4] * 3
    return FancyArrowPatch(
        path=Curve(points, codes),
        arrowstyle="-|>" if wait else "->",
        mutation_scale=7 if wait else 5,
        linewidth=_arrow_width(wait),
        color=_ARROW,
        fill=wait,
        zorder=2 if wait else 1,
    )


def _draw_boxes(ax: Axes, frame: _Frame, boxes: Sequence[_Box], looks: Mapping[str, _Look]) -> None:
    from matplotlib.patches import Rectangle

    for number, box in enumerate(boxes):
        look, (x, y), (width, height) = looks[box.lane], frame.middle(number), frame.size(box)
        style = {**_style(look), "linewidth": min(look.outline, height / 8)}
        patch = Rectangle((x - width / 2, y - height / 2), width, height, zorder=3, **style)
        ax.add_patch(patch)
        if height >= 0.8 * _LINE:  # it is for letters that reach below the others
            _write(ax, patch, box.name, look)


def _write(ax: Axes, patch: Rectangle, name: str, look: _Look) -> None:
    """Write a lane's letter and a task's name into a box: side by side, else one on the other."""
    left, top = patch.get_x() + _EDGE, patch.get_y()
    width, height = patch.get_width() - 2 * _EDGE, patch.get_height()
    lines = max(1, int(height / _LINE))
    how: dict[str, Any] = {"color": look.ink, "fontsize": _SMALL, "zorder": 4, "linespacing": 1.0}
    how |= {"parse_math": False, "clip_on": True, "va": "center_baseline"}
    letter = ax.text(left, top + height / 2, look.letter, weight="bold", **how)
    used = _wide(letter) + _EDGE
    text = ax.text(0, top + height / 2, name, ha="center", **how)
    if _wide(text) > width - used and lines > 2:
        letter.set_y(top + height / 6)
        used, top, height, lines = 0.0, top + height / 3, height * 2 / 3, lines - 1
    fits = _fit(text, width - used, lines)
    text.set_position((left + (used + width) / 2, top + height / 2))
    for each, keep in ((letter, _wide(letter) <= width), (text, fits)):
        each.set_clip_path(patch)  # should the figure get smaller later
        if not keep:
            each.remove()


def _fit(text: Text, width: float, lines: int) -> bool:
    """Break and shorten a text until it fits; whether it does."""
    name = text.get_text()
    if _wide(text) <= width:
        return True
    breaks = [match.end() for match in re.finditer(r"[^\w]+|_", name) if match.end() < len(name)]
    parts = [name]
    if lines > 1 and breaks:
        text.set_verticalalignment("center")
        middle = min(breaks, key=lambda place: abs(2 * place - len(name)))
        parts = [name[:middle].rstrip(), name[middle:]]
    short = []
    for part in parts:
        text.set_text(part)
        if not _shorten(text, width):
            return False
        short.append(text.get_text())
    text.set_text("\n".join(short))
    return True


def _shorten(text: Text, width: float) -> bool:
    """Take letters out of the middle, since names differ at their ends, until the rest fits."""
    name = text.get_text()
    kept = len(name)
    while _wide(text) > width:
        kept = min(kept - 1, int(kept * width / _wide(text)) + 1)
        if kept < _FEWEST_LETTERS:
            return False
        start = kept // 2
        text.set_text(name[:start].rstrip() + "\u2026" + name[len(name) - kept + start :].lstrip())
    return True


def _wide(text: Text) -> float:
    """How wide a text is, in points."""
    figure = text.get_figure()
    assert figure is not None
    return text.get_window_extent().width * _POINTS / figure.dpi
