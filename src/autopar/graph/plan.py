"""Plan: what a run of a graph will do, made before anything runs; data."""

from __future__ import annotations

import functools
import operator
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from autopar.effects.memory import Closed
from autopar.graph.hazards import Hazards
from autopar.graph.node import Node, Result
from autopar.graph.program import Program
from autopar.graph.schedule import Entry, Job, Resource, Schedule, faults, limit_s, schedule
from autopar.timeline.span import Span, Timeline
from autopar.timing.measurement import format_seconds

_CHAIN = 0.8  # of all work: several lanes could save a fifth at most, and share out the threads
_GUESSED_S = 100e-6  # a task that nobody has measured, and no other either
_MOST_NAMES = 5  # that are shown
_Lanes = tuple[int, int]  # CPU lanes, and streams of each GPU
_GUESSED = "some costs are guessed: take them by graph.measure(), or give cost_s"


class Step(NamedTuple):
    """What a thread does for one entry of its share, with all that is known before the run."""

    job: int  # the node's number
    call: Callable[..., Any]
    values: Callable[[list[Any]], Sequence[Any]]  # takes what to call it with out of a run's memory
    waits: tuple[int, ...]  # nodes on other lanes whose ends it waits for
    done: list[int]  # inner nodes whose results nobody needs after it
    lane: str


# The steps of each thread, and what a run's memory holds behind the results of all nodes.
Steps = tuple[Mapping[str, list[Step]], list[Any]]


@dataclass(frozen=True, repr=False)
class Plan(Closed):
    """What a run will do: tasks and copies on their lanes, with their waits; data.

    Attributes:
        nodes: Tasks and copies, in the order of the program.
        schedule: Their order, lanes and waits.
        resources: What they take their turns on.
        known: Whether all costs were given or measured, and none guessed.

    >>> import autopar as ap
    >>> import torch
    >>> graph = ap.TaskGraph(cpu_lanes=2)
    >>> _ = graph.add(torch.ones, 1, cost_s=1.0), graph.add(torch.zeros, 1, cost_s=1.0)
    >>> graph.plan().makespan_s, graph.plan().faults()
    (1.0, [])
    """

    nodes: tuple[Node, ...]
    schedule: Schedule
    resources: dict[str, Resource]
    _hazards: Hazards  # what tasks have said that they read and write
    _watched: list[list[Any]]  # by node what it must not change
    known: bool = True
    _inner: frozenset[int] = frozenset()  # nodes whose results nobody can ask a run for
    _graph: object = None  # whose plan it is

    @property
    def makespan_s(self) -> float:
        """What the run will take if each task takes what it is thought to, in seconds."""
        return self.schedule.makespan_s

    @property
    def limit_s(self) -> float:
        """Seconds that no order can beat, by the same costs."""
        return limit_s(self.schedule.jobs, self.resources)

    @property
    def _least_s(self) -> float:
        """The limit if also all streams of a GPU ran at the same time, each as fast as alone."""
        at_once = {name: Resource(one.lanes, one.lanes) for name, one in self.resources.items()}
        return limit_s(self.schedule.jobs, at_once)

    @property
    def arrows(self) -> dict[str, float]:
        """What comes after what, by name, as 1 for a wait and 0 if the order on lanes implies it.

        Numbers, so that a record can keep them, and `plot.graph` draw a run of it.
        """
        jobs = self.schedule.jobs
        return {
            f"{jobs[before].name} -> {jobs[entry.job].name}": float(before in entry.waits)
            for entry in self.schedule.entries
            for before in {*jobs[entry.job].after, *entry.waits}
        }

    @property
    def timeline(self) -> Timeline:
        """When each task and copy would run, from zero on, to hold a run's timeline against."""
        places = [(self.nodes[entry.job], entry) for entry in self.schedule.entries]
        return Timeline(
            tuple(Span(one.name, at.lane, at.start_s, at.end_s, one.kind) for one, at in places)
        )

    @functools.cached_property
    def _is_for_one_thread(self) -> bool:
        """Whether the thread that asks for a run can do it all, on its own current streams.

        There is one lane then. A function that is not torch's may queue something on a GPU, and
        that must not be mixed with what the caller has queued there.
        """
        copies = any(node.source is not None for node in self.nodes)
        if copies or len(self.schedule.lanes) != 1 or self.cpu_lanes != 1:
            return False
        in_use = bool(self._gpu_of_lane) or torch.cuda.is_initialized()
        return not (in_use and any(node.may_queue for node in self.nodes))

    @property
    def cpu_lanes(self) -> int:
        """How many CPU workers share out torch's threads."""
        return self.resources.get("cpu", Resource()).lanes

    @functools.cached_property
    def _may_use_gpus(self) -> bool:
        """Whether tasks of the CPU may queue something on a GPU, or return what lies there."""
        return not all(node.traced for node in self.nodes)

    @functools.cached_property
    def _awaited(self) -> frozenset[int]:
        """Nodes whose ends others wait for, on other lanes."""
        return frozenset(wait for entry in self.schedule.entries for wait in entry.waits)

    @functools.cached_property
    def _steps(self) -> Steps:
        """What each thread does, in order: a CPU lane's worker, or a launcher."""
        shares: dict[str, list[Entry]] = {}
        for entry in self.schedule.entries:
            host = self.nodes[entry.job].host or entry.lane
            shares.setdefault(host, []).append(entry)
        return self._made(shares)

    @functools.cached_property
    def _steps_in_order(self) -> Steps:
        """What one thread does that does all, in the order of the program, but for `order`."""
        jobs = [job._replace(resource="") for job in self.schedule.jobs]
        entry_of = {entry.job: entry for entry in self.schedule.entries}
        in_turn = [entry.job for entry in schedule(jobs, {"": Resource()}, tries=0).entries]
        return self._made({"one by one": [*map(entry_of.__getitem__, in_turn)]}, on_one_lane=True)

    def _made(self, shares: Mapping[str, Sequence[Entry]], *, on_one_lane: bool = False) -> Steps:
        nodes, constants = self.nodes, list[Any]()
        steps: dict[str, list[Step]] = {host: [] for host in shares}
        done = defaultdict[int, list[int]](list)
        # Of inner results: on which lanes they are, and who reads them last there, or makes them.
        lanes, last = defaultdict[int, set[object]](set), dict[int, int]()
        for host, share in shares.items():
            for job, lane, waits, *_ in share:
                call, leaves = nodes[job].prepared
                slots = []
                for leaf in leaves:
                    is_result = isinstance(leaf, Result)
                    slots.append(leaf.node if is_result else len(nodes) + len(constants))
                    constants += [] if is_result else [leaf]
                watched = self._watched[job]
                if watched:
                    call = functools.partial(self._hazards.call, nodes[job], watched)
                values = (lambda results: (results,)) if watched else taken(slots)
                steps[host].append(Step(job, call, values, waits, done[job], lane))
                for number in self._inner.intersection([job, *slots]):
                    lanes[number].add(on_one_lane or lane)
                    last[number] = job
        for number, where in lanes.items():
            if len(where) == 1:  # elsewhere it may be read later
                done[last[number]].append(number)
        return steps, constants

    @functools.cached_property
    def _gpu_of_lane(self) -> dict[str, torch.device]:
        """The GPUs on whose streams lanes are; none for those of the CPU."""
        used = [(entry.lane, self.nodes[entry.job].gpus) for entry in self.schedule.entries]
        return {lane: gpus[0] for lane, gpus in used if gpus}

    def faults(self) -> list[str]:
        """What is wrong: tasks that may begin too early, or never, or far from their data."""
        wrong = faults(self.schedule)
        lane_of = {entry.job: entry.lane for entry in self.schedule.entries}
        for node, job in zip(self.nodes, self.schedule.jobs, strict=True):
            lane = lane_of.get(node.number, "")
            if lane.partition(" #")[0] != node.resource:
                wrong.append(f"{node.name!r} is on {lane!r}, but runs on {node.resource!r}")
            if not node.before.issubset(job.after):
                wrong.append(f"{node.name!r} forgets what it comes after")
            for leaf in node.leaves:
                if isinstance(leaf, Result) and node.fn is not None:
                    there = self.nodes[leaf.node].device
                    if there != node.device:
                        wrong.append(f"{node.name!r} on {node.device} reads a result on {there}")
        return wrong

    def __str__(self) -> str:
        text = str(self.schedule) if self.known else f"{self.schedule}; {_GUESSED}"
        all_told = zip(self.nodes, self._hazards.told, strict=False)
        names = [repr(node.name) for node, told in all_told if told.unknown]
        if not names or len(self.nodes) == 1:
            return text
        shown = ", ".join(names[:_MOST_NAMES]) + ", ..." * (len(names) > _MOST_NAMES)
        return f"{text}\nin the order of the program, as nothing says what they change: {shown}"

    def __repr__(self) -> str:
        lanes, makespan = len(self.schedule.lanes), format_seconds(self.makespan_s)
        text = f"{tasks_and_copies(self.nodes)} on {lanes} lane{'s' * (lanes != 1)}, {makespan}"
        return f"<Plan: {text}>" if self.known else f"<Plan: {text}; {_GUESSED}>"


def planned(
    graph: object, program: Program, lanes: _Lanes, of_chain: _Lanes, times_s: Mapping[int, float]
) -> Plan:
    """The plan of a graph's program on so many CPU lanes and streams, others if it is a chain.

    Costs are those that were given, or else measured.
    """
    nodes = program.in_order()
    given_s = {node.number: node.cost_s for node in nodes if node.cost_s is not None}
    known_s = {**times_s, **given_s}
    guess_s = statistics.median(known_s.values() or [_GUESSED_S])
    jobs = [
        Job(node.name, node.resource, known_s.get(number, guess_s), tuple(sorted(node.before)))
        for number, node in enumerate(nodes)
    ]
    one_each = dict.fromkeys({job.resource for job in jobs}, Resource(len(jobs), len(jobs)))
    is_chain = limit_s(jobs, one_each) > _CHAIN * sum(job.cost_s for job in jobs)
    cpu_lanes, streams = of_chain if is_chain else lanes
    resources = {}
    for node in nodes:
        here = Resource(streams) if node.gpus else Resource(cpu_lanes, cpu_lanes)
        resources[node.resource] = Resource() if node.fn is None else here
    order, hazards = schedule(jobs, resources), program.hazards
    known, inner, watched = len(known_s) == len(nodes), frozenset(program.inner), hazards.watched()
    return Plan(tuple(nodes), order, resources, hazards, watched, known, inner, graph)


def taken(places: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """What takes the values at some places, in half the time of looking up each of them."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    first = places[0] if places else 0
    return operator.itemgetter(slice(first, first + len(places)))


def tasks_and_copies(nodes: Sequence[Node]) -> str:
    """How many of each there are, as text."""
    copies = sum(node.fn is None for node in nodes)
    tasks = len(nodes) - copies
    return f"{tasks} task{'s' * (tasks != 1)} and {copies} {'copy' if copies == 1 else 'copies'}"
