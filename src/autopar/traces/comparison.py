"""Comparison: two traces beside each other: what has changed from one to the other."""

from __future__ import annotations

from itertools import chain

from autopar.display.format import format_seconds
from autopar.display.table import tabulate
from autopar.traces.findings import CAUSES, LEAST_SHARE
from autopar.traces.report import Report, Section
from autopar.traces.trace import HOST


def comparison(before: Report, after: Report) -> Section:
    """What has changed from one trace to another: times, and what idle time is due to.

    Of a range it is the mean of each time, since one trace may have it more often. Of traces that
    were read in part, or are in doubt, the times alone: the rest may be missing.
    """
    reports = before, after
    said = [f"{before.name}: {remark}" for remark in before.remarks()]
    is_certain = not any(it.view.trace.is_cut or it.view.trace.doubts for it in reports)
    if not is_certain:
        said.append("No change is given: of what is damaged or in doubt, a part may be missing.")
    columns = [_told(report) for report in reports]
    least_s = LEAST_SHARE * max(told["", "time"] for told in columns)
    rows = []
    for gpu, words in dict.fromkeys(chain(*columns)):
        before_s, after_s = times_s = [told.get((gpu, words), 0.0) for told in columns]
        if max(times_s) < least_s:
            continue
        seen = zip(columns, reports, strict=True)
        whys = ["" if (gpu, words) in told else _missing(report, gpu) for told, report in seen]
        cells = [why or format_seconds(s) for why, s in zip(whys, times_s, strict=True)]
        change = f"{100 * (after_s / before_s - 1):+.1f} %" if before_s else "new"
        rows.append((words, *cells, "" if any(whys) else change))
    headers, shown = ("what", "before", "after", "change"), 3 + is_certain
    which = "each as a whole: --range compares steps"
    if before.view.range_name is not None:
        times = [f"{len(each.view.occurrences):,}" for each in reports]
        which = f"each time on average, of {times[0]} and of {times[1]}"
    caption = f"{before.name}, and then {after.name}: {which}"
    table = tabulate(headers[:shown], [row[:shown] for row in rows], caption=caption)
    return Section("Before and after", [*said, table], level=1)


def _told(report: Report) -> dict[tuple[str, str], float]:
    """GPU and words -> seconds: what a comparison has of one report."""
    nothing = {"busy_s": 0.0, "idle_s": report.window_s, "exposed_s": {}, "idle_by_cause_s": {}}
    told = {("", "time"): report.window_s}
    for gpu, its in (dict.fromkeys(report.view.gpus, nothing) | report.figures).items():
        told |= {(gpu, f"{gpu} {words}"): its[f"{words}_s"] for words in ("busy", "idle")}
        told |= {(gpu, f"{gpu} {sort} exposed"): s for sort, s in its["exposed_s"].items() if s}
        causes_s = its["idle_by_cause_s"]
        told |= {(gpu, f"{gpu}: {CAUSES[cause].title}"): s for cause, s in causes_s.items()}
    times = max(len(report.view.occurrences), 1)
    return {key: seconds / times for key, seconds in told.items()}


def _missing(report: Report, gpu: str) -> str:
    """Why a report has no time of a GPU, in two words; empty if that is none."""
    trace = report.view.trace
    if trace.is_cut or not trace.doubts.keys().isdisjoint({gpu, HOST, "GPUs"}):
        return "not known"
    return "" if gpu in {*report.view.gpus, *report.figures} else "not there"
