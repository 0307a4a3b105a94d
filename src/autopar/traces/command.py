"""Command: `timeline FILE`: traces looked through, and reports written as text or page."""

from __future__ import annotations

import html
import json
import sys
import textwrap
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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
    """Report on trace files, each on its own clock, and return the reports as text.

    Args:
        files: Traces, or folders of them.
        range_name: An NVTX or `record_function` range to limit the reports to.
        outputs: `html`, `json` or `trace` -> the file to write.

    Raises:
        ValueError: A file can't be read as a trace, or none has such a range.
        OSError: A file can't be opened or written.
    """
    outputs = outputs or {}
    for path in outputs.values():  # before minutes are spent on reading
        if not path.parent.is_dir():
            where = str(path.parent)
            msg = f"there is no folder {where!r} to write {path.name!r} to; make it first."
            raise FileNotFoundError(msg)
    reports, left_out = _reports(_traces_in(files), {*files}, range_name)
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


def _traces_in(files: Iterable[Path]) -> dict[str, Path]:
    """What a file is called -> the file, folders opened; each once."""
    paths: dict[Path, None] = {}
    for path in files:
        inside = [path]
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.name.endswith(_ENDINGS))
        if not inside:
            msg = f"there is no trace in {str(path)!r}: no file that ends in {', '.join(_ENDINGS)}."
            raise TraceError(msg)
        paths |= dict.fromkeys(inside)
    names = [path.name for path in paths]
    return {path.name if names.count(path.name) == 1 else str(path): path for path in paths}


def _reports(
    named: Mapping[str, Path], asked_for: Container[Path], range_name: str | None
) -> tuple[list[Report], list[str]]:
    """Reports, and why files of a folder have none: it may hold files that are no traces."""
    reports, left_out = [], []
    for name, path in named.items():
        try:
            reports.append(Report(read_evidence(path), name=name, range_name=range_name))
        except ValueError as error:
            why = str(error) if str(path) in str(error) else f"{path}: {error}"
            if not isinstance(error, TraceError) or path in asked_for:
                raise type(error)(why) from error
            left_out.append(why)
    if not reports:
        msg = f"no file in the folder can be read as a trace; of the first: {left_out[0]}"
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
    heading = f"<h1>{html.escape(title)}</h1>"
    return page(title, "\n".join([heading, *map(_section, sections)]))


def _section(section: Section) -> str:
    level, address = section.level + 1, html.escape(SITE + section.page)
    parts = [f"<h{level}>{html.escape(section.heading)}</h{level}>"]
    for block in section.blocks:
        if isinstance(block, str):
            parts.append(f"<p>{html.escape(block)}</p>")
        else:
            parts.append(block._repr_html_())
    if section.page:
        parts.append(f'<p>How to mend it: <a href="{address}">{address}</a></p>')
    return "\n".join(parts)
