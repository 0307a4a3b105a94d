"""Plot: timelines, measurements and plans on matplotlib axes, for figures, thumbnails and papers.

Only the functions here import matplotlib, when they are called; styles are left as they are. A
figure that they make is as wide as matplotlib's setting `figure.figsize` says.
"""

from __future__ import annotations

import io
import os
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autopar.display.format import (
    format_seconds,
    median_of,
    origins_of,
    printable,
    short_origins,
    unit_of,
)
from autopar.display.rows import COLOURS, HEIGHTS, LINE, layout_of, scale_of
from autopar.display.show import RICH, Note, speaks
from autopar.display.show import show as show_thing
from autopar.display.table import Measurements, distinct
from autopar.display.text import panels_of
from autopar.files import path_of, write_atomically
from autopar.refusal import check_type
from autopar.timeline.span import Timeline
from autopar.timing.measurement import Limit, check_positive, limits_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from autopar.display.graph_plot import Planned

__all__ = ["bars", "graph", "save", "show", "timeline"]
_TITLE_PER_INCH = 8  # characters
_TITLE_PAD = 12  # points, so that the limit's label fits beneath a title
_LABEL_LETTERS = 32  # in a line of what a bar is called
_SMALL = 7  # points, for what must be on the figure but is not what it shows
_SMALL_PER_INCH = 16  # of its letters
_AROUND = 0.9  # inches that title and time axis take
_AROUND_GRAPH = 0.8
_LIMIT: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.2}
_HATCHES = {"copy": "////", "communication": "xxxx"}
_RIM = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
_BRACKET = {"arrowstyle": "|-|,widthA=0.2,widthB=0.2", "shrinkA": 0, "shrinkB": 0}
_WORDS: dict[str, Any] = {"fontsize": "small", "parse_math": False}
# Backends that only write files; all others have a window or a page to show figures in.
_FILE_BACKENDS = {"agg", "cairo", "pdf", "pgf", "ps", "svg", "template"}


def timeline(
    timelines: Timeline | Mapping[str, Timeline],
    ax: Axes | None = None,
    *,
    limit_s: float | None = None,
    title: str = "",
) -> Axes:
    """Draw what ran when: a row for each lane, from the start of the first span on.

    Args:
        timelines: One timeline, or name -> timeline for panels under one another, on one scale.
        ax: Where to draw; without it a figure is made.
        limit_s: The least time possible in seconds, drawn as a dashed line.
        title: What is drawn, in a few words.

    Raises:
        TypeError: `timelines` is neither a Timeline nor a mapping to such.
        ValueError: There are no timelines, one has no spans, or the limit is not a time.

    >>> import autopar as ap
    >>> import matplotlib.pyplot as plt
    >>> run = ap.Timeline([ap.Span("mm", "GPU 0", 0, 2e-3)])
    >>> axes = ap.plot.timeline({"serial": run, "at once": run}, title="Two products")
    >>> plt.close()
    """
    panels = panels_of(timelines)
    if limit_s is not None:
        check_positive("limit_s", limit_s)
    scale_s = scale_of(panels.values(), limit_s)
    unit, unit_s = unit_of(scale_s)
    wide, layout = scale_s / unit_s, layout_of(panels.items(), scale_s)
    ax = _axes_of(layout.height, ax)  # a pixel of the layout is a point
    in_middle: dict[str, Any] = {**_WORDS, "ha": "center", "va": "center", "bbox": _RIM}
    for y, words, is_bold in layout.headings:
        ax.text(0, y, printable(words), weight="bold" if is_bold else "normal", **_WORDS)
    for row in layout.rows:
        ax.broken_barh(
            [(wide * bar.left, wide * bar.width) for bar in row.bars],
            (row.top, HEIGHTS[row.kind]),
            facecolor=[(COLOURS[row.kind], bar.opacity) for bar in row.bars],
            edgecolor="white",
            linewidth=0.0,
            hatch=_HATCHES.get(row.kind),
        )
    for left, right, y, _ in layout.brackets:
        ax.annotate("", (wide * left, y), (wide * right, y), arrowprops=_BRACKET)
    labels = [label for row in layout.rows for label in row.labels]
    labels += [bracket._replace(y=bracket.y + LINE - 6) for bracket in layout.brackets]
    for left, right, y, words in labels:
        ax.text(wide * (left + right) / 2, y, printable(words), **in_middle)
    ax.set(xlim=(0, 1.03 * wide), ylim=(layout.height, 0), yticks=[])
    if limit_s is not None:
        ax.axvline(limit_s / unit_s, **_LIMIT)
        above: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center"}
        above |= {"xytext": (0, 2), "textcoords": "offset points", "fontsize": _SMALL}
        ax.annotate(f"limit {format_seconds(limit_s)}", (limit_s / unit_s, 1), **above)
    ax.set_xlabel(f"time ({unit})")
    _write_beneath(ax, origins_of(panels.values()))
    return _titled(ax, title, pad=_TITLE_PAD)


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

    >>> import autopar as ap
    >>> import matplotlib.pyplot as plt
    >>> sums = ap.measure(lambda: sum(range(1_000)), label="sum")
    >>> axes = ap.plot.bars([sums], limit_s=1e-6)
    >>> plt.close()
    """
    chosen = distinct(measurements)
    where = [one.origin for one in chosen]
    limits = limits_of([one.label for one in chosen], limit_s)
    labels = [textwrap.fill(printable(one.label), _LABEL_LETTERS) for one in chosen]
    unit, unit_s = unit_of(max(one.median_s for one in chosen))
    ax = _axes_of(32 * len(chosen), ax)
    for y, (one, limit) in enumerate(zip(chosen, limits, strict=True)):
        ax.barh(y, one.median_s / unit_s, height=0.6, color=COLOURS["compute"])
        # Samples go down the bar in the order taken, so that equal ones don't cover each other.
        heights = np.linspace(y - 0.2, y + 0.2, len(one.values_s))
        times = np.array(one.values_s) / unit_s
        ax.scatter(times, heights, s=9, color="white", edgecolor="black", linewidth=0.5, zorder=3)
        if limit is not None:
            ax.vlines(limit / unit_s, y - 0.42, y + 0.42, **_LIMIT)
        words = format_seconds(one.median_s) + "*" * bool(one.warning)
        at = max(*times, (limit or 0.0) / unit_s), y
        ax.annotate(words, at, (5, 0), textcoords="offset points", va="center", fontsize="small")
    if len({*where}) > 1:
        labels = list(map("{}\n{}".format, labels, short_origins(where)))
    ax.set_yticks(range(len(chosen)), labels, parse_math=False)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.2 * max(ax.dataLim.x1, 0.0))  # room for the figures beside the bars
    noisy = ["* noisy: look at the dots"] if any(one.warning for one in chosen) else []
    ax.set_xlabel(f"time ({unit}){'; dashed: the limit' * any(limits)}")
    _write_beneath(ax, [*origins_of(chosen), *noisy])
    return _titled(ax, title)


def graph(
    plan: Planned | Timeline,
    ax: Axes | None = None,
    *,
    title: str = "",
    columns: bool = False,
    hide: Sequence[str] = (),
    arrows: Mapping[str, float] | None = None,
    names: Callable[[str], str] = str,
) -> Axes:
    """Draw the tasks of a plan as boxes in the colours of their lanes, and what they wait for.

    A box has the letter of its lane and the task's name; those of copies have dashed outlines. A
    thick arrow is a wait for another lane, a thin one needs none: the order on the lanes implies
    it. Long names are shortened, and left out where boxes are too small.

    Args:
        plan: A graph's plan, as in `graph.plan()` or `run.plan`; or the timeline of a run of it.
        ax: Where to draw; without it a figure is made. It should have its size by then.
        title: What is drawn, in a few words.
        columns: Whether to draw a column for each device, and one for its copies. Tasks stand below
            each other in the order of their lane, and waits that others imply are left out. If not,
            tasks are in layers by the longest way from a start.
        hide: Names of tasks to leave out, as of views. What comes after one is drawn to come after
            what that one comes after.
        arrows: For a timeline, the plan's `arrows`; a record's values have them among others.
        names: What a task of a timeline is to be called.

    Raises:
        TypeError: It is no plan.
        ValueError: The plan has no tasks, or none but those to hide.

    >>> import autopar as ap
    >>> import matplotlib.pyplot as plt
    >>> import torch
    >>> tasks = ap.TaskGraph()
    >>> _ = tasks.add(torch.add, tasks.add(torch.ones, 2), 1)
    >>> axes = ap.plot.graph(tasks.plan(), title="Two tasks")
    >>> plt.close()
    """
    from autopar.display import graph_plot  # which imports much that only this needs

    whole = graph_plot.graph_of(plan, arrows or {}, names)
    axes_of = partial(_axes_of, ax=ax, around=_AROUND_GRAPH)  # once it is known how high they are
    return _titled(graph_plot.draw_graph(whole, axes_of, columns=columns, hide=hide), title)


def save(ax: Axes, path: str | os.PathLike[str]) -> None:
    """Write the figure of some axes to a PNG file, at twice its resolution, and close it.

    Raises:
        ValueError: The file's name ends in something else than `.png`.
        OSError: The folder is not there or can't be written to.

    >>> import tempfile
    >>> import autopar as ap
    >>> axes = ap.plot.timeline(ap.Timeline([ap.Span("mm", "GPU 0", 0, 2e-3)]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ap.plot.save(axes, f"{folder}/product.png")
    """
    if (path := path_of(path)).suffix.lower() != ".png":
        others = "ax.figure.savefig writes other formats, and draw(...).save .svg and .html."
        msg = f"path is {str(path)!r}; expected a name that ends in .png. {others}"
        raise ValueError(msg)
    from matplotlib.artist import Artist

    check_type("ax", ax, Artist, "axes, one alone, as plot.timeline() returns.")
    _write(ax.figure.canvas.figure, path)


def show(name: str, *origins: str, look: str | Measurements = "") -> str | None:
    """Show the open figures: in a window where there is one, else as files.

    In a build of the documentation, which sets AUTOPAR_RICH, the page shows them: nothing is
    done. Without a window they are written to `name.png`, `name-2.png` and so on in the current
    folder, at twice their resolution, and closed.

    Args:
        name: Of the file, without an ending.
        origins: Where and when it was measured, to write beneath figures that don't say so.
        look: What to look at, in a sentence with its figures, or the measurements that have them:
            the sentence is returned, to be a cell's last value, or printed where none is shown.

    Raises:
        ValueError: The name is empty, or names a folder.
        TypeError: It is no text.

    >>> import autopar as ap
    >>> ap.plot.show("product")  # writes nothing, as no figure is open
    """
    expected = "a file's name without folder or ending, as in 'overlap'."
    check_type("name", name, str, expected)
    if name in ("", "..") or Path(name).name != name:
        msg = f"name is {name!r}; expected {expected}"
        raise ValueError(msg)
    import matplotlib.pyplot as plt

    for number in plt.get_fignums():
        for ax in plt.figure(number).axes[-1:]:
            _write_beneath(ax, sorted({*origins}))
    if os.environ.get(RICH):
        pass  # the page shows them
    elif plt.get_backend().lower() not in _FILE_BACKENDS:
        plt.show()
    else:
        for i, number in enumerate(plt.get_fignums(), start=1):
            path = Path(f"{name}.png" if i == 1 else f"{name}-{i}.png")
            _write(plt.figure(number), path)
            if speaks():
                print(f"wrote {path}")
    if not isinstance(look, str):
        told = (f"{one.label!r}: {median_of(one)}" for one in distinct(look))
        look = f"Look at {'; '.join(told)}."
    return show_thing(Note(look)) if look else None


def _write(figure: Figure, path: Path) -> None:
    import matplotlib.pyplot as plt

    try:
        with io.BytesIO() as image, warnings.catch_warnings():
            # That a font lacks a letter of some name is shown by a box in its place.
            warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
            figure.savefig(image, dpi=2 * figure.dpi, format="png")
            write_atomically(path, image.getvalue())
    finally:
        plt.close(figure)


def __dir__() -> list[str]:
    return __all__


def _axes_of(points: float, ax: Axes | None, around: float = _AROUND) -> Axes:
    """The axes given, or those of a new figure, so many points high and inches around them."""
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    if ax is None:
        figsize = plt.rcParams["figure.figsize"][0], around + points / 72
        ax = plt.subplots(figsize=figsize, layout="constrained")[1]
    check_type("ax", ax, Axes, "the axes to draw on, one alone, as of plt.subplots().")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _write_beneath(ax: Axes, lines: Sequence[str]) -> None:
    """Write small lines beneath the label of the horizontal axis, none wider than the figure.

    Where a figure is from is said so, as it may be taken out of its page.
    """
    across = int(_SMALL_PER_INCH * ax.figure.canvas.figure.get_figwidth())
    how: dict[str, Any] = {"xycoords": ("axes fraction", ax.xaxis.label)}
    how |= {"textcoords": "offset points", "fontsize": _SMALL, "ha": "right", "va": "top"}
    if lines:
        broken = [textwrap.fill(printable(line), across) for line in lines]
        ax.annotate("\n".join(broken), (1, 0), (0, -2), **how)


def _titled(ax: Axes, title: str, **how: Any) -> Axes:
    """The axes, with a title in lines that fit into the figure."""
    check_type("title", title, str, "a few words.")
    letters = max(20, int(ax.figure.canvas.figure.get_figwidth() * _TITLE_PER_INCH))
    ax.set_title(textwrap.fill(printable(title), letters), parse_math=False, **how)
    return ax
