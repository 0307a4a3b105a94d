"""Worker: a lane on a CPU thread, with its own number of intra-op threads."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

import torch

from autopar.device import cpu, used_gpus
from autopar.lane import Lane
from autopar.task import Task

T = TypeVar("T")

_numbers = itertools.count(1)
_setting_threads = threading.Lock()


def cpu_lane(threads: int = 1, *, name: str | None = None, kind: str = "compute") -> Lane:
    """A lane on a CPU worker thread of its own.

    Args:
        threads: Threads that one operator of this lane may use. Lanes that share a machine
            should share out its cores.
        name: Its name; `CPU lane N` if not given.
        kind: What its tasks are in a timeline: `compute`, `copy` or `host`.

    Raises:
        ValueError: Fewer than one thread, or an unknown kind.

    >>> with cpu_lane() as lane:
    ...     three = lane.submit(lambda: 1 + 2)
    ...     six = lane.submit(lambda x: 2 * x, three)
    >>> six.result()
    6
    """
    if threads < 1:
        msg = f"threads is {threads}; expected at least 1 thread for the lane's operators"
        raise ValueError(msg)
    return CpuLane(threads, name or f"CPU lane {next(_numbers)}", kind)


class CpuLane(Lane):
    """One worker thread, with its own number of intra-op threads."""

    _maker = "cpu_lane"

    def __init__(self, threads: int, name: str, kind: str) -> None:
        super().__init__(name, cpu(), kind)
        self.threads = threads
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        with _setting_threads:  # else one lane could take another's number for the default
            threads_before = torch.get_num_threads()
            self._worker = self._executor.submit(_settle, self.threads).result()
            # The worker's number also became the default of threads yet to be made: put it back.
            torch.set_num_threads(threads_before)
        return self

    def _accept(self, task: Task[Any]) -> None:
        task.handle.runner = lambda: self._worker
        self._executor.submit(self._work, task)

    def _work(self, task: Task[Any]) -> None:
        for before in task.after:
            if not task.handle.issued.cancelled():
                before.wait_until_issued()
        self._run(task, self._do)

    def _do(self, task: Task[T]) -> T:
        handle = task.handle
        for before in task.after:
            before.wait_until_done()
        handle.start = time.perf_counter()
        arguments = task.arguments()
        self._use_own_streams(task.ready)
        value = task.call(arguments)
        for device in used_gpus():  # what the task has queued there is part of it
            torch.cuda.current_stream(device).synchronize()
        handle.end = time.perf_counter()
        return value

    def _use_own_streams(self, ready: Mapping[torch.device, torch.cuda.Event]) -> None:
        """Let the worker queue on streams of its own, behind what the submitter has queued.

        On the default streams, waiting for its own work would mean waiting for everybody's.
        """
        for device in used_gpus():
            if device not in self._streams:
                with torch.cuda.device(device):  # setting a stream makes its device the current one
                    self._streams[device] = torch.cuda.Stream(device)
                    torch.cuda.set_stream(self._streams[device])
            if device in ready:
                self._streams[device].wait_event(ready[device])

    def _drain(self) -> None:
        super()._drain()
        if not self._open:
            self._executor.shutdown(wait=True)


def _settle(threads: int) -> int:
    """Fix the calling thread's number of intra-op threads, and return the thread's ident.

    A thread takes over the default at its first parallel operator, also after its own number was
    set. Asking for the number counts as one, so it is settled before the default changes again.
    """
    torch.set_num_threads(threads)
    torch.get_num_threads()
    return threading.get_ident()
