"""Graph run: a graph's plan, carried out by workers and launchers, or one task after another.

a CPU lane's worker     does its lane's tasks, and waits for others' ends before each
a GPU's launcher        queues its lanes' tasks on their streams, which wait for events
"""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from autopar.annotate import annotate
from autopar.clock import device_clock
from autopar.device import synchronize
from autopar.handle import Handle, use_on_current_streams, wait_for_event
from autopar.lane import Lane
from autopar.node import Node, Result, Task, host_of
from autopar.schedule import Entry, Resource, Schedule, faults, limit_s
from autopar.span import Span, Timeline
from autopar.worker import cpu_lane

_LAUNCHING_CYCLES = 400_000  # of a GPU's clock: 0.2 ms and more, in which the host launches a task


@dataclass(frozen=True)
class Plan:
    """What a run will do: tasks and copies on their lanes, with their waits; data.

    Args:
        nodes: Tasks and copies, in the order of the program.
        schedule: Their order, lanes and waits.
        resources: What they take their turns on.
        known: Whether all costs were given or measured, and none guessed.
        graph: Whose plan it is.
    """

    nodes: tuple[Node, ...]
    schedule: Schedule
    resources: dict[str, Resource]
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


class _End:
    """That a node is issued; on a stream also when it begins and ends there."""

    __slots__ = ("end", "issued", "start")

    def __init__(self) -> None:
        self.issued = threading.Lock()  # released once, by whoever issues the node
        self.issued.acquire()
        self.start: torch.cuda.Event | float | None = None
        self.end: torch.cuda.Event | float | None = None


class Run:
    """One run of a graph: its results by task, its timeline, its limit.

    Attributes:
        plan: What it does.
        wall_s: Seconds from the start until all tasks were done.
    """

    def __init__(self, plan: Plan, *, tracks: bool = True) -> None:
        self.plan = plan
        self.wall_s = float("nan")
        self._results: list[Any] = [None] * len(plan.nodes)
        self._ends = [_End() for _ in plan.nodes]
        self._error: BaseException | None = None
        self._failed: Entry | None = None
        self._raised = False
        self._failing = threading.Lock()
        self._workers: list[Handle[None]] = []
        self._grad = tracks and torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._start_s = time.perf_counter()
        gpus = {node.device for node in plan.nodes} | {node.source for node in plan.nodes}
        self._ready = {
            gpu: torch.cuda.current_stream(gpu).record_event()
            for gpu in gpus
            if gpu is not None and gpu.type == "cuda"
        }

    def __getitem__(self, task: Any) -> Any:
        """The result of a task, or of tasks in nested containers; waits for it.

        Raises:
            Exception: What the task raised.
            RuntimeError: It was not run, as another one failed before.
            KeyError: It is no task of the graph that was run.
        """
        value = pytree.tree_map_only(Task, lambda each: self._result(each), task)
        if value is task:
            msg = f"{task!r} is no task; expected what graph.add returned."
            raise KeyError(msg)
        use_on_current_streams(value)
        return value

    def _result(self, task: Task) -> Any:
        number = task.number
        if task.graph is not self.plan.graph or number >= len(self._ends):
            msg = f"{task!r} is no task of this run; expected one that was added before it."
            raise KeyError(msg)
        end = self._ends[number]
        with end.issued:
            pass
        if end.end is None:
            self._raise_for(self.plan.nodes[number])
        if isinstance(end.end, torch.cuda.Event):
            wait_for_event(end.end)
        return self._results[number]

    def wait(self) -> None:
        """Wait for all tasks; Ctrl-C ends the wait.

        Raises:
            Exception: What the first task to fail raised, with a note that names it.
        """
        for worker in self._workers:
            worker.wait()
        if self._error is not None and not self._raised:
            self._raised = True
            raise self._error

    @property
    def spans(self) -> dict[int, Span]:
        """When each task and copy ran, by its number; waits for them."""
        for worker in self._workers:
            worker.wait()
        lane_of = {entry.job: entry.lane for entry in self.plan.schedule.entries}
        spans = {}
        for node, each in zip(self.plan.nodes, self._ends, strict=True):
            if each.start is not None and each.end is not None:
                start_s, end_s = self._time_s(node, each.start), self._time_s(node, each.end)
                kind = "copy" if node.fn is None else "compute"
                lane = lane_of[node.number]
                spans[node.number] = Span(node.name, lane, start_s, max(start_s, end_s), kind)
        return spans

    @property
    def timeline(self) -> Timeline:
        """When each task and copy ran; on a stream, by events."""
        return Timeline(tuple(self.spans.values()))

    @property
    def cost_s(self) -> dict[int, float]:
        """Seconds that each task and copy took, by its number."""
        return {number: span.duration_s for number, span in self.spans.items()}

    @property
    def limit_s(self) -> float:
        """The larger of the longest chain and the busiest resource, in seconds.

        By the costs that the plan was made with, or by the tasks' times in this run if it knew
        none.
        """
        if self.plan.known:
            return self.plan.limit_s
        cost_s = self.cost_s
        jobs = [
            job._replace(cost_s=cost_s.get(number, 0.0))
            for number, job in enumerate(self.plan.schedule.jobs)
        ]
        return limit_s(jobs, self.plan.resources)

    def work(self, entries: list[Entry], streams: dict[str, torch.cuda.Stream]) -> None:
        """Do some entries, in order; what fails is kept, and nothing else is begun after it."""
        grad, inference = self._grad
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            lanes: set[str] = set()
            for entry in entries:
                stream = streams.get(entry.lane)
                try:
                    if stream is not None:
                        torch.cuda.set_stream(stream)
                        if entry.lane not in lanes:  # what the caller had queued comes first
                            stream.wait_event(self._ready[stream.device])
                    lanes.add(entry.lane)
                    if self._error is None:
                        self._do(entry, stream)
                except BaseException as error:
                    self._fail(entry, error)
                finally:
                    self._ends[entry.job].issued.release()
        for lane in lanes & set(streams):
            streams[lane].synchronize()

    def _do(self, entry: Entry, stream: torch.cuda.Stream | None) -> None:
        node, own = self.plan.nodes[entry.job], self._ends[entry.job]
        for wait in entry.waits:
            other = self._ends[wait]
            with other.issued:
                pass
            if self._error is not None:
                return
            if isinstance(other.end, torch.cuda.Event):
                if stream is None:
                    other.end.synchronize()
                else:
                    stream.wait_event(other.end)
        start = time.perf_counter() if stream is None else _mark(stream)
        with annotate(node.name):
            self._results[entry.job] = node.call(self._results)
        own.start, own.end = start, time.perf_counter() if stream is None else _mark(stream)

    def one_after_another(self, alone: bool) -> None:
        """Do all of it in the calling thread, waiting for each before the next.

        Args:
            alone: Whether to take a GPU's times on the device, behind something that keeps it busy
                while the host launches.
        """
        grad, inference = self._grad
        entry_of = {entry.job: entry for entry in self.plan.schedule.entries}
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            for node in _in_program_order(self.plan.nodes):
                end = self._ends[node.number]
                gpus = [gpu for gpu in (node.device, node.source) if gpu and gpu.type == "cuda"]
                try:
                    if self._error is None:
                        self._do_alone(node, end, gpus, alone)
                except BaseException as error:
                    self._fail(entry_of[node.number], error)
                finally:
                    end.issued.release()

    def _do_alone(self, node: Node, own: _End, gpus: list[torch.device], alone: bool) -> None:
        """Do a node, and wait for it."""
        start_s = time.perf_counter()
        if not gpus:
            self._results[node.number] = node.call(self._results)
            own.start, own.end = start_s, time.perf_counter()
            return
        with torch.cuda.device(node.source if node.device not in gpus else node.device):
            stream = torch.cuda.current_stream()
            if alone:
                torch.cuda._sleep(_LAUNCHING_CYCLES)
            start = _mark(stream)
            self._results[node.number] = node.call(self._results)
            own.start, own.end = start, _mark(stream)
        synchronize(*gpus)
        if not alone:  # the launch is part of it
            own.start, own.end = start_s, time.perf_counter()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._failing:
            if self._error is None:
                self._error, self._raised = RuntimeError("the run was broken off"), True

    def started(self, workers: list[Handle[None]]) -> None:
        """Note who does the work."""
        self._workers = workers

    def ended(self) -> None:
        """Note that all is done."""
        self.wall_s = time.perf_counter() - self._start_s

    def _fail(self, entry: Entry, error: BaseException) -> None:
        with self._failing:
            if self._error is None:
                node = self.plan.nodes[entry.job]
                error.add_note(f"in task {node.name!r} on lane {entry.lane!r} ({node.device})")
                self._error, self._failed = error, entry

    def _raise_for(self, node: Node) -> None:
        assert self._error is not None
        if self._failed is not None and self._failed.job == node.number:
            self._raised = True
            raise self._error
        why = "the run was broken off"
        if self._failed is not None:
            why = f"task {self.plan.nodes[self._failed.job].name!r} failed"
        msg = f"task {node.name!r} has no result: it was not run, because {why}."
        raise RuntimeError(msg) from self._error

    @staticmethod
    def _time_s(node: Node, moment: torch.cuda.Event | float) -> float:
        if isinstance(moment, torch.cuda.Event):
            gpu = node.source if node.source and node.source.type == "cuda" else node.device
            return device_clock(gpu).time_s(moment)
        return moment


class Runner:
    """The lanes and streams of a graph; as a context manager it keeps them between runs.

    Args:
        cpu_lanes: How many CPU workers share the machine's threads.

    Attributes:
        tracks: Whether autograd tracks what tasks do, where it is on.
    """

    def __init__(self, cpu_lanes: int) -> None:
        self.tracks = True
        self._threads_each = max(1, (os.cpu_count() or 1) // cpu_lanes)
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._lanes: dict[str, Lane] = {}
        self._kept: contextlib.ExitStack | None = None

    def __enter__(self) -> Self:
        if self._kept is not None:
            msg = "the graph's lanes are open already; expected one `with graph:` at a time."
            raise RuntimeError(msg)
        self._kept = contextlib.ExitStack()
        return self

    def __exit__(self, *error: Any) -> None:
        kept, self._kept = self._kept, None
        self._lanes.clear()
        if kept is not None:
            kept.close()

    @contextlib.contextmanager
    def started(self, plan: Plan) -> Iterator[Run]:
        """Start a plan's run, and wait for all of it at the end of the block."""
        shares: dict[str, list[Entry]] = {}
        for entry in plan.schedule.entries:
            node = plan.nodes[entry.job]
            shares.setdefault(host_of(node) if self._on_gpu(node) else entry.lane, []).append(entry)
        with self._open(shares, plan) as lanes:
            streams = self._streams_of(plan)
            run = Run(plan, tracks=self.tracks)
            run.started(
                [lanes[host].submit(run.work, own, streams) for host, own in shares.items()]
            )
            try:
                yield run
                run.wait()
            except BaseException:
                run.stop()
                raise
            finally:
                for lane in lanes.values():
                    lane.wait()
                run.ended()

    def one_by_one(self, plan: Plan, *, alone: bool = False) -> Run:
        """Carry out a plan, one task after another; `alone` takes a GPU's times on the device."""
        with cpu_lane(self._threads_each, name="one by one") as lane:
            run = Run(plan, tracks=self.tracks)
            synchronize(*run._ready)
            run.started([lane.submit(run.one_after_another, alone)])
            try:
                run.wait()
            except BaseException:
                run.stop()
                raise
        run.ended()
        return run

    @staticmethod
    def _on_gpu(node: Node) -> bool:
        return node.device.type == "cuda" or node.source is not None

    @contextlib.contextmanager
    def _open(self, shares: dict[str, list[Entry]], plan: Plan) -> Iterator[dict[str, Lane]]:
        """Lanes for all that is to be done, by name; left afterwards, unless they are kept."""
        with contextlib.ExitStack() as own:
            lanes = self._lanes if self._kept is not None else {}
            for host, entries in shares.items():
                if host not in lanes:
                    on_gpu = self._on_gpu(plan.nodes[entries[0].job])
                    threads, kind = (1, "host") if on_gpu else (self._threads_each, "compute")
                    lane = cpu_lane(threads, name=host, kind=kind)
                    lanes[host] = (self._kept or own).enter_context(lane)
            yield {host: lanes[host] for host in shares}

    def _streams_of(self, plan: Plan) -> dict[str, torch.cuda.Stream]:
        for entry in plan.schedule.entries:
            node = plan.nodes[entry.job]
            if self._on_gpu(node) and entry.lane not in self._streams:
                source = node.source
                gpu = source if source is not None and source.type == "cuda" else node.device
                device_clock(gpu, max_age_s=1.0)  # while there is no work to disturb
                self._streams[entry.lane] = torch.cuda.Stream(gpu)
        return self._streams


def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def _in_program_order(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Nodes as the program has them, but for those that are to wait for later ones."""
    followers: dict[int, list[int]] = {node.number: [] for node in nodes}
    left = {node.number: len(node.before) for node in nodes}
    for node in nodes:
        for before in node.before:
            followers[before].append(node.number)
    ready = [number for number, count in left.items() if not count]
    while ready:
        number = heapq.heappop(ready)
        yield nodes[number]
        for follower in followers[number]:
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, follower)
