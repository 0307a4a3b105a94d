"""
Run tasks that depend on each other
===================================

| **You'll do:** exercise 5, twice: a model of two towers that meet at the end, and a Cholesky
  factorisation in tiles, where almost every task waits for others.
| **You'll learn:** how a graph finds what may run at once, which chain of tasks sets the limit, and
  how far from it a run ends.
| **You need:** nothing but this page; without two GPUs it shows records and runs on CPU lanes.

**The claim.** The program stays the serial one. Given as tasks, it returns the same bits, runs
faster than those tasks one after another, and takes at most a quarter more than the limit: the
longest chain or the busiest GPU, whichever takes longer. The timelines settle it.
"""

# %%
# Two towers
# ----------
# Each tower is a chain of layers on a GPU of its own; at the end their results are multiplied. A
# task among the arguments is a dependency, and what lies on another device is copied there first.

import functools

import torch

import autopar as ap

TOWERS = {"layers": 8, "size": 4096, "devices": ["cuda:0", "cuda:1"]}
TILED = {"count": 6, "size": 3584, "devices": ["cuda:0", "cuda:1"]}
HERE = {"count": 5, "size": 320, "devices": ["cpu"]}
TWIN, RUN = "tasks one after another", "the graph"
PLAIN, LIBRARY = "plain PyTorch", "torch.linalg.cholesky, one device"


def layer(x, weight):
    return torch.relu(x @ weight)


def join(u, v):
    return (u * v.to(u.device)).sum(1)


def towers(graph, inputs, weights):
    """A task for each layer, and one that needs both towers."""
    tops = []
    for number, (x, stack) in enumerate(zip(inputs, weights, strict=True)):
        for depth, weight in enumerate(stack):
            x = graph.add(layer, x, weight, name=f"layer {number}.{depth}")
        tops.append(x)
    return [graph.add(join, *tops)]


# %%
# A plan is data, made before anything runs. Here is that of four layers each, on two CPU lanes.

eye, graph = torch.eye(8), ap.TaskGraph(cpu_lanes=2)
towers(graph, [eye, eye], [[eye] * 4, [eye] * 4])
ap.plot.graph(graph.plan())
ap.plot.show("x5_plan_of_towers")

# %%
# A Cholesky factorisation
# ------------------------
# A = L L' for a matrix in square tiles. Below is the textbook's serial algorithm; each step changes
# one tile, and says so with `writes`. From reads and writes the graph finds what may run at once.


def potrf(a):
    """Factor a tile on the diagonal."""
    a.copy_(torch.linalg.cholesky_ex(a).L)


def trsm(a, diagonal):
    """Solve for a tile below the diagonal."""
    a.copy_(torch.linalg.solve_triangular(diagonal.mT, a, upper=True, left=False))


def gemm(a, left, right):
    """Subtract what a finished column contributes to a tile on its right."""
    a.addmm_(left, right.mT, alpha=-1)


def cholesky(graph, a, count):
    """The serial algorithm, as tasks."""
    for k in range(count):
        graph.add(potrf, a[k, k], writes=[a[k, k]], name=f"potrf {k}")
        for i in range(k + 1, count):
            graph.add(trsm, a[i, k], a[k, k], writes=[a[i, k]], name=f"trsm {i}{k}")
        for i in range(k + 1, count):
            for j in range(k + 1, i + 1):
                name = f"gemm {i}{j}.{k}"
                graph.add(gemm, a[i, j], a[i, k], a[j, k], writes=[a[i, j]], name=name)


def tiles_of(a, count, size):
    """The tiles on and below the diagonal."""
    rows = [a[i * size : (i + 1) * size].split(size, dim=1) for i in range(count)]
    return {(i, j): rows[i][j] for i in range(count) for j in range(i + 1)}


# %%
# From each `potrf` the work fans out, and it comes together again for the next.

# sphinx_gallery_thumbnail_number = 2
graph = ap.TaskGraph(cpu_lanes=2)
cholesky(graph, {place: eye.clone() for place in tiles_of(eye, 4, 2)}, 4)
ap.plot.graph(graph.plan())
ap.plot.show("x5_plan_of_tiles")

# %%
# Predict
# -------
# Each task is measured alone. No order can then beat the longest chain, nor the busiest device's
# work. The plan's makespan is what its own order takes by these times. Each GPU gets one stream: a
# product fills it, and on a second one products could hold up the longest chain.


def chain_s(plan):
    """Seconds of the longest chain of tasks, on however many devices."""
    ends_s = []
    for job in plan.schedule.jobs:
        ends_s.append(job.cost_s + max((ends_s[before] for before in job.after), default=0.0))
    return max(ends_s)


def timed(graph, tasks, right, others):
    """Hold a graph against its serial twin: the results first, then the times."""
    with graph:
        graph.measure()
        plan, run, twin = graph.plan(), graph.run(), graph.run_serial()
        checks = {
            "equal to the serial twin": ap.workload.equal(run[tasks], twin[tasks]),
            "as without a graph": right(run[tasks]),
        }
        ways = {TWIN: graph.run_serial, RUN: graph.run, **others}
        measurements = ap.measure_in_turn(ways, warmup=2, repeats=7)
        timelines = {TWIN: graph.run_serial().timeline, RUN: graph.run().timeline}
    values = {"limit_s": plan.limit_s, "chain_s": chain_s(plan), "makespan_s": plan.makespan_s}
    return ap.Findings(measurements, timelines, checks, values)


def noise(size, device, seed=0):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(size, size, generator=generator, device=device) / size**0.5


def two_towers(layers, size, devices):
    """A tower on each device, joined on the first."""
    inputs = [noise(size, device) for device in devices]
    weights = [[noise(size, device, 1 + i) for i in range(layers)] for device in devices]
    graph = ap.TaskGraph(cpu_lanes=2, streams=1)
    tasks = towers(graph, inputs, weights)

    def plain():
        return join(*(functools.reduce(layer, *each) for each in zip(weights, inputs, strict=True)))

    return timed(graph, tasks, lambda found: torch.equal(found[0], plain()), {PLAIN: plain})


def tiled(count, size, devices):
    """A factorisation whose tiles are dealt out, so that no device has much more to do."""
    whole = noise(count * size, devices[0])
    whole = whole + whole.mT
    whole.diagonal().add_(4)  # makes it positive definite
    graph, a = ap.TaskGraph(cpu_lanes=2, streams=1), {}
    for (i, j), tile in tiles_of(whole, count, size).items():
        own = tile.to(devices[(i + j // 2) % len(devices)])
        a[i, j] = graph.add(torch.clone, own, name=f"A{i}{j}")  # for each run to begin with
    cholesky(graph, a, count)

    def library():
        return torch.linalg.cholesky(whole)

    def close(found):
        pairs = zip(found, tiles_of(library(), count, size).values(), strict=True)
        return all(torch.allclose(x.to(y.device), y, rtol=1e-3, atol=1e-4) for x, y in pairs)

    return timed(graph, list(a.values()), close, {LIBRARY: library})


# %%
# How long do the towers take?
# ----------------------------
# Their serial twin runs the same tasks one after another, each to its end.

both = ap.recorded(two_towers, name="x5_two_towers", parameters=TOWERS, gpus=2)
limits = dict.fromkeys((RUN, PLAIN), both.values["limit_s"])
caption = f"Two towers of {TOWERS['layers']} layers on two GPUs"
ap.show(ap.compare(both.measurements, limit_s=limits, baseline=TWIN, caption=caption))

# %%
# Plain PyTorch needs no graph for this: its launches return at once, and nothing waits in between.

run, twin = (both.measurements[way] for way in (RUN, TWIN))
assert run.speedup_over(twin) >= 1.5, f"only {run.speedup_over(twin):.2f} x the serial twin"
assert both.values["limit_s"] / run.median_s >= 0.8, "the towers are far from their limit"
ap.show_timelines(
    both.timelines,
    "x5_two_towers",
    title="Two towers",
    caption="The same tasks; the last one needs both towers.",
    limit_s=both.values["limit_s"],
)

# %%
# And the factorisation?
# ----------------------
# The library's own, on one GPU, does less work: of tiles on the diagonal it computes one half.

gpus = ap.recorded(tiled, name="x5_cholesky", parameters=TILED, gpus=2)
limits = {RUN: gpus.values["limit_s"]}
caption = f"Cholesky factorisation in {TILED['count']} x {TILED['count']} tiles on two GPUs"
ap.show(ap.compare(gpus.measurements, limit_s=limits, baseline=TWIN, caption=caption))

# %%
# The claim, on the numbers: this page does not build if it stops being true.

run, twin = (gpus.measurements[way] for way in (RUN, TWIN))
limit_s, chain = gpus.values["limit_s"], gpus.values["chain_s"]
assert run.speedup_over(twin) >= 1.2, f"only {run.speedup_over(twin):.2f} x the serial twin"
assert limit_s / run.median_s >= 0.8, "the factorisation is far from its limit"
print(f"limit {1e3 * limit_s:.1f} ms; plan {1e3 * gpus.values['makespan_s']:.1f} ms", end="; ")
print(f"run {1e3 * run.median_s:.1f} ms")
for device in TILED["devices"]:
    timeline = gpus.timelines[RUN]
    print(f"{device} is busy for {timeline.busy_s(device) / timeline.makespan_s:.0%} of the run.")
print(f"The longest chain takes {1e3 * chain:.1f} ms: no number of GPUs can beat that.")

# %%
# See it
# ------
# `potrf`, `trsm` below it, `gemm` on the next diagonal tile, and again: that is the longest chain,
# and other products fill its gaps while there are enough of them. What is missing to the limit is
# lost at the start, where one GPU has to wait for the other's `potrf`, and where a tile that is
# needed next is not there yet.

ap.show_timelines(
    gpus.timelines,
    "x5_tasks_that_depend",
    title="A Cholesky factorisation on two GPUs",
    caption="Tiles that the other GPU needs are copied as soon as they are finished.",
    limit_s=limit_s,
)

# %%
# On this machine
# ---------------
# The same function, with smaller tiles, on two CPU lanes. They share the memory, so there are no
# copies; what they gain is up to the cores.

here = ap.observed(tiled, name="Cholesky on CPU lanes", parameters=HERE)
cores = ap.capacity(2).cores
limits = {RUN: max(here.values["limit_s"], here.measurements[TWIN].min_s / cores)}
assert here.timelines[RUN].overlap_s("cpu #0", "cpu #1") > 0, "the lanes ran one after the other"
caption = f"In {HERE['count']} x {HERE['count']} tiles, on {cores:.2f} cores' worth of this machine"
ap.show(ap.compare(here.measurements, limit_s=limits, baseline=TWIN, caption=caption))

# %%
# When this does not help
# -----------------------
# A chain gains nothing, on however many devices: with fewer tiles the longest chain is the limit.
# With more and smaller ones a task takes no longer than its launch. And where no launch has to
# wait, as with the towers, plain PyTorch does as well.
#
# Now you
# -------
# Give all tiles of a column to one GPU, or take `streams=4`: what do the plan and the run say? Then
# give each task a `cost_s`, and compare `plan().limit_s` for 2, 4 and 8 tiles, without any GPU.
