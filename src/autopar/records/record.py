"""Record: what an experiment found, the limit of its parts, and all it takes to believe it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from autopar.display.format import NO_SHARE, origins_of
from autopar.records.claim import ByLabel, Estimate, Figure, estimate, real
from autopar.refusal import check_type, several, whole_number
from autopar.timeline.span import Timeline
from autopar.timing.measurement import Measurement, hidden_share

EARLIER = "with an earlier version of autopar"  # ends the origin of what changed code measured
_FOUND = {"timelines": Timeline, "checks": bool, "values": object, "files": bytes}  # by name


class RecordError(RuntimeError):
    """A record that can't be used; the message says which file, why, and how to record it anew.

    >>> import autopar as ap
    >>> try:
    ...     ap.newest_record("no_such_experiment")
    ... except ap.RecordError as error:
    ...     print("no record")
    no record
    """


class _Timed:
    """What findings and records tell of their timings."""

    measurements: Any  # several, by label or not
    checks: Mapping[str, bool]

    @property
    def processors(self) -> str:
        """What they were measured on, where that is known."""
        return ""

    @property
    def origin(self) -> str:
        """Where and when it was measured, in words."""
        return " and ".join(origins_of(self._by_label().values()))

    @property
    def failed(self) -> list[str]:
        """The checks that failed; with one of them, no timings count."""
        return [check for check, held in self.checks.items() if not held]

    def estimate(self, figure: Figure) -> Estimate:
        """A figure derived from the timings, with its interval, for `claim`.

        Args:
            figure: Gets the median seconds by label, and returns a number.

        Raises:
            KeyError: It asks for a label under which nothing was measured.
            ValueError: A check has failed.
        """
        estimated = estimate(figure, self._by_label())
        return replace(estimated, origin=self.origin, machine=self.processors)

    def hidden(self, way: str, parts: Sequence[str]) -> Estimate:
        """The share of the shorter parts' time that a way saves, by the clock: see `hidden_share`.

        Noise, and what parts take from each other when they run at once, may carry it below 0 or
        above 1; a claim of it says so then.

        Args:
            way: The label of what does all parts.
            parts: The labels of the parts alone; one twice for two parts that take as long.

        Raises:
            KeyError: Nothing was measured under one of the labels.
            ValueError: There are not two parts, the way is one of them, or a check has failed.
        """
        alone = [part.label for part in self._measured(parts, least=2)]
        if way in alone:
            msg = f"way is {way!r}, one of parts itself; expected the label of what does all parts."
            raise ValueError(msg)
        share = self.estimate(lambda s: hidden_share([s[part] for part in alone], s[way]))
        return share if 0 <= share.value <= 1 else replace(share, note=NO_SHARE)

    def limit_s(self, parts: Sequence[str], pieces: int = 0) -> float:
        """The least time in seconds in which parts of the work can be done at the same time.

        No order beats the longest part, each at its fastest. Where all parts go through the same
        number of pieces, one piece of each other part has nothing to hide behind.

        Args:
            parts: The labels of the parts alone; one twice for two parts that take as long.
            pieces: Into how many pieces each part is divided; 0 where they need nothing of each
                other.

        Raises:
            KeyError: Nothing was measured under one of the labels.
            ValueError: There are no parts, `pieces` is no whole number from 0 on, or a check has
                failed.
        """
        whole_number("pieces", pieces, 0)
        *others_s, longest_s = sorted(part.min_s for part in self._measured(parts, least=1))
        return longest_s + (sum(others_s) / pieces if pieces else 0.0)

    def _measured(self, parts: Sequence[str], least: int) -> list[Measurement]:
        expected = f"labels of what was measured in a list, at least {least}."
        labels, timed = several("parts", parts, expected, str), self._by_label()
        if len(labels) < least:
            msg = f"parts is {[*labels]}; expected {expected}"
            raise ValueError(msg)
        return [timed[label] for label in labels]

    def _by_label(self) -> ByLabel[Measurement]:
        if self.failed:
            msg = f"no timings count, as a check failed: {', '.join(self.failed)}. Mend that first."
            raise ValueError(msg)
        several = self.measurements
        timed = several.values() if isinstance(several, Mapping) else several
        return ByLabel({measurement.label: measurement for measurement in timed})


@dataclass(frozen=True)
class Findings(_Timed):
    """What an experiment returns.

    Args:
        measurements: Its timings; labels must differ.
        timelines: Label to timeline.
        checks: What must be true for the timings to count, and whether it was.
        values: Other numbers, with the unit in the name.
        files: Small files to keep beside the record, by name, such as another tool's report.

    Raises:
        TypeError: One of them is something else.
        ValueError: Two measurements of one label; a value that is not finite.

    >>> import autopar as ap
    >>> sums = ap.measure(lambda: sum(range(1_000)), label="sum")
    >>> ap.Findings([sums], checks={"the sum is right": sum(range(4)) == 6}).checks
    {'the sum is right': True}
    """

    measurements: Sequence[Measurement]
    timelines: Mapping[str, Timeline] = field(default_factory=dict)
    checks: Mapping[str, bool] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expected = "what ap.measure returns, in a list."
        several("measurements", self.measurements, expected, Measurement)
        for found, kind in _FOUND.items():
            held = getattr(self, found)
            check_type(found, held, Mapping, f"{kind.__name__} by name.")
            held = {  # of a tensor or an array of no dimensions what it holds
                name: one.item() if getattr(one, "ndim", None) == 0 else one
                for name, one in held.items()
            }
            for name, one in held.items():
                check_type(f"a name in {found}", name, str, "text.")
                check_type(f"{found}[{name!r}]", one, kind, f"{kind.__name__}.")
            object.__setattr__(self, found, held)
        for name, number in self.values.items():
            if not math.isfinite(real(f"values[{name!r}]", number, "a number, finite.")):
                msg = f"values[{name!r}] is {number}; expected a number, finite."
                raise ValueError(msg)
        labels = [measurement.label for measurement in self.measurements]
        if len(set(labels)) < len(labels):
            msg = f"measurements have the labels {labels}; expected each label once"
            raise ValueError(msg)

    def __repr__(self) -> str:
        counts = (f"{name} {len(held)}" for name, held in vars(self).items() if held)
        failed = f", failed {len(self.failed)}: {', '.join(self.failed)}" if self.failed else ""
        return f"<Findings: {', '.join(counts) or 'none'}{failed}>"


@dataclass(frozen=True, repr=False)
class Record(_Timed):
    """An experiment's findings with all that is needed to believe them; they never change.

    >>> import autopar as ap
    >>> def add_up(count):
    ...     return ap.Findings([ap.measure(lambda: sum(range(count)), label="sum")])
    >>> record = ap.observed(add_up, name="add_up", parameters={"count": 1_000})
    >>> record.measurements["sum"].median_s > 0
    True
    """

    experiment: str  #: Its name.
    parameters: Mapping[str, Any]  #: What it was called with.
    digest: str  #: Of the measured code and the parameters.
    measurements: Mapping[str, Measurement]  #: By label, raw samples included.
    timelines: Mapping[str, Timeline]  #: By label.
    checks: Mapping[str, bool]  #: What was checked before anything was timed; all true.
    values: Mapping[str, float]  #: Other numbers, with the unit in the name.
    hardware: Mapping[str, Any]  #: The machine, as `describe` tells.
    software: Mapping[str, str]  #: Versions, and the commit or the digest of autopar's sources.
    recorded_at: str  #: UTC, ISO 8601.
    command: str  #: What measured it.
    files: Mapping[str, bytes]  #: Name to content.
    live: bool  #: Whether this process measured it.
    code_changed: bool = False  #: Whether that code has changed since; `origin` says so, too.

    def __post_init__(self) -> None:
        """Let every measurement and timeline say where it comes from, and let none be replaced."""
        for name, by_label in (("measurements", self.measurements), ("timelines", self.timelines)):
            named = {label: replace(thing, origin=self.origin) for label, thing in by_label.items()}
            object.__setattr__(self, name, MappingProxyType(ByLabel(named)))

    @property
    def processors(self) -> str:
        """The GPUs it was measured on, or the CPU where there were none."""
        return str(self.hardware["processors"])

    @property
    def origin(self) -> str:
        """Where and when it was measured, in words."""
        how = "measured live on" if self.live else "recorded on"
        code = f", {EARLIER}" if self.code_changed else ""
        torch = f"torch {self.software['torch']}"
        return f"{how} {self.processors}, {self.recorded_at[:10]}, {torch}{code}"

    def __str__(self) -> str:
        return f"{self.experiment}: {self.origin}"

    def __repr__(self) -> str:
        return f"<Record of {self}>"
