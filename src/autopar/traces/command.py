"""Command: `timeline FILE`: traces looked through, and reports written as text or page."""

from __future__ import annotations

import html
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autopar.display.format import printable
from autopar.display.page import page
from autopar.files import write_atomically
from autopar.timeline.chrome_trace import trace_bytes
from autopar.timeline.span import Timeline
from autopar.traces.read import read_evidence, uncollected
from autopar.traces.report import SITE, Report, Section
from autopar.traces.trace import TraceError

_TEXT_WIDTH = 100
_ENDINGS = (".json", ".json.gz", ".sqlite")  # what is taken from a folder; a file may have any


@uncollected()
def inspect(
    files: Sequence[Path], range_name: str | None = None, outputs: Mapping[str, Path] | None = None
) -> str:
    """Report on trace files or folders of them, each on its own clock; return the text.

    `outputs` has the files to write besides, by `html`, `json` or `trace`.
    """
    outputs, paths = outputs or {}, _paths(files)
    _require_own_files(outputs, paths)
    reports, left_out = _reports(files, paths, range_name)
    sections = [section for report in reports for section in report.sections()]
    text = as_text(sections) + "".join(f"\nLeft out: {why}\n" for why in left_out)
    if len(reports) > 1:
        text += "\nEach file is on its own clock: nothing is said of overlap between files.\n"
    title = f"Timeline of {', '.join(report.name for report in reports)}"
    formats: dict[str, Callable[[], str | bytes]] = {
        "html": lambda: as_page(sections, title=title),
        "json": lambda: json.dumps([report.data() for report in reports], indent=1) + "\n",
        "trace": lambda: trace_bytes(_merged(reports, title)),
    }
    for name, path in outputs.items():
        write_atomically(path, formats[name]())
        text += f"\nwrote {path}\n"
    encoding = sys.stdout.encoding or "utf-8"
    return printable(text).encode(encoding, "replace").decode(encoding)


def _paths(files: Sequence[Path]) -> list[Path]:
    """The files, and those in folders that may be traces, each once."""
    paths: dict[Path, None] = {}
    for file in files:
        inside = sorted(file.iterdir()) if file.is_dir() else [file]
        paths |= dict.fromkeys(p for p in inside if p is file or p.name.endswith(_ENDINGS))
    return [*paths]


def _require_own_files(outputs: Mapping[str, Path], paths: Sequence[Path]) -> None:
    """Refuse to write over what is read, or over another output."""
    taken = {path.resolve() for path in paths}
    for name, path in outputs.items():
        if path.resolve() in taken:
            msg = (
                f"--{name} {path}: this file is read, or is another output, too; expected a file "
                f"of its own. Give it another name."
            )
            raise ValueError(msg)
        taken.add(path.resolve())


def _reports(
    files: Sequence[Path], paths: Sequence[Path], range_name: str | None
) -> tuple[list[Report], list[str]]:
    """Reports, and why files of a folder have none: it may hold files that are no traces."""
    names = [path.name for path in paths]
    reports, left_out = [], []
    for path in paths:
        name = path.name if names.count(path.name) == 1 else str(path)
        try:
            reports.append(Report(read_evidence(path), name=name, range_name=range_name))
        except TraceError as error:
            if path in files:
                raise
            left_out.append(str(error))
        except ValueError as error:
            msg = f"{path}: {error}"
            raise ValueError(msg) from error
    if not reports:
        why = left_out or [f"no file ends in {', '.join(_ENDINGS)}"]
        msg = f"there is no trace in {', '.join(map(str, files))}: {why[0]}"
        raise TraceError(msg)
    return reports, left_out


def _merged(reports: Sequence[Report], title: str) -> Timeline:
    """One timeline: side by side and each from its own beginning, as the clocks are different."""
    if len(reports) == 1:
        return reports[0].timeline
    spans = [
        replace(span, lane=f"{report.name}: {span.lane}")
        for report in reports
        for span in report.timeline.rebased().spans
    ]
    return Timeline(tuple(spans), origin=title)


def as_text(sections: Iterable[Section]) -> str:
    """Sections for a terminal."""
    lines: list[str] = []
    for section in sections:
        beneath = {1: "=", 2: "-"}.get(section.level)
        lines += ["", section.heading, *([beneath * len(section.heading)] if beneath else [])]
        for block in section.blocks:
            if isinstance(block, str):
                block = textwrap.fill(
                    block, _TEXT_WIDTH, break_long_words=False, break_on_hyphens=False
                )
            lines.append(f"{block}\n")
        lines += [f"How to mend it: {SITE}{section.page}\n"] if section.page else []
    return "\n".join(lines).strip() + "\n"


def as_page(sections: Iterable[Section], *, title: str) -> str:
    """Sections of one or more reports as an HTML document."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        level = section.level + 1
        parts.append(f"<h{level}>{html.escape(section.heading)}</h{level}>")
        for block in section.blocks:
            if isinstance(block, str):
                parts.append(f"<p>{html.escape(block)}</p>")
            else:
                parts.append(block._repr_html_())
        if section.page:
            address = html.escape(SITE + section.page)
            parts.append(f'<p>How to mend it: <a href="{address}">{address}</a></p>')
    return page(title, "\n".join(parts))
