"""Findings: why a trace has no more overlap, each finding with its cost and its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autopar.display.format import figures, format_seconds, shortened
from autopar.timeline.intervals import common, covered, length_s, length_within, without
from autopar.timeline.span import Span
from autopar.traces.idle import Idle
from autopar.traces.trace import UNKNOWN, Records
from autopar.traces.utilization import Usage, View, sort_of

LEAST_SHARE = 0.01  # of the window; what costs less is not why a program is slow
_UNEXPLAINED = 0.1  # of the window; less that is idle for no known cause is no finding
_SMALL_BYTES = 64 * 1024  # a copy of less takes about as long as its fixed cost
_SHOWN = 3  # spans of evidence for a finding: enough to find the place in the program


Mask = npt.NDArray[np.bool_]


class Cause(NamedTuple):
    """Why less runs at once than could."""

    title: str
    what: str  # a sentence with places for its figures
    remedy: str  # what to do about it
    page: str  # of the gallery, that does so
    rule: Callable[[Records, Usage], Mask] | None = None  # of exposed work; the first that holds
    least_share: float = 0.0  # of the window; with less it is no finding


CAUSES = {
    # Of idle time: what `idle` splits it into.
    "profiler": Cause(
        "The profiler held the host up",
        "{count} it was idle while the profiler was at work ({names}): without it, this time is "
        "not lost. Longest for {longest}.",
        "Let the profiler warm up, as with `torch.profiler.schedule(wait=1, warmup=1, active=3)`.",
        "tools/plot_2_three_clocks_one_answer",
    ),
    "synchronised": Cause(
        "The host waited before it launched more",
        "{count} the host waited in {names}, and launched the next work only after that. Without "
        "these waits the gaps would be up to {cost} shorter, one of them by {longest}, unless what "
        "comes next waits, too.{double}",
        "Wait for an event of the one result that is needed, and launch the next work first.",
        "first_steps/plot_1_the_front_end_returns_first",
    ),
    "allocated": Cause(
        "Memory was allocated or freed meanwhile",
        "{count} it was idle while the host was in {names}. Without these calls the gaps would be "
        "up to {cost} shorter, one of them by {longest}.{double}",
        "Allocate and pin before the loop, and use the same memory again.",
        "copies/plot_1_where_a_copys_time_goes",
    ),
    "launch": Cause(
        "A call of CUDA took the host long",
        "{count} it was idle while the host was in a call that neither waits nor allocates: "
        "{names}. What is used for the first time is loaded or set up; a graph may have very many "
        "nodes. Longest for {longest}.",
        "Run each kernel and capture each graph once before the loop.",
        "first_steps/plot_1_the_front_end_returns_first",
    ),
    "loader": Cause(
        "The data loader had no batch ready",
        "{count} the host waited for its next batch. Longest for {longest}.",
        "Give the loader more workers or less to do, and fetch batches ahead.",
        "copies/plot_4_feed_a_training_loop",
    ),
    "peers": Cause(
        "The host waited for other ranks",
        "{count} it was idle while the host was in {names}, which communicates on the CPU, or "
        "waits for the others. Longest for {longest}.",
        "Start it with `async_op=True`, wait where its result is needed, and use NCCL for tensors "
        "of GPUs.",
        "distributed/plot_1_add_gradients_up_during_backward",
    ),
    "operators": Cause(
        "The host launches slower than the GPU works",
        "{count} its queue was empty while the host went from one launch to the next: in PyTorch, "
        "in calls of CUDA, and in Python between them, most of it in {names}. Longest for "
        "{longest}.",
        "Launch less: batch operators, compile them, or replay them as a CUDA graph.",
        "one_device/plot_2_small_operators",
    ),
    "cpu": Cause(
        "An operator held the host up",
        "{count} its queue was empty while the thread that launches was in {names}, which launched "
        "nothing for long: it computed on the CPU, or waited. Longest for {longest}.",
        "Do on the GPU what can be done there, and the rest earlier, on a thread of its own.",
        "first_steps/plot_3_cpu_and_gpu",
    ),
    "elsewhere": Cause(
        "The host did something else",
        "{count} its queue was empty while the thread that launches was in no operator and "
        "no call of CUDA: it ran Python, or waited for something else. Longest for "
        "{longest}{place}.",
        "Launch GPU work first, and do what the CPU has to do while that runs.",
        "first_steps/plot_3_cpu_and_gpu",
    ),
    "brief": Cause(
        "Kernels are too small",
        "{count} it was idle for a moment, as between any two kernels, and these are hardly "
        "longer.",
        "Fuse them: `torch.compile` makes one kernel of many, and one on larger tensors does more.",
        "one_device/plot_2_small_operators",
        least_share=_UNEXPLAINED,
    ),
    "staged": Cause(
        "The host staged copies of pageable memory",
        "{count} it was idle while the driver copied pageable memory into its own, before the copy "
        "to the GPU began. Longest for {longest}.",
        "Pin the memory once, before the loop, and copy with `non_blocking=True`.",
        "copies/plot_1_where_a_copys_time_goes",
    ),
    "queued": Cause(
        "Launched work waited for an event",
        "{count} the next work stood in its queue, behind an event, and began as work of another "
        "GPU ended. Longest for {longest}.",
        "Let work that depends on nothing run in between.",
        "one_device/plot_3_cpu_gpu_and_the_bus",
    ),
    "ended": Cause(
        "Nothing more was launched",
        "For {longest} the host was recorded on after the last work.",
        "Stop the recording with the work, or look at the steps alone, each as a named range.",
        "tools/plot_1_verify_with_nsight",
        least_share=_UNEXPLAINED,
    ),
    "unknown": Cause(
        "It was idle, and the trace does not tell why",
        "{count} it had no work, for no cause that can be seen. Longest for {longest}.",
        "Look at the steps alone, each as a named range; if the host was not recorded, record it.",
        "tools/plot_1_verify_with_nsight",
        least_share=_UNEXPLAINED,
    ),
    # Of work that nothing computes beside.
    "communication": Cause(
        "Nothing computes while GPUs communicate",
        "{copies} of communication ran while this GPU computed nothing, or partly so; {waited}.",
        "Start each as soon as its data is there, on a stream of its own, and wait for it only "
        "where its result is needed.",
        "first_steps/plot_4_compute_and_copy",
        lambda work, _: work.where(lambda tag: tag.kind == "communication"),
    ),
    "small copies": Cause(
        "Copies are small",
        f"{{copies}}, each of less than {_SMALL_BYTES // 1024} KiB: that is mostly fixed cost.",
        "Put them together, and copy once.",
        "copies/plot_8_send_small_tensors_together",
        lambda copies, _: (copies.sizes_bytes >= 0) & (copies.sizes_bytes < _SMALL_BYTES),
    ),
    "pageable": Cause(
        "Copies use pageable memory",
        "{copies}: the driver copies pageable memory twice, and the host waits meanwhile.",
        "Pin the memory once, before the loop, and copy with `non_blocking=True`: the copies get "
        "shorter, and the least time too.",
        "copies/plot_1_where_a_copys_time_goes",
        lambda copies, _: copies.where(lambda tag: tag.memory == "pageable"),
    ),
    "one stream": Cause(
        "Copies share a stream with computing",
        "{copies} ran on a stream that computes too ({streams}): one stream does one thing at a "
        "time, whatever `non_blocking` says.",
        "Copy on a side stream, after an event for each result.",
        "first_steps/plot_4_compute_and_copy",
        lambda copies, gpu: copies.where(lambda tag: tag.stream in gpu.computing_streams),
    ),
    "bare copies": Cause(
        "Nothing computes while copies run",
        "{copies} ran while nothing computed, or partly so.",
        "Start each as soon as its source is there, and let the next chunk be computed meanwhile.",
        "copies/plot_3_copy_both_ways_while_you_compute",
        lambda copies, _: copies.where(lambda _: True),
    ),
}
_FASTER = ("pageable", "small copies")  # what makes copies shorter, not only hides them


class Finding(NamedTuple):
    """One reason why less runs at once than could, as a report and a file of figures have it."""

    cause: str  # a key of `CAUSES`
    title: str
    where: str  # on which GPU
    # Idle or exposed time that it explains. To mend it saves more where it delayed the host at
    # other times, too; two findings may have the same seconds.
    cost_s: float
    why: str  # with its figures
    remedy: str  # what to do
    page: str
    evidence: Sequence[Span]  # the spans that cost most, on the trace's clock


def findings_of(
    view: View, idle: Mapping[str, Mapping[str, Idle]]
) -> tuple[list[Finding], list[Finding]]:
    """What a view could save, most expensive first; then what costs too little to matter.

    `idle` has the causes of each GPU's idle time.
    """
    window_s = length_s(view.window)
    findings = [finding for usage in view.usages for finding in _of_work(usage)]
    for gpu, causes in idle.items():
        findings += (_of_idle(key, gpu, its) for key, its in causes.items())
    costly = [
        finding
        for finding in sorted(findings, key=lambda finding: -finding.cost_s)
        if finding.cost_s > CAUSES[finding.cause].least_share * window_s
        # At the end of a range, what comes after it is not looked at.
        and not (finding.cause == "ended" and view.range_name is not None)
    ]
    count = sum(finding.cost_s >= LEAST_SHARE * window_s for finding in costly)
    return costly[:count], costly[count:]


def _finding(
    key: str, where: str, cost_s: float, evidence: Sequence[Span], **facts: str
) -> Finding:
    cause = CAUSES[key]
    page = f"auto_gallery/{cause.page}.html"
    why = cause.what.format(**facts)
    return Finding(key, cause.title, where, cost_s, why, cause.remedy, page, evidence)


def _of_idle(key: str, gpu: str, idle: Idle) -> Finding:
    names = ", ".join(map(shortened, idle.names)) or "a launch"
    place = f", in {names}" if key == "elsewhere" and idle.names else ""
    count = "Once" if idle.gaps == 1 else f"{idle.gaps:,} times"
    cost, longest = format_seconds(idle.saved_s), format_seconds(idle.longest_s)
    more_s = idle.saved_s - idle.total_s  # by what else the host did in the same gaps
    double = f" Of this, {format_seconds(more_s)} is counted in other findings, too."
    double *= more_s >= idle.saved_s / 100
    facts = {"count": count, "names": names, "place": place, "double": double}
    facts |= {"cost": cost, "longest": longest}
    return _finding(key, gpu, idle.saved_s, idle.evidence, **facts)


def _of_work(usage: Usage) -> Iterator[Finding]:
    """What nothing computes beside; where nothing is computed, nothing could."""
    left = usage.work[usage.work.where(lambda tag: sort_of(tag) in ("copy", "communication"))]
    for key, cause in CAUSES.items():
        holds = cause.rule(left, usage) if cause.rule else np.zeros(len(left), dtype=bool)
        group, left = left[holds], left[~holds]
        if not len(group):
            continue
        sort = sort_of(group.tags[group.tagged[0]])
        noun = ("copy", "copies") if sort == "copy" else ("kernel", "kernels")
        size = _moved(group)
        copies = f"{len(group):,} {noun[len(group) > 1]}{size and f', {size}'}"
        streams = ", ".join(sorted(group.groups(lambda tag: tag.stream)))
        exposed, waited = usage.exposed(group), "some of it may be waiting for the others"
        cost_s = length_s(without(exposed, usage.waiting))
        if len(usage.waiting):
            waiting = format_seconds(length_s(common(exposed, usage.waiting)))
            waited = f"{waiting} more were waiting for other ranks"
        if key not in _FASTER:  # no more than is computed without them can be beside them
            cost_s = min(cost_s, length_s(without(usage.when("compute"), usage.when(sort))))
        facts = {"copies": copies, "streams": streams, "waited": waited}
        yield _finding(key, usage.name, cost_s, _exposed(group, usage), **facts)


def _moved(copies: Records) -> str:
    """How much copies moved and how fast, for those whose size the trace tells."""
    sized = copies[copies.sizes_bytes != UNKNOWN]
    size_bytes, busy_s = int(sized.sizes_bytes.sum()), length_s(covered(sized.times_s))
    if not size_bytes or not busy_s:
        return ""
    return f"{figures(size_bytes / 1e6)} MB at {figures(size_bytes / busy_s / 1e9)} GB/s"


def _exposed(group: Records, usage: Usage) -> list[Span]:
    """Those that ran longest with nothing behind them."""
    lengths_s = np.ptp(group.times_s, axis=1)
    exposed_s = (lengths_s - length_within(usage.when("compute"), *group.times_s.T)).round(9)
    most = np.argsort(-exposed_s, kind="stable")[:_SHOWN]
    return group.spans(most[exposed_s[most] > 0])
