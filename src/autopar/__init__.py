"""autopar: see, measure and trust when a PyTorch program runs things in parallel.

`import autopar as d2l` runs the PyTorch code of the chapter *Automatic Parallelism* of *Dive into
Deep Learning* unchanged. Importing has no effects: no CUDA context, thread, file or plot style.
"""

import importlib
from typing import TYPE_CHECKING, Any

from autopar import plot, workload
from autopar.annotate import annotate
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
from autopar.display import show
from autopar.experiment import newest_record, observed, recorded
from autopar.handle import Handle, timeline_of_handles
from autopar.lane import Lane
from autopar.machine import Capacity, capacity, describe
from autopar.measurement import Measurement, hidden_share
from autopar.pictures import show_timelines
from autopar.profiler import timeline_of, timelines_of
from autopar.provenance import VERSION
from autopar.record import Findings, Record, RecordError
from autopar.span import Span, Timeline
from autopar.stream import cuda_lane
from autopar.svg import Drawing, draw
from autopar.table import Table, against_goals, compare, tabulate
from autopar.timer import Benchmark, Timer, measure, measure_in_turn
from autopar.traces import write_trace
from autopar.verdict import Claim, Estimate, claim
from autopar.worker import cpu_lane

if TYPE_CHECKING:
    from autopar.evidence import TraceError
    from autopar.fresh import in_fresh_process
    from autopar.graph import TaskGraph
    from autopar.tracefile import read_trace
    from autopar.transfer import CopyPipeline

__version__ = VERSION

# What many programs do without.
_AT_FIRST_USE = {
    "CopyPipeline": "autopar.transfer",
    "TaskGraph": "autopar.graph",
    "TraceError": "autopar.evidence",
    "in_fresh_process": "autopar.fresh",
    "read_trace": "autopar.tracefile",
}

__all__ = [
    "Benchmark",
    "Capacity",
    "Claim",
    "CopyPipeline",
    "Drawing",
    "Estimate",
    "Findings",
    "Handle",
    "Lane",
    "Measurement",
    "Record",
    "RecordError",
    "Span",
    "Table",
    "TaskGraph",
    "Timeline",
    "Timer",
    "TraceError",
    "against_goals",
    "annotate",
    "capacity",
    "claim",
    "compare",
    "cpu",
    "cpu_lane",
    "cuda_lane",
    "describe",
    "draw",
    "empty_heap",
    "empty_pinned_pool",
    "gpu",
    "hidden_share",
    "in_fresh_process",
    "measure",
    "measure_in_turn",
    "newest_record",
    "num_gpus",
    "observed",
    "plot",
    "read_trace",
    "recorded",
    "show",
    "show_timelines",
    "synchronize",
    "tabulate",
    "timeline_of",
    "timeline_of_handles",
    "timelines_of",
    "try_all_gpus",
    "try_gpu",
    "workload",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    """Import what is not needed before its first use."""
    if name not in _AT_FIRST_USE:
        msg = f"module 'autopar' has no attribute {name!r}"
        raise AttributeError(msg)
    value = globals()[name] = getattr(importlib.import_module(_AT_FIRST_USE[name]), name)
    return value
