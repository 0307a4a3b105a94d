"""Comparison: measurements beside each other and beside their limit, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from autopar.display.format import NOTHING, figures, format_seconds, like, percent
from autopar.display.table import SHARE, Table, tabulate
from autopar.refusal import several
from autopar.timing.measurement import Limit, Measurement, limits_of, require_label

Measurements = Iterable[Measurement] | Mapping[str, Measurement]

_STAR = " *"


def compare(
    measurements: Measurements,
    *,
    limit_s: Limit = None,
    limit_name: str = "limit",
    baseline: str | None = None,
    parts: Sequence[str] = (),
    highlight: str | None = None,
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
        highlight: The label of the row that the reader is to look at, shown bold.
        caption: What the table shows, in words.

    Raises:
        ValueError: There is nothing to compare, a label comes twice from one place, or a limit
            or the baseline or a part names a label that is not there.

    >>> serial = Measurement("serial", (0.188, 0.189, 0.190))
    >>> overlapped = Measurement("overlapped", (0.140, 0.140, 0.142))
    >>> print(compare([serial, overlapped], limit_s=0.131, baseline="serial"))
    work          median  limit / time     limit  spread (IQR)  speed-up
    ----------  --------  ------------  --------  ------------  --------
    serial      189.0 ms        69.3 %  131.0 ms        1.0 ms    1.00 ×
    overlapped  140.0 ms        93.6 %  131.0 ms        1.0 ms    1.35 ×
    speed-up: over serial
    """
    chosen = distinct(measurements)
    labels = [one.label for one in chosen]
    named = [("parts", part) for part in several("parts", parts, "labels, as in parts=['add'].")]
    for argument, label in (*named, ("highlight", highlight), ("baseline", baseline)):
        if label is not None:
            require_label(argument, label, labels)
    if limit_s is not None and not isinstance(limit_s, Mapping):  # parts do less than it is of
        limit_s = dict.fromkeys([label for label in labels if label not in parts], limit_s)
    limits = limits_of(labels, limit_s)
    shares = [limit and limit / one.median_s for limit, one in zip(limits, chosen, strict=True)]
    # Where one has a star the others get its width in spaces, so that the digits stay aligned.
    room = len(_STAR) if any(one.warning for one in chosen) else 0
    medians = [
        format_seconds(one.median_s) + (_STAR if one.warning else " " * room) for one in chosen
    ]
    columns = {
        "work": labels,
        "median": medians,
        limit_name + SHARE: _known(percent, shares),
        limit_name: _known(format_seconds, limits),
        "spread (IQR)": [like(one.iqr_s, one.median_s) for one in chosen],
        "TFLOP/s": _known(figures, (one.tflops_per_s for one in chosen)),
        "GB/s": _known(figures, (one.gb_per_s for one in chosen)),
        "speed-up": _known("{:.2f} ×".format, _speedups(chosen, baseline, parts)),
    }
    filled = {name: cells for name, cells in columns.items() if set(cells) != {NOTHING}}
    notes = [f"* {one.label}: {one.warning}" for one in chosen if one.warning]
    if any(share and round(share, 3) > 1 for share in shares):
        notes.append(
            f"over 100 %: faster than its {limit_name}; one of measured times has a spread, too"
        )
    if baseline is not None:
        notes.append(f"speed-up: over {baseline}")
    rows, origins = zip(*filled.values(), strict=True), [one.origin for one in chosen]
    table = tabulate(list(filled), rows, caption=caption, origin=origins, notes=notes)
    return replace(
        table,
        shares=tuple(shares) if any(shares) else (),
        parts=tuple(parts),
        highlight=highlight or "",
    )


def distinct(measurements: Measurements) -> tuple[Measurement, ...]:
    """The measurements as a tuple, refused if a reader could not tell one from another."""
    measurements = getattr(measurements, "measurements", measurements)  # as of a record
    if isinstance(measurements, Mapping):
        measurements = measurements.values()
    expected = "several, or a mapping whose values they are. Put one into a list: compare([it])."
    chosen = several("measurements", measurements, expected, Measurement)
    counts = Counter((one.label, one.origin) for one in chosen)
    if not chosen or max(counts.values()) > 1:
        twice = [f"{label!r} of {origin!r}" for (label, origin), n in counts.items() if n > 1]
        came = f"has several with label {', '.join(twice)}" if twice else "is empty"
        msg = f"measurements {came}; expected one or more, each with a label of its own."
        raise ValueError(msg)
    return chosen


def _known(written: Callable[[float], str], values: Iterable[float | None]) -> list[str]:
    return [NOTHING if value is None else written(value) for value in values]


def _speedups(
    measurements: Sequence[Measurement], baseline: str | None, parts: Sequence[str]
) -> list[float | None]:
    bases = {one.origin: one for one in measurements if one.label == baseline}
    # Compare on one machine where the baseline was measured there, else with the only one.
    only = next(iter(bases.values())) if len(bases) == 1 else None
    pairs = [(one, bases.get(one.origin, only)) for one in measurements]
    return [
        one.speedup_over(base) if base and one.label not in parts else None for one, base in pairs
    ]
