# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run tasks that depend on each other
===================================

| **You'll do:** factor a matrix on two GPUs, in tiles, where almost every task waits for others.
| **You'll learn:** how a graph finds what may run at once, and the least time of its tasks.
| **You need:** 8 minutes, and no GPU: the part for two GPUs is shown from a record. Before this:
  :doc:`/auto_gallery/first_steps/plot_2_two_devices_at_once`. Next:
  :doc:`plot_2_the_figure_made_real`.

Say what each task changes, and a graph finds by itself what may run at once. A Cholesky
factorisation in tiles then takes two GPUs far less time than in plain PyTorch.
"""

# %%
# Called on the spot, tasks keep their order
# ------------------------------------------
# A Cholesky factorisation splits a matrix into a factor L, with zeros above its diagonal, and its
# transpose. In square tiles it takes three functions. Each changes the tile that it is given first.
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
# The textbook's loop goes column by column, and hands each task to a function `do`. It is tempting
# to call the task on the spot. Then you write each copy, and both GPUs keep the loop's order.
def on_the_spot(fn, tile, *reads):
    fn(tile, *(read.to(tile.device) for read in reads))


# %%
# Tasks that say what they change find their order
# ------------------------------------------------
# The right way lets `do` add the task to a graph. Its arguments are what it reads, and `writes` is
# the tile that it changes. So the graph finds each wait, and each copy to the other GPU.
def cholesky(do, a, count):  # in place, of the tiles on and below the diagonal
    for k in range(count):
        do(potrf, a[k, k])
        for i in range(k + 1, count):
            do(trsm, a[i, k], a[k, k])
            for j in range(k + 1, i + 1):
                do(gemm, a[i, j], a[i, k], a[j, k])
    return a


def add_to(graph):
    return lambda fn, tile, *reads: graph.add(fn, tile, *reads, writes=[tile])


# %%
# Compare :timeline:`the graph`, of 6 × 6 tiles, with :timeline:`tasks one after another`, in which
# each waits for the one before. The drawing has 4 × 4, and the longest chain of tasks in bold.

# Folded: the drawing
# sphinx_gallery_thumbnail_number = 2
_, ax = plt.subplots(layout="constrained")
for i, j in torch.tril_indices(4, 4).T.tolist():
    color = ["#4b2a7a", "#b0437e"][(i + j // 2) % 2]
    ax.add_patch(plt.Rectangle((j, i), 1, 1, facecolor=color, edgecolor="w", linewidth=4))
    tasks = [*(f"gemm {k}" for k in range(j)), f"potrf {j}" if i == j else f"trsm {j}"]
    for k, task in enumerate(tasks):
        ink = {"color": "#ffc83d", "weight": "bold"} if i - j < 2 and k >= i - 1 else {"color": "w"}
        ax.text(j + 0.5, i + 0.5 + 0.16 * (k - j / 2), task, ha="center", va="center", **ink)
ax.set(xlim=(0, 4), ylim=(4, 0), title="4 × 4 tiles: purple on GPU 0, pink on GPU 1")
ax.set_axis_off()
ap.plot.show("x5_tiles")

# %%
# The run comes near what its tasks allow
# ---------------------------------------
# No order is faster than the longest chain of tasks, or than all tasks of the busier GPU. Each task
# was timed alone. Beside others it may be faster or slower, so the least time is an *estimate*.

# Folded: the measurement
TILED = {"count": 6, "size": 3584, "devices": ["cuda:0", "cuda:1"]}
TWIN, PLAIN, RUN, LIBRARY = "tasks one after another", "plain PyTorch", "the graph", "torch.linalg"
TABLE = {"limit_name": "estimate", "baseline": TWIN, "highlight": RUN}


def tiled(count, size, devices):
    def tiles_of(whole):
        rows = [row.chunk(count, dim=1) for row in whole.chunk(count)]
        return {(i, j): rows[i][j] for i in range(count) for j in range(i + 1)}

    whole = ap.workload.matrix(count * size, devices[0])
    whole = whole + whole.mT + 4 * torch.eye(len(whole), device=whole.device)  # positive definite
    graph, dealt, a = ap.TaskGraph(cpu_lanes=2, streams=1), {}, {}
    for (i, j), tile in tiles_of(whole).items():
        dealt[i, j] = tile.to(devices[(i + j // 2) % len(devices)])
        a[i, j] = graph.add(torch.clone, dealt[i, j])  # in each run
    cholesky(add_to(graph), a, count)
    with graph:
        graph.measure()
        ways = {TWIN: lambda: graph.run_serial()[a], RUN: lambda: graph.run()[a]}
        ways[PLAIN] = lambda: cholesky(on_the_spot, {at: dealt[at].clone() for at in a}, count)
        ways[LIBRARY] = lambda: tiles_of(torch.linalg.cholesky(whole))
        found = ap.race(ways, close={PLAIN: 1e-4, LIBRARY: 1e-4}, warmup=2)
        seen = {TWIN: graph.run_serial().timeline, RUN: graph.run(timed=True).timeline}
        estimate = {"estimate_s": graph.plan().limit_s}
        return ap.Findings(found.measurements, seen, found.checks, estimate)


# %%
gpus = ap.recorded(tiled, name="x5_cholesky", parameters=TILED, gpus=2)
ap.show_timelines(gpus.timelines, "x5_tasks_that_depend", title="Cholesky on two GPUs")

# %%
# In the table, compare the row in bold with its estimate, and those below: the last has one GPU.
least_s, gain = gpus.values["estimate_s"], gpus.estimate(lambda s: s[PLAIN] / s[RUN])
near = gpus.estimate(lambda s: least_s / s[RUN])
ap.show(
    ap.compare(gpus.measurements, limit_s={RUN: least_s}, **TABLE | {"baseline": PLAIN}),
    ap.claim("The graph is clearly faster than plain PyTorch.", gain, at_least=1.2, unit="×"),
    ap.claim("The estimate is most of the graph's time.", near, at_least=0.7, unit="%"),
)

# %%
# When this does not help
# -----------------------
# A task of a small tile takes no longer than its launch: :doc:`plot_5_how_fine_may_tasks_be`.
#
# On this machine
# ---------------
# The same factorisation, with smaller tiles, runs on two *CPU lanes*, threads with a queue each.

here = ap.observed(tiled, name="on CPU lanes", parameters=TILED | {"size": 320, "devices": ["cpu"]})
ap.show(ap.compare(here.measurements, limit_s={RUN: here.values["estimate_s"]}, **TABLE))

# %%
# Now you
# -------
# If all tasks took the same time, how many GPUs could 2 × 2, 4 × 4 and 8 × 8 tiles keep busy?
#
# .. dropdown:: A hint
#
#     Divide the number of all tasks by that of the longest chain.
#
# .. dropdown:: An answer
#
#     1, 2 and 5.5: the tasks grow with the third power of the tiles, the chain with the first.
#
#     .. code-block:: python
#
#         def most_gpus(count):
#             return count * (count + 1) * (count + 2) / 6 / (3 * count - 2)
