"""Profiler: run some work once under torch.profiler, and get its timeline, checked."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler import record_function

from autopar.device import synchronize
from autopar.machine import processor_names
from autopar.span import Span, Timeline

if TYPE_CHECKING:
    from torch.profiler import profile

Event = dict[str, Any]

_MARK = "autopar: the host's clock"
_MARKS = 5  # the narrowest of these windows aligns the two clocks
_TOLERANCE_S = 1e-6  # the profiler's own clocks agree no better than this
_DEVICE_CATEGORIES = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "compute"}


def timeline_of(fn: Callable[[], object]) -> Timeline:
    """Run `fn()` once under `torch.profiler` and return what ran when.

    Lanes are each GPU's streams and copy directions, and the host thread for ranges made with
    `annotate`. Times are on the host's clock (`time.perf_counter`). If `fn` returns a Timeline on
    that clock, as `timeline_of_handles` makes one from CPU lanes, its spans are merged in.

    Raises:
        RuntimeError: The profiler's record contradicts itself (a kernel that starts before its
            launch, has no duration, or overlaps another of its stream), so no figure of it
            could be trusted.
    """
    _start_profiler()
    synchronize()
    with _session() as session:
        marks = [_mark() for _ in range(_MARKS)]
        returned = fn()
        synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        session.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    offset_s, error_s = _host_offset(events, marks)
    origin = f"measured live on {processor_names()}"
    timeline = Timeline(spans_of_events(events, offset_s), error_s, origin)
    return timeline.merged(returned) if isinstance(returned, Timeline) else timeline


def spans_of_events(events: list[Event], offset_s: float = 0.0) -> tuple[Span, ...]:
    """Spans of kernels, copies and annotated ranges in a profiler's Chrome trace events.

    Args:
        events: The `traceEvents` of the trace.
        offset_s: Added to every time.

    Raises:
        RuntimeError: The events contradict each other.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    on_device = [event for event in complete if event.get("cat") in _DEVICE_CATEGORIES]
    _check(on_device, complete)
    spans = [_device_span(event, offset_s) for event in on_device]
    spans += [
        _span(event, "host", "host", offset_s)
        for event in complete
        if event.get("cat") == "user_annotation" and event["name"] != _MARK
    ]
    return tuple(spans)


def _device(event: Event) -> int:
    """The GPU that did it; copies between two GPUs name three, of which one does the work."""
    found: int = event["args"].get("device", event["args"].get("inDevice", -1))
    return found


def _device_span(event: Event, offset_s: float) -> Span:
    gpu = f"GPU {_device(event)}"
    kind = _DEVICE_CATEGORIES[event["cat"]]
    if kind == "compute":
        return _span(event, f"{gpu} stream {event['args']['stream']}", kind, offset_s)
    directions = {"DtoH": "to host", "HtoD": "from host", "PtoP": "to a peer", "DtoD": "within"}
    words = (words for code, words in directions.items() if code in event["name"])
    return _span(event, f"{gpu} copies {next(words, 'of another kind')}", kind, offset_s)


def _span(event: Event, lane: str, kind: str, offset_s: float) -> Span:
    start_s = offset_s + event["ts"] / 1e6
    return Span(event["name"], lane, start_s, start_s + event["dur"] / 1e6, kind)


def _check(on_device: list[Event], complete: list[Event]) -> None:
    """Refuse a record whose figures would be wrong; profilers have been seen to write such."""
    launches = {
        event["args"]["correlation"]: event
        for event in complete
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and "correlation" in event.get("args", {})
    }
    streams: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in on_device:
        streams[_device(event), event["args"]["stream"]].append(event)
        launch = launches.get(event["args"].get("correlation"))
        if event["dur"] <= 0 or event["ts"] <= 0:
            _refuse(event, f"it starts at {event['ts']} us and takes {event['dur']} us")
        if launch is not None and event["ts"] + _TOLERANCE_S * 1e6 < launch["ts"]:
            _refuse(event, f"it starts {launch['ts'] - event['ts']:.3f} us before its launch")
    for in_order in streams.values():
        in_order.sort(key=lambda event: event["ts"])
        for first, second in itertools.pairwise(in_order):
            overlap_us = first["ts"] + first["dur"] - second["ts"]
            if overlap_us > _TOLERANCE_S * 1e6:
                _refuse(
                    second, f"it overlaps {first['name']!r} of its stream by {overlap_us:.3f} us"
                )


def _refuse(event: Event, why: str) -> None:
    msg = (
        f"the profiler's record of {event['name']!r} on GPU {_device(event)} can't be "
        f"right: {why}. No figure is given for it; run it again."
    )
    raise RuntimeError(msg)


def _host_offset(events: list[Event], marks: list[tuple[float, float]]) -> tuple[float, float]:
    """What to add to the trace's seconds to get the host's clock, and the error of that.

    A mark's start in the trace lies somewhere between the two host readings round it.
    """
    starts = sorted(event["ts"] / 1e6 for event in events if event.get("name") == _MARK)
    windows = zip(starts, marks, strict=True)
    start_s, (before_s, after_s) = min(windows, key=lambda window: window[1][1] - window[1][0])
    return (before_s + after_s) / 2 - start_s, (after_s - before_s) / 2


def _mark() -> tuple[float, float]:
    before_s = time.perf_counter()
    with record_function(_MARK):
        pass
    return before_s, time.perf_counter()


def _session() -> profile:
    from torch.profiler import ProfilerActivity, profile  # slow to import, and seldom wanted

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities, acc_events=True)


_started = False


def _start_profiler() -> None:
    """Run an empty session first: the process's first one spends its time on setting up."""
    global _started
    if not _started:
        with _session():
            _mark()
        _started = True
