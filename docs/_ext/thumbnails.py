"""Thumbnails: pictures of pages that can be read at the size of a card."""

from itertools import islice
from operator import attrgetter

import matplotlib.pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.container import BarContainer
from matplotlib.text import Annotation

from autopar.display.format import printable, shortened
from autopar.display.rows import COLOURS, grouped, layout_of
from autopar.display.svg import Drawing

_INCHES, _DOTS = (4.0, 2.8), 108  # which the gallery makes smaller by a tenth
_ROWS = 8  # of words and of bars: more could not be told apart
_LETTERS = 34  # of this size, beside each other
_SIZE = 15
_BARS = 9  # with their words in them, which takes less room


def save(figure, shown, path):
    """Draw a figure anew for a card, or instead of it the timelines that the cell has shown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = drawn(shown) if isinstance(shown, Drawing) else charted(figure)
    if own:
        own.savefig(path, dpi=_DOTS)
        plt.close(own)
        return
    notes, inches = beneath(figure), figure.get_size_inches()
    plt.setp(notes, visible=False)
    figure.set_size_inches(_INCHES)
    figure.savefig(path, dpi=_DOTS)
    figure.set_size_inches(inches)
    plt.setp(notes, visible=True)


def beneath(figure):
    """What stands beneath a figure, which is where it was measured: a card's page says that."""
    return [note for note in figure.findobj(Annotation) if note.xycoords != "data"]


def drawn(drawing):
    """Panels under one another, with their names, and the bars of their first lanes."""
    figure, ax = plt.subplots(figsize=_INCHES, layout="constrained")
    panels = drawing.panels[: _ROWS // 2]
    most, y = _ROWS // len(panels) - 1, 0.0
    for name, timeline in panels:
        words = shortened(name or drawing.title, _LETTERS)  # without times: they are of one run
        text = ax.text(0, y, printable(words), fontsize=_SIZE, va="top")
        text.set_parse_math(False)
        y += 1
        lanes = grouped(layout_of([("", timeline)], drawing.scale_s).rows, attrgetter("lane"))
        for rows in islice(lanes.values(), most):
            for row in rows:
                ax.broken_barh(
                    [(bar.left, bar.width) for bar in row.bars],
                    (y + 0.1, 0.7),
                    facecolor=[(COLOURS[row.kind], bar.opacity) for bar in row.bars],
                )
            y += 1
        y += 0.3
    ax.set(xlim=(0, 1), ylim=(y, 0))
    ax.axis("off")
    return figure


def bars_of(figure):
    """The bars of a figure that has one chart of bars, downwards, each with its name and value."""
    if len(figure.axes) != 1:
        return []
    (chart,) = figure.axes
    bars = [bar for each in chart.containers if isinstance(each, BarContainer) for bar in each]
    names = chart.yaxis.get_major_formatter().format_ticks(chart.get_yticks())  # hidden ones, too
    notes = [each for each in chart.texts if isinstance(each, Annotation)]
    values = [each.get_text().strip() for each in notes if each.xycoords == "data"]
    if not len(bars) == len(names) == len(values) > 0 or chart.get_xscale() != "linear":
        return []
    unit = chart.get_xlabel().split(" ")[0]  # of values that say none
    values = [value + f" {unit}" * value.replace(".", "").isdecimal() for value in values]
    return sorted(
        zip(bars, names, values, strict=True),
        key=lambda row: row[0].get_y(),
        reverse=not chart.yaxis_inverted(),
    )


def charted(figure):
    """A chart of bars with their names and values in them, if it is one."""
    if not (rows := bars_of(figure)):
        return None
    chart, widest = figure.axes[0], max(bar.get_width() for bar, *_ in rows)
    if len(rows) > _BARS:  # of so many, some from first to last
        rows = [rows[i * (len(rows) - 1) // (_BARS - 1)] for i in range(_BARS)]
    card, ax = plt.subplots(figsize=_INCHES, layout="none")
    card.subplots_adjust(left=0.02, right=0.98, bottom=0.02, top=0.98)  # whatever its letters need
    words = [shortened(chart.get_title().replace("\n", " "), _LETTERS)]
    for y, (bar, name, value) in enumerate(rows, start=1):
        ax.barh(y, bar.get_width(), height=0.8, color=COLOURS["compute"], alpha=0.4)
        words.append(f"{shortened(name, _LETTERS + 2 - len(value))}: {value}")
    for y, text in enumerate(words):
        ax.text(0, y, f" {text}" if y else text, fontsize=_SIZE - 2, va="center", parse_math=False)
    longest = max([widest, *(limits := limits_of(chart))])
    ax.set(xlim=(0, longest), ylim=(len(words) - 0.5, -0.5))
    if len(limits) == 1:
        across = [0.5, len(words) - 0.5]
        ax.plot([*limits] * 2, across, color="0.4", linestyle="--", zorder=1)
    ax.axis("off")
    return card


def limits_of(chart):
    """Where lines stand across the bars of a chart."""
    marks = [
        one
        for each in chart.collections
        if isinstance(each, LineCollection)
        for one in each.get_segments()
    ]
    marks += [line.get_xydata() for line in chart.lines]
    return {ends[0][0] for ends in marks if len({x for x, _ in ends}) == 1}
