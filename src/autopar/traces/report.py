"""Report: what a trace shows: the answer first, then findings, then tables and a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from autopar.display.format import format_seconds, like, percent, shortened
from autopar.display.svg import Drawing, draw
from autopar.display.table import Table, tabulate
from autopar.timeline.intervals import length_s, length_within
from autopar.traces.findings import CAUSES, HIDEABLE, LEAST_SHARE, LEAST_SHARES, Finding, of_work
from autopar.traces.idle import Gaps, Host
from autopar.traces.trace import HOST, ONE_CYCLE, UNKNOWN, Trace
from autopar.traces.utilization import OTHER_LANES, View

TOP = 10  # findings, and rows of a table, unless more are asked for
_BAR = 10  # characters
_NAME = 44  # characters of a name, so that its times fit beside it
_MOST_DRAWN = 20_000  # spans; each takes 20 µs and a kilobyte until it is drawn
_NO_GPU = (
    "No work of a GPU is in it. If there should be, record with ProfilerActivity.CUDA, "
    f"or with nsys profile --trace=cuda,nvtx. {ONE_CYCLE}"
)
Block = str | Table | Drawing


class Section(NamedTuple):
    """A heading and what stands below it."""

    heading: str
    blocks: Sequence[Block]  # from the top
    level: int = 2  # 1 for a file, 2 for what is in it, 3 for a finding


def bar(part_s: float, whole_s: float) -> str:
    """A share as a percentage, and as a bar of characters; of no time it is none."""
    share = part_s / (whole_s or 1.0)
    filled = round(_BAR * min(max(share, 0.0), 1.0))
    return f"{percent(share):>7} {'#' * filled}{'.' * (_BAR - filled)}"


class Report:
    """What one trace shows, or some ranges or one GPU of it; see `View`."""

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
        self.view = View(trace, range_name, gpu)
        self.window_s = length_s(self.view.window)
        self._top = top
        self._gpus = [usage for usage in self.view.usages if usage.name != OTHER_LANES]
        drawn = self.view.trace.work, self.view.ranges
        # When what is drawn begins, in order; times in words count from the first.
        self._starts_s = np.sort(np.concatenate([records.times_s[:, 0] for records in drawn]))

    @cached_property
    def _host(self) -> Host:
        return Host(self.view.trace)

    @cached_property
    def _idle(self) -> list[Finding]:
        return [it for gpu in self._gpus for it in Gaps(self.view, gpu, self._host).findings()]

    @cached_property
    def findings(self) -> list[Finding]:
        """What less than all overlap costs, most expensive first, if that is worth a word."""
        usages = self.view.usages
        of_works = (of_work(self.view, usage, self._host.waits(usage)) for usage in usages)
        least_s = {key: LEAST_SHARES.get(key, LEAST_SHARE) * self.window_s for key in CAUSES}
        found = [it for it in chain(self._idle, *of_works) if it.cost_s >= least_s[it.cause]]
        return sorted(found, key=lambda finding: -finding.cost_s)

    @cached_property
    def figures(self) -> dict[str, dict[str, Any]]:
        """GPU -> its figures; times in seconds."""
        figures: dict[str, dict[str, Any]] = {}
        for usage in self.view.usages:
            busy_s = {sort: length_s(when) for sort, when in usage.sorts.items()}
            hidden_s = {sort: usage.hidden_s(sort) for sort in HIDEABLE if busy_s.get(sort)}
            causes_s = {it.cause: it.idle_s for it in self._idle if it.where == usage.name}
            figures[usage.name] = {
                "busy_s": length_s(usage.busy),
                "idle_s": length_s(usage.idle),
                "lanes_busy_s": {lane: length_s(when) for lane, when in usage.lanes.items()},
                "kinds_busy_s": busy_s,
                "hidden_s": hidden_s,
                "exposed_s": {sort: busy_s[sort] - time_s for sort, time_s in hidden_s.items()},
                "gaps": len(usage.idle),
                "idle_by_cause_s": causes_s,
                "bound": dict(zip(("resource", "seconds"), usage.bound, strict=True)),
            }
        return figures

    def limit_share(self) -> float | None:
        """The lower bound over the time, of the GPU that is farthest from it; None without GPUs."""
        bounds_s = [usage.bound[1] for usage in self._gpus]
        return min(bounds_s) / self.window_s if bounds_s else None

    def data(self) -> dict[str, Any]:
        """All figures, to be written as JSON; times in seconds from where the trace begins."""
        trace, start_s, findings = self.view.trace, self.view.start_s, []
        for finding in self.findings:
            cause, seen = CAUSES[finding.cause], finding.evidence
            words = {"title": cause.title, "remedy": cause.remedy, "page": cause.page}
            spans = [(it.name, it.lane, it.start_s - start_s, it.end_s - start_s) for it in seen]
            findings.append(finding._asdict() | words | {"evidence": spans})
        return {
            "name": self.name,
            "origin": trace.origin,
            "verdict": self.verdict(),
            "range": self.view.range_name,
            "occurrences": self._occurrences(),
            "warnings": list(trace.warnings),
            "doubts": dict(trace.doubts),
            "start_s": trace.zero_s + start_s,  # on the clock of its file
            "window_s": self.window_s,
            "gpus": self.figures,
            "findings": findings,
        }

    def verdict(self) -> list[str]:
        """The answer in a few sentences: how busy, how far from the limit, and why."""
        said = []
        for top in self.findings[:1]:
            cost = f"{format_seconds(top.cost_s)} ({percent(top.cost_s, self.window_s)})"
            cause = CAUSES[top.cause]
            said.append(f"Most is lost on {top.where}, {cost}: {cause.title}. {cause.remedy}")
        if not self._gpus and self.view.gpus:
            return [self._did_nothing(self.view.gpus)]
        seen = self._gpus or self.view.usages
        if not seen:
            is_doubtful = any(place != HOST for place in self.view.trace.doubts)
            return said if is_doubtful else [_NO_GPU]
        busy_s = sorted(length_s(usage.busy) for usage in seen)
        shares = dict.fromkeys(percent(busy_s[i], self.window_s) for i in (0, -1))
        name = seen[0].name if len(seen) == 1 else f"{len(seen)} GPUs"
        busy = f"{name} busy for {' to '.join(shares)} of {format_seconds(self.window_s)}."
        if not self._gpus:
            return [busy, *said]
        resource, bound_s = max((gpu.bound for gpu in self._gpus), key=lambda bound: bound[1])
        copying = f"copying {resource.rpartition(' copies ')[2]}".replace(" host", " the host")
        alone = "computing" if resource == "compute" else copying
        lines = [
            busy,
            f"The same work takes at least {format_seconds(bound_s)}: that is its {alone} alone, "
            "with kernels and copies as fast as here.",
        ]
        return [*lines, *(said or ["No findings: nothing is certain that keeps it from that."])]

    def sections(self) -> Iterator[Section]:
        """All that there is to say, in order."""
        view = self.view
        yield Section(self.name, [*self.verdict(), *self._opening(), *self.remarks()], level=1)
        yield from self._why()
        named = not view.usages and len(view.ranges) and view.range_name is None
        parts: dict[str, Sequence[Block]] = {
            "How far from the limit": self._bounds() + self._hidings(),
            "What was named": self.ranges().blocks if named else [],
            "Each time": self._each_time(),
            "What ran when": self._drawing(),
            "When nothing ran": self._idleness(),
        }
        yield from (Section(heading, blocks) for heading, blocks in parts.items() if blocks)

    def _opening(self) -> Iterator[str]:
        view, trace = self.view, self.view.trace
        if view.range_name is not None:
            said = f"Limited to {view.range_name!r}, {len(view.occurrences):,} in all"
            yield f"{said}, to the end of the work launched in it."
        idle = [name for name in view.gpus if name not in self.figures]
        if idle and self._gpus:
            yield self._did_nothing(idle)
        if view.usages and not (trace.work.launches != UNKNOWN).any():
            yield "It has no launches: why a GPU was idle can't be told from it."

    def _did_nothing(self, gpus: Sequence[str]) -> str:
        """What is said of GPUs that worked outside of a range only."""
        more = f" and {len(gpus) - 1:,} more" * (len(gpus) > 1)
        return f"{gpus[0]}{more} did nothing in {self.view.range_name!r}, as far as was recorded."

    def remarks(self) -> Iterator[str]:
        """What was left out, of what no figure is given, and why."""
        yield from (f"Warning: {warning}" for warning in self.view.trace.warnings)
        for place, why in self.view.trace.doubts.items():
            what = "nothing that depends on its calls" if place == HOST else "no time of it"
            yield f"In doubt: {place}: {what} is given. {why}"

    def _why(self) -> Iterator[Section]:
        if not self.findings:
            return
        said = (
            f"Findings of {percent(LEAST_SHARE)} of the time or more. Two of them may count the "
            "same time, so what they could save does not add up. Times count from the left end of "
            "the picture; what was before that has a minus."
        )
        if len(self.findings) > self._top:
            said += f" Shown are {self._top}: --top {len(self.findings)} shows all."
        yield Section("Why no more overlap?", [said])
        headers = ("evidence", "lane", "start", "end")
        for number, finding in enumerate(self.findings[: self._top], start=1):
            cause, share = CAUSES[finding.cause], percent(finding.cost_s, self.window_s)
            rows = [
                (shortened(it.name, _NAME), it.lane, *self._clock(it.start_s, it.end_s))
                for it in finding.evidence
            ]
            caption = f"Where to look for {number}"
            evidence = [tabulate(headers, rows, caption=caption)] if rows else []
            cost = f"{format_seconds(finding.cost_s)}, {share} of the time"
            heading = f"{number}. {finding.where}: {cause.title}: {cost}"
            words = finding.why, cause.remedy, f"How to mend it: {cause.page}"
            yield Section(heading, [*words, *evidence], level=3)

    def _bounds(self) -> list[Table]:
        headers = ("GPU", "busy", "at least", "busiest", "at least / time")
        note = (
            f"Of {format_seconds(self.window_s)}. At least: how long the busiest resource works, "
            "computing or copies in one direction. As fast and as many at once as here, no order "
            "of them takes less. Communication is not in it: it may be waiting."
        )
        rows, whole_s = [], self.window_s
        for it in self.view.usages:
            busy, (resource, bound_s) = bar(length_s(it.busy), whole_s), it.bound
            rows.append((it.name, busy, like(bound_s, whole_s), resource, bar(bound_s, whole_s)))
        return self._table("The time against its lower bound", headers, rows, note)

    def _hidings(self) -> list[Table]:
        headers = ("GPU", "what", "busy", "hidden", "exposed", "hidden share")
        note = "Hidden: while the same GPU computed. Copies within a GPU are not among them."
        rows = []
        for gpu, its in self.figures.items():
            for sort, hidden_s in its["hidden_s"].items():
                busy_s = its["kinds_busy_s"][sort]
                times = (like(time_s, busy_s) for time_s in (busy_s, hidden_s, busy_s - hidden_s))
                rows.append((gpu, sort, *times, bar(hidden_s, busy_s)))
        return self._table("Hidden behind computing", headers, rows, note)

    def _occurrences(self) -> list[dict[str, float]]:
        """Each range, in seconds, and how long GPUs were busy in it, on average of those seen."""
        ranges, usages = self.view.occurrences, self._gpus or self.view.usages
        columns = {"start_s": ranges.times_s[:, 0] - self.view.start_s}
        columns["duration_s"] = ranges.lengths_s
        if usages:
            busy_s = [length_within(usage.busy, *ranges.times_s.T) for usage in usages]
            columns["busy_s"] = np.mean(busy_s, axis=0)
        rows = np.column_stack([*columns.values()]).tolist()
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _each_time(self) -> list[Table]:
        spans, rows = self.view.occurrences.spans(), []
        for number, (span, times) in enumerate(zip(spans, self._occurrences(), strict=True), 1):
            busy = [bar(times["busy_s"], span.duration_s)] if "busy_s" in times else []
            times_s = *self._clock(span.start_s), format_seconds(span.duration_s)
            rows.append((f"{number}: {shortened(span.name, _NAME)}", *times_s, *busy))
        headers = ("range", "start", "time", "busy")[: len(rows[0]) if rows else 0]
        notes = ["Busy is of all GPUs on average."] * bool(self._gpus)
        return self._table("Each time that the range is there", headers, rows, *notes)

    def _drawing(self) -> list[Block]:
        view, starts_s, said = self.view, self._starts_s, []
        trace = replace(view.trace, host=view.ranges)
        if len(starts_s) > _MOST_DRAWN:
            end_s = starts_s[_MOST_DRAWN]
            length = format_seconds(end_s - starts_s[0])
            said = [f"Drawn are the first {length}: --range shows others."]
            work, ranges = (one[one.times_s[:, 0] < end_s] for one in (trace.work, trace.host))
            trace = replace(trace, work=work, host=ranges)
        title = self.name if view.range_name is None else f"{self.name}: {view.range_name}"
        return [*said, draw(trace.timeline, title=title)] if len(starts_s) else []

    def _idleness(self) -> list[Table]:
        headers = ("GPU", "what happened meanwhile", "gaps", "in all", "share of time")
        note = (
            "Each gap is split over all that happened in it. A finding has what is saved without "
            "its cause: more where the host gets ahead, less while another GPU is at work."
        )
        rows = [
            (it.where, CAUSES[it.cause].title, f"{it.gaps:,}", format_seconds(it.idle_s), share)
            for it in sorted(self._idle, key=lambda it: -it.idle_s)
            for share in [bar(it.idle_s, self.window_s)]
        ]
        return self._table("Idle time, and what happened meanwhile", headers, rows, note)

    def ranges(self) -> Section:
        """The names that a program gave, with how often and how long each was there."""
        named, rows = self.view.ranges.parts(lambda tag: tag.name), []
        for name, its in sorted(named.items(), key=lambda item: -item[1].lengths_s.sum()):
            times = (format_seconds(float(s)) for s in (its.lengths_s.sum(), its.lengths_s.max()))
            rows.append((name, f"{len(its):,}", *times))
        headers = ("range", "times", "in all", "longest")
        table = self._table(f"Ranges of {self.name}", headers, rows)
        return Section(self.name, table or ["It has no named ranges."], level=1)

    def _table(
        self, caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]], *notes: str
    ) -> list[Table]:
        """A table of the first rows, if there are any."""
        if len(rows) > self._top:
            more = f"And more rows, {len(rows):,} in all: --top {len(rows)} shows them."
            rows, notes = rows[: self._top], (more, *notes)
        return [tabulate(headers, rows, caption=caption, notes=notes)] if rows else []

    def _clock(self, *times_s: float) -> list[str]:
        zero_s = self._starts_s[0] if len(self._starts_s) else self.view.start_s
        return [f"{1e3 * (time_s - zero_s):.3f} ms" for time_s in times_s]
