"""Goals: what autopar's own tools are to reach, and how near each machine's records come to it."""

import itertools
import math
from html import escape
from operator import itemgetter
from statistics import median

from claims import Outcome, by_machine
from docutils import nodes
from docutils.parsers.rst import Directive
from machines import comparable
from side_by_side import link_to

import autopar as ap
from autopar.display.format import percent

REGIMES = "compute-bound", "balanced", "copy-bound"
THERE = "data on the device already"
BARE, WORKERS = "bare threads", 2  # what fine tasks are held against, and how many threads each has
ROWS, HALF = 100, 0.5  # the rows of tasks that have a goal; the share that METG is about
NUMBER, TIMES, MICROSECONDS = "{:.0f}".format, "{:.1f} ×".format, "{:.1f} µs".format


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


def shares(s, record, way, *, alike=False):
    """By rows of a task what one takes in µs, and the share of bare threads' rate.

    That is with the largest pieces, or with pieces alike.
    """
    rows, count = sorted(record.parameters["rows"]), record.parameters["count"]
    for n in rows:
        run_s = s[f"{way}, pieces of {n}"]
        bare_s = s[f"{BARE}, pieces of {n if alike else rows[-1]}"]
        yield 1e6 * run_s * WORKERS * n / count, bare_s / run_s


def metg_us(s, record, way):
    """What a task takes where half is reached; straight on logarithmic scales between sizes."""
    points = list(shares(s, record, way))
    for low, high in itertools.pairwise(points):
        if low[1] < HALF <= high[1]:
            part = math.log(HALF / low[1]) / math.log(high[1] / low[1])
            return low[0] * (high[0] / low[0]) ** part
    return math.inf if points[-1][1] < HALF else points[0][0]


# Each yields what `reached` tells of a goal: what the figure is, the figure, the goal. A figure
# that no timing tells is a number, or a list of samples.


def looped(s, _):
    share = s[THERE] / s["prefetch"]
    yield "Time with the data there, over time with prefetch", share, "at least", 0.97, percent


def ordinary(s, record):
    name = f"Rate of the default ring, over the bus's: {record.parameters['size_mb']} MB"
    yield name, s["the bus"] / s["default ring"], "at least", 0.9, percent


def behind(s, record):
    limit_s = behind_limit_s(record)
    name = "Limit over time: pipeline, "
    yield f"{name}pin=True", limit_s / s["pipeline, pin=True"], "at least", 0.99, percent
    yield f"{name}out", limit_s / s["pipeline, out"], "at least", 0.97, percent


def regimes(s, record):
    for way, limit_s in regime_limits_s(record).items():
        yield f"Limit over time: {way}", limit_s / s[way], "at least", 0.97, percent


def together(s, _):
    gain = s[".to(non_blocking) each"] / s["pipeline, pin=True"]
    yield "Speed-up of small tensors: pipeline, pin=True", gain, "at least", 5, TIMES


def cost(s, record):
    values, count = record.values, record.parameters["count"]
    for way in ("to the host", "from the host"):
        name = f"The host's time for a chunk {way}"
        yield name, 1e6 * s[way] / count, "at most", 20, MICROSECONDS
    pinned = values["bytes pinned"] / values["bytes of two rings"]
    yield "Bytes pinned, over bytes of two rings", pinned, "at most", 1, percent
    anew = values["pinned allocations after the first round"]
    yield "Pinned allocations after the first round", anew, "at most", 0, NUMBER


def planned(s, record):
    of = list(graphs(s, record))
    off = median(abs(run_s / plan_s - 1) for _, plan_s, run_s in of)
    yield "Difference of run and plan, in the median", off, "at most", 0.03, percent
    share = median(least_s / run_s for least_s, _, run_s in of)
    yield "Least time over the run's, in the median", share, "at least", 0.93, percent


def fine(s, record):
    share = s[f"{BARE}, pieces of {ROWS}"] / s[f"task graph, pieces of {ROWS}"]
    name = f"Time of bare threads over the task graph's: tasks of {ROWS} rows"
    yield name, share, "at least", 0.95, percent
    metg = metg_us(s, record, "task graph")
    yield "METG of the task graph", metg, "at most", 25, MICROSECONDS


def gradient_steps(record):
    """The labels of the smallest buckets and of DDP, and of the steps that were seen."""
    buckets = f"buckets of {record.parameters['sizes_mib'][0]} MiB"
    seen = [name.partition(": ")[0] for name in record.values if name.startswith(f"{buckets}, ")]
    return buckets, "DistributedDataParallel", dict.fromkeys(seen)


def gradients(s, record):
    buckets, ddp, steps = gradient_steps(record)
    ratio = s[buckets] / s[ddp]
    yield "Time of buckets over DistributedDataParallel's", ratio, "at most", 1.05, percent
    exposed = [record.values[f"{step}: exposed / last"] for step in steps]
    yield "Exposed time over the last bucket's", exposed, "at most", 1.2, percent


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
    ("Gradients of several GPUs", "d1_gradients", gradients),
)


def against(figure, bound, goal, text):
    """A figure as text, and whether it meets its goal; none is rounded to a goal that it misses."""
    met, shown = figure >= goal if bound == "at least" else figure <= goal, text(figure)
    if not met and shown == text(goal):
        shown = f"{'under' if bound == 'at least' else 'over'} {shown}"
    return shown, "met" if met else "missed"


def reached(record, figures, i):
    """How near a record comes to a goal, with the interval of the figure."""
    name, figure, bound, goal, text = list(figures(median_s(record), record))[i]
    if isinstance(figure, list):
        ends = min(figure), max(figure), len(figure)
        estimate = ap.Estimate(median(figure), *ends, record.origin, record.processors)
    else:
        estimate = record.estimate(lambda s: list(figures(s, record))[i][1])
    shown, verdict = against(estimate.value, bound, goal, text)
    ends = f"{text(estimate.low)} to {text(estimate.high)}, {estimate.samples} samples; "
    sure = f"{ends * (estimate.low < estimate.high)}{record.recorded_at[:10]}"
    return Outcome(name, f"{bound} {text(goal)}", shown, sure, verdict)


def missed_by(record, figures, i):
    """The factor by which a record misses a goal; 1 or less where it meets it."""
    _, figure, bound, goal, _ = list(figures(median_s(record), record))[i]
    figure = median(figure) if isinstance(figure, list) else figure
    part, whole = (goal, figure) if bound == "at least" else (figure, goal)
    return part / whole if whole else math.inf if part else 1.0


def to_look_at():
    """The goal that is missed by the largest factor, on which machine, and by how much."""
    found = [
        (missed_by(of[name], figures, i), machine, of[name], figures, i)
        for _, name, figures in FIGURES
        for machine, of in comparable().items()
        if name in of
        for i, _ in enumerate(figures(median_s(of[name]), of[name]))
    ]
    _, machine, *which = max(found, key=itemgetter(0))
    one = reached(*which)
    return (
        f"Look at {one.sentence!r} of {machine}, {one.verdict} by most: {one.figure}, {one.bound}."
    )


def told_goals():
    """Of each goal the section with its table, and how near each machine comes to it."""
    for section, name, figures in FIGURES:
        records = {machine: of[name] for machine, of in comparable().items() if name in of}
        one = next(iter(records.values()))
        for i, _ in enumerate(figures(median_s(one), one)):
            yield section, {machine: reached(it, figures, i) for machine, it in records.items()}


class GoalsByMachine(Directive):
    """Every goal with a column for each machine, and a link to the table that it is read from."""

    def run(self):
        counts, table = by_machine(list(told_goals()), "goal", link_to)
        return [counts, nodes.paragraph(text=to_look_at()), table]


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
