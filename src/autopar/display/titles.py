"""Titles: what a timeline's lanes are called in pictures, their order, and what is said of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from autopar.display.format import format_seconds
from autopar.timeline.groups import grouped
from autopar.timeline.intervals import (
    as_array,
    common,
    covered,
    intervals_of,
    length_s,
    longest,
    overlapping,
    without,
)
from autopar.timeline.span import Span, Timeline

_ON_GPU = re.compile(r"(?P<where>.*?)(?:GPU |cuda:)(?P<gpu>\d+)")
_GPU = r"(?P<where>(.*: )?(rank \d+ )?)(GPU |cuda:)(?P<gpu>\d+)"  # where several were profiled
# How lanes are called where they are recorded, and in pictures. On each device they stand so.
_FORMS = {
    r"host": "CPU, annotated ranges",
    r"cpu( #\d+)?": "CPU, {does}",
    rf"{_GPU}( stream .*| #\d+)?": "{where}GPU {gpu}, {does}",
    rf"{_GPU}( copies)? from host": "{where}GPU {gpu}, copying from the host",
    rf"{_GPU}( copies)? to host": "{where}GPU {gpu}, copying to the host",
    rf"{_GPU} to cuda:(?P<other>\d+)": "{where}GPU {gpu}, copying to GPU {other}",
    rf"{_GPU} copies to a peer": "{where}GPU {gpu}, copying to other GPUs",
    rf"{_GPU} copies within": "{where}GPU {gpu}, copying within its memory",
}
_LEAST = 0.01  # share of the time; a row of a lane that is less busy shows nothing
_GAP = 0.01  # share of the width; copies that are nearer to each other are one stretch
_APART = 0.005  # share of the width; bars with wider gaps between them are seen one by one
_BRACKET = 0.08  # share of the width; what is shorter needs no bracket
_LETTERS = 48  # that fit beside each other across a telephone
_LONGEST = 18  # letters of a name that says something; those of kernels are longer
_FILL = "Memset"  # how the name of what fills a GPU's memory begins, which is no kernel
_NUMBERED = re.compile(r"[ _]\d+$")  # what tells the second of equal tasks from the first
_DOES = {"copy": "copying", "communication": "communicating"}  # a lane of that kind alone
_SEVERAL = {"copy": "copies", "communication": "exchanges", "host": "ranges"}


class Label(NamedTuple):
    """Words for a stretch of time, in seconds from the first span's start on."""

    start_s: float
    end_s: float
    words: str


def titled(timeline: Timeline) -> tuple[list[tuple[str, list[Span]]], list[str]]:
    """Title and spans of each lane in the order of a picture, and the titles of those left out.

    The CPU's lanes come first, then those of each GPU, then those of the program's own names. A
    lane that does next to nothing is left out, unless all are such.

    >>> spans = Span("mm", "GPU 0 stream 7", 0, 1), Span("x", "cuda:0 to host", 1, 2, "copy")
    >>> [title for title, _ in titled(Timeline(spans))[0]]
    ['GPU 0, computing', 'GPU 0, copying to the host']
    """
    lanes = grouped(timeline.spans, attrgetter("lane"))
    places = {lane: _place(lane, spans) for lane, spans in lanes.items()}
    number, of_many = Counter[str](), Counter(title for *_, title in places.values())
    least_s = _LEAST * timeline.makespan_s
    rows: list[tuple[str, list[Span]]] = []
    left_out: list[tuple[str, list[Span]]] = []
    for lane in sorted(lanes, key=lambda lane: places[lane][:-1]):
        title = places[lane][-1]
        number[title] += 1
        if of_many[title] > 1:
            title += f", {number[title]} of {of_many[title]}"
        busy = Timeline(tuple(lanes[lane])).busy_s() >= least_s
        (rows if busy else left_out).append((title, lanes[lane]))
    return rows or left_out, [title for title, _ in left_out] if rows else []


def _place(lane: str, spans: Sequence[Span]) -> tuple[bool, list[int | str], int, int, bool, str]:
    """Where a lane stands among others: by place, GPU and what it does there; and its title."""
    kinds = {span.kind for span in spans}
    does = _DOES.get(kinds.pop(), "computing") if len(kinds) == 1 else "computing"
    computes = does == "computing"
    for rank, (form, title) in enumerate(_FORMS.items()):
        if found := re.fullmatch(form, lane):
            named = {"gpu": "-1", "where": ""} | found.groupdict()
            title, gpu = title.format(**named, does=does), int(named["gpu"])
            return False, by_number(named["where"]), gpu, rank, not computes, title
    if found := _ON_GPU.match(lane):  # of a name of the program's own
        return False, by_number(found["where"]), int(found["gpu"]), len(_FORMS), not computes, lane
    return not lane.lower().startswith("cpu"), by_number(""), -1, -1, not computes, lane


def by_number(words: str) -> list[int | str]:
    """What sorts rank 2 before rank 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", words)]


def labels_of(spans: Sequence[Span], others: Sequence[Span], scale_s: float) -> list[Label]:
    """What stands in bars that all but touch: what most of their time goes to, where it fits.

    All are of one kind; nothing stands where there are `others` in the same lane.
    """
    gap, labels = [0.0, _APART * scale_s], []
    stretches = covered(intervals_of(spans) + gap) - gap
    wide = stretches[:, 1] - stretches[:, 0] > scale_s / _LETTERS
    alone = ~overlapping(stretches, covered(intervals_of(others)))
    for start_s, end_s in stretches[wide & alone].tolist():
        words = words_of([span for span in spans if start_s <= span.start_s <= end_s])
        if words and end_s - start_s > len(words) / _LETTERS * scale_s:
            labels.append(Label(start_s, end_s, words))
    return labels


def words_of(run: Sequence[Span]) -> str:
    """The name that takes half of the time or more, or how many there are."""
    named = grouped(run, lambda span: _NUMBERED.sub("", " ".join(span.name.split())))
    seconds = {name: sum(span.duration_s for span in same) for name, same in named.items()}
    most = max(seconds, key=seconds.__getitem__)
    count, others = len(named[most]), len(run) - len(named[most])
    name = f"{count:,} × {most}" if count > 1 else " ".join(named[most][0].name.split())
    if 0 < len(most) <= _LONGEST and 2 * seconds[most] >= sum(seconds.values()):
        return f"{name}, {others:,} more" if others else name
    one = "kernels" if _ON_GPU.match(run[0].lane) else "tasks"
    count = sum(not span.name.startswith(_FILL) for span in run)
    return f"{count:,} {_SEVERAL.get(run[0].kind, one)}" if count > 1 else ""


def not_hidden(timeline: Timeline, scale_s: float) -> Label | None:
    """The longest stretch in which a GPU copied and did not compute, where it is long enough."""
    found = []
    for gpu, spans in by_gpu(timeline.rebased()).items():
        copies, kernels = (
            covered(intervals_of(span for span in spans if span.kind == kind))
            for kind in ("copy", "compute")
        )
        if len(copies):
            bare, gap = without(copies, kernels), [0.0, _GAP * scale_s]
            near = without(covered(bare + gap) - gap, kernels)
            stretch = longest(near) if len(kernels) else None
            found.append((length_s(common(bare, as_array([stretch or (0, 0)]))), stretch, gpu))
    most_s, stretch, gpu = max(found, key=lambda one: one[0], default=(0.0, None, ""))
    if stretch is None or most_s < _BRACKET * scale_s:
        return None
    where = f"{gpu or 'other lanes'}: " if len(found) > 1 else ""
    return Label(*stretch, f"{where}{format_seconds(most_s)} of copying not hidden")


def by_gpu(timeline: Timeline) -> dict[str, list[Span]]:
    """The spans of each GPU, by the names of their lanes; those of others under no name."""
    gpus = {}
    for lane in timeline.lanes:
        found = _ON_GPU.match(lane)
        gpus[lane] = f"{found['where']}GPU {found['gpu']}" if found else ""
    return grouped(timeline.spans, lambda span: gpus[span.lane])
