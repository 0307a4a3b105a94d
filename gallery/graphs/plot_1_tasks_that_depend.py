# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run tasks that depend on each other
===================================

| **You'll do:** factor a matrix on two GPUs, in tiles, where almost every task waits for others.
| **You'll learn:** how a graph finds what may run at once, and what its tasks take at least.
| **You need:** 10 minutes, and no GPU: what needs two is shown from a record. Read
  :doc:`/auto_gallery/first_steps/plot_2_two_devices_at_once` first;
  :doc:`plot_2_the_figure_made_real` comes next.

Say of each task what it changes, and a graph finds by itself what may run at once. A Cholesky
factorisation in tiles then takes two GPUs far less time than its tasks take in turn. No order is
faster than the longest chain of tasks that wait for each other.
"""

# %%
# Called in order, one task runs at a time
# ----------------------------------------
# A Cholesky factorisation splits a matrix into L L', where L has only zeros above its diagonal. For
# a matrix in square tiles it takes three functions. Each changes the tile that it is given first.

import functools
from dataclasses import replace

import matplotlib.pyplot as plt
import torch

import autopar as ap


def potrf(a):  # factor a tile on the diagonal
    a.copy_(torch.linalg.cholesky_ex(a).L)


def trsm(a, diagonal):  # solve for a tile below it
    a.copy_(torch.linalg.solve_triangular(diagonal.mT, a, upper=True, left=False))


def gemm(a, left, right):  # subtract what a finished column contributes to a tile on its right
    a.addmm_(left, right.mT, alpha=-1)


# %%
# The textbook's loop goes through the tiles column by column, and calls one of them by `do`.


def cholesky(do, a, count):
    """Factor the tiles on and below the diagonal, in place."""
    for k in range(count):
        do(potrf, a[k, k])
        for i in range(k + 1, count):
            do(trsm, a[i, k], a[k, k])
        for i in range(k + 1, count):
            for j in range(k + 1, i + 1):
                do(gemm, a[i, j], a[i, k], a[j, k])


# %%
# It is tempting to let `do` call the function at once. This is right on one GPU. On two you would
# have to add each copy, and before each copy a wait for the right task.
#
# Tasks that say what they change find their order
# ------------------------------------------------
# The right way changes one line: instead of a call, `do` adds a task to a graph. We deal the tiles
# out so that both GPUs have about as much to do.


def add_to(graph):
    def add(fn, tile, *reads):
        graph.add(fn, tile, *reads, writes=[tile])

    return add


def owner(i, j, devices):
    return devices[(i + j // 2) % len(devices)]


# %%
# `writes` names the tile that the task changes; the tiles that it reads are among its arguments.
# From both the graph finds what each task waits for, and what it has to copy to the other GPU. To
# forget `writes` costs time, never a result: the task then keeps the order of the program.
#
# In the drawing, follow the arrows: each `potrf` waits for the last `gemm` of its tile, this `gemm`
# for the `trsm` on its left, and that one for the `potrf` above it. These are the longest chain.

# Folded: the drawing
# sphinx_gallery_thumbnail_number = 2
_, ax = plt.subplots(layout="constrained")
for i, j in torch.tril_indices(4, 4).T.tolist():
    colour = owner(i, j, ["#4b2a7a", "#b0437e"])  # no colours of timelines, which tell kinds
    ax.add_patch(plt.Rectangle((j, i), 1, 1, facecolor=colour, edgecolor="w", linewidth=4))
    tasks = [*(f"gemm {k}" for k in range(j)), f"potrf {j}" if i == j else f"trsm {j}"]
    ax.text(j + 0.5, i + 0.5, "\n".join(tasks), color="w", ha="center", va="center")
arrow = {"arrowstyle": "-|>", "linewidth": 2, "color": "#e0a000", "mutation_scale": 16}
for k in range(3):  # down from the diagonal, and to the right, back to it
    ax.annotate("", (k + 0.5, k + 1.2), (k + 0.5, k + 0.8), arrowprops=arrow)
    ax.annotate("", (k + 1.2, k + 1.5), (k + 0.8, k + 1.5), arrowprops=arrow)
ax.set(xlim=(0, 4), ylim=(4, 0), title="4 × 4 tiles: purple on GPU 0, pink on GPU 1")
ax.set_axis_off()
ap.plot.show("x5_tiles")

# %%
# The run comes near what its tasks allow
# ---------------------------------------
# The baseline is the graph's *serial twin*: the same tasks one after another, with a wait for each.
# `race` compares the results of all ways and times them in turn. Each task is also measured alone.
# By these times no order is faster than the longest chain, or than all tasks of the busier GPU. The
# longer of both is an *estimate* of the least time, and no hard limit, because a task may take more
# or less time in company.

# Folded: the measurement
TILED = {"count": 6, "size": 3584, "devices": ["cuda:0", "cuda:1"]}
TOWERS = {"layers": 8, "size": 4096, "devices": ["cuda:0", "cuda:1"]}
TWIN, RUN, PLAIN = "tasks one after another", "the graph", "plain PyTorch"
LIBRARY = "torch.linalg.cholesky, one device"


def tiles_of(whole, count):
    """The tiles on and below the diagonal, by row and column."""
    rows = [row.chunk(count, dim=1) for row in whole.chunk(count)]
    return {(i, j): rows[i][j] for i in range(count) for j in range(i + 1)}


def tiled(count, size, devices):
    """A factorisation of tiles on these devices, beside its twin and the library's."""
    whole = ap.workload.matrix(count * size, devices[0])
    whole = whole + whole.mT
    whole.diagonal().add_(4)  # makes it positive definite
    graph, a = ap.TaskGraph(cpu_lanes=2, streams=1), {}
    for (i, j), tile in tiles_of(whole, count).items():  # copied, for each run to begin with
        a[i, j] = graph.add(torch.clone, tile.to(owner(i, j, devices)))
    cholesky(add_to(graph), a, count)
    others = {LIBRARY: lambda: tiles_of(torch.linalg.cholesky(whole), count)}
    return against_twin(graph, a, others, close={LIBRARY: 1e-4})


def against_twin(graph, tasks, others, close=None):
    """Compare the results of a graph with its twin's and others', and time all of them."""
    with graph:
        graph.measure()
        plan = graph.plan()
        ways = {TWIN: lambda: graph.run_serial()[tasks], RUN: lambda: graph.run()[tasks], **others}
        findings = ap.race(ways, close=close, warmup=2)
        timelines = {TWIN: graph.run_serial().timeline, RUN: graph.run(timed=True).timeline}
    values = {"estimate_s": plan.limit_s, "chain_s": chain_s(plan), "makespan_s": plan.makespan_s}
    return replace(findings, timelines=timelines, values=values)


def chain_s(plan):
    """Seconds of the longest chain of tasks, on however many devices."""
    ends_s = {}
    for number, job in sorted(enumerate(plan.schedule.jobs)):  # each after those it waits for
        ends_s[number] = job.cost_s + max((ends_s[before] for before in job.after), default=0)
    return max(ends_s.values())


# %%
# The timelines are at the top of this page. Look at the blue bars of the graph: there are few gaps
# between them till one GPU runs out of tasks, and almost all copies lie under them.

gpus = ap.recorded(tiled, name="x5_cholesky", parameters=TILED, gpus=2)
least_s, chain_ms = gpus.values["estimate_s"], 1e3 * gpus.values["chain_s"]
title = "A Cholesky factorisation on two GPUs"
caption = f"The same tasks run in both. The estimate of the least time is {1e3 * least_s:.1f} ms."
ap.show_timelines(gpus.timelines, "x5_tasks_that_depend", title=title, caption=caption)

# %%
# In the table, compare the row *the graph* with its estimate, and that with the chain in the
# caption: where the chain is shorter, another GPU could help. *Spread (IQR)* is how far the middle
# half of the samples lies apart.

columns = {"limit_name": "estimate", "baseline": TWIN, "highlight": RUN}
caption = f"The longest chain alone takes {chain_ms:.1f} ms"
gain, near = gpus.estimate(lambda s: s[TWIN] / s[RUN]), gpus.estimate(lambda s: least_s / s[RUN])
ap.show(
    ap.compare(gpus.measurements, limit_s={RUN: least_s}, caption=caption, **columns),
    ap.claim("The graph is clearly faster than its tasks in order.", gain, at_least=1.3, unit="×"),
    ap.claim("The estimate is most of the graph's time.", near, at_least=0.7, unit="%"),
)

# %%
# Where nothing waits, plain PyTorch needs no graph
# -------------------------------------------------
# A model of two towers has a chain of layers on each GPU, and joins their results at the end.
# Compare the last two rows: plain PyTorch is about as fast. Its launches return before their
# *kernels*, which are what a GPU runs, so the queues of both GPUs are full.

# Folded: two towers as a graph, and in plain PyTorch


def layer(x, weight):
    return torch.relu(x @ weight)


def join(u, v):
    return (u * v.to(u.device)).sum(1)


def two_towers(layers, size, devices):
    """A tower on each device, joined on the first, as a graph and in plain PyTorch."""
    matrix, graph = ap.workload.matrix, ap.TaskGraph(cpu_lanes=2, streams=1)
    inputs = [matrix(size, device) for device in devices]
    weights = [[matrix(size, device, seed=1 + i) for i in range(layers)] for device in devices]

    def joined(layer, join):
        return join(*(functools.reduce(layer, *one) for one in zip(weights, inputs, strict=True)))

    add = functools.partial(graph.add, writes=())
    task = joined(functools.partial(add, layer), functools.partial(add, join))
    return against_twin(graph, [task], {PLAIN: lambda: [joined(layer, join)]})


both = ap.recorded(two_towers, name="x5_two_towers", parameters=TOWERS, gpus=2)
gain = both.estimate(lambda s: s[TWIN] / s[RUN])
limits_s = dict.fromkeys((RUN, PLAIN), both.values["estimate_s"])
ap.show(
    ap.compare(both.measurements, limit_s=limits_s, **columns),
    ap.claim("Two towers take much less than their tasks in order.", gain, at_least=1.5, unit="×"),
)

# %%
# When this does not help
# -----------------------
# A single chain of tasks gains nothing, and with few tiles the longest chain is the limit. With
# many small tiles a task takes no longer than its launch: see :doc:`plot_5_how_fine_may_tasks_be`.
#
# On this machine
# ---------------
# The same factorisation, with smaller tiles, runs on two *CPU lanes*, threads with a queue each.

HERE = {"count": 5, "size": 320, "devices": ["cpu"]}
here = ap.observed(tiled, name="Cholesky on CPU lanes", parameters=HERE)
ap.show(ap.compare(here.measurements, limit_s={RUN: here.values["estimate_s"]}, **columns))

# %%
# Now you
# -------
# If all tasks took as long, how many GPUs could 2 × 2, 4 × 4 and 8 × 8 tiles keep busy, at most?
# You need none to find out.
#
# .. dropdown:: A hint
#
#     Divide all tasks' time by that of the longest chain. Before `graph.measure()`, a plan takes
#     all tasks to be as long.
#
# .. dropdown:: An answer
#
#     1, 2 and 5.5: the tasks grow with the third power of the tiles, the chain with the first.
#
#     .. code-block:: python
#
#         def most_gpus(count):
#             graph = ap.TaskGraph()
#             cholesky(add_to(graph), tiles_of(torch.eye(count), count), count)
#             plan = graph.plan()
#             return sum(job.cost_s for job in plan.schedule.jobs) / chain_s(plan)
