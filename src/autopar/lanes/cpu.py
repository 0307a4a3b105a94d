"""Cpu: a lane on a CPU thread, with its own number of intra-op threads."""

from __future__ import annotations

import _thread
import atexit
import itertools
import os
import queue
import sys
import threading
import time
import weakref
from typing import Any, Self, TypeVar

import torch

from autopar.device import cpu, new_stream, used_gpus
from autopar.lanes.handle import Handle
from autopar.lanes.lane import ENDED, OPEN, Lane
from autopar.lanes.outcome import Outcome
from autopar.lanes.submission import Submission
from autopar.machine import settle_threads
from autopar.refusal import whole_number

T = TypeVar("T")

_numbers = itertools.count(1)
_MOST_THREADS = 1024  # more than machines have cores: each of them is started
_LAST_WAIT_S = 2.0  # at the end of the process, for tasks of lanes that were not left


def cpu_lane(threads: int = 1, *, name: str | None = None, kind: str = "compute") -> Lane:
    """A lane on a CPU worker thread of its own.

    Args:
        threads: Threads that one operator of this lane may use. Lanes that share a machine
            should share out its cores.
        name: Its name; `CPU lane N` if not given.
        kind: What its tasks are in a timeline: `compute`, `copy` or `host`.

    Raises:
        ValueError: The number of threads is not a whole one, from 1 up, or the kind is unknown.
        TypeError: The name is no text.

    >>> import autopar as ap
    >>> with ap.cpu_lane() as lane:
    ...     three = lane.submit(lambda: 1 + 2)
    ...     six = lane.submit(lambda x: 2 * x, three)
    >>> six.result()
    6
    """
    of = " for the lane's operators. Leave it out for 1; a name is given as name="
    threads = whole_number("threads", threads, most=_MOST_THREADS, of=of)
    return CpuLane(threads, f"CPU lane {next(_numbers)}" if name is None else name, kind)


class CpuLane(Lane):
    """One worker thread, with its own number of intra-op threads."""

    _maker = "cpu_lane"

    def __init__(self, threads: int, name: str, kind: str) -> None:
        super().__init__(name, cpu(), kind)
        self._process = os.getpid()  # a fork has no thread for it
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        # Wakes the worker: there are tasks, or there will be no more.
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._ready: Outcome[None] = Outcome()  # the worker, which is dropped if it is too late
        # A lane may never be left: where a generator holds it, or Ctrl-C comes twice. So its thread
        # keeps neither the process from ending nor the lane from going, and ends with that.
        given = (weakref.ref(self), self._calls, self._ready, threads)
        self._worker = threading.Thread(target=_work, args=given, name=name, daemon=True)
        weakref.finalize(self, self._calls.put, False).atexit = False

    def __enter__(self) -> Self:
        super().__enter__()
        _lanes.add(self)
        try:
            # Not here: Ctrl-C in `Thread.start` may leave a lock taken that the worker waits for.
            _thread.start_new_thread(_start, (self._worker, self._ready))
            self._ready.wait()
            self._ready.raise_error()
        except BaseException:
            self._close()
            raise
        return self

    def _waits_for(self) -> int | None:
        return self._worker.ident

    def _blocker(self) -> Handle[Any] | None:
        return None  # the worker waits for it

    def _go_on(self) -> None:
        if self._process != os.getpid():
            msg = (
                f"lane {self.name!r} is open in another process, which this one was forked from; "
                f"expected a call there. Open lanes after the fork."
            )
            raise RuntimeError(msg)
        if self._calls.empty():  # else the worker has yet to look
            self._calls.put(True)

    def _issue(self, submission: Submission[T]) -> T:
        handle = submission.handle
        for before in submission.after:
            before._wait_until_done()
        handle._start = time.perf_counter()
        self._use_own_streams()
        for device, event in submission.ready.items():
            torch.cuda.current_stream(device).wait_event(event)
        value = submission.call()
        for device in used_gpus():  # what the task has queued there is part of it
            torch.cuda.current_stream(device).synchronize()
        handle._end = time.perf_counter()
        return value

    def _use_own_streams(self) -> None:
        """Let the worker queue on streams of its own.

        On the default streams, waiting for its own work would mean waiting for everybody's.
        """
        for device in used_gpus():
            if device not in self._streams:
                self._streams[device] = new_stream(device)
                with torch.cuda.device(device):  # setting a stream makes its device the current one
                    torch.cuda.set_stream(self._streams[device])

    def _drain(self) -> None:
        if not sys.is_finalizing():  # then the worker does nothing any more
            super()._drain()

    def _close(self) -> None:
        try:
            super()._close()
        finally:
            self._ready.drop()  # a worker that has not begun never does
            self._calls.put(False)  # one that has ends after what it is doing
        if not self._ready.dropped() and not sys.is_finalizing():
            self._worker.join()


def _start(worker: threading.Thread, ready: Outcome[None]) -> None:
    try:
        worker.start()
    except BaseException as error:
        ready.set_exception(error)


def _work(
    at: weakref.ref[CpuLane], calls: queue.SimpleQueue[bool], ready: Outcome[None], threads: int
) -> None:
    """Do a lane's tasks in the order in which they come, until there are no more."""
    if not ready.begin():
        return
    try:
        settle_threads(threads)
    except BaseException as error:
        ready.set_exception(error)
        return
    ready.set_result(None)
    try:
        while calls.get() and (lane := at()) is not None:
            lane._do_pending()
            del lane  # while it waits for more
    finally:
        if (lane := at()) is not None:
            lane._drop()  # nobody would come to the rest


_lanes: weakref.WeakSet[CpuLane] = weakref.WeakSet()  # that were opened


@atexit.register
def _end_all() -> None:
    """As the process ends, drop what has not begun on any lane, and wait for what threads are at.

    A thread that comes out of an operator of torch later than that would abort the process.
    """
    here = [lane for lane in tuple(_lanes) if lane._process == os.getpid()]
    for lane in here:
        if lane._state == OPEN:
            lane._drop(ENDED)
            lane._calls.put(False)
    until_s = time.perf_counter() + _LAST_WAIT_S
    for lane in here:
        if lane._worker.is_alive():
            lane._worker.join(max(0.0, until_s - time.perf_counter()))
