"""Thumbnails: pictures of pages that can be read at the size of a card."""

from itertools import islice

import matplotlib.pyplot as plt

from autopar.display.format import format_seconds, printable, shortened
from autopar.display.rows import COLOURS, lanes_of
from autopar.display.svg import Drawing

_INCHES, _DOTS = (4.0, 2.8), 108  # which the gallery makes smaller by a tenth
_ROWS = 8  # of words and of bars: more could not be told apart
_LETTERS = 34  # of this size, beside each other
_SIZE = 15


def save(figure, shown, path):
    """Draw a figure anew for a card, or instead of it the timelines that the cell has shown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(shown, Drawing):
        own = drawn(shown)
        own.savefig(path, dpi=_DOTS)
        plt.close(own)
        return
    inches = figure.get_size_inches()
    figure.set_size_inches(_INCHES)
    figure.savefig(path, dpi=_DOTS)
    figure.set_size_inches(inches)


def drawn(drawing):
    """Panels under one another, with their names and lengths, and the bars of their first lanes."""
    figure, ax = plt.subplots(figsize=_INCHES, layout="constrained")
    panels = drawing.panels[: _ROWS // 2]
    most, y = _ROWS // len(panels) - 1, 0.0
    for name, timeline in panels:
        words = f"{name}: {format_seconds(timeline.makespan_s)}" if name else drawing.title
        words = shortened(name if name and len(words) > _LETTERS else words, _LETTERS)
        text = ax.text(0, y, printable(words), fontsize=_SIZE, va="top")
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
