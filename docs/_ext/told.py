"""Told: figures of a record as words for sentences, which say so where what they rest on is noisy.

Pages that tell of times glue them by `tell`, and not by hand: a test of their form sees to that.
"""

import copy
from collections import UserDict

from myst_nb import glue

_origins: dict[str, None] = {}  # of the records that a page tells of, in the order of its numbers
_SCALES = {"ms": 1e3, "µs": 1e6, "%": 100}  # of seconds and shares; other units count


class _Noting(UserDict):
    """Measurements by label, and whether one that was asked for is noisy."""

    noisy = False

    def __getitem__(self, label):
        one = super().__getitem__(label)
        self.noisy = self.noisy or bool(one.warning)
        return one


def words(record, figure, form):
    """A figure as words.

    Args:
        record: The record that it is a figure of.
        figure: Gets the record, and returns a number; or a label, for the median in seconds.
        form: How the number is written, and its unit, as `.0f ms`.
    """
    asked = copy.copy(record)
    object.__setattr__(asked, "measurements", _Noting(record.measurements))
    value = asked.measurements[figure].median_s if isinstance(figure, str) else figure(asked)
    spec, unit = form.split(" ")
    text = f"{value * _SCALES.get(unit, 1):{spec}} {unit}"
    return f"{text} (noisy)" if asked.measurements.noisy else text


def tell(name, record, figure, form):
    """Glue the `words` of a figure under a name; no line ends before the unit."""
    _origins[record.origin] = None
    glue(name, words(record, figure, form).replace(" ", "\N{NO-BREAK SPACE}", 1), display=False)


def tell_origins():
    """Glue, as `origins`, where and when all was measured that a page has told of so far."""
    glue("origins", f"Numbers in sentences: {'; '.join(_origins)}", display=False)
