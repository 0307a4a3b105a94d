"""Report: what a trace shows: the answer first, then findings, then tables and a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from autopar.display.format import format_seconds, like, percent, shortened
from autopar.display.svg import Drawing, draw
from autopar.display.table import Table, tabulate
from autopar.timeline.intervals import length_s, length_within
from autopar.traces.findings import CAUSES, LEAST_SHARE, Finding, findings_of
from autopar.traces.idle import Host, idle_of, noise_s
from autopar.traces.trace import HOST, OF_TORCH, ONE_CYCLE, UNKNOWN, Trace
from autopar.traces.utilization import OTHER_LANES, Usage, view_of

SITE = "https://autopar.readthedocs.io/en/latest/"
TOP = 10  # findings, and rows of a table, unless more are asked for
_BAR = 10  # characters
_MUCH = 0.1  # of the time: so much communication is worth a sentence of its own
_MANY = 10  # times as long: what is more is said so, and not in percent
_NAME = 44  # characters of a name, so that its times fit beside it
_BEHIND = ("copy", "communication")  # what computing can hide
_NO_GPU = (
    "No work of a GPU is in it. If there should be, record with ProfilerActivity.CUDA, "
    "or with nsys profile --trace=cuda,nvtx."
)
Block = str | Table | Drawing


class Section(NamedTuple):
    """A heading and what stands below it."""

    heading: str
    blocks: Sequence[Block]  # from the top
    level: int = 2  # 1 for a file, 2 for what is in it, 3 for a finding
    page: str = ""  # the address where a finding is mended


def bar(part_s: float, whole_s: float) -> str:
    """A share as a percentage, and as a bar of characters; of no time it is none."""
    share = part_s / (whole_s or 1.0)
    filled = round(_BAR * min(max(share, 0.0), 1.0))
    return f"{percent(share):>7} {'#' * filled}{'.' * (_BAR - filled)}"


class Report:
    """What one trace shows, or some ranges or one GPU of it; see `view_of`."""

    def __init__(
        self,
        trace: Trace,
        *,
        name: str,
        range_name: str | None = None,
        gpu: str | None = None,
        top: int = TOP,
    ) -> None:
        self.name = name  # such as the file's
        self.view = view = view_of(trace, range_name, gpu)
        self.window_s = length_s(view.window)
        self._top = top
        self._gpus = [usage.name for usage in view.usages if usage.name != OTHER_LANES]

    @cached_property
    def _idle(self) -> dict[str, list[Finding]]:
        host = Host(self.view.trace)
        gpus = (usage for usage in self.view.usages if usage.name in self._gpus)
        return {gpu.name: idle_of(gpu, host) for gpu in gpus}

    @cached_property
    def findings(self) -> tuple[list[Finding], list[Finding]]:
        """Those worth their cost, most expensive first, and the others."""
        return findings_of(self.view, chain(*self._idle.values()))

    @cached_property
    def figures(self) -> dict[str, dict[str, Any]]:
        """What tables and files show of each GPU; times in seconds."""
        return {usage.name: self._figures_of(usage) for usage in self.view.usages}

    def _figures_of(self, usage: Usage) -> dict[str, Any]:
        busy_s = {sort: length_s(when) for sort, when in usage.sorts.items()}
        hidden_s = {sort: usage.hidden_s(sort) for sort in _BEHIND if busy_s.get(sort)}
        idle = self._idle.get(usage.name, [])
        return {
            "busy_s": length_s(usage.busy),
            "idle_s": length_s(usage.idle),
            "lanes_busy_s": {lane: length_s(when) for lane, when in usage.lanes.items()},
            "kinds_busy_s": busy_s,
            "hidden_s": hidden_s,
            "exposed_s": {sort: busy_s[sort] - time_s for sort, time_s in hidden_s.items()},
            "gaps": len(usage.idle),
            "idle_by_cause_s": {finding.cause: finding.idle_s for finding in idle},
            "bound": dict(zip(("resource", "seconds"), usage.bound, strict=True)),
        }

    def limit_share(self) -> float | None:
        """The lower bound over the time, of the GPU that is farthest from it; None without GPUs."""
        bounds_s = [self.figures[gpu]["bound"]["seconds"] for gpu in self._gpus]
        return min(bounds_s) / self.window_s if bounds_s else None

    def data(self) -> dict[str, Any]:
        """All figures, to be written as JSON; times in seconds from where the trace begins."""
        view, findings = self.view, []
        for finding in chain(*self.findings):
            cause, start_s = CAUSES[finding.cause], view.start_s
            times = [
                (span.name, span.lane, span.start_s - start_s, span.end_s - start_s)
                for span in finding.evidence
            ]
            its = {"cause": finding.cause, "where": finding.where, "cost_s": finding.cost_s}
            its |= {"title": cause.title, "why": finding.why, "remedy": cause.remedy}
            findings.append(its | {"page": SITE + cause.page, "evidence": times})
        return {
            "name": self.name,
            "origin": view.trace.origin,
            "verdict": self.verdict(),
            "range": view.range_name,
            "occurrences": self._occurrences(),
            "warnings": list(view.trace.warnings),
            "doubts": dict(view.trace.doubts),
            "window_s": self.window_s,
            "gpus": self.figures,
            "findings": findings,
        }

    def verdict(self) -> list[str]:
        """The answer in at most four sentences: how busy, how far from the limit, and why."""
        if not self._gpus:
            is_doubtful = any(place != HOST for place in self.view.trace.doubts)
            empty = [_NO_GPU, ONE_CYCLE][: 1 + (self.view.trace.origin == OF_TORCH)]
            return [] if self.view.usages or is_doubtful else [" ".join(empty)]
        figures = [self.figures[gpu] for gpu in self._gpus]
        busy = [percent(s, self.window_s) for s in sorted(its["busy_s"] for its in figures)]
        name = self._gpus[0] if len(figures) == 1 else f"{len(figures)} GPUs"
        bound = max((its["bound"] for its in figures), key=lambda bound: bound["seconds"])
        alone = "computing" if bound["resource"] == "compute" else bound["resource"]
        lines = [
            f"{name} busy for {' to '.join(dict.fromkeys((busy[0], busy[-1])))} of "
            f"{format_seconds(self.window_s)}.",
            f"It takes at least {format_seconds(bound['seconds'])}, which is {alone} alone, with "
            f"kernels and copies as fast and as many at once as here.",
        ]
        exposed_s = max(its["exposed_s"].get("communication", 0.0) for its in figures)
        if exposed_s > _MUCH * self.window_s:
            waiting_s = max(length_s(usage.waiting) for usage in self.view.usages)
            whose = "Some of that may be waiting for other ranks, which the files of all tell."
            if waiting_s:
                whose = f"Up to {format_seconds(waiting_s)} of it was waiting for other ranks."
            lines.append(
                f"Communication ran with no computing beside it for up to "
                f"{format_seconds(exposed_s)} ({percent(exposed_s, self.window_s)}). {whose}"
            )
        if top := next(iter(self.findings[0]), None):
            cost = f"{format_seconds(top.cost_s)} ({percent(top.cost_s, self.window_s)})"
            title, remedy = CAUSES[top.cause].title, CAUSES[top.cause].remedy
            lines.append(f"Most is lost on {top.where}, {cost}: {title}. {remedy}")
        else:
            lines.append("No findings: nothing was seen that more overlap could save.")
        return lines

    def sections(self) -> Iterator[Section]:
        """All that there is to say, in order."""
        view = self.view
        yield Section(self.name, [*self.verdict(), *self._opening(), *self.remarks()], level=1)
        if view.usages:
            yield from self._why()
            yield Section("How far from the limit", self._bounds() + self._hidings())
        elif len(view.ranges) and view.range_name is None:
            yield Section("What was named", self.ranges(self._top).blocks)
        if len(view.occurrences):
            yield Section("Each time", self._each_time())
        if (timeline := view.timeline).spans:
            limit = f": {view.range_name}" if view.range_name is not None else ""
            drawing = draw(timeline, title=f"{self.name}{limit}")
            yield Section("What ran when", [drawing])
        if idleness := self._idleness():
            yield Section("When nothing ran", idleness)

    def _opening(self) -> Iterator[str]:
        view, trace = self.view, self.view.trace
        if trace.origin:
            yield f"{trace.origin[0].upper()}{trace.origin[1:]}."
        if view.range_name is not None:
            count = len(view.occurrences)
            times = "once" if count == 1 else f"{count:,} times"
            yield (
                f"Limited to {view.range_name!r}, {times}, {format_seconds(self.window_s)} in all, "
                f"to the end of the work launched in it."
            )
        if view.usages and not (trace.work.launches != UNKNOWN).any():
            yield "It has no launches: why a GPU was idle can't be told from it."

    def remarks(self) -> Iterator[str]:
        """What was left out, of what no figure is given, and why."""
        yield from (f"Warning: {warning}" for warning in self.view.trace.warnings)
        for place, why in self.view.trace.doubts.items():
            what = "nothing that depends on its calls" if place == HOST else "no time of it"
            yield f"In doubt: {place or 'all GPUs'}: {what} is given. {why}"

    def _why(self) -> Iterator[Section]:
        expensive, cheap = self.findings
        if not expensive and not cheap:
            return
        least, counts = percent(LEAST_SHARE), (len(expensive), len(cheap))
        said = "Findings of {} of the time or more: {}; of less: {}.".format(least, *counts)
        if len(expensive) > 1:
            said += " The same time may be in two, and to mend one may bring out another."
        if len(expensive) > self._top:
            said += f" Shown are {self._top}: --top {len(expensive)} shows all."
        yield Section("Why no more overlap?", [said])
        for number, finding in enumerate(expensive[: self._top], start=1):
            cause, share = CAUSES[finding.cause], percent(finding.cost_s, self.window_s)
            rows = [
                (shortened(span.name, _NAME), span.lane, *self._clock(span.start_s, span.end_s))
                for span in finding.evidence
            ]
            headers = ("evidence", "lane", "start", "end")
            evidence = self._table(f"Where to look for {number}", headers, rows)
            cost = f"{format_seconds(finding.cost_s)}, {share} of the time"
            heading = f"{number}. {finding.where}: {cause.title}: {cost}"
            yield Section(heading, [finding.why, cause.remedy, *evidence], 3, SITE + cause.page)

    def _bounds(self) -> list[Table]:
        headers = ("GPU", "time", "busy", "at least", "busiest", "at least / time")
        note = (
            "At least: how long the busiest resource works, computing or copies in one direction. "
            "As fast and as many at once as here, no order of them takes less. "
            "Communication is not in it: it may be waiting."
        )
        whole_s, rows = self.window_s, []
        for gpu, its in self.figures.items():
            resource, bound_s = its["bound"].values()
            times = format_seconds(whole_s), bar(its["busy_s"], whole_s), like(bound_s, whole_s)
            rows.append((gpu, *times, resource, bar(bound_s, whole_s)))
        return self._table("The time against its lower bound", headers, rows, note)

    def _hidings(self) -> list[Table]:
        headers = ("GPU", "what", "busy", "hidden", "exposed", "hidden share")
        note = "Hidden: while the same GPU computed. Copies within a GPU are not among them."
        rows = []
        for gpu, its in self.figures.items():
            for sort, hidden_s in its["hidden_s"].items():
                busy_s, exposed_s = its["kinds_busy_s"][sort], its["exposed_s"][sort]
                times = (like(time_s, busy_s) for time_s in (busy_s, hidden_s, exposed_s))
                rows.append((gpu, sort, *times, bar(hidden_s, busy_s)))
        return self._table("Hidden behind computing", headers, rows, note)

    def _occurrences(self) -> list[dict[str, float]]:
        """Figures of each range, in seconds; what GPUs did is of all of them on average."""
        times_s, usages = self.view.occurrences.times_s, self.view.usages
        columns = {"start_s": times_s[:, 0] - self.view.start_s}
        columns["duration_s"] = self.view.occurrences.lengths_s
        for sort in ("busy", "compute", *_BEHIND):
            sets = [usage.busy if sort == "busy" else usage.when(sort) for usage in usages]
            within_s = sum((length_within(one, *times_s.T) for one in sets), np.zeros(len(times_s)))
            columns[f"{sort}_s"] = within_s / (len(usages) or 1)
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _each_time(self) -> list[Table]:
        headers = ["range", "start", "time", "busy", "computing", "copies", "communication"]
        notes = ["Busy and the columns after it are of all GPUs on average."]
        if not self.view.usages:
            del headers[3:], notes[:]
        spans, rows = self.view.occurrences.spans(), []
        for number, (span, its) in enumerate(zip(spans, self._occurrences(), strict=True), start=1):
            whole_s, name = its["duration_s"], f"{number}: {shortened(span.name, 24)}"
            times = (like(its[f"{sort}_s"], whole_s) for sort in ("compute", *_BEHIND))
            whole = format_seconds(whole_s), bar(its["busy_s"], whole_s)
            row = name, *self._clock(span.start_s), *whole, *times
            rows.append(row[: len(headers)])
        return self._table("Each time that the range is there", headers, rows, *notes)

    def _idleness(self) -> list[Table]:
        headers = ("GPU", "what happened meanwhile", "gaps", "in all", "share of time")
        least = format_seconds(noise_s(self.view.trace))
        note = (
            f"Each gap is split over all that happened in it. Gaps of up to {least} are not "
            f"counted: they are between any two kernels."
        )
        rows = []
        for gpu, its in self._idle.items():
            for one in sorted(its, key=lambda one: -one.idle_s):
                time, share = format_seconds(one.idle_s), bar(one.idle_s, self.window_s)
                rows.append((gpu, CAUSES[one.cause].title, f"{one.gaps:,}", time, share))
        return self._table("Idle time, and what happened meanwhile", headers, rows, note)

    def ranges(self, most: int | None = None) -> Section:
        """The names that a program gave, with how often and how long each was there."""
        by_name = self.view.ranges.parts(lambda tag: tag.name)
        rows = []
        for name in sorted(by_name, key=lambda name: -by_name[name].lengths_s.sum())[:most]:
            lengths_s = by_name[name].lengths_s
            times = (format_seconds(float(s)) for s in (lengths_s.sum(), lengths_s.max()))
            rows.append((name, f"{len(lengths_s):,}", *times))
        more = [f"And {len(by_name) - len(rows):,} more: see --list-ranges."]
        more *= len(rows) < len(by_name)
        headers, caption = ("range", "times", "in all", "longest"), f"Ranges of {self.name}"
        table = [tabulate(headers, rows, caption=caption, notes=more)] if rows else []
        return Section(self.name, table or ["It has no named ranges."], level=1)

    def _table(
        self, caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]], *notes: str
    ) -> list[Table]:
        """A table of the first rows, if there are any."""
        if len(rows) > self._top and headers[0] != "evidence":
            more = f"And {len(rows) - self._top:,} rows more: --top {len(rows)} shows them."
            rows, notes = rows[: self._top], (more, *notes)
        return [tabulate(headers, rows, caption=caption, notes=notes)] if rows else []

    def _clock(self, *times_s: float) -> list[str]:
        return [f"{1e3 * (time_s - self.view.start_s):.3f} ms" for time_s in times_s]


def comparison(before: Report, after: Report) -> Section:
    """What has changed from one trace to another: times, and what is lost for which cause.

    Of traces that were read in part, or are in doubt, the times alone: the rest may be missing.
    """
    said = [f"{before.name}: {remark}" for remark in before.remarks()]
    traces = [report.view.trace for report in (before, after)]
    is_certain = not any(trace.is_cut or trace.doubts for trace in traces)
    if not is_certain:
        said.append("No change is given: of what is damaged or in doubt, a part may be missing.")
    columns = []
    for report in (before, after):
        times_s = {"time": report.window_s}
        for gpu, its in report.figures.items():
            times_s |= {f"{gpu} {words}": its[f"{words}_s"] for words in ("busy", "idle")}
            times_s |= {f"{gpu} {sort} exposed": s for sort, s in its["exposed_s"].items() if s}
        for finding in chain(*report.findings):
            times_s[f"{finding.where}: {CAUSES[finding.cause].title}"] = finding.cost_s
        columns.append(times_s)
    cells = []
    for words in dict.fromkeys(chain(*columns)):
        one_s, other_s = (times_s.get(words, 0.0) for times_s in columns)
        change = f"{100 * (other_s / one_s - 1):+.1f} %" if one_s else "new"
        if one_s and other_s > _MANY * one_s:
            change = f"{other_s / one_s:,.0f} times"
        cells.append((words, format_seconds(one_s), format_seconds(other_s), change))
    headers = ("what", "before", "after", "change")
    width, caption = 3 + is_certain, f"{before.name}, and then {after.name}"
    table = tabulate(headers[:width], [row[:width] for row in cells], caption=caption)
    return Section("Before and after", [*said, table], level=1)
