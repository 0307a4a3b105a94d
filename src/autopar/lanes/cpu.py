"""Cpu: a lane on a CPU thread, with its own number of intra-op threads."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import torch

from autopar.device import cpu, new_stream, used_gpus
from autopar.lanes.handle import Handle
from autopar.lanes.lane import LEFT, Lane
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

    >>> with cpu_lane() as lane:
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
        self._threads = threads
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        # Wakes the worker: there are tasks, or there will be no more.
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._ready: Outcome[None] = Outcome()  # the worker, which is dropped if it is too late
        # A daemon, as a process must end although a generator still holds a lane: `_leave_all`.
        self._worker = threading.Thread(target=self._work, name=name, daemon=True)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            _watch_process()
            self._worker.start()
            _open_lanes.add(self)
            self._ready.wait()
            self._ready.raise_error()
        except BaseException as error:
            self._close()
            if isinstance(error.__context__, KeyboardInterrupt):  # `Thread.start` has replaced it
                raise error.__context__ from None
            raise
        return self

    def _waits_for(self) -> int | None:
        return self._worker.ident

    def _blocker(self) -> Handle[Any] | None:
        return None  # the worker waits for it

    def _go_on(self) -> None:
        if self._calls.empty():  # else the worker has yet to look
            self._calls.put(True)

    def _work(self) -> None:
        """Do tasks in the order in which they come, until there are no more."""
        if not self._ready.begin():
            return
        try:
            settle_threads(self._threads)
            self._ready.set_result(None)
            while self._calls.get():
                self._do_pending()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
        finally:
            self._drop()
            self._pending.clear()
            _open_lanes.discard(self)

    def _issue(self, submission: Submission[T]) -> T:
        handle = submission.handle
        for before in submission.after:
            before._wait_until_done()
        handle._start = time.perf_counter()
        self._use_own_streams(submission.ready)
        value = submission.call()
        for device in used_gpus():  # what the task has queued there is part of it
            torch.cuda.current_stream(device).synchronize()
        handle._end = time.perf_counter()
        return value

    def _use_own_streams(self, ready: Mapping[torch.device, torch.cuda.Event]) -> None:
        """Let the worker queue on streams of its own, behind what the submitter has queued.

        On the default streams, waiting for its own work would mean waiting for everybody's.
        """
        for device in used_gpus():
            if device not in self._streams:
                self._streams[device] = new_stream(device)
            if torch.cuda.current_stream(device) != self._streams[device]:  # a task may set another
                with torch.cuda.device(device):  # setting a stream makes its device the current one
                    torch.cuda.set_stream(self._streams[device])
            if device in ready:
                self._streams[device].wait_event(ready[device])

    def _close(self) -> None:
        try:
            super()._close()
        finally:
            self._ready.drop()  # a worker that has not begun never does
            self._calls.put(False)  # one that has ends after what it is doing
        if not (self._ready.dropped() or sys.is_finalizing()):
            self._worker.join()


_open_lanes: set[CpuLane] = set()


@functools.cache
def _watch_process() -> None:
    """Let a process end, and a forked one go on, although some lane was not left."""
    atexit.register(_leave_all)
    os.register_at_fork(after_in_child=lambda: _abandon(list(_open_lanes), "in another process"))


def _leave_all() -> None:
    """Leave all lanes, as by an exception; but what runs is waited for no longer than a while."""
    lanes, give_up_s = list(_open_lanes), time.monotonic() + _LAST_WAIT_S
    for lane in lanes:
        lane._drop()
        lane._calls.put(False)
    for lane in lanes:
        lane._worker.join(max(0.0, give_up_s - time.monotonic()))
    _abandon(lanes, "still running as the process ended")


def _abandon(lanes: list[CpuLane], where: str) -> None:
    """Let nobody wait for a thread that won't go on."""
    for lane in lanes:
        lane._state, lane._admitting = LEFT, threading.RLock()  # which that thread may have held
        for handle in lane._unissued():
            handle._issued.set_exception(RuntimeError(f"{handle} is {where}"))
