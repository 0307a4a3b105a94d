"""Layers: the tasks of a plan in layers, in an order in which few arrows cross, each at its place.

    layers by the longest way from a start  ->  order by the neighbours' middle  ->  places near it

An arrow that passes layers by has narrow places in them, so that it runs beside boxes, not behind
them. Arrows from one node share these. This is the method of Sugiyama, Tagawa and Toda (1981).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from autopar.schedule import Schedule

_PASSAGE = 0.4  # how wide the place of a passing arrow is, in widths of a node
_MOST_PASSAGES = 2_000  # arrows among more can't be followed anyway: they run straight
_SWEEPS = 24  # after fewer the order hardly changes any more
# How much two neighbours want to be level: arrows look calm if they run straight where they can.
_PULL_ALONE = 50.0  # where neither has another neighbour on that side
_PULL_PASSAGE = 2.0


class Planned(Protocol):
    """What has a schedule, as the plan of a task graph does."""

    @property
    def schedule(self) -> Schedule:
        """Jobs in the order in which they are issued, each on its lane, with its waits."""


class Layout(NamedTuple):
    """Where nodes are, and where arrows pass between them.

    Args:
        layers: Each node's layer, counted from the starts.
        places: Where the middle of each node is across its layer, in widths of a node.
        ways: (before, after) -> where the arrow passes each layer between the two.
        breadth: The widths of a node that the widest layer takes; all places are within.
    """

    layers: tuple[int, ...]
    places: tuple[float, ...]
    ways: dict[tuple[int, int], tuple[float, ...]]
    breadth: float


def layout(before: Sequence[Collection[int]]) -> Layout:
    """Lay a graph out in layers.

    Args:
        before: For each node the numbers of those that it comes after.

    Raises:
        graphlib.CycleError: Nodes come after each other in a circle.

    >>> layout([(), (0,), (0,), (1, 2)])
    Layout(layers=(0, 1, 1, 2), places=(1.0, 0.5, 1.5, 1.0), ways={}, breadth=2.0)
    """
    layers = layers_of(before)
    points = _Points(before, layers)
    rows = _ordered(points)
    breadth = max((points.widths(row) for row in rows), default=0.0)
    places = _placed(points, rows, breadth)
    ways = {
        (first, then): tuple(
            places[points.passages[first, layer]]
            for layer in range(layers[first] + 1, layers[then])
            if points.passages
        )
        for then, firsts in enumerate(before)
        for first in firsts
        if layers[then] - layers[first] > 1
    }
    return Layout(tuple(layers), tuple(places[: len(layers)]), ways, breadth)


def arrows_of(plan: Planned) -> dict[tuple[int, int], bool]:
    """What comes after what, as (before, after) -> whether it is a wait for another lane.

    What is no wait is implied by waits and by the order on the lanes. Numbers are places in the
    order of issue.
    """
    made = plan.schedule
    place_of = {entry.job: place for place, entry in enumerate(made.entries)}
    arrows = {}
    for place, entry in enumerate(made.entries):
        for job in {*made.jobs[entry.job].after, *entry.waits} & place_of.keys():
            arrows[place_of[job], place] = job in entry.waits
    return dict(sorted(arrows.items()))


def layers_of(before: Sequence[Collection[int]]) -> list[int]:
    """The number of arrows on the longest way from a start to each node.

    >>> layers_of([(1,), (), (0, 1)])
    [1, 0, 2]
    """
    layers = [0] * len(before)
    for number in TopologicalSorter(dict(enumerate(before))).static_order():
        layers[number] = max((layers[each] + 1 for each in before[number]), default=0)
    return layers


def crossings(rows: Sequence[Sequence[int]], above: Sequence[Collection[int]]) -> int:
    """How many pairs of links between neighbouring rows cross.

    Args:
        rows: Points from one side to the other.
        above: For each point those that it is linked to in the row before its own.

    >>> crossings([[0, 1], [2, 3]], [(), (), (1,), (0, 1)])
    1
    """
    count = 0
    for upper, lower in pairwise(rows):
        rank = {point: place for place, point in enumerate(upper)}
        seen: list[int] = []
        for point in lower:
            ends = [rank[each] for each in above[point] if each in rank]
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


class _Points:
    """Nodes, then the passages of arrows, each in a layer and linked to its neighbours."""

    def __init__(self, before: Sequence[Collection[int]], layers: Sequence[int]) -> None:
        self.nodes = len(before)
        self.layers = list(layers)
        self.above: list[list[int]] = [[] for _ in before]
        self.below: list[list[int]] = [[] for _ in before]
        self.passages: dict[tuple[int, int], int] = {}  # (node that arrows leave, layer) -> point
        last = [layer + 1 for layer in layers]  # the layer to which each node's arrows reach
        for then, firsts in enumerate(before):
            for first in firsts:
                last[first] = max(last[first], layers[then])
        if sum(last) - sum(layers) - self.nodes <= _MOST_PASSAGES:
            for node, end in enumerate(last):
                self._pass(node, end)
        for then, firsts in enumerate(before):
            for first in sorted(set(firsts)):
                self._link(self.passages.get((first, layers[then] - 1), first), then)

    def widths(self, row: Sequence[int]) -> float:
        """How much a row takes if nothing in it has room to spare."""
        return sum(map(self.width, row))

    def width(self, point: int) -> float:
        """How much a point takes of its row."""
        return 1.0 if point < self.nodes else _PASSAGE

    def pull(self, point: int, other: int) -> float:
        """How much two neighbours want to be level, beside a pull of 1."""
        upper, lower = sorted((point, other), key=self.layers.__getitem__)
        if len(self.below[upper]) == len(self.above[lower]) == 1:
            return _PULL_ALONE
        return _PULL_PASSAGE if max(point, other) >= self.nodes else 1.0

    def _pass(self, node: int, end: int) -> None:
        point = node
        for layer in range(self.layers[node] + 1, end):
            self.passages[node, layer] = len(self.layers)
            self.layers.append(layer)
            self.above.append([])
            self.below.append([])
            self._link(point, len(self.layers) - 1)
            point = len(self.layers) - 1

    def _link(self, upper: int, lower: int) -> None:
        self.below[upper].append(lower)
        self.above[lower].append(upper)


def _ordered(points: _Points) -> list[list[int]]:
    """Points by layer, in the order with the fewest crossings that sweeps up and down have met."""
    rows: list[list[int]] = [[] for _ in range(max(points.layers, default=-1) + 1)]
    for point, layer in enumerate(points.layers):
        rows[layer].append(point)
    best, fewest = [list(row) for row in rows], crossings(rows, points.above)
    # How far across its row each point is.
    share = {point: (place + 0.5) / len(row) for row in rows for place, point in enumerate(row)}
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        near = points.below if sweep % 2 else points.above
        for row in reversed(rows) if sweep % 2 else rows:
            middle = {
                point: sum(share[each] for each in near[point]) / len(near[point])
                if near[point]
                else share[point]
                for point in row
            }
            row.sort(key=middle.__getitem__)
            share.update({point: (place + 0.5) / len(row) for place, point in enumerate(row)})
        count = crossings(rows, points.above)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _placed(points: _Points, rows: Sequence[Sequence[int]], breadth: float) -> list[float]:
    """Where each point is: as near to the middle of its neighbours as its row allows."""
    places = [breadth / 2] * len(points.layers)
    for row in rows:
        for point, place in zip(row, _apart(points, row, places, breadth), strict=True):
            places[point] = place
    for sweep in range(_SWEEPS):
        for row in reversed(rows) if sweep % 2 else rows:
            wanted = list(places)
            for point in row:
                near = points.above[point] + points.below[point]
                pulls = [points.pull(point, each) for each in near]
                pulled = sum(pull * places[each] for pull, each in zip(pulls, near, strict=True))
                wanted[point] = pulled / sum(pulls) if near else places[point]
            for point, place in zip(row, _apart(points, row, wanted, breadth), strict=True):
                places[point] = place
    return places


def _apart(
    points: _Points, row: Sequence[int], wanted: Sequence[float], breadth: float
) -> list[float]:
    """Places of a row's points, in order and apart, with the least sum of squares of the moves.

    Where points want to be nearer than they may, they move as one block, to the mean of what they
    want (pool adjacent violators).
    """
    packed, total = [], 0.0  # where each would be if all stood at one end
    for point in row:
        packed.append(total + points.width(point) / 2)
        total += points.width(point)
    blocks: list[tuple[float, int]] = []  # the sum of what its points want, and their number
    for point, place in zip(row, packed, strict=True):
        block = (wanted[point] - place, 1)
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            other = blocks.pop()
            block = (other[0] + block[0], other[1] + block[1])
        blocks.append(block)
    shifts = [
        min(max(wants / count, 0.0), breadth - total)
        for wants, count in blocks
        for _ in range(count)
    ]
    return [place + shift for place, shift in zip(packed, shifts, strict=True)]
