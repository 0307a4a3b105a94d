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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import Any

import torch

from autopar.device import cpu, synchronize
from autopar.graph.audit import Audit
from autopar.graph.awaited_node import AwaitedNode
from autopar.graph.failure import Failure
from autopar.graph.node import Node, on_gpus
from autopar.graph.plan import Plan, Step, taken
from autopar.lanes.handle import Handle, awaited, wait_for_event
from autopar.lanes.lane import Lane
from autopar.lanes.modes import caller_modes
from autopar.ranges import annotate, tools_listen
from autopar.torch_private import autocast_is_on, spin

_LOOK_S = 0.1  # between two looks whether a wait can end
_LAUNCHING_CYCLES = 400_000  # of a GPU's clock: 0.2 ms and more, in which the host launches a task

Moment = torch.cuda.Event | float  # of a GPU, or by `time.perf_counter`
_UNTIMED = float("nan")  # a moment that nobody has asked for


class Execution:
    """A plan that is carried out: results, times and the first error, as they come.

    Args:
        plan: What is to be done.
        streams: By lane on a GPU, its stream.
        timed: Whether a GPU's times are taken, by events: they cost as much as a short launch.
        asked: Whether results may be asked for before the end.
        tracks: Whether autograd tracks what tasks do, where it is on.
        in_order: Whether one thread does all in the order of the program.
        audit: What observes the tasks, in a run in order.
        alone: Whether a run in order takes a GPU's times on the device, behind something that
            keeps it busy while the host launches.
    """

    def __init__(
        self,
        plan: Plan,
        streams: Mapping[str, torch.cuda.Stream],
        *,
        timed: bool = False,
        asked: bool = False,
        tracks: bool = True,
        in_order: bool = False,
        audit: Audit | None = None,
        alone: bool = False,
    ) -> None:
        count, self._start_s = len(plan.nodes), time.perf_counter()
        self.plan = plan
        steps = plan.steps_in_order if in_order else plan.steps
        self.steps = steps.of
        # By node, as what follows; behind them is what steps are given besides.
        self.results: list[Any] = [None] * count + steps.constants
        self.starts: list[Moment | None] = [None] * count  # none where it did not begin
        self.ends: list[Moment | None] = [None] * count
        self.workers: list[Handle[None]] = []  # what the threads do
        self.failure = Failure()
        self.wall_s = float("nan")  # from the start to the end, once it is there
        self._streams, self._tracks, self._alone = streams, tracks, alone
        self._timed, self._asked = timed, asked
        self._issued = bytearray(count)  # by node
        self._awaited: dict[int, threading.Lock] = {}  # only where somebody had to wait
        self._in_order, self._audit = in_order, audit
        self._ready: dict[torch.device, torch.cuda.Event] = {}

    def start(self, lanes: Mapping[str, Lane]) -> None:
        """Give each thread its share, which comes after what the GPUs' current streams have."""
        gpus = set(self.plan.gpu_of_lane.values())
        self._ready = {gpu: torch.cuda.current_stream(gpu).record_event() for gpu in gpus}
        if self._in_order:
            synchronize(*gpus)
        try:
            for host in self.steps:
                self.workers.append(lanes[host].submit(self._work, host, name=f"a run on {host}"))
        except BaseException:
            self.failure.break_off()
            for share in list(self.steps.values())[len(self.workers) :]:
                self._give_up(share)
            raise

    def start_here(self) -> None:
        """Let the calling thread do the only share there is, once it waits for it."""
        (host,), me = self.steps, threading.get_ident()
        calls = [functools.partial(caller_modes().call, copy_context().run, self._work, host)]

        def urge() -> None:
            if threading.get_ident() == me and handle.issued.begin():
                handle.start = time.perf_counter()
                calls.pop()()  # else it would hold all results, and the handle it, in a circle
                handle.issued.set_result(None)

        waits_for = lambda: me if handle.start else None  # noqa: E731 (its tasks must not wait)
        handle: Handle[None] = Handle(host, host, cpu(), "compute", waits_for=waits_for, urge=urge)
        self.workers.append(handle)

    def end(self) -> None:
        """Note that all threads are done."""
        self.wall_s = time.perf_counter() - self._start_s
        for worker in self.workers:
            worker.issued.set_result(None)  # if Ctrl-C came between

    def is_issued(self, number: int) -> bool:
        """Whether a node is run, queued or given up."""
        return bool(self._issued[number])

    def wait_until_issued(self, number: int, look: Callable[[], None] | None = None) -> None:
        """Wait until a node is run, queued or given up; `look` from time to time."""
        if self._issued[number]:
            return
        lock = threading.Lock()
        lock.acquire()
        lock = self._awaited.setdefault(number, lock)
        if self._issued[number]:  # it may not have been seen
            return
        if look is None:
            awaited[threading.get_ident()] = AwaitedNode(self, number)  # for those who look
            with lock:
                pass
            del awaited[threading.get_ident()]
        else:
            while not lock.acquire(timeout=_LOOK_S):
                look()
            lock.release()

    def _work(self, host: str) -> None:
        """Do a thread's share, in order; what fails is kept, and nothing is begun after it.

        Autograd is off where it doesn't track; all else is as the lane's caller has it.
        """
        share = self.steps[host]
        with contextlib.nullcontext() if self._tracks else torch.no_grad():
            if self._in_order:
                self._do_in_order(share)
            elif share[0].lane in self._streams:
                self._launch_all(share)
            elif gpu := self.plan.gpu_of_lane.get(share[0].lane):
                self._queue_all(share, torch.cuda.current_stream(gpu))
            else:
                self._do_all(share)

    def _do_all(self, share: list[Step], now: Callable[[], Moment] = time.perf_counter) -> None:
        """Run tasks in this thread, of the CPU, or of one GPU if `now` says so.

        Workers share Python's lock: one that holds it when another's operator ends puts that
        worker to sleep, which costs more than all that is done here. So this is one loop, and does
        as little as it can between two tasks: a task begins when the one before it ends.
        """
        nodes, results, starts, ends = self.plan.nodes, self.results, self.starts, self.ends
        issued, awaited, failure = self._issued, self._awaited, self.failure
        # For what tasks of the CPU may have queued on a GPU, which one of them may be first to use.
        looks = now is time.perf_counter and self.plan.may_use_gpus
        step, begun = share[0], now()
        try:
            for step in self._with_calls(share):
                job, call, values, waits, done, _ = step
                if waits:
                    for wait in waits:
                        self._wait_for_end(wait)
                    begun = now()
                if failure.error is not None:
                    break
                value = call(*values(results))  # type: ignore[misc]  # each has one
                if looks:
                    if nodes[job].may_queue:
                        _wait_for_gpus()
                    elif value is not None and not getattr(value, "is_cpu", False):
                        _wait_for_gpus(value)
                results[job], starts[job] = value, begun
                ends[job] = begun = now()
                for number in done:
                    results[number] = None
                issued[job] = True
                if awaited:
                    self._issue(job)
        except BaseException as error:
            failure.set(nodes[step.job], step.lane, error)
        if failure.error is not None:
            self._give_up(share)

    def _with_calls(self, share: list[Step]) -> list[Step]:
        """Steps that call their tasks themselves, also where somebody looks on, or holds them."""
        closely = self._audit is not None or tools_listen() or autocast_is_on()
        if not (closely or self.plan.is_held):
            return share
        return [self._with_call(step, closely) for step in share]

    def _with_call(self, step: Step, closely: bool) -> Step:
        if step.call is not None and not closely:
            return step
        node = self.plan.nodes[step.job]
        call = functools.partial(self.plan.guard.call, node, self.results)
        if closely:
            call = functools.partial(self._observed, node, call)
        return step._replace(call=call, values=taken(()))

    def _observed(self, node: Node, call: Callable[[], Any]) -> Any:
        """Run a task for an audit, or with its name for tools."""
        if self._audit is not None:
            return self._audit.call(node, call, self.results)
        with contextlib.nullcontext() if self._in_order else annotate(node.name):
            return call()

    def _give_up(self, share: Iterable[Step]) -> None:
        """Let nobody wait for what will not come."""
        for step in share:
            self._issue(step.job)

    def _queue_all(self, share: list[Step], stream: torch.cuda.Stream) -> None:
        """Queue tasks of one GPU on this thread's stream, and wait for it."""
        now = functools.partial(_mark, stream) if self._timed else _UNTIMED.__float__
        try:
            self._do_all(share, now)
        finally:
            wait_for_event(stream.record_event())

    def _launch_all(self, share: list[Step]) -> None:
        """Queue tasks and copies on their streams, and wait for those."""
        begun: set[torch.cuda.Stream] = set()
        self._do_each(self._with_calls(share), lambda step: self._launch(step, begun))
        for stream in begun:
            stream.synchronize()

    def _launch(self, step: Step, begun: set[torch.cuda.Stream]) -> None:
        """Queue a task or copy on a stream."""
        job, stream = step.job, self._streams[step.lane]
        torch.cuda.set_stream(stream)
        if stream not in begun:  # what the caller had queued comes first
            begun.add(stream)
            stream.wait_event(self._ready[stream.device])
        if self.failure.error is not None:
            return
        for wait in step.waits:
            self.wait_until_issued(wait)
            end = self.ends[wait]
            if isinstance(end, torch.cuda.Event):
                stream.wait_event(end)
        if self.failure.error is not None:
            return
        self.starts[job] = self._moment(stream)
        call: Any = step.call
        self.results[job] = call(*step.values(self.results))
        if self._timed or not (self._asked or job in self.plan.awaited):
            self.ends[job] = self._moment(stream)
        else:
            self.ends[job] = stream.record_event()

    def _moment(self, stream: torch.cuda.Stream) -> Moment:
        """When a stream comes to this point, if that is to be known."""
        return _mark(stream) if self._timed else _UNTIMED

    def _do_in_order(self, share: Sequence[Step]) -> None:
        """Do all in this thread, waiting for each before the next."""
        nodes = self.plan.nodes
        for on_gpu, steps in itertools.groupby(share, lambda step: bool(nodes[step.job].gpus)):
            if on_gpu:
                self._do_each(steps, self._do_on_gpu)
            else:
                self._do_all([*steps])

    def _do_on_gpu(self, step: Step) -> None:
        """Do a task or copy on the current stream, and wait for it."""
        if self.failure.error is not None:
            return
        number, node = step.job, self.plan.nodes[step.job]
        start: Moment = time.perf_counter()
        with torch.cuda.device(node.gpus[0]):
            stream = torch.cuda.current_stream()
            if self._alone:
                spin(_LAUNCHING_CYCLES)
                start = _mark(stream)
            call: Any = self._with_call(step, closely=True).call
            self.results[number] = call()
            end: Moment = _mark(stream)
        synchronize(*node.gpus)
        if not self._alone:  # the launch is part of it
            end = time.perf_counter()
        self.starts[number], self.ends[number] = start, end

    def _do_each(self, share: Iterable[Step], do: Callable[[Step], None]) -> None:
        for step in share:
            try:
                do(step)
                for number in step.done:
                    self.results[number] = None
            except BaseException as error:
                self.failure.set(self.plan.nodes[step.job], step.lane, error)
            self._issue(step.job)

    def _issue(self, number: int) -> None:
        """Let those go on who wait until a node is run, queued or given up."""
        self._issued[number] = True  # before the look at who waits, as they look after they wait
        if lock := self._awaited.pop(number, None):
            lock.release()

    def _wait_for_end(self, number: int) -> None:
        self.wait_until_issued(number)
        end = self.ends[number]
        if isinstance(end, torch.cuda.Event):
            end.synchronize()


def _wait_for_gpus(value: Any = None) -> None:
    """Wait for the GPUs on which a CPU task has made what it returns, or for all if that is none.

    Of a function that is not torch's nobody knows what it has queued, and where.
    """
    gpus: Iterable[torch.device | int] = {tensor.device for tensor in on_gpus(value)}
    if value is None and torch.cuda.is_initialized():
        gpus = range(torch.cuda.device_count())
    for gpu in gpus:
        torch.cuda.current_stream(gpu).synchronize()


def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event
