"""Report: what a trace shows, in sections of sentences, tables and a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from autopar.display.format import format_seconds, like, percent, shortened
from autopar.display.svg import Drawing, draw
from autopar.display.table import Table, tabulate
from autopar.display.text import lane_table
from autopar.timeline.groups import grouped
from autopar.timeline.intervals import length_s, longest
from autopar.traces.findings import CAUSES, LEAST_SHARE, cause_of, findings_of
from autopar.traces.idle import NOISE_S, Gap, gaps_of
from autopar.traces.trace import ApiCall, Trace
from autopar.traces.utilization import OTHER_LANES, Usage, view_of

SITE = "https://autopar.readthedocs.io/en/latest/"
Block = str | Table | Drawing


class Section(NamedTuple):
    """A heading and what stands below it."""

    heading: str
    blocks: Sequence[Block]  # from the top
    level: int = 2  # 1 for a file, 2 for what is in it, 3 for a finding
    page: str = ""  # where a finding is mended, from the root of the site


class Report:
    """What one trace shows, or one named range of it; the range has to be there."""

    def __init__(self, trace: Trace, *, name: str, range_name: str | None = None) -> None:
        self.name = name  # such as the file's
        self.view = view = view_of(trace, range_name)
        self.timeline = view.trace.timeline  # of the view, to be drawn or written
        self._window_s = length_s(view.window)
        gpus = [usage for usage in view.usages if usage.name != OTHER_LANES]
        self.idle = {gpu.name: _idle(gpu, view.trace.calls) for gpu in gpus}
        # Those worth their cost, most expensive first, and the others.
        self.findings = findings_of(view, self.idle)
        # What tables and files show of each GPU; times in seconds.
        self.figures = {usage.name: self._figures_of(usage) for usage in view.usages}

    def _figures_of(self, usage: Usage) -> dict[str, Any]:
        kinds_s = {kind: length_s(when) for kind, when in usage.kinds.items()}
        behind = [kind for kind in ("copy", "communication") if kinds_s.get(kind)]
        causes = self.idle.get(usage.name, {})
        resource, bound_s = usage.bound
        return {
            "busy_s": usage.total_s,
            "idle_s": length_s(usage.idle),
            "lanes_busy_s": {lane: length_s(when) for lane, when in usage.lanes.items()},
            "kinds_busy_s": kinds_s,
            "hidden_s": {kind: usage.hidden_s(kind) for kind in behind},
            "exposed_s": {kind: kinds_s[kind] - usage.hidden_s(kind) for kind in behind},
            "lanes_at_once_s": {str(count): spent_s for count, spent_s in usage.at_once.items()},
            "gaps": len(usage.idle),
            "idle_by_cause_s": {
                cause: sum(gap.duration_s for gap in gaps) for cause, gaps in causes.items()
            },
            "bound": {"resource": resource, "seconds": bound_s},
        }

    def data(self) -> dict[str, Any]:
        """All figures, to be written as JSON; times in seconds from where the trace begins."""
        view, zero_s = self.view, self.view.start_s
        stretch = longest(view.nothing) if view.usages else None
        findings = []
        for finding in chain(*self.findings):
            spans = finding.evidence
            times = [(s.name, s.lane, s.start_s - zero_s, s.end_s - zero_s) for s in spans]
            shown = {"page": SITE + finding.page, "evidence": times}
            findings.append(finding._asdict() | shown)
        return {
            "name": self.name,
            "origin": view.trace.origin,
            "range": view.range_name,
            "occurrences": view.occurrences,
            "warnings": list(view.trace.warnings),
            "doubts": dict(view.trace.doubts),
            "window_s": self._window_s,
            "nothing_ran_s": length_s(view.nothing) if view.usages else None,
            "longest_nothing_s": [at_s - zero_s for at_s in stretch] if stretch else None,
            "gpus": self.figures,
            "findings": findings,
        }

    def sections(self) -> Iterator[Section]:
        """All that there is to say, in order."""
        yield Section(self.name, list(self._opening()), level=1)
        if self.timeline.spans:
            limit = f": {self.view.range_name}" if self.view.range_name is not None else ""
            drawing = draw(self.timeline, title=f"{self.name}{limit}")
            yield Section("What ran when", (drawing, lane_table(self.timeline, "Lanes")))
        if self.view.usages:
            yield Section("How far from the limit", self._bounds() + self._hidings())
            yield Section("How many lanes were busy at once", self._at_once())
            yield Section("When nothing ran", [self._nothing(), *self._idleness()])
            yield from self._why()

    def _opening(self) -> Iterator[str]:
        view, trace = self.view, self.view.trace
        if trace.origin:
            yield f"{trace.origin[0].upper()}{trace.origin[1:]}."
        if view.range_name is not None:
            times = "once" if view.occurrences == 1 else f"{view.occurrences:,} times"
            yield (
                f"Limited to {view.range_name!r}, which is there {times}, "
                f"{format_seconds(self._window_s)} in all: from each start to its end, "
                f"or to the end of the last work launched in it."
            )
        yield from (f"Warning: {warning}" for warning in trace.warnings)
        for place, why in trace.doubts.items():
            what = "nothing that depends on its calls" if place == "host" else "no time of it"
            yield f"In doubt: {place}: {what} is given. {why}"
        if not (view.usages or trace.doubts):
            yield (
                "No work of a GPU is in it. If there should be, record with ProfilerActivity.CUDA, "
                "or with nsys profile --trace=cuda,nvtx."
            )

    def _bounds(self) -> list[Table]:
        whole_s, rows = self._window_s, []
        for gpu, its in self.figures.items():
            resource, bound_s = its["bound"].values()
            times = (format_seconds(whole_s), like(its["busy_s"], whole_s), like(bound_s, whole_s))
            rows.append((gpu, *times, resource, percent(bound_s, whole_s)))
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
                times_s = (busy_s, hidden_s, its["exposed_s"][kind])
                times = (like(time_s, busy_s) for time_s in times_s)
                rows.append((gpu, kind, *times, percent(hidden_s, busy_s)))
        headers = ("GPU", "what", "busy", "hidden", "exposed", "hidden share")
        note = "Hidden: while the same GPU computed."
        return _table("Hidden behind computing", headers, rows, note)

    def _at_once(self) -> list[Table]:
        rows = [
            (gpu, count, like(spent_s, self._window_s), percent(spent_s, self._window_s))
            for gpu, its in self.figures.items()
            for count, spent_s in its["lanes_at_once_s"].items()
        ]
        headers = ("GPU", "lanes", "time", "share")
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
        rows = []
        for gpu, causes in self.idle.items():
            for cause, gaps in causes.items():
                idle_s = self.figures[gpu]["idle_by_cause_s"][cause]
                longest_s = max(gap.duration_s for gap in gaps)
                times = (format_seconds(idle_s), format_seconds(longest_s))
                share = percent(idle_s, self._window_s)
                rows.append((gpu, CAUSES[cause].title, f"{len(gaps):,}", *times, share))
        headers = ("GPU", "why it was idle", "gaps", "in all", "longest", "share of time")
        least = format_seconds(NOISE_S)
        note = f"Gaps of up to {least} are between any two kernels: they are not counted here."
        return _table("Idle time by cause", headers, rows, note)

    def _why(self) -> Iterator[Section]:
        expensive, cheap = self.findings
        said = (
            f"{len(expensive)} findings, the most expensive first; {len(cheap)} more cost less "
            f"than {100 * LEAST_SHARE:.0f} % of the time each. The same time may count in two "
            f"findings, and to mend one may bring out another."
        )
        if not expensive and not cheap:
            said = "No findings: nothing was seen that more overlap could save."
        yield Section("Why no more overlap?", [said])
        for number, finding in enumerate(expensive, start=1):
            share = percent(finding.cost_s, self._window_s)
            rows = [
                [shortened(span.name), span.lane, *self._clock(span.start_s, span.end_s)]
                for span in finding.evidence
            ]
            headers = ("evidence", "lane", "start", "end")
            evidence = _table(f"Where to look for {number}", headers, rows)
            cost = f"{format_seconds(finding.cost_s)}, {share} of the time"
            heading = f"{number}. {finding.where}: {finding.title}: {cost}"
            yield Section(heading, [finding.why, *evidence], 3, finding.page)

    def _clock(self, *times_s: float) -> list[str]:
        return [f"{1e3 * (time_s - self.view.start_s):.3f} ms" for time_s in times_s]


def _idle(gpu: Usage, calls: Sequence[ApiCall]) -> dict[str, list[Gap]]:
    """Cause -> its gaps, in the order of the causes."""
    gaps = grouped(gaps_of(gpu, calls), lambda gap: cause_of(gap, gpu))
    return {cause: gaps[cause] for cause in CAUSES if cause in gaps}


def _table(
    caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]], *notes: str
) -> list[Table]:
    return [tabulate(headers, rows, caption=caption, notes=notes)] if rows else []
