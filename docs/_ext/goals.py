"""Goals: what autopar's own tools are to reach, and how near each machine's records come to it."""

import itertools
import math
from html import escape
from statistics import median
from typing import NamedTuple

from claims import by_machine
from docutils.parsers.rst import Directive
from machines import comparable
from side_by_side import link_to

import autopar as ap
from autopar.display.format import percent
from autopar.records.store import FOLDER

REGIMES = "compute-bound", "balanced", "copy-bound"
THERE = "data on the device already"
FINE_US, HALF = 100, 0.5  # the size of tasks that has a goal; the share that METG is about
ANEW = "pinned allocations after the first round"
NUMBER, TIMES, MICROSECONDS = "{:.0f}".format, "{:.1f} ×".format, "{:.1f} µs".format

# Each by the row and the column of the table where its figure is.
GOALS = {
    "prefetch: data there / time": ("at least", 0.97, percent),
    "the best ring, 16 MB: of the bus": ("at least", 0.9, percent),
    "the best ring, 64 MB: of the bus": ("at least", 0.9, percent),
    "pipeline, pin=True: limit / time": ("at least", 0.99, percent),
    "pipeline, out: limit / time": ("at least", 0.97, percent),
    **{
        f"{regime}: {way}: limit / time": ("at least", 0.97, percent)
        for regime in REGIMES
        for way in ("to_host", "map")
    },
    "pipeline, pin=True: speed-up": ("at least", 5, TIMES),
    "to the host: host time": ("at most", 20, MICROSECONDS),
    "from the host: host time": ("at most", 20, MICROSECONDS),
    "bytes pinned, of bytes of two rings": ("at most", 1, percent),
    ANEW: ("at most", 0, NUMBER),
    "run against plan, either way, in the median": ("at most", 0.03, percent),
    "least / run, in the median": ("at least", 0.93, percent),
    f"task graph, {FINE_US} µs: of bare threads": ("at least", 0.95, percent),
    "task graph: METG": ("at most", 25, MICROSECONDS),
}


def median_s(record):
    """Median seconds by label."""
    return {label: one.median_s for label, one in record.measurements.items()}


def regime_limits_s(record):
    """The first item needs all stations; after it the slowest of them is the limit."""
    count, limits_s = record.parameters["count"], {}
    for regime in REGIMES:
        compute_s, copy_s, both_s = (
            record.measurements[f"{regime}: {part}"].min_s / count
            for part in ("compute", "copy", "duplex")
        )
        limits_s[f"{regime}: to_host"] = compute_s + copy_s + (count - 1) * max(compute_s, copy_s)
        limits_s[f"{regime}: map"] = 2 * copy_s + compute_s + (count - 1) * max(compute_s, both_s)
    return limits_s


def behind_limit_s(record):
    """Of products, and of the one copy that has no product to hide behind."""
    return record.limit_s(("compute", "copy"), pieces=record.parameters["count"])


def graphs(s, record):
    """Of each planned graph its least time, its plan, and its run, in seconds."""
    for i in range(record.parameters["graphs"]):
        yield record.values[f"{i}: least"], record.values[f"{i}: plan"], s[f"{i}: run"]


def shares(s, record, name, of="large", way="run"):
    """By size of tasks what one takes in µs, and the share of the rate of another way."""
    tasks = record.parameters["count"] / record.parameters["workers"]
    for us in record.parameters["sizes_us"]:
        run_s = s[f"{name}, {us} us: {way}"]
        yield 1e6 * run_s / tasks, s[f"{name}, {us} us: {of}"] / run_s


def metg_us(s, record, name):
    """What a task takes where half is reached; straight on logarithmic scales between sizes."""
    points = list(shares(s, record, name))
    for low, high in itertools.pairwise(points):
        if low[1] < HALF <= high[1]:
            part = math.log(HALF / low[1]) / math.log(high[1] / low[1])
            return low[0] * (high[0] / low[0]) ** part
    return math.inf if points[-1][1] < HALF else points[0][0]


def looped(s, _):
    return {"prefetch: data there / time": s[THERE] / s["prefetch"]}


def ordinary(s, record):
    best_s = min(s[ring] for ring in record.parameters["rings"])
    return {f"the best ring, {record.parameters['size_mb']} MB: of the bus": s["the bus"] / best_s}


def behind(s, record):
    ways, limit_s = ("pipeline, pin=True", "pipeline, out"), behind_limit_s(record)
    return {f"{way}: limit / time": limit_s / s[way] for way in ways}


def regimes(s, record):
    limits_s = regime_limits_s(record)
    return {f"{way}: limit / time": limit_s / s[way] for way, limit_s in limits_s.items()}


def together(s, _):
    return {"pipeline, pin=True: speed-up": s[".to(non_blocking) each"] / s["pipeline, pin=True"]}


def cost(s, record):
    pinned = record.values["bytes pinned"] / record.values["bytes of two rings"]
    chunk_us = {way: 1e6 * s[way] / record.parameters["count"] for way in s}
    ways = {f"{way}: host time": chunk_us[way] for way in ("to the host", "from the host")}
    return {**ways, "bytes pinned, of bytes of two rings": pinned, ANEW: record.values[ANEW]}


def planned(s, record):
    of = list(graphs(s, record))
    return {
        "run against plan, either way, in the median": median(abs(r / p - 1) for _, p, r in of),
        "least / run, in the median": median(least_s / run_s for least_s, _, run_s in of),
    }


def fine(s, record):
    bare = s[f"by_graph, {FINE_US} us: bare"] / s[f"by_graph, {FINE_US} us: run"]
    metg = metg_us(s, record, "by_graph")
    return {f"task graph, {FINE_US} µs: of bare threads": bare, "task graph: METG": metg}


FIGURES = (  # the section of the page, the record, and what follows from it for which goals
    ("Feeding a training loop", "b3_training_loop", looped),
    ("Copies into ordinary memory", "b5_ordinary_memory_16_mb", ordinary),
    ("Copies into ordinary memory", "b5_ordinary_memory", ordinary),
    ("Copies behind computing", "b5_behind_computing", behind),
    ("Three regimes, and slots", "b5_regimes", regimes),
    ("Small tensors, and what a pipeline costs", "b5_small_tensors", together),
    ("Small tensors, and what a pipeline costs", "b5_cost", cost),
    ("Plans of a graph", "b8_as_planned", planned),
    ("Fine tasks", "b7_task_sizes", fine),
)


class Reached(NamedTuple):
    """A figure beside its goal, with the words that a claim has."""

    sentence: str
    bound: str
    measured: str
    verdict: str


def against(figure, bound, goal, text):
    """A figure as text, and whether it meets its goal; none is rounded to a goal that it misses."""
    met, shown = figure >= goal if bound == "at least" else figure <= goal, text(figure)
    if not met and shown == text(goal):
        shown = f"{'under' if bound == 'at least' else 'over'} {shown}"
    return shown, "met" if met else "missed"


def reached(record, figures, name):
    """How near a record comes to a goal, with the interval of the figure."""
    estimate = record.estimate(lambda s: figures(s, record)[name])
    bound, goal, text = GOALS[name]
    shown, verdict = against(estimate.value, bound, goal, text)
    ends = f"{text(estimate.low)} to {text(estimate.high)}, {estimate.samples} samples; "
    sure = ends if estimate.low < estimate.high else ""
    return Reached(
        name, f"{bound} {text(goal)}", f"{shown} ({sure}{record.recorded_at[:10]})", verdict
    )


def told_goals():
    """Of each goal the section with its table, and how near each machine comes to it."""
    for section, name, figures in FIGURES:
        records = {machine: of[name] for machine, of in comparable().items() if name in of}
        one = next(iter(records.values()))
        for goal in figures(median_s(one), one):
            yield (
                section,
                {machine: reached(it, figures, goal) for machine, it in records.items()},
            )


class GoalsByMachine(Directive):
    """Every goal with a column for each machine, and a link to the table that it is read from."""

    def run(self):
        for path in FOLDER.rglob("*.json"):
            self.state.document.settings.env.note_dependency(str(path))
        return by_machine(list(told_goals()), "goal", link_to)


class ByMachine:
    """What a page shows of records: of those that other pages show, and folded of the others."""

    def __init__(self, show, *names):
        newest = [ap.newest_record(name) for name in names]
        self.shown, self.folded = show(*newest), {}
        for machine, of in comparable().items():
            records = [of[name] for name in names if name in of]
            if [one.recorded_at for one in records] != [one.recorded_at for one in newest]:
                self.folded |= {machine: show(*records)} if len(records) == len(names) else {}

    def __str__(self):
        return "\n\n".join(map(str, (self.shown, *self.folded.values())))

    __repr__ = __str__

    def _repr_html_(self):
        folds = (
            f'<details class="autopar-fold"><summary>{escape(self.shown.caption)}, on '
            f"{escape(machine)}</summary>{one._repr_html_()}</details>"
            for machine, one in self.folded.items()
        )
        return "\n".join([self.shown._repr_html_(), *folds])


def setup(app):
    app.add_directive("goals-by-machine", GoalsByMachine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
