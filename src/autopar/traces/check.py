"""Jobs: work of GPUs as a profiler recorded it, checked for what can't be right."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from autopar.timeline.span import Span
from autopar.traces.trace import Activity, Call, Trace

_TOLERANCE_US = 1.0  # profilers' own clocks agree no better than this
LATEST_US = 1e17  # the year 5138; some profilers count from 1970
LONGEST_US = 1e12  # no profile lasts eleven days
_LONGEST_WAIT_US = 6e7  # a launch that waits for a minute is a launch of something else
_LONGEST_NAME = 80
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
HOST = "host"
_COMMUNICATION = re.compile(r"\bnccl\w*Kernel")  # ncclDevKernel_..., before 2.19 ncclKernel_...


class Job(NamedTuple):
    """A kernel, copy or fill; times are as the profiler wrote them, or NaN.

    Args:
        name: What ran.
        kind: As of a span.
        gpu: Which GPU, in words; empty if the record does not say.
        stream: Which queue of that GPU, in words; empty if the record does not say.
        lane: Where to show it.
        start_us: Start in microseconds.
        duration_us: Duration in microseconds.
        launch: By what the call that asked for it is known.
        size_bytes: What a copy moved.
        memory: As of an activity.
    """

    name: str
    kind: str
    gpu: str
    stream: str
    lane: str
    start_us: float
    duration_us: float
    launch: Hashable = None
    size_bytes: int | None = None
    memory: str | None = None


class Complaints:
    """What is wrong with a record: of each sort the first, and how many there are."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[Any]] = {}

    def add(self, sort: str, name: str, where: str, why: str) -> None:
        """Note that the record of `name` can't be right."""
        first = f"the record of {_short(name)} on {where or 'a GPU'} can't be right: {why}"
        self._found.setdefault((where, sort), [first, 0])[1] += 1

    def sentences(self) -> tuple[str, ...]:
        """All of them, in the order in which they were first met."""
        return tuple(_sentence(first, count) for first, count in self._found.values())

    def doubts(self, gpus: Iterable[str]) -> dict[str, str]:
        """For each GPU of which something is wrong, the first of it."""
        doubts: dict[str, str] = {}
        for (where, _), (first, count) in self._found.items():
            # It may have been on any of them.
            for each in [where] if where else gpus:
                doubts.setdefault(each, _sentence(first, count))
        return doubts


class Row(NamedTuple):
    """A call of the host, or a range that it named; times as of a job.

    Args:
        name: What was called, or what the range is called.
        thread: Which thread, in words.
        start_us: Start in microseconds.
        duration_us: Duration in microseconds.
        launch: By what the jobs that it asked for know it.
    """

    name: str
    thread: str
    start_us: float
    duration_us: float
    launch: Hashable = None


def evidence_of(
    jobs: Iterable[Job],
    calls: Iterable[Row],
    ranges: Iterable[Row],
    complaints: Complaints,
    zero_us: float | None = None,
) -> Trace:
    """What records say, in seconds, with what can't be right of them.

    Those without a time or place are left out. Those that start before their launch or overlap
    another of their stream stay, since nobody can tell which of the two is wrong.

    Args:
        jobs: Work of GPUs.
        calls: Calls of the runtime or driver.
        ranges: Named ranges of host threads.
        complaints: What is known to be wrong already; more is added.
        zero_us: What time is to be zero; if not given, a round one near the others.
    """
    placed = [job for job in jobs if _is_placed(job, complaints)]
    called = sorted((row for row in calls if _is_timed(row, complaints)), key=_start_us)
    named = sorted((row for row in ranges if _is_timed(row, complaints)), key=_start_us)
    if zero_us is None:
        zero_us = _near([*placed, *called, *named])
    made: list[Call] = []
    launches: dict[Hashable, tuple[Row, Call]] = {}
    for row in called:
        call = Call(row.name, row.thread, *_seconds(row, zero_us))
        made.append(call)
        if row.launch is not None:
            # A call of the runtime makes one of the driver, known by the same number.
            launches.setdefault(row.launch, (row, call))
    activities = []
    for job in placed:
        row_and_call = launches.get(job.launch) if job.launch is not None else None
        if row_and_call:
            _check_launch(job, row_and_call[0], complaints)
        span = Span(job.name, job.lane, *_seconds(job, zero_us), job.kind)
        launch = row_and_call[1] if row_and_call else None
        activities.append(Activity(span, launch, job.size_bytes, job.memory, job.gpu, job.stream))
    _check_order(placed, complaints)
    activities.sort(key=lambda activity: activity.span.start_s)
    return Trace(
        tuple(activities),
        tuple(made),
        _host_spans(named, zero_us),
        complaints.sentences(),
        complaints.doubts(dict.fromkeys(job.gpu for job in placed)),
    )


def kernel_kind(name: str) -> str:
    """`communication` for the kernels of NCCL, `compute` for all others."""
    return "communication" if _COMMUNICATION.search(name) else "compute"


def number(value: object) -> float:
    """What a file has as a number, also as text; NaN for all else.

    >>> number(3), number("2.5"), number([1])
    (3.0, 2.5, nan)
    """
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def times(row: Job | Row) -> str:
    """When it was, in words."""
    return f"it starts at {row.start_us} us and takes {row.duration_us} us"


def clean(text: str) -> str:
    """Text that can be printed and drawn: what no file of text may hold is replaced."""
    return _UNWRITABLE.sub("\ufffd", text)


def _short(name: str) -> str:
    # Names of kernels spell out their templates, to thousands of characters.
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...")


def _sentence(first: str, count: int) -> str:
    more = f", and {count - 1:,} more like it" if count > 1 else ""
    return f"{first}{more}."


def _start_us(row: Job | Row) -> float:
    return row.start_us


def _seconds(row: Job | Row, zero_us: float) -> tuple[float, float]:
    start_us = row.start_us - zero_us
    return start_us / 1e6, (start_us + row.duration_us) / 1e6


def _near(rows: Sequence[Job | Row]) -> float:
    """A time in whole thousands of seconds, near most of the others.

    Seconds since 1970 would have steps of a quarter of a microsecond. Of all times the first is
    the likeliest to be wrong.
    """
    middle = sorted(map(_start_us, rows))[len(rows) // 2] if rows else 0.0
    return middle // 1e9 * 1e9


def _is_placed(job: Job, complaints: Complaints) -> bool:
    # So written that NaN is refused.
    if not (0 < job.start_us < LATEST_US and 0 < job.duration_us < LONGEST_US):
        complaints.add("time", job.name, job.gpu, times(job))
        return False
    if not (job.gpu and job.stream):
        why = f"at {job.start_us} us it does not say of which GPU and stream it is"
        complaints.add("place", job.name, job.gpu, why)
        return False
    return True


def _is_timed(row: Row, complaints: Complaints) -> bool:
    # A call may be too short for its clock; a kernel is not.
    if 0 < row.start_us < LATEST_US and 0 <= row.duration_us < LONGEST_US:
        return True
    complaints.add("time", row.name, HOST, times(row))
    return False


def _check_launch(job: Job, launch: Row, complaints: Complaints) -> None:
    after_us = job.start_us - launch.start_us
    if after_us < -_TOLERANCE_US:
        why = f"at {job.start_us} us it starts {-after_us:.3f} us before its launch"
        complaints.add("launch", job.name, job.gpu, why)
    elif after_us > _LONGEST_WAIT_US:
        why = f"at {job.start_us} us it starts {after_us / 1e6:.0f} s after its launch"
        complaints.add("wait", job.name, job.gpu, why)


def _check_order(jobs: Iterable[Job], complaints: Complaints) -> None:
    last: dict[tuple[str, str], Job] = {}
    for job in sorted(jobs, key=_start_us):
        before = last.get((job.gpu, job.stream))
        end_us = before.start_us + before.duration_us if before else 0.0
        if before and end_us - job.start_us > _TOLERANCE_US:
            why = (
                f"at {job.start_us} us it overlaps {_short(before.name)} of its stream "
                f"by {end_us - job.start_us:.3f} us"
            )
            complaints.add("order", job.name, job.gpu, why)
        if job.start_us + job.duration_us > end_us:
            last[job.gpu, job.stream] = job


def _host_spans(rows: Sequence[Row], zero_us: float) -> tuple[Span, ...]:
    """Ranges as spans; the first thread to open one is the host, others go by their name."""
    main = rows[0].thread if rows else None
    return tuple(
        Span(
            row.name,
            HOST if row.thread == main else f"{HOST} {row.thread}",
            *_seconds(row, zero_us),
            HOST,
        )
        for row in rows
    )
