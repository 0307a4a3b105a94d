"""Text: what timelines show, said in sentences, in tables and in rows of characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from autopar.display.format import format_seconds, percent, shortened
from autopar.display.rows import by_gpu, titled
from autopar.display.table import Table, tabulate
from autopar.refusal import check_type
from autopar.timeline.groups import grouped
from autopar.timeline.intervals import busy_s
from autopar.timeline.span import Timeline

MARKS = {"compute": "#", "copy": "=", "communication": "~", "host": "-"}
_CELLS = 60  # characters for the longest timeline
_LEAST_GAP = 0.5  # of a cell: shorter ones are not drawn
_BESIDE = 20  # characters for a lane's name beside which there is room for all these
_LONGEST_NAME = 48  # of a lane
_MOST_LANES = 8  # more than these make a sentence that nobody reads; the table has them all


def panels_of(argument: str, timelines: Timeline | Mapping[str, Timeline]) -> dict[str, Timeline]:
    """Name -> timeline for each panel; a timeline alone has an empty name."""
    expected = "a Timeline, or name -> Timeline for a panel each, as in {'serial': run}."
    check_type(argument, timelines, Timeline | Mapping, expected)
    panels = {"": timelines} if isinstance(timelines, Timeline) else dict(timelines)
    if not panels:
        msg = f"{argument} is empty; expected name -> timeline for a panel each. Record some first."
        raise ValueError(msg)
    for name, timeline in panels.items():
        check_type(f"a name in {argument}", name, str, "a few words.")
        check_type(f"{argument}[{name!r}]", timeline, Timeline, "a Timeline.")
    return panels


def sentences(timeline: Timeline) -> list[str]:
    """What a timeline shows: its length, how busy each lane was, and what was hidden."""
    said = [f"{format_seconds(timeline.makespan_s)} from the first start to the last end."]
    lanes = grouped(timeline.spans, attrgetter("lane"))
    busy = [f"{lane} {format_seconds(busy_s(spans))}" for lane, spans in lanes.items()]
    said.append(f"Busy: {_listed(busy, ', ', ', and {} more lanes')}.")
    if hidden := _hidden(timeline):
        said.append(f"{hidden[0].upper()}{hidden[1:]}.")
    if timeline.alignment_error_s:
        error = format_seconds(timeline.alignment_error_s)
        said.append(f"Clocks of different lanes agree within {error}.")
    return said


def lane_table(timeline: Timeline, caption: str) -> Table:
    """A row for each lane and kind: how many spans, how long busy, what share of the whole."""
    rows, makespan_s = [], timeline.makespan_s
    for lane, spans in grouped(timeline.spans, attrgetter("lane")).items():
        for kind, same in grouped(spans, attrgetter("kind")).items():
            share = percent(busy_s(same), makespan_s)
            rows.append((lane, kind, f"{len(same):,}", format_seconds(busy_s(same)), share))
    return tabulate(("lane", "kind", "spans", "busy", "share of makespan"), rows, caption=caption)


def picture(timeline: Timeline, scale_s: float, name: str = "") -> list[str]:
    """Lines of text with a row of characters for each lane, a full row for `scale_s` seconds."""
    lines = [f"{name or 'makespan'}: {format_seconds(timeline.makespan_s)}"]
    lanes, left_out = titled(timeline)
    width = min(_LONGEST_NAME, max(len(lane) for lane, _ in lanes))
    count, start_s = _CELLS - max(0, width - _BESIDE), timeline.start_s
    for lane, spans in lanes:
        cells = [" "] * count
        ended, drawn = 0.0, 0  # of the spans so far, the last end, and its cell
        for span in spans:
            # However short, a span gets one cell: else it would be taken not to have happened.
            times_s = (time_s - start_s for time_s in (span.start_s, span.end_s))
            start, end = (time_s / scale_s * count for time_s in times_s)
            # Rounded by itself, a start that follows an end at once could leave a cell empty.
            first = round(start) if start - ended >= _LEAST_GAP else min(drawn, round(start))
            first = min(count - 1, first)
            last = min(count, max(first + 1, round(end)))
            ended, drawn = max(ended, end), max(drawn, last)
            cells[first:last] = MARKS[span.kind] * (last - first)
        title, busy = shortened(lane, _LONGEST_NAME), format_seconds(busy_s(spans))
        lines.append(f"  {title:<{width}}  |{''.join(cells)}| busy {busy}")
    return lines + [f"  {said}" for said in (said_of(left_out), _hidden(timeline)) if said]


def said_of(left_out: Sequence[str]) -> str:
    """Which rows a picture does not have, in words."""
    named = _listed(left_out, "; ", "; {} more")
    return f"Left out, as busy for less than 1 % of the time: {named}." if named else ""


def _listed(things: Sequence[str], between: str, more: str) -> str:
    rest = len(things) - _MOST_LANES
    return between.join(things[:_MOST_LANES]) + (more.format(rest) if rest > 0 else "")


def _hidden(timeline: Timeline) -> str:
    """The hidden share of each GPU's work: only its own computing hides it."""
    gpus, said = by_gpu(timeline), []
    kinds = {gpu: {span.kind for span in spans} for gpu, spans in gpus.items()}
    computing = [gpu for gpu in gpus if "compute" in kinds[gpu]]
    for kind, words in (("copy", "copies"), ("communication", "communication")):
        busy = [gpu for gpu in gpus if computing and kind in kinds[gpu]]
        for gpu in busy:
            beside = gpus[gpu]
            if not gpu and gpu not in computing:  # a lane that tells no GPU may be any one's
                beside = [*beside, *(span for one in computing for span in gpus[one])]
            share = Timeline(tuple(beside)).hidden(kind) if gpu in computing or not gpu else 0.0
            where = f"{gpu or 'other lanes'}: " if len(busy) > 1 else ""
            said.append(f"{where}{words} {percent(share)} hidden behind compute")
    return ", ".join(said)
