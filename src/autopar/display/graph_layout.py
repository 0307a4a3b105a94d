"""Graph layout: where the tasks of a plan stand in its picture, in layers or in columns.

    layers by the longest way from a start  ->  order by the neighbours' mean  ->  places near it

An arrow that passes layers by has narrow places in them, so that it runs beside boxes, not behind
them. Arrows from one task share these. This is the method of Sugiyama, Tagawa and Toda (1981).
networkx and numpy are imported when they are needed.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from autopar.timeline.groups import grouped
from autopar.timeline.span import Timeline

if TYPE_CHECKING:
    import networkx

_PASSAGE = 0.4  # how wide the place of a passing arrow is, in widths of a box
_MOST_TASKS = 200  # arrows among more can't be followed anyway: they pass behind boxes
_SWEEPS = 24  # after fewer the order hardly changes any more
_ON_GPU = re.compile(r"cuda:(\d+)\b")
_CHAIN = 50.0  # how much more a chain's arrows pull than others, so that they run straight

Arrow = tuple[int, int]  # from which task to which
Point = int | tuple[int, int]  # a task's number, or whose arrow passes which layer


class _Job(NamedTuple):
    name: str
    resource: str
    after: tuple[int, ...]


class _Entry(NamedTuple):
    job: int
    lane: str
    waits: tuple[int, ...]


@dataclass(frozen=True)
class _Order:
    jobs: tuple[_Job, ...]
    entries: tuple[_Entry, ...]


def plan_of_run(
    timeline: Timeline, arrows: Mapping[str, float], names: Callable[[str], str]
) -> SimpleNamespace:
    """What can be drawn as the plan is of which a run's timeline and the arrows are."""
    number = {span.name: n for n, span in enumerate(timeline.spans)}
    before: dict[int, dict[int, float]] = {n: {} for n in number.values()}
    for arrow, wait in arrows.items():
        first, is_arrow, then = arrow.partition(" -> ")
        if is_arrow:  # a record has other values, too
            before[number[then]][number[first]] = wait
    jobs, entries = [], []
    for n, span in enumerate(timeline.spans):
        jobs.append(_Job(names(span.name), span.lane.partition(" #")[0], (*before[n],)))
        waits = tuple(one for one, wait in before[n].items() if wait)
        entries.append(_Entry(n, span.lane, waits))
    return SimpleNamespace(schedule=_Order((*jobs,), (*entries,)))


def arrows_of(plan: Any) -> dict[Arrow, bool]:
    """What comes after what, by place in the order of issue -> whether it waits for another lane.

    What is no wait is implied by waits and by the order on the lanes.
    """
    schedule = plan.schedule
    place_of = {entry.job: place for place, entry in enumerate(schedule.entries)}
    return {
        (place_of[job], place): job in entry.waits
        for place, entry in enumerate(schedule.entries)
        for job in sorted({*schedule.jobs[entry.job].after, *entry.waits} & place_of.keys())
    }


def without(plan: Any, names: Collection[str]) -> Any:
    """The plan without tasks of these names; what comes after one comes after what it did."""
    schedule = plan.schedule
    hidden = {number for number, job in enumerate(schedule.jobs) if job.name in names}
    after = {number: set(job.after) for number, job in enumerate(schedule.jobs)}
    waits: dict[int, set[int]] = {}
    for entry in schedule.entries:  # each after all that it comes after
        waits[entry.job] = set(entry.waits)
        for before in hidden & (after[entry.job] | waits[entry.job]):
            after[entry.job] |= after[before]
            waits[entry.job] |= after[before] if before in waits[entry.job] else waits[before]
        after[entry.job] -= hidden
        waits[entry.job] -= hidden
    jobs = tuple(job._replace(after=(*after[n],)) for n, job in enumerate(schedule.jobs))
    entries = tuple(
        entry._replace(waits=(*waits[entry.job],))
        for entry in schedule.entries
        if entry.job not in hidden
    )
    return SimpleNamespace(schedule=replace(schedule, jobs=jobs, entries=entries))


def is_copy(lane: str) -> bool:
    """Whether a lane copies: devices have no blanks in their names, what is between them has."""
    return " to " in lane or " from " in lane


def in_layers(
    count: int, arrows: Collection[Arrow]
) -> tuple[list[list[Point]], dict[Point, float], dict[Arrow, list[Point]]]:
    """Points by layer, their places across it in widths of a box, and the points on each arrow."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(arrows)
    rows = list(networkx.topological_generations(graph))
    layer_of = {task: layer for layer, row in enumerate(rows) for task in row}
    graph.clear_edges()
    ways: dict[Arrow, list[Point]] = {}
    for a, b in arrows:
        passed = range(layer_of[a] + 1, layer_of[b]) if count <= _MOST_TASKS else ()
        for layer in passed:
            if (a, layer) not in graph:
                rows[layer].append((a, layer))
        ways[a, b] = [a, *((a, layer) for layer in passed), b]
        networkx.add_path(graph, ways[a, b])
    rows = min(_orders(graph, rows), key=partial(_crossings, graph))
    return rows, _placed(graph, rows), ways


def _orders(graph: networkx.DiGraph, rows: list[list[Point]]) -> Iterator[list[list[Point]]]:
    """Sort rows by means of neighbours' places, above and below by turns."""
    places = {point: (i + 0.5) / len(row) for row in rows for i, point in enumerate(row)}
    for sweep in range(_SWEEPS):
        yield [*map(list, rows)]
        near = graph.succ if sweep % 2 else graph.pred
        for row in rows[:: -1 if sweep % 2 else 1]:
            means = {p: fmean(places[other] for other in near[p] or [p]) for p in row}
            row.sort(key=means.__getitem__)
            places.update((point, (i + 0.5) / len(row)) for i, point in enumerate(row))


def _crossings(graph: networkx.DiGraph, rows: list[list[Point]]) -> int:
    places = {point: i for row in rows for i, point in enumerate(row)}
    count = 0
    for row in rows:
        seen: list[int] = []
        for _, end in sorted((places[a], places[b]) for a in row for b in graph[a]):
            count += len(seen) - bisect_right(seen, end)
            insort(seen, end)
    return count


def _placed(graph: networkx.DiGraph, rows: list[list[Point]]) -> dict[Point, float]:
    """Points' places, as near to the mean of their neighbours as order and widths allow."""
    import numpy as np

    widths = {point: 1.0 if isinstance(point, int) else _PASSAGE for point in graph}
    breadth = max(sum(widths[point] for point in row) for row in rows)
    pulls: dict[Point, dict[Point, float]] = {point: {} for point in graph}
    for a, b in graph.edges:
        chain = len(graph.succ[a]) == len(graph.pred[b]) == 1
        pulls[a][b] = pulls[b][a] = _CHAIN if chain else 1.0
    places = dict.fromkeys(graph, breadth / 2)
    for sweep in range(_SWEEPS):
        for row in rows[:: -1 if sweep % 2 else 1]:
            around = [pulls[point] or {point: 1.0} for point in row]
            wanted = [fmean(map(places.__getitem__, near), near.values()) for near in around]
            taken = np.array([widths[point] for point in row])
            packed = taken.cumsum() - taken / 2  # where they are if all stand at one end
            shift = np.array(wanted) - packed
            up, down = np.maximum.accumulate(shift), np.minimum.accumulate(shift[::-1])[::-1]
            packed += np.clip((up + down) / 2, 0, breadth - taken.sum())
            places.update(zip(row, packed.tolist(), strict=True))
    return places


def rows_of(columns: Sequence[str], arrows: Collection[Arrow]) -> list[int]:
    """The row of each task: below all in its column so far, and below all that it comes after."""
    before = grouped(arrows, lambda arrow: arrow[1])
    lowest = dict.fromkeys(columns, -1)
    rows: list[int] = []
    for task, column in enumerate(columns):
        above = (rows[other] for other, _ in before.get(task, ()))
        lowest[column] = 1 + max([lowest[column], *above])
        rows.append(lowest[column])
    return rows


def columns_of(lanes: Collection[str]) -> dict[str, str]:
    """The column of each lane: half of the GPUs before the CPU, and copies on the side of it."""
    gpus = {lane: int(found[1]) for lane in lanes if (found := _ON_GPU.match(lane))}
    numbers = sorted(set(gpus.values()))
    left = numbers[: (len(numbers) + 1) // 2]
    columns = []
    for lane in lanes:
        number, copies = gpus.get(lane, 0), is_copy(lane)
        if lane in gpus:
            side, title = (0 if number in left else 2), f"GPU {number}{', copies' * copies}"
        else:
            side, title = (1, "CPU") if lane.split(" ")[0] == "cpu" else (3, lane)
        columns.append((side, number, copies == (side == 0), lane, title))
    return {lane: title for *_, lane, title in sorted(columns, key=lambda column: column[:3])}
