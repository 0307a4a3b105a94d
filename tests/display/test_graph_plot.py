"""Plots of plans: a box for each task, an arrow for each dependency, and nothing in the way."""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from plan_pictures import (
    arrows_of,
    boxes_of,
    by_chance,
    corners_of,
    cpu,
    legend_of,
    plan,
    step,
    tasks,
    waits_of,
    words_of,
)

from autopar import TaskGraph, plot
from autopar.display import graph_plot
from autopar.graph.node import resource_of
from autopar.graph.schedule import Entry, Job, Schedule

pytestmark = pytest.mark.usefixtures("no_windows")
DIAMOND = plan(cpu("load"), cpu("half", 0), cpu("half", 0), cpu("join", 1, 2), lanes=2)
LONG = Job("forward first half to cuda:1, batch 0", "cuda:0 to cuda:1", 1.0, (0,))


def test_a_plan_has_a_box_for_each_task_and_an_arrow_for_each_dependency():
    ax = plot.graph(DIAMOND, title="Diamond")
    assert ax.get_title() == "Diamond"
    assert words_of(ax) == ["A: load", "A: half", "B: half", "A: join"]
    assert waits_of(ax) == {(0, 1): False, (0, 2): True, (1, 3): False, (2, 3): True}
    assert legend_of(ax) == ["A: cpu #0", "B: cpu #1", "waits for another lane", "on the same lane"]
    for text, (low, high) in zip(ax.texts, corners_of(ax), strict=True):
        assert text.get_position() == pytest.approx((low + high) / 2)
    # The legend has only what is drawn.
    ax = plot.graph(plan(cpu("alone")))
    assert (words_of(ax), legend_of(ax)) == (["alone"], ["cpu"])  # of one lane there is no letter
    assert legend_of(plot.graph(tasks((), (0,))))[1:] == ["on the same lane"]


def test_arrows_count_by_the_order_of_issue_and_have_waits_that_are_no_dependencies():
    jobs = (Job("late", "cpu", 1.0), Job("early", "gpu", 1.0), Job("left out", "gpu", 1.0))
    entries = (Entry(1, "gpu", (), 0.0, 1.0), Entry(0, "cpu", (1, 2), 1.0, 2.0))
    hand = plan(cpu("a"))
    hand.schedule = Schedule(jobs, entries)
    assert waits_of(plot.graph(hand)) == {(0, 1): True}


def test_lanes_differ_by_letter_and_copies_by_outline():
    copies = [Job(f"copy {i}", f"cuda:{i} to host", 1.0) for i in range(4)]
    many = plan(*(cpu(f"task {i}") for i in range(28)), *copies, lanes=28)
    ax = plot.graph(many, plt.figure(figsize=(6, 9)).subplots())
    letters = [words.split(": ")[0] for words in legend_of(ax)]
    assert (len({*letters}), letters[25:28]) == (32, ["Z", "AA", "BB"])
    assert legend_of(ax)[2] == "C: cpu #2"  # and not "cpu #10"
    dashed = [box.get_linestyle() != "-" for box in boxes_of(ax)]
    assert dashed == [" to " in entry.lane for entry in many.schedule.entries]


@pytest.mark.parametrize("colours", [graph_plot.COMPUTE, graph_plot.COPY])
def test_words_can_be_read_on_the_colours_of_lanes(colours):
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


@pytest.mark.parametrize("planned", [DIAMOND, plan(cpu("alone"), LONG), by_chance(0)])
@pytest.mark.parametrize("given", [False, True])
def test_nothing_lies_on_something_else(planned, given):
    ax = plot.graph(planned, plt.subplots(1, 2, figsize=(9, 4))[1][1] if given else None)
    ax.figure.canvas.draw()
    frame, legend = ax.get_window_extent(), ax.get_legend().get_window_extent()
    extents = [box.get_window_extent() for box in boxes_of(ax)]
    assert len(extents) == len(planned.schedule.entries)
    assert not any(one.overlaps(other) for one, other in combinations(extents, 2))
    for box, text in zip(extents, ax.texts, strict=True):
        assert legend.y1 <= box.y0 <= box.y1 <= frame.y1
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
        if text.get_text():
            words = text.get_window_extent()
            assert box.x0 - 1 <= words.x0 <= words.x1 <= box.x1 + 1
    assert len(plt.get_fignums()) == 1
    assert legend.width <= ax.figure.bbox.width


@settings(max_examples=4)
@given(st.integers(0, 1000))
def test_a_layer_is_the_longest_way_from_a_start_and_arrows_run_beside_boxes(seed):
    planned = by_chance(seed)
    ax = plot.graph(planned)
    tops, layers = corners_of(ax)[:, 0, 1].round(3), {}
    for entry in planned.schedule.entries:
        after = planned.schedule.jobs[entry.job].after
        layers[entry.job] = max((layers[before] + 1 for before in after), default=0)
    levels = sorted({*tops})
    assert [levels.index(top) for top in tops] == [*layers.values()]
    inner = [box.get_bbox().padded(-0.03) for box in boxes_of(ax)]
    for arrow in arrows_of(ax):
        points = arrow._path_original.interpolated(20).vertices
        assert not any(box.count_contains(points) for box in inner)
    plt.close("all")


CHAINS = ((), (), (1,), (0,), (3,), (2,))
TREE = ((), (0,), (0,), (0,), (3,), (1,), (2,), (3,), (1,), (2,))
FORK = ((), (0,), (0,), (0,), (1,), (2,), (3,), (4, 5, 6))


@pytest.mark.parametrize("before", [CHAINS, TREE, FORK])
def test_arrows_that_need_not_cross_do_not_and_chains_run_straight(before):
    ax = plot.graph(tasks(*before))
    middles = {
        int(words): corners.mean(axis=0)
        for words, corners in zip(words_of(ax), corners_of(ax), strict=True)
    }
    links = [(middles[a], middles[b]) for b, firsts in enumerate(before) for a in firsts]
    for (one, to), (other, other_to) in combinations(links, 2):
        if one[1] == other[1]:
            assert (one[0] - other[0]) * (to[0] - other_to[0]) >= 0
    straight = [(one, to) for one, to in links if before in (CHAINS, FORK) and one[1] < 2 <= to[1]]
    assert all(one[0] == pytest.approx(to[0], abs=0.1) for one, to in straight)


def test_the_same_plan_has_the_same_picture():
    before = [job.after for job in by_chance(1).schedule.jobs]
    one, other = (plot.graph(tasks(*after)) for after in (before, [to[::-1] for to in before]))
    np.testing.assert_array_equal(corners_of(one), corners_of(other))
    assert waits_of(one) == waits_of(other)


def test_names_are_drawn_as_they_are_and_broken_or_shortened():
    long = "a very long name of something that is done on a device, number 17"
    names = [long, "x" * 60, "$x_1$ and $y", "two\nlines", "100 %", "a\x1bb"]
    chain = [cpu(name, *range(max(0, i - 1), i)) for i, name in enumerate(names)]
    ax = plot.graph(plan(*chain, Job("copy", "$x^$ to host", 1.0)))
    ax.figure.canvas.draw()
    first, second, *others = [words for words in words_of(ax) if words != "B: copy"]
    assert first.startswith("A: a very")
    assert first.endswith("\u2026")
    assert {*second} <= {*"A: x\u2026"}
    assert others == ["A: $x_1$ and $y", "A: two lines", "A: 100 %", "A: a\ufffdb"]
    assert legend_of(ax)[1] == r"B: \$x^\$ to host"  # it is drawn as $x^$
    assert not any(text.get_parse_math() for text in ax.texts)


def test_of_very_many_tasks_there_are_the_boxes_without_names():
    ax = plot.graph(plan(*map(cpu, map(str, range(200))), cpu("sum", *range(200)), lanes=4))
    assert (len(boxes_of(ax)), len(arrows_of(ax)), len(legend_of(ax))) == (201, 200, 6)
    assert not any(words_of(ax))
    assert ax.figure.get_figheight() < 20


def test_a_figure_is_as_high_as_its_plan_needs_up_to_a_bound():
    chains = [tasks((), *((i,) for i in range(count))) for count in (2, 9, 40, 41)]
    two, nine, *most = (plot.graph(chain).figure.get_figheight() for chain in chains)
    assert two < nine < most[0] == most[1]


def test_what_is_no_plan_or_one_of_nothing_is_refused():
    with pytest.raises(ValueError, match="plan has no tasks; expected"):
        plot.graph(TaskGraph().plan())
    with pytest.raises(ValueError, match="no tasks but those to hide"):
        plot.graph(plan(cpu("alone")), hide=["alone"])
    with pytest.raises(TypeError, match=r"plan is of type TaskGraph; expected .*graph\.plan\(\)"):
        plot.graph(TaskGraph())
    assert plt.get_fignums() == []


def test_a_task_graphs_plan_is_drawn_and_a_run_as_its_plan_from_numbers_that_a_record_keeps():
    graph = TaskGraph(cpu_lanes=2)
    x = torch.ones(2, 2)
    graph.add(torch.stack, [graph.add(torch.mm, x, x, name=f"mm {i}") for i in range(3)])
    run = graph.run(timed=True)
    arrows = run.plan.arrows | {"estimate, s": 1.0}
    for ax in (plot.graph(run.plan), plot.graph(run.timeline, arrows=arrows, names=str.upper)):
        names = sorted(words.split(": ")[-1].lower() for words in words_of(ax))
        assert names == ["mm 0", "mm 1", "mm 2", "stack"]
        assert sum(waits_of(ax).values()) == sum(run.plan.arrows.values())
        assert len(arrows_of(ax)) == 3


def test_columns_have_the_cpu_in_the_middle_and_tasks_below_what_they_come_after():
    drawn = step()
    ax = plot.graph(drawn, columns=True)
    corners = corners_of(ax).mean(axis=1).round(3)
    lanes = [entry.lane.split(" ")[0] for entry in drawn.schedule.entries]
    columns = dict(zip(corners[:, 0], lanes, strict=True))
    order = [columns[x] for x in sorted(columns)]
    assert order == ["cuda:0", "cuda:0", "cpu", "cuda:1", "cuda:1"]
    headers = [text.get_text() for text in ax.texts[:5]]
    assert headers == ["GPU 0", "GPU 0, copies", "CPU", "GPU 1, copies", "GPU 1"]
    sizes = [text.get_fontsize() for text in ax.texts]
    assert min(sizes[:5]) > max(sizes[5:])
    assert all(corners[before][1] < corners[task][1] for before, task in waits_of(ax))
    assert len({*map(tuple, corners)}) == len(lanes)
    assert legend_of(ax) == ["waits for another lane", "is next on its lane"]
    assert not plot.graph(plan(cpu("alone")), columns=True).get_legend()


def test_columns_leave_out_waits_that_others_imply_and_have_a_programs_own_lanes():
    jobs = Job("a", "cuda:0", 1.0), Job("b", "cuda:0", 1.0, (0,)), Job("c", "disk", 1.0, (0, 1))
    ax = plot.graph(plan(*jobs), columns=True)
    assert waits_of(ax) == {(0, 1): False, (1, 2): True}
    assert [text.get_text() for text in ax.texts[:2]] == ["GPU 0", "disk"]


@pytest.mark.parametrize("columns", [False, True])
def test_what_comes_after_a_hidden_task_comes_after_what_it_came_after(columns):
    ax = plot.graph(step(), hide=["view 0", "view 1"], columns=columns)
    names = [words.split(": ")[-1] for words in words_of(ax)]
    arrows = {(names[a], names[b]): wait for (a, b), wait in waits_of(ax).items()}
    assert "view 0" not in names
    assert arrows["product 0", "up 0"]
    assert len([pair for pair, wait in arrows.items() if wait]) == 6
