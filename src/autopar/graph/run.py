"""Graph run: a graph's plan, carried out by workers and launchers, or one task after another.

a CPU lane's worker     does its lane's tasks, and waits for others' ends before each
a GPU's launcher        queues its lanes' tasks on their streams, which wait for events
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autopar.device import synchronize
from autopar.effects.hidden import hidden_tasks
from autopar.effects.reach import memory_in
from autopar.effects.task import Task
from autopar.graph.guard import Comparison, versions_of
from autopar.graph.learning import Learning
from autopar.graph.node import Node
from autopar.graph.plan import Plan
from autopar.graph.schedule import Entry, limit_s
from autopar.lanes.clock import device_clock
from autopar.lanes.handle import (
    Awaited,
    Handle,
    awaited,
    cuda_tensors,
    use_on_current_streams,
    wait_for,
    wait_for_event,
)
from autopar.lanes.lane import Lane
from autopar.lanes.outcome import note
from autopar.ranges import annotate, tools_listen
from autopar.timeline.span import Span, Timeline

_LOOK_S = 0.1  # between two looks whether a wait can end
_LAUNCHING_CYCLES = 400_000  # of a GPU's clock: 0.2 ms and more, in which the host launches a task


Moment = torch.cuda.Event | float


class Run:
    """One run of a graph: its results by task, its timeline, its limit.

    Attributes:
        plan: What it does.
        wall_s: Seconds from the start until all tasks were done.
    """

    def __init__(
        self, plan: Plan, streams: dict[str, torch.cuda.Stream], *, tracks: bool = True
    ) -> None:
        self.plan = plan
        self._streams = streams
        self.wall_s = float("nan")
        self._results: list[Any] = [None] * len(plan.nodes)
        count = len(plan.nodes)
        self._issued = bytearray(count)  # by node
        self._awaited: dict[int, threading.Lock] = {}  # only where somebody had to wait
        self._starts: list[Moment | None] = [None] * count
        self._ends: list[Moment | None] = [None] * count
        self._error: BaseException | None = None
        self._failed: Entry | None = None
        self._raised = False
        self._failing = threading.Lock()
        self._workers: list[Handle[None]] = []
        self._tracks = tracks
        self._guard = plan.guard
        self._noted = self._guard.begin()
        self._inference = torch.is_inference_mode_enabled()
        self._settled = self._guard.known.settled[self._inference]
        self._learning: Learning | None = None  # in a run in order
        self._start_s = time.perf_counter()
        self._ready = {
            gpu: torch.cuda.current_stream(gpu).record_event()
            for gpu in set(plan.gpu_of_lane.values())
        }

    def __getitem__(self, task: Any) -> Any:
        """The result of a task, or of tasks in nested containers; waits for it.

        What is no task there stays as it is, as a number does that traced code has returned.

        Raises:
            Exception: What the task raised.
            RuntimeError: It was not run, as another one failed before.
            KeyError: It is no task of the graph that was run, or lies where it can't be replaced.
        """
        value = pytree.tree_map_only(Task, self._result, task)
        for left in hidden_tasks(pytree.tree_leaves(task)):
            msg = f"{left!r} lies in a container of another kind; expected lists, tuples and dicts."
            raise KeyError(msg)
        use_on_current_streams(_on_gpus(value))
        return value

    def _result(self, task: Task) -> Any:
        number = task.number
        if task.graph is not self.plan.graph or number >= len(self._ends):
            msg = f"{task!r} is no task of this run; expected one that was added before it."
            raise KeyError(msg)
        if threading.get_ident() in [each.waits_for() for each in self._workers if not each.done()]:
            msg = (
                f"{task!r} was asked for by a task of the same run, which might wait for itself; "
                f"expected it as an argument. Give it to graph.add."
            )
            raise RuntimeError(msg)
        if not self._issued[number]:
            what = _Awaited(self, number)
            wait_for(what, lambda look: self._wait_until_issued(number, look))
        end = self._ends[number]
        if end is None:
            self._raise_for(self.plan.nodes[number])
        if isinstance(end, torch.cuda.Event):
            wait_for_event(end)
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
        for node, start, end in zip(self.plan.nodes, self._starts, self._ends, strict=True):
            if start is not None and end is not None:
                start_s, end_s = self._time_s(node, start), self._time_s(node, end)
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

    def work(self, host: str) -> None:
        """Do a thread's share, in order; what fails is kept, and nothing is begun after it."""
        share = self.plan.shares[host]
        with self._grad():
            if share[0].lane in self._streams:
                self._launch_all(share)
            else:
                self._compute_all(share)

    def _grad(self) -> contextlib.AbstractContextManager[None]:
        """No autograd where it doesn't track; all else is as the lane's caller has it."""
        return contextlib.nullcontext() if self._tracks else torch.no_grad()

    def _compute_all(self, share: Iterable[Entry]) -> None:
        """Run a CPU lane's tasks in this thread.

        Workers share Python's lock: one that holds it when another's operator ends puts that
        worker to sleep, which costs more than all that is done here. So this is one loop, and does
        as little as it can between two tasks: a task begins when the one before it ends.
        """
        nodes, results, starts, ends = self.plan.nodes, self._results, self._starts, self._ends
        at_once, now, named = self.plan.at_once, time.perf_counter, tools_listen()
        issued, awaited, comparisons = self._issued, self._awaited, self._guard.comparisons
        settled, hold, versions = self._settled, self._hold, self._noted.versions
        begun = now()
        for entry in share:
            job, waits = entry.job, entry.waits
            try:
                if waits:
                    for wait in waits:
                        self._wait_for_end(wait)
                    begun = now()
                if self._error is None:
                    call, comparison = at_once[job], comparisons[job]
                    if named:
                        with annotate(nodes[job].name):
                            value = self._call(nodes[job])
                    elif comparison is None:
                        value = call() if call else nodes[job].call(results)
                    elif job in settled:
                        value = call() if call else nodes[job].call(results)
                        for tensor, place in comparison[0]:  # quicker than by name
                            if tensor._version != versions[place]:
                                hold(nodes[job], comparison, value)
                        if not comparison[-1]:
                            hold(nodes[job], comparison, value)
                    else:
                        value = self._call(nodes[job])
                    if value is not None and not getattr(value, "is_cpu", False):
                        _wait_for_gpus(value)
                    results[job], starts[job] = value, begun
                    ends[job] = begun = now()
            except BaseException as error:
                self._fail(entry, error)
            issued[job] = True
            if awaited:
                self._issue(job)

    def _call(self, node: Node) -> Any:
        """Run a task in the calling thread, and hold it to what it has said that it writes."""
        number, learning = node.number, self._learning
        closely = not node.complete and (learning is not None or number not in self._settled)
        value = self._closely(node) if closely else node.call(self._results)
        if learning is not None:
            learning.own(number, value)
        comparison = self._guard.comparisons[number]
        if comparison is not None:
            self._hold(node, comparison, value)
        return value

    def _closely(self, node: Node) -> Any:
        """Run a task, and observe its operators if that is needed and was not done yet."""
        number, results, known = node.number, self._results, self._guard.known
        call = functools.partial(node.call, results, closely=True)
        if number in known.observed:
            return call()
        if self._learning is None:
            self._settled.add(number)
            doubted = self._guard.doubts(node, results, self._inference)
            return self._guard.observed(node, results, call) if doubted else call()
        value = self._learning.observed(node, results, call)
        known.observed.add(number)
        comparison = self._guard.comparisons[number]
        if comparison is not None:  # what has moved is known now
            self._noted.renew([place for _, place in comparison.watched], comparison.given)
        return value

    def _hold(self, node: Node, comparison: Comparison, value: Any) -> None:
        """Compare version counters after a task, and note those of what it may change."""
        watched, given, renewed, kept, _ = comparison
        noted = self._noted
        versions, results = noted.versions, noted.results
        for tensor, place in watched:
            if tensor._version != versions[place]:
                self._guard.compare(node, noted, self._results, self._beside(node))
        for number in given:
            for tensor, version in results[number]:
                if tensor._version != version:
                    self._guard.compare(node, noted, self._results, self._beside(node))
        if renewed:
            noted.renew(*renewed)
        if kept and not self._inference:
            results[node.number] = versions_of(value)

    def _beside(self, node: Node) -> list[int]:
        """Other tasks that may be under way: the first on each lane that has not ended."""
        if self._learning is not None:
            return []
        lanes = self.plan.schedule.lanes.values()
        lefts = ([each.job for each in own if not self._issued[each.job]] for own in lanes)
        return [left[0] for left in lefts if left and left[0] != node.number]

    def _launch_all(self, share: Iterable[Entry]) -> None:
        """Queue tasks and copies on their streams, and wait for those."""
        begun: set[torch.cuda.Stream] = set()
        for entry in share:
            try:
                self._launch(entry, self._streams[entry.lane], begun)
            except BaseException as error:
                self._fail(entry, error)
            self._issue(entry.job)
        for stream in begun:
            stream.synchronize()

    def _launch(
        self, entry: Entry, stream: torch.cuda.Stream, begun: set[torch.cuda.Stream]
    ) -> None:
        """Queue a task or copy on a stream."""
        torch.cuda.set_stream(stream)
        if stream not in begun:  # what the caller had queued comes first
            begun.add(stream)
            stream.wait_event(self._ready[stream.device])
        if self._error is not None:
            return
        for wait in entry.waits:
            self._wait_until_issued(wait)
            end = self._ends[wait]
            if isinstance(end, torch.cuda.Event):
                stream.wait_event(end)
        if self._error is not None:
            return
        node = self.plan.nodes[entry.job]
        self._starts[entry.job] = _mark(stream)
        with annotate(node.name):
            self._results[entry.job] = self._call(node)
        self._ends[entry.job] = _mark(stream)

    def _issue(self, number: int) -> None:
        """Let those go on who wait until a node is run, queued or given up."""
        self._issued[number] = True  # before the look at who waits, as they look after they wait
        lock = self._awaited.pop(number, None)
        if lock is not None:
            lock.release()

    def _wait_until_issued(self, number: int, look: Callable[[], None] | None = None) -> None:
        """Wait until a node is run, queued or given up; `look` from time to time."""
        if self._issued[number]:
            return
        lock = threading.Lock()
        lock.acquire()
        lock = self._awaited.setdefault(number, lock)
        if self._issued[number]:  # it may not have been seen
            return
        if look is None:
            awaited[threading.get_ident()] = _Awaited(self, number)  # for those who look
            with lock:
                pass
            del awaited[threading.get_ident()]
        else:
            while not lock.acquire(timeout=_LOOK_S):
                look()
            lock.release()

    def _wait_for_end(self, number: int) -> None:
        self._wait_until_issued(number)
        end = self._ends[number]
        if isinstance(end, torch.cuda.Event):
            end.synchronize()

    def one_after_another(self, alone: bool) -> None:
        """Do all of it in the calling thread, waiting for each before the next.

        What a task does that was not observed yet is, and is added to what it has said.

        Args:
            alone: Whether to take a GPU's times on the device, behind something that keeps it busy
                while the host launches.
        """
        entry_of = {entry.job: entry for entry in self.plan.schedule.entries}
        self._learning = Learning(self._guard)
        with self._grad():
            for node in _in_program_order(self.plan.nodes):
                gpus = [gpu for gpu in (node.source, node.device) if gpu and gpu.type == "cuda"]
                try:
                    if self._error is None:
                        self._do_alone(node, gpus, alone)
                except BaseException as error:
                    self._fail(entry_of[node.number], error)
                self._issue(node.number)
        if self._error is None:
            self._learning.end()

    def _do_alone(self, node: Node, gpus: list[torch.device], alone: bool) -> None:
        """Do a node, and wait for it."""
        start: Moment = time.perf_counter()
        if not gpus:
            self._results[node.number] = self._call(node)
            end: Moment = time.perf_counter()
        else:
            with torch.cuda.device(gpus[0]):
                stream = torch.cuda.current_stream()
                if alone:
                    torch.cuda._sleep(_LAUNCHING_CYCLES)
                    start = _mark(stream)
                self._results[node.number] = self._call(node)
                end = _mark(stream)
            synchronize(*gpus)
            if not alone:  # the launch is part of it
                end = time.perf_counter()
        self._starts[node.number], self._ends[node.number] = start, end

    def stop(self) -> None:
        """Begin nothing more."""
        with self._failing:
            if self._error is None:
                self._error, self._raised = RuntimeError("the run was broken off"), True

    def start(self, lanes: Mapping[str, Lane]) -> None:
        """Give each thread its share."""
        hosts = list(self.plan.shares)
        try:
            for host in hosts:
                self._workers.append(lanes[host].submit(self.work, host))
        except BaseException:
            self.stop()
            for host in hosts[len(self._workers) :]:  # nobody must wait for what will not come
                for entry in self.plan.shares[host]:
                    self._issue(entry.job)
            raise

    def start_serially(self, lane: Lane, *, alone: bool) -> None:
        """Give one thread all of it."""
        self._workers.append(lane.submit(self.one_after_another, alone))

    def ended(self) -> None:
        """Note that all is done."""
        self.wall_s = time.perf_counter() - self._start_s

    def _fail(self, entry: Entry, error: BaseException) -> None:
        with self._failing:
            if self._error is None:
                node = self.plan.nodes[entry.job]
                note(error, f"in task {node.name!r} on lane {entry.lane!r} ({node.device})")
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
    def _time_s(node: Node, moment: Moment) -> float:
        if isinstance(moment, torch.cuda.Event):
            gpu = node.source if node.source and node.source.type == "cuda" else node.device
            return device_clock(gpu).time_s(moment)
        return moment


class _Awaited:
    """A node of a run, as something that a thread waits for."""

    def __init__(self, run: Run, number: int) -> None:
        self._run, self._number = run, number

    def is_issued(self) -> bool:
        return bool(self._run._issued[self._number])

    def waits_for(self) -> int | Awaited | None:
        workers, shares = self._run._workers, self._run.plan.shares.values()
        for worker, share in zip(workers, shares, strict=False):  # some may not have begun
            if len(workers) == 1 or any(entry.job == self._number for entry in share):
                return worker.waits_for()
        return None

    def __str__(self) -> str:
        return f"task {self._run.plan.nodes[self._number].name!r} of a graph"


def _wait_for_gpus(value: Any) -> None:
    """Wait for the GPUs on which a CPU task has made what it returns."""
    for tensor in _on_gpus(value):
        torch.cuda.current_stream(tensor.device).synchronize()


def _on_gpus(value: Any) -> list[torch.Tensor]:
    """The CUDA tensors in a result, also in an object of its own kind."""
    if not torch.cuda.is_initialized():
        return []
    return [*cuda_tensors(value if isinstance(value, torch.Tensor) else [*memory_in(value)])]


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
