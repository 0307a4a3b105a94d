"""Handle: what a lane gives back for a task; it yields the result only once it is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from autopar.lanes.clock import DeviceClock
from autopar.lanes.outcome import Outcome
from autopar.refusal import NoValue, several
from autopar.timeline.span import Span, Timeline
from autopar.torch_private import pytree

T = TypeVar("T")

_SPIN_S = 200e-6  # waits shorter than this end without a sleep
_NAP_S = 20e-6  # Linux adds its timer slack, 50 µs unless told otherwise

_noted: dict[object, dict[Span, None]] = {}  # by who runs on lanes, what these did

awaited: dict[int, Handle[Any]] = {}  # what each thread waits for, by the thread's ident


class Handle(NoValue, Generic[T]):
    """A task given to a lane, and its result once the work is done.

    Handles come from `Lane.submit`. Given as an argument or in `after=` of another `submit`, a
    handle makes that task wait, on whichever lane it is.

    Attributes:
        name: The task's name.
        lane: The name of its lane.
        device: Where it runs.
        kind: What its span is: `compute`, `copy` or `host`.

    >>> import autopar as ap
    >>> with ap.cpu_lane() as lane:
    ...     two = lane.submit(abs, -2)
    ...     five = lane.submit(max, two, 5)  # waits for `two`
    >>> five.result()
    5
    """

    _HOW = "call its .result(), or submit what needs it: lane.submit(fn, handle)."

    def __init__(
        self,
        name: str,
        lane: str,
        device: torch.device,
        kind: str,
        *,
        # The thread that has to come to it, or what must be issued before, if anything.
        waits_for: Callable[[], Any] = lambda: None,
        urge: Callable[[], None] = lambda: None,  # do what the waiting thread can do for it
    ) -> None:
        self.name = name
        self.lane = lane
        self.device = device
        self.kind = kind
        self._waits_for: Callable[[], int | Handle[Any] | None] = waits_for
        self._urge = urge
        self._blocked_by: Handle[Any] | None = None  # a failed task that kept this from running
        self._unseen_in: dict[Handle[Any], None] = {}  # where it is kept until its error was seen
        # Settled once `fn` has returned: on a CPU lane all is done then, on a stream all queued.
        self._issued: Outcome[T] = Outcome()
        self._start: float | torch.cuda.Event | None = None
        self._end: float | torch.cuda.Event | None = None
        self._clock: DeviceClock | None = None

    def done(self) -> bool:
        """Whether a result or an error can be had without waiting."""
        return self._issued.done() and (
            self.failed() or not isinstance(self._end, torch.cuda.Event) or self._end.query()
        )

    def failed(self) -> bool:
        """Whether it has ended without a value: by an error, or dropped."""
        return self._issued.dropped() or self._issued.error() is not None

    def wait(self) -> None:
        """Wait until the work is done; Ctrl-C ends the wait.

        Raises:
            Exception: What the task raised, with a note that names the task, lane and device.
            CancelledError: The task was dropped, as its lane was left by an exception.
            RuntimeError: The task was not run as one that it waits for failed, or the wait could
                never end, as the task waits for the calling one.
        """
        self._wait_until_issued()
        if self._issued.dropped():
            why = "its lane was left by an exception, or ended with the process"
            msg = f"{self} was dropped before it began, as {why}"
            raise CancelledError(msg)
        if self._issued.error() is not None:
            self._mark_seen()
            self._issued.raise_error()
        self._wait_until_done()

    def _wait_until_done(self) -> None:
        """Wait for the end of what it has queued on a stream; it must be issued."""
        if isinstance(self._end, torch.cuda.Event):
            wait_for_event(self._end)

    def _wait_until_issued(self) -> None:
        """Wait until its function has returned or failed, or it was dropped.

        Raises:
            RuntimeError: The wait could never end.
        """
        if self._issued.done():
            return
        me = threading.get_ident()
        outer = awaited.get(me)

        def look() -> None:
            self._urge()
            _refuse_circle(self, me)

        try:
            # Before the look: of two that close a circle, the later sees the other.
            awaited[me] = self
            _refuse_circle(self, me)
            self._issued.wait(look)
        finally:
            if outer is None:
                awaited.pop(me, None)
            else:
                awaited[me] = outer

    def result(self) -> T:
        """Wait for the work and return what the task returned.

        CUDA tensors may be used at once on the caller's current stream.

        Raises:
            Exception: As `wait` does.
        """
        self.wait()
        self._note_span()
        value = self._issued.value()
        use_on_current_streams(value)
        return value

    @property
    def span(self) -> Span:
        """When the task ran, by the host's clock (`time.perf_counter`); waits for it.

        On a stream it lies between two events, so on an idle stream the launch is inside.
        `alignment_error_s` says how far a stream's times may be off.
        """
        self.wait()
        start_s, end_s = self._time_s(self._start), self._time_s(self._end)
        return Span(self.name, self.lane, start_s, end_s, self.kind)

    @property
    def alignment_error_s(self) -> float:
        """Seconds by which the span may be off, either way; none on a CPU lane. Waits for it."""
        self.wait()
        if self._clock is None:
            return 0.0
        moments = (self._start, self._end)
        return max(self._clock.error_at(m) for m in moments if isinstance(m, torch.cuda.Event))

    def _note_span(self) -> None:
        """Tell who runs on lanes when it ran, if it did on a CPU lane; it must be done."""
        if _noted and self.device.type == "cpu":
            for spans in tuple(_noted.values()):
                spans[self.span] = None

    def __str__(self) -> str:
        return f"task {self.name!r} on lane {self.lane!r} ({self.device})"

    def __repr__(self) -> str:
        return f"<Handle: {self}>"

    def _mark_seen(self) -> None:
        """Note that the caller has the error, and with it, as its cause, the one behind it."""
        handle: Handle[Any] | None = self
        while handle is not None:
            handle._unseen_in.pop(handle, None)
            handle = handle._blocked_by

    def _time_s(self, moment: float | torch.cuda.Event | None) -> float:
        assert moment is not None  # set before the task is issued
        if isinstance(moment, torch.cuda.Event):
            assert self._clock is not None
            return self._clock.time_s(moment)
        return moment


def _refuse_circle(what: Handle[Any], me: int) -> None:
    """Refuse to wait for what can only go on once this thread does."""
    passed = [what]
    while not passed[-1]._issued.done():
        following = passed[-1]._waits_for()
        if type(following) is int and following == me:
            if len(passed) == 1:
                msg = f"{what} is awaited by a task of its own lane, which it is queued behind"
            else:
                way = ", which waits for ".join(map(str, passed))
                msg = f"a task waits for {way}, and that for the waiting task itself"
            msg += ". No such wait can end: pass the handle as an argument instead, or in after=."
            raise RuntimeError(msg)
        if isinstance(following, int):  # another thread, and what that one waits for
            following = awaited.get(following)
        if following is None or any(following is one for one in passed):
            return
        passed.append(following)


def run_on_lanes(fn: Callable[[], object]) -> Timeline:
    """Run something, and tell what CPU lanes did for it; a profiler sees kernels and copies.

    That are tasks whose handles it returns, alone or in containers, whose results it has asked
    for, or that others have waited for; and the spans of a Timeline that it returns. What was over
    before it began is left out.
    """
    me, timeline, begun_s = object(), Timeline(()), time.perf_counter()
    _noted[me] = spans = dict[Span, None]()
    try:
        result = fn()
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Timeline):
                timeline = timeline.merged(leaf)
        for handle in handles_in(result):
            handle.wait()
            handle._note_span()
        every = dict.fromkeys(timeline.spans) | spans
        return replace(timeline, spans=tuple(span for span in every if span.end_s > begun_s))
    finally:
        del _noted[me]


def timeline_of_handles(handles: Iterable[Handle[Any]]) -> Timeline:
    """The spans of some handles on the host's clock, as one timeline; waits for them.

    Of other tasks, that these waited for, nothing is kept: give their handles, too, or take
    `timeline_of`, which sees them as they are done.

    >>> import autopar as ap
    >>> with ap.cpu_lane() as lane:
    ...     handles = [lane.submit(sum, range(1_000), name=name) for name in ("first", "then")]
    >>> [span.name for span in ap.timeline_of_handles(handles).spans]
    ['first', 'then']
    """
    listed = several("handles", handles, "a list of what Lane.submit returns: [handle].", Handle)
    spans = tuple([handle.span for handle in listed])  # a generator lets no StopIteration through
    return Timeline(spans, max((handle.alignment_error_s for handle in listed), default=0.0))


def handles_in(values: object) -> Iterator[Handle[Any]]:
    """The handles in nested containers."""
    return (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Handle))


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
    if torch.cuda.is_initialized():  # else there is no such tensor, and to look takes microseconds
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
