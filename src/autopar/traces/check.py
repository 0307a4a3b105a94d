"""Check: what a profiler recorded, entry by entry, looked through for what can't be right."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from autopar.timeline.span import Span
from autopar.traces.trace import Activity, ApiCall, Trace

_TOLERANCE_US = 1.0  # profilers' own clocks agree no better than this
LATEST_US = 1e17  # the year 5138; some profilers count from 1970
LONGEST_US = 1e12  # no profile lasts eleven days
_LONGEST_WAIT_US = 6e7  # a launch that waits for a minute is a launch of something else
_LONGEST_NAME = 80
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
HOST = "host"
_COMMUNICATION = re.compile(r"\bnccl\w*Kernel")  # ncclDevKernel_..., before 2.19 ncclKernel_...
_DIRECTIONS = {"HtoD": "from host", "HtoA": "from host", "DtoH": "to host", "AtoH": "to host"}
_DIRECTIONS |= {"PtoP": "to a peer", "DtoD": "within"}
_DIRECTION = re.compile("|".join(_DIRECTIONS))
_MEMORY = re.compile(r"\b(Pinned|Pageable)\b")
_START = attrgetter("start_us")


class Entry(NamedTuple):
    """Work of a GPU, a call of the host or a range that it named, as a profiler wrote it.

    Args:
        name: What ran, was called, or what the range is called.
        where: Which GPU, in words, or the host; empty if the record does not say.
        lane: Where to show it; for calls and ranges the thread, in words.
        start_us: Start in microseconds, or NaN.
        duration_us: Duration in microseconds, or NaN.
        launch: By what a call and the work that it asked for know each other.
        kind: As of a span.
        stream: Which queue of the GPU, in words; empty if the record does not say.
        size_bytes: What a copy moved.
        memory: As of an activity.
    """

    name: str
    where: str
    lane: str
    start_us: float
    duration_us: float
    launch: Hashable = None
    kind: str = HOST
    stream: str = ""
    size_bytes: int | None = None
    memory: str | None = None

    @property
    def end_us(self) -> float:
        """End in microseconds."""
        return self.start_us + self.duration_us

    @property
    def times(self) -> str:
        """When it was, in words."""
        return f"it starts at {self.start_us} us and takes {self.duration_us} us"


class Complaints:
    """What is wrong with a record: of each sort the first, and how many there are."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], list[Any]] = {}

    def add(self, sort: str, name: str, where: str, why: str) -> None:
        """Note that the record of `name` can't be right."""
        first = f"the record of {_short(name)} on {where or 'a GPU'} can't be right: {why}"
        self._first.setdefault((where, sort), [first, 0])[1] += 1

    def sentences(self) -> tuple[str, ...]:
        """All of them, in the order in which they were first met."""
        return tuple(_sentence(first, count) for first, count in self._first.values())

    def doubts(self, gpus: Iterable[str]) -> dict[str, str]:
        """For each GPU of which something is wrong, the first of it."""
        doubts: dict[str, str] = {}
        for (where, _), (first, count) in self._first.items():
            # It may have been on any of them.
            for gpu in [where] if where else gpus:
                doubts.setdefault(gpu, _sentence(first, count))
        return doubts


def evidence_of(
    work: Iterable[Entry],
    calls: Iterable[Entry],
    ranges: Iterable[Entry],
    complaints: Complaints,
    zero_us: float | None = None,
) -> Trace:
    """What records say, in seconds, with what can't be right of them.

    Those without a time or place are left out. Those that start before their launch or overlap
    another of their stream stay, since nobody can tell which of the two is wrong.

    Args:
        work: Work of GPUs.
        calls: Calls of the runtime or driver.
        ranges: Named ranges of host threads.
        complaints: What is known to be wrong already; more is added.
        zero_us: What time is to be zero; if not given, a round one near the others.
    """
    work, calls, ranges = (
        sorted((entry for entry in entries if _is_usable(entry, complaints)), key=_START)
        for entries in (work, calls, ranges)
    )
    if zero_us is None:
        zero_us = _near([*work, *calls, *ranges])
    api_calls = [ApiCall(call.name, call.lane, *_seconds(call, zero_us)) for call in calls]
    launches: dict[Hashable, tuple[Entry, ApiCall]] = {}
    for call, api_call in zip(calls, api_calls, strict=True):
        # A call of the runtime makes one of the driver, known by the same number.
        launches.setdefault(call.launch, (call, api_call))
    launches.pop(None, None)
    activities = []
    for entry in work:
        asked, launch = launches.get(entry.launch, (None, None))
        if asked:
            _check_launch(entry, asked, complaints)
        span = Span(entry.name, entry.lane, *_seconds(entry, zero_us), entry.kind)
        where = (entry.where, entry.stream)
        activities.append(Activity(span, launch, entry.size_bytes, entry.memory, *where))
    _check_order(work, complaints)
    return Trace(
        tuple(activities),
        tuple(api_calls),
        _host_spans(ranges, zero_us),
        complaints.sentences(),
        complaints.doubts(sorted({entry.where for entry in work})),
    )


def kernel_kind(name: str) -> str:
    """`communication` for the kernels of NCCL, `compute` for all others."""
    return "communication" if _COMMUNICATION.search(name) else "compute"


def as_copy(entry: Entry, size: object) -> Entry:
    """A copy with what its name tells, such as `Memcpy DtoH (Device -> Pinned)`, and its size."""
    way, memory = _DIRECTION.search(entry.name), _MEMORY.search(entry.name)
    return entry._replace(
        lane=f"{entry.where} copies {_DIRECTIONS[way[0]] if way else 'of another kind'}",
        size_bytes=size if type(size) is int and size >= 0 else None,
        memory=memory[0].lower() if memory else None,
    )


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


def clean(text: str) -> str:
    """Text that can be printed and drawn: what no file of text may hold is replaced."""
    return _UNWRITABLE.sub("\ufffd", text)


def _short(name: str) -> str:
    # Names of kernels spell out their templates, to thousands of characters.
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...")


def _sentence(first: str, count: int) -> str:
    more = f", and {count - 1:,} more like it" if count > 1 else ""
    return f"{first}{more}."


def _seconds(entry: Entry, zero_us: float) -> tuple[float, float]:
    start_us = entry.start_us - zero_us
    return start_us / 1e6, (start_us + entry.duration_us) / 1e6


def _near(entries: Sequence[Entry]) -> float:
    """A time in whole thousands of seconds, near most of the others.

    Seconds since 1970 would have steps of a quarter of a microsecond. Of all times the first is
    the likeliest to be wrong.
    """
    middle = sorted(map(_START, entries))[len(entries) // 2] if entries else 0.0
    return middle // 1e9 * 1e9


def _is_usable(entry: Entry, complaints: Complaints) -> bool:
    on_host = entry.where == HOST
    # A call may be too short for its clock; a kernel is not. So written that NaN is refused.
    lasts = 0 < entry.duration_us < LONGEST_US or (on_host and entry.duration_us == 0)
    if not (lasts and 0 < entry.start_us < LATEST_US):
        complaints.add("time", entry.name, entry.where, entry.times)
        return False
    if not (on_host or (entry.where and entry.stream)):
        why = f"at {entry.start_us} us it does not say of which GPU and stream it is"
        complaints.add("place", entry.name, entry.where, why)
        return False
    return True


def _check_launch(work: Entry, call: Entry, complaints: Complaints) -> None:
    after_us = work.start_us - call.start_us
    if after_us < -_TOLERANCE_US:
        why = f"at {work.start_us} us it starts {-after_us:.3f} us before its launch"
        complaints.add("launch", work.name, work.where, why)
    elif after_us > _LONGEST_WAIT_US:
        why = f"at {work.start_us} us it starts {after_us / 1e6:.0f} s after its launch"
        complaints.add("wait", work.name, work.where, why)


def _check_order(work: Iterable[Entry], complaints: Complaints) -> None:
    """Look for overlaps within a stream, in work by its start."""
    last: dict[tuple[str, str], Entry] = {}
    for entry in work:
        before = last.get((entry.where, entry.stream))
        if before and before.end_us - entry.start_us > _TOLERANCE_US:
            why = (
                f"at {entry.start_us} us it overlaps {_short(before.name)} of its stream "
                f"by {before.end_us - entry.start_us:.3f} us"
            )
            complaints.add("order", entry.name, entry.where, why)
        if not before or entry.end_us > before.end_us:
            last[entry.where, entry.stream] = entry


def _host_spans(ranges: Sequence[Entry], zero_us: float) -> tuple[Span, ...]:
    """Ranges as spans; the first thread to open one is the host, others go by their name."""
    main = ranges[0].lane if ranges else ""
    lanes = {entry.lane: f"{HOST} {entry.lane}" for entry in ranges} | {main: HOST}
    return tuple(
        Span(entry.name, lanes[entry.lane], *_seconds(entry, zero_us), HOST) for entry in ranges
    )
