"""Span: a named interval on a lane; a timeline is a set of them, with overlap by unions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real

from autopar.refusal import check_type, several, what
from autopar.timeline.intervals import busy_s, common, covered, intervals_of, length_s
from autopar.units import format_seconds

KINDS = ("compute", "copy", "communication", "host")
_LATEST_S = 1e12  # no clock counts 30,000 years; what counts nanoseconds since 1970 does


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work, from start to end on the host's clock.

    Args:
        name: What ran.
        lane: Where it ran: a stream, a copy engine, a CPU worker, a host thread.
        start_s: Start in seconds.
        end_s: End in seconds, not before the start.
        kind: `compute`, `copy`, `communication` between GPUs, or `host` for issuing and waiting.

    Raises:
        TypeError: A time that is no number, or a name or a lane that is no text.
        ValueError: It ends before it starts or never, has no lane, or is of an unknown kind; or a
            time is none that a clock gives in seconds.

    >>> import autopar as ap
    >>> ap.Span("product", "GPU 0, stream 7", 0.0, 2e-3).duration_s
    0.002
    """

    name: str
    lane: str
    start_s: float
    end_s: float
    kind: str = "compute"

    def __post_init__(self) -> None:
        quick = type(self.start_s) is type(self.end_s) is float  # for most
        if not (quick and type(self.name) is type(self.lane) is str):
            for argument in ("start_s", "end_s"):
                seconds = "seconds, as time.perf_counter() gives them."
                check_type(argument, getattr(self, argument), Real, seconds)
            for argument in ("name", "lane"):
                text = "text, as in Span('mm', 'GPU 0', 0.0, 0.002)."
                check_type(argument, getattr(self, argument), str, text)
        if not -_LATEST_S < self.start_s <= self.end_s < _LATEST_S:  # also catches NaN
            msg = (
                f"span {self.name!r} on {self.lane!r} is from {self.start_s} s to {self.end_s} s; "
                f"expected start_s <= end_s, both within 1e12 s. Check the clock it was "
                f"read from, and its unit."
            )
            raise ValueError(msg)
        if self.kind not in KINDS or not self.lane:
            msg = (
                f"span {self.name!r} has lane {self.lane!r} and kind {self.kind!r}; expected a "
                f"named lane and one of {', '.join(KINDS)}."
            )
            raise ValueError(msg)

    @property
    def duration_s(self) -> float:
        """End minus start, in seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True, repr=False)
class Timeline:
    """Spans of one run, on one clock.

    Everything that speaks of overlap is computed on unions of intervals, so that work which
    overlaps itself is never counted twice. `of`, `behind` and `which` name a lane or a kind.

    Args:
        spans: The spans, in any order.
        alignment_error_s: By how much clocks of different lanes may disagree, in seconds.
        origin: Where and when this was recorded, in words.

    Raises:
        TypeError: `spans` is something else than several of `Span`, or the origin is no text.
        ValueError: The error is no time, from 0 up.

    >>> import autopar as ap
    >>> run = ap.Timeline((ap.Span("mm", "stream", 0, 4), ap.Span("D2H", "bus", 3, 5, "copy")))
    >>> run.makespan_s, run.busy_s("copy"), run.hidden(), run.exposed_s()
    (5, 2.0, 0.5, 1.0)
    >>> run
    <Timeline: lanes 2, spans 2, 5.000 s>
    """

    spans: tuple[Span, ...]
    alignment_error_s: float = 0.0
    origin: str = ""

    def __post_init__(self) -> None:
        expected = "several spans, as in Timeline([Span('mm', 'GPU 0', 0.0, 0.002)])."
        spans = several("spans", self.spans, expected, Span)
        check_type("origin", self.origin, str, "text, as in origin='one H200'.")
        error_s = self.alignment_error_s
        if not isinstance(error_s, Real) or not 0 <= error_s < math.inf:  # also catches NaN
            msg = f"alignment_error_s is {what(error_s)}; expected seconds, from 0 up, as 2e-6."
            raise ValueError(msg)
        spans = tuple(sorted(spans, key=lambda span: (span.start_s, span.end_s)))
        object.__setattr__(self, "spans", spans)

    def __repr__(self) -> str:
        length = f", {format_seconds(self.makespan_s)}" if self.spans else ""
        where = f", {self.origin}" if self.origin else ""
        return f"<Timeline: lanes {len(self.lanes)}, spans {len(self.spans):,}{length}{where}>"

    @property
    def lanes(self) -> tuple[str, ...]:
        """Lanes in the order in which they first did something."""
        return tuple(dict.fromkeys(span.lane for span in self.spans))

    @property
    def start_s(self) -> float:
        """Start of the first span, in seconds."""
        self._require_spans()
        return self.spans[0].start_s

    @property
    def end_s(self) -> float:
        """End of the last span, in seconds."""
        self._require_spans()
        return max(span.end_s for span in self.spans)

    @property
    def makespan_s(self) -> float:
        """From the start of the first span to the end of the last, in seconds."""
        return self.end_s - self.start_s

    def select(self, which: str) -> tuple[Span, ...]:
        """The spans on a lane, or of a kind.

        Raises:
            KeyError: There are none; the message lists what there is.
        """
        chosen = tuple(span for span in self.spans if which in (span.lane, span.kind))
        if not chosen:
            kinds = sorted({span.kind for span in self.spans})
            msg = (
                f"no span has lane or kind {which!r}; this timeline has lanes "
                f"{', '.join(self.lanes) or '(none)'} and kinds {', '.join(kinds) or '(none)'}"
            )
            raise KeyError(msg)
        return chosen

    def busy_s(self, which: str | None = None) -> float:
        """Seconds in which at least one span (of a lane or kind, if named) was running."""
        return busy_s(self.spans if which is None else self.select(which))

    def overlap_s(self, of: str, behind: str) -> float:
        """Seconds in which `of` and `behind` were both running; ValueError if they are the same."""
        if of == behind:
            msg = (
                f"of and behind are both {of!r}; expected two lanes or kinds: nothing hides itself."
            )
            raise ValueError(msg)
        both = (covered(intervals_of(self.select(which))) for which in (of, behind))
        return length_s(common(*both))

    def hidden(self, of: str = "copy", behind: str = "compute") -> float:
        """Share of the busy time of `of` during which `behind` ran too, from 0 to 1.

        Raises:
            KeyError: There is no such lane or kind, as on a CPU, where nothing is of kind `copy`.
            ValueError: Both are the same.
        """
        busy_s = self.busy_s(of)
        return self.overlap_s(of, behind) / busy_s if busy_s else 0.0

    def exposed_s(self, of: str = "copy", behind: str = "compute") -> float:
        """Seconds in which `of` ran and `behind` did not."""
        return self.busy_s(of) - self.overlap_s(of, behind)

    def within(self, name: str) -> tuple[Timeline, ...]:
        """What ran in a named range, for each time that the range was there.

        That is what started in it, other ranges aside. A range that is to hold all of its work
        has to wait for it.

        Raises:
            KeyError: There is no range of that name; the message lists those there are.
        """
        ranges = [span for span in self.spans if span.kind == "host"]
        named = [span for span in ranges if span.name == name]
        if not named:
            names = ", ".join(sorted({span.name for span in ranges})) or "(none)"
            msg = f"there is no range {name!r}; this timeline has ranges {names}"
            raise KeyError(msg)
        work = [span for span in self.spans if span.kind != "host"]
        return tuple(
            replace(self, spans=tuple(s for s in work if one.start_s <= s.start_s < one.end_s))
            for one in named
        )

    def between(self, start_s: float, end_s: float) -> Timeline:
        """What ran between two times in seconds, cut there, as to look at a moment closely.

        Raises:
            ValueError: The times are not in order.
            TypeError: One of them is no number.

        >>> import autopar as ap
        >>> run = ap.Timeline([ap.Span("mm", "lane", 0, 4), ap.Span("D2H", "bus", 3, 5, "copy")])
        >>> [(span.start_s, span.end_s) for span in run.between(3.5, 4.5).spans]
        [(3.5, 4), (3.5, 4.5)]
        """
        for argument, time_s in (("start_s", start_s), ("end_s", end_s)):
            check_type(argument, time_s, Real, "seconds, as a span's start_s.")
        if not start_s < end_s:
            msg = f"start_s is {start_s!r} and end_s is {end_s!r}; expected a start before the end."
            raise ValueError(msg)
        cut = (
            replace(span, start_s=max(span.start_s, start_s), end_s=min(span.end_s, end_s))
            for span in self.spans
            if span.start_s < end_s and span.end_s > start_s
        )
        return replace(self, spans=tuple(cut))

    def merged(self, other: Timeline) -> Timeline:
        """Both timelines as one; they must be on the same clock."""
        check_type("other", other, Timeline, "a Timeline on the same clock.")
        error_s = max(self.alignment_error_s, other.alignment_error_s)
        return Timeline(self.spans + other.spans, error_s, self.origin or other.origin)

    def rebased(self) -> Timeline:
        """The same timeline, starting at zero."""
        spans = tuple(
            replace(span, start_s=span.start_s - self.start_s, end_s=span.end_s - self.start_s)
            for span in self.spans
        )
        return replace(self, spans=spans)

    def _require_spans(self) -> None:
        if not self.spans:
            msg = "this timeline has no spans; record some work first"
            raise ValueError(msg)
