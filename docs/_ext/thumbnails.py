"""Thumbnails: pictures of pages that can be read at the size of a card."""

from itertools import islice

import matplotlib.pyplot as plt

from autopar.display.format import format_seconds, printable, shortened
from autopar.display.rows import COLOURS, lanes_of
from autopar.display.svg import Drawing

_INCHES = (4.4, 3.08)  # a tenth more than the gallery shows of it, at 100 dots to the inch
_ROWS = 8  # of words and of bars: more could not be told apart
_LETTERS = 27  # of this size, beside each other
_SIZE = 18


def save(figure, shown, path):
    """Draw a figure anew for a card, or instead of it the timelines that the cell has shown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(shown, Drawing):
        own = drawn(shown)
        own.savefig(path, dpi=100)
        plt.close(own)
        return
    inches = figure.get_size_inches()
    figure.set_size_inches(_INCHES)
    figure.savefig(path, dpi=100)
    figure.set_size_inches(inches)


def drawn(drawing):
    """Panels under one another, with their names and lengths, and the bars of their first lanes."""
    figure, ax = plt.subplots(figsize=_INCHES, layout="constrained")
    panels = drawing.panels[: _ROWS // 2]
    most, y = _ROWS // len(panels) - 1, 0.0
    for name, timeline in panels:
        words = f"{name}: {format_seconds(timeline.makespan_s)}" if name else drawing.title
        text = ax.text(0, y, printable(shortened(words, _LETTERS)), fontsize=_SIZE, va="top")
        text.set_parse_math(False)
        y += 1
        for _, rows in islice(lanes_of(timeline, drawing.scale_s), most):
            for row in rows:
                ax.broken_barh(
                    [(bar.span.start_s, bar.span.duration_s) for bar in row.bars],
                    (y + 0.1, 0.7),
                    facecolor=[(COLOURS[row.kind], bar.opacity) for bar in row.bars],
                )
            y += 1
        y += 0.3
    ax.set(xlim=(0, drawing.scale_s), ylim=(y, 0))
    ax.axis("off")
    return figure
