"""Rows: what a picture of a timeline has, whether SVG, matplotlib or characters draw it.

Lanes by the names that people know, in the order of devices; their bars, and the words in these;
and the stretch in which a GPU copied and did not compute.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from autopar.display.format import format_seconds, shortened
from autopar.timeline.groups import grouped
from autopar.timeline.intervals import (
    as_array,
    busy_s,
    common,
    covered,
    intervals_of,
    length_s,
    longest,
    overlapping,
    without,
)
from autopar.timeline.span import Span, Timeline

COLOURS = {
    "compute": "#3b76c4",
    "copy": "#d9822b",
    "communication": "#1f9e89",
    "host": "#7a869a",
}
HEIGHTS = {"compute": 22, "copy": 15, "communication": 18, "host": 14}  # more than colours differ
LANE = max(HEIGHTS.values())
MANY_SPANS = 1_000  # in a lane; beyond it neighbours that nobody can tell apart are one
_PIXEL = 1 / 900  # share of a wide page
_PALER, _PALEST = 0.75, 0.25  # every second of bars that touch; the least that is still seen
_LEAST = 0.01  # share of the time; a row of a lane that is less busy shows nothing
_GAP = 0.01  # share of the width; copies that are nearer to each other are one stretch
_APART = 0.005  # share of the width; bars with wider gaps between them are seen one by one
_BRACKET = 0.08  # share of the width; what is shorter needs no bracket
_LETTERS = 48  # that fit beside each other across a telephone
_LONGEST = 18  # letters of a name that says something; those of kernels are longer
_FILL = "Memset"  # how the name of what fills a GPU's memory begins, which is no kernel
_NUMBERED = re.compile(r"[ _]\d+$")  # what tells the second of equal tasks from the first

# A lane of a GPU: where, if several were profiled; which; and what it does there, by this table.
_ON_GPU = re.compile(r"(?P<where>.*?)(?:GPU |cuda:)(?P<gpu>\d+)(?P<rest>.*)", re.DOTALL)
_WHERE = re.compile(r"(.*: )?(rank \d+ )?")
_RESTS = {
    r"( stream .*| #\d+)?": "{does}",
    r"( copies)? from host": "copying from the host",
    r"( copies)? to host": "copying to the host",
    r" to cuda:(\d+)": r"copying to GPU \1",
    r" copies to a peer": "copying to other GPUs",
    r" copies within": "copying within its memory",
}
_DOES = {"copy": "copying", "communication": "communicating"}  # a lane of that kind alone
_SEVERAL = {"copy": "copies", "communication": "exchanges", "host": "ranges"}


class Label(NamedTuple):
    """Words for a stretch of time, in seconds from the first span's start on."""

    start_s: float
    end_s: float
    words: str


class Bar(NamedTuple):
    """A span, or one for several, and how it is drawn."""

    span: Span
    opacity: float


class Row(NamedTuple):
    """Bars of one kind, none of which lies in another."""

    kind: str
    top: int  # pixels below the top of the lane, which is LANE high or higher
    bars: list[Bar]
    labels: list[Label]  # what stands in the bars


def scale_of(timelines: Iterable[Timeline], limit_s: float | None) -> float:
    """The time in seconds for which the full width stands, in every panel."""
    longest_s = max(timeline.makespan_s for timeline in timelines)
    return max(longest_s, limit_s or 0.0) or 1.0  # never zero: it is divided by


def lanes_of(timeline: Timeline, scale_s: float) -> Iterator[tuple[str, list[Row]]]:
    """For each lane its title and rows, from zero on, for a drawing that is `scale_s` wide."""
    for title, spans in titled(timeline.rebased())[0]:
        rows = []
        for kind, same in grouped(spans, attrgetter("kind")).items():
            others = [span for span in spans if span.kind != kind]
            layers = _layers(same) if kind == "host" else [same]
            for depth, layer in enumerate(layers):
                bars = _bars(layer, scale_s, many=len(spans) > MANY_SPANS)
                named = kind == "host"
                labels = _names(layer, scale_s) if named else _labels(layer, others, scale_s)
                rows.append(Row(kind, depth * (HEIGHTS["host"] + 2), bars, labels))
        yield title, rows


def lane_height(rows: Sequence[Row]) -> int:
    """How high a lane is, in pixels."""
    return max(LANE, *(row.top + HEIGHTS[row.kind] for row in rows))


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
        (rows if busy_s(lanes[lane]) >= least_s else left_out).append((title, lanes[lane]))
    return rows or left_out, [title for title, _ in left_out] if rows else []


def _place(lane: str, spans: Sequence[Span]) -> tuple[bool, list[int | str], int, int, bool, str]:
    """Where a lane stands among others: by place, GPU and what it does there; and its title."""
    kinds = {span.kind for span in spans}
    does = _DOES.get(kinds.pop(), "computing") if len(kinds) == 1 else "computing"
    if found := _ON_GPU.match(lane):
        where, gpu, rest = found.groups()
        for rank, (form, words) in enumerate(_RESTS.items()):
            if _WHERE.fullmatch(where) and (fits := re.fullmatch(form, rest)):
                title = f"{where}GPU {gpu}, {fits.expand(words).format(does=does)}"
                return False, by_number(where), int(gpu), rank, does != "computing", title
        return False, by_number(where), int(gpu), len(_RESTS), does != "computing", lane
    if re.fullmatch(r"cpu( #\d+)?", lane):
        return False, [], -1, 1, does != "computing", f"CPU, {does}"
    if lane == "host":
        return False, [], -1, 0, False, "CPU, annotated ranges"
    return not lane.lower().startswith("cpu"), [], -1, -1, does != "computing", lane


def by_number(words: str) -> list[int | str]:
    """What sorts rank 2 before rank 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", words)]


def by_gpu(timeline: Timeline) -> dict[str, list[Span]]:
    """The spans of each GPU, by the names of their lanes; those of others under no name."""
    found = {lane: _ON_GPU.match(lane) for lane in timeline.lanes}
    gpus = {lane: f"{one['where']}GPU {one['gpu']}" if one else "" for lane, one in found.items()}
    return grouped(timeline.spans, lambda span: gpus[span.lane])


def not_hidden(timeline: Timeline, scale_s: float) -> list[Label]:
    """For each GPU the longest stretch in which it copied and did not compute, if long enough."""
    found, copying = [], 0
    gpus = by_gpu(timeline.rebased())
    for gpu in sorted(gpus, key=by_number):
        spans = gpus[gpu]
        copies, kernels = (
            covered(intervals_of(span for span in spans if span.kind == kind))
            for kind in ("copy", "compute")
        )
        copying += len(copies) > 0
        if len(copies) and len(kernels):
            bare, gap = without(copies, kernels), [0.0, _GAP * scale_s]
            near = without(covered(bare + gap) - gap, kernels)
            stretch = longest(near) or (0.0, 0.0)
            bare_s = length_s(common(bare, as_array([stretch])))
            if bare_s >= _BRACKET * scale_s:
                found.append((stretch, gpu or "other lanes", bare_s))
    return [
        Label(
            *stretch,
            f"{where}: " * (copying > 1) + f"{format_seconds(bare_s)} of copying not hidden",
        )
        for stretch, where, bare_s in found
    ]


def _layers(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans in layers of which none overlaps itself: what lies in another is a layer deeper."""
    layers: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        for layer in layers:
            if layer[-1].end_s <= span.start_s:
                layer.append(span)
                break
        else:
            layers.append([span])
    return layers


def _bars(spans: Sequence[Span], scale_s: float, *, many: bool) -> list[Bar]:
    """Bars of which, where they touch, every second one is paler, so that they can be counted.

    Of many spans, those shorter than a pixel and less than half of one apart are one bar, as dark
    as busy; the long ones among them are still seen.
    """
    groups: list[list[Span]] = []
    for span in spans:
        last = groups[-1][-1] if groups and many else None
        near = last and span.start_s - last.end_s < _PIXEL * scale_s / 2
        if last and near and max(last.duration_s, span.duration_s) < _PIXEL * scale_s:
            groups[-1].append(span)
        else:
            groups.append([span])
    bars: list[Bar] = []
    for first, *more in groups:
        touches = bars and first.start_s - bars[-1].span.end_s < 2 * _PIXEL * scale_s
        bar = Bar(first, _PALER if touches and bars[-1].opacity == 1 and not many else 1.0)
        if more:  # idle gaps that are too narrow to draw still show
            name, end_s = words_of([first, *more]), max(span.end_s for span in [first, *more])
            one = Span(name, first.lane, first.start_s, end_s, first.kind)
            bar = Bar(one, max(_PALEST, busy_s([first, *more]) / (one.duration_s or 1.0)))
        bars.append(bar)
    return bars


def _names(ranges: Sequence[Span], scale_s: float) -> list[Label]:
    """The names of ranges that are wide enough for some letters of it."""
    fits = [(span, int(span.duration_s / scale_s * _LETTERS)) for span in ranges]
    return [
        Label(span.start_s, span.end_s, shortened(span.name, letters))
        for span, letters in fits
        if letters > 2
    ]


def _labels(spans: Sequence[Span], others: Sequence[Span], scale_s: float) -> list[Label]:
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
    fills = sum(span.name.startswith(_FILL) for span in run)
    said = f"{len(run) - fills:,} {_SEVERAL.get(run[0].kind, one)}" + f", {fills:,} fills" * (
        fills > 0
    )
    return said if len(run) - fills > 1 else ""
