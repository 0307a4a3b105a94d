"""Trace: a timeline as a file that ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from autopar.span import Span, Timeline
from autopar.storage import write_atomically

PROGRAM = "autopar"  # by which a file is known to be ours
_PROCESS = 1  # one run is one process; its lanes are the process's threads
_PER_SECOND = 1e6  # the format counts in microseconds


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """A timeline as a Chrome trace: a dictionary to be written as JSON.

    Times count from the start of the first span, in microseconds, to the nanosecond. Lanes are
    threads, numbered in the order of their first use. A timeline without spans gives a trace
    without events.

    >>> trace = trace_events(Timeline((Span("mm", "stream", 2.0, 2.5),)))
    >>> [event for event in trace["traceEvents"] if event["ph"] == "X"]
    ... # doctest: +NORMALIZE_WHITESPACE
    [{'name': 'mm', 'cat': 'compute', 'ph': 'X', 'ts': 0.0, 'dur': 500000.0,
      'pid': 1, 'tid': 1}]
    """
    start_s = timeline.start_s if timeline.spans else 0.0
    threads = {lane: tid for tid, lane in enumerate(timeline.lanes, start=1)}
    events: list[dict[str, Any]] = [_metadata("process_name", 0, {"name": PROGRAM})]
    for lane, tid in threads.items():
        events.append(_metadata("thread_name", tid, {"name": lane}))
        # Without it viewers sort by name, and lanes move between two traces of one program.
        events.append(_metadata("thread_sort_index", tid, {"sort_index": tid}))
    events += [_event(span, threads[span.lane], start_s) for span in timeline.spans]
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
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_trace(Timeline((Span("mm", "stream", 0.0, 1.0),)), f"{folder}/run.json")
    ...     print([file.name for file in Path(folder).iterdir()])
    ['run.json']
    """
    path = Path(path)
    if not path.parent.is_dir():
        msg = f"path is {str(path)!r}, but there is no folder {str(path.parent)!r}; make it first."
        raise FileNotFoundError(msg)
    text = json.dumps(trace_events(timeline), allow_nan=False)
    write_atomically(path, text)


def _event(span: Span, tid: int, start_s: float) -> dict[str, Any]:
    return {
        "name": span.name,
        "cat": span.kind,
        "ph": "X",
        "ts": round((span.start_s - start_s) * _PER_SECOND, 3),
        "dur": round(span.duration_s * _PER_SECOND, 3),
        "pid": _PROCESS,
        "tid": tid,
    }


def _metadata(name: str, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": _PROCESS, "tid": tid, "args": args}
