"""Told: figures of a record as words for sentences, which say so where what they rest on is noisy.

Pages that tell of times glue them by `tell`, and not by hand: a test of their form sees to that.
"""

from myst_nb import glue

from autopar.records.claim import ByLabel
from autopar.records.record import Record

_numbers: dict[str, list[str]] = {}  # which a page tells of, by where and when they were measured
_SCALES = {"ms": 1e3, "µs": 1e6, "%": 100}  # of seconds and shares; other units count


class _Asked(Record):
    """A record whose measurements keep by which labels a figure has asked for them."""

    def _by_label(self):
        return self.measurements


def words(record, figure, form):
    """A figure as words.

    Args:
        record: The record that it is a figure of.
        figure: Gets the record, and returns a number; or a label, for the median in seconds.
        form: How the number is written, and its unit, as `.0f ms`.
    """
    asked, timed = _Asked(**vars(record)), ByLabel(record.measurements)
    object.__setattr__(asked, "measurements", timed)
    value = timed[figure].median_s if isinstance(figure, str) else figure(asked)
    is_noisy = any(record.measurements[label].warning for label in timed.asked)
    spec, unit = form.split(" ")
    text = f"{value * _SCALES.get(unit, 1):{spec}} {unit}"
    return f"{text} (noisy)" if is_noisy else text


def tell(name, record, figure, form):
    """Glue the `words` of a figure under a name; no line ends before the unit."""
    text = words(record, figure, form).replace(" ", "\N{NO-BREAK SPACE}", 1)
    _numbers.setdefault(record.origin, []).append(text.removesuffix(" (noisy)"))
    glue(name, text, display=False)


def tell_origins():
    """Glue, as `origins`, where and when all was measured that a page has told of so far.

    Where that is in several places, each but the one of most numbers has its own, as they stand in
    the sentences.
    """
    *few, most = sorted(_numbers, key=lambda place: len(_numbers[place]))
    said = [f"{', '.join(dict.fromkeys(_numbers[place]))}: {place}" for place in few]
    said.append(f"all others: {most}" if few else most)
    glue("origins", f"Numbers in sentences: {'; '.join(said)}", display=False)
