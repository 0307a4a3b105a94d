"""Chrome trace: a timeline as a file that ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
import os
from typing import Any

from autopar.files import write_atomically
from autopar.refusal import check_type
from autopar.timeline.span import Timeline

_PROCESS = 1  # one run is one process; its lanes are the process's threads
_FIRST_THREAD = 2  # a thread of the process's own number would be called its main thread


def write_trace(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write a timeline to a JSON file, to be opened in ui.perfetto.dev; whole or not at all.

    Raises:
        TypeError: It is no Timeline, or the path is none.
        OSError: The file's folder does not exist, or the path is that of a folder.

    >>> import os
    >>> import tempfile
    >>> import autopar as ap
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ap.write_trace(ap.Timeline((ap.Span("mm", "stream", 0.0, 1.0),)), f"{folder}/run.json")
    ...     print(os.listdir(folder))
    ['run.json']
    """
    check_type("timeline", timeline, Timeline, "a Timeline, as timeline_of(...) or run.timeline.")
    write_atomically(path, trace_bytes(timeline))


def trace_bytes(timeline: Timeline) -> bytes:
    """A timeline as a Chrome trace: JSON, with times in microseconds from the first span's start.

    Lanes are threads, numbered in the order of their first use. In a thread of the format's, spans
    follow or hold each other: one that does neither goes to another thread of the lane's name.
    """
    zero_s = timeline.start_s if timeline.spans else 0.0
    # In whole nanoseconds, rounded once, or spans that touch could overlap.
    timed = [
        (round((span.start_s - zero_s) * 1e9), round((span.end_s - zero_s) * 1e9), span)
        for span in timeline.spans
    ]
    rows: dict[str, list[list[int]]] = {lane: [] for lane in timeline.lanes}
    placed = [
        (start, end, span, _row(rows[span.lane], start, end))
        for start, end, span in sorted(timed, key=lambda times: (times[0], -times[1]))
    ]
    lanes = [(lane, row) for lane in rows for row in range(len(rows[lane]))]
    threads = {lane_row: tid for tid, lane_row in enumerate(lanes, start=_FIRST_THREAD)}
    marks = [OWN_MARK]
    for (lane, _), tid in threads.items():
        marks.append(_metadata("thread_name", tid, {"name": lane}))
        # Some viewers sort by name without it, and lanes move between two traces of one program.
        marks.append(_metadata("thread_sort_index", tid, {"sort_index": tid}))
    origin = {"origin": timeline.origin, "alignment_error_s": timeline.alignment_error_s}
    named = {
        (name, kind): f'{{"name":{_json(name)},"cat":{_json(kind)},"ph":"X","ts":'
        for name, kind in {(span.name, span.kind) for span in timeline.spans}
    }
    events = [_json(mark) for mark in marks]
    events += [
        f'{named[span.name, span.kind]}{start / 1e3},"dur":{(end - start) / 1e3},'
        f'"pid":{_PROCESS},"tid":{threads[span.lane, row]}}}'
        for start, end, span, row in placed
    ]
    around = f'"displayTimeUnit":"ms","otherData":{_json(origin)}'
    text = f'{{"traceEvents":[{",".join(events)}],{around}}}'
    return text.encode(errors="replace")


def _json(value: object) -> str:
    # Viewers show escapes as they stand, so there are few.
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _row(rows: list[list[int]], start: int, end: int) -> int:
    """The first row, ends of what is open there, in which a span follows or lies in the others."""
    for number, ends in enumerate(rows):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    rows.append([end])
    return len(rows) - 1


def _metadata(name: str, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": _PROCESS, "tid": tid, "args": args}


# By which a file is known to be ours: profilers, whose process may have any name, give it a time.
OWN_MARK = _metadata("process_name", 0, {"name": "autopar"})
