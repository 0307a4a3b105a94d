"""Command: `timeline FILE`: traces looked through and compared, reports as text or page."""

from __future__ import annotations

import html
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autopar.display.format import format_seconds, printable, shortened
from autopar.display.page import page
from autopar.display.table import Table, tabulate
from autopar.files import write_output
from autopar.traces.findings import CAUSES, HIDEABLE, LEAST_SHARE
from autopar.traces.ranks import Ranks, compare_ranks, gpus_of, side_by_side
from autopar.traces.read import read_evidence
from autopar.traces.report import TOP, Report, Section
from autopar.traces.trace import TraceError

VERSION = 7  # of the JSON; changed when what was there goes or means something else
DONE, UNREAD, TOO_FAR = 0, 1, 3  # exit status; 2 is for wrong arguments
STANDARD = Path("-")  # standard input, or output
_APART = "Each file is on its own clock: nothing is said of overlap between files."
_TEXT_WIDTH = 100
_NARROWEST = 8  # characters of a column
_CODE = re.compile("`([^`]+)`")
_ADDRESS = re.compile(r"https://autopar\S+")
_ENDINGS = (".json", ".json.gz", ".sqlite")  # what is taken from a folder; a file may have any


@dataclass(frozen=True)
class Options:
    """What is asked of traces."""

    range_name: str | None = None
    gpu: str | None = None
    top: int = TOP
    brief: bool = False  # the verdict alone
    list_ranges: bool = False
    compare: Path | None = None  # another trace, to compare with
    fail_under: float | None = None  # for the share of the lower bound in the time
    outputs: Mapping[str, Path] = field(default_factory=dict)  # `html`, `json` -> file


def inspect(files: Sequence[Path], options: Options = Options()) -> tuple[str, int]:
    """Report on trace files or folders of them, each on its own clock.

    Returns the text to print and the exit status: 0, 1 if nothing could be analysed or a file that
    was named could not be read, or not be held to a bound, 3 if a GPU is too far from its bound.
    """
    paths, outputs = _paths(files), options.outputs
    _require_own_files(outputs, [*paths, *([options.compare] if options.compare else [])])
    others = [*outputs, *["fail-under"] * (options.fail_under is not None)]
    if options.list_ranges and others:
        msg = f"--list-ranges only prints; got --{others[0]}. Leave one out."
        raise ValueError(msg)
    reports, errors = _reports(paths, files, options)
    left_out = [Section(f"Left out: {error}", [], level=3) for error in errors.values()]
    unread = [name for name, error in errors.items() if isinstance(error, TraceError)]
    read = UNREAD if {*unread} & {*map(str, files)} else DONE
    if options.list_ranges:
        return _shown([*(report.ranges() for report in reports), *left_out]), read
    first, ranks = _beside(reports, options)
    sections = [*first, *(section for report in reports for section in report.sections())]
    brief = (Section(each.name, [*each.verdict(), *each.remarks()], level=1) for each in reports)
    text = _shown([*([*first, *brief] if options.brief else sections), *left_out])
    for name, path in outputs.items():
        if name == "json":
            data = {"format": "autopar timeline", "version": VERSION}
            data |= {"ranks": ranks and ranks.data(), "traces": [it.data() for it in reports]}
            written = json.dumps(data, indent=1) + "\n"
        else:
            title = f"Timeline of {', '.join(report.name for report in reports)}"
            written = as_page(sections, title=title)
        try:
            write_output(str(path), written)
        except OSError as error:
            msg = f"--{name} {path}: {error.strerror or error}"
            raise ValueError(msg) from error
        text += printable(f"\nwrote {path}\n")
    # By a name that the system has for it, or by ours.
    if any(p == STANDARD or (p.exists() and p.samefile("/dev/stdout")) for p in outputs.values()):
        text = ""
    if options.fail_under is not None:
        why, status = _held(reports, unread, options.fail_under)
        if status:
            return f"{text}\n{_shown([Section(why, [], level=3)])}", status
    is_analysed = any(report.figures or len(report.view.ranges) for report in reports)
    return text, read if is_analysed else UNREAD


def _held(reports: Sequence[Report], unread: Sequence[str], least: float) -> tuple[str, int]:
    """Why not each GPU is as near to its lower bound as it has to be, and the exit status."""
    shares = {each.name: share for each in reports if (share := each.limit_share()) is not None}
    if (worst := min(shares.values(), default=least)) < least:
        shown = math.floor(1_000 * worst) / 10  # never as much as it is under
        return f"At least / time is {shown} %, which is under {100 * least:.6g} %.", TOO_FAR
    part = [it.name for it in reports if it.name not in shares or not it.view.trace.is_whole]
    names = ", ".join([*part, *unread])
    why = f"Damaged, in doubt or without work of a GPU, so not held to --fail-under: {names}."
    return (why, UNREAD) if names else ("", DONE)


def _paths(files: Sequence[Path]) -> list[Path]:
    """The files, and those in folders that may be traces, each once."""
    paths: dict[str, Path] = {}
    for file in files:
        inside = [file]
        if file.is_dir():  # but for other folders, and for pipes, which nobody may ever write to
            possible = (path for path in file.iterdir() if path.name.endswith(_ENDINGS))
            inside = sorted(path for path in possible if path.is_file() or not path.exists())
        for path in inside:
            paths.setdefault(os.path.realpath(path), path)
    return [*paths.values()]


def _require_own_files(outputs: Mapping[str, Path], paths: Sequence[Path]) -> None:
    """Refuse to write over what is read, or over another output."""
    taken = {os.path.realpath(path): "a file that is read" for path in paths if path != STANDARD}
    for name, path in outputs.items():
        place = os.path.realpath(path)
        if place in taken:
            expected = "a file of its own. Give it another name."
            msg = f"--{name} {path}: this is {taken[place]}, too; expected {expected}"
            raise ValueError(msg)
        if path.is_file() or not path.exists():  # a device may be written to several times
            taken[place] = f"what --{name} writes"


def _reports(
    paths: Sequence[Path], files: Sequence[Path], options: Options
) -> tuple[list[Report], dict[str, ValueError]]:
    """Reports, and why some files have none: a TraceError if they can't be read.

    Such a file doesn't end the rest, and in a folder may be no trace. Of several, not each has a
    range or a GPU.
    """
    names = [path.name for path in paths]
    most = sys.maxsize if options.list_ranges else options.top
    asked: Any = {"range_name": options.range_name, "gpu": options.gpu, "top": most}
    reports: list[Report] = []
    errors: dict[str, ValueError] = {}
    for path in paths:
        name = path.name if names.count(path.name) == 1 else str(path)
        try:
            if path == STANDARD and sys.stdin is None:
                msg = "standard input is closed; expected a trace there. Name a file."
                raise TraceError(msg)
            trace = read_evidence(path, sys.stdin.buffer if path == STANDARD else None)
            reports.append(Report(trace, name=name, **asked))
        except OSError as error:
            errors[str(path)] = TraceError(f"{path}: {error.strerror}")
        except TraceError as error:
            errors[str(path)] = error
        except ValueError as error:
            errors[str(path)] = ValueError(f"{name}: {error}")
    if not reports:
        nothing = TraceError(f"there is no trace in {', '.join(map(str, files))}.")
        raise [nothing, *errors.values()][-1]
    return reports, errors


def _beside(reports: Sequence[Report], options: Options) -> tuple[list[Section], Ranks | None]:
    """What is said of several reports together: before and after, or ranks side by side."""
    if options.compare:
        if len(reports) > 1:
            msg = f"--compare takes one FILE to hold against {options.compare}; got {len(reports)}."
            raise ValueError(msg)
        (before,), _ = _reports([options.compare], [options.compare], options)
        return [comparison(before, reports[0])], None
    if len(reports) == 1:
        return [], None
    ranks = compare_ranks(gpus := gpus_of({report.name: report.view for report in reports}))
    blocks = [*side_by_side(ranks, gpus), *[_APART] * (ranks is None)]
    return [Section("Side by side", blocks, level=1)], ranks


def comparison(before: Report, after: Report) -> Section:
    """What has changed from one trace to another: times, and what idle time is due to.

    Of a range it is the mean of each time, since one trace may have it more often. Of traces that
    were read in part, or are in doubt, nothing is given.
    """
    reports = before, after
    said = [f"{before.name}: {remark}" for remark in before.remarks()]
    if any(it.view.trace.is_cut or it.view.trace.doubts for it in reports):
        said.append("No change is given: of what is damaged or in doubt, a part may be missing.")
        return Section("Before and after", said, level=1)
    columns = [_told(report) for report in reports]
    least_s = LEAST_SHARE * max(told["time"] for told in columns)
    rows = []
    for words in columns[0] | columns[1]:
        before_s, after_s = times_s = [told.get(words) for told in columns]
        if max(s or 0.0 for s in times_s) < least_s:
            continue
        cells = ["not there" if s is None else format_seconds(s) for s in times_s]
        change = "" if None in times_s else "new"
        if before_s and after_s is not None:
            change = f"{100 * (after_s / before_s - 1):+.1f} %"
        rows.append((words, *cells, change))
    which = "each as a whole: --range compares steps"
    if before.view.range_name is not None:
        times = [f"{len(each.view.occurrences):,}" for each in reports]
        which = f"each time on average, of {times[0]} and of {times[1]}"
    caption = f"{before.name}, and then {after.name}: {which}"
    table = tabulate(("what", "before", "after", "change"), rows, caption=caption)
    return Section("Before and after", [*said, table], level=1)


def _told(report: Report) -> dict[str, float]:
    """Words -> seconds, of each GPU that is there: what a comparison has of one report."""
    nothing = {"busy_s": 0.0, "idle_s": report.window_s, "exposed_s": {}, "idle_by_cause_s": {}}
    told = {"time": report.window_s}
    for gpu, its in (dict.fromkeys(report.view.gpus, nothing) | report.figures).items():
        told |= {f"{gpu} {words}": its[f"{words}_s"] for words in ("busy", "idle")}
        told |= {f"{gpu} {sort} exposed": its["exposed_s"].get(sort, 0.0) for sort in HIDEABLE}
        causes_s = dict.fromkeys(CAUSES, 0.0) | its["idle_by_cause_s"]
        told |= {f"{gpu}: {CAUSES[cause].title}": s for cause, s in causes_s.items()}
    times = max(len(report.view.occurrences), 1)
    return {words: seconds / times for words, seconds in told.items()}


def _shown(sections: Iterable[Section]) -> str:
    """Sections as the terminal can show them."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return printable(as_text(sections)).encode(encoding, "replace").decode(encoding)


def as_text(sections: Iterable[Section]) -> str:
    """Sections for a terminal, in lines of at most 100 columns."""
    lines: list[str] = []
    for section in sections:
        lines += ["", heading := _filled(section.heading)]
        if beneath := {1: "=", 2: "-"}.get(section.level):
            lines.append(beneath * min(len(heading), _TEXT_WIDTH))
        for block in section.blocks:
            if isinstance(block, str):
                lines.append(_filled(block))
            else:
                lines += ["", str(_fitted(block) if isinstance(block, Table) else block)]
    return "\n".join(lines).strip() + "\n"


def _filled(text: str) -> str:
    is_cut = "https://" not in text  # an address stays whole
    return textwrap.fill(text, _TEXT_WIDTH, break_on_hyphens=False, break_long_words=is_cut)


def _fitted(table: Table) -> Table:
    """A table whose lines of text fit, its longest cells shortened."""
    widths = [max(map(len, cells)) for cells in zip(table.headers, *table.rows, strict=True)]
    while max(widths) > _NARROWEST and sum(widths) + 2 * (len(widths) - 1) > _TEXT_WIDTH:
        widths[widths.index(max(widths))] -= 1
    headers, *rows = (tuple(map(shortened, row, widths)) for row in (table.headers, *table.rows))
    caption, notes = _filled(table.caption), tuple(map(_filled, table.notes))
    return replace(table, headers=headers, rows=tuple(rows), caption=caption, notes=notes)


def as_page(sections: Iterable[Section], *, title: str) -> str:
    """Sections of one or more reports as an HTML document."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        level = section.level + 1
        parts.append(f"<h{level}>{html.escape(section.heading)}</h{level}>")
        for block in section.blocks:
            if isinstance(block, str):
                words = _CODE.sub(r"<code>\1</code>", html.escape(block))
                words = _ADDRESS.sub(r'<a href="\g<0>">\g<0></a>', words)
                parts.append(f"<p>{words}</p>")
            else:
                parts.append(block._repr_html_())
    return page(title, "\n".join(parts))
