"""Diagnosis: why a trace has no more overlap, each finding with its cost and its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from autopar.evidence import Activity, Call
from autopar.idle import SMALL_S, Gap
from autopar.intervals import as_array, clipped, common, covered, intervals_of, length_s
from autopar.measurement import format_seconds
from autopar.span import Span
from autopar.unit import figures
from autopar.usage import OTHER_LANES, Usage, View

LEAST_SHARE = 0.01  # of the window; what costs less is not why a program is slow
_SHOWN = 3  # spans of evidence for a finding: enough to find the place in the program
_SMALL_BYTES = 64 * 1024  # a copy of less takes about as long as its fixed cost

_EXPERIMENTS, _BEYOND = "auto_gallery/experiments", "auto_gallery/beyond"
PAGES = {
    "synchronised": f"{_EXPERIMENTS}/plot_e0_the_front_end_returns_first.html",
    "allocated": f"{_BEYOND}/plot_b1_where_a_copys_time_goes.html",
    "small": "auto_gallery/exercises/plot_x2_small_operators.html",
    "late": f"{_EXPERIMENTS}/plot_e2_cpu_and_gpu.html",
    "queued": "auto_gallery/exercises/plot_x3_cpu_gpu_and_the_bus.html",
    "pageable": f"{_BEYOND}/plot_b1_where_a_copys_time_goes.html",
    "one stream": f"{_EXPERIMENTS}/plot_e3_compute_and_copy.html",
    "small copies": f"{_BEYOND}/plot_b5_the_pipeline_against_its_limits.html",
    "bare copies": f"{_BEYOND}/plot_b2_copy_both_ways_while_you_compute.html",
    "communication": f"{_EXPERIMENTS}/plot_e3_compute_and_copy.html",
    "turns": f"{_EXPERIMENTS}/plot_e1_two_devices_at_once.html",
}


@dataclass(frozen=True)
class Finding:
    """One reason why less runs at once than could.

    Args:
        cause: A key of `PAGES`.
        title: The reason, in a few words.
        where: On which GPU, or on which two.
        cost_s: How many seconds it takes, at most. Those of two findings may be the same seconds.
        why: The reason with its figures, and how to mend it, in whole sentences.
        evidence: The spans that cost most, on the trace's clock.
    """

    cause: str
    title: str
    where: str
    cost_s: float
    why: str
    evidence: tuple[Span, ...]

    @property
    def page(self) -> str:
        """The page that mends it, from the root of the site."""
        return PAGES[self.cause]


def findings_of(
    view: View, gaps: Mapping[str, Sequence[Gap]]
) -> tuple[list[Finding], list[Finding]]:
    """What a trace could save, the dearest first; then what costs too little to matter.

    Args:
        view: The trace, or a part of it.
        gaps: GPU -> its gaps with their causes.
    """
    found: list[Finding] = []
    for usage in view.usages:
        found += [
            *_of_gaps(usage.name, gaps.get(usage.name, ())),
            *_of_copies(usage),
            *_of_communication(usage),
        ]
    found += _turns(view)
    found.sort(key=lambda finding: -finding.cost_s)
    least_s = LEAST_SHARE * length_s(view.window)
    dear = [finding for finding in found if finding.cost_s >= least_s and finding.cost_s > 0]
    return dear, [finding for finding in found if 0 < finding.cost_s < least_s]


# What each cause of a gap is called, and what to do about it.
_GAPS = {
    "synchronised": (
        "Synchronising calls left it idle",
        "{count} times its work ran out while the host waited in {names}, and the next work was "
        "launched only after that. Wait for an event of the one result that is needed, and launch "
        "the next work first.",
    ),
    "allocated": (
        "Memory was allocated or freed meanwhile",
        "{count} times it was idle while the host was in {names}. Allocate and pin before the "
        "loop, and use the same memory again.",
    ),
    "small": (
        "Kernels are too small",
        "{count} kernels of less than {small} began after it had run out of work: to launch one "
        "takes the host longer than to run it takes the GPU. Batch them, compile them, or replay "
        "them as a CUDA graph.",
    ),
    "late": (
        "Work was launched late",
        "{count} times the queue was empty when the next work was launched: the host was busy "
        "with something else. Launch GPU work first, and give the CPU's to a lane of its own.",
    ),
    "queued": (
        "Launched work waited",
        "{count} times the next work stood in its queue, and waited for an event of another "
        "queue, or for its start. Let work that depends on nothing run in between.",
    ),
}


def _of_gaps(gpu: str, all_gaps: Iterable[Gap]) -> list[Finding]:
    by_cause: dict[str, list[Gap]] = {}
    for gap in all_gaps:
        by_cause.setdefault(gap.cause, []).append(gap)
    found = []
    for cause, (title, why) in _GAPS.items():
        if gaps := by_cause.get(cause):
            names = _names(gap.call.name for gap in gaps if gap.call)
            said = why.format(count=f"{len(gaps):,}", names=names, small=format_seconds(SMALL_S))
            cost_s = sum(gap.duration_s for gap in gaps)
            found.append(Finding(cause, title, gpu, cost_s, said, _around(gaps, gpu)))
    return found


def _around(gaps: Iterable[Gap], gpu: str) -> tuple[Span, ...]:
    """The longest gaps: the call that each is due to, the gap, and what came next."""
    shown: list[Span] = []
    for gap in sorted(gaps, key=lambda gap: -round(gap.duration_s, 9))[:_SHOWN]:
        if gap.call and gap.call.end_s > gap.call.start_s:
            shown.append(_of_call(gap.call))
        shown.append(Span(f"{gpu} idle", gpu, gap.start_s, gap.end_s, "host"))
        shown += [gap.next.span] if gap.next else []
    return tuple(shown)


def _of_copies(usage: Usage) -> list[Finding]:
    copies = [each for each in usage.activities if each.span.kind == "copy"]
    across = [each for each in copies if not each.span.lane.endswith(" within")]
    computing = {each.stream for each in usage.activities if each.span.kind == "compute"} - {""}

    def why_exposed(copy: Activity) -> str:
        if copy.memory == "pageable":
            return "pageable"
        if copy.size_bytes is not None and copy.size_bytes < _SMALL_BYTES:
            return "small copies"
        return "one stream" if copy.stream in computing else "bare copies"

    groups: dict[str, list[Activity]] = {}
    for each in across:
        groups.setdefault(why_exposed(each), []).append(each)
    return [
        Finding(
            cause, title, usage.name, usage.exposed_s(group), say(group, usage), _bare(group, usage)
        )
        for cause, (title, say) in _COPIES.items()
        if (group := groups.get(cause))
    ]


def _pageable(copies: Sequence[Activity], usage: Usage) -> str:
    return (
        f"{_count(copies)} from or to pageable memory{moved(copies)}. The driver copies such "
        f"memory twice, and the host waits meanwhile. Pin it once, before the loop."
    )


def _one_stream(copies: Sequence[Activity], usage: Usage) -> str:
    streams = ", ".join(sorted({each.stream for each in copies}))
    return (
        f"{_count(copies)}{moved(copies)} ran on a stream that computes too ({streams}): one "
        f"stream does one thing at a time, whatever `non_blocking` says. Copy on a side stream, "
        f"after an event for each result."
    )


def _small(copies: Sequence[Activity], usage: Usage) -> str:
    return (
        f"{_count(copies)}{moved(copies)}, each of less than {_SMALL_BYTES // 1024} KiB: that is "
        f"mostly fixed cost. Put them together, and copy once."
    )


def _bare_copies(copies: Sequence[Activity], usage: Usage) -> str:
    copying_s, computing_s = usage.busy_s("copy"), usage.busy_s("compute")
    if copying_s > computing_s:
        return (
            f"{_count(copies)}{moved(copies)}. All copies take {format_seconds(copying_s)} and all "
            f"compute {format_seconds(computing_s)}, so computing can't hide them all. Copy less, "
            f"or both ways at once."
        )
    return (
        f"{_count(copies)}{moved(copies)} ran while nothing computed, or partly so. Start each as "
        f"soon as its source is there, and let the next chunk be computed meanwhile."
    )


_COPIES: dict[str, tuple[str, Callable[[Sequence[Activity], Usage], str]]] = {
    "pageable": ("Copies touch pageable memory", _pageable),
    "one stream": ("Copies share a stream with computing", _one_stream),
    "small copies": ("Copies are small", _small),
    "bare copies": ("Nothing computes while copies run", _bare_copies),
}


def _of_communication(usage: Usage) -> list[Finding]:
    group = [each for each in usage.activities if each.span.kind == "communication"]
    if not group or "compute" not in usage.kinds:
        return []
    computing = {each.stream for each in usage.activities if each.span.kind == "compute"} - {""}
    shared = any(each.stream in computing for each in group)
    where = "a stream that computes too" if shared else "streams of their own"
    mend = "Give them a stream of their own, start" if shared else "Start"
    why = (
        f"{len(group):,} operations between GPUs ran on {where}. {mend} each as soon as its data "
        f"is there, and wait for it only where its result is needed."
    )
    cost_s = usage.exposed_s(group)
    title = "Nothing computes while GPUs communicate"
    return [Finding("communication", title, usage.name, cost_s, why, _bare(group, usage))]


def _turns(view: View) -> list[Finding]:
    """Pairs of GPUs of which one is idle while the other works."""
    found = []
    usages = [each for each in view.usages if each.name != OTHER_LANES and "compute" in each.kinds]
    for one, other in combinations(usages, 2):
        shorter_s = min(length_s(one.busy), length_s(other.busy))
        together_s = length_s(common(one.busy, other.busy))
        if together_s < shorter_s / 10:
            why = (
                f"Together they worked for {format_seconds(together_s)}, though each did for "
                f"{format_seconds(shorter_s)} or more. If their work is independent, launch both "
                f"before you wait for either."
            )
            spans = (_longest(one.activities, 1), _longest(other.activities, 1))
            evidence = tuple(span for group in spans for span in group)
            cost_s = shorter_s - together_s
            where = f"{one.name} and {other.name}"
            found.append(Finding("turns", "GPUs take turns", where, cost_s, why, evidence))
    return found


def moved(copies: Sequence[Activity]) -> str:
    """How much copies moved and how fast, for those whose size the trace tells."""
    sized = [each for each in copies if each.size_bytes is not None]
    size_bytes = sum(each.size_bytes or 0 for each in sized)
    busy_s = length_s(covered(intervals_of(each.span for each in sized)))
    if not size_bytes or not busy_s:
        return ""
    return f", {figures(size_bytes / 1e6)} MB at {figures(size_bytes / busy_s / 1e9)} GB/s"


def _bare(activities: Sequence[Activity], usage: Usage) -> tuple[Span, ...]:
    """Those that ran longest with nothing behind them."""
    compute = usage.compute
    longest = sorted(activities, key=lambda each: -round(each.span.duration_s, 9))[: 10 * _SHOWN]
    exposed = [
        (each.span.duration_s - length_s(as_array(clipped(each.span, compute))), each.span)
        for each in longest
    ]
    exposed.sort(key=lambda pair: -round(pair[0], 9))  # of equals the first
    return tuple(span for exposed_s, span in exposed[:_SHOWN] if exposed_s > 0)


def _longest(activities: Iterable[Activity], count: int) -> list[Span]:
    spans = sorted((each.span for each in activities), key=lambda span: -span.duration_s)
    return spans[:count]


def _of_call(call: Call) -> Span:
    return Span(call.name, call.thread or "host", call.start_s, call.end_s, "host")


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "a call"


def _count(copies: Sequence[Activity]) -> str:
    return f"{len(copies):,} {'copy' if len(copies) == 1 else 'copies'}"
