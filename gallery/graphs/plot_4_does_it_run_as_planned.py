# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Does it run as planned?
=======================

| **You'll do:** random graphs of a hundred tasks over two GPUs and a CPU, first planned, then run.
| **You'll learn:** what a plan knows, how close a run comes to it, and what planning costs.
| **You need:** nothing but this page; without two GPUs it shows a record and runs on CPU lanes.

**The claim.** A plan is a simulation, from the time that each task takes. Where tasks take a
millisecond and more, most runs end close to their plan, and near the least time that any order of
the tasks could take.
"""

# %%
# The work
# --------
# A task multiplies a matrix by itself on one of the devices, and depends on some of those before
# it. Their results are among its arguments, so what lies elsewhere is copied; it isn't computed
# with, so that numbers stay small. Sizes are chosen so that tasks take a millisecond and more.

import random
import statistics

import autopar as ap

BOOK = {
    "graphs": 3,
    "tasks": 100,
    "sizes": {"cuda:0": 4000, "cuda:1": 4000, "cpu": 1200},
    "lanes": 2,
    "rounds": 5,
}
HERE = {"graphs": 3, "tasks": 30, "sizes": {"cpu": 256}, "lanes": 2, "rounds": 5}
SHARE_ON_CPU = 0.2


def product(x, *before):
    """A product; the results before it are only waited for."""
    return x.mm(x)


def random_graph(seed, tasks, sizes, lanes):
    """Tasks on random devices, each after some random ones, and all of them."""
    chance = random.Random(seed)
    gpus = [name for name in sizes if name != "cpu"]
    own = {name: ap.workload.matrix(size, name) for name, size in sizes.items()}
    graph, added = ap.TaskGraph(cpu_lanes=lanes, streams=1), []
    for i in range(tasks):
        device = chance.choice(gpus) if gpus and chance.random() > SHARE_ON_CPU else "cpu"
        count = min(i, chance.choice([0, 1, 1, 2, 2, 3]))
        before = chance.sample(added[-20:], min(count, len(added[-20:])))
        added.append(graph.add(product, own[device], *before, device=device, name=f"task {i}"))
    return graph, added


# %%
# Predict
# -------
# The plan is the prediction: each task and copy at its time, before anything runs. It doesn't know
# of what the host does around them, such as waking its threads and waiting for the last result. So
# runs should take a little longer than planned, and hardly less than the longest chain of tasks, or
# than all that one device has to do. As both come from times that vary, this least time is an
# estimate, which a lucky run can beat.
#
# The experiment
# --------------
# Each graph is measured task by task, for the least time. Then it is measured in runs, for the
# plan: tasks that share a GPU's clock and memory with others take a little longer than alone. Then
# it is run, and compared with its serial twin, bit by bit.


def planned_and_run(graphs, tasks, sizes, lanes, rounds):
    """Least time, plan and run of some random graphs."""
    measurements, values, checks, timelines = [], {}, {}, {}
    for seed in range(graphs):
        graph, added = random_graph(seed, tasks, sizes, lanes)
        with graph:
            graph.measure()
            values[f"{seed}: least"] = graph.plan().limit_s
            graph.measure(alone=False)
            plan = graph.plan()
            run, twin = graph.run(), graph.run_serial()
            checks[f"graph {seed}: equal"] = ap.workload.equal(run[added], twin[added])
            del run, twin
            walls_s = [graph.run().wall_s for _ in range(rounds)]
            timelines = {"a run": graph.run().timeline}
        values[f"{seed}: plan"] = plan.makespan_s
        measurements.append(ap.Measurement(f"{seed}: run", tuple(walls_s)))
    return ap.Findings(measurements, timelines, checks, values)


def times(record, seconds):
    """Least time, plan and run of each graph, in seconds."""
    for seed in range(record.parameters["graphs"]):
        planned = (record.values[f"{seed}: {what}"] for what in ("least", "plan"))
        yield (*planned, seconds[f"{seed}: run"])


def in_the_median(record, figure):
    """The median over all graphs of a figure of their times."""
    return record.estimate(lambda s: statistics.median(figure(*each) for each in times(record, s)))


def table(record, caption):
    """All graphs, with the plan and the least time beside the run."""
    rows = []
    median_s = {label: one.median_s for label, one in record.measurements.items()}
    for seed, (least_s, plan_s, run_s) in enumerate(times(record, median_s)):
        shown = [f"{1e3 * each:.1f} ms" for each in (least_s, plan_s, run_s)]
        rows.append([f"{seed}", *shown, f"{run_s / plan_s - 1:+.1%}", f"{least_s / run_s:.1%}"])
    headers = ["graph", "least, estimated", "plan", "median run", "run against plan", "least / run"]
    return ap.tabulate(headers, rows, caption=caption, origin=record.origin)


gpus = ap.recorded(planned_and_run, name="b8_as_planned", parameters=BOOK, gpus=2)
away = in_the_median(gpus, lambda _, plan_s, run_s: abs(run_s / plan_s - 1))
near = in_the_median(gpus, lambda least_s, _, run_s: least_s / run_s)
ap.show(
    table(gpus, f"Graphs of {BOOK['tasks']} tasks on two GPUs and a CPU"),
    ap.claim("In the median, a run takes about as long as planned.", away, at_most=0.1, unit="%"),
    ap.claim(
        "In the median, a run takes little more than the least time.", near, at_least=0.8, unit="%"
    ),
)

# %%
# How close the graphs' runs come is a benchmark of the planning, too:

rows = [
    ("a run off its plan, in the median", away.value, "at most", 0.03, "{:.1%}".format),
    ("least time over a run's, in the median", near.value, "at least", 0.93, "{:.1%}".format),
]
ap.show(ap.against_goals(rows, origin=gpus.origin))

# %%
# See it
# ------
# The last of these graphs in one run, after those of the table. Where a device waits, its next task
# waits for one elsewhere.

last = gpus.measurements[f"{BOOK['graphs'] - 1}: run"]
shown_ms, median_ms = 1e3 * gpus.timelines["a run"].makespan_s, 1e3 * last.median_s
ap.show_timelines(
    gpus.timelines,
    "b8_does_it_run_as_planned",
    title=f"{BOOK['tasks']} tasks on two GPUs and a CPU, a single run",
    caption=f"This run takes {shown_ms:.1f} ms, and {median_ms:.1f} ms is this graph's median. "
    f"About {1 - SHARE_ON_CPU:.0%} of the tasks are the GPUs', the rest the CPU's.",
)

# %%
# What does planning cost?
# ------------------------
# Live, on this machine: plans of graphs that no device is needed for.


def planning(sizes, rounds):
    """Seconds to plan graphs of some numbers of tasks."""
    measurements, checks = [], {}
    for tasks in sizes:
        taken_s = []
        for _ in range(rounds):
            graph, _ = random_graph(0, tasks, {"cpu": 2}, lanes=2)
            timer = ap.Timer()
            plan = graph.plan()
            taken_s.append(timer.stop())
        checks[f"all of {tasks} tasks are planned"] = len(plan.schedule.entries) == tasks
        measurements.append(ap.Measurement(f"{tasks} tasks", tuple(taken_s)))
    return ap.Findings(measurements, {}, checks)


plans = ap.observed(planning, name="planning", parameters={"sizes": [100, 1000], "rounds": 5})
ap.show(ap.compare(plans.measurements, caption="Planning"))

# %%
# On this machine
# ---------------
# Fewer and smaller tasks, on two CPU lanes that share the machine's cores.

here = ap.observed(planned_and_run, name="as planned here", parameters=HERE)
ap.show(table(here, f"Graphs of {HERE['tasks']} tasks on two CPU lanes"))

# %%
# When this does not help
# -----------------------
# A plan is as good as the times that it is made from. What changes between the runs that they
# come from and the next one (a CPU that others use, a clock that falls as the chip warms) it can't
# know. Tasks of microseconds take as long as their launches, which it does not know of either.
#
# Now you
# -------
# Raise `SHARE_ON_CPU` until the CPU is the busiest device: how far off are the plans now? Then give
# the graphs more `streams`, and see which column changes.
