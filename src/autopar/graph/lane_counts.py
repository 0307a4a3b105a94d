"""Lane counts: how many lanes plans have on a CPU and on each GPU, given or by what was faster."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
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


def choices(cpu_lanes: int | None, streams: int | None) -> tuple[LaneCounts, LaneCounts]:
    """The fewest and the most lanes that plans may have, by what the user has said."""
    few = {"cpu_lanes": 1, "streams": 1}
    many = {"cpu_lanes": min(_CPU_LANES, os.cpu_count() or 1), "streams": _STREAMS}
    for name, count in (("cpu_lanes", cpu_lanes), ("streams", streams)):
        if count is not None:
            few[name] = many[name] = whole_number(name, count, most=_MOST)
    return LaneCounts(**few), LaneCounts(**many)


def differing(counts: Iterable[LaneCounts], nodes: Sequence[Node]) -> Iterable[LaneCounts]:
    """Those that make a difference to some nodes."""
    kinds = {node.device.type for node in nodes}
    used = {
        (one.cpu_lanes * ("cpu" in kinds), one.streams * ("cuda" in kinds)): one for one in counts
    }
    return used.values()


def fastest(measured: dict[LaneCounts, Measured]) -> LaneCounts:
    """The first, unless a later one was faster than chance explains."""
    few, *others = measured
    enough_s = (1 - _GAIN) * measured[few].wall_s
    return next((one for one in others if measured[one].wall_s < enough_s), few)
