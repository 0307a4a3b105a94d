"""Table: rows of figures, or measurements beside their limit, as aligned text and as HTML."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from autopar.display.format import (
    NOTHING,
    badge,
    figures,
    format_seconds,
    like,
    median_of,
    percent,
    printable,
    short_origins,
    times_as_fast,
)
from autopar.refusal import several
from autopar.timing.measurement import Limit, Measurement, limits_of, require_labels

Measurements = Iterable[Measurement] | Mapping[str, Measurement]

_ROWS = "a list of cells for each row, as in rows=[['PCIe 5.0 x16', '63.0']]."
# What is said around a wide table stays in view on a telephone when its columns scroll.
_STAYS = (
    "display:block;position:sticky;left:0;width:fit-content;max-width:min(100%,85vw);"
    "text-align:left"
)
_SHARE = " / time"  # how the name of a column ends whose cells have bars
_BAR = "linear-gradient(to right,rgb(59 118 196/30%) {}%,transparent 0)"
_NUMERIC, _ALIGN = 'class="num" ', ("text-align:left", "text-align:right")
_SMALL = "margin:0.25em 0;font-size:0.875em"
_DRAWN = re.compile(r" *(\d[\d.]*) %( [#.]+)?")  # a share, and its bar of characters
# A number, then at most one word for its unit. "2 × NVIDIA H200" is words, "1.2 ms *" a number.
_NUMBER = re.compile(
    r"(under |over )?[-+]?\d[\d.,]*(e[-+]?\d+)?( ?[^\s\d]\S{0,8})?(\s\*|\s\s)?|" + _DRAWN.pattern
)
_PERCENT = re.compile(r"(?<=\d)%")


@dataclass(frozen=True, repr=False)
class Table:
    """Cells as text, and what is said around them.

    `compare` and `tabulate` make tables; `print` shows one as text, a notebook or a gallery page
    as HTML. The first column names its row; a column of numbers is aligned to the right.

    >>> import autopar as ap
    >>> ap.tabulate(["link", "GB/s"], [["PCIe 5.0 x16", "63.0"]]).headers
    ('link', 'GB/s')
    """

    headers: tuple[str, ...]  #: One name for each column.
    rows: tuple[tuple[str, ...], ...]  #: Cells as text, as many in each row.
    caption: str = ""  #: What it shows, in words.
    origins: tuple[str, ...] = ()  #: Where and when the figures were taken, each once.
    notes: tuple[str, ...] = ()  #: Lines beneath.
    parts: tuple[str, ...] = ()  #: Names of rows that are shown paler, being parts of the others.
    highlight: tuple[str, ...] = ()  #: Names of rows that are shown bold.

    def __str__(self) -> str:
        """The table as aligned text, its origins and notes beneath."""
        columns = []
        for right, *column in zip(self._numeric, self.headers, *self.rows, strict=True):
            width = max(map(len, column))
            cells = (column[0], "-" * width, *column[1:])
            columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in cells])
        lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
        lines = [*[self.caption] * bool(self.caption), *lines, *self.origins, *self.notes]
        return printable("\n".join(lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        name = html.escape(self.caption or f"Table of {self.headers[0]}")
        words = " ".join([html.escape(self.caption), *map(badge, self.origins)]).strip()
        caption = f'<caption><span style="{_STAYS}">{words}</span></caption>' if words else ""
        head = "".join(map(_header, ["col"] * len(self.headers), self.headers, self._numeric))
        body = "\n".join(map(self._row, self.rows))
        notes = "".join(
            f'<p class="autopar-note" style="{_STAYS};{_SMALL}">{html.escape(note)}</p>'
            for note in self.notes
        )
        # A box that scrolls sideways must be reachable by keyboard, hence tabindex and a name.
        return printable(
            f'<div class="autopar-table-box" tabindex="0" role="group" aria-label="{name}" '
            f'style="overflow-x:auto">\n<table class="autopar-table">{caption}\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>{notes}\n</div>"
        )

    def _row(self, row: Sequence[str]) -> str:
        cells = _header("row", row[0], right=False)
        for header, cell, right in zip(self.headers[1:], row[1:], self._numeric[1:], strict=True):
            cells += _cell(cell, right, barred=header.endswith(_SHARE))
        looks = dict.fromkeys(self.highlight, "font-weight:bold")
        looks |= dict.fromkeys(self.parts, "opacity:0.7")
        look = f' style="{looks[row[0]]}"' if row[0] in looks else ""
        return f"<tr{look}>{cells}</tr>"

    @cached_property
    def _numeric(self) -> list[bool]:
        """Of each column, whether it is of numbers; the first names the rows."""
        _, *others = zip(*self.rows, strict=True)
        filled = [[cell for cell in cells if cell.strip() not in ("", NOTHING)] for cells in others]
        return [False, *(bool(cells and all(map(_NUMBER.fullmatch, cells))) for cells in filled)]


def _header(scope: str, text: str, right: bool) -> str:
    # In place, so that a notebook, which has style rules of its own, aligns them too.
    look = f'{_NUMERIC * right}style="{_ALIGN[right]}"'
    return f'<th scope="{scope}" {look}>{html.escape(text)}</th>'


def _cell(text: str, right: bool, *, barred: bool) -> str:
    """A cell as HTML, with a bar for a share if it is to have one."""
    bar, share = "", _DRAWN.fullmatch(text)
    if share and (barred or share[2]):  # bars of characters are for terminals
        text, bar = f"{share[1]} %", f"background:{_BAR.format(min(float(share[1]), 100.0))};"
    words = html.escape(text)
    words = words.replace(" ", "&nbsp;") if right else words  # a number and its unit on one line
    return f'<td {_NUMERIC * right}style="{bar}{_ALIGN[right]}">{words}</td>'


def tabulate(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    origin: str | Sequence[str] = "",
    notes: Sequence[str] = (),
    highlight: Sequence[str] = (),
) -> Table:
    """Make a table of figures that are text already.

    Args:
        headers: One name for each column.
        rows: Cells as text, as many as there are headers; the first names its row.
        caption: What the table shows, in words.
        origin: Where and when the figures were taken: one for all rows, or one for each row,
            which says its own where they differ.
        notes: Lines to print beneath.
        highlight: Names of the rows that the reader is to look at, shown bold; a note has their
            cells.

    Raises:
        TypeError: `headers`, `rows`, a row, `notes` or `highlight` is a string, or nothing that has
            several.
        ValueError: There are no rows, one is longer or shorter than the headers, or one to look at
            is not there.

    >>> import autopar as ap
    >>> print(ap.tabulate(["link", "GB/s"], [["PCIe 5.0 x16", "63.0"], ["NVLink 4", "450"]]))
    link          GB/s
    ------------  ----
    PCIe 5.0 x16  63.0
    NVLink 4       450
    """
    headers = several("headers", headers, "a list of names, one for each column.", str)
    notes = several("notes", notes, "a list of lines, as in notes=['* noisy'].", str)
    cells = [
        tuple(_PERCENT.sub(" %", str(cell)) for cell in several(f"rows[{i}]", row, _ROWS))
        for i, row in enumerate(several("rows", rows, _ROWS))
    ]
    if not cells:
        msg = "rows is empty; expected at least one. Measure something first."
        raise ValueError(msg)
    for i, row in enumerate(cells):
        if len(row) != len(headers):
            expected = f"{len(headers)}, one for each of the headers {', '.join(headers)}"
            msg = f"rows[{i}] has {len(row)} cells, {row}; expected {expected}."
            raise ValueError(msg)
    named = {row[0]: row for row in reversed(cells)}
    highlight = several("highlight", highlight, "names of rows, as in highlight=['NVLink 4'].")
    require_labels("highlight", highlight, [*named])
    if highlight:
        told = (f"{name!r}: {_told(headers[1:], named[name][1:])}" for name in highlight)
        notes = (f"Look at {'; '.join(told)}.", *notes)
    origins = [origin] * len(cells) if isinstance(origin, str) else origin
    if len(set(origins)) > 1:
        headers, places = (headers[0], "where", *headers[1:]), short_origins(origins)
        cells = [(row[0], place, *row[1:]) for row, place in zip(cells, places, strict=True)]
    origins = tuple(dict.fromkeys(filter(None, origins)))
    return Table(headers, tuple(cells), caption, origins, notes, highlight=highlight)


def _told(headers: Sequence[str], cells: Sequence[str]) -> str:
    """The cells of a row as words, each with its header if there are several."""
    pairs = zip(headers, map(str.strip, cells), strict=True)
    named = (f"{header} {cell}".strip() for header, cell in pairs if cell != NOTHING)
    return ", ".join(named) if len(cells) > 1 else "".join(cells)


def compare(
    measurements: Measurements,
    *,
    limit_s: Limit = None,
    limit_name: str = "limit",
    baseline: str | None = None,
    parts: Sequence[str] = (),
    highlight: str | Sequence[str] | None = None,
    caption: str = "",
) -> Table:
    """Put measurements beside each other, and beside the limit.

    Args:
        measurements: Measurements, or what has them: a mapping's values, findings, a record.
        limit_s: The least time possible in seconds: one for every row but those of parts, or
            label -> seconds.
        limit_name: Its column's header: `estimate`, say, for one that a time may well beat.
        baseline: The label to which a speed-up is given.
        parts: Labels of parts of the work, shown paler; doing less, they have no speed-up.
        highlight: The label of the row that the reader is to look at, or those of several, shown
            bold; a note has their figures. Without it that is the row of most speed-up or, with no
            baseline, the one furthest from its limit: it has the most to gain.
        caption: What the table shows, in words.

    Raises:
        ValueError: There is nothing to compare, a label comes twice from one place, or a limit
            or the baseline or a part names a label that is not there; of the findings a check has
            failed.

    >>> import autopar as ap
    >>> serial = ap.Measurement("serial", (0.188, 0.189, 0.190))
    >>> overlapped = ap.Measurement("overlapped", (0.140, 0.140, 0.142))
    >>> print(ap.compare([serial, overlapped], limit_s=0.131, baseline="serial"))
    work          median  speed-up  limit / time     limit  spread (IQR)
    ----------  --------  --------  ------------  --------  ------------
    serial      189.0 ms    1.00 ×        69.3 %  131.0 ms        1.0 ms
    overlapped  140.0 ms    1.35 ×        93.6 %  131.0 ms        1.0 ms
    Look at 'overlapped': 140.0 ms, 1.35 × the speed of 'serial', the limit is 93.6 % of its time.
    """
    chosen = distinct(measurements)
    labels = [one.label for one in chosen]
    parts = several("parts", parts, "labels, as in parts=['add'].")
    if isinstance(highlight, str):
        highlight = (highlight,)
    elif highlight is not None:
        highlight = several("highlight", highlight, "a label, or several in a list.", str)
    require_labels("highlight", highlight or (), labels)
    require_labels("baseline", [] if baseline is None else [baseline], labels)
    require_labels("parts", parts, labels)
    if limit_s is not None and not isinstance(limit_s, Mapping):  # parts do less than it is of
        limit_s = dict.fromkeys([label for label in labels if label not in parts], limit_s)
    limits = limits_of(labels, limit_s)
    shares = [limit and limit / one.median_s for limit, one in zip(limits, chosen, strict=True)]
    of = {one.origin: one for one in chosen if one.label == baseline}
    only = next(iter(of.values())) if len(of) == 1 else None
    over = [None if one.label in parts else of.get(one.origin, only) for one in chosen]
    pairs = zip(chosen, over, strict=True)
    speedups = [one.speedup_over(base) if base else None for one, base in pairs]
    noisy = [one for one in chosen if one.warning]
    stars = [(" *" if one.warning else "  ") * bool(noisy) for one in chosen]  # digits stay aligned

    def known(written: Callable[[float], str], values: Iterable[float | None]) -> list[str]:
        return [NOTHING if value is None else written(value) for value in values]

    columns = {
        "work": labels,
        "median": [format_seconds(one.median_s) + s for one, s in zip(chosen, stars, strict=True)],
        # Before the others: on a telephone the last columns have to be scrolled to.
        "speed-up": known(times_as_fast, speedups),
        limit_name + _SHARE: known(percent, shares),
        limit_name: known(format_seconds, limits),
        "spread (IQR)": [like(one.iqr_s, one.median_s) for one in chosen],
        "TFLOP/s": known(figures, (one.tflops_per_s for one in chosen)),
        "GB/s": known(figures, (one.gb_per_s for one in chosen)),
    }
    filled = {name: cells for name, cells in columns.items() if {*cells} != {NOTHING}}
    notes = []
    bold = [labels.index(label) for label in highlight or ()]
    if highlight is None:
        bold = _worth_a_look(shares, speedups)
        bold = [at for at in bold if not 0 < (speedups[at] or 0) - 1 <= chosen[at].spread]
    looks, is_said = [], baseline is None  # over what a speed-up is
    for at in bold:
        told = [median_of(chosen[at])]
        if (speedup := speedups[at]) and labels[at] != baseline:
            told.append(f"{times_as_fast(speedup)} the speed of {baseline!r}")
            is_said = True
        if share := shares[at]:
            told.append(f"the {limit_name} is {percent(share)} of its time")
        looks.append(f"{labels[at]!r}: {', '.join(told)}")
    if looks:
        notes.append(f"Look at {'; '.join(looks)}.")
    if noisy:  # the column of spreads tells each one's
        worst = max(noisy, key=attrgetter("spread"))
        up_to = "over up to" if len(noisy) > 1 else "over"
        notes.append(f"* {worst.warning.replace('over', up_to)}")
    if any(share and round(share, 3) > 1 for share in shares):
        spread = "one made of measured times has a spread, too"
        notes.append(f"over 100 %: faster than its {limit_name}; {spread}")
    if not is_said:
        notes.append(f"speed-up: over {baseline!r}")
    rows, origins = zip(*filled.values(), strict=True), [one.origin for one in chosen]
    table = tabulate(list(filled), rows, caption=caption, origin=origins, notes=notes)
    return replace(table, parts=parts, highlight=tuple(labels[at] for at in bold))


def _worth_a_look(shares: Sequence[float | None], speedups: Sequence[float | None]) -> list[int]:
    """The fastest row beside a baseline; without one that furthest from its limit, if any has."""
    for best, values in ((max, speedups), (min, shares)):
        if of := {value: i for i, value in enumerate(values) if value is not None}:
            return [of[best(of)]]
    return []


def distinct(measurements: Measurements) -> tuple[Measurement, ...]:
    """The measurements as a tuple, refused if a reader could not tell one from another."""
    if failed := getattr(measurements, "failed", ()):  # of findings
        came = f"measurements is of findings of which a check failed: {', '.join(failed)}"
        msg = f"{came}; expected findings whose checks all hold. Mend the ways until they do."
        raise ValueError(msg)
    measurements = getattr(measurements, "measurements", measurements)  # as of a record
    if isinstance(measurements, Mapping):
        measurements = measurements.values()
    expected = "several, or a mapping whose values they are. Put one into a list: compare([it])."
    chosen = several("measurements", measurements, expected, Measurement)
    counts = Counter((one.label, one.origin) for one in chosen)
    twice = [f"{label!r} of {origin!r}" for (label, origin), count in counts.items() if count > 1]
    if twice or not chosen:
        none = "is empty, as those of findings are of which a check failed"
        came = f"has several with label {', '.join(twice)}" if twice else none
        msg = f"measurements {came}; expected one or more, each with a label of its own."
        raise ValueError(msg)
    return chosen
