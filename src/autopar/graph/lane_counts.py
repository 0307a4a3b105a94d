"""Lane counts: how many lanes plans have on a CPU and on each GPU, given or by what was faster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from autopar.graph.node import Node
from autopar.refusal import whole_number

_CPU_LANES, _STREAMS = 4, 4  # where there may be several
_MOST = 1024  # each is a thread, or a stream
_GAIN = 0.05  # several lanes must gain this much, as their times vary more
_MOST_ROUNDS, _ENOUGH_S = 15, 0.2  # more rounds than were asked for, as long as they are this quick


class LaneCounts(NamedTuple):
    """How many lanes a plan has."""

    cpu_lanes: int
    streams: int  # of each GPU


class LaneChoice:
    """The numbers of lanes that plans may have, what was measured with them, and which is best.

    Of what the user has not said there is one, or several.
    """

    def __init__(self, cpu_lanes: int | None, streams: int | None) -> None:
        few = {"cpu_lanes": 1, "streams": 1}
        many = {"cpu_lanes": min(_CPU_LANES, os.cpu_count() or 1), "streams": _STREAMS}
        for name, count in (("cpu_lanes", cpu_lanes), ("streams", streams)):
            if count is not None:
                few[name] = many[name] = whole_number(name, count, most=_MOST)
        self.few, self.many = LaneCounts(**few), LaneCounts(**many)
        self._costs_s: dict[LaneCounts, dict[int, float]] = {}  # by node
        self._best: LaneCounts | None = None

    def measure(
        self,
        nodes: Sequence[Node],
        repeats: int,
        costs_with: Callable[[LaneCounts], dict[int, float]],
        wall_with: Callable[[LaneCounts], float],
    ) -> None:
        """Measure with those that make a difference to some nodes: these, then runs in turn.

        In turn, as a machine has slow times, which are to meet all alike.
        """
        kinds = {node.device.type for node in nodes}
        used = {
            (one.cpu_lanes * ("cpu" in kinds), one.streams * ("cuda" in kinds)): one
            for one in (self.few, self.many)
        }
        self._costs_s = {one: costs_with(one) for one in used.values()}
        best, *others = used.values()
        for many in others:
            walls_s: list[tuple[float, float]] = []
            until_s = time.perf_counter() + _ENOUGH_S
            while len(walls_s) <= repeats or (
                len(walls_s) <= _MOST_ROUNDS and time.perf_counter() < until_s
            ):
                walls_s.append((wall_with(best), wall_with(many)))
            few_s, many_s = map(sorted, zip(*walls_s[1:], strict=True))  # after one to warm up
            quarter = len(few_s) // 4  # of each may be due to chance
            if many_s[-1 - quarter] < (1 - _GAIN) * few_s[quarter]:
                best = many
        self._best = best

    def best(self, *, few: bool) -> LaneCounts:
        """The fewest, unless more were faster than chance explains; if nobody knows, as is said."""
        return self._best or (self.few if few else self.many)

    def costs_s(self, lanes: LaneCounts) -> dict[int, float]:
        """What nodes took with some numbers of lanes, if that was measured."""
        return self._costs_s.get(lanes, {})
