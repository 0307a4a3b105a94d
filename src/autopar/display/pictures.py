"""Pictures: timelines shown in both ways, as a drawing to look into and as an image."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.display import plot
from autopar.display.show import show
from autopar.display.svg import Drawing, draw
from autopar.timeline.span import Timeline


def show_timelines(
    timelines: Timeline | Mapping[str, Timeline],
    name: str,
    *,
    title: str,
    caption: str = "",
    limit_s: float | None = None,
) -> Drawing:
    """Show timelines as an image, and return them as `draw` draws them, to be a cell's last value.

    Args:
        timelines: One timeline, or name -> timeline for a panel each.
        name: What the image's file is called, where there is no window to show it in.
        title: What is drawn, in a few words.
        caption: How to read it.
        limit_s: The least time possible in seconds, drawn as a dashed line.

    Raises:
        ValueError: As `draw` does.
    """
    drawing = draw(timelines, title=title, caption=caption, limit_s=limit_s)
    if isinstance(timelines, Timeline):
        plot.timeline(timelines, limit_s=limit_s, title=title)
    else:
        plot.timelines(timelines, limit_s=limit_s, title=title)
    plot.show(name)
    return show(drawing)
