"""Intervals: sets of times as arrays, fast enough for a million of them.

An array of shape (n, 2) holds starts and ends. A *set* is disjoint, in order, and has no interval
of zero length: what `covered` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.float64]
Seconds = npt.NDArray[np.float64]  # of one axis


def intervals_of(spans: Iterable[Any]) -> Intervals:
    """Starts and ends in seconds of spans, calls, or whatever has both."""
    return as_array([(span.start_s, span.end_s) for span in spans])


def as_array(pairs: Sequence[tuple[float, float]]) -> Intervals:
    """Pairs of start and end as an array, also where there are none."""
    return np.asarray(pairs, dtype=np.float64).reshape(-1, 2)


def busy_s(spans: Iterable[Any]) -> float:
    """Seconds in which at least one of some spans was running."""
    return length_s(covered(intervals_of(spans)))


def covered(intervals: Intervals) -> Intervals:
    """The set of times that at least one of the intervals covers."""
    kept = intervals[intervals[:, 1] > intervals[:, 0]]
    kept = kept[np.argsort(kept[:, 0], kind="stable")]
    reached = np.maximum.accumulate(kept[:, 1])
    first = np.flatnonzero(kept[:, 0] > np.append(-np.inf, reached)[:-1])
    last = np.append(first, len(kept))[1:] - 1
    return np.column_stack((kept[first, 0], reached[last]))


def common(first: Intervals, second: Intervals) -> Intervals:
    """Where two sets both cover."""
    return clipped(first, second)[1]


def without(first: Intervals, second: Intervals) -> Intervals:
    """Where the first set covers and the second does not."""
    bounds = np.concatenate(([-np.inf], second.ravel(), [np.inf]))
    return common(first, bounds.reshape(-1, 2))


def length_s(intervals: Intervals) -> float:
    """Total length of a set."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def length_within(intervals: Intervals, starts_s: Seconds, ends_s: Seconds) -> Seconds:
    """Of a set, how many seconds lie between each start and the end that goes with it."""
    sums_s = np.append(0.0, np.cumsum(intervals[:, 1] - intervals[:, 0]))
    reached_s = np.append(-np.inf, intervals[:, 1])

    def until(times_s: Seconds) -> Seconds:
        begun = np.searchsorted(intervals[:, 0], times_s, side="right")
        return sums_s[begun] - np.maximum(reached_s[begun] - times_s, 0.0)

    return np.maximum(until(ends_s) - until(starts_s), 0.0)


def clipped(intervals: Intervals, windows: Intervals) -> tuple[npt.NDArray[np.int64], Intervals]:
    """The parts of intervals, in any order, that lie within a set, and which each is a part of."""
    first = np.searchsorted(windows[:, 1], intervals[:, 0], side="right")
    last = np.searchsorted(windows[:, 0], intervals[:, 1], side="left")
    counts = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(intervals)), counts)
    within = windows[np.arange(len(which)) + np.repeat(first - counts.cumsum() + counts, counts)]
    starts_s = np.maximum(within[:, 0], intervals[which, 0])
    return which, np.column_stack((starts_s, np.minimum(within[:, 1], intervals[which, 1])))
