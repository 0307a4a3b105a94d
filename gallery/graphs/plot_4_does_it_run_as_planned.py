# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Does it run as planned?
=======================

| **You'll do:** plan random graphs of a hundred tasks over two GPUs and a CPU, then run them.
| **You'll learn:** what a plan knows, and how close a run comes to it.
| **You need:** 7 minutes, and no GPU: the part for two GPUs is shown from a record. Before this:
  :doc:`plot_1_tasks_that_depend`. Next: :doc:`plot_5_how_fine_may_tasks_be`.

A *plan* says before a run which task goes where, and when. Of each task it knows what it waits for,
and how long it takes. Where tasks take a millisecond and more, that tells when the run will end.
"""

# %%
# A guess is no plan
# ------------------
# Each task multiplies a matrix, after some of those before it. It is tempting to guess how long all
# take: add up their times, and divide by the number of *lanes*, the queues that they run on.
import random
from statistics import median

import matplotlib.pyplot as plt

import autopar as ap


def guess_s(timeline):
    tasks = timeline.select("compute")
    return sum(task.duration_s for task in tasks) / len({task.lane for task in tasks})


# %%
# That forgets waits and copies, and that each task has its place. A plan knows all three.
#
# Measure, plan, run
# ------------------
# `measure` takes the time of each task. Times of tasks alone give the *least time*: the longest
# chain of tasks, or all the work of the busiest device. Times in runs give the plan. The results of
# a run are compared bit by bit with those of the same tasks one after another.

# Folded: a random graph of such tasks, and the measurement
SIZES = {"cuda:0": 4000, "cuda:1": 4000, "cpu": 1200}
BOOK = {"graphs": 3, "tasks": 100, "sizes": SIZES, "lanes": 2, "rounds": 5}
SHARE_ON_CPU = 0.2


def product(x, *before):  # the results before it are only waited for
    return x.mm(x)


def random_graph(seed, tasks, sizes, lanes):
    chance, gpus = random.Random(seed), [name for name in sizes if name != "cpu"]
    matrices = {name: ap.workload.matrix(size, name) for name, size in sizes.items()}
    graph, added = ap.TaskGraph(cpu_lanes=lanes, streams=1), []
    for i in range(tasks):
        device = chance.choice(gpus) if gpus and chance.random() > SHARE_ON_CPU else "cpu"
        before = chance.sample(added[-20:], min(i, chance.choice([0, 1, 1, 2, 2, 3])))
        added.append(graph.add(product, matrices[device], *before, device=device, writes=()))
    return graph, added


def planned_and_run(graphs, tasks, sizes, lanes, rounds):
    measurements, values, checks, timelines = [], {}, {}, {}
    for seed in range(graphs):
        graph, added = random_graph(seed, tasks, sizes, lanes)
        with graph:
            graph.measure()
            values[f"{seed}: least"] = graph.plan().limit_s
            graph.measure(alone=False)
            plan = graph.plan()
            results = (way()[added] for way in (graph.run, graph.run_serial))
            checks[f"graph {seed}: equal"] = ap.workload.equal(*results)
            walls_s = [graph.run().wall_s for _ in range(rounds)]
            timelines = {"the plan": plan.timeline, "a run": graph.run(timed=True).timeline}
        values[f"{seed}: plan"] = plan.makespan_s
        measurements.append(ap.Measurement(f"{seed}: run", tuple(walls_s)))
    return ap.Findings(measurements, timelines, checks, values)


# %%
# In the picture at the top, follow a grey bar of the plan down to the blue one of the run, which is
# the same task on the same lane. It has moved by what the plan does not know of: the host, which
# launches tasks, and tasks that take more or less time than before. The guess knows no waits.

# Folded: the drawing
gpus = ap.recorded(planned_and_run, name="b8_as_planned", parameters=BOOK, gpus=2)
plan, run = gpus.timelines["the plan"], gpus.timelines["a run"]
ROWS = {"GPU 0": "cuda:0", "GPU 1": "cuda:1", "CPU, thread 1": "cpu #0", "CPU, thread 2": "cpu #1"}
_, ax = plt.subplots(layout="constrained")
for timeline, top, colour in ((plan, 0.1, "0.6"), (run, 0.5, "#3b76c4")):
    for y, lane in enumerate(ROWS.values()):
        bars = [(1e3 * s.start_s, 1e3 * s.duration_s) for s in timeline.select(lane)]
        ax.broken_barh(bars, (y + top, 0.4), color=colour, edgecolor="white", linewidth=0.5)
for words, ends_s in (("plan ends", plan.makespan_s), ("guess", guess_s(plan))):
    ax.vlines(1e3 * ends_s, 0, len(ROWS), color="C7", linestyle="--")
    ax.annotate(words, (1e3 * ends_s, -0.02), ha="right", va="bottom")  # above its line
ax.set_yticks([y + 0.5 for y in range(len(ROWS))], [*ROWS])
ax.set(xlim=(0, None), ylim=(len(ROWS), -0.4), xlabel="ms", title="Planned (grey), run (blue)")
ends_ms = [1e3 * end_s for end_s in (guess_s(plan), plan.makespan_s, run.makespan_s)]
look = "Look at the ends: guess {:.1f} ms, plan {:.1f} ms, run {:.1f} ms.".format(*ends_ms)
ap.plot.show("b8_does_it_run_as_planned", gpus.origin, look=look)

# %%
# Close to the plan, and to the least time
# ----------------------------------------
# In the column *plan / time*, 100 % is a run of a graph that ends when its plan does. The second
# claim holds runs against the least time, which no order can beat if each task takes as long as it
# does alone. No plan could gain more than is missing there.


# Folded: the table
def table(record):
    plans_s = {run: record.values[run.replace("run", "plan")] for run in record.measurements}
    far = max(plans_s, key=lambda run: abs(record.measurements[run].median_s / plans_s[run] - 1))
    return ap.compare(record.measurements, limit_s=plans_s, limit_name="plan", highlight=far)


v, seeds = gpus.values, range(BOOK["graphs"])
away = gpus.estimate(lambda s: median(abs(s[f"{n}: run"] / v[f"{n}: plan"] - 1) for n in seeds))
near = gpus.estimate(lambda s: median(v[f"{n}: least"] / s[f"{n}: run"] for n in seeds))
ap.show(
    table(gpus),
    ap.claim("In the median a run is within 10 % of its plan.", away, at_most=0.1, unit="%"),
    ap.claim("In the median the least time is most of a run's.", near, at_least=0.8, unit="%"),
)

# %%
# When this does not help
# -----------------------
# A plan can't know what changes later, such as the clock of a chip that heats up. And tasks of
# microseconds take as long as their launches: :doc:`plot_5_how_fine_may_tasks_be`.
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
#             taken_s = {True: [], False: []}
#             for task in plan.select("compute"):
#                 taken_s[task.lane.startswith("cpu")].append(task.duration_s)
#             return median(taken_s[False]) / (median(taken_s[False]) + median(taken_s[True]))
