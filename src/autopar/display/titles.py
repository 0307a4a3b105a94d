"""Titles: what a timeline's lanes are called in pictures, their order, and what is said of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from autopar.display.format import format_seconds
from autopar.timeline.groups import grouped
from autopar.timeline.intervals import covered, intervals_of, longest, without
from autopar.timeline.span import Span, Timeline

_GPU = r"^(?P<where>(?:(?!GPU |cuda:).)*)(?:GPU |cuda:)(?P<gpu>\d+)"  # how lanes of a GPU begin
GPU = re.compile(_GPU)
# How lanes are called where they are recorded, and in pictures. On each device they stand so.
_FORMS = [
    (re.compile(form), title)
    for form, title in (
        (r"^host$", "CPU, annotated ranges"),
        (r"^cpu( #\d+)?$", "CPU, computing"),
        (rf"{_GPU}( stream \d+| #\d+)?$", "{where}GPU {gpu}, computing"),
        (rf"{_GPU}( copies)? from host$", "{where}GPU {gpu}, copying from the host"),
        (rf"{_GPU}( copies)? to host$", "{where}GPU {gpu}, copying to the host"),
        (rf"{_GPU} to cuda:(?P<other>\d+)$", "{where}GPU {gpu}, copying to GPU {other}"),
    )
]
_LEAST = 0.01  # share of the time; a row of a lane that is less busy shows nothing
_GAP = 0.01  # share of the time; stretches of bars that are nearer to each other are one
_BRACKET = 0.08  # share of the time; what is shorter needs no bracket
_LETTERS = 48  # that fit beside each other across a telephone
_LONGEST = 18  # letters of a name that says something; those of kernels are longer
_SEVERAL = {"copy": "copies", "communication": "exchanges"}


class Label(NamedTuple):
    """Words for a stretch of time, from the first span's start on."""

    start_s: float
    end_s: float
    words: str


def titled(timeline: Timeline, scale_s: float) -> tuple[dict[str, list[Span]], list[str]]:
    """Title -> spans of each lane in the order of a picture, and the titles of those left out.

    The CPU's lanes come first, then those of each GPU, then those of the program's own names.

    >>> spans = [Span("mm", "GPU 0 stream 7", 0, 1), Span("x", "GPU 0 copies to host", 1, 2, "copy")]
    >>> list(titled(Timeline(spans), 2.0)[0])
    ['GPU 0, computing', 'GPU 0, copying to the host']
    """
    lanes = grouped(timeline.spans, attrgetter("lane"))
    shown = {lane: _place(lane) for lane in lanes}
    number, of_many = Counter[str](), Counter(title for *_, title in shown.values())
    titles, left_out = {}, []
    for lane in sorted(lanes, key=lambda lane: shown[lane][:-1]):
        title = shown[lane][-1]
        number[title] += 1
        if of_many[title] > 1:
            title = f"{title}, {number[title]} of {of_many[title]}"
        if Timeline(tuple(lanes[lane])).busy_s() < _LEAST * scale_s:
            left_out.append(title)
        else:
            titles[title] = lanes[lane]
    if not titles:  # of many lanes, each may do little
        return dict(zip(left_out, lanes.values(), strict=True)), []
    return titles, left_out


def _place(lane: str) -> tuple[bool, str, int, int, str]:
    """Where a lane stands among others: by place, GPU and what it does there; and its title."""
    for rank, (form, title) in enumerate(_FORMS):
        if found := form.match(lane):
            named = found.groupdict()
            gpu = int(named.get("gpu", -1))
            return False, named.get("where", ""), gpu, rank, title.format(**named)
    return not lane.lower().startswith("cpu"), "", -1, -1, lane


def labels_of(spans: Sequence[Span], start_s: float, scale_s: float) -> list[Label]:
    """What stands in the bars of a row: their name, or how many there are, where it fits."""
    stretches: list[list[Span]] = []
    for span in spans:
        if stretches and span.start_s - stretches[-1][-1].end_s < _GAP * scale_s:
            stretches[-1].append(span)
        else:
            stretches.append([span])
    labels = []
    for stretch in stretches:
        first, last, words = stretch[0], stretch[-1], _words(stretch)
        if last.end_s - first.start_s > len(words) / _LETTERS * scale_s:
            labels.append(Label(first.start_s - start_s, last.end_s - start_s, words))
    return labels


def _words(stretch: Sequence[Span]) -> str:
    count, first = len(stretch), stretch[0]
    if len(first.name) <= _LONGEST and len({span.name for span in stretch}) == 1:
        return first.name if count == 1 else f"{count:,} × {first.name}"
    if count == 1:
        return ""
    one = "kernels" if GPU.match(first.lane) else "tasks"
    return f"{count:,} {_SEVERAL.get(first.kind, one)}"


def not_hidden(timeline: Timeline, scale_s: float) -> Label | None:
    """The longest stretch in which a GPU copied and did not compute, where it is long enough."""
    stretches = []
    for gpu in {gpu_of(span) for span in timeline.spans if span.kind == "copy"}:
        spans = [span for span in timeline.spans if gpu_of(span) == gpu]
        copying, computing = (
            covered(intervals_of(span for span in spans if span.kind == kind))
            for kind in ("copy", "compute")
        )
        if len(computing):
            bridged = covered(copying + [0, _GAP * scale_s]) - [0, _GAP * scale_s]
            stretches += [longest(without(bridged, computing))]
    start_s, end_s = max(
        filter(None, stretches), key=lambda ends: ends[1] - ends[0], default=(0.0, 0.0)
    )
    if end_s - start_s < _BRACKET * scale_s:
        return None
    words = f"{format_seconds(end_s - start_s)} of copying not hidden"
    return Label(start_s - timeline.start_s, end_s - timeline.start_s, words)


def gpu_of(span: Span) -> str:
    """The GPU that a span belongs to, by the name of its lane; nothing for other lanes."""
    found = GPU.match(span.lane)
    return found[0] if found else ""
