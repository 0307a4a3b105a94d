"""Graph lanes: how many a graph's plans have, given or by what was faster; and the open ones."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch

from autopar.device import new_stream
from autopar.graph.execution import BROKEN_OFF, Execution
from autopar.graph.plan import Plan
from autopar.lanes.clock import device_clock
from autopar.lanes.cpu import cpu_lane
from autopar.lanes.lane import Lane
from autopar.refusal import whole_number

_CPU_LANES, _STREAMS = 4, 4  # where there may be several
_MOST = 1024  # each is a thread, or a stream
_GAIN = 0.05  # several lanes must gain this much, as their times vary more
_MOST_ROUNDS, _ENOUGH_S = 15, 0.2  # more rounds than were asked for, as long as they are this quick
_SETTLED_S = 5e-3  # by then threads of other runs have ceased to look for work, and sleep


class LaneCounts(NamedTuple):
    """How many lanes a plan has."""

    cpu_lanes: int = 1
    streams: int = 1  # of each GPU


_Plans = Mapping[LaneCounts, Plan]
_WallS = Callable[[Plan, bool], float]


class GraphLanes:
    """The lanes and streams of a graph; as a context manager it keeps them between runs."""

    def __init__(self, cpu_lanes: int | None, streams: int | None) -> None:
        most = LaneCounts(min(_CPU_LANES, os.cpu_count() or 1), _STREAMS)
        counts = {"cpu_lanes": cpu_lanes, "streams": streams}
        said = {name: count for name, count in counts.items() if count is not None}
        given = {name: whole_number(name, count, most=_MOST) for name, count in said.items()}
        self.few, self.many = LaneCounts(**given), most._replace(**given)
        self.best: LaneCounts | None = None  # of these, if measured runs were faster with it
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._lanes: dict[tuple[str, int], Lane] = {}  # by name and threads
        self._kept: contextlib.ExitStack | None = None

    def __enter__(self) -> Self:
        if self._kept is not None:
            msg = "the graph's lanes are open already; expected one `with graph:` at a time."
            raise RuntimeError(msg)
        self._kept = contextlib.ExitStack()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._let_go()
        finally:
            self._let_go()  # also of those that Ctrl-C has kept from it
            self._kept = None

    def kept(self) -> contextlib.AbstractContextManager[object]:
        """Keep lanes for a while, if they are not kept already; none but those opened meanwhile."""
        self._let_go()
        return self if self._kept is None else contextlib.nullcontext()

    def choose(self, plans: _Plans, repeats: int, wall_s: _WallS) -> None:
        """Choose how many lanes there are from now on; see `fastest`."""

        def settled_s(plan: Plan, here: bool) -> float:
            self._let_go()  # of the lanes of other plans
            time.sleep(_SETTLED_S)
            wall_s(plan, here)  # it wakes its own threads
            return wall_s(plan, here)

        self.best = fastest(plans, repeats, settled_s)
        self._let_go()

    def _let_go(self) -> None:
        """Leave the lanes that are kept: where there are more threads, all wait for work asleep."""
        self._lanes = {}  # first, as Ctrl-C may come between
        if self._kept is not None:
            self._kept.close()

    def carrying_out(self, run: Execution, *, here: bool) -> Iterator[None]:
        """Start a run, or do it all `here` if it can be, and wait for it at the next step."""
        here = here and run.plan._is_for_one_thread
        with contextlib.ExitStack() as opened:
            lanes: dict[str, Lane] = {}
            try:
                if here:
                    run.do_here()
                else:
                    streams = {} if run.in_order else self._streams_of(run.plan._gpu_of_lane)
                    lanes = self._lanes_for(run, streams, opened)
                    _under_way.add(run)
                    run.start(lanes, streams)
                yield
                run.join()
            except BaseException:
                run.errors += BROKEN_OFF
                raise
            finally:
                try:
                    for lane in lanes.values():
                        lane.wait()
                    run.wall_s = time.perf_counter() - run.start_s
                finally:
                    _under_way.discard(run)
                    run.left += (True,)

    def _streams_of(self, gpu_of_lane: Mapping[str, torch.device]) -> dict[str, torch.cuda.Stream]:
        for lane, gpu in gpu_of_lane.items():
            if lane not in self._streams:
                device_clock(gpu, max_age_s=1.0)  # while there is no work to disturb
                self._streams[lane] = new_stream(gpu)
        return {lane: self._streams[lane] for lane in gpu_of_lane}

    def _lanes_for(
        self, run: Execution, streams: Mapping[str, Any], opened: contextlib.ExitStack
    ) -> dict[str, Lane]:
        """Lanes by name, a launcher's or a worker's; left afterwards, unless they are kept."""
        threads = max(1, torch.get_num_threads() // run.plan.cpu_lanes)
        there, given = self._lanes if self._kept is not None else {}, {}
        for name, share in run.steps.items():
            launches = any(step.lane in streams for step in share)
            form = name, 1 if launches else threads
            if form not in there:
                lane = cpu_lane(form[1], name=name, kind="host" if launches else "compute")
                (self._kept or opened).push(lane)  # before it is open, and so it is left for sure
                there[form] = lane.__enter__()
            given[name] = there[form]
        return given


_under_way: weakref.WeakSet[Execution] = weakref.WeakSet()


@atexit.register  # after that of lanes, and so called before it
def _break_off_all() -> None:
    """As the process ends, let no run begin anything more."""
    for run in tuple(_under_way):
        run.errors += BROKEN_OFF


def fastest(plans: _Plans, repeats: int, wall_s: _WallS) -> LaneCounts:
    """The fewest lanes, unless by its plan more could gain, and whole runs show it.

    Runs take turns, as a machine has slow times, which are to meet all alike. It has slow cores as
    well, so several lanes must be faster than one in the calling thread and in one of its own.
    `wall_s` runs a plan, in the calling thread if it is told so, and says how long that took.
    """
    (fewest, few), (most, many) = min(plans.items()), max(plans.items())
    if few is many or many._least_s > (1 - _GAIN) * few.makespan_s:
        return fewest
    ways = [(few, True), (few, False), (many, False)][not few._is_for_one_thread :]
    rounds: list[list[float]] = []
    until_s = time.perf_counter() + _ENOUGH_S
    while len(rounds) <= repeats or (len(rounds) <= _MOST_ROUNDS and time.perf_counter() < until_s):
        rounds.append([wall_s(plan, here) for plan, here in ways])
    *few_s, many_s = map(sorted, zip(*rounds[1:], strict=True))  # after one to warm up
    quarter = len(many_s) // 4  # of each may be due to chance
    is_faster = many_s[-1 - quarter] < (1 - _GAIN) * min(one_s[quarter] for one_s in few_s)
    return most if is_faster else fewest
