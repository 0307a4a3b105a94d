# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Does it run as planned?
=======================

| **You'll do:** plan random graphs of a hundred tasks over two GPUs and a CPU, then run them.
| **You'll learn:** what a plan knows, and how close a run comes to it.
| **You need:** 7 minutes, and no GPU: what needs two is shown from a record. Read
  :doc:`plot_1_tasks_that_depend` first; :doc:`plot_5_how_fine_may_tasks_be` comes next.

A *plan* says before a run which task goes where, and when. It is a simulation: of each task it
knows what it waits for, and how long it takes. Where tasks take a millisecond and more, that is
enough to tell when a run ends.
"""

# %%
# A guess is no plan
# ------------------
# Each task multiplies a matrix on a GPU or the CPU, after some of those before it. It is tempting
# to guess how long all take: add up their times, and divide by the number of *lanes*, the queues
# that they run on.

import random
import statistics

import matplotlib.pyplot as plt

import autopar as ap


def guess_s(timeline):
    """All work, spread evenly over the lanes that compute."""
    tasks = timeline.select("compute")
    return sum(task.duration_s for task in tasks) / len({task.lane for task in tasks})


# %%
# That forgets that tasks wait for others, that each has its place, and that results are copied. A
# plan knows all three, as it is made from the graph of the tasks.
#
# Measure, plan, run
# ------------------
# `measure` takes the time of each task. Times of tasks alone give the least time: the longest chain
# of tasks, or all the work of the busiest device. Times in runs give the plan. The run is compared
# with its *serial twin*, the same tasks one after another, bit by bit.

# Folded: a random graph of such tasks, and the measurement
SIZES = {"cuda:0": 4000, "cuda:1": 4000, "cpu": 1200}
BOOK = {"graphs": 3, "tasks": 100, "sizes": SIZES, "lanes": 2, "rounds": 5}
SHARE_ON_CPU = 0.2


def product(x, *before):
    """A product; the results before it are only waited for."""
    return x.mm(x)


def random_graph(seed, tasks, sizes, lanes):
    """Tasks on random devices, each after some random ones, and all of them."""
    chance = random.Random(seed)
    gpus = [name for name in sizes if name != "cpu"]
    matrices = {name: ap.workload.matrix(size, name) for name, size in sizes.items()}
    graph, added = ap.TaskGraph(cpu_lanes=lanes, streams=1), []
    for i in range(tasks):
        device = chance.choice(gpus) if gpus and chance.random() > SHARE_ON_CPU else "cpu"
        count = min(i, chance.choice([0, 1, 1, 2, 2, 3]))
        before = chance.sample(added[-20:], min(count, len(added[-20:])))
        how = {"device": device, "writes": (), "name": f"task {i}"}
        added.append(graph.add(product, matrices[device], *before, **how))
    return graph, added


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
            timelines = {"the plan": plan.timeline, "a run": graph.run(timed=True).timeline}
        values[f"{seed}: plan"] = plan.makespan_s
        measurements.append(ap.Measurement(f"{seed}: run", tuple(walls_s)))
    return ap.Findings(measurements, timelines, checks, values)


# %%
# In the picture at the top, follow a grey bar of the plan down to the blue one of the run. It is
# the same task on the same lane. How far it has moved is what the plan does not know of: the host,
# which launches tasks and wakes threads. The guess ends before the plan, as it knows no waits.

# Folded: the drawing
gpus = ap.recorded(planned_and_run, name="b8_as_planned", parameters=BOOK, gpus=2)
plan, run = gpus.timelines["the plan"], gpus.timelines["a run"]
ROWS = {"GPU 0": "cuda:0", "GPU 1": "cuda:1", "CPU, thread 1": "cpu #0", "CPU, thread 2": "cpu #1"}
figure, ax = plt.subplots(layout="constrained")
for timeline, top, colour in ((plan, 0.1, "0.6"), (run, 0.5, "#3b76c4")):
    for y, lane in enumerate(ROWS.values()):
        bars = [(1e3 * s.start_s, 1e3 * s.duration_s) for s in timeline.select(lane)]
        ax.broken_barh(bars, (y + top, 0.4), color=colour, edgecolor="white", linewidth=0.5)
for words, ends_s in (("plan ends", plan.makespan_s), ("guess", guess_s(plan))):
    ax.vlines(1e3 * ends_s, 0, len(ROWS), color="C7", linestyle="--")
    ax.annotate(words, (1e3 * ends_s, -0.02), ha="right", va="bottom")  # above its line
ax.set_yticks([y + 0.5 for y in range(len(ROWS))], [*ROWS])
ax.set(xlim=(0, None), ylim=(len(ROWS), -0.4), xlabel="ms")
ax.set_title("Planned (grey) and run (blue)")
figure.supxlabel(gpus.origin, fontsize=7)
ap.plot.show("b8_does_it_run_as_planned")

# %%
# Close to the plan, and to the least time
# ----------------------------------------
# Look at the column *plan / time*: it is 100 % where a run ends when its plan does.


# Folded: the table
def table(record):
    """The runs of all graphs, with the plan beside them."""
    seeds = range(record.parameters["graphs"])
    plans_s = {f"{seed}: run": record.values[f"{seed}: plan"] for seed in seeds}
    return ap.compare(record.measurements, limit_s=plans_s, limit_name="plan")


def in_the_median(figure):
    """The median over all graphs of a figure of the run's time, the plan and the least time."""
    seeds, planned = range(BOOK["graphs"]), gpus.values
    return gpus.estimate(
        lambda s: statistics.median(
            figure(s[f"{n}: run"], planned[f"{n}: plan"], planned[f"{n}: least"]) for n in seeds
        )
    )


away = in_the_median(lambda run_s, plan_s, _: abs(run_s / plan_s - 1))
near = in_the_median(lambda run_s, _, least_s: least_s / run_s)
ap.show(
    table(gpus),
    ap.claim("In the median a run is within 10 % of its plan.", away, at_most=0.1, unit="%"),
    ap.claim("In the median the least time is most of a run's.", near, at_least=0.8, unit="%"),
)

# %%
# When this does not help
# -----------------------
# A plan can't know what changes between the runs that it is made from and the next one: a CPU that
# others use, or a clock that falls as the chip warms. Tasks of microseconds take as long as their
# launches: :doc:`plot_5_how_fine_may_tasks_be` has more on it.
#
# On this machine
# ---------------
# Fewer and smaller tasks on two CPU lanes. Tasks this short may miss their plan by far.

HERE = {"graphs": 3, "tasks": 30, "sizes": {"cpu": 256}, "lanes": 2, "rounds": 5}
here = ap.observed(planned_and_run, name="as planned here", parameters=HERE)
ap.show(table(here))

# %%
# Now you
# -------
# At which `SHARE_ON_CPU` do the CPU's two threads have as much to do as the two GPUs?
#
# .. dropdown:: A hint
#
#     How long does a task take on a GPU, and how long on the CPU? The plan has both.
#
# .. dropdown:: An answer
#
#     Where the share is that of a GPU's task in the sum of both times.
#
#     .. code-block:: python
#
#         def even_share(plan):
#             tasks = {True: [], False: []}
#             for task in plan.select("compute"):
#                 tasks[task.lane.startswith("cpu")].append(task.duration_s)
#             on_gpu_s, on_cpu_s = statistics.mean(tasks[False]), statistics.mean(tasks[True])
#             return on_gpu_s / (on_gpu_s + on_cpu_s)
