"""Own: evidence from the traces that `write_trace` wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from autopar.timeline.chrome_trace import PROGRAM
from autopar.timeline.span import Span
from autopar.traces.check import LATEST_US, LONGEST_US, Complaints, Row, clean, number, times
from autopar.traces.trace import Activity, Trace

_GPU = re.compile(r"(?:\w+ \d+ )?GPU \d+")
_STREAM = re.compile(r"stream \S+$")


def own_trace(
    rows: Iterable[tuple[str, str, Row]],
    lanes: Mapping[str, str],
    header: Mapping[str, Any],
    complaints: Complaints,
) -> Trace:
    """What `write_trace` wrote: times count from zero, and nothing has a launch.

    Args:
        rows: Kind, thread and times of each span.
        lanes: What the threads are called.
        header: What stands beside the events in the file.
        complaints: What is known to be wrong already; more is added.
    """
    activities, ranges = [], []
    for kind, thread, row in rows:
        lane = lanes.get(thread) or f"thread {thread}"
        gpu, stream = _GPU.match(lane), _STREAM.search(lane)
        where, start_us = gpu[0] if gpu else "", row.start_us
        if not (0 <= start_us < LATEST_US and 0 <= row.duration_us < LONGEST_US):
            complaints.add("time", row.name, where or lane, times(row))
            continue
        if thread not in lanes:
            complaints.add("lane", row.name, lane, "its lane has no name")
        end_us = start_us + row.duration_us
        span = Span(row.name, lane, start_us / 1e6, end_us / 1e6, kind)
        if kind == "host":
            ranges.append(span)
        else:
            activities.append(Activity(span, gpu=where, stream=stream[0] if stream else ""))
    about = header.get("otherData")
    about = about if isinstance(about, dict) else {}
    error_s = number(about.get("alignment_error_s"))
    return Trace(
        tuple(activities),
        ranges=tuple(ranges),
        warnings=complaints.sentences(),
        doubts=complaints.doubts(()),
        origin=clean(str(about.get("origin") or f"a trace of {PROGRAM}")),
        alignment_error_s=error_s if 0 <= error_s < LONGEST_US else 0.0,
    )
