"""Idle: why a GPU had nothing to do, gap by gap."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from autopar.traces.trace import Activity, ApiCall
from autopar.traces.utilization import Usage

SMALL_S = 10e-6  # about what one launch costs the host; a shorter kernel can't keep a GPU busy
NOISE_S = 2e-6  # shorter gaps are between any two kernels, and within a profiler's own error

_HELD_BACK = re.compile(
    r"(?:(?P<synchronised>cuda(?:Device|Stream|Event|Thread)Synchronize"
    r"|cu(?:Ctx|Stream|Event)Synchronize"
    r"|cu(?:da)?Memcpy(?:2D|3D|ToSymbol|FromSymbol|DtoH|HtoD|DtoD)?)"
    r"|(?P<allocated>(?:cudaMalloc|cuMemAlloc)(?:Host|Managed|Pitch)?"
    r"|cu(?:da|Mem)(?:Free(?:Host)?|Host(?:Alloc|Register|Unregister))"
    r"|cuMem(?:Create|Map|Unmap|Release|SetAccess)))"
    r"(?:_v\d+|_ptsz|_ptds)*"  # cudaMalloc_v3020, cuMemAlloc_v2, cudaMemcpy_ptds
)


class Gap(NamedTuple):
    """A stretch in which a GPU was idle."""

    start_s: float  # when its work ran out
    end_s: float  # when its next work began
    cause: str  # a key of `findings.CAUSES`
    next: Activity | None = None  # that next work, if any came
    call: ApiCall | None = None  # of the host that it is due to, if it is due to one

    @property
    def duration_s(self) -> float:
        """End minus start, in seconds."""
        return self.end_s - self.start_s


def gaps_of(usage: Usage, calls: Iterable[ApiCall]) -> list[Gap]:
    """Each gap of a GPU with its cause, by start; those within the profiler's error are left out.

    A gap has one cause. A call that waits is one if the work ran out within it, and what ran next
    was launched by the same thread after it; where the trace does not tell what launched it, the
    first is enough.
    """
    host = _Host(calls, usage.activities)
    following = {work.span.start_s: work for work in reversed(usage.activities)}
    return [
        _explained(start_s, end_s, following.get(end_s), host)
        for start_s, end_s in usage.idle.tolist()
        if end_s - start_s > NOISE_S
    ]


@cache
def held_back(name: str) -> str:
    """The cause of a gap that a call of this name can be; empty if of none.

    >>> held_back("cudaStreamSynchronize_v3020"), held_back("cuMemAlloc_v2")
    ('synchronised', 'allocated')
    """
    match = _HELD_BACK.fullmatch(name)
    return match.lastgroup or "" if match else ""


def _explained(start_s: float, end_s: float, after: Activity | None, host: _Host) -> Gap:
    if after is None:
        return Gap(start_s, end_s, "ended")
    launch = after.launch
    if waits := host.inside(start_s, "synchronised", launch):
        return Gap(start_s, end_s, "synchronised", after, waits)
    allocates = host.inside(start_s, "allocated", launch) or host.most_of(start_s, end_s, launch)
    if allocates:
        return Gap(start_s, end_s, "allocated", after, allocates)
    if launch is None:
        return Gap(start_s, end_s, "unknown", after)
    if launch.end_s <= start_s:  # it stood in the queue when the GPU ran out of work
        return Gap(start_s, end_s, "queued", after, launch)
    small = after.span.kind == "compute" and after.span.duration_s < SMALL_S
    near = end_s - start_s < 10 * SMALL_S  # after a longer gap its size is not what matters
    return Gap(start_s, end_s, "small" if small and near else "late", after, launch)


class _Host:
    """Calls that hold back their thread, to be found by time."""

    def __init__(self, calls: Iterable[ApiCall], activities: Iterable[Activity]) -> None:
        # A copy from or to pageable memory holds back its caller, whatever the call's name says.
        pageable = [a.launch for a in activities if a.launch and a.memory == "pageable"]
        causes = [*((call, "synchronised") for call in pageable)]
        causes += [(call, cause) for call in calls if (cause := held_back(call.name))]
        # cause, thread -> calls in order; one within another is left out
        self._calls: dict[tuple[str, str], list[ApiCall]] = {}
        for call, cause in sorted(causes, key=lambda pair: (pair[0].start_s, -pair[0].end_s)):
            of_thread = self._calls.setdefault((cause, call.thread), [])
            if not of_thread or call.end_s > of_thread[-1].end_s:
                of_thread.append(call)

    def inside(self, at_s: float, cause: str, launch: ApiCall | None) -> ApiCall | None:
        """A call of a cause that is under way at a moment, and ends before a later launch."""
        for calls in self._of(cause, launch):
            place = bisect_right(calls, at_s, key=_START) - 1
            if place >= 0 and calls[place].end_s >= at_s and _before(calls[place], launch):
                return calls[place]
        return None

    def most_of(self, start_s: float, end_s: float, launch: ApiCall | None) -> ApiCall | None:
        """The longest allocation in a gap, if allocations before the launch fill half of it."""
        for calls in self._of("allocated", launch):
            first, last = (bisect_right(calls, at_s, key=_START) for at_s in (start_s, end_s))
            within = [call for call in calls[first:last] if _before(call, launch)]
            spent_s = sum(min(call.end_s, end_s) - call.start_s for call in within)
            if within and spent_s >= (end_s - start_s) / 2:
                return max(within, key=lambda call: call.end_s - call.start_s)
        return None

    def _of(self, cause: str, launch: ApiCall | None) -> list[list[ApiCall]]:
        """The calls of a cause by the thread that launched, or by each where none is known."""
        if launch:
            return [self._calls.get((cause, launch.thread), [])]
        return [calls for (of_cause, _), calls in self._calls.items() if of_cause == cause]


_START = attrgetter("start_s")


def _before(call: ApiCall, launch: ApiCall | None) -> bool:
    return launch is None or call.end_s <= launch.start_s + NOISE_S
