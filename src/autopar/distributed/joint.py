"""Joint findings: what all ranks found, as one: the slowest counts, and all are seen together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autopar.records.record import Findings
from autopar.refusal import several
from autopar.timeline.span import Timeline
from autopar.timing.measurement import Measurement


def findings_of_ranks(each: Sequence[Findings]) -> Findings:
    """Make one of the findings of several ranks, which did the same at the same time.

    A sample is the time of the slowest rank, and its operations and bytes are those of all. The
    timelines of the ranks stand in one, their lanes named after the ranks; the ranges of the host
    are left out. A check holds if it fails on no rank. Of values the largest is kept.

    Args:
        each: The findings of each rank, in the order of the ranks, as `on_ranks` returns them.

    Raises:
        ValueError: There are none, or the ranks have measured or seen different things.

    >>> import autopar as ap
    >>> one, two = (ap.Findings([ap.Measurement("step", (s, s, s))]) for s in (1.0, 2.0))
    >>> ap.findings_of_ranks([one, two]).measurements[0].median_s
    2.0
    """
    each = several("each", each, "the findings of each rank, in a list.", Findings)
    labels = [
        [*(one.label for one in it.measurements), *sorted(it.timelines), *sorted(it.values)]
        for it in each
    ]
    if not each or any(other != labels[0] for other in labels):
        msg = f"the ranks have measured {labels}; expected the same, in the same order, on each."
        raise ValueError(msg)
    first = each[0]
    return Findings(
        [
            _slowest(ways)
            for ways in zip(*(findings.measurements for findings in each), strict=True)
        ],
        {
            label: _above_each_other([it.timelines[label] for it in each])
            for label in first.timelines
        },
        joint_checks([it.checks for it in each]),
        {name: max(it.values[name] for it in each) for name in first.values},
        {name: content for findings in each for name, content in findings.files.items()},
    )


def joint_checks(each: Sequence[Mapping[str, bool]]) -> dict[str, bool]:
    """All checks that ranks have made, each held if it fails on none of them."""
    labels = [check for checks in each for check in checks]
    return {check: all(checks.get(check, True) for checks in each) for check in labels}


def _slowest(ways: Sequence[Measurement]) -> Measurement:
    """One measurement of the same work on several ranks, sample by sample."""
    rounds = zip(*(way.values_s for way in ways), strict=True)
    flops, size_bytes = (
        sum(getattr(way, amount) or 0.0 for way in ways) or None
        for amount in ("flops", "size_bytes")
    )
    values_s = tuple(map(max, rounds))
    return replace(ways[0], values_s=values_s, flops=flops, size_bytes=size_bytes)


def _above_each_other(timelines: Sequence[Timeline]) -> Timeline:
    """One timeline of several ranks of one machine, whose processes read the same clock."""
    spans = [
        replace(span, lane=f"rank {rank} {span.lane}")
        for rank, timeline in enumerate(timelines)
        for span in timeline.spans
        if span.kind != "host"
    ]
    error_s = max(timeline.alignment_error_s for timeline in timelines)
    return Timeline(tuple(spans), error_s, timelines[0].origin)
