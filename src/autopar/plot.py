"""Plot: timelines, measurements and plans on matplotlib axes, for figures, thumbnails and papers.

Only the functions here import matplotlib, when they are called; styles are left as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autopar.display import RICH
from autopar.layers import Layout, Planned, arrows_of, layout
from autopar.limit import Limit, check_limit, limits_of
from autopar.measurement import Measurement, format_seconds
from autopar.origin import origins_of, short_names
from autopar.shapes import COLOURS
from autopar.span import Timeline
from autopar.table import Measurements, distinct
from autopar.unit import unit_of
from autopar.words import on_lane

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.patches import FancyArrowPatch, Rectangle
    from matplotlib.text import Text

_HEIGHTS = {"compute": 0.8, "copy": 0.55, "host": 0.3}  # kinds differ in more than their colour
_FIGURE_INCHES = 7.0  # the width of a text column; saved at twice the dots for sharp screens
_SMALL = 7  # points, for what must be on the figure but is not what it shows
_TITLE_PAD = 12  # points, so that the limit's label fits beneath a title
# Backends that only write files; all others have a window or a page to show figures in.
_FILE_BACKENDS = {"agg", "cairo", "pdf", "pgf", "ps", "svg", "template"}

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


def timeline(
    timeline: Timeline, ax: Axes | None = None, *, limit_s: float | None = None, title: str = ""
) -> Axes:
    """Draw what ran when: a row for each lane, from the start of the first span on.

    Args:
        timeline: The spans of one run.
        ax: Where to draw; without it a figure is made.
        limit_s: The least time possible in seconds, drawn as a dashed line.
        title: What is drawn, in a few words.

    Returns:
        The axes; `ax.figure.savefig` writes them to a file.

    Raises:
        ValueError: The timeline has no spans, or the limit is not a time.
    """
    whole_s = max(timeline.makespan_s, check_limit(limit_s) if limit_s is not None else 0.0)
    ax = _axes(0.9 + 0.4 * len(timeline.lanes)) if ax is None else ax
    _draw_lanes(timeline, ax, limit_s, whole_s)
    ax.set_title(title, pad=_TITLE_PAD)
    _finish(ax, unit_of(whole_s)[0], origins_of([timeline]))
    return ax


def timelines(
    named: Mapping[str, Timeline], *, limit_s: float | None = None, title: str = ""
) -> list[Axes]:
    """Draw timelines under one another in one figure, on one time scale.

    Args:
        named: Name -> timeline, for a panel each.
        limit_s: The least time possible in seconds, drawn as a dashed line in each.
        title: What the figure shows, in a few words.

    Returns:
        The axes of the panels, from the top.

    Raises:
        ValueError: There are no timelines, one has no spans, or the limit is not a time.
    """
    import matplotlib.pyplot as plt

    if not named:
        msg = "named is empty; expected name -> timeline for each panel. Record some work first."
        raise ValueError(msg)
    limits = [] if limit_s is None else [check_limit(limit_s)]
    whole_s = max([one.makespan_s for one in named.values()] + limits)
    rows = [1 + len(one.lanes) for one in named.values()]
    figure, grid = plt.subplots(
        len(named),
        sharex=True,
        squeeze=False,
        layout="constrained",
        figsize=(_FIGURE_INCHES, 0.9 + 0.4 * sum(rows)),
        height_ratios=rows,
    )
    panels: list[Axes] = list(grid[:, 0])
    for ax, (name, one) in zip(panels, named.items(), strict=True):
        _draw_lanes(one, ax, limit_s, whole_s)
        heading = f"{name}: {format_seconds(one.makespan_s)}"
        ax.set_title(heading, loc="left", fontsize="medium", pad=_TITLE_PAD)
    if title:
        figure.suptitle(title)
    _finish(panels[-1], unit_of(whole_s)[0], origins_of(named.values()))
    return panels


def bars(
    measurements: Measurements, ax: Axes | None = None, *, limit_s: Limit = None, title: str = ""
) -> Axes:
    """Draw medians as bars, every raw sample as a dot, and limits as marks across the bars.

    Args:
        measurements: Measurements, or a mapping whose values they are.
        ax: Where to draw; without it a figure is made.
        limit_s: The least time possible in seconds: one for every bar, or label -> seconds.
        title: What is drawn, in a few words.

    Raises:
        ValueError: As `compare` does, for the same reasons.
    """
    chosen = distinct(measurements)
    limits = limits_of([one.label for one in chosen], limit_s)
    unit, scale_s = unit_of(max(one.median_s for one in chosen))
    ax = _axes(1.1 + 0.45 * len(chosen)) if ax is None else ax
    for y, (one, limit) in enumerate(zip(chosen, limits, strict=True)):
        ax.barh(y, one.median_s / scale_s, height=0.6, color=COLOURS["compute"])
        _dots(ax, y, one, scale_s)
        if limit is not None:
            # One entry in the legend is enough; matplotlib leaves out names with an underscore.
            label = "limit" if limits.index(limit) == y else "_limit"
            ax.vlines(limit / scale_s, y - 0.42, y + 0.42, color="black", lw=2, label=label)
        right = max(one.max_s, limit or 0.0) / scale_s
        star = "*" if one.warning else ""
        ax.annotate(
            f"{format_seconds(one.median_s)}{star}",
            (right, y),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
        )
    ax.set_yticks(range(len(chosen)), _names(chosen))
    ax.invert_yaxis()
    longest_s = max([one.max_s for one in chosen] + [limit for limit in limits if limit])
    ax.set_xlim(0, 1.2 * longest_s / scale_s)  # room for the figures beside the bars
    ax.set_title(title)
    if any(limits):
        ax.legend(loc="best", fontsize="small")
    noisy = ["* noisy: look at the dots"] if any(one.warning for one in chosen) else []
    _finish(ax, unit, [*origins_of(chosen), *noisy])
    return ax


def graph(plan: Planned, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the tasks of a plan as boxes in the colours of their lanes, and what they wait for.

    A box has the letter of its lane and the task's name; copies have smaller ones with dashed
    outlines. A thick arrow is a wait for another lane, a thin one needs none: the order on the
    lanes implies it. Tasks are in layers by the longest way from a start, from left to right where
    there are few, else downwards. Long names are shortened, and left out where boxes are too small.

    Args:
        plan: A graph's plan, as in `graph.plan()` or `run.plan`.
        ax: Where to draw; without it a figure is made. It should have its size by then.
        title: What is drawn, in a few words.

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
        drawn = _Frame(made, _FIGURE_INCHES * _POINTS).height / _POINTS
        ax = _axes(min(drawn, _MOST_INCHES) + 0.4 + 0.05 * len(looks) + 0.3 * bool(title))
    ax.set_axis_off()
    ax.set_title(title)
    frame = _Frame(made, *_room(ax, _lane_handles(looks, set(arrows.values()))))
    ax.set_xlim(0, frame.width)
    ax.set_ylim(frame.height + frame.beneath, 0)
    _draw_arrows(ax, frame, boxes, arrows)
    _draw_boxes(ax, frame, boxes, looks)
    return ax


def show(name: str) -> None:
    """Show the open figures: in a window where there is one, else as files.

    In a build of the documentation, which sets AUTOPAR_RICH, the page shows them: nothing is
    done. Without a window they are written to `name.png`, `name-2.png` and so on in the current
    folder, at twice their resolution, and closed.

    Args:
        name: What the files are called, without their ending.

    Raises:
        ValueError: The name is empty, or names a folder.
    """
    if name in ("", "..") or Path(name).name != name:
        msg = f"name is {name!r}; expected a file's name without folder or ending, as in 'overlap'."
        raise ValueError(msg)
    if os.environ.get(RICH):
        return
    import matplotlib.pyplot as plt

    if plt.get_backend().lower() not in _FILE_BACKENDS:
        plt.show()
        return
    for i, number in enumerate(plt.get_fignums(), start=1):
        path = Path(f"{name}.png" if i == 1 else f"{name}-{i}.png")
        figure = plt.figure(number)
        figure.savefig(path, dpi=2 * figure.dpi)
        plt.close(figure)
        print(f"wrote {path}")


def _draw_lanes(timeline: Timeline, ax: Axes, limit_s: float | None, whole_s: float) -> None:
    scale_s = unit_of(whole_s)[1]
    for row, lane in enumerate(timeline.lanes):
        spans = on_lane(timeline, lane).spans
        for kind in dict.fromkeys(span.kind for span in spans):
            ax.broken_barh(
                [
                    ((span.start_s - timeline.start_s) / scale_s, span.duration_s / scale_s)
                    for span in spans
                    if span.kind == kind
                ],
                (row - _HEIGHTS[kind] / 2, _HEIGHTS[kind]),
                facecolor=COLOURS[kind],
                edgecolor="white",
                linewidth=0.3,
                hatch="////" if kind == "copy" else None,
            )
    ax.set_yticks(range(len(timeline.lanes)), timeline.lanes)
    ax.set_ylim(len(timeline.lanes) - 0.5, -0.5)  # the first lane on top
    ax.set_xlim(0, 1.03 * (whole_s / scale_s or 1.0))  # of no length: any scale will do
    ax.spines[["top", "right"]].set_visible(False)
    if limit_s is not None:
        ax.axvline(limit_s / scale_s, color="black", linestyle="--", linewidth=1.2)
        ax.annotate(
            f"limit {format_seconds(limit_s)}",
            (limit_s / scale_s, 1),
            (0, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            fontsize=_SMALL,
        )


def _axes(height_inches: float) -> Axes:
    import matplotlib.pyplot as plt

    size = (_FIGURE_INCHES, height_inches)
    return plt.subplots(layout="constrained", figsize=size)[1]


def _dots(ax: Axes, y: int, one: Measurement, scale_s: float) -> None:
    # Spread down the bar in the order taken, so that equal samples don't cover each other.
    count = len(one.values_s)
    heights = [y + 0.4 * (i / (count - 1) - 0.5) for i in range(count)]
    times = [value / scale_s for value in one.values_s]
    ax.scatter(times, heights, s=9, color="white", edgecolor="black", linewidth=0.5, zorder=3)


def _names(measurements: tuple[Measurement, ...]) -> list[str]:
    places = [one.origin for one in measurements]
    if len(set(places)) == 1:
        return [one.label for one in measurements]
    short = short_names(places)
    return [f"{one.label}\n{place}" for one, place in zip(measurements, short, strict=True)]


def _finish(ax: Axes, unit: str, beneath: list[str] | tuple[str, ...]) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlabel(f"time ({unit})")
    if beneath:  # a figure may be taken out of its page: it says itself where it is from
        ax.annotate(
            "\n".join(beneath),
            (0.5, 0),
            (0, -2),
            xycoords=ax.xaxis.label,
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=_SMALL,
        )


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
