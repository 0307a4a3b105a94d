"""Inspection: trace files read, looked through, and written as what was asked for."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autopar import plot
from autopar.evidence import TraceError
from autopar.report import Report, as_data, as_text, report_of
from autopar.reportpage import as_page, printable
from autopar.span import Timeline
from autopar.storage import write_atomically
from autopar.svg import as_svg, draw
from autopar.tracefile import read_evidence, uncollected
from autopar.traces import write_trace

_ENDINGS = (".json", ".json.gz", ".sqlite")  # what is taken from a folder; a file may have any


def inspect(
    files: Sequence[Path], range_name: str | None = None, outputs: Mapping[str, Path] | None = None
) -> str:
    """Report on trace files, each on its own clock, and return the reports as text.

    Args:
        files: Traces, or folders of them.
        range_name: An NVTX or `record_function` range to limit the reports to.
        outputs: `html`, `png`, `svg`, `json` or `trace` -> the file to write.

    Raises:
        ValueError: A file can't be read as a trace, none has such a range, or there is nothing to
            draw.
        OSError: A file can't be opened or written.
    """
    outputs = outputs or {}
    for path in outputs.values():  # before minutes are spent on reading
        if not path.parent.is_dir():
            where = str(path.parent)
            msg = f"there is no folder {where!r} to write {path.name!r} to; make it first."
            raise FileNotFoundError(msg)
    with uncollected():
        text = _inspected(files, range_name, outputs)
    encoding = sys.stdout.encoding or "utf-8"
    return printable(text).encode(encoding, "replace").decode(encoding)


def _inspected(files: Sequence[Path], range_name: str | None, outputs: Mapping[str, Path]) -> str:
    found = _traces_in(files)
    reports, left_out = _reports(found, {*files}, range_name)
    sections = [section for report in reports for section in report.sections()]
    text = as_text(sections) + "".join(f"\nLeft out: {why}\n" for why in left_out)
    if len(reports) > 1:
        text += "\nEach file is on its own clock: nothing is said of overlap between files.\n"
    for ending, path in outputs.items():
        if ending == "html":
            write_atomically(path, as_page(sections, title=_title(found)))
        else:
            _WRITERS[ending](reports, path)
        text += f"\nwrote {path}\n"
    return text


def _traces_in(files: Iterable[Path]) -> dict[str, Path]:
    """What a file is called -> the file, folders opened; each once."""
    paths: list[Path] = []
    for path in files:
        if not path.is_dir():
            paths.append(path)
            continue
        inside = sorted(one for one in path.iterdir() if one.name.endswith(_ENDINGS))
        if not inside:
            msg = f"there is no trace in {str(path)!r}: no file that ends in {', '.join(_ENDINGS)}."
            raise TraceError(msg)
        paths += inside
    names = [path.name for path in dict.fromkeys(paths)]
    return {
        path.name if names.count(path.name) == 1 else str(path): path
        for path in dict.fromkeys(paths)
    }


def _reports(
    found: Mapping[str, Path], asked_for: Container[Path], range_name: str | None
) -> tuple[list[Report], list[str]]:
    """Reports, and why files of a folder have none: it may hold files that are no traces."""
    reports, left_out = [], []
    for name, path in found.items():
        try:
            reports.append(_report(path, name, range_name))
        except TraceError as error:
            if path in asked_for:
                raise
            left_out.append(str(error))
    if not reports:
        msg = f"no file in the folder can be read as a trace; of the first: {left_out[0]}"
        raise TraceError(msg)
    return reports, left_out


def _report(path: Path, name: str, range_name: str | None) -> Report:
    try:
        return report_of(read_evidence(path), name=name, range_name=range_name)
    except ValueError as error:
        if str(path) in str(error):
            raise
        msg = f"{path}: {error}"
        raise type(error)(msg) from error


def _drawn(reports: Iterable[Report]) -> dict[str, Timeline]:
    named = {report.name: report.timeline for report in reports if report.timeline.spans}
    if not named:
        msg = "there is nothing to draw: no span is left whose times can be given."
        raise ValueError(msg)
    return named if len(named) > 1 else {"": next(iter(named.values()))}


def _write_svg(reports: Sequence[Report], path: Path) -> None:
    picture = as_svg(draw(_drawn(reports), title=_heading(reports)))
    write_atomically(path, printable(picture) + "\n")


def _write_png(reports: Sequence[Report], path: Path) -> None:
    named = {_label(name): _lettered(one) for name, one in _drawn(reports).items()}
    heading = _label(_heading(reports))
    with warnings.catch_warnings():
        # That a font lacks a letter of some lane's name is shown by a box in its place.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        if len(named) > 1:
            axes = plot.timelines(named, title=heading)[0]
        else:
            axes = plot.timeline(named[""], title=heading)
        plot.save(axes, path)


def _label(words: str) -> str:
    return printable(words).replace("$", r"\$")  # which would begin a formula


def _lettered(timeline: Timeline) -> Timeline:
    """The timeline with lanes called as a figure can write them; matplotlib fails on others."""
    if all(lane == printable(lane) for lane in timeline.lanes):
        return timeline
    spans = (replace(span, lane=printable(span.lane)) for span in timeline.spans)
    return replace(timeline, spans=tuple(spans))


def _write_json(reports: Sequence[Report], path: Path) -> None:
    write_atomically(path, json.dumps([as_data(report) for report in reports], indent=1) + "\n")


def _write_trace(reports: Sequence[Report], path: Path) -> None:
    if len(reports) == 1:
        write_trace(reports[0].timeline, path)
        return
    # Side by side, each from its own beginning: their clocks have nothing to do with each other.
    spans = [
        replace(span, lane=f"{report.name}: {span.lane}")
        for report in reports
        for span in report.timeline.rebased().spans
    ]
    write_trace(Timeline(tuple(spans), origin=_heading(reports)), path)


_WRITERS = {"png": _write_png, "svg": _write_svg, "json": _write_json, "trace": _write_trace}


def _title(names: Iterable[str]) -> str:
    return f"Timeline of {', '.join(names)}"


def _heading(reports: Iterable[Report]) -> str:
    return _title(report.name for report in reports)
