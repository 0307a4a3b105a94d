"""Trace: a timeline as a file that ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from autopar.files import write_atomically
from autopar.timeline.span import Timeline

PROGRAM = "autopar"  # by which a file is known to be ours
_PROCESS = 1  # one run is one process; its lanes are the process's threads
_FIRST_THREAD = 2  # a thread of the process's own number would be called its main thread
_PER_SECOND = 1e9  # of what is counted here; the format has microseconds


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """A timeline as a Chrome trace: a dictionary to be written as JSON.

    Times count from the start of the first span, in microseconds, to the nanosecond. Lanes are
    threads, numbered in the order of their first use. In a thread of the format's spans follow or
    hold each other: one that does neither goes to another thread of the lane's name. A timeline
    without spans gives a trace without events.

    >>> from autopar import Span
    >>> trace = trace_events(Timeline((Span("mm", "stream", 2.0, 2.5),)))
    >>> [event for event in trace["traceEvents"] if event["ph"] == "X"]
    ... # doctest: +NORMALIZE_WHITESPACE
    [{'name': 'mm', 'cat': 'compute', 'ph': 'X', 'ts': 0.0, 'dur': 500000.0,
      'pid': 1, 'tid': 2}]
    """
    start_s = timeline.start_s if timeline.spans else 0.0
    rows: dict[str, list[list[int]]] = {lane: [] for lane in timeline.lanes}
    placed = []
    # Rounded once, or spans that touch could overlap.
    timed = [(_since(start_s, s.start_s), _since(start_s, s.end_s), s) for s in timeline.spans]
    for start, end, span in sorted(timed, key=lambda times: (times[0], -times[1])):
        placed.append((start, end, span, _row(rows[span.lane], start, end)))
    lanes = [(lane, row) for lane in rows for row in range(len(rows[lane]))]
    threads = {lane_row: tid for tid, lane_row in enumerate(lanes, start=_FIRST_THREAD)}
    events: list[dict[str, Any]] = [_metadata("process_name", 0, {"name": PROGRAM})]
    for (lane, _), tid in threads.items():
        events.append(_metadata("thread_name", tid, {"name": lane}))
        # Some viewers sort by name without it, and lanes move between two traces of one program.
        events.append(_metadata("thread_sort_index", tid, {"sort_index": tid}))
    for start, end, span, row in placed:
        events.append(
            {
                "name": span.name,
                "cat": span.kind,
                "ph": "X",
                "ts": start / 1e3,
                "dur": (end - start) / 1e3,
                "pid": _PROCESS,
                "tid": threads[span.lane, row],
            }
        )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "origin": timeline.origin,
            "alignment_error_s": timeline.alignment_error_s,
        },
    }


def write_trace(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write a timeline to a JSON file, to be opened in ui.perfetto.dev.

    The file appears whole or not at all: an existing one is replaced in one step.

    Args:
        timeline: The spans of one run.
        path: Where to write; its folder must exist.

    Raises:
        FileNotFoundError: The folder does not exist.

    >>> import tempfile
    >>> from autopar import Span
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_trace(Timeline((Span("mm", "stream", 0.0, 1.0),)), f"{folder}/run.json")
    ...     print([file.name for file in Path(folder).iterdir()])
    ['run.json']
    """
    write_atomically(Path(path), trace_bytes(timeline))


def trace_bytes(timeline: Timeline) -> bytes:
    """What `write_trace` writes. Viewers show escapes as they stand, so there are few."""
    events = trace_events(timeline)
    text = json.dumps(events, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")


def _since(start_s: float, time_s: float) -> int:
    """Nanoseconds from the start."""
    return round((time_s - start_s) * _PER_SECOND)


def _row(rows: list[list[int]], start: int, end: int) -> int:
    """The first row in which a span follows the others or lies in one; spans come by their start.

    A row is the ends of what is still open, the innermost last.
    """
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
