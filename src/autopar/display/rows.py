"""Rows: what a picture of timelines has and where it stands, whether SVG or matplotlib draws it.

Lanes by the names that people know, in the order of devices; their bars, and the words in these;
and the stretch in which a GPU copied and did not compute. Places across are shares of the width,
from the first span's start on, and places down are pixels.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from autopar.display.format import by_number, format_seconds, like, shortened
from autopar.timeline.intervals import (
    Intervals,
    as_array,
    busy_s,
    common,
    covered,
    intervals_of,
    length_s,
    without,
)
from autopar.timeline.span import Span, Timeline

COLOURS = {"compute": "#3b76c4", "copy": "#d9822b", "communication": "#1f9e89", "host": "#7a869a"}
HEIGHTS = {"compute": 22, "copy": 15, "communication": 18, "host": 14}  # more than colours differ
LINE = 18  # that a line of text takes
_PIXEL = 1 / 900  # share of a wide page
_FINE = 1 / 1_800  # share of the width; short neighbours that are nearer to each other are one bar
_PALER, _PALEST = 0.75, 0.25  # every second of bars that touch; the least that is still seen
_LEAST = 0.01  # share of the time; a lane that is less busy shows nothing
_GAP = 0.01  # share of the width; copies that are nearer to each other are one stretch
_APART = 0.005  # share of the width; bars with wider gaps between them are seen one by one
_BRACKET = 0.08  # share of the width; what is shorter needs no bracket
_LETTERS = 48  # that fit beside each other across a telephone, in bars
_FEWEST_LETTERS = 6  # of a range's name that is cut; fewer say nothing
_LONGEST_TITLE = 44  # letters
_LONGEST = 18  # letters of a name that says something; those of kernels are longer
_FILL = "Memset"  # how the name of what fills a GPU's memory begins, which is no kernel
_NUMBERED = re.compile(r"[ _]\d+$")  # what tells the second of equal tasks from the first

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)

# In the order of a picture: a lane's name, or what stands in it after its GPU, and its title.
_ON_GPU = re.compile(r"((?:.*: )?(?:rank \d+ )?)(?:GPU |cuda:)(\d+)", re.DOTALL)
_TITLES = {
    r"host": "CPU, annotated ranges",
    r"cpu( #\d+)?": "CPU, {does}",
    r"( stream .*| #\d+)?": "GPU {gpu}, {does}",
    r"( copies)? from host": "GPU {gpu}, copying from the host",
    r"( copies)? to host": "GPU {gpu}, copying to the host",
    r" to cuda:(?P<peer>\d+)": "GPU {gpu}, copying to GPU {peer}",
    r" copies to a peer": "GPU {gpu}, copying to other GPUs",
    r" copies within": "GPU {gpu}, copying within its memory",
}
_DOES = {"copy": "copying", "communication": "communicating"}  # a lane of that kind alone
_SEVERAL = {"copy": "copies", "communication": "exchanges", "host": "ranges"}


Lane = tuple[str, list[Span]]  # its title, and what it did


class Label(NamedTuple):
    """Words for a stretch of time, and how far down they or their bracket stand."""

    left: float
    right: float
    y: int
    words: str


class Bar(NamedTuple):
    """A span, or several as one, and what it is in words."""

    left: float
    width: float
    opacity: float
    words: str


class Row(NamedTuple):
    """Bars of one kind on one lane, none of which lies in another."""

    lane: str  # with the panel that it is in
    kind: str
    top: int
    bars: list[Bar]
    labels: list[Label]  # what stands in the bars, in their middle


class Layout(NamedTuple):
    """All that a picture has between its limit's name and its axis."""

    headings: list[tuple[int, str, bool]]  # how far down, words, and whether they are of a panel
    rows: list[Row]
    brackets: list[Label]  # their words stand beneath
    height: int


def grouped(things: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    """Key -> the things that have it, both in the order in which they came."""
    groups: dict[_K, list[_T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


def scale_of(timelines: Iterable[Timeline], limit_s: float | None) -> float:
    """The time in seconds for which the full width stands, in every panel."""
    longest_s = max(timeline.makespan_s for timeline in timelines)
    return max(longest_s, limit_s or 0.0) or 1.0  # never zero: it is divided by


def layout_of(panels: Iterable[tuple[str, Timeline]], scale_s: float, top: int = 0) -> Layout:
    """Panels under one another, each with its lanes and then its brackets."""
    layout, y = Layout([], [], [], 0), top
    for name, timeline in panels:
        run = timeline.rebased()
        if name:
            y += LINE
            words = f"{shortened(name, _LONGEST_TITLE)}: {format_seconds(timeline.makespan_s)}"
            layout.headings.append((y - 4, words, True))
        for title, spans in titled(run)[0]:
            y += LINE
            layout.headings.append((y - 5, shortened(title, _LONGEST_TITLE), False))
            lane = f"{name}: {title}" if name else title
            for kind, same in grouped(spans, attrgetter("kind")).items():
                for layer in _layers(same) if kind == "host" else [same]:
                    labels = _labels(layer, scale_s, y + HEIGHTS[kind] // 2)
                    layout.rows.append(Row(lane, kind, y, _bars(layer, scale_s), labels))
                    y += HEIGHTS[kind] + 2
            y += 6
        for start_s, end_s, words in _not_hidden(run, scale_s):
            layout.brackets.append(Label(start_s / scale_s, end_s / scale_s, y, words))
            y += LINE + 10
        y += 8
    return layout._replace(height=y)


def titled(timeline: Timeline) -> tuple[list[Lane], list[Lane]]:
    """The lanes that a picture has, in its order, and those that it leaves out.

    The CPU's lanes come first, then those of each GPU, then those of the program's own names. A
    lane that does next to nothing is left out, unless all are such.
    """
    lanes = grouped(timeline.spans, attrgetter("lane"))
    places = {lane: _place(lane, spans) for lane, spans in lanes.items()}
    number, of_many = Counter[str](), Counter(title for *_, title in places.values())
    shown, brief, least_s = list[Lane](), list[Lane](), _LEAST * timeline.makespan_s
    for lane in sorted(lanes, key=lambda lane: places[lane][:-1]):
        title = places[lane][-1]
        number[title] += 1
        if of_many[title] > 1:
            title += f", {number[title]} of {of_many[title]}"
        is_brief = busy_s(lanes[lane]) < least_s
        (brief if is_brief else shown).append((title, lanes[lane]))
    return (shown, brief) if shown else (brief, [])


def _place(lane: str, spans: Sequence[Span]) -> tuple[bool, list[int | str], int, int, bool, str]:
    """Where a lane stands among others: by place, GPU and what it does there; and its title."""
    kinds = {span.kind for span in spans}
    does = _DOES.get(kinds.pop(), "computing") if len(kinds) == 1 else "computing"
    on_gpu = _ON_GPU.match(lane)
    where, gpu = on_gpu.groups() if on_gpu else ("", "-1")
    rest = lane[on_gpu.end() :] if on_gpu else lane
    rank, title = len(_TITLES), lane
    for i, (form, words) in enumerate(_TITLES.items()):
        if fits := re.fullmatch(form, rest):
            rank, title = i, where + words.format(gpu=gpu, does=does, **fits.groupdict())
    is_own = not on_gpu and not lane.lower().startswith(("cpu", "host"))
    return is_own, by_number(where), int(gpu), rank, does != "computing", title


def by_gpu(timeline: Timeline, *kinds: str) -> dict[str, list[Intervals]]:
    """When each GPU did what is of these kinds, by its name; what lanes of none did has no name."""
    on_gpu = {lane: _ON_GPU.match(lane) for lane in timeline.lanes}
    names = {lane: "{}GPU {}".format(*on.groups()) if on else "" for lane, on in on_gpu.items()}
    gpus = grouped(timeline.spans, lambda span: names[span.lane])
    return {
        gpu: [
            covered(intervals_of(span for span in gpus[gpu] if span.kind == kind)) for kind in kinds
        ]
        for gpu in sorted(gpus, key=by_number)
    }


def _not_hidden(timeline: Timeline, scale_s: float) -> list[tuple[float, float, str]]:
    """For each GPU the longest stretch in which it copied and did not compute, if long enough."""
    gpus = by_gpu(timeline, "copy", "compute")
    copying = sum(len(copies) > 0 for copies, _ in gpus.values())
    found, gap = [], [0.0, _GAP * scale_s]
    for gpu, (copies, kernels) in gpus.items():
        bare = without(copies, kernels)
        stretches = without(covered(bare + gap) - gap, kernels)
        if len(stretches) and len(kernels):
            stretch = stretches[np.argmax(stretches[:, 1] - stretches[:, 0])].tolist()
            bare_s = length_s(common(bare, as_array([stretch])))
            if bare_s >= _BRACKET * scale_s:
                where = f"{gpu or 'other lanes'}: " if copying > 1 else ""
                words = f"{where}{format_seconds(bare_s)} of copying not hidden"
                found.append((*stretch, words))
    return found


def _layers(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans in layers of which none overlaps itself: what lies in another is a layer deeper."""
    layers: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        free = (layer for layer in layers if layer[-1].end_s <= span.start_s)
        layer = next(free, None)
        if layer is None:
            layers.append(layer := [])
        layer.append(span)
    return layers


def _bars(spans: Sequence[Span], scale_s: float) -> list[Bar]:
    """Bars of which, where they touch, every second one is paler, so that they can be counted.

    Spans that nobody could tell apart are one bar, as dark as busy: a trace may have a million.
    """
    starts_s, ends_s = intervals_of(spans).T
    lengths_s, gaps_s = ends_s - starts_s, starts_s[1:] - ends_s[:-1]
    apart = np.maximum(np.maximum(lengths_s[1:], lengths_s[:-1]), gaps_s) >= _FINE * scale_s
    firsts = [0, *(1 + np.flatnonzero(apart)).tolist(), len(spans)]
    bars: list[Bar] = []
    touching_s = -math.inf  # till when a bar touches the one before, if that is not paler
    for first, end in pairwise(firsts):
        group = spans[first:end]
        start_s, end_s = group[0].start_s, max(span.end_s for span in group)
        name, opacity = group[0].name, _PALER if start_s < touching_s else 1.0
        if len(group) > 1:  # idle gaps that are too narrow to draw still show
            name = words_of(group)
            opacity = max(_PALEST, busy_s(group) / ((end_s - start_s) or 1.0))
        touching_s = end_s + 2 * _PIXEL * scale_s if opacity == 1 else -math.inf
        ends = f"from {like(start_s, end_s).split()[0]} to {like(end_s, end_s)}"
        words = f"{name}: {format_seconds(end_s - start_s)}, {ends}"
        bars.append(Bar(start_s / scale_s, (end_s - start_s) / scale_s, opacity, words))
    return bars


def _labels(spans: Sequence[Span], scale_s: float, y: int) -> list[Label]:
    """What stands in bars: of ranges the name, or as much of it as fits if that says something.

    In other bars that all but touch it is what most of their time goes to, where that fits.
    """
    labels, gap, is_range = [], [0.0, _APART * scale_s], spans[0].kind == "host"
    stretches = intervals_of(spans) if is_range else covered(intervals_of(spans) + gap) - gap
    wide = stretches[:, 1] - stretches[:, 0] > scale_s / _LETTERS
    for start_s, end_s in stretches[wide].tolist():
        letters = (end_s - start_s) / scale_s * _LETTERS
        inside = [span for span in spans if start_s <= span.start_s <= end_s]
        words = shortened(inside[0].name, int(letters)) if is_range else words_of(inside)
        least = min(_FEWEST_LETTERS, len(inside[0].name)) * is_range
        if words and letters >= max(len(words), least):
            labels.append(Label(start_s / scale_s, end_s / scale_s, y, words))
    return labels


def words_of(spans: Sequence[Span]) -> str:
    """The name that takes half of the time or more, or how many there are."""
    named = grouped(spans, lambda span: _NUMBERED.sub("", " ".join(span.name.split())))
    seconds = {name: sum(span.duration_s for span in same) for name, same in named.items()}
    most = max(seconds, key=seconds.__getitem__)
    count, others = len(named[most]), len(spans) - len(named[most])
    if 0 < len(most) <= _LONGEST and 2 * seconds[most] >= sum(seconds.values()):
        words = f"{count:,} × {most}" if count > 1 else " ".join(named[most][0].name.split())
        return f"{words}, {others:,} more" if others else words
    several = "kernels" if _ON_GPU.match(spans[0].lane) else "tasks"
    count = sum(not span.name.startswith(_FILL) for span in spans)
    return f"{count:,} {_SEVERAL.get(spans[0].kind, several)}" if count > 1 else ""
