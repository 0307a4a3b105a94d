"""Layers: the longest way, few crossings, places apart, and arrows that pass beside boxes."""

import random
from graphlib import CycleError
from itertools import combinations, pairwise
from typing import NamedTuple

import pytest

from autopar import layers
from autopar.layers import arrows_of, crossings, layers_of, layout
from autopar.schedule import Entry, Job, Resource, Schedule, schedule


class Hand(NamedTuple):
    schedule: Schedule


def by_chance(seed: int, count: int = 30, reach: int = 12) -> list[tuple[int, ...]]:
    chance = random.Random(seed)
    return [
        tuple(
            {chance.randrange(max(0, i - reach), i) for _ in range(chance.randint(0, 3))}
            if i
            else ()
        )
        for i in range(count)
    ]


def rows_of(made: layers.Layout) -> list[list[int]]:
    """Nodes by layer, in their order across."""
    rows: list[list[int]] = [[] for _ in range(max(made.layers) + 1)]
    for node in sorted(range(len(made.layers)), key=made.places.__getitem__):
        rows[made.layers[node]].append(node)
    return rows


def test_a_layer_is_the_longest_way_from_a_start() -> None:
    assert layers_of([]) == []
    assert layers_of([(), ()]) == [0, 0]
    assert layers_of([(), (0,), (1,), (0, 2)]) == [0, 1, 2, 3]
    assert layers_of([(2, 1), (2,), ()]) == [2, 1, 0]  # in any order of numbers


@pytest.mark.parametrize("seed", range(10))
def test_every_node_is_one_layer_below_some_other(seed: int) -> None:
    before = by_chance(seed)
    found = layers_of(before)
    for node, firsts in enumerate(before):
        assert found[node] == max((found[each] + 1 for each in firsts), default=0)


def test_circles_are_refused() -> None:
    with pytest.raises(CycleError):
        layout([(1,), (0,)])


def test_nothing_has_a_layout_too() -> None:
    assert layout([]) == ((), (), {}, 0.0)


@pytest.mark.parametrize("seed", range(10))
def test_crossings_are_pairs_of_links_in_opposite_orders(seed: int) -> None:
    chance = random.Random(seed)
    upper, lower = list(range(6)), list(range(6, 14))
    chance.shuffle(upper)
    above = [()] * 6 + [tuple(chance.sample(range(6), chance.randint(0, 4))) for _ in lower]
    links = [(upper.index(one), place) for place, node in enumerate(lower) for one in above[node]]
    crossed = sum((a - c) * (b - d) < 0 for (a, b), (c, d) in combinations(links, 2))
    assert crossings([upper, lower], above) == crossed


def test_crossings_that_need_not_be_are_taken_out() -> None:
    # Two chains, and a tree of which each child comes before another one's children.
    chains = layout([(), (), (1,), (0,), (3,), (2,)])
    assert crossings(rows_of(chains), [(), (), (1,), (0,), (3,), (2,)]) == 0
    tree = [(), (0,), (0,), (0,), (3,), (1,), (2,), (3,), (1,), (2,)]
    assert crossings(rows_of(layout(tree)), tree) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_no_worse_than_that_of_the_program(seed: int) -> None:
    before = by_chance(seed, reach=5)
    points = layers._Points(before, layers_of(before))
    rows: list[list[int]] = [[] for _ in range(max(points.layers) + 1)]
    for point, layer in enumerate(points.layers):
        rows[layer].append(point)
    ordered = layers._ordered(points)
    assert [sorted(row) for row in ordered] == rows
    assert crossings(ordered, points.above) <= crossings(rows, points.above)


@pytest.mark.parametrize("seed", range(20))
def test_nodes_and_passing_arrows_are_apart_and_within_the_breadth(seed: int) -> None:
    before = by_chance(seed)
    made = layout(before)
    taken: dict[int, set[tuple[float, float]]] = {}  # in each layer: places and widths
    for layer, place in zip(made.layers, made.places, strict=True):
        taken.setdefault(layer, set()).add((place, 1.0))
    for (first, _), way in made.ways.items():
        for layer, place in enumerate(way, start=made.layers[first] + 1):
            taken[layer].add((place, layers._PASSAGE))
    for places in taken.values():
        inner = sorted(places)
        assert inner[0][0] >= inner[0][1] / 2 - 1e-9
        assert inner[-1][0] <= made.breadth - inner[-1][1] / 2 + 1e-9
        for (place, width), (other, other_width) in pairwise(inner):
            assert other - place >= (width + other_width) / 2 - 1e-9
    assert made.breadth == pytest.approx(
        max(sum(width for _, width in places) for places in taken.values())
    )


def test_arrows_pass_each_layer_between_their_ends_and_share_the_places() -> None:
    made = layout([(), (0,), (1,), (2,), (0, 3), (0, 2)])
    assert made.layers == (0, 1, 2, 3, 4, 3)
    assert set(made.ways) == {(0, 4), (0, 5)}
    assert len(made.ways[0, 4]) == 3
    assert made.ways[0, 4][:2] == made.ways[0, 5]


def test_chains_run_straight_and_starts_stand_in_the_middle() -> None:
    assert set(layout([(), (0,), (1,), (2,)]).places) == {0.5}
    made = layout([(), (0,), (0,), (0,), (1,), (2,), (3,), (4, 5, 6)])
    assert made.places[0] == made.places[7] == pytest.approx(1.5)
    assert made.places[1:4] == pytest.approx(made.places[4:7])


def test_long_arrows_run_straight_where_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [tuple(range(i)) for i in range(10)]
    assert all(layout(before).ways.values())
    monkeypatch.setattr(layers, "_MOST_PASSAGES", 5)
    made = layout(before)
    assert set(made.ways.values()) == {()}
    assert made.breadth == 1.0


def test_layouts_do_not_change_from_time_to_time() -> None:
    before = by_chance(1)
    assert layout(before) == layout([tuple(reversed(firsts)) for firsts in before])


def test_arrows_are_waits_or_implied() -> None:
    jobs = [
        Job("a", "cpu", 1.0),
        Job("b", "gpu", 1.0, (0,)),
        Job("c", "gpu", 1.0, (0, 1)),
        Job("d", "cpu", 1.0, (0, 2)),
    ]
    made = schedule(jobs, {"cpu": Resource(), "gpu": Resource()})
    waits = {(0, 1): True, (0, 2): False, (1, 2): False, (0, 3): False, (2, 3): True}
    assert arrows_of(Hand(made)) == waits


def test_arrows_count_by_the_order_of_issue_and_have_waits_that_are_no_dependencies() -> None:
    jobs = (Job("late", "cpu", 1.0), Job("early", "gpu", 1.0), Job("left out", "gpu", 1.0))
    entries = (Entry(1, "gpu", (), 0.0, 1.0), Entry(0, "cpu", (1, 2), 1.0, 2.0))
    assert arrows_of(Hand(Schedule(jobs, entries))) == {(0, 1): True}
