"""Words: what timelines show, said in sentences, in tables and in rows of characters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter

from autopar.display.format import format_seconds, like, percent
from autopar.display.table import Table, tabulate
from autopar.timeline.groups import grouped
from autopar.timeline.span import Span, Timeline

MARKS = {"compute": "#", "copy": "=", "communication": "~", "host": "-"}
_CELLS = 60  # characters for the longest timeline; names and times beside them fit in 100
_MOST_LANES = 8  # more than these make a sentence that nobody reads; the table has them all
_MOST_SPANS = 60  # more rows than these are read from the trace rather than from a page
_FIRST_SPANS = 20
_GPU = re.compile(r"^(.*?\b)?(GPU |cuda:)\d+")  # how lanes of a GPU begin


def panels_of(argument: str, timelines: Timeline | Mapping[str, Timeline]) -> dict[str, Timeline]:
    """Name -> timeline for each panel; a timeline alone has an empty name.

    Raises:
        TypeError: It is neither a Timeline nor a mapping to such.
    """
    if not isinstance(timelines, (Timeline, Mapping)):
        msg = (
            f"{argument} is of type {type(timelines).__name__}; expected a Timeline, or name -> "
            f"Timeline for a panel each, as in {{'serial': one, 'overlapped': other}}."
        )
        raise TypeError(msg)
    panels = {"": timelines} if isinstance(timelines, Timeline) else dict(timelines)
    for name, timeline in panels.items():
        if not isinstance(timeline, Timeline):
            msg = f"{argument}[{name!r}] is of type {type(timeline).__name__}; expected a Timeline."
            raise TypeError(msg)
    return panels


def sentences(timeline: Timeline) -> list[str]:
    """What a timeline shows: its length, how busy each lane was, and what was hidden.

    >>> for sentence in sentences(
    ...     Timeline((Span("mm", "stream", 0, 4), Span("D2H", "bus", 3, 5, "copy")))
    ... ):
    ...     print(sentence)
    5.000 s from the first start to the last end.
    Busy: stream 4.000 s, bus 2.000 s.
    Copies 50.0 % hidden behind compute.
    """
    said = [f"{format_seconds(timeline.makespan_s)} from the first start to the last end."]
    busy = [f"{lane} {format_seconds(alone.busy_s())}" for lane, alone in by_lane(timeline).items()]
    more = f", and {len(busy) - _MOST_LANES} more lanes" if len(busy) > _MOST_LANES else ""
    said.append(f"Busy: {', '.join(busy[:_MOST_LANES])}{more}.")
    if hidden := _hidden(timeline):
        said.append(f"{hidden[0].upper()}{hidden[1:]}.")
    if timeline.alignment_error_s:
        error = format_seconds(timeline.alignment_error_s)
        said.append(f"Clocks of different lanes agree within {error}.")
    return said


def lane_table(timeline: Timeline, caption: str) -> Table:
    """A row for each lane and kind: how many spans, how long busy, what share of the whole."""
    rows, whole_s = [], timeline.makespan_s
    for lane, alone in by_lane(timeline).items():
        for kind, same in by_kind(alone).items():
            busy_s = Timeline(tuple(same)).busy_s()
            share = percent(busy_s, whole_s)
            rows.append((lane, kind, f"{len(same):,}", format_seconds(busy_s), share))
    return tabulate(("lane", "kind", "spans", "busy", "share of makespan"), rows, caption=caption)


def span_table(timeline: Timeline, caption: str) -> Table:
    """A row for each span; of many, the first only, and the caption says so."""
    spans = timeline.spans
    if len(spans) > _MOST_SPANS:
        caption = f"{caption} (the first {_FIRST_SPANS} of {len(spans):,})"
        spans = spans[:_FIRST_SPANS]
    start_s, whole_s = timeline.start_s, timeline.makespan_s
    rows = []
    for span in spans:
        times = (like(span.start_s - start_s, whole_s), format_seconds(span.duration_s))
        rows.append((span.name, span.lane, span.kind, *times))
    return tabulate(("span", "lane", "kind", "start", "duration"), rows, caption=caption)


def picture(timeline: Timeline, scale_s: float, name: str = "") -> list[str]:
    """Lines of text with a row of characters for each lane, a full row for `scale_s` seconds.

    >>> for line in picture(Timeline((Span("mm", "stream", 0, 3),)), 4.0, "one product"):
    ...     print(line)
    one product: 3.000 s
      stream  |#############################################               | busy 3.000 s
    """
    lines = [f"{name or 'makespan'}: {format_seconds(timeline.makespan_s)}"]
    lanes, start_s = by_lane(timeline), timeline.start_s
    width = max(map(len, lanes))
    for lane, alone in lanes.items():
        cells = [" "] * _CELLS
        for span in alone.spans:
            first, last = _cells(span, start_s, scale_s)
            cells[first:last] = MARKS[span.kind] * (last - first)
        busy = format_seconds(alone.busy_s())
        lines.append(f"  {lane:<{width}}  |{''.join(cells)}| busy {busy}")
    if hidden := _hidden(timeline):
        lines.append(f"  {hidden}")
    return lines


def by_lane(timeline: Timeline) -> dict[str, Timeline]:
    """Lane -> the part of a timeline on it, in the order in which they first did something."""
    # Not `select`: that would add the spans of a kind which is called as the lane is.
    lanes = grouped(timeline.spans, attrgetter("lane"))
    return {lane: Timeline(tuple(spans)) for lane, spans in lanes.items()}


def by_kind(timeline: Timeline) -> dict[str, list[Span]]:
    """Kind -> its spans."""
    return grouped(timeline.spans, attrgetter("kind"))


def _hidden(timeline: Timeline) -> str:
    """The hidden share of each GPU's work: only its own computing hides it."""
    kinds, gpus, said = by_kind(timeline), grouped(timeline.spans, _gpu_of), []
    for kind, words in (("copy", "copies"), ("communication", "communication")):
        theirs = grouped(kinds.get(kind, ()), _gpu_of) if "compute" in kinds else {}
        for gpu in theirs:
            part = Timeline(tuple(gpus[gpu]))
            share = part.hidden(kind) if "compute" in by_kind(part) else 0.0
            where = f"{gpu or 'other lanes'}: " if len(theirs) > 1 else ""
            said.append(f"{where}{words} {percent(share)} hidden behind compute")
    return ", ".join(said)


def _gpu_of(span: Span) -> str:
    gpu = _GPU.match(span.lane)
    return gpu[0] if gpu else ""


def _cells(span: Span, start_s: float, scale_s: float) -> tuple[int, int]:
    # However short, a span gets one cell: what is not seen would be taken not to have happened.
    first = min(_CELLS - 1, round((span.start_s - start_s) / scale_s * _CELLS))
    last = round((span.end_s - start_s) / scale_s * _CELLS)
    return first, min(_CELLS, max(first + 1, last))
