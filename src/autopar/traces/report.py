"""Report: what a trace shows, in sections of sentences, tables and a drawing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from autopar.display.format import NOTHING, format_seconds, like, percent, shortened
from autopar.display.svg import Drawing, draw
from autopar.display.table import Table, tabulate
from autopar.display.text import lane_table
from autopar.timeline.groups import grouped
from autopar.timeline.intervals import length_s, longest
from autopar.timeline.span import Timeline
from autopar.traces.findings import CAUSES, LEAST_SHARE, Finding, findings_of, moved
from autopar.traces.idle import NOISE_S, Gap, gaps_of
from autopar.traces.trace import Trace
from autopar.traces.utilization import OTHER_LANES, Usage, View, view_of

SITE = "https://autopar.readthedocs.io/en/latest/"
_TEXT_WIDTH = 100
Block = str | Table | Drawing


class Section(NamedTuple):
    """A heading and what stands below it."""

    heading: str
    blocks: Sequence[Block]  # from the top
    level: int = 2  # 1 for a file, 2 for what is in it, 3 for a finding
    page: str = ""  # where a finding is mended, from the root of the site


@dataclass(frozen=True, eq=False)
class Report:
    """What one trace shows, or one named range of it; made by `report_of`."""

    name: str  # such as that of its file
    view: View  # the part of it that the figures are of

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

    @cached_property
    def figures(self) -> dict[str, dict[str, Any]]:
        """GPU -> the figures of it that tables and files show; times in seconds."""
        return {each.name: self._figures_of(each) for each in self.view.usages}

    def _figures_of(self, usage: Usage) -> dict[str, Any]:
        behind = [kind for kind in ("copy", "communication") if usage.busy_s(kind)]
        gaps = grouped(self.gaps.get(usage.name, ()), lambda gap: gap.cause)
        return {
            "busy_s": length_s(usage.busy),
            "idle_s": length_s(usage.idle),
            "lanes_busy_s": {lane: length_s(each) for lane, each in usage.lanes.items()},
            "kinds_busy_s": {kind: length_s(each) for kind, each in usage.kinds.items()},
            "hidden_s": {kind: usage.hidden_s(kind) for kind in behind},
            "exposed_s": {kind: usage.busy_s(kind) - usage.hidden_s(kind) for kind in behind},
            "lanes_at_once_s": {str(count): spent_s for count, spent_s in usage.at_once.items()},
            "gaps": len(usage.idle),
            "idle_by_cause_s": {
                cause: sum(gap.duration_s for gap in some) for cause, some in gaps.items()
            },
            "bound": dict(zip(("resource", "seconds"), usage.bound, strict=True)),
        }

    def sections(self) -> list[Section]:
        """All that there is to say, in order."""
        first = [Section(self.name, list(self._opening()), level=1)]
        if self.timeline.spans:
            of = self.view.range_name
            drawing = draw(self.timeline, title=self.name if of is None else f"{self.name}: {of}")
            first.append(Section("What ran when", (drawing, lane_table(self.timeline, "Lanes"))))
        if not self.view.usages:
            return first
        return [
            *first,
            Section("How far from the limit", self._bounds() + self._hidings()),
            Section("How many lanes were busy at once", self._at_once()),
            Section("When nothing ran", [self._nothing(), *self._idleness()]),
            *(Section("Copies", [table]) for table in self._copies()),
            *self._why(),
        ]

    def _opening(self) -> Iterable[str]:
        view, trace = self.view, self.view.trace
        if trace.origin:
            yield f"{trace.origin[0].upper()}{trace.origin[1:]}."
        if view.range_name is not None:
            times = "once" if view.occurrences == 1 else f"{view.occurrences:,} times"
            yield (
                f"Limited to {view.range_name!r}, which is there {times}, "
                f"{format_seconds(length_s(view.window))} in all: from each start to its end, "
                f"or to the end of the last work launched in it."
            )
        yield from (f"Warning: {warning}" for warning in trace.warnings)
        for place, why in trace.doubts.items():
            what = "nothing that depends on its calls" if place == "host" else "no time of it"
            yield f"In doubt: {place}: {what} is given. {why}"
        if not view.usages and not (trace.warnings or trace.doubts):
            yield (
                "No work of a GPU is in it. If there should be, record "
                "with ProfilerActivity.CUDA, or with nsys profile --trace=cuda,nvtx."
            )

    def _bounds(self) -> list[Table]:
        whole_s, rows = length_s(self.view.window), []
        for gpu, its in self.figures.items():
            bound_s = its["bound"]["seconds"]
            times = (format_seconds(whole_s), like(its["busy_s"], whole_s), like(bound_s, whole_s))
            rows.append((gpu, *times, its["bound"]["resource"], percent(bound_s, whole_s)))
        headers = ("GPU", "time", "busy", "at least", "busiest", "at least / time")
        note = (
            "At least: the busiest resource (computing, communication, or copies in one "
            "direction). However the same work is ordered, it takes no less; what waits for what "
            "may need more."
        )
        return _table("The time against its lower bound", headers, rows, note)

    def _hidings(self) -> list[Table]:
        rows = []
        for gpu, its in self.figures.items():
            for kind, hidden_s in its["hidden_s"].items():
                busy_s = its["kinds_busy_s"][kind]
                parts_s = (busy_s, hidden_s, its["exposed_s"][kind])
                times = (like(each_s, busy_s) for each_s in parts_s)
                rows.append((gpu, kind, *times, percent(hidden_s, busy_s)))
        headers = ("GPU", "what", "busy", "hidden", "exposed", "hidden share")
        note = "Hidden: while the same GPU computed."
        return _table("Hidden behind computing", headers, rows, note)

    def _at_once(self) -> list[Table]:
        whole_s, rows = length_s(self.view.window), []
        every = [its["lanes_at_once_s"] for its in self.figures.values()]
        for count in sorted({*chain(*every)}, key=int):
            cells = (
                (like(its[count], whole_s), percent(its[count], whole_s))
                if count in its
                else (NOTHING, NOTHING)
                for its in every
            )
            rows.append((count, *chain(*cells)))
        headers = ["lanes", *chain(*((gpu, "share") for gpu in self.figures))]
        return _table("Time by how many lanes were busy", headers, rows)

    def _nothing(self) -> str:
        stretch = longest(self.view.nothing)
        if stretch is None:
            return "There was no moment without work."
        start, end = self._clock(*stretch)
        return (
            f"Nothing ran for {format_seconds(length_s(self.view.nothing))} in all, longest "
            f"from {start} to {end}, for {format_seconds(stretch[1] - stretch[0])}."
        )

    def _idleness(self) -> list[Table]:
        rows, window_s = [], length_s(self.view.window)
        for gpu, gaps in self.gaps.items():
            idle_s = self.figures[gpu]["idle_by_cause_s"]
            for cause in (each for each in CAUSES if each in idle_s):
                lengths = [gap.duration_s for gap in gaps if gap.cause == cause]
                times = (format_seconds(idle_s[cause]), format_seconds(max(lengths)))
                share = percent(idle_s[cause], window_s)
                rows.append((gpu, CAUSES[cause].idle, f"{len(lengths):,}", *times, share))
        headers = ("GPU", "why it was idle", "gaps", "in all", "longest", "share of time")
        least = format_seconds(NOISE_S)
        note = f"Gaps of up to {least} are between any two kernels: they are not counted here."
        return _table("Idle time by cause", headers, rows, note)

    def _copies(self) -> list[Table]:
        copies = (each for each in self.view.trace.activities if each.span.kind == "copy")
        groups = grouped(copies, lambda each: (each.span.lane, each.memory or NOTHING))
        rows = [(*key, f"{len(same):,}", moved(same) or NOTHING) for key, same in groups.items()]
        headers = ("lane", "the host's memory", "copies", "moved")
        return _table("Copies by direction and memory", headers, rows)

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
        yield Section("Why no more overlap?", said)
        for number, finding in enumerate(dear, start=1):
            share = percent(finding.cost_s, length_s(self.view.window))
            rows = [
                [shortened(each.name), each.lane, *self._clock(each.start_s, each.end_s)]
                for each in finding.evidence
            ]
            headers = ("evidence", "lane", "start", "end")
            evidence = _table(f"Where to look for {number}", headers, rows)
            cost = f"{format_seconds(finding.cost_s)}, {share} of the time"
            heading = f"{number}. {finding.where}: {finding.title}: {cost}"
            yield Section(heading, [finding.why, *evidence], 3, finding.page)

    def _clock(self, *times_s: float) -> list[str]:
        return [f"{1e3 * (each_s - self.view.start_s):.3f} ms" for each_s in times_s]


def report_of(trace: Trace, *, name: str, range_name: str | None = None) -> Report:
    """Look through a trace that is called `name`, or through one named range of it.

    Raises:
        ValueError: There is no such range.
    """
    return Report(name, view_of(trace, range_name))


def as_text(sections: Iterable[Section]) -> str:
    """Sections for a terminal."""
    lines: list[str] = []
    for section in sections:
        beneath = {1: "=", 2: "-"}.get(section.level)
        lines += ["", section.heading, *([beneath * len(section.heading)] if beneath else [])]
        lines += [f"{_wrapped(block)}\n" for block in section.blocks]
        lines += [f"How to mend it: {SITE}{section.page}\n"] if section.page else []
    return "\n".join(lines).strip() + "\n"


def _wrapped(block: Block) -> str:
    if not isinstance(block, str):
        return str(block)
    return textwrap.fill(block, _TEXT_WIDTH, break_long_words=False, break_on_hyphens=False)


def as_data(report: Report) -> dict[str, Any]:
    """The figures of a report, to be written as JSON; times in seconds."""
    view, zero_s = report.view, report.view.start_s
    stretch = longest(view.nothing) if view.usages else None
    return {
        "name": report.name,
        "origin": view.trace.origin,
        "range": view.range_name,
        "occurrences": view.occurrences,
        "warnings": list(view.trace.warnings),
        "doubts": dict(view.trace.doubts),
        "window_s": length_s(view.window),
        "nothing_ran_s": length_s(view.nothing) if view.usages else None,
        "longest_nothing_s": [at_s - zero_s for at_s in stretch] if stretch else None,
        "gpus": report.figures,
        "findings": [
            finding._asdict()
            | {
                "page": SITE + finding.page,
                "evidence": [
                    [each.name, each.lane, each.start_s - zero_s, each.end_s - zero_s]
                    for each in finding.evidence
                ],
            }
            for finding in (*report.findings[0], *report.findings[1])
        ],
    }


def _table(
    caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]], *notes: str
) -> list[Table]:
    return [tabulate(headers, rows, caption=caption, notes=notes)] if rows else []
