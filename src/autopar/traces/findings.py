"""Findings: why less runs at once than could, what that costs, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from autopar.display.format import figures, format_seconds
from autopar.timeline.intervals import Intervals, common, covered, length_s, length_within, without
from autopar.timeline.span import Span
from autopar.traces.trace import UNKNOWN, Mask, Records
from autopar.traces.utilization import BRIEF_S, Usage, View, sort_of

LEAST_SHARE = 0.01  # of the window; what costs less is not why a program is slow
# Nobody knows what could be saved of these: they are told all the same, if there is much of it.
LEAST_SHARES = dict.fromkeys(("brief", "queued", "ended", "unknown"), 0.1)
HIDEABLE = ("copy", "communication")  # what computing can hide
_COPIES, _COMMUNICATION = ("copy", "copy", "copies"), ("communication", "exchange", "exchanges")
_FASTER = ("pageable", "small copies")  # what makes copies shorter, not only hides them
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


def _sooner_s(view: View, moved: Intervals, rest: Records, waits: Intervals) -> float:
    """How much sooner all would end if a GPU did some of its work at other times, and the rest so.

    What comes after moves forward with it, until work that was launched too late to begin sooner.
    Where the host waited, its launches move forward too, by no more than it waited. Where no
    launches are known, nothing limits it.
    """
    whole_s, (starts_s, ends_s) = length_s(moved), rest.times_s.T
    is_first = starts_s >= np.maximum.accumulate(np.append(-np.inf, ends_s))[:-1]
    firsts = rest[is_first & (rest.launches != UNKNOWN)]
    if not len(firsts) or not whole_s:
        return whole_s
    starts_s, returned_s = firsts.times_s[:, 0], view.trace.host.times_s[firsts.launches, 1]
    begin_s = moved[:1, 0]
    ahead_s = np.maximum(starts_s - returned_s - START_S, 0.0)
    ahead_s -= length_within(moved, begin_s, starts_s)
    # From wait to wait, and at last to the end.
    parts_s = np.split(ahead_s, np.searchsorted(starts_s, waits[:, 1]))
    sums_s = [*length_within(moved, begin_s, waits[:, 1]).tolist(), whole_s]
    waits_s = [*(waits[:, 1] - waits[:, 0]).tolist(), 0.0]
    host_s = gpu_s = before_s = 0.0
    for part_s, sum_s, wait_s in zip(parts_s, sums_s, waits_s, strict=True):
        gpu_s = sum_s + min(gpu_s - before_s, host_s + float(part_s.min(initial=np.inf)))
        host_s, before_s = min(host_s + wait_s, gpu_s), sum_s
    # At the end the GPU alone is at work, or the host.
    own_s = np.concatenate((waits[:, 1], view.ranges.times_s[:, 1], returned_s)).max()
    return min(gpu_s, host_s + max(float(view.window[-1, 1] - own_s), 0.0))


def of_work(view: View, usage: Usage, waits: Intervals) -> Iterator[Finding]:
    """What nothing computes beside; where nothing is computed, nothing could."""
    work, computing = usage.work, usage.when("compute")
    left = work[work.where(lambda tag: sort_of(tag) in HIDEABLE)]
    for key, cause in CAUSES.items():
        if not cause.rule:
            continue
        holds = cause.rule(left, usage)
        group, left = left[holds], left[~holds]
        rest = work[~np.isin(work.tagged, np.unique(group.tagged))]
        # While another GPU computes, this one may wait for that.
        beside = covered(np.concatenate((rest.times_s, view.computing)))
        exposed = without(covered(group.times_s), beside)
        if key not in _FASTER:  # nor do moments between kernels count
            exposed = exposed[exposed[:, 1] - exposed[:, 0] > BRIEF_S]
        waited_s = length_s(common(exposed, usage.waiting))
        cost_s = length_s(exposed) - waited_s
        exposed_s = length_within(without(exposed, usage.waiting), *group.times_s.T).round(9)
        sort, one, many = _COMMUNICATION if key == "communication" else _COPIES
        if key not in _FASTER:  # no more than is computed without them can be beside them
            unused_s = length_s(without(computing, usage.when(sort)))
            cost_s = min(cost_s, unused_s, _sooner_s(view, exposed, rest, waits))
        if cost_s <= 0:
            continue
        waited = "some of it may be waiting for the others"
        if waited_s:
            waited = f"{format_seconds(waited_s)} more were waiting for other ranks"
        streams = ", ".join(sorted({tag.stream for tag in group.present}))
        most = np.argsort(-exposed_s, kind="stable")[: int((exposed_s > 0).sum())]
        of_all = f" of {len(group):,} {many}" if len(group) > 1 else f" {one}"
        amount = f"{len(most):,}{of_all}{_moved(group[most])}"
        why = cause.what.format(work=amount, waited=waited, streams=streams)
        yield Finding(key, usage.name, cost_s, why, group[most[:SHOWN]].spans())


def _moved(work: Records) -> str:
    """How much it moved and how fast, if the trace tells."""
    sized = work[work.sizes_bytes != UNKNOWN]
    size_bytes, busy_s = int(sized.sizes_bytes.sum()), length_s(covered(sized.times_s))
    rate = figures(size_bytes / (busy_s or 1.0) / 1e9)
    is_known = size_bytes > 0 < busy_s
    return f", {figures(size_bytes / 1e6)} MB at {rate} GB/s," * is_known
