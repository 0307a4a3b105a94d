"""Gallery figures: letters that stand within them, at whatever size they are drawn."""

from textwrap import fill

from matplotlib.text import Annotation
from said_once import OLD

_PER_INCH = 13  # small letters of a note


def fit(figure):
    """Break lines beneath a figure that are wider than it, and leave room beside its bars."""
    across = int(_PER_INCH * figure.get_figwidth())
    notes = figure.findobj(Annotation)
    for note in notes:
        note.set_text(
            "\n".join(fill(line, across) for line in note.get_text().replace(OLD, "").split("\n"))
        )
    for _ in range(3):  # each time the layout is another one
        figure.draw_without_rendering()
        for note in notes:
            outside = note.get_window_extent().x1 - figure.bbox.x1
            if note.xycoords == "data" and outside > 0:
                low, high = note.axes.get_xlim()
                note.axes.set_xlim(low, high + (high - low) * outside / note.axes.bbox.width)
