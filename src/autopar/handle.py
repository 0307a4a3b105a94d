"""Handle: what a lane gives back for a task; it yields the result only once it is there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

import torch
from torch.utils import _pytree as pytree

from autopar.clock import DeviceClock
from autopar.span import Span, Timeline

T = TypeVar("T")

_SPIN_S = 200e-6  # waits shorter than this end without a sleep
_NAP_S = 20e-6  # Linux adds its timer slack, 50 us unless told otherwise


class Handle(Generic[T]):
    """A task given to a lane, and its result once the work is done.

    Handles come from `Lane.submit`. Given as an argument or in `after=` of another `submit`, a
    handle makes that task wait, on whichever lane it is.

    Attributes:
        name: The task's name.
        lane: The name of its lane.
        device: Where it runs.
        kind: What its span is: `compute`, `copy` or `host`.
    """

    def __init__(self, name: str, lane: str, device: torch.device, kind: str) -> None:
        self.name = name
        self.lane = lane
        self.device = device
        self.kind = kind
        self.seen = False  # whether its error has reached the caller
        self.blocked_by: Handle[Any] | None = None  # a failed task that kept this from running
        self.runner: Callable[[], int | None] = lambda: None  # ident of the thread in its lane
        # Resolved once `fn` has returned: on a CPU lane all is done then, on a stream all queued.
        self.issued: Future[T] = Future()
        self.start: float | torch.cuda.Event | None = None
        self.end: float | torch.cuda.Event | None = None
        self.clock: DeviceClock | None = None

    def done(self) -> bool:
        """Whether a result or an error can be had without waiting."""
        if not self.issued.done():
            return False
        return self.failed() or not isinstance(self.end, torch.cuda.Event) or self.end.query()

    def failed(self) -> bool:
        """Whether it has ended without a value: by an error, or dropped."""
        issued = self.issued
        return issued.done() and (issued.cancelled() or issued.exception() is not None)

    def wait(self) -> None:
        """Wait until the work is done; Ctrl-C ends the wait.

        Raises:
            Exception: What the task raised, with a note that names the task, lane and device.
            CancelledError: The task was dropped, as its lane was left by an exception.
            RuntimeError: The task waits for itself, or for one that failed.
        """
        self.wait_until_issued()
        try:
            self.issued.result()
        except CancelledError:
            msg = f"{self} was dropped before it began, as its lane was left by an exception"
            raise CancelledError(msg) from None
        except BaseException:
            self._mark_seen()
            raise
        self.wait_until_done()

    def wait_until_done(self) -> None:
        """Wait for the end of what it has queued on a stream; it must be issued."""
        if isinstance(self.end, torch.cuda.Event):
            wait_for_event(self.end)

    def wait_until_issued(self) -> None:
        """Wait until its function has returned or failed, or it was dropped.

        Raises:
            RuntimeError: The calling task keeps it from being issued.
        """
        if not self.issued.done() and self.runner() == threading.get_ident():
            msg = f"{self} is awaited by a task of its own lane, which it is queued behind"
            raise RuntimeError(msg)
        with contextlib.suppress(CancelledError):
            self.issued.exception()

    def result(self) -> T:
        """Wait for the work and return what the task returned.

        CUDA tensors may be used at once on the caller's current stream.

        Raises:
            Exception: As `wait` does.
        """
        self.wait()
        value = self.issued.result()
        use_on_current_streams(value)
        return value

    @property
    def span(self) -> Span:
        """When the task ran, by the host's clock (`time.perf_counter`); waits for it.

        On a stream it lies between two events, so on an idle stream the launch is inside.
        `alignment_error_s` says how far a stream's times may be off.
        """
        self.wait()
        start_s, end_s = self._time_s(self.start), self._time_s(self.end)
        return Span(self.name, self.lane, start_s, end_s, self.kind)

    @property
    def alignment_error_s(self) -> float:
        """Seconds by which the span may be off, either way; none on a CPU lane. Waits for it."""
        self.wait()
        events = [each for each in (self.start, self.end) if isinstance(each, torch.cuda.Event)]
        if self.clock is None or not events:
            return 0.0
        return max(self.clock.error_at(event) for event in events)

    def __str__(self) -> str:
        return f"task {self.name!r} on lane {self.lane!r} ({self.device})"

    def _mark_seen(self) -> None:
        """Note that the caller has the error, and with it, as its cause, the one behind it."""
        if self.issued.done():  # otherwise it was Ctrl-C that ended the wait
            handle: Handle[Any] | None = self
            while handle is not None:
                handle.seen, handle = True, handle.blocked_by

    def _time_s(self, moment: float | torch.cuda.Event | None) -> float:
        assert moment is not None  # set before the task is issued
        if isinstance(moment, torch.cuda.Event):
            assert self.clock is not None
            return self.clock.time_s(moment)
        return moment


def timeline_of_handles(handles: Iterable[Handle[Any]]) -> Timeline:
    """The spans of some handles on the host's clock, as one timeline; waits for them."""
    listed = list(handles)
    spans = tuple(handle.span for handle in listed)
    return Timeline(spans, max((handle.alignment_error_s for handle in listed), default=0.0))


def cuda_tensors(values: object) -> Iterator[torch.Tensor]:
    """The CUDA tensors in nested containers."""
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
            yield leaf


def use_on_current_streams(values: object) -> None:
    """Tell the allocator that the calling thread's current streams read these tensors.

    Without it, memory freed here could be handed out again by the stream that allocated it,
    while a kernel of another stream still reads it.
    """
    for tensor in cuda_tensors(values):
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def wait_for_event(event: torch.cuda.Event) -> None:
    """Wait for an event, in the main thread so that Ctrl-C is heard: the driver's wait is deaf."""
    if threading.current_thread() is not threading.main_thread():
        event.synchronize()
        return
    spin_until_s = time.perf_counter() + _SPIN_S
    while not event.query():
        if time.perf_counter() > spin_until_s:
            time.sleep(_NAP_S)
