"""Trace: what a profiler's file holds: a million records as columns, with some hundred tags."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from autopar.timeline.intervals import Intervals, clipped, covered
from autopar.timeline.intervals import Seconds as Seconds
from autopar.timeline.span import Span, Timeline

HOST = "host"
ON_HOST = ("call", "operator", "range", "python", "profiler")
UNKNOWN = -1  # a launch, or a size
ONE_CYCLE = (
    "Under a schedule torch.profiler keeps one cycle only: export it in `on_trace_ready`, or give "
    "`repeat=1`."
)
Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_HALVES = re.compile("[\ud800-\udfff]")  # of a pair of UTF-16
_K = TypeVar("_K", bound=Hashable)


class TraceError(ValueError):
    """A file that can't be read as a trace; the message says what it is and what to do.

    >>> import autopar as ap
    >>> try:
    ...     ap.read_trace(ap.__file__)
    ... except ap.TraceError as error:
    ...     print("no trace")
    no trace
    """


class Tag(NamedTuple):
    """What many records have in common."""

    name: str
    lane: str  # where to show it: a stream, a direction of copies, a thread
    # Of work `compute`, `copy` or `communication`. Of the host: `call` of CUDA's or HIP's runtime
    # and driver, `operator` of PyTorch that lies in no other, `range` named by `annotate`, NVTX or
    # `record_function`, `python` function, or what is done for the `profiler` itself.
    kind: str
    gpu: str = ""  # such as `GPU 0` or `rank 1 GPU 0`; empty for work that was not on a GPU
    stream: str = ""  # its in-order queue, if the trace tells
    memory: str = ""  # the host's side of a copy: `pinned` or `pageable`, if the trace tells
    collective: str = ""  # such as `allreduce of group 0, ranks [0, 1]`, if the trace tells

    @property
    def place(self) -> str:
        """The GPU or the host; empty if the trace does not tell."""
        return HOST if self.kind in ON_HOST else self.gpu

    def encodable(self) -> Tag:
        """The same, as text that can be written; all else stays, so that names can be matched."""
        return Tag(*(_HALVES.sub("\ufffd", text) for text in self))


@dataclass(frozen=True, eq=False)
class Records:
    """Records as columns, by start."""

    tags: tuple[Tag, ...]  # each once, perhaps some that no record has
    tagged: Places  # of each record, the place of its tag
    times_s: Intervals
    launches: Places  # of work, the place of the call that asked for it
    sizes_bytes: Places  # of copies

    def __len__(self) -> int:
        return len(self.tagged)

    def __getitem__(self, which: npt.NDArray[Any]) -> Records:
        """Those at some places, or of which a mask is true."""
        columns = (self.tagged, self.times_s, self.launches, self.sizes_bytes)
        return Records(self.tags, *(column[which] for column in columns))

    @property
    def lengths_s(self) -> Seconds:
        """How long each took."""
        return self.times_s[:, 1] - self.times_s[:, 0]

    @property
    def present(self) -> list[Tag]:
        """The tags that some record has."""
        return [self.tags[place] for place in np.unique(self.tagged).tolist()]

    def where(self, rule: Callable[[Tag], bool]) -> Mask:
        """Of each record, whether something is true of its tag."""
        return np.array([rule(tag) for tag in self.tags], dtype=bool)[self.tagged]

    def of(self, *kinds: str) -> Records:
        """Those of some kinds."""
        return self[self.where(lambda tag: tag.kind in kinds)]

    def coded(self, key: Callable[[Tag], _K]) -> tuple[list[_K], Places]:
        """All keys of tags, and of each record the place of its key."""
        keys: dict[_K, int] = {}
        codes = [keys.setdefault(key(tag), len(keys)) for tag in self.tags]
        return [*keys], np.array(codes, dtype=np.int64)[self.tagged]

    def groups(self, key: Callable[[Tag], _K]) -> dict[_K, Places]:
        """Key -> the places of the records that have it; many keys cost no more than few."""
        keys, codes = self.coded(key)
        order = np.argsort(codes, kind="stable")
        places = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
        by_start = sorted(filter(len, places), key=lambda group: int(group[0]))
        return {keys[codes[group[0]]]: group for group in by_start}

    def parts(self, key: Callable[[Tag], _K]) -> dict[_K, Records]:
        """Key -> the records that have it."""
        return {name: self[places] for name, places in self.groups(key).items()}

    def sets(self, key: Callable[[Tag], _K]) -> dict[_K, Intervals]:
        """Key -> the set of times in which there was a record that has it."""
        return {name: covered(self.times_s[group]) for name, group in self.groups(key).items()}

    def within(self, window: Intervals) -> Records:
        """What lies in a set of times, cut at its edges."""
        which, times_s = clipped(self.times_s, window)
        cut = self[which]
        is_whole = (cut.times_s == times_s).all(axis=1)  # of a part nobody knows what it moved
        sizes_bytes = np.where(is_whole, cut.sizes_bytes, UNKNOWN)
        return replace(cut, times_s=times_s, sizes_bytes=sizes_bytes).sorted()

    def sorted(self) -> Records:
        """The same by start."""
        return self[np.argsort(self.times_s[:, 0], kind="stable")]

    def spans(self) -> list[Span]:
        """All of them as spans."""
        tags = [self.tags[place] for place in self.tagged.tolist()]
        return [
            Span(tag.name, tag.lane, start_s, end_s, HOST if tag.kind in ON_HOST else tag.kind)
            for tag, (start_s, end_s) in zip(tags, self.times_s.tolist(), strict=True)
        ]


class Rows:
    """Records while they are read: times in microseconds, and launches by correlation."""

    def __init__(self) -> None:
        self.tags: list[Tag] = []
        self._places: dict[tuple[Any, ...], int] = {}
        self.times_us = array("d")  # the start and the length of each
        self._others = array("q")

    def add(
        self,
        key: tuple[Any, ...],
        tag: Callable[..., Tag],
        times_us: tuple[float, float],
        launch: int = UNKNOWN,
        size_bytes: int = UNKNOWN,
    ) -> None:
        """Add a record: start and length, and its tag, which is made of a key, once for each."""
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.tags)
            self.tags.append(tag(*key).encodable())
        self.times_us.extend(times_us)
        self._others.extend((place, launch, size_bytes))

    def forget_launches(self) -> None:
        """Leave open which call asked for which work."""
        np.asarray(self._others).reshape(-1, 3)[:, 1] = UNKNOWN

    @np.errstate(over="ignore", invalid="ignore")  # some times are NaN, or far too large
    def records(self, zero_us: float = 0.0) -> Records:
        """What was added so far, in its order; times from some zero."""
        times_s = np.cumsum(np.reshape(self.times_us, (-1, 2)) - (zero_us, 0.0), axis=1) / 1e6
        tagged, launches, sizes_bytes = np.asarray(self._others).reshape(-1, 3).T
        return Records(tuple(self.tags), tagged, times_s, launches, sizes_bytes)


NONE = Rows().records()


@dataclass(frozen=True, eq=False)
class Trace:
    """What one trace file says, on one clock."""

    work: Records  # of GPUs
    host: Records = NONE  # what its threads did; their lanes are the threads
    # Thread -> the one that it works for and that waits for it meanwhile, as autograd's do.
    handed: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # what was left out, and why, in whole sentences
    # GPU, or `host` -> why no figure in time may be given of it, as a whole sentence.
    doubts: dict[str, str] = field(default_factory=dict)
    origin: str = ""
    alignment_error_s: float = 0.0  # by how much clocks of different lanes may disagree
    zero_s: float = 0.0  # its times count from here, on the clock of its file
    is_cut: bool = False  # its file was read in part: of what is missing nobody knows

    @property
    def timeline(self) -> Timeline:
        """Its work and its ranges as one timeline."""
        spans = (*self.work.spans(), *self.host.of("range").spans())
        return Timeline(spans, self.alignment_error_s, self.origin)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was left out and what is in doubt, each once."""
        return tuple(dict.fromkeys((*self.warnings, *self.doubts.values())))

    @property
    def is_whole(self) -> bool:
        """Whether all that GPUs did is in it, and can be trusted."""
        return not self.is_cut and not self.doubts.keys() - {HOST}

    def trusted(self) -> Trace:
        """The same without the work of GPUs whose times are in doubt."""
        is_trusted = self.work.where(lambda tag: tag.gpu not in self.doubts)
        return replace(self, work=self.work[is_trusted])
