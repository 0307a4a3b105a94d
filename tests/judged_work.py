"""Traces of copies and communication with a known answer, each with a twin without the cause."""

from __future__ import annotations

from collections.abc import Sequence

from trace_builder import Activity, copy, kernel, trace

from autopar.traces.trace import Trace


def exposed(*work: Activity) -> Trace:
    """Work from 4 ms on, behind a kernel that ends then and before one that begins at 8."""
    return trace(kernel(0, 4), *work, kernel(8, 12))


def copies_between(stream: str) -> Trace:
    work = [kernel(i * 3, i * 3 + 2) for i in range(3)]
    return trace(*work, *(copy(i * 3 + 2, i * 3 + 3, stream=stream) for i in range(3)))


# What it is, its cause and cost in ms, the trace, and its twin.
OF_WORK: Sequence[tuple[str, str, float, Trace, Trace]] = [
    (
        "an exchange",
        "communication",
        4,
        exposed(kernel(4, 8, stream="20", kind="communication")),
        trace(kernel(0, 12), kernel(4, 8, stream="20", kind="communication")),
    ),
    (
        "an exchange where nothing is computed",
        "communication",
        4,
        exposed(kernel(4, 8, stream="20", kind="communication")),
        trace(kernel(4, 8, stream="20", kind="communication")),
    ),
    (
        "pageable memory",
        "pageable",
        4,
        exposed(copy(4, 8, memory="pageable", size=8_000_000)),
        exposed(copy(4, 8, memory="pinned", size=8_000_000)),
    ),
    (
        "pageable memory behind computing",
        "pageable",
        4,
        exposed(copy(4, 8, memory="pageable")),
        trace(kernel(0, 12), copy(4, 8, memory="pageable")),
    ),
    (
        "small copies",
        "small copies",
        4,
        exposed(copy(4, 8, size=65_535)),
        exposed(copy(4, 8, size=65_536)),
    ),
    ("size unknown", "bare copies", 4, exposed(copy(4, 8, size=None)), exposed(copy(4, 8, size=1))),
    ("one stream", "one stream", 3, copies_between("7"), copies_between("9")),
    ("a side stream that comes late", "bare copies", 3, copies_between("9"), copies_between("7")),
    (
        "copies over the bus",
        "bare copies",
        4,
        exposed(copy(4, 8, way="from host")),
        exposed(copy(4, 8, way="within")),
    ),
    (
        "no more than is computed",
        "bare copies",
        2,
        trace(kernel(0, 2), copy(2, 102)),
        trace(copy(2, 102)),
    ),
]
