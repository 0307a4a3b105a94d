"""Lane counts: how many lanes plans have on a CPU and on each GPU, given or by what was faster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from autopar.graph.node import Node
from autopar.refusal import whole_number

_CPU_LANES, _STREAMS = 4, 4  # where there may be several
_MOST = 1024  # each is a thread, or a stream
_GAIN = 0.05  # several lanes must gain this much, as their times vary more


class LaneCounts(NamedTuple):
    """How many lanes a plan has."""

    cpu_lanes: int
    streams: int  # of each GPU


class Measured(NamedTuple):
    """What was measured with some numbers of lanes, in seconds."""

    costs_s: dict[int, float]  # by node
    wall_s: float  # of a run


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
        self._measured: dict[LaneCounts, Measured] = {}

    def measure(
        self, nodes: Sequence[Node], measured_with: Callable[[LaneCounts], Measured]
    ) -> None:
        """Measure once with those that make a difference to some nodes."""
        kinds = {node.device.type for node in nodes}
        used = {
            (one.cpu_lanes * ("cpu" in kinds), one.streams * ("cuda" in kinds)): one
            for one in (self.few, self.many)
        }
        self._measured = {one: measured_with(one) for one in used.values()}

    def best(self, *, few: bool) -> LaneCounts:
        """The fewest, unless more were faster than chance explains; if nobody knows, as is said."""
        if not self._measured:
            return self.few if few else self.many
        fewest, *others = self._measured
        enough_s = (1 - _GAIN) * self._measured[fewest].wall_s
        return next((one for one in others if self._measured[one].wall_s < enough_s), fewest)

    def costs_s(self, lanes: LaneCounts) -> dict[int, float]:
        """What nodes took with some numbers of lanes, if that was measured."""
        return self._measured[lanes].costs_s if lanes in self._measured else {}
