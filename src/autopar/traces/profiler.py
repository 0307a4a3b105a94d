"""Profiler: run some work once under torch.profiler, and get its timeline, checked."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import secrets
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler

from autopar.device import synchronize, used_gpus
from autopar.files import path_of, write_atomically
from autopar.lanes.handle import run_on_lanes
from autopar.machine import processor_names
from autopar.ranges import annotate
from autopar.refusal import Turns, check_type, check_work
from autopar.timeline.span import Timeline
from autopar.traces.chrome import Events
from autopar.traces.trace import HOST, Trace

if TYPE_CHECKING:
    from torch.profiler import profile

_MARKS = 5  # the narrowest of these windows aligns the two clocks
_NOTHING = (
    "no GPU was given work, and the CPU's is seen where it is named. Put it in `with "
    "autopar.annotate('a name'):`, or run it on a lane of autopar.cpu_lane and return the handles."
)
_LETS_GO = "TEARDOWN_CUPTI"  # read by torch's profiler when a session stops
_LETTING_GO_S = 1.0  # far longer than it takes, but for threads of others that have begun meanwhile
_THREADS = Path("/proc/self/task")
_ONE = "expected one at a time. Call this function alone, and leave profilers out of fn."
_sessions = Turns()


def timeline_of(fn: Callable[[], object]) -> Timeline:
    """Run `fn()` once under `torch.profiler` and return what ran when.

    Lanes are each GPU's streams and copy directions, and the host thread for ranges made with
    `annotate`. Times are on the host's clock (`time.perf_counter`). If `fn` returns handles of
    tasks on CPU lanes, alone or in containers, their spans are merged in, with those of the tasks
    that they waited for or whose results `fn` asked for; so are those of a Timeline on that clock.
    What was over before the call is left out.

    Warns:
        UserWarning: Nothing is to be seen: no GPU was given work, and nothing was named.

    Raises:
        TypeError: `fn` can't be called.
        RuntimeError: The profiler's record contradicts itself (work that starts before its launch,
            or has no duration) or has missed the GPUs, so no figure of it could be trusted; or a
            profiler is running already, or was run by `fn`: a process has one.

    >>> import autopar as ap
    >>> def work():
    ...     with ap.annotate("sum"):
    ...         sum(range(1_000))
    >>> [span.name for span in ap.timeline_of(work).spans]
    ['sum']
    """
    check_work("fn", fn)
    timeline = _seen(fn, _own_name())
    if not timeline.spans:
        warnings.warn(f"the timeline is empty: {_NOTHING}", stacklevel=2)
    return timeline


def timelines_of(
    ways: Mapping[str, Callable[[], object]],
    *,
    setup: Callable[[], object] | None = None,
    save: str | os.PathLike[str] | None = None,
) -> dict[str, Timeline]:
    """Run several ways, one after the other, in one session; return a timeline for each.

    One session of the profiler for all is quicker than `timeline_of` for each. Devices are idle
    before each way, and have finished after it.

    Args:
        ways: Label to work, which may return handles or a Timeline, as in `timeline_of`.
        setup: Called before each way, outside of what its timeline shows.
        save: A file for the profiler's own trace, in which each way is a range of its label, and
            neither this machine's name nor a path is left; gzipped.

    Warns:
        UserWarning: Nothing is to be seen of a way: it gave no GPU any work.

    Raises:
        TypeError: `ways` is no mapping, or has something that can't be called.
        RuntimeError: As `timeline_of` does.

    >>> import autopar as ap
    >>> def way():
    ...     with ap.cpu_lane(name="lane") as lane:
    ...         return lane.submit(sum, range(1_000))
    >>> ap.timelines_of({"one way": way})["one way"].lanes
    ('lane',)
    """
    check_type("ways", ways, Mapping, "label -> work, as in timelines_of({'serial': serial}).")
    for label, way in ways.items():
        check_work(f"ways[{label!r}]", way)

    own = _own_name()

    def one_by_one() -> Timeline:
        of_lanes = Timeline(())
        for label, way in ways.items():
            if setup is not None:
                setup()
                synchronize()
            with profiler.record_function(f"{own} of a way"), annotate(label):
                of_lanes = of_lanes.merged(run_on_lanes(way))
                synchronize()
        return of_lanes

    whole, timelines = _seen(one_by_one, own, save), {}
    marks = [span for span in whole.spans if span.name.startswith(own)]
    for label, mark in zip(ways, marks, strict=True):
        name = annotate(label).name  # of the range that is of all of the way
        seen = [span for span in whole.between(mark.start_s, mark.end_s).spans if span != mark]
        named = [span for span in seen if (span.kind, span.name) == (HOST, name)]
        seen.remove(max(named, key=lambda span: span.duration_s))
        timelines[label] = replace(whole, spans=tuple(seen))
    if empty := [label for label, timeline in timelines.items() if not timeline.spans]:
        labels = ", ".join(map(repr, empty))
        warnings.warn(f"nothing is to be seen of {labels}: {_NOTHING}", stacklevel=2)
    return timelines


def _own_name() -> str:
    """How the names of a session's own marks begin, which no other range has."""
    return f"autopar {secrets.token_hex(8)}"


def _seen(
    fn: Callable[[], object], own: str, save: str | os.PathLike[str] | None = None
) -> Timeline:
    """The timeline of one session, on the host's clock; its trace is kept if asked for."""
    _start_profiler()
    synchronize()
    with _session() as session:
        gpus = used_gpus()[:1]  # one of which this session must see something, if it is used
        for device in gpus:
            torch.empty(1, device=device).zero_()
            synchronize(device)
        marks = [_mark(own) for _ in range(_MARKS)]
        of_lanes = run_on_lanes(fn)
        synchronize()
        if not profiler._is_profiler_enabled:
            msg = f"the work ran a profiler of its own, which has ended this one; {_ONE}"
            raise RuntimeError(msg)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        session.export_chrome_trace(str(path))
        try:
            content = json.loads(path.read_text())
        except ValueError as error:  # names with quotes are written as they stand
            msg = (
                f"torch.profiler wrote no JSON ({error}), as of a record_function whose name has a "
                f"quotation mark. Name the range with autopar.annotate, or rename it."
            )
            raise RuntimeError(msg) from error
    if save is not None:
        write_atomically(path_of(save), _saved(content, own))
    trace = Events(content["traceEvents"]).trace({})
    return _on_the_hosts_clock(trace, own, marks, bool(gpus)).merged(of_lanes)


def _saved(content: dict[str, Any], own: str) -> bytes:
    """A trace without what names the machine, and without what no figure is made of.

    Those are the marks that were set here, arrows between events but for autograd's, and PyTorch's
    operators within others.
    """
    events, until_us = [], dict[Any, float]()  # by thread, the end of the last operator
    of_all = content["traceEvents"]
    start_us = min(event["ts"] for event in of_all if event.get("name") == own)
    for event in sorted(of_all, key=lambda it: (it.get("ts", 0), -it.get("dur", 0))):
        if event["ph"] != "M" and event.get("ts", start_us) < start_us:
            continue  # of the mark on a GPU
        is_operator, thread = event.get("cat") == "cpu_op", event.get("tid")
        is_arrow = event["ph"] not in "XM" and event.get("cat") != "fwdbwd"
        is_own = str(event.get("name")).startswith(own)
        if is_own or is_arrow or (is_operator and event["ts"] < until_us.get(thread, 0)):
            continue
        if is_operator:
            until_us[thread] = event["ts"] + event["dur"]
        events.append(event)
    named = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds")
    kept = {name: content[name] for name in named if name in content} | {"traceEvents": events}
    return gzip.compress(json.dumps(kept, separators=(",", ":")).encode(), mtime=0)


def _on_the_hosts_clock(
    trace: Trace, own: str, marks: list[tuple[float, float]], is_marked: bool
) -> Timeline:
    """What ran, if all of it can be right; the marks of the clock, named `own`, are left out.

    A mark's start in the trace lies somewhere between the two host readings round it. What ran
    before the first of them is the mark on a GPU.
    """
    # Of calls no figure is made here.
    if doubt := next((why for where, why in trace.doubts.items() if where != HOST), ""):
        msg = f"{doubt} No figure is given of it; run it again."
        raise RuntimeError(msg)
    spans = trace.timeline.spans
    starts_s = [span.start_s for span in spans if span.name == own]
    before = {it for it in spans if is_marked and it.kind != HOST and it.start_s < starts_s[0]}
    if is_marked and not before:
        msg = "torch.profiler has seen nothing of the GPUs in this session. Run it again."
        raise RuntimeError(msg)
    windows = zip(marks, starts_s, strict=True)
    (before_s, after_s), start_s = min(windows, key=lambda window: window[0][1] - window[0][0])
    by_s, error_s = (before_s + after_s) / 2 - start_s, (after_s - before_s) / 2
    # One lane for all threads: workers have lanes of their own.
    lanes = {span.lane: HOST if span.kind == HOST else span.lane for span in spans}
    moved = (
        replace(it, lane=lanes[it.lane], start_s=by_s + it.start_s, end_s=by_s + it.end_s)
        for it in spans
        if it.name != own and it not in before
    )
    return Timeline(tuple(moved), error_s, f"measured live on {processor_names()}")


def _mark(own: str) -> tuple[float, float]:
    before_s = time.perf_counter()
    with profiler.record_function(own):
        pass
    return before_s, time.perf_counter()


@contextlib.contextmanager
def _session() -> Iterator[profile]:
    """A session of the profiler; of two in a process torch loses one, or crashes."""
    from torch.profiler import ProfilerActivity, profile  # slow to import, and seldom wanted

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    refusal = f"a profiler is running already, in this thread or another; {_ONE}"
    for _ in _sessions.take(refusal):
        if profiler._is_profiler_enabled:
            raise RuntimeError(refusal)
        session = profile(activities=activities, acc_events=True)
        session.start()
        try:
            yield session
        finally:
            if profiler._is_profiler_enabled:  # else another's end was this one's, too
                _stop(session)


def _stop(session: profile) -> None:
    """End a session, and let go of CUPTI: else all later launches take 4 µs more on an H100."""
    before, threads = os.environ.get(_LETS_GO), _threads()
    os.environ.setdefault(_LETS_GO, "1")
    try:
        session.stop()
    finally:
        if before is None:  # processes that this one starts would take it over
            del os.environ[_LETS_GO]
    # A thread of the profiler's waits for a call of CUDA's to let go within it, be it one of the
    # next session's, which would see nothing then. A process that ends would wait for it for ever.
    threads, until_s = _threads() - threads, time.perf_counter() + _LETTING_GO_S
    synchronize()
    while used_gpus() and threads & _threads() and time.perf_counter() < until_s:
        synchronize()


def _threads() -> set[str]:
    """The system's names of this process's threads, where it tells."""
    return {path.name for path in _THREADS.glob("*")}


@functools.cache
def _start_profiler() -> None:
    """Run an empty session first: the process's first one spends its time on setting up."""
    with _session():
        _mark(_own_name())
