"""Progress: one line on the terminal while long work runs, and nothing where nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")
_QUIET_S = 1.0  # work that is over sooner needs no line


def progress(items: Sequence[_T], label: str) -> Iterator[_T]:
    """Yield the items, with a counter on standard error if that is a terminal.

    >>> list(progress("ab", "letters"))
    ['a', 'b']
    """
    shown = sys.stderr.isatty()
    start_s = time.perf_counter()
    drawn = False
    try:
        for done, item in enumerate(items):
            if shown and time.perf_counter() - start_s > _QUIET_S:
                print(
                    f"\r\x1b[K{label}: {done} of {len(items)}", end="", file=sys.stderr, flush=True
                )
                drawn = True
            yield item
    finally:
        if drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
