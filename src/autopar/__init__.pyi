# ruff: noqa: I001
"""The public names, the ones to begin with first, and the modules that they are written in."""

from autopar.timing.timer import (
    measure as measure,
    measure_in_turn as measure_in_turn,
    Timer as Timer,
    Benchmark as Benchmark,
)
from autopar.display.table import compare as compare, tabulate as tabulate, Table as Table
from autopar.graph.task_graph import TaskGraph as TaskGraph
from autopar.transfer.pipeline import CopyPipeline as CopyPipeline
from autopar.lanes.cpu import cpu_lane as cpu_lane
from autopar.lanes.cuda import cuda_lane as cuda_lane
from autopar.traces.profiler import timeline_of as timeline_of, timelines_of as timelines_of
from autopar.traces.read import read_trace as read_trace
from autopar.display.svg import draw as draw, Drawing as Drawing, show_timelines as show_timelines
from autopar.display.show import show as show
from autopar.ranges import annotate as annotate
from autopar.device import (
    cpu as cpu,
    gpu as gpu,
    num_gpus as num_gpus,
    try_gpu as try_gpu,
    try_all_gpus as try_all_gpus,
    synchronize as synchronize,
    empty_heap as empty_heap,
    empty_pinned_pool as empty_pinned_pool,
)
from autopar.machine import describe as describe, capacity as capacity, Capacity as Capacity
from autopar.timing.measurement import Measurement as Measurement, hidden_share as hidden_share
from autopar.timing.fresh_process import (
    in_fresh_process as in_fresh_process,
    csan_reports as csan_reports,
)
from autopar.timeline.span import Span as Span, Timeline as Timeline
from autopar.timeline.chrome_trace import write_trace as write_trace
from autopar.lanes.lane import Lane as Lane
from autopar.lanes.handle import Handle as Handle, timeline_of_handles as timeline_of_handles
from autopar.effects.task import Task as Task
from autopar.graph.plan import Plan as Plan
from autopar.graph.run import Run as Run
from autopar.graph.capture import Captured as Captured
from autopar.distributed.launch import on_ranks as on_ranks
from autopar.distributed.steps import race_of_steps as race_of_steps
from autopar.distributed.joint import findings_of_ranks as findings_of_ranks
from autopar.records.race import race as race
from autopar.records.experiment import (
    recorded as recorded,
    observed as observed,
    newest_record as newest_record,
)
from autopar.records.claim import claim as claim, Claim as Claim, Estimate as Estimate
from autopar.records.record import (
    Findings as Findings,
    Record as Record,
    RecordError as RecordError,
)
from autopar.traces.trace import TraceError as TraceError
from autopar.records.provenance import __version__ as __version__
from autopar.display import plot as plot
from autopar import workload as workload
