"""Plans to draw, and what is read off their pictures: boxes, arrows, names and the legend."""

import random
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path as Curve

from autopar.display import graph_plot
from autopar.graph.schedule import Job, Resource, Schedule, schedule


class Hand(NamedTuple):
    """A plan made by hand: all that a drawing needs of one."""

    schedule: Schedule


def plan(*jobs, lanes=2):
    there = dict.fromkeys(job.resource for job in jobs)
    resources = {name: Resource(lanes if name == "cpu" else 1, lanes) for name in there}
    return Hand(schedule(jobs, resources))


def cpu(name, *after):
    return Job(name, "cpu", 1.0, after)


def tasks(*before):
    """A task for each, after those whose numbers it names, on one lane."""
    return plan(*(cpu(str(i), *firsts) for i, firsts in enumerate(before)), lanes=1)


def products(count):
    alone = [cpu(f"product {i}") for i in range(count)]
    return plan(*alone, cpu("sum", *range(count)), lanes=4)


def cholesky(blocks):
    jobs, last = [], {}  # who wrote each block

    def task(name, to, *read):
        after = sorted({last[block] for block in (to, *read) if block in last})
        last[to] = len(jobs)
        jobs.append(cpu(name, *after))

    for k in range(blocks):
        task(f"factor {k}", (k, k))
        for i in range(k + 1, blocks):
            task(f"solve {i},{k}", (i, k), (k, k))
        for i in range(k + 1, blocks):
            for j in range(k + 1, i + 1):
                task(f"update {i},{j} by {k}", (i, j), (i, k), (j, k))
    return plan(*jobs, lanes=4)


def halves():
    """Two batches through the halves of a model on two GPUs, and their losses back."""
    jobs = []
    for batch in range(2):
        for name, resource in (
            ("forward first half", "cuda:0"),
            ("forward first half to cuda:1", "cuda:0 to cuda:1"),
            ("forward second half and loss", "cuda:1"),
            ("loss to cpu", "cuda:1 to host"),
        ):
            after = (len(jobs) - 1,) if len(jobs) % 4 else ()
            jobs.append(Job(f"{name}, batch {batch}", resource, 1.0, after))
    return plan(*jobs, cpu("report", 3, 7))


def step():
    """Two GPUs whose results meet on the CPU and come back, with a view on one of them."""
    jobs = []
    for gpu in range(2):
        jobs += [
            Job(f"product {gpu}", f"cuda:{gpu}", 1.0),
            Job(f"view {gpu}", f"cuda:{gpu}", 0.0, (4 * gpu,)),
            Job(f"up {gpu}", f"cuda:{gpu} to host", 1.0, (4 * gpu + 1,)),
            Job(f"down {gpu}", f"cuda:{gpu} from host", 1.0, (8,)),
        ]
    return plan(*jobs, Job("sum", "cpu", 1.0, (2, 6)), lanes=1)


def by_chance(seed):
    chance = random.Random(seed)
    return tasks(
        *(tuple({chance.randrange(max(0, i - 9), i) for _ in range(min(i, 2))}) for i in range(25))
    )


MANY = {
    "one": plan(cpu("alone")),
    "diamond": plan(cpu("load"), cpu("left", 0), cpu("right", 0), cpu("join", 1, 2)),
    "halves": halves(),
    "products": products(64),
    "cholesky": cholesky(6),
    "chain": plan(*(cpu(f"step {i}", *range(max(0, i - 1), i)) for i in range(40))),
}


def arrows_between(planned, hide=()):
    """From which task to which -> whether it is a wait, by place in the order of issue."""
    edges = graph_plot.without(graph_plot.graph_of(planned), hide).edges(data="wait")
    return {(before, task): wait for before, task, wait in edges}


def boxes_of(ax):
    """In the order of issue."""
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def arrows_of(ax):
    return [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


def waits_of(ax):
    """Of each arrow whether it is thick."""
    return [arrow.get_linewidth() > 1 for arrow in arrows_of(ax)]


def names_of(ax):
    """The texts in boxes but for the lanes' letters, in one line each."""
    names = [text for text in ax.texts if text.get_fontweight() != "bold"]
    return [text.get_text().replace("\n", " ") for text in names]


def letters_of(ax):
    return [text.get_text() for text in ax.texts if text.get_fontweight() == "bold"]


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def box_of(ax, text):
    """The box on which the middle of a text is."""
    x, y = ax.transData.inverted().transform(np.asarray(text.get_window_extent()).mean(axis=0))
    (number,) = (i for i, box in enumerate(boxes_of(ax)) if box.get_bbox().contains(x, y))
    return number


def ends_of(ax, arrow):
    """The boxes from whose right to whose left side an arrow goes, or from bottom to top."""
    path = arrow.get_path()
    points = path.vertices[path.codes != Curve.CLOSEPOLY]
    sides = np.array([box.get_bbox() for box in boxes_of(ax)])  # box, first or last, x y

    def met(point, last, flow):
        along = np.abs(sides[:, last, flow] - point[flow]) < 0.1  # as lines have a width
        aside = (sides[:, 0] <= point) & (point <= sides[:, 1])
        return np.flatnonzero(along & aside[:, 1 - flow]).tolist()

    for flow in (0, 1):
        first = met(points[0], 1, flow)
        then = met(points[points[:, flow].argmax()], 0, flow)
        if len(first) == len(then) == 1:
            return first[0], then[0]
    raise AssertionError("an arrow is not between two boxes")


def middles_of(ax):
    """Of each box, by its task's name: where it is along the layers, and across them."""
    centres = np.array([box.get_bbox() for box in boxes_of(ax)]).mean(axis=1).round(3)
    steps = np.array(
        [centres[then] - centres[first] for first, then in map(partial(ends_of, ax), arrows_of(ax))]
    )
    flow = int((steps[:, 0] <= 0).any())  # all arrows go on along the layers
    assert (steps[:, flow] > 0).all()
    places = zip(map(int, names_of(ax)), centres.tolist(), strict=True)
    return {name: (at[flow], at[1 - flow]) for name, at in places}
