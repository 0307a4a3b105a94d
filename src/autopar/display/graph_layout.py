"""Graph layout: places for tasks in layers, and for the arrows that pass layers by.

    layers by the longest way from a start  ->  order by the neighbours' mean  ->  places near it

An arrow that passes layers by has narrow places in them, so that it runs beside boxes, not behind
them. Arrows from one task share these. This is the method of Sugiyama, Tagawa and Toda (1981).
Networkx and numpy are imported when they are needed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import networkx

_PASSAGE = 0.4  # how wide the place of a passing arrow is, in widths of a box
_MOST_PASSAGES = 2_000  # arrows among more can't be followed anyway: they run straight
_SWEEPS = 24  # after fewer the order hardly changes any more

Arrow = tuple[int, int]  # from which task to which
Point = int | tuple[int, int]  # a task's number, or whose arrow passes which layer


class Layout(NamedTuple):
    """Where points are: in which layer, and where across it, in widths of a box."""

    rows: list[list[Point]]
    places: dict[Point, float]
    breadth: float  # what the widest layer takes
    ways: dict[Arrow, list[Point]]  # the points that each arrow joins


def laid_out(count: int, arrows: Collection[Arrow]) -> Layout:
    """Lay out tasks, numbered from 0, and the arrows between them."""
    graph, ways = _routes(count, arrows)
    rows = _ordered(graph)
    return Layout(rows, *_placed(graph, rows), ways)


def _routes(
    count: int, arrows: Collection[Arrow]
) -> tuple[networkx.DiGraph, dict[Arrow, list[Point]]]:
    """Tasks and the passages of arrows, linked layer to layer; the points that each arrow joins."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(arrows)
    layer_of = {p: n for n, row in enumerate(networkx.topological_generations(graph)) for p in row}
    passed = {(a, b): range(layer_of[a] + 1, layer_of[b]) for a, b in arrows}
    many = len({(a, n) for (a, _), layers in passed.items() for n in layers}) > _MOST_PASSAGES
    ways: dict[Arrow, list[Point]] = {
        (a, b): [a, *((a, n) for n in passed[a, b] if not many), b] for a, b in arrows
    }
    graph.clear_edges()
    for way in ways.values():
        networkx.add_path(graph, way)
    return graph, ways


def _ordered(graph: networkx.DiGraph) -> list[list[Point]]:
    """Points by layer, in the order with the fewest crossings that sweeps up and down have met."""
    import networkx

    rows = [list(row) for row in networkx.topological_generations(graph)]
    places = {p: (i + 0.5) / len(row) for row in rows for i, p in enumerate(row)}
    best, fewest = [*map(list, rows)], _crossings(rows, graph, places)
    for sweep in range(_SWEEPS if fewest else 0):
        near = graph.succ if sweep % 2 else graph.pred
        for row in rows[:: -1 if sweep % 2 else 1]:
            middles = {p: fmean(places[other] for other in near[p] or [p]) for p in row}
            row.sort(key=middles.__getitem__)
            places.update((p, (i + 0.5) / len(row)) for i, p in enumerate(row))
        if (count := _crossings(rows, graph, places)) < fewest:
            best, fewest = [*map(list, rows)], count
    return best


def _placed(graph: networkx.DiGraph, rows: list[list[Point]]) -> tuple[dict[Point, float], float]:
    """Points' places across their layers, in widths of a box; what the widest layer takes.

    Each is as near to the mean of its neighbours as the order and the others' widths allow.
    """
    import numpy as np

    widths = {point: 1.0 if isinstance(point, int) else _PASSAGE for point in graph}
    breadth = max(sum(widths[point] for point in row) for row in rows)
    # Arrows look calm where they run straight: above all those of chains, then long ones.
    pulls = {(p, p): 1.0 for p in graph}
    for a, b in graph.edges:
        alone = len(graph.succ[a]) == len(graph.pred[b]) == 1
        pulls[a, b] = pulls[b, a] = 50.0 if alone else 2.0 if widths[a] + widths[b] < 2 else 1.0
    near = {p: [*graph.pred[p], *graph.succ[p]] or [p] for p in graph}
    places = dict.fromkeys(graph, breadth / 2)
    for sweep in range(_SWEEPS):
        for row in rows[:: -1 if sweep % 2 else 1]:
            wanted = [
                fmean([places[o] for o in near[p]], [pulls[p, o] for o in near[p]]) for p in row
            ]
            taken = np.array([widths[p] for p in row])
            packed = taken.cumsum() - taken / 2  # where they are if all stand at one end
            shift = np.array(wanted) - packed
            up, down = np.maximum.accumulate(shift), np.minimum.accumulate(shift[::-1])[::-1]
            packed += np.clip((up + down) / 2, 0, breadth - taken.sum())
            places.update(zip(row, packed.tolist(), strict=True))
    return places, breadth


def _crossings(
    rows: Sequence[Sequence[Point]], graph: networkx.DiGraph, places: Mapping[Point, float]
) -> int:
    count = 0
    for row in rows:
        seen: list[float] = []
        for _, end in sorted((places[a], places[b]) for a in row for b in graph[a]):
            count += len(seen) - bisect_right(seen, end)
            insort(seen, end)
    return count
