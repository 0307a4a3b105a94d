"""Evidence: what a profiler's trace holds: work on GPUs, calls of the host, named ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autopar.timeline.span import Span, Timeline


class TraceError(ValueError):
    """A file that can't be read as a trace; the message says what it is and what to do."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A call of the CUDA runtime or driver, by a host thread.

    Args:
        name: As the trace has it, such as `cudaLaunchKernel`.
        thread: Which thread called, in words.
        start_s: Start, in the trace's seconds.
        end_s: End.
    """

    name: str
    thread: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Activity:
    """A kernel, copy or fill on a GPU.

    Args:
        span: When, on which lane; its kind is `compute`, `copy` or `communication`.
        launch: The call that asked for it, if the trace tells.
        size_bytes: What a copy moved.
        memory: `pinned` or `pageable`: the host's side of a copy; none if it has none, or if the
            trace does not tell.
        gpu: Where, such as `GPU 0` or `rank 1 GPU 0`; the lane's name begins with it. Empty for
            work that was not on a GPU.
        stream: Its in-order queue, in words; lanes of copies are directions instead.
    """

    span: Span
    launch: ApiCall | None = None
    size_bytes: int | None = None
    memory: str | None = None
    gpu: str = ""
    stream: str = ""


@dataclass(frozen=True)
class Trace:
    """What one trace file says, on one clock.

    Args:
        activities: On GPUs, by start.
        calls: By host threads, by start.
        ranges: Named by `annotate`, NVTX or `record_function`; spans of kind `host`.
        warnings: What was left out, and why, in whole sentences.
        doubts: Of which GPU, or of the `host`, no figure in time may be given, and why not, as a
            whole sentence. Figures that take in several GPUs depend on each of them.
        origin: Where it comes from, in words.
        alignment_error_s: By how much clocks of different lanes may disagree.
    """

    activities: tuple[Activity, ...]
    calls: tuple[ApiCall, ...] = ()
    ranges: tuple[Span, ...] = ()
    warnings: tuple[str, ...] = ()
    doubts: dict[str, str] = field(default_factory=dict)
    origin: str = ""
    alignment_error_s: float = 0.0

    @property
    def timeline(self) -> Timeline:
        """All of it as one timeline."""
        spans = (*(work.span for work in self.activities), *self.ranges)
        return Timeline(spans, self.alignment_error_s, self.origin)

    def trusted(self) -> Iterator[Activity]:
        """Work of GPUs whose times are not in doubt."""
        return (work for work in self.activities if work.gpu not in self.doubts)
