"""Trace: what a profiler's file holds: work on GPUs, and what the host did meanwhile.

A file has a million records and some hundred tags: what is to be said of a record by its name or
place is found out once for each tag, and times are arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from autopar.timeline.intervals import Intervals, clipped, covered
from autopar.timeline.span import Span, Timeline

HOST = "host"
UNKNOWN = -1  # a launch, or a size
Places = npt.NDArray[np.int64]
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
    kind: str = HOST  # or of work `compute`, `copy` or `communication`
    gpu: str = ""  # such as `GPU 0` or `rank 1 GPU 0`; empty for work that was not on a GPU
    stream: str = ""  # its in-order queue, if the trace tells
    memory: str = ""  # the host's side of a copy: `pinned` or `pageable`, if the trace tells
    # Of communication: such as `allreduce of group 0, ranks [0, 1]`, with its number in the group
    # after its name if the trace tells.
    collective: str = ""


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

    def where(self, rule: Callable[[Tag], bool]) -> npt.NDArray[np.bool_]:
        """Of each record, whether something is true of its tag."""
        return np.array([rule(tag) for tag in self.tags], dtype=bool)[self.tagged]

    def coded(self, key: Callable[[Tag], _K]) -> tuple[list[_K], Places]:
        """All keys of tags, and of each record the place of its key."""
        keys: dict[_K, int] = {}
        codes = [keys.setdefault(key(tag), len(keys)) for tag in self.tags]
        return [*keys], np.array(codes, dtype=np.int64)[self.tagged]

    def groups(self, key: Callable[[Tag], _K]) -> dict[_K, Places]:
        """Key -> the places of the records that have it; both in order."""
        keys, codes = self.coded(key)
        groups = sorted(places(codes).items(), key=lambda group: group[1][0])
        return {keys[code]: its for code, its in groups}

    def sets(self, key: Callable[[Tag], _K]) -> dict[_K, Intervals]:
        """Key -> the set of times in which there was a record that has it."""
        return {name: covered(self.times_s[its]) for name, its in self.groups(key).items()}

    def only(self, which: npt.NDArray[Any]) -> Records:
        """Some of them, with no other tags than theirs."""
        some = self[which]
        present, tagged = np.unique(some.tagged, return_inverse=True)
        return replace(some, tags=tuple(self.tags[i] for i in present.tolist()), tagged=tagged)

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

    def spans(self, which: npt.NDArray[Any] | None = None) -> list[Span]:
        """All, or those at some places, as spans."""
        some = self if which is None else self[which]
        of = [self.tags[place] for place in some.tagged.tolist()]
        pairs = zip(of, some.times_s.tolist(), strict=True)
        return [
            Span(tag.name, tag.lane, start_s, end_s, tag.kind) for tag, (start_s, end_s) in pairs
        ]


class Rows:
    """Records while they are read: times in microseconds, and launches by correlation."""

    def __init__(self) -> None:
        self.tags: list[Tag] = []
        self._places: dict[Tag, int] = {}  # of tags, as they were when they came
        self.starts_us, self.lengths_us = array("d"), array("d")
        self._tagged, self._launches, self._sizes_bytes = array("q"), array("q"), array("q")

    def place(self, tag: Tag) -> int:
        """Where a tag stands, from now on."""
        place = self._places.setdefault(tag, len(self.tags))
        self.tags += [tag] * (place == len(self.tags))
        return place

    def rename(self, change: Callable[[Tag], Tag]) -> None:
        """Change all tags; those that become the same stay two."""
        self.tags = [*map(change, self.tags)]

    def add(
        self,
        place: int,
        times_us: tuple[float, float],
        launch: int = UNKNOWN,
        size_bytes: int = UNKNOWN,
    ) -> None:
        """Add a record, with the place of its tag, its start and its length."""
        self._tagged.append(place)
        self.starts_us.append(times_us[0])
        self.lengths_us.append(times_us[1])
        self._launches.append(launch)
        self._sizes_bytes.append(size_bytes)

    @np.errstate(over="ignore", invalid="ignore")  # some times are NaN, or far too large
    def records(self, zero_us: float = 0.0) -> Records:
        """What was added so far, in its order; times from some zero."""
        starts_us = np.array(self.starts_us) - zero_us
        ends_us = starts_us + np.array(self.lengths_us)
        others = map(np.array, (self._launches, self._sizes_bytes))
        times_s = np.column_stack((starts_us, ends_us)) / 1e6
        return Records(tuple(self.tags), np.array(self._tagged), times_s, *others)


NONE = Rows().records()


@dataclass(frozen=True, eq=False)
class Trace:
    """What one trace file says, on one clock."""

    work: Records  # of GPUs
    # What threads of the host did; their lanes are the threads.
    calls: Records = NONE  # of CUDA's or HIP's runtime and driver
    operators: Records = NONE  # of PyTorch, without those within another
    ranges: Records = NONE  # named by `annotate`, NVTX or `record_function`
    python: Records = NONE  # functions of Python, if they were recorded
    # Thread -> the one that it works for and that waits for it meanwhile, as autograd's do.
    handed: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # what was left out, and why, in whole sentences
    # GPU, or `host` -> why no figure in time may be given of it, as a whole sentence.
    doubts: dict[str, str] = field(default_factory=dict)
    origin: str = ""
    alignment_error_s: float = 0.0  # by how much clocks of different lanes may disagree

    @property
    def timeline(self) -> Timeline:
        """All of it as one timeline."""
        spans = (*self.work.spans(), *self.ranges.spans())
        return Timeline(spans, self.alignment_error_s, self.origin)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was left out and what is in doubt, each once."""
        return tuple(dict.fromkeys((*self.warnings, *self.doubts.values())))

    def trusted(self) -> Trace:
        """The same without the work of GPUs whose times are in doubt."""
        return replace(
            self, work=self.work[self.work.where(lambda tag: tag.gpu not in self.doubts)]
        )


def places(codes: Places) -> dict[int, Places]:
    """Code -> the places that have it, in order; many codes cost no more than few."""
    order = np.argsort(codes, kind="stable")
    found, first = np.unique(codes[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, first[1:]), strict=True)) if len(order) else {}


def joined(several: Iterable[Records]) -> Records:
    """Several lists of records as one, in turn."""
    lists = list(several)
    tags = tuple(tag for records in lists for tag in records.tags)
    before = np.cumsum([0, *(len(records.tags) for records in lists)]).tolist()
    tagged = [records.tagged + first for records, first in zip(lists, before[:-1], strict=True)]
    columns = ((its.times_s, its.launches, its.sizes_bytes) for its in lists)
    return Records(tags, np.concatenate(tagged), *map(np.concatenate, zip(*columns, strict=True)))
