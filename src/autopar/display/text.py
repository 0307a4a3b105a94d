"""Text: what timelines show, said in sentences, in tables and in rows of characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from operator import attrgetter
from textwrap import wrap

import numpy as np

from autopar.display.format import format_seconds, percent, shortened
from autopar.display.rows import Lane, by_gpu, grouped, titled
from autopar.display.table import Table, tabulate
from autopar.refusal import check_type
from autopar.timeline.intervals import (
    busy_s,
    common,
    covered,
    intervals_of,
    length_s,
    length_within,
)
from autopar.timeline.span import Timeline

MARKS = {"compute": "#", "copy": "=", "communication": "~", "host": "-"}
SPARSE, _HALF = ".", 0.5  # the mark of a cell that is busy for less than this share of its time
_CELLS = 60  # characters for the longest timeline
_BESIDE = 20  # characters for a lane's name beside which there is room for all these
_LONGEST_NAME = 48  # of a lane
_COLUMNS = 100
_MOST_LANES = 8  # more than these make a sentence that nobody reads


def panels_of(timelines: Timeline | Mapping[str, Timeline]) -> dict[str, Timeline]:
    """Name -> timeline for each panel; a timeline alone has an empty name."""
    expected = "a Timeline, or name -> Timeline for a panel each. Of a run give run.timeline."
    check_type("timelines", timelines, Timeline | Mapping, expected)
    panels = {"": timelines} if isinstance(timelines, Timeline) else dict(timelines)
    for name, timeline in panels.items():
        check_type("a name in timelines", name, str, "a few words.")
        check_type(f"timelines[{name!r}]", timeline, Timeline, expected)
    empty = [name for name, timeline in panels.items() if not timeline.spans]
    if empty or not panels:
        named = f"timeline {empty[0]!r}" if any(empty) else "timelines"
        came = f"{named} has no spans" if empty else "timelines is empty"
        msg = f"{came}; expected one or more, each with spans. Record some work first."
        raise ValueError(msg)
    return panels


def sentences(timeline: Timeline) -> list[str]:
    """What a timeline shows beside its lanes: its length, what was hidden, and what is left out."""
    said = [f"{format_seconds(timeline.makespan_s)} from the first start to the last end."]
    said += [f"{hidden[0].upper()}{hidden[1:]}." for hidden in hidden_shares(timeline)]
    if error_s := timeline.alignment_error_s:
        said.append(f"Clocks of different lanes agree within {format_seconds(error_s)}.")
    return said + _left_out(titled(timeline)[1])


def to_look_at(panels: Iterable[tuple[str, Timeline]]) -> str:
    """What to look at in a picture: how long each of its panels takes, and what it hides."""
    told = []
    for name, timeline in panels:
        figures = ", ".join([format_seconds(timeline.makespan_s), *hidden_shares(timeline)])
        told.append(f"{name!r}: {figures}" if name else f"the whole: {figures}")
    return f"Look at {'; '.join(told)}."


def lane_table(timeline: Timeline, caption: str) -> Table:
    """A row for each lane and kind: how many spans, how long busy, what share of the whole.

    A lane is called what the picture calls it, with its own name behind that.
    """
    rows, makespan_s = [], timeline.makespan_s
    for title, spans in chain(*titled(timeline)):
        own = spans[0].lane
        lane = title if title == own else f"{title} ({own})"
        for kind, same in grouped(spans, attrgetter("kind")).items():
            share = percent(busy_s(same), makespan_s)
            rows.append((lane, kind, f"{len(same):,}", format_seconds(busy_s(same)), share))
    return tabulate(("lane", "kind", "spans", "busy", "share of makespan"), rows, caption=caption)


def picture(timeline: Timeline, scale_s: float, name: str = "") -> list[str]:
    """Lines of text with a row of characters for each lane, a full row for `scale_s` seconds."""
    lines = [f"{name or 'makespan'}: {format_seconds(timeline.makespan_s)}"]
    lanes, brief = titled(timeline)
    width = min(_LONGEST_NAME, max(len(lane) for lane, _ in lanes))
    count = _CELLS - max(0, width - _BESIDE)
    for lane, spans in lanes:
        cells = [" "] * count
        for kind, same in grouped(spans, attrgetter("kind")).items():
            places = (intervals_of(same) - timeline.start_s) / scale_s * count
            ends = np.arange(count + 1.0)
            shares = length_within(covered(places), ends[:-1], ends[1:]).round(6)
            # However short one is, its cell is marked: else it would seem not there.
            starts = np.minimum(places[:, 0].round(6), count - 1).astype(int)
            for cell in {*starts.tolist(), *np.flatnonzero(shares).tolist()}:
                if cells[cell] in (" ", SPARSE):  # what fills a cell is not written over
                    cells[cell] = MARKS[kind] if shares[cell] >= _HALF else SPARSE
        title, busy = shortened(lane, _LONGEST_NAME), format_seconds(busy_s(spans))
        lines.append(f"  {title:<{width}}  |{''.join(cells)}| busy {busy}")
    for said in (*_left_out(brief), *hidden_shares(timeline)):
        lines += wrap(said, _COLUMNS, initial_indent="  ", subsequent_indent="  ")
    return lines


def legend(kinds: Iterable[str]) -> str:
    """What the characters of a picture stand for."""
    sparse = f"{SPARSE} less than half of a mark's time"
    return "   ".join([*(f"{MARKS[kind]} {kind}" for kind in kinds), sparse])


def _left_out(brief: list[Lane]) -> list[str]:
    """Which lanes a picture does not have, in a sentence if there are any."""
    lanes = [title for title, _ in brief]
    more = f"; {len(lanes) - _MOST_LANES} more" if len(lanes) > _MOST_LANES else ""
    named = "; ".join(map(shortened, lanes[:_MOST_LANES])) + more
    return [f"Left out, as busy for less than 1 % of the time: {named}."] if lanes else []


def hidden_shares(timeline: Timeline) -> list[str]:
    """In one line if any, each GPU's hidden share: its own computing hides it, if lanes tell."""
    said = []
    for kind, words in (("copy", "copies"), ("communication", "communication")):
        gpus = by_gpu(timeline, kind, "compute")
        any_gpu = covered(np.concatenate([kernels for _, kernels in gpus.values()]))
        busy = {gpu: work for gpu, (work, _) in gpus.items() if len(work) and len(any_gpu)}
        for gpu, work in busy.items():
            hidden = common(work, gpus[gpu][1] if gpu else any_gpu)
            where = f"{gpu or 'other lanes'}: " if len(busy) > 1 else ""
            share = percent(length_s(hidden), length_s(work))
            said.append(f"{where}{words} {share} hidden behind compute")
    return [", ".join(said)] if said else []
