"""Plan: what a run of a graph will do, made before anything runs; data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autopar.graph.guard import Guard
from autopar.graph.node import Node, Result, host_of
from autopar.graph.schedule import Entry, Resource, Schedule, faults, limit_s


@dataclass(frozen=True)
class Plan:
    """What a run will do: tasks and copies on their lanes, with their waits; data.

    Args:
        nodes: Tasks and copies, in the order of the program.
        schedule: Their order, lanes and waits.
        resources: What they take their turns on.
        guard: What tasks have said that they write, to compare with what they do.
        known: Whether all costs were given or measured, and none guessed.
        graph: Whose plan it is.
    """

    nodes: tuple[Node, ...]
    schedule: Schedule
    resources: dict[str, Resource]
    guard: Guard
    known: bool = True
    graph: object = None

    @property
    def makespan_s(self) -> float:
        """What the run will take if each task takes what it is thought to, in seconds."""
        return self.schedule.makespan_s

    @property
    def limit_s(self) -> float:
        """Seconds that no order can beat, by the same costs."""
        return limit_s(self.schedule.jobs, self.resources)

    @functools.cached_property
    def shares(self) -> dict[str, list[Entry]]:
        """What each thread issues, in order: a CPU lane's worker, or a launcher."""
        shares: dict[str, list[Entry]] = {}
        for entry in self.schedule.entries:
            host = host_of(self.nodes[entry.job]) or entry.lane
            shares.setdefault(host, []).append(entry)
        return shares

    @functools.cached_property
    def at_once(self) -> tuple[Callable[[], Any] | None, ...]:
        """Calls by node that need no other's result; none where a node does."""
        return tuple(node.at_once for node in self.nodes)

    @functools.cached_property
    def gpu_of_lane(self) -> dict[str, torch.device]:
        """The GPUs on whose streams lanes are; none for those of the CPU."""
        gpus = {}
        for lane, entries in self.schedule.lanes.items():
            node = self.nodes[entries[0].job]
            found = [gpu for gpu in (node.source, node.device) if gpu and gpu.type == "cuda"]
            if found:
                gpus[lane] = found[0]
        return gpus

    def faults(self) -> list[str]:
        """What is wrong with it: tasks that may begin too early, or never, or far from their data.

        >>> import autopar
        >>> graph = autopar.TaskGraph()
        >>> one = graph.add(torch.ones, 1)
        >>> graph.plan().faults()
        []
        """
        found = faults(self.schedule)
        lane_of = {entry.job: entry.lane for entry in self.schedule.entries}
        for node, job in zip(self.nodes, self.schedule.jobs, strict=True):
            lane = lane_of.get(node.number, "")
            if lane.partition(" #")[0] != node.resource:
                found.append(f"{node.name!r} is on {lane!r}, but runs on {node.resource!r}")
            if not node.before.issubset(job.after):
                found.append(f"{node.name!r} forgets what it comes after")
            for leaf in node.leaves:
                if isinstance(leaf, Result) and node.fn is not None:
                    there = self.nodes[leaf.node].device
                    if there != node.device:
                        found.append(f"{node.name!r} on {node.device} reads a result on {there}")
        return found

    def __str__(self) -> str:
        return str(self.schedule)
