"""Findings: why a trace has no more overlap, each finding with its cost and its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from autopar.display.format import figures, format_seconds
from autopar.timeline.groups import grouped
from autopar.timeline.intervals import as_array, clipped, common, covered, intervals_of, length_s
from autopar.timeline.span import Span
from autopar.traces.idle import Gap
from autopar.traces.trace import Activity
from autopar.traces.utilization import OTHER_LANES, Usage, View

_Timed = TypeVar("_Timed", Span, Gap)

LEAST_SHARE = 0.01  # of the window; what costs less is not why a program is slow
_SMALL_S = 10e-6  # about what one launch costs the host; a shorter kernel can't keep a GPU busy
_NEAR_S = 10 * _SMALL_S  # after a longer gap the size of the next kernel is not what matters
_SMALL_BYTES = 64 * 1024  # a copy of less takes about as long as its fixed cost
_SHOWN = 3  # spans of evidence for a finding: enough to find the place in the program


class Cause(NamedTuple):
    """Why less runs at once than could; one without a page only explains why a GPU was idle."""

    of: type  # of what: a gap, exposed work, or a GPU beside another
    rule: Callable[..., bool]  # whether it is the cause of one, on a GPU; the first that is counts
    title: str
    what: str = ""  # a sentence with places for its figures
    remedy: str = ""  # what to do about it
    page: str = ""  # of the gallery, that does so


def _together_s(one: Usage, other: Usage) -> float:
    return length_s(common(one.busy, other.busy))


CAUSES = {
    "synchronised": Cause(
        Gap,
        lambda gap, _: gap.held == "synchronised",
        "Synchronising calls left it idle",
        "{count} times the host waited in {calls}, and launched the next work only after that.",
        "Wait for an event of the one result that is needed, and launch the next work first.",
        "first_steps/plot_1_the_front_end_returns_first",
    ),
    "allocated": Cause(
        Gap,
        lambda gap, _: gap.held == "allocated",
        "Memory was allocated or freed meanwhile",
        "{count} times it was idle while the host was in {calls}.",
        "Allocate and pin before the loop, and use the same memory again.",
        "copies/plot_1_where_a_copys_time_goes",
    ),
    "small": Cause(
        Gap,
        lambda gap, _: (
            gap.is_late
            and gap.next.span.kind == "compute"
            and gap.next.span.duration_s < _SMALL_S
            and gap.duration_s < _NEAR_S
        ),
        "Kernels are too small",
        f"{{count}} kernels of less than {format_seconds(_SMALL_S)} began after it had run out of "
        "work: to launch one takes the host longer than to run it takes the GPU.",
        "Batch them, compile them, or replay them as a CUDA graph.",
        "one_device/plot_2_small_operators",
    ),
    "late": Cause(
        Gap,
        lambda gap, _: gap.is_late,
        "Work was launched late",
        "{count} times its queue was empty, as the host was busy with something else.",
        "Launch GPU work first, and give the CPU's to a lane of its own.",
        "first_steps/plot_3_cpu_and_gpu",
    ),
    "queued": Cause(
        Gap,
        lambda gap, _: gap.call is not None,
        "Launched work waited",
        "{count} times the next work stood in its queue, for an event of another or for its start.",
        "Let work that depends on nothing run in between.",
        "one_device/plot_3_cpu_gpu_and_the_bus",
    ),
    "ended": Cause(Gap, lambda gap, _: gap.next is None, "Nothing more was launched"),
    "unknown": Cause(Gap, lambda *_: True, "The trace does not tell"),
    "communication": Cause(
        Activity,
        lambda work, _: work.span.kind == "communication",
        "Nothing computes while GPUs communicate",
        "{count} operations between GPUs ran while nothing computed, or partly so.",
        "Give them streams of their own, start each as soon as its data is there, and wait for it "
        "only where its result is needed.",
        "first_steps/plot_4_compute_and_copy",
    ),
    "pageable": Cause(
        Activity,
        lambda copy, _: copy.memory == "pageable",
        "Copies touch pageable memory",
        "{copies}: the driver copies pageable memory twice, and the host waits meanwhile.",
        "Pin it once, before the loop.",
        "copies/plot_1_where_a_copys_time_goes",
    ),
    "small copies": Cause(
        Activity,
        lambda copy, _: copy.size_bytes is not None and copy.size_bytes < _SMALL_BYTES,
        "Copies are small",
        f"{{copies}}, each of less than {_SMALL_BYTES // 1024} KiB: that is mostly fixed cost.",
        "Put them together, and copy once.",
        "copies/plot_8_send_small_tensors_together",
    ),
    "one stream": Cause(
        Activity,
        lambda copy, gpu: copy.stream in gpu.computing_streams,
        "Copies share a stream with computing",
        "{copies} ran on a stream that computes too ({streams}): one stream does one thing at a "
        "time, whatever `non_blocking` says.",
        "Copy on a side stream, after an event for each result.",
        "first_steps/plot_4_compute_and_copy",
    ),
    "bare copies": Cause(
        Activity,
        lambda *_: True,
        "Nothing computes while copies run",
        "{copies} ran while nothing computed, or partly so.",
        "Start each as soon as its source is there, and let the next chunk be computed meanwhile. "
        "Where copying takes longer than computing, copy less, or both ways at once.",
        "copies/plot_3_copy_both_ways_while_you_compute",
    ),
    "turns": Cause(
        Usage,
        lambda one, other: _together_s(one, other) < min(one.total_s, other.total_s) / 10,
        "GPUs take turns",
        "Together they worked for {together}, though each did for {each} or more.",
        "If their work is independent, launch both before you wait for either.",
        "first_steps/plot_2_two_devices_at_once",
    ),
}


def cause_of(what: Gap | Activity | Usage, gpu: Usage) -> str:
    """The first cause whose rule holds of a gap, exposed work or another GPU; empty if none."""
    for key, cause in CAUSES.items():
        if cause.of is type(what) and cause.rule(what, gpu):
            return key
    return ""


class Finding(NamedTuple):
    """One reason why less runs at once than could, as a report and a file of figures have it."""

    cause: str  # a key of `CAUSES`
    title: str
    where: str  # on which GPU, or on which two
    cost_s: float  # at most; those of two findings may be the same seconds
    why: str  # with its figures, and what to do
    page: str
    evidence: Sequence[Span]  # the spans that cost most, on the trace's clock


def findings_of(
    view: View,
    idle: Mapping[str, Mapping[str, Sequence[Gap]]],  # GPU -> cause -> gaps
) -> tuple[list[Finding], list[Finding]]:
    """What a view could save, most expensive first; then what costs too little to matter."""
    findings = [finding for usage in view.usages for finding in _of_work(usage)]
    for gpu, causes in idle.items():
        findings += _of_gaps(gpu, causes)
    gpus = [gpu for gpu in view.usages if "compute" in gpu.kinds and gpu.name != OTHER_LANES]
    findings += [_of_turns(*pair) for pair in combinations(gpus, 2) if cause_of(*pair)]
    costly = sorted((f for f in findings if f.cost_s > 0), key=lambda finding: -finding.cost_s)
    least_s = LEAST_SHARE * length_s(view.window)
    count = sum(finding.cost_s >= least_s for finding in costly)
    return costly[:count], costly[count:]


def _finding(
    key: str, where: str, cost_s: float, evidence: Sequence[Span], **facts: str
) -> Finding:
    cause = CAUSES[key]
    why = f"{cause.what} {cause.remedy}".format(**facts)
    page = f"auto_gallery/{cause.page}.html"
    return Finding(key, cause.title, where, cost_s, why, page, evidence)


def _of_gaps(gpu: str, causes: Mapping[str, Sequence[Gap]]) -> Iterator[Finding]:
    for key, gaps in causes.items():
        if CAUSES[key].page:
            cost_s, evidence = sum(gap.duration_s for gap in gaps), _around(gaps, gpu)
            calls = ", ".join(sorted({gap.call.name for gap in gaps if gap.call}))
            yield _finding(key, gpu, cost_s, evidence, count=f"{len(gaps):,}", calls=calls)


def _around(gaps: Sequence[Gap], gpu: str) -> list[Span]:
    """The longest gaps: the call that each is due to, the gap, and what came next."""
    shown: list[Span] = []
    for gap in _longest(gaps)[:_SHOWN]:
        if call := gap.call:
            shown.append(Span(call.name, call.thread, call.start_s, call.end_s, "host"))
        shown.append(Span(f"{gpu} idle", gpu, gap.start_s, gap.end_s, "host"))
        shown += [gap.next.span] if gap.next else []
    return shown


def _of_work(usage: Usage) -> Iterator[Finding]:
    # Nothing could hide communication where nothing computes.
    kinds = {"copy", "communication"} if "compute" in usage.kinds else {"copy"}
    exposed = (work for work in usage.activities if work.span.kind in kinds)
    outward = (work for work in exposed if not work.span.lane.endswith(" within"))
    for key, group in grouped(outward, lambda work: cause_of(work, usage)).items():
        count, size = f"{len(group):,}", moved(group)
        copies = f"{count} {'copy' if len(group) == 1 else 'copies'}{size and f', {size}'}"
        streams = ", ".join(sorted({work.stream for work in group}))
        evidence, cost_s = _exposed(group, usage), usage.exposed_s(group)
        facts = {"count": count, "copies": copies, "streams": streams}
        yield _finding(key, usage.name, cost_s, evidence, **facts)


def _of_turns(one: Usage, other: Usage) -> Finding:
    together_s, shorter_s = _together_s(one, other), min(one.total_s, other.total_s)
    longest = [_longest(work.span for work in gpu.activities)[0] for gpu in (one, other)]
    facts = {"together": format_seconds(together_s), "each": format_seconds(shorter_s)}
    where = f"{one.name} and {other.name}"
    return _finding("turns", where, shorter_s - together_s, longest, **facts)


def moved(copies: Sequence[Activity]) -> str:
    """How much copies moved and how fast, for those whose size the trace tells."""
    sized = [copy for copy in copies if copy.size_bytes is not None]
    size_bytes = sum(copy.size_bytes or 0 for copy in sized)
    busy_s = length_s(covered(intervals_of(copy.span for copy in sized)))
    if not size_bytes or not busy_s:
        return ""
    return f"{figures(size_bytes / 1e6)} MB at {figures(size_bytes / busy_s / 1e9)} GB/s"


def _exposed(group: Sequence[Activity], usage: Usage) -> list[Span]:
    """Of the longest those that ran longest with nothing behind them."""
    computing = usage.when("compute")

    def exposed_s(span: Span) -> float:
        return round(span.duration_s - length_s(as_array(clipped(span, computing))), 9)

    spans = _longest(work.span for work in group)[: 10 * _SHOWN]
    return sorted(filter(exposed_s, spans), key=exposed_s, reverse=True)[:_SHOWN]


def _longest(timed: Iterable[_Timed]) -> list[_Timed]:
    """By their durations to the nanosecond, the longest first, of equals the first."""
    return sorted(timed, key=lambda one: -round(one.duration_s, 9))
