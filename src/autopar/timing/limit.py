"""Limit: the least time that work can take, which a measured time is held against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real

Limit = float | Mapping[str, float] | None


def check_limit(limit_s: float, argument: str = "limit_s") -> float:
    """Refuse a limit that no time can be held against.

    Raises:
        ValueError: It is not a finite number above zero.
    """
    if not isinstance(limit_s, Real) or not (math.isfinite(limit_s) and limit_s > 0):
        msg = (
            f"{argument} is {limit_s!r}; expected seconds, finite and above zero. Compute it from "
            f"the work and a known peak rate, or leave it out."
        )
        raise ValueError(msg)
    return float(limit_s)


def limits_of(labels: Sequence[str], limit_s: Limit) -> tuple[float | None, ...]:
    """The limit for each label in seconds, None where it has none.

    Args:
        labels: What was measured.
        limit_s: One limit for all, or label -> seconds, or None.

    Raises:
        ValueError: A limit is not a finite number above zero, or is for a label not there.

    >>> limits_of(["serial", "overlapped"], {"overlapped": 0.131})
    (None, 0.131)
    """
    if not isinstance(limit_s, Mapping):
        return (None if limit_s is None else check_limit(limit_s),) * len(labels)
    checked = {}
    for label, limit in limit_s.items():
        require_label("limit_s", label, labels)
        checked[label] = check_limit(limit, f"limit_s[{label!r}]")
    return tuple(checked.get(label) for label in labels)


def require_label(argument: str, label: str, labels: Sequence[str]) -> None:
    """Refuse a label under which nothing was measured.

    Raises:
        ValueError: It is none of `labels`; the message lists them.
    """
    if label not in labels:
        known = ", ".join(repr(one) for one in dict.fromkeys(labels))
        msg = f"{argument} names {label!r}, under which nothing was measured; expected {known}."
        raise ValueError(msg)
