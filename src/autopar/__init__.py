"""autopar: see, measure and trust when a PyTorch program runs things in parallel.

`import autopar as d2l` runs the PyTorch code of the chapter *Automatic Parallelism* of *Dive into
Deep Learning* unchanged. Importing has no effects: no CUDA context, thread, file or plot style.
Each public name is loaded at its first use, from the room that it is written in.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as`: what type checkers take for public, as they can't see `__all__`
    from autopar import workload as workload
    from autopar.device import cpu as cpu
    from autopar.device import empty_heap as empty_heap
    from autopar.device import empty_pinned_pool as empty_pinned_pool
    from autopar.device import gpu as gpu
    from autopar.device import num_gpus as num_gpus
    from autopar.device import synchronize as synchronize
    from autopar.device import try_all_gpus as try_all_gpus
    from autopar.device import try_gpu as try_gpu
    from autopar.display import plot as plot
    from autopar.display.comparison import compare as compare
    from autopar.display.show import show as show
    from autopar.display.svg import Drawing as Drawing
    from autopar.display.svg import draw as draw
    from autopar.display.svg import show_timelines as show_timelines
    from autopar.display.table import Table as Table
    from autopar.display.table import against_goals as against_goals
    from autopar.display.table import tabulate as tabulate
    from autopar.distributed.joint import findings_of_ranks as findings_of_ranks
    from autopar.distributed.launch import on_ranks as on_ranks
    from autopar.distributed.steps import race_of_steps as race_of_steps
    from autopar.effects.task import Task as Task
    from autopar.graph.capture import Captured as Captured
    from autopar.graph.plan import Plan as Plan
    from autopar.graph.run import Run as Run
    from autopar.graph.task_graph import TaskGraph as TaskGraph
    from autopar.lanes.cpu import cpu_lane as cpu_lane
    from autopar.lanes.cuda import cuda_lane as cuda_lane
    from autopar.lanes.handle import Handle as Handle
    from autopar.lanes.handle import timeline_of_handles as timeline_of_handles
    from autopar.lanes.lane import Lane as Lane
    from autopar.machine import Capacity as Capacity
    from autopar.machine import capacity as capacity
    from autopar.machine import describe as describe
    from autopar.ranges import annotate as annotate
    from autopar.records.claim import Claim as Claim
    from autopar.records.claim import Estimate as Estimate
    from autopar.records.claim import claim as claim
    from autopar.records.experiment import newest_record as newest_record
    from autopar.records.experiment import observed as observed
    from autopar.records.experiment import recorded as recorded
    from autopar.records.provenance import __version__ as __version__
    from autopar.records.race import race as race
    from autopar.records.record import Findings as Findings
    from autopar.records.record import Record as Record
    from autopar.records.record import RecordError as RecordError
    from autopar.timeline.chrome_trace import write_trace as write_trace
    from autopar.timeline.span import Span as Span
    from autopar.timeline.span import Timeline as Timeline
    from autopar.timing.fresh_process import csan_reports as csan_reports
    from autopar.timing.fresh_process import in_fresh_process as in_fresh_process
    from autopar.timing.measurement import Measurement as Measurement
    from autopar.timing.measurement import hidden_share as hidden_share
    from autopar.timing.timer import Benchmark as Benchmark
    from autopar.timing.timer import Timer as Timer
    from autopar.timing.timer import measure as measure
    from autopar.timing.timer import measure_in_turn as measure_in_turn
    from autopar.traces.profiler import timeline_of as timeline_of
    from autopar.traces.profiler import timelines_of as timelines_of
    from autopar.traces.read import read_trace as read_trace
    from autopar.traces.trace import TraceError as TraceError
    from autopar.transfer.pipeline import CopyPipeline as CopyPipeline

# Where each name is written, the ones to begin with first.
_HOME = {
    "timing.timer": "measure measure_in_turn Timer Benchmark",
    "display.comparison": "compare",
    "display.table": "tabulate against_goals Table",
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
    "timing.fresh_process": "in_fresh_process csan_reports",
    "timeline.span": "Span Timeline",
    "timeline.chrome_trace": "write_trace",
    "lanes.lane": "Lane",
    "lanes.handle": "Handle timeline_of_handles",
    "effects.task": "Task",
    "graph.plan": "Plan",
    "graph.run": "Run",
    "graph.capture": "Captured",
    "distributed.launch": "on_ranks",
    "distributed.steps": "race_of_steps",
    "distributed.joint": "findings_of_ranks",
    "records.race": "race",
    "records.experiment": "recorded observed newest_record",
    "records.claim": "claim Claim Estimate",
    "records.record": "Findings Record RecordError",
    "traces.trace": "TraceError",
    "records.provenance": "__version__",
}
# Modules that are used by a name of the door.
_MODULES = {"plot": "autopar.display.plot", "workload": "autopar.workload"}
_ROOM_OF = {name: room for room, names in _HOME.items() for name in names.split()}

__all__ = [*_ROOM_OF, *_MODULES]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Load a name at its first use."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _ROOM_OF:
        msg = f"module 'autopar' has no attribute {name!r}"
        raise AttributeError(msg, name=name, obj=sys.modules[__name__])  # for "Did you mean"
    room = importlib.import_module(f"autopar.{_ROOM_OF[name]}")
    value = globals()[name] = getattr(room, name)
    return value
