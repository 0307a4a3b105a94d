"""Diagnosis: why a trace has no more overlap, each finding with its cost and its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from autopar.display.format import figures, format_seconds
from autopar.timeline.groups import grouped
from autopar.timeline.intervals import as_array, clipped, common, covered, intervals_of, length_s
from autopar.timeline.span import Span
from autopar.traces.idle import SMALL_S, Gap
from autopar.traces.trace import Activity
from autopar.traces.utilization import OTHER_LANES, Usage, View

_Timed = TypeVar("_Timed", Span, Gap)

LEAST_SHARE = 0.01  # of the window; what costs less is not why a program is slow
_SHOWN = 3  # spans of evidence for a finding: enough to find the place in the program
_SMALL_BYTES = 64 * 1024  # a copy of less takes about as long as its fixed cost
_EXPERIMENTS, _BEYOND = "auto_gallery/experiments", "auto_gallery/beyond"


class Cause(NamedTuple):
    """Why less runs at once than could; one without a title only explains why a GPU was idle."""

    title: str = ""  # the reason, in a few words
    why: str = ""  # the reason with places for its figures, and how to mend it
    page: str = ""  # the page that mends it, from the root of the site
    idle: str = ""  # what a gap that is due to it is put down to


# `idle._explained` and `_cause_of` tell which it is; of equal costs the first here comes first.
CAUSES = {
    "synchronised": Cause(
        "Synchronising calls left it idle",
        "{count} times its work ran out while the host waited in {calls}, and the next work was "
        "launched only after that. Wait for an event of the one result that is needed, and launch "
        "the next work first.",
        f"{_EXPERIMENTS}/plot_e0_the_front_end_returns_first.html",
        "the host waited for it to run out of work",
    ),
    "allocated": Cause(
        "Memory was allocated or freed meanwhile",
        "{count} times it was idle while the host was in {calls}. Allocate and pin before the "
        "loop, and use the same memory again.",
        f"{_BEYOND}/plot_b1_where_a_copys_time_goes.html",
        "the host allocated or freed memory",
    ),
    "small": Cause(
        "Kernels are too small",
        f"{{count}} kernels of less than {format_seconds(SMALL_S)} began after it had run out of "
        "work: to launch one takes the host longer than to run it takes the GPU. Batch them, "
        "compile them, or replay them as a CUDA graph.",
        "auto_gallery/exercises/plot_x2_small_operators.html",
        "the host could not launch small kernels fast enough",
    ),
    "late": Cause(
        "Work was launched late",
        "{count} times the queue was empty when the next work was launched: the host was busy "
        "with something else. Launch GPU work first, and give the CPU's to a lane of its own.",
        f"{_EXPERIMENTS}/plot_e2_cpu_and_gpu.html",
        "the next work was launched late",
    ),
    "queued": Cause(
        "Launched work waited",
        "{count} times the next work stood in its queue, and waited for an event of another "
        "queue, or for its start. Let work that depends on nothing run in between.",
        "auto_gallery/exercises/plot_x3_cpu_gpu_and_the_bus.html",
        "work was launched, and waited for other work or for its start",
    ),
    "ended": Cause(idle="nothing more was launched"),
    "unknown": Cause(idle="the trace does not tell"),
    "pageable": Cause(
        "Copies touch pageable memory",
        "{copies} from or to pageable memory{moved}. The driver copies such memory twice, and "
        "the host waits meanwhile. Pin it once, before the loop.",
        f"{_BEYOND}/plot_b1_where_a_copys_time_goes.html",
    ),
    "one stream": Cause(
        "Copies share a stream with computing",
        "{copies}{moved} ran on a stream that computes too ({streams}): one stream does one thing "
        "at a time, whatever `non_blocking` says. Copy on a side stream, after an event for each "
        "result.",
        f"{_EXPERIMENTS}/plot_e3_compute_and_copy.html",
    ),
    "small copies": Cause(
        "Copies are small",
        f"{{copies}}{{moved}}, each of less than {_SMALL_BYTES // 1024} KiB: that is mostly fixed "
        "cost. Put them together, and copy once.",
        f"{_BEYOND}/plot_b5_the_pipeline_against_its_limits.html",
    ),
    "bare copies": Cause(
        "Nothing computes while copies run",
        "{copies}{moved}{remedy}",
        f"{_BEYOND}/plot_b2_copy_both_ways_while_you_compute.html",
    ),
    "communication": Cause(
        "Nothing computes while GPUs communicate",
        "{count} operations between GPUs ran on {queues} each as soon as its data is there, and "
        "wait for it only where its result is needed.",
        f"{_EXPERIMENTS}/plot_e3_compute_and_copy.html",
    ),
    "turns": Cause(
        "GPUs take turns",
        "Together they worked for {together}, though each did for {each} or more. If their work "
        "is independent, launch both before you wait for either.",
        f"{_EXPERIMENTS}/plot_e1_two_devices_at_once.html",
    ),
}


class Finding(NamedTuple):
    """One reason why less runs at once than could, as a report and a file of figures have it."""

    cause: str  # a key of `CAUSES`
    title: str
    where: str  # on which GPU, or on which two
    cost_s: float  # at most; those of two findings may be the same seconds
    why: str  # with its figures
    page: str
    evidence: Sequence[Span]  # the spans that cost most, on the trace's clock


def findings_of(
    view: View, gaps: Mapping[str, Sequence[Gap]]
) -> tuple[list[Finding], list[Finding]]:
    """What a view could save, most expensive first; then what costs too little to matter."""
    findings: list[Finding] = []
    for usage in view.usages:
        findings += [*_of_gaps(usage.name, gaps.get(usage.name, ())), *_of_work(usage)]
    findings += _of_turns(view)
    costly = sorted((each for each in findings if each.cost_s > 0), key=lambda each: -each.cost_s)
    least_s = LEAST_SHARE * length_s(view.window)
    count = sum(finding.cost_s >= least_s for finding in costly)
    return costly[:count], costly[count:]


def _finding(
    cause: str, where: str, cost_s: float, evidence: Sequence[Span], **facts: str
) -> Finding:
    title, why, page, _ = CAUSES[cause]
    return Finding(cause, title, where, cost_s, why.format(**facts), page, evidence)


def _of_gaps(gpu: str, gaps: Sequence[Gap]) -> Iterator[Finding]:
    groups = grouped(gaps, lambda gap: gap.cause)
    for cause, about in CAUSES.items():
        if about.title and (some := groups.get(cause)):
            calls = ", ".join(sorted({gap.call.name for gap in some if gap.call})) or "a call"
            cost_s = sum(gap.duration_s for gap in some)
            facts = {"count": f"{len(some):,}", "calls": calls}
            yield _finding(cause, gpu, cost_s, _around(some, gpu), **facts)


def _around(gaps: Sequence[Gap], gpu: str) -> list[Span]:
    """The longest gaps: the call that each is due to, the gap, and what came next."""
    shown: list[Span] = []
    for gap in _longest(gaps)[:_SHOWN]:
        if (call := gap.call) and call.end_s > call.start_s:
            shown.append(Span(call.name, call.thread or "host", call.start_s, call.end_s, "host"))
        shown.append(Span(f"{gpu} idle", gpu, gap.start_s, gap.end_s, "host"))
        shown += [gap.next.span] if gap.next else []
    return shown


def _cause_of(work: Activity, computing: set[str]) -> str:
    """Why nothing hides a copy, or communication; empty for other work."""
    if work.span.kind == "communication":
        return "communication"
    if work.span.kind != "copy" or work.span.lane.endswith(" within"):
        return ""
    if work.memory == "pageable":
        return "pageable"
    if work.size_bytes is not None and work.size_bytes < _SMALL_BYTES:
        return "small copies"
    return "one stream" if work.stream in computing else "bare copies"


def _of_work(usage: Usage) -> Iterator[Finding]:
    computing = {work.stream for work in usage.activities if work.span.kind == "compute"} - {""}
    groups = grouped(usage.activities, lambda work: _cause_of(work, computing))
    if "compute" not in usage.kinds:
        groups.pop("communication", None)  # nothing could hide it
    copying_s, computing_s = usage.busy_s("copy"), usage.busy_s("compute")
    remedy = (
        f". All copies take {format_seconds(copying_s)} and all compute "
        f"{format_seconds(computing_s)}, so computing can't hide them all. Copy less, or both "
        f"ways at once."
        if copying_s > computing_s
        else " ran while nothing computed, or partly so. Start each as soon as its source is "
        "there, and let the next chunk be computed meanwhile."
    )
    for cause in (cause for cause in CAUSES if cause in groups):
        group = groups[cause]
        streams = {work.stream for work in group}
        count, size = f"{len(group):,}", moved(group)
        shared = "a stream that computes too. Give them a stream of their own, start"
        facts = {
            "count": count,
            "copies": f"{count} {'copy' if len(group) == 1 else 'copies'}",
            "moved": size and f", {size}",
            "streams": ", ".join(sorted(streams)),
            "remedy": remedy,
            "queues": shared if streams & computing else "streams of their own. Start",
        }
        evidence = _exposed([work.span for work in group], usage)
        yield _finding(cause, usage.name, usage.exposed_s(group), evidence, **facts)


def _of_turns(view: View) -> Iterator[Finding]:
    """Pairs of GPUs of which one is idle while the other works."""
    gpus = [usage for usage in view.usages if usage.name != OTHER_LANES]
    computing = [usage for usage in gpus if "compute" in usage.kinds]
    for one, other in combinations(computing, 2):
        shorter_s = min(length_s(one.busy), length_s(other.busy))
        together_s = length_s(common(one.busy, other.busy))
        if together_s < shorter_s / 10:
            where, cost_s = f"{one.name} and {other.name}", shorter_s - together_s
            longest = [_longest(work.span for work in gpu.activities)[0] for gpu in (one, other)]
            facts = {"together": format_seconds(together_s), "each": format_seconds(shorter_s)}
            yield _finding("turns", where, cost_s, longest, **facts)


def moved(copies: Sequence[Activity]) -> str:
    """How much copies moved and how fast, for those whose size the trace tells."""
    sized = [copy for copy in copies if copy.size_bytes is not None]
    size_bytes = sum(copy.size_bytes or 0 for copy in sized)
    busy_s = length_s(covered(intervals_of(copy.span for copy in sized)))
    if not size_bytes or not busy_s:
        return ""
    return f"{figures(size_bytes / 1e6)} MB at {figures(size_bytes / busy_s / 1e9)} GB/s"


def _exposed(spans: Sequence[Span], usage: Usage) -> list[Span]:
    """Those that ran longest with nothing behind them."""
    computing = usage.when("compute")
    exposed = [
        (span.duration_s - length_s(as_array(clipped(span, computing))), span)
        for span in _longest(spans)[: 10 * _SHOWN]
    ]
    exposed.sort(key=lambda pair: -round(pair[0], 9))  # of equals the first
    return [span for exposed_s, span in exposed[:_SHOWN] if exposed_s > 0]


def _longest(timed: Iterable[_Timed]) -> list[_Timed]:
    """By their durations to the nanosecond, the longest first, of equals the first."""
    return sorted(timed, key=lambda one: -round(one.duration_s, 9))
