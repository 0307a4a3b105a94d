"""Plots of plans: a box for each task, an arrow for each dependency, and nothing in the way."""

from functools import partial
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from plan_pictures import (
    MANY,
    Hand,
    arrows_between,
    arrows_of,
    box_of,
    boxes_of,
    by_chance,
    cholesky,
    cpu,
    ends_of,
    halves,
    legend_of,
    letters_of,
    middles_of,
    names_of,
    plan,
    products,
    step,
    tasks,
    waits_of,
)

from autopar import TaskGraph, plot
from autopar.display import graph_plot
from autopar.graph.node import resource_of
from autopar.graph.schedule import Entry, Job, Schedule

pytestmark = pytest.mark.usefixtures("no_windows")


def test_graph_has_a_box_for_each_task_and_an_arrow_for_each_dependency():
    ax = plot.graph(MANY["diamond"], title="Diamond")
    assert ax.get_title() == "Diamond"
    assert names_of(ax) == ["load", "left", "right", "join"]
    assert letters_of(ax) == ["A", "A", "B", "A"]
    assert [box_of(ax, text) for text in ax.texts] == [0, 0, 1, 1, 2, 2, 3, 3]
    waits = dict(zip(map(partial(ends_of, ax), arrows_of(ax)), waits_of(ax), strict=True))
    assert waits == {(0, 1): False, (0, 2): True, (1, 3): False, (2, 3): True}
    assert legend_of(ax) == ["A: cpu #0", "B: cpu #1", "waits for another lane", "needs no wait"]
    # The legend has only what is drawn.
    assert legend_of(plot.graph(plan(cpu("alone"), lanes=1))) == ["A: cpu"]
    assert legend_of(plot.graph(plan(cpu("a"), cpu("b", 0), lanes=1)))[1:] == ["needs no wait"]


def test_lanes_differ_by_letter_and_copies_by_outline():
    copies = [Job(f"copy {i}", f"cuda:{i} to host", 1.0) for i in range(4)]
    many = plan(*(cpu(f"task {i}") for i in range(28)), *copies, lanes=28)
    ax = plot.graph(many, plt.figure(figsize=(6, 9)).subplots())
    assert legend_of(ax)[2] == "C: cpu #2"  # and not "cpu #10"
    assert len(set(letters_of(ax))) == 32
    dashed = [box.get_linestyle() != "-" for box in boxes_of(ax)]
    assert dashed == [" to " in entry.lane for entry in many.schedule.entries]


@pytest.mark.parametrize("colours", [graph_plot.COMPUTE, graph_plot.COPY])
def test_letters_can_be_read_on_the_colours_of_lanes(colours):
    def light(colour):
        parts = np.array(to_rgb(colour))
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for colour, ink in colours.items():
        dark, bright = sorted([light(colour), light(ink)])
        assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_copies_are_known_by_the_names_that_nodes_give():
    host, first, second = torch.device("cpu"), torch.device("cuda:0"), torch.device("cuda:1")
    pairs = [(host, first), (first, host), (first, second)]
    assert all(graph_plot.is_copy(resource_of(to, source)) for source, to in pairs)
    assert not any(graph_plot.is_copy(resource_of(device)) for device in (host, first))


@pytest.mark.parametrize("which", MANY)
@pytest.mark.parametrize("given", [False, True])
def test_nothing_lies_on_something_else(which, given):
    ax = plot.graph(MANY[which], plt.subplots(1, 2, figsize=(9, 4))[1][1] if given else None)
    ax.figure.canvas.draw()
    frame, legend = ax.get_window_extent(), ax.get_legend().get_window_extent()
    extents = [box.get_window_extent() for box in boxes_of(ax)]
    assert len(extents) == len(MANY[which].schedule.entries)
    assert not any(one.overlaps(other) for one, other in combinations(extents, 2))
    for box in extents:
        assert legend.y1 <= box.y0 <= box.y1 <= frame.y1
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
    words = {}
    for text in ax.texts:
        words.setdefault(box_of(ax, text), []).append(text.get_window_extent())
    for number, texts in words.items():
        box = extents[number]
        for extent in texts:
            assert box.x0 <= extent.x0 <= extent.x1 <= box.x1
            # The font's highest and lowest letters may need a little more than there is.
            assert box.y0 - 3 <= extent.y0 <= extent.y1 <= box.y1 + 3
        inner = [extent.shrunk(0.95, 0.7) for extent in texts]
        assert not any(one.overlaps(other) for one, other in combinations(inner, 2))
    if not given:
        assert {ends_of(ax, arrow) for arrow in arrows_of(ax)} == set(arrows_between(MANY[which]))
        assert len(letters_of(ax)) == len(extents)


@settings(deadline=None, derandomize=True, max_examples=8)
@given(st.integers(0, 1000))
def test_a_layer_is_the_longest_way_from_a_start(seed):
    planned = by_chance(seed)
    middles = middles_of(plot.graph(planned))
    plt.close("all")
    levels = sorted({along for along, _ in middles.values()})
    layers = {name: levels.index(along) for name, (along, _) in middles.items()}
    for name, job in enumerate(planned.schedule.jobs):
        assert layers[name] == max((layers[before] + 1 for before in job.after), default=0)


CHAINS = ((), (), (1,), (0,), (3,), (2,))
TREE = ((), (0,), (0,), (0,), (3,), (1,), (2,), (3,), (1,), (2,))


@pytest.mark.parametrize("before", [CHAINS, TREE])
def test_arrows_that_need_not_cross_do_not(before):
    middles = middles_of(plot.graph(tasks(*before)))
    links = [
        (middles[first], middles[then]) for then, firsts in enumerate(before) for first in firsts
    ]
    for (one, to), (other, other_to) in combinations(links, 2):
        if one[0] == other[0]:
            assert (one[1] - other[1]) * (to[1] - other_to[1]) >= 0


def test_chains_run_straight():
    middles = middles_of(plot.graph(tasks((), (0,), (0,), (0,), (1,), (2,), (3,), (4, 5, 6))))
    for upper, lower in ((0, 7), (1, 4), (2, 5), (3, 6)):
        assert middles[upper][1] == pytest.approx(middles[lower][1], abs=0.1)


@pytest.mark.parametrize("planned", [halves(), cholesky(5), *map(by_chance, range(3))])
def test_arrows_run_beside_boxes(planned):
    ax = plot.graph(planned)
    inner = [box.get_bbox().padded(-0.03) for box in boxes_of(ax)]
    for arrow in arrows_of(ax):
        points = arrow.get_path().interpolated(9).cleaned(curves=False).vertices
        assert not any(box.count_contains(points) for box in inner)


def test_the_same_plan_has_the_same_picture():
    before = [job.after for job in by_chance(1).schedule.jobs]
    turned = [first[::-1] for first in before]
    one, other = (plot.graph(tasks(*after)) for after in (before, turned))
    assert middles_of(one) == middles_of(other)
    for arrow, again in zip(arrows_of(one), arrows_of(other), strict=True):
        np.testing.assert_array_equal(arrow.get_path().vertices, again.get_path().vertices)


def test_arrows_count_by_the_order_of_issue_and_have_waits_that_are_no_dependencies():
    jobs = (Job("late", "cpu", 1.0), Job("early", "gpu", 1.0), Job("left out", "gpu", 1.0))
    entries = (Entry(1, "gpu", (), 0.0, 1.0), Entry(0, "cpu", (1, 2), 1.0, 2.0))
    assert arrows_between(Hand(Schedule(jobs, entries))) == {(0, 1): True}


def test_long_names_are_broken_or_shortened_in_the_middle():
    long = "a very long name of something that is done on a device, number 17"
    ax = plot.graph(plan(cpu(long), cpu("x" * 60, 0), cpu("short", 1), lanes=1))
    first, second, third = names_of(ax)
    assert first.startswith("a ver")
    assert first.endswith("number 17")
    assert "\u2026" in first
    assert set(second) - {" "} == {"x", "\u2026"}
    assert third == "short"


def test_names_are_drawn_as_they_are():
    names = ["$x_1$ and $y", "two\nlines", "100 %"]
    ax = plot.graph(plan(*map(cpu, names), Job("copy", "$x^$ to host", 1.0), lanes=1))
    ax.figure.canvas.draw()
    assert legend_of(ax)[1] == r"B: \$x^\$ to host"  # it is drawn as $x^$
    assert sorted(names_of(ax)) == ["$x_1$ and $y", "100 %", "copy", "two lines"]
    assert not any(text.get_parse_math() for text in ax.texts)


def test_a_wide_plan_goes_across_like_time_and_a_deep_one_down():
    ax = plot.graph(products(400))
    assert boxes_of(ax)[-1].get_x() > boxes_of(ax)[0].get_x()
    assert (len(boxes_of(ax)), len(arrows_of(ax)), len(legend_of(ax))) == (401, 400, 6)
    assert list(ax.texts) == []  # there is no room for names
    assert ax.figure.get_figheight() < 20
    ax = plot.graph(MANY["chain"])
    heights = [box.get_y() for box in boxes_of(ax)]
    assert heights == sorted(heights)
    assert ax.yaxis_inverted()


def test_graph_is_drawn_on_the_axes_given():
    sub = plt.figure(figsize=(6, 3)).subfigures(1, 2)[1].subplots()
    assert plot.graph(MANY["diamond"], sub) is sub
    legend = sub.get_legend().get_window_extent()
    assert legend.width <= sub.get_window_extent().width
    assert len(plt.get_fignums()) == 1


def test_what_is_no_plan_or_one_of_nothing_is_refused():
    with pytest.raises(ValueError, match="plan has no tasks"):
        plot.graph(TaskGraph().plan())
    with pytest.raises(ValueError, match="no tasks but those to hide"):
        plot.graph(MANY["one"], hide=["alone"])
    with pytest.raises(TypeError, match=r"plan is of type TaskGraph; expected .*graph\.plan\(\)"):
        plot.graph(TaskGraph())
    assert plt.get_fignums() == []


def test_graph_draws_the_plan_of_a_task_graph():
    graph = TaskGraph(cpu_lanes=2)
    x = torch.ones(2, 2)
    graph.add(torch.stack, [graph.add(torch.mm, x, x, name=f"mm {i}") for i in range(3)])
    for planned in (graph.plan(), graph.run().plan):
        ax = plot.graph(planned)
        assert sorted(names_of(ax)) == ["mm 0", "mm 1", "mm 2", "stack"]
        assert sum(waits_of(ax)) == sum(len(entry.waits) for entry in planned.schedule.entries)
        assert len(arrows_of(ax)) == 3


def test_a_run_is_drawn_as_its_plan_from_numbers_that_a_record_keeps():
    graph = TaskGraph(cpu_lanes=2)
    x = torch.ones(2, 2)
    graph.add(torch.stack, [graph.add(torch.mm, x, x, name=f"mm {i}") for i in range(3)])
    run = graph.run(timed=True)
    arrows = run.plan.arrows | {"estimate, s": 1.0}
    ax = plot.graph(run.timeline, arrows=arrows, names=str.upper)
    assert sorted(names_of(ax)) == ["MM 0", "MM 1", "MM 2", "STACK"]
    assert sum(waits_of(ax)) == sum(run.plan.arrows.values())
    assert len(arrows_of(ax)) == 3


def test_columns_have_the_cpu_in_the_middle_and_tasks_below_what_they_come_after():
    drawn = step()
    ax = plot.graph(drawn, columns=True)
    entries = drawn.schedule.entries
    middles = np.array([box.get_bbox() for box in boxes_of(ax)]).mean(axis=1).round(3)
    columns = {x: entry.lane.split(" ")[0] for entry, x in zip(entries, middles[:, 0], strict=True)}
    order = [columns[x] for x in sorted(columns)]
    assert order == ["cuda:0", "cuda:0", "cpu", "cuda:1", "cuda:1"]
    headers = [text.get_text() for text in ax.texts[:5]]
    assert headers == ["GPU 0", "GPU 0, copies", "CPU", "GPU 1, copies", "GPU 1"]
    for before, task in arrows_between(drawn):
        assert middles[before][1] < middles[task][1]
    assert len({*map(tuple, middles)}) == len(entries)
    assert legend_of(ax) == ["waits for another lane", "is next on its lane"]


def test_columns_leave_out_waits_that_others_imply():
    chain = plan(Job("a", "cuda:0", 1.0), Job("b", "cuda:0", 1.0, (0,)), cpu("c", 0, 1), lanes=1)
    assert sorted(waits_of(plot.graph(chain, columns=True))) == [False, True]


def test_columns_of_several_lanes_and_of_own_names():
    entries = Entry(0, "cuda:0 #0", (), 0, 1), Entry(1, "cuda:0 #1", (0,), 1, 2)
    jobs = Job("a", "cuda:0", 1.0), Job("b", "cuda:0", 1.0, (0,)), Job("c", "disk", 1.0, (1,))
    last = Entry(2, "disk", (1,), 2, 3)
    ax = plot.graph(Hand(Schedule(jobs, (*entries, last))), columns=True)
    assert [text.get_text() for text in ax.texts[:2]] == ["GPU 0", "disk"]
    assert len(arrows_of(ax)) == 2
    assert not plot.graph(MANY["one"], columns=True).get_legend()


@pytest.mark.parametrize("columns", [False, True])
def test_what_comes_after_a_hidden_task_comes_after_what_it_came_after(columns):
    ax = plot.graph(step(), hide=["view 0", "view 1"], columns=columns)
    assert not [text for text in ax.texts if "view" in text.get_text()]
    hidden = graph_plot.without(graph_plot.graph_of(step()), ["view 0", "view 1"])
    names = hidden.nodes(data="name")
    arrows = {(names[a], names[b]): wait for a, b, wait in hidden.edges(data="wait")}
    assert arrows["product 0", "up 0"]
    assert len(arrows) == 6
