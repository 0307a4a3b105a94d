"""Report: what a trace shows, in sections of sentences, tables and a drawing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autopar.diagnosis import LEAST_SHARE, Finding, findings_of, moved
from autopar.evidence import Activity, Trace
from autopar.idle import CAUSES, NOISE_S, Gap, gaps_of
from autopar.intervals import length_s, longest
from autopar.measurement import format_seconds
from autopar.span import Timeline
from autopar.svg import Drawing, draw
from autopar.table import Table, tabulate
from autopar.unit import like
from autopar.usage import OTHER_LANES, Usage, View, view_of
from autopar.words import lane_table, percent

SITE = "https://autopar.readthedocs.io/en/latest/"
_LONGEST_NAME = 70  # characters; names of kernels run to thousands
_NOT_ONE = "-"
_TEXT_WIDTH = 100


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it.

    Args:
        heading: In a few words.
        blocks: Paragraphs, tables and drawings, from the top.
        level: 1 for a file, 2 for what is in it, 3 for a finding.
        page: Where a finding is mended, from the root of the site.
    """

    heading: str
    blocks: tuple[str | Table | Drawing, ...]
    level: int = 2
    page: str = ""


@dataclass(frozen=True, eq=False)
class Report:
    """What one trace shows, or one named range of it; made by `report_of`.

    Args:
        name: What the trace is called, such as its file's name.
        trace: All of it.
        view: The part that the figures are of.
        range_name: The range that it is limited to, if it is to one.
    """

    name: str
    trace: Trace
    view: View
    range_name: str | None = None

    @cached_property
    def findings(self) -> tuple[list[Finding], list[Finding]]:
        """Those worth their cost, dearest first, and the others."""
        return findings_of(self.view, self.gaps)

    @cached_property
    def gaps(self) -> dict[str, list[Gap]]:
        """GPU -> its gaps with their causes."""
        usages = [each for each in self.view.usages if each.name != OTHER_LANES]
        return {each.name: gaps_of(each, self.view.trace.calls) for each in usages}

    @cached_property
    def timeline(self) -> Timeline:
        """What the figures are of, to be drawn or written."""
        return self.view.trace.timeline

    def sections(self) -> list[Section]:
        """All that there is to say, in order."""
        first = [Section(self.name, tuple(self._opening()), level=1)]
        if self.timeline.spans:
            drawing = draw(self.timeline, title=self._title)
            first.append(Section("What ran when", (drawing, lane_table(self.timeline, "Lanes"))))
        if not self.view.usages:
            return first
        return [
            *first,
            Section("How far from the limit", (_bounds(self.view), *_hidings(self.view))),
            Section("How many lanes were busy at once", (_at_once(self.view),)),
            Section("When nothing ran", tuple(self._idleness())),
            *[Section("Copies", (table,)) for table in _copies(self.view)],
            *self._why(),
        ]

    @property
    def _title(self) -> str:
        return self.name if self.range_name is None else f"{self.name}: {self.range_name}"

    def _opening(self) -> Iterable[str]:
        if self.trace.origin:
            yield f"{self.trace.origin[0].upper()}{self.trace.origin[1:]}."
        if self.range_name is not None:
            times = "once" if self.view.occurrences == 1 else f"{self.view.occurrences:,} times"
            yield (
                f"Limited to {self.range_name!r}, which is there {times}, "
                f"{format_seconds(length_s(self.view.window))} in all: from each start to its end, "
                f"or to the end of the last work launched in it."
            )
        yield from (f"Warning: {warning}" for warning in self.trace.warnings)
        for place, why in self.trace.doubts.items():
            what = "nothing that depends on its calls" if place == "host" else "no time of it"
            yield f"In doubt: {place}: {what} is given. {why}"
        if not self.view.usages and not (self.trace.warnings or self.trace.doubts):
            yield (
                "No work of a GPU is in it. If there should be, record "
                "with ProfilerActivity.CUDA, or with nsys profile --trace=cuda,nvtx."
            )

    def _idleness(self) -> Iterable[str | Table]:
        stretch = longest(self.view.nothing)
        if stretch is None:
            yield "There was no moment without work."
        else:
            yield (
                f"Nothing ran for {format_seconds(length_s(self.view.nothing))} in all, longest "
                f"from {self._clock(stretch[0])} to {self._clock(stretch[1])}, for "
                f"{format_seconds(stretch[1] - stretch[0])}."
            )
        rows = [row for usage in self.view.usages for row in self._gap_rows(usage)]
        if rows:
            headers = ("GPU", "why it was idle", "gaps", "in all", "longest", "share of time")
            least = format_seconds(NOISE_S)
            note = f"Gaps of up to {least} are between any two kernels: they are not counted here."
            yield tabulate(headers, rows, caption="Idle time by cause", notes=[note])

    def _gap_rows(self, usage: Usage) -> Iterable[tuple[str, ...]]:
        for cause, words in CAUSES.items():
            same = [gap.duration_s for gap in self.gaps.get(usage.name, ()) if gap.cause == cause]
            if same:
                whole = (format_seconds(sum(same)), format_seconds(max(same)))
                yield usage.name, words, f"{len(same):,}", *whole, _share(sum(same), usage.window_s)

    def _why(self) -> Iterable[Section]:
        dear, cheap = self.findings
        said = [
            "The dearest comes first. The same time may count in two findings, and to mend one may "
            "bring out another."
            if dear
            else "Nothing was found that costs enough to matter."
        ]
        if cheap:
            said.append(f"{len(cheap)} more cost less than {LEAST_SHARE:.0%} of the time each.")
        yield Section("Why no more overlap?", tuple(said))
        for number, finding in enumerate(dear, start=1):
            share = _share(finding.cost_s, length_s(self.view.window))
            cost = f"{format_seconds(finding.cost_s)}, {share} of the time"
            heading = f"{number}. {finding.where}: {finding.title}: {cost}"
            yield Section(heading, (finding.why, *self._evidence(finding, number)), 3, finding.page)

    def _evidence(self, finding: Finding, number: int) -> Iterable[Table]:
        rows = [
            (short(each.name), each.lane, self._clock(each.start_s), self._clock(each.end_s))
            for each in finding.evidence
        ]
        if rows:
            caption = f"Where to look for {number}"
            yield tabulate(("evidence", "lane", "start", "end"), rows, caption=caption)

    def _clock(self, at_s: float) -> str:
        return f"{1e3 * (at_s - self.view.start_s):.3f} ms"


def report_of(trace: Trace, *, name: str, range_name: str | None = None) -> Report:
    """Look through a trace, or through one named range of it.

    Args:
        trace: What a profiler recorded.
        name: What it is called.
        range_name: An NVTX or `record_function` range to limit the report to.

    Raises:
        ValueError: There is no such range.
    """
    return Report(name, trace, view_of(trace, range_name), range_name)


def as_text(sections: Iterable[Section]) -> str:
    """Sections for a terminal."""
    lines: list[str] = []
    for section in sections:
        beneath = {1: "=", 2: "-"}.get(section.level)
        lines += ["", section.heading, *([beneath * len(section.heading)] if beneath else [])]
        lines += [f"{_wrapped(block)}\n" for block in section.blocks]
        lines += [f"How to mend it: {SITE}{section.page}\n"] if section.page else []
    return "\n".join(lines).strip() + "\n"


def _wrapped(block: str | Table | Drawing) -> str:
    if not isinstance(block, str):
        return str(block)
    return textwrap.fill(block, _TEXT_WIDTH, break_long_words=False, break_on_hyphens=False)


def as_data(report: Report) -> dict[str, Any]:
    """The figures of a report, to be written as JSON; times in seconds."""
    view, zero_s = report.view, report.view.start_s
    stretch = longest(view.nothing) if view.usages else None
    return {
        "name": report.name,
        "origin": report.trace.origin,
        "range": report.range_name,
        "occurrences": view.occurrences,
        "warnings": list(report.trace.warnings),
        "doubts": dict(report.trace.doubts),
        "window_s": length_s(view.window),
        "nothing_ran_s": length_s(view.nothing) if view.usages else None,
        "longest_nothing_s": [at_s - zero_s for at_s in stretch] if stretch else None,
        "gpus": {usage.name: _data_of(usage, report) for usage in view.usages},
        "findings": [
            {
                "cause": finding.cause,
                "title": finding.title,
                "where": finding.where,
                "cost_s": finding.cost_s,
                "why": finding.why,
                "page": SITE + finding.page,
                "evidence": [
                    [each.name, each.lane, each.start_s - zero_s, each.end_s - zero_s]
                    for each in finding.evidence
                ],
            }
            for group in report.findings
            for finding in group
        ],
    }


def short(name: str) -> str:
    """A name of a length that a table can take."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "\u2026"


def _data_of(usage: Usage, report: Report) -> dict[str, Any]:
    idle: dict[str, float] = {}
    for gap in report.gaps.get(usage.name, ()):
        idle[gap.cause] = idle.get(gap.cause, 0.0) + gap.duration_s
    return {
        "busy_s": length_s(usage.busy),
        "idle_s": length_s(usage.idle),
        "lanes_busy_s": {lane: length_s(each) for lane, each in usage.lanes.items()},
        "kinds_busy_s": {kind: length_s(each) for kind, each in usage.kinds.items()},
        "hidden_s": {kind: usage.hidden_s(kind) for kind in _behind(usage)},
        "exposed_s": {kind: usage.busy_s(kind) - usage.hidden_s(kind) for kind in _behind(usage)},
        "lanes_at_once_s": {str(count): spent_s for count, spent_s in usage.at_once.items()},
        "gaps": len(usage.idle),
        "idle_by_cause_s": idle,
        "bound": {"resource": usage.bound[0], "seconds": usage.bound[1]},
    }


def _bounds(view: View) -> Table:
    rows = []
    for usage in view.usages:
        busiest, bound_s = usage.bound
        busy_s, window_s = length_s(usage.busy), usage.window_s
        times = (format_seconds(window_s), like(busy_s, window_s), like(bound_s, window_s))
        rows.append((usage.name, *times, busiest, _share(bound_s, window_s)))
    note = (
        "At least: the busiest resource (computing, communication, or copies in one direction). "
        "However the same work is ordered, it takes no less; what waits for what may need more."
    )
    headers = ("GPU", "time", "busy", "at least", "busiest", "at least / time")
    return tabulate(headers, rows, caption="The time against its lower bound", notes=[note])


def _hidings(view: View) -> Iterable[Table]:
    rows = []
    for usage in view.usages:
        for kind in _behind(usage):
            busy_s, hidden_s = usage.busy_s(kind), usage.hidden_s(kind)
            times = [like(each_s, busy_s) for each_s in (busy_s, hidden_s, busy_s - hidden_s)]
            rows.append((usage.name, kind, *times, _share(hidden_s, busy_s)))
    if rows:
        headers = ("GPU", "what", "busy", "hidden", "exposed", "hidden share")
        note = "Hidden: while the same GPU computed."
        yield tabulate(headers, rows, caption="Hidden behind computing", notes=[note])


def _behind(usage: Usage) -> list[str]:
    return [kind for kind in ("copy", "communication") if usage.busy_s(kind)]


def _at_once(view: View) -> Table:
    counts = sorted({count for usage in view.usages for count in usage.at_once})
    rows = []
    for count in counts:
        cells = []
        for usage in view.usages:
            spent_s = usage.at_once.get(count)
            whole_s = usage.window_s
            said = (like(spent_s, whole_s), _share(spent_s, whole_s)) if spent_s is not None else ()
            cells += list(said or (_NOT_ONE, _NOT_ONE))
        rows.append((str(count), *cells))
    headers = [word for usage in view.usages for word in (usage.name, "share")]
    return tabulate(["lanes", *headers], rows, caption="Time by how many lanes were busy")


def _copies(view: View) -> Iterable[Table]:
    groups: dict[tuple[str, str], list[Activity]] = {}
    for each in view.trace.activities:
        if each.span.kind == "copy":
            groups.setdefault((each.span.lane, each.memory or _NOT_ONE), []).append(each)
    if groups:
        rows = [
            (lane, memory, f"{len(copies):,}", moved(copies).removeprefix(", ") or _NOT_ONE)
            for (lane, memory), copies in groups.items()
        ]
        headers = ("lane", "the host's memory", "copies", "moved")
        yield tabulate(headers, rows, caption="Copies by direction and memory")


def _share(part_s: float, whole_s: float) -> str:
    return percent(part_s / whole_s if whole_s else 0.0)
