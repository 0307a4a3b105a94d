"""Execution: a graph's plan, carried out by workers and launchers, or in order by one thread.

a CPU lane's worker     does its lane's tasks, and waits for others' ends before each
a GPU's launcher        queues its lanes' tasks on their streams, which wait for events
the calling thread      does all itself where there is one lane, on its own current stream
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from typing import Any

import torch

from autopar.device import cpu, synchronize
from autopar.graph.audit import Audit
from autopar.graph.node import Node, wait_for_gpus
from autopar.graph.plan import Plan, Step, taken
from autopar.lanes.handle import Handle, awaited, wait_for_event
from autopar.lanes.lane import Lane
from autopar.lanes.modes import caller_modes, thread_modes
from autopar.lanes.outcome import Outcome, note
from autopar.ranges import annotate, tools_listen
from autopar.torch_private import autocast_is_on, spin

_LAUNCHING_CYCLES = 400_000  # of a GPU's clock: 0.2 ms and more, in which the host launches a task

Moment = torch.cuda.Event | float  # of a GPU, or by `time.perf_counter`
_UNTIMED = float("nan")  # a moment that nobody has asked for

# An end of a run that no node has raised; to be added without a call, which Ctrl-C might cut off.
BROKEN_OFF = ((RuntimeError("the run was broken off"), None),)


class Execution:
    """A plan that is carried out: results, times and the first error, as they come.

    Ctrl-C may cut off any step of the main thread, so no wait rests on one: who waits for a node
    looks from time to time whether it still comes.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        timed: bool = False,  # a GPU's times are taken, by events: each costs a short launch
        asked: bool = False,  # results may be asked for before the end
        in_order: bool = False,  # one thread does all in the order of the program
        audit: Audit | None = None,  # observes the tasks, in a run in order
        alone: bool = False,  # so are a GPU's times, behind what keeps it busy during the launch
    ) -> None:
        count, self.start_s = len(plan.nodes), time.perf_counter()
        self.plan, self.in_order = plan, in_order
        self.steps, constants = plan._steps_in_order if in_order else plan._steps
        # By node, as what follows; behind them is what steps are given besides.
        self.results: list[Any] = [None] * count + constants
        self.starts: list[Moment | None] = [None] * count  # none where it did not begin
        self.ends: list[Moment | None] = [None] * count
        self.issued = bytearray(count)  # whether it is run, queued or given up
        self.workers: dict[str, Handle[None]] = {}  # what the threads do, as in `steps`
        # The first has ended the run early, raised by a node or by none; nothing is begun then.
        self.errors: list[tuple[BaseException, Node | None]] = []
        self.left: list[bool] = []  # something, once nobody does anything for it any more
        self.wall_s = float("nan")  # from the start to the end, once it is there
        self._alone, self._timed, self._asked = alone, timed, asked
        self._audit = audit
        self._streams: Mapping[str, torch.cuda.Stream] = {}  # by lane on a GPU that has a launcher
        self._ready: dict[torch.device, torch.cuda.Event] = {}
        self._awaited: dict[int, Outcome[None]] = {}  # of nodes that somebody had to wait for

    def start(self, lanes: Mapping[str, Lane], streams: Mapping[str, torch.cuda.Stream]) -> None:
        """Give each thread its share, which comes after what the GPUs' current streams have."""
        self._streams, gpus = streams, set(self.plan._gpu_of_lane.values())
        self._ready = {gpu: torch.cuda.current_stream(gpu).record_event() for gpu in gpus}
        if self.in_order:
            synchronize(*gpus)
        for host in self.steps:
            self.workers[host] = lanes[host].submit(self._work, host, name=f"a run on {host}")

    def do_here(self) -> None:
        """Do the only share there is in the calling thread; others may wait for it meanwhile."""
        (host,), me, left = self.steps, threading.get_ident(), self.left
        handle = self.workers[host] = Handle(
            *(host, host, cpu(), "compute"),
            waits_for=lambda: None if left else me,
            urge=lambda: issued.set_result(None) if left else None,
        )
        issued = handle._issued  # and nothing that holds results, so that these go with the run
        caller_modes().call(copy_context().run, self._work, host)
        handle._issued.set_result(None)

    def join(self) -> None:
        """Wait until all nodes are done, or given up."""
        for worker in self.workers.values():
            worker.wait()

    @functools.cached_property
    def _places(self) -> dict[int, tuple[str, str]]:
        """Which thread comes to each node, and on which lane."""
        return {step.job: (host, step.lane) for host, share in self.steps.items() for step in share}

    def _worker_of(self, number: int) -> Handle[None] | None:
        """What the thread does that has to come to a node, if it has begun."""
        return self.workers.get(self._places[number][0])

    def _is_over(self, number: int) -> bool:
        """Whether a node is run or queued, or never will be, whatever Ctrl-C has cut off.

        Nothing is begun after an error, so of the rest only what its thread is at may yet come.
        """
        if self.issued[number] or self.left:
            return True
        if not self.errors:
            return False
        worker = self._worker_of(number)
        return worker is None or worker.done()

    def awaited(self, number: int) -> Handle[None]:
        """What is settled once a node is run or queued, or never will be; to wait for that.

        Nothing leads from it back to itself, or results would stay until garbage is collected.
        """
        node, lane = self.plan.nodes[number], self._places[number][1]
        over = self._awaited.setdefault(number, Outcome())
        handle: Handle[None] = Handle(
            *(node.name, lane, node.device, node.kind),
            waits_for=functools.partial(self._waits_for, number),
            urge=functools.partial(self._urge, number, over),
        )
        handle._issued = over
        return handle

    def _waits_for(self, number: int) -> Any:
        worker = None if self._is_over(number) else self._worker_of(number)
        return None if worker is None else worker._waits_for()

    def _urge(self, number: int, over: Outcome[None]) -> None:
        if self._is_over(number):
            over.set_result(None)
        for worker in self.workers.values():
            worker._urge()  # which a fork of this process refuses: it has no such threads

    def _work(self, host: str) -> None:
        """Do a thread's share, in order; what fails is kept, and nothing is begun after it."""
        share = self.steps[host]
        tracks = self.plan._hazards.may_track
        with contextlib.nullcontext() if tracks else torch.no_grad():
            if self.in_order:
                nodes = self.plan.nodes
                by_kind = itertools.groupby(share, lambda step: nodes[step.job].gpus != [])
                for is_on_gpu, steps in by_kind:
                    if is_on_gpu:
                        self._do_each(steps, self._do_on_gpu)
                    else:
                        self._do_all([*steps])
            elif share[0].lane in self._streams:
                begun = set[torch.cuda.Stream]()
                self._do_each(self._with_calls(share), functools.partial(self._launch, begun))
                for stream in begun:
                    stream.synchronize()
            elif gpu := self.plan._gpu_of_lane.get(share[0].lane):
                stream = torch.cuda.current_stream(gpu)
                try:
                    self._do_all(share, self._clock(stream))
                finally:
                    wait_for_event(stream.record_event())
            else:
                self._do_all(share)

    def _do_all(self, share: list[Step], now: Callable[[], Moment] = time.perf_counter) -> None:
        """Run tasks in this thread, of the CPU, or of one GPU if `now` says so.

        Workers share Python's lock: one that holds it when another's operator ends puts that
        worker to sleep, which costs more than all that is done here. So this is one loop, and does
        as little as it can between two tasks: a task begins when the one before it ends.
        """
        nodes, results, starts, ends = self.plan.nodes, self.results, self.starts, self.ends
        issued, awaited, errors = self.issued, self._awaited, self.errors
        # Where tasks of the CPU may queue something on a GPU, which one may be the first to use.
        held = thread_modes() if now is time.perf_counter and self.plan._may_use_gpus else None
        step, begun = share[0], now()
        try:
            for step in self._with_calls(share):
                job, call, values, waits, done, _ = step
                for wait in waits:
                    self._wait_for(wait)
                    if isinstance(end := ends[wait], torch.cuda.Event):
                        end.synchronize()
                    begun = now()
                if errors:
                    break
                value = call(*values(results))
                if held:
                    if nodes[job].may_queue:
                        held.hold()
                        wait_for_gpus()
                    elif value is not None and not getattr(value, "is_cpu", False):
                        wait_for_gpus(value)
                results[job], starts[job] = value, begun
                ends[job] = begun = now()
                for number in done:
                    results[number] = None
                issued[job] = True
                if awaited:
                    self._issue(job)
        except BaseException as error:
            self._fail(step, error)
        if errors:  # nobody is to wait for what will not come
            for step in share:
                self._issue(step.job)

    def _with_calls(self, share: list[Step]) -> list[Step]:
        """Steps whose calls go through `_call` where somebody looks on, or something is cast."""
        if self._audit is None and not tools_listen() and not autocast_is_on():
            return share
        call = functools.partial(functools.partial, self._call)
        return [step._replace(call=call(step.job), values=taken(())) for step in share]

    def _call(self, number: int) -> Any:
        """Run a task, held to what it has said, and observed by an audit or named for tools."""
        node = self.plan.nodes[number]
        watched = self.plan._watched[number]
        call = functools.partial(self.plan._hazards.call, node, watched, self.results)
        if self._audit is not None:
            return self._audit.call(node, call, self.results)
        with contextlib.nullcontext() if self.in_order else annotate(node.name):
            return call()

    def _held(self, number: int, call: Any, *values: Any) -> Any:
        """Run a task that is not torch's, and leave thread-wide modes as they were before it."""
        if not self.plan.nodes[number].may_queue:
            return call(*values)
        before = thread_modes()
        try:
            return call(*values)
        finally:
            before.hold()

    def _fail(self, step: Step, error: BaseException) -> None:
        """Keep what a node has raised, and say on it where that was, if it is the first."""
        node = self.plan.nodes[step.job]
        self.errors.append(failed := (error, node))
        if self.errors[0] is failed:
            note(error, f"in task {node.name!r} on lane {step.lane!r} ({node.device})")

    def _launch(self, begun: set[torch.cuda.Stream], step: Step) -> None:
        job, stream = step.job, self._streams[step.lane]
        torch.cuda.set_stream(stream)
        if stream not in begun:  # what the caller had queued comes first
            begun.add(stream)
            stream.wait_event(self._ready[stream.device])
        for wait in step.waits:
            self._wait_for(wait)
            if isinstance(end := self.ends[wait], torch.cuda.Event):
                stream.wait_event(end)
        if self.errors:
            return
        now, is_awaited = self._clock(stream), self._asked or job in self.plan._awaited
        self.starts[job] = now()
        self.results[job] = self._held(job, step.call, *step.values(self.results))
        self.ends[job] = stream.record_event() if is_awaited and not self._timed else now()

    def _clock(self, stream: torch.cuda.Stream) -> Callable[[], Moment]:
        """What tells when a stream comes to the present point, if that is to be known."""
        return functools.partial(_mark, stream) if self._timed else _UNTIMED.__float__

    def _do_on_gpu(self, step: Step) -> None:
        """Do a task or copy on the current stream, and wait for it."""
        number, node = step.job, self.plan.nodes[step.job]
        start: Moment = time.perf_counter()
        with torch.cuda.device(node.gpus[0]):
            stream = torch.cuda.current_stream()
            if self._alone:
                spin(_LAUNCHING_CYCLES)
                start = _mark(stream)
            self.results[number] = self._held(number, self._call, number)
            end: Moment = _mark(stream)
        synchronize(*node.gpus)
        if not self._alone:  # the launch is part of it
            end = time.perf_counter()
        self.starts[number], self.ends[number] = start, end

    def _do_each(self, share: Iterable[Step], do: Callable[[Step], None]) -> None:
        for step in share:
            try:
                if not self.errors:
                    do(step)
                for number in step.done:
                    self.results[number] = None
            except BaseException as error:
                self._fail(step, error)
            self._issue(step.job)

    def _wait_for(self, number: int) -> None:
        """Wait in a thread of the run until a node is over, for all to see who look for circles."""
        if not self.issued[number]:
            handle = awaited[threading.get_ident()] = self.awaited(number)
            handle._issued.wait(handle._urge)
            del awaited[threading.get_ident()]

    def _issue(self, number: int) -> None:
        """Let those go on who wait until a node is run, queued or given up."""
        self.issued[number] = True  # before the look at who waits, as they look after they wait
        if (over := self._awaited.pop(number, None)) is not None:
            over.set_result(None)


def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event
