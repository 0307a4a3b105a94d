"""Table: rows of figures that print as aligned text and render as HTML, with their origin."""

from __future__ import annotations

import html
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.display.format import NOTHING, figures, like, percent
from autopar.display.origin import badge, origins_of, short_names
from autopar.timing.measurement import Limit, Measurement, format_seconds, limits_of, require_label

Measurements = Iterable[Measurement] | Mapping[str, Measurement]

_STAR = " *"
_MEETS = {"at least": operator.ge, "at most": operator.le}
# What is said around a wide table stays in view on a telephone when its columns scroll.
_STAYS = (
    "display:block;position:sticky;left:0;width:fit-content;max-width:min(100%,85vw);"
    "text-align:left"
)
_SMALL = "margin:0.25em 0;font-size:0.875em"
# A number, then at most one word for its unit. "2 x NVIDIA H200" is words, "1.2 ms *" a number.
_NUMBER = re.compile(r"(under |over )?[-+]?\d[\d.,]*(e[-+]?\d+)?( ?[^\s\d]\S{0,8})?(\s\*|\s\s)?")


@dataclass(frozen=True, repr=False)
class Table:
    """Cells as text, what is said around them, and the measurements they came from.

    `compare` and `tabulate` make tables; `print` shows one as text, a notebook or a gallery page
    as HTML. The first column names its row; a column of numbers is aligned to the right.

    Args:
        headers: One name for each column.
        rows: Cells as strings, as many in each row as there are headers.
        caption: What the table shows, in words.
        origins: Where and when the figures were taken, each once.
        notes: Lines to print beneath.
        measurements: What the rows were derived from, one for each, if they were measured.
        limits_s: The limit of each of these in seconds, or None where there is none.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    origins: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    limits_s: tuple[float | None, ...] = ()

    def __str__(self) -> str:
        """The table as aligned text, its origins and notes beneath."""
        grid = (self.headers, *self.rows)
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines = [self._text_line(cells, widths) for cells in grid]
        lines.insert(1, "  ".join("-" * width for width in widths))
        above = [self.caption] if self.caption else []
        return "\n".join([*above, *lines, *self.origins, *self.notes])

    __repr__ = __str__

    def _text_line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        parts = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, self._numeric, strict=True)
        )
        return "  ".join(parts).rstrip()

    @property
    def _numeric(self) -> list[bool]:
        columns = zip(*self.rows, strict=True)
        return [i > 0 and _is_numeric(column) for i, column in enumerate(columns)]

    def _repr_html_(self) -> str:
        name = html.escape(self.caption or f"Table of {self.headers[0]}")
        words = " ".join([html.escape(self.caption), *map(badge, self.origins)]).strip()
        caption = f'<caption><span style="{_STAYS}">{words}</span></caption>' if words else ""
        head = "".join(
            f'<th scope="col"{_aligned(right)}>{html.escape(header)}</th>'
            for header, right in zip(self.headers, self._numeric, strict=True)
        )
        body = "\n".join(f"<tr>{self._html_cells(cells)}</tr>" for cells in self.rows)
        notes = "".join(
            f'<p class="autopar-note" style="{_STAYS};{_SMALL}">{html.escape(note)}</p>'
            for note in self.notes
        )
        # A box that scrolls sideways must be reachable by keyboard, hence tabindex and a name.
        return (
            f'<div class="autopar-table-box" tabindex="0" role="region" aria-label="{name}" '
            f'style="overflow-x:auto">\n<table class="autopar-table">{caption}\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>{notes}\n</div>"
        )

    def _html_cells(self, cells: Sequence[str]) -> str:
        shown = [f'<th scope="row"{_aligned(right=False)}>{html.escape(cells[0])}</th>']
        for cell, right in zip(cells[1:], self._numeric[1:], strict=True):
            text = html.escape(cell)
            if right:  # a number and its unit stay on one line
                text = text.replace(" ", "&nbsp;")
            shown.append(f"<td{_aligned(right)}>{text}</td>")
        return "".join(shown)


def tabulate(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    origin: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """Put figures that are already text into a table.

    Args:
        headers: One name for each column.
        rows: Cells as strings, the name of the row first.
        caption: What the table shows, in words.
        origin: Where and when the figures were taken, in words.
        notes: Lines to print beneath.

    Raises:
        ValueError: There are no rows, or one is longer or shorter than the headers.

    >>> print(tabulate(["link", "GB/s"], [["PCIe 5.0 x16", "63.0"], ["NVLink 4", "450"]]))
    link          GB/s
    ------------  ----
    PCIe 5.0 x16  63.0
    NVLink 4       450
    """
    cells = tuple(tuple(str(cell) for cell in row) for row in rows)
    if not cells or not headers:
        msg = f"got {len(headers)} headers and {len(cells)} rows; expected at least one of each."
        raise ValueError(msg)
    for i, row in enumerate(cells):
        if len(row) != len(headers):
            msg = (
                f"rows[{i}] has {len(row)} cells, {row}; expected {len(headers)}, one for each of "
                f"the headers {', '.join(headers)}."
            )
            raise ValueError(msg)
    return Table(tuple(headers), cells, caption, (origin,) if origin else (), tuple(notes))


def against_goals(
    rows: Iterable[tuple[str, float, str, float, Callable[[float], str]]],
    *,
    caption: str = "",
    origin: str = "",
) -> Table:
    """Put figures beside the goals that were set for them, and say in words which are missed.

    Args:
        rows: What a figure is of, the figure, `at least` or `at most`, its goal, and what makes
            text of both numbers.
        caption: What the table shows, in words.
        origin: Where and when the figures were taken, in words.

    Raises:
        ValueError: There are no rows, or a goal is neither `at least` nor `at most` a number.

    >>> rows = [("copies, of their limit", 0.981, "at least", 0.99, "{:.1%}".format)]
    >>> print(against_goals(rows))
    benchmark               reached  goal            verdict
    ----------------------  -------  --------------  -------
    copies, of their limit    98.1%  at least 99.0%  missed
    """
    cells = []
    for name, reached, bound, goal, text in rows:
        if bound not in _MEETS:
            msg = f"the goal of {name!r} is {bound!r} a number; expected 'at least' or 'at most'."
            raise ValueError(msg)
        met = _MEETS[bound](reached, goal)
        shown = text(reached)
        if not met and shown == text(goal):  # rounded to a goal that was missed
            shown = f"{'under' if bound == 'at least' else 'over'} {shown}"
        cells.append((name, shown, f"{bound} {text(goal)}", "met" if met else "missed"))
    headers = ["benchmark", "reached", "goal", "verdict"]
    return tabulate(headers, cells, caption=caption, origin=origin)


def compare(
    measurements: Measurements,
    *,
    limit_s: Limit = None,
    limit_name: str = "limit",
    baseline: str | None = None,
    parts: Sequence[str] = (),
    caption: str = "",
) -> Table:
    """Put measurements beside each other, and beside the limit.

    Args:
        measurements: Measurements, or a mapping whose values they are.
        limit_s: The least time possible in seconds: one for every row, or label -> seconds.
        limit_name: Its column's header: `estimate`, say, for one that a time may well beat.
        baseline: The label to which a speed-up is given.
        parts: Labels of parts of the work; doing less, they have no speed-up.
        caption: What the table shows, in words.

    Raises:
        ValueError: There is nothing to compare, a label comes twice from one place, or a limit
            or the baseline or a part names a label that is not there.

    >>> serial = Measurement("serial", (0.188, 0.189, 0.190))
    >>> overlapped = Measurement("overlapped", (0.140, 0.140, 0.142))
    >>> print(compare([serial, overlapped], limit_s=0.131, baseline="serial"))
    work          median  spread (IQR)     limit  limit / time  speed-up
    ----------  --------  ------------  --------  ------------  --------
    serial      189.0 ms        1.0 ms  131.0 ms        69.3 %    1.00 x
    overlapped  140.0 ms        1.0 ms  131.0 ms        93.6 %    1.35 x
    speed-up: over serial
    """
    chosen = distinct(measurements)
    limits = limits_of([one.label for one in chosen], limit_s)
    columns = {
        "work": [one.label for one in chosen],
        "where": _where(chosen),
        "median": _starred(chosen),
        "spread (IQR)": [like(one.iqr_s, one.median_s) for one in chosen],
        "TFLOP/s": [_rate(one.tflops_per_s) for one in chosen],
        "GB/s": [_rate(one.gb_per_s) for one in chosen],
        limit_name: [format_seconds(limit) if limit else NOTHING for limit in limits],
        f"{limit_name} / time": [
            percent(limit, one.median_s) if limit else NOTHING
            for limit, one in zip(limits, chosen, strict=True)
        ],
        "speed-up": _speedups(chosen, baseline, parts),
    }
    known = {name: cells for name, cells in columns.items() if set(cells) != {NOTHING}}
    notes = [f"* {one.label}: {one.warning}" for one in chosen if one.warning]
    notes += [f"speed-up: over {baseline}"] if baseline is not None else []
    table = tabulate(list(known), zip(*known.values(), strict=True), caption=caption, notes=notes)
    return replace(table, origins=origins_of(chosen), measurements=chosen, limits_s=limits)


def distinct(measurements: Measurements) -> tuple[Measurement, ...]:
    """The measurements as a tuple, refused if a reader could not tell one from another.

    Raises:
        ValueError: There are none, or two with one label and one origin.
        TypeError: Something among them is not a Measurement.
    """
    values = measurements.values() if isinstance(measurements, Mapping) else measurements
    chosen = tuple(values)
    if not chosen:
        msg = "measurements is empty; expected at least one. Pass what measure() returned."
        raise ValueError(msg)
    for one in chosen:
        if not isinstance(one, Measurement):
            msg = f"measurements contains {one!r}; expected a Measurement, as measure() returns."
            raise TypeError(msg)
    for (label, origin), count in Counter((one.label, one.origin) for one in chosen).items():
        if count > 1:
            msg = (
                f"measurements has {count} with label {label!r} and origin {origin!r}; expected "
                f"each once. Give each its own label."
            )
            raise ValueError(msg)
    return chosen


def _rate(value: float | None) -> str:
    return NOTHING if value is None else figures(value)


def _starred(measurements: Sequence[Measurement]) -> list[str]:
    # Where one has a star the others get its width in spaces, so that the digits stay aligned.
    room = len(_STAR) if any(one.warning for one in measurements) else 0
    return [
        format_seconds(one.median_s) + (_STAR if one.warning else " " * room)
        for one in measurements
    ]


def _where(measurements: Sequence[Measurement]) -> list[str]:
    origins = [one.origin for one in measurements]
    if len(set(origins)) == 1:  # the badge says it for all of them
        return [NOTHING] * len(origins)
    return short_names(origins, NOTHING)


def _speedups(
    measurements: Sequence[Measurement], baseline: str | None, parts: Sequence[str]
) -> list[str]:
    for part in parts:
        require_label("parts", part, [one.label for one in measurements])
    if baseline is None:
        return [NOTHING] * len(measurements)
    require_label("baseline", baseline, [one.label for one in measurements])
    bases = {one.origin: one for one in measurements if one.label == baseline}
    # Compare on one machine where the baseline was measured there, else with the only one.
    only = next(iter(bases.values())) if len(bases) == 1 else None
    pairs = ((one, bases.get(one.origin, only)) for one in measurements)
    return [
        f"{one.speedup_over(base):.2f} x" if base and one.label not in parts else NOTHING
        for one, base in pairs
    ]


def _is_numeric(cells: Iterable[str]) -> bool:
    known = [cell for cell in cells if cell.strip() not in ("", NOTHING)]
    return bool(known) and all(_NUMBER.fullmatch(cell) for cell in known)


def _aligned(right: bool) -> str:
    # In place, so that a notebook, which has style rules of its own, aligns them too.
    return ' class="num" style="text-align:right"' if right else ' style="text-align:left"'
