"""Trace: what a profiler's file holds: work on GPUs, and what the host did meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autopar.timeline.span import Span, Timeline


class TraceError(ValueError):
    """A file that can't be read as a trace; the message says what it is and what to do.

    >>> import autopar as ap
    >>> try:
    ...     ap.read_trace(ap.__file__)
    ... except ap.TraceError as error:
    ...     print("no trace")
    no trace
    """


@dataclass(frozen=True, slots=True)
class Activity:
    """A kernel, copy or fill on a GPU."""

    span: Span  # its kind is `compute`, `copy` or `communication`
    launch: Span | None = None  # the call that asked for it, if the trace tells
    size_bytes: int | None = None  # what a copy moved
    memory: str | None = None  # the host's side of a copy: `pinned` or `pageable`, if known
    gpu: str = ""  # such as `GPU 0` or `rank 1 GPU 0`; empty for work that was not on a GPU
    stream: str = ""  # its in-order queue; lanes of copies are directions instead
    # Of communication: such as `allreduce of group 0, ranks [0, 1]`, with its number in the group
    # after its name if the trace tells.
    collective: str = ""


@dataclass(frozen=True)
class Trace:
    """What one trace file says, on one clock; all of it by start."""

    activities: tuple[Activity, ...]
    # What the host did; the lane of each span is its thread, the kind `host`.
    calls: tuple[Span, ...] = ()  # of CUDA's or HIP's runtime and driver
    operators: tuple[Span, ...] = ()  # of PyTorch, without those within another
    ranges: tuple[Span, ...] = ()  # named by `annotate`, NVTX or `record_function`
    warnings: tuple[str, ...] = ()  # what was left out, and why, in whole sentences
    # GPU, or `host` -> why no figure in time may be given of it, as a whole sentence.
    doubts: dict[str, str] = field(default_factory=dict)
    origin: str = ""
    alignment_error_s: float = 0.0  # by how much clocks of different lanes may disagree

    @property
    def timeline(self) -> Timeline:
        """All of it as one timeline."""
        spans = (*(work.span for work in self.activities), *self.ranges)
        return Timeline(spans, self.alignment_error_s, self.origin)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was left out and what is in doubt, each once."""
        return tuple(dict.fromkeys((*self.warnings, *self.doubts.values())))

    def trusted(self) -> Iterator[Activity]:
        """Work of GPUs whose times are not in doubt."""
        return (work for work in self.activities if work.gpu not in self.doubts)
