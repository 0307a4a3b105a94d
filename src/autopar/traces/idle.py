"""Idle: when a GPU had nothing to do, and which call kept the host from launching more."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from autopar.traces.trace import Activity, ApiCall
from autopar.traces.utilization import Usage

NOISE_S = 2e-6  # shorter gaps are between any two kernels, and within a profiler's own error
# Calls that wait for the GPU, and such as allocate or free: `cudaMalloc_v3020`, `cuMemcpyDtoH_v2`.
_HOLDS_BACK = re.compile(
    r"(?!.*(?:Async|Peer))cu(?:(?P<synchronised>\w+Synchronize|(?:da)?Memcpy)"
    r"|(?P<allocated>(?:da|Mem)(?:Host)?(?:Malloc|Alloc|Free|Register|Unregister)"
    r"|Mem(?:Create|Map|Unmap|Release|SetAccess)))"
)
_START, _END = attrgetter("start_s"), attrgetter("end_s")


class Gap(NamedTuple):
    """A stretch in which a GPU was idle."""

    start_s: float  # when its work ran out
    end_s: float  # when its next work began
    next: Activity | None  # that next work, if any came
    call: ApiCall | None  # the call that kept the host from launching it, or that launched it
    held: str  # how the host was held back: `synchronised`, `allocated`, or not

    @property
    def duration_s(self) -> float:
        """End minus start, in seconds."""
        return self.end_s - self.start_s

    @property
    def is_late(self) -> bool:
        """Whether the next work was not launched yet when the GPU ran out of work."""
        return self.call is not None and self.call.end_s > self.start_s


@cache
def held_back(name: str) -> str:
    """How a call of this name holds its thread back; empty if it does not."""
    match = _HOLDS_BACK.match(name)
    return match.lastgroup or "" if match else ""


def gaps_of(usage: Usage, calls: Iterable[ApiCall]) -> list[Gap]:
    """Each gap of a GPU, by start; those within the profiler's error are left out."""
    pageable = [work.launch for work in usage.activities if work.memory == "pageable"]
    holding = [call for call in calls if held_back(call.name)]
    threads = _by_thread([*holding, *(call for call in pageable if call)])
    following = {work.span.start_s: work for work in reversed(usage.activities)}
    gaps = []
    for start_s, end_s in usage.idle.tolist():
        if end_s - start_s > NOISE_S:
            work = following.get(end_s)
            launch = work.launch if work else None
            call = _holder(threads, start_s, end_s, launch) if work else None
            # A copy of pageable memory waits, whatever the name of its call says.
            held = (held_back(call.name) or "synchronised") if call else ""
            gaps.append(Gap(start_s, end_s, work, call or launch, held))
    return gaps


def _by_thread(calls: Iterable[ApiCall]) -> dict[str, list[ApiCall]]:
    """The calls of each thread in order; one within another is left out."""
    threads: dict[str, list[ApiCall]] = {}
    for call in sorted(calls, key=lambda call: (call.start_s, -call.end_s)):
        earlier = threads.setdefault(call.thread, [])
        if not earlier or call.end_s > earlier[-1].end_s:
            earlier.append(call)
    return threads


def _holder(
    threads: Mapping[str, Sequence[ApiCall]], start_s: float, end_s: float, launch: ApiCall | None
) -> ApiCall | None:
    """The call that was under way as the work ran out, or the longest if some fill half a gap.

    They end before their thread launches the next work; if the trace has no launch, any may count.
    """
    latest_s = launch.start_s + NOISE_S if launch else math.inf
    for calls in [threads.get(launch.thread, [])] if launch else threads.values():
        first, last = bisect_left(calls, start_s, key=_END), bisect_right(calls, end_s, key=_START)
        within = [call for call in calls[first:last] if call.end_s <= latest_s]
        if within and within[0].start_s <= start_s:
            return within[0]
        spent_s = sum(min(call.end_s, end_s) - call.start_s for call in within)
        if within and spent_s >= (end_s - start_s) / 2:
            return max(within, key=lambda call: call.end_s - call.start_s)
    return None
