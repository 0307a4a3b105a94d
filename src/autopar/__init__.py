"""autopar: see, measure and trust when a PyTorch program runs things in parallel.

`import autopar as d2l` runs the PyTorch code of the chapter *Automatic Parallelism* of *Dive into
Deep Learning* unchanged. Importing has no effects: no CUDA context, thread, file or plot style.
Each public name is loaded at its first use, from the room that it is written in.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar import workload
    from autopar.device import (
        cpu,
        empty_heap,
        empty_pinned_pool,
        gpu,
        num_gpus,
        synchronize,
        try_all_gpus,
        try_gpu,
    )
    from autopar.display import plot
    from autopar.display.show import show
    from autopar.display.svg import Drawing, draw, show_timelines
    from autopar.display.table import Table, against_goals, compare, tabulate
    from autopar.effects.task import Task
    from autopar.graph.capture import Captured
    from autopar.graph.plan import Plan
    from autopar.graph.run import Run
    from autopar.graph.task_graph import TaskGraph
    from autopar.lanes.cpu import cpu_lane
    from autopar.lanes.cuda import cuda_lane
    from autopar.lanes.handle import Handle, timeline_of_handles
    from autopar.lanes.lane import Lane
    from autopar.machine import Capacity, capacity, describe
    from autopar.ranges import annotate
    from autopar.records.claim import Claim, Estimate, claim
    from autopar.records.experiment import newest_record, observed, recorded
    from autopar.records.provenance import __version__
    from autopar.records.record import Findings, Record, RecordError
    from autopar.timeline.chrome_trace import write_trace
    from autopar.timeline.span import Span, Timeline
    from autopar.timing.fresh_process import in_fresh_process
    from autopar.timing.measurement import Measurement, hidden_share
    from autopar.timing.timer import Benchmark, Timer, measure, measure_in_turn
    from autopar.traces.profiler import timeline_of, timelines_of
    from autopar.traces.read import read_trace
    from autopar.traces.trace import TraceError
    from autopar.transfer.pipeline import CopyPipeline

# Where each name is written, the ones to begin with first.
_HOME = {
    "timing.timer": "measure measure_in_turn Timer Benchmark",
    "display.table": "compare tabulate against_goals Table",
    "graph.task_graph": "TaskGraph",
    "transfer.pipeline": "CopyPipeline",
    "lanes.cpu": "cpu_lane",
    "lanes.cuda": "cuda_lane",
    "traces.profiler": "timeline_of timelines_of",
    "traces.read": "read_trace",
    "display.svg": "draw Drawing show_timelines",
    "display.show": "show",
    "ranges": "annotate",
    "device": "cpu gpu num_gpus try_gpu try_all_gpus synchronize empty_heap empty_pinned_pool",
    "machine": "describe capacity Capacity",
    "timing.measurement": "Measurement hidden_share",
    "timing.fresh_process": "in_fresh_process",
    "timeline.span": "Span Timeline",
    "timeline.chrome_trace": "write_trace",
    "lanes.lane": "Lane",
    "lanes.handle": "Handle timeline_of_handles",
    "effects.task": "Task",
    "graph.plan": "Plan",
    "graph.run": "Run",
    "graph.capture": "Captured",
    "records.experiment": "recorded observed newest_record",
    "records.claim": "claim Claim Estimate",
    "records.record": "Findings Record RecordError",
    "traces.trace": "TraceError",
    "records.provenance": "__version__",
}
# Modules that are used by a name of the door.
_MODULES = {"plot": "autopar.display.plot", "workload": "autopar.workload"}
_ROOM_OF = {name: room for room, names in _HOME.items() for name in names.split()}

__all__ = [  # noqa: RUF022 - the ones to begin with first
    "measure",
    "measure_in_turn",
    "Timer",
    "Benchmark",
    "compare",
    "tabulate",
    "against_goals",
    "Table",
    "TaskGraph",
    "CopyPipeline",
    "cpu_lane",
    "cuda_lane",
    "timeline_of",
    "timelines_of",
    "read_trace",
    "draw",
    "Drawing",
    "plot",
    "show",
    "show_timelines",
    "annotate",
    "cpu",
    "gpu",
    "num_gpus",
    "try_gpu",
    "try_all_gpus",
    "synchronize",
    "empty_heap",
    "empty_pinned_pool",
    "describe",
    "capacity",
    "Capacity",
    "workload",
    "Measurement",
    "hidden_share",
    "in_fresh_process",
    "Span",
    "Timeline",
    "write_trace",
    "Lane",
    "Handle",
    "timeline_of_handles",
    "Task",
    "Plan",
    "Run",
    "Captured",
    "recorded",
    "observed",
    "newest_record",
    "claim",
    "Claim",
    "Estimate",
    "Findings",
    "Record",
    "RecordError",
    "TraceError",
    "__version__",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Load a name at its first use."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _ROOM_OF:
        msg = f"module 'autopar' has no attribute {name!r}"
        raise AttributeError(msg)
    room = importlib.import_module(f"autopar.{_ROOM_OF[name]}")
    value = globals()[name] = getattr(room, name)
    return value
