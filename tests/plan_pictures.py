"""Plans to draw, and what is read off their pictures: boxes, arrows, names and the legend."""

import random
from types import SimpleNamespace

import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle

from autopar.graph.schedule import Job, Resource, schedule


def plan(*jobs, lanes=1):
    """A plan made by hand: all that a drawing needs of one."""
    there = dict.fromkeys(job.resource for job in jobs)
    resources = {name: Resource(lanes if name == "cpu" else 1, lanes) for name in there}
    return SimpleNamespace(schedule=schedule(jobs, resources))


def cpu(name, *after):
    return Job(name, "cpu", 1.0, after)


def tasks(*before):
    """A task for each, after those whose numbers it names, on one lane."""
    return plan(*(cpu(str(i), *firsts) for i, firsts in enumerate(before)))


def by_chance(seed):
    chance = random.Random(seed)
    return tasks(
        *(tuple({chance.randrange(max(0, i - 9), i) for _ in range(min(i, 2))}) for i in range(25))
    )


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
    return plan(*jobs, Job("sum", "cpu", 1.0, (2, 6)))


def boxes_of(ax):
    """In the order of issue."""
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def arrows_of(ax):
    return [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


def words_of(ax):
    """The texts in boxes, in one line each."""
    inside = [text for text in ax.texts if text.get_clip_on()]
    return [text.get_text().replace("\n", " ") for text in inside]


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def corners_of(ax):
    """Of each box the lower and the upper corner, in cells."""
    return np.array([box.get_bbox() for box in boxes_of(ax)])


def waits_of(ax):
    """From which box to which an arrow goes -> whether it is thick, by the order of issue."""
    corners, waits = corners_of(ax), {}
    for arrow in arrows_of(ax):
        stops = arrow._path_original.vertices  # without its head
        ends = [
            np.flatnonzero(
                (np.abs(np.clip(stop, *corners.swapaxes(0, 1)) - stop) < 1e-6).all(axis=1)
            )
            for stop in (stops[0], stops[-1])
        ]
        ((first,), (then,)) = ends
        waits[int(first), int(then)] = arrow.get_linewidth() > 1
    return waits
