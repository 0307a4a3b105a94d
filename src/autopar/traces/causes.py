"""Causes: why less runs at once than could, what to do about each, and the page that does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from autopar.timeline.span import Span
from autopar.traces.trace import Mask, Records
from autopar.traces.utilization import Usage

SHOWN = 3  # spans of evidence for a finding, or gaps: enough to find the place in the program
# A copy of less is small. At 55 GB/s so much takes 1.2 µs, and each of 10,000 copies of 4 kB took
# 6.4 µs, without a wait (measured on an H200): four fifths and more of it are fixed cost.
_SMALL_BYTES = 64 * 1024
# In which work begins on an idle GPU, once a call or an event lets it. To issue a copy and to start
# one takes 13 µs each (measured on an H200: a staged copy; 1 MiB at 33 GB/s in place of 55).
START_S = 20e-6


class Cause(NamedTuple):
    """Why less runs at once than could."""

    title: str
    remedy: str  # what to do about it
    shown: str  # the page of the gallery that does so
    what: str = "while the host was in {names}."  # goes on after `it was idle`
    # Of work that nothing computes beside, which is so; the first that holds. `what` is of it.
    rule: Callable[[Records, Usage], Mask] | None = None

    @property
    def page(self) -> str:
        """Its address."""
        return f"https://autopar.readthedocs.io/en/latest/auto_gallery/{self.shown}.html"


CAUSES = {
    # Of idle time: what `idle` splits it into.
    "profiler": Cause(
        "The profiler held the host up",
        "Let the profiler warm up, as with `torch.profiler.schedule(wait=1, warmup=1, active=3)`.",
        "tools/plot_2_three_clocks_one_answer",
        "while the profiler was at work ({names}): without it, this time is not lost.",
    ),
    "synchronised": Cause(
        "The host waited before it launched more",
        "Wait for an event of the one result that is needed, and launch the next work first.",
        "first_steps/plot_1_the_front_end_returns_first",
    ),
    "allocated": Cause(
        "Memory was allocated or freed meanwhile",
        "Allocate and pin before the loop, and use the same memory again.",
        "copies/plot_1_where_a_copys_time_goes",
    ),
    "launch": Cause(
        "A call of CUDA took the host long",
        "Run each kernel and graph once before the loop; if all calls are slow, launch less.",
        "first_steps/plot_1_the_front_end_returns_first",
    ),
    "loader": Cause(
        "The data loader had no batch ready",
        "Give the loader more workers or less to do, and fetch batches ahead.",
        "copies/plot_4_feed_a_training_loop",
    ),
    "peers": Cause(
        "The host waited for other ranks",
        "Start it with `async_op=True`, wait where its result is needed, and use NCCL for tensors "
        "of GPUs.",
        "distributed/plot_1_add_gradients_up_during_backward",
    ),
    "operators": Cause(
        "The host launches slower than the GPU works",
        "Launch less: batch operators, compile them, or replay them as a CUDA graph, and send "
        "small tensors together.",
        "one_device/plot_2_small_operators",
    ),
    "cpu": Cause(
        "An operator held the host up",
        "Do on the GPU what can be done there, and the rest earlier, on a thread of its own.",
        "first_steps/plot_3_cpu_and_gpu",
    ),
    "elsewhere": Cause(
        "The host did something else",
        "Launch GPU work first, and do what the CPU has to do while that runs.",
        "first_steps/plot_3_cpu_and_gpu",
        "while the thread that launches was in no call or operator that was recorded: it ran "
        "Python, or waited, as for another thread. In the longest it was in {names}.",
    ),
    "brief": Cause(
        "Moments between kernels",
        "Fuse kernels: `torch.compile` makes one of many, and one on larger tensors does more.",
        "one_device/plot_2_small_operators",
        "for a moment, as between any two kernels, and these are short.",
    ),
    "queued": Cause(
        "Launched work waited for an event",
        "Let work that depends on nothing run in between.",
        "one_device/plot_3_cpu_gpu_and_the_bus",
        "while the next work stood in its queue, behind an event, until work of another GPU ended.",
    ),
    "ended": Cause(
        "Nothing more was launched",
        "Stop the recording with the work, or look at the steps alone, each as a named range.",
        "tools/plot_1_verify_with_nsight",
        "while the host was recorded on after the last work.",
    ),
    "unknown": Cause(
        "It was idle, and the trace does not tell why",
        "Look at the steps alone, each as a named range; if the host was not recorded, record it.",
        "tools/plot_1_verify_with_nsight",
        "for no cause that can be seen.",
    ),
    "communication": Cause(
        "Nothing computes while GPUs communicate",
        "Start each as soon as its data is there, on a stream of its own, and wait for it only "
        "where its result is needed.",
        "distributed/plot_1_add_gradients_up_during_backward",
        "{work} ran while this GPU computed nothing, or partly so; {waited}.",
        lambda work, _: work.where(lambda tag: tag.kind == "communication"),
    ),
    "small copies": Cause(
        "Copies are small",
        "Put them together, and copy once.",
        "copies/plot_8_send_small_tensors_together",
        f"{{work}} took mostly fixed cost: each has less than {_SMALL_BYTES // 1024} KiB.",
        lambda copies, _: (copies.sizes_bytes >= 0) & (copies.sizes_bytes < _SMALL_BYTES),
    ),
    "pageable": Cause(
        "Copies use pageable memory",
        "Pin the memory once, before the loop, and copy with `non_blocking=True`: the copies get "
        "shorter, and the least time too.",
        "copies/plot_1_where_a_copys_time_goes",
        "{work} used pageable memory: the driver copies it twice, and the host waits meanwhile.",
        lambda copies, _: copies.where(lambda tag: tag.memory == "pageable"),
    ),
    "one stream": Cause(
        "Copies share a stream with computing",
        "Copy on a side stream, after an event for each result.",
        "first_steps/plot_4_compute_and_copy",
        "{work} ran on a stream that computes too ({streams}): one stream does one thing "
        "at a time, whatever `non_blocking` says.",
        lambda copies, gpu: copies.where(lambda tag: tag.stream in gpu.computing_streams),
    ),
    "bare copies": Cause(
        "Nothing computes while copies run",
        "Start each as soon as its source is there, and let the next chunk be computed meanwhile.",
        "copies/plot_3_copy_both_ways_while_you_compute",
        "{work} ran while nothing computed, or partly so.",
        lambda copies, _: copies.where(lambda _: True),
    ),
}


class Finding(NamedTuple):
    """One reason why less runs at once than could."""

    cause: str  # a key of `CAUSES`
    where: str  # on which GPU
    # Idle or exposed time that it explains. To mend it saves more where it delayed the host at
    # other times, too; two findings may have the same seconds.
    cost_s: float
    why: str  # with its figures
    evidence: Sequence[Span]  # the spans that cost most, on the trace's clock
    idle_s: float = 0.0  # the idle time that is put down to it, each moment to one cause
    gaps: int = 0  # in which it has a part
