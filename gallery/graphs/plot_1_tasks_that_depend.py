# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run tasks that depend on each other
===================================

| **You'll do:** exercise 5, twice: a model of two towers that meet at the end, and a Cholesky
  factorisation in tiles, where almost every task waits for others.
| **You'll learn:** how a graph finds what may run at once, which chain of tasks sets the limit, and
  how far from it a run ends.
| **You need:** nothing but this page; without two GPUs it shows records and runs on CPU lanes.

**The claim.** The program stays the serial one. Given as tasks, it returns the same bits, runs
faster than those tasks one after another, and comes near what its tasks' own times allow: the
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
ap.plot.graph(graph.plan(), title="Two towers of four layers, on two CPU lanes")
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
ap.plot.graph(graph.plan(), title="Cholesky in 4 x 4 tiles, on two CPU lanes")
ap.plot.show("x5_plan_of_tiles")

# %%
# Predict
# -------
# Each task is measured alone. By these times no order can beat the longest chain, nor the busiest
# device's work. That is an estimate, as a task may take more or less in company than it did alone.
# The plan's makespan is what its own order takes by these times. Each GPU gets one stream: a
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
    values = {"estimate_s": plan.limit_s, "chain_s": chain_s(plan), "makespan_s": plan.makespan_s}
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
ESTIMATE = {"limit_name": "estimate", "baseline": TWIN}
towers_s = both.values["estimate_s"]
estimates = dict.fromkeys((RUN, PLAIN), towers_s)
caption = f"Two towers of {TOWERS['layers']} layers on two GPUs"
ap.show(
    ap.compare(both.measurements, limit_s=estimates, caption=caption, **ESTIMATE),
    ap.claim(
        "Two towers take about half of what their tasks take one after another.",
        both.estimate(lambda s: s[TWIN] / s[RUN]),
        at_least=1.5,
        unit="×",
    ),
    ap.claim(
        "The towers come near the estimate.",
        both.estimate(lambda s: towers_s / s[RUN]),
        at_least=0.7,
        unit="%",
    ),
)

# %%
# Plain PyTorch needs no graph for this: its launches return at once, and nothing waits in between.

ap.show_timelines(
    both.timelines,
    "x5_two_towers",
    title="Two towers",
    caption="The same tasks; the last one needs both towers.",
)

# %%
# And the factorisation?
# ----------------------
# The library's own, on one GPU, does less work: of tiles on the diagonal it computes one half.

gpus = ap.recorded(tiled, name="x5_cholesky", parameters=TILED, gpus=2)
tiles_s = gpus.values["estimate_s"]
caption = f"Cholesky factorisation in {TILED['count']} x {TILED['count']} tiles on two GPUs"
ap.show(
    ap.compare(gpus.measurements, limit_s={RUN: tiles_s}, caption=caption, **ESTIMATE),
    ap.claim(
        "The factorisation is clearly faster than its tasks one after another.",
        gpus.estimate(lambda s: s[TWIN] / s[RUN]),
        at_least=1.3,
        unit="×",
    ),
    ap.claim(
        "The factorisation comes near the estimate.",
        gpus.estimate(lambda s: tiles_s / s[RUN]),
        at_least=0.7,
        unit="%",
    ),
)

# %%
# What the estimate is made of, and how busy the GPUs were in one run.

timeline, chain = gpus.timelines[RUN], gpus.values["chain_s"]
print(f"estimate {1e3 * tiles_s:.1f} ms; plan {1e3 * gpus.values['makespan_s']:.1f} ms", end="; ")
print(f"run {1e3 * gpus.measurements[RUN].median_s:.1f} ms")
for device in TILED["devices"]:
    print(f"{device} is busy for {timeline.busy_s(device) / timeline.makespan_s:.0%} of the run.")
print(f"By these times the longest chain takes {1e3 * chain:.1f} ms, on however many GPUs.")

# %%
# See it
# ------
# `potrf`, `trsm` below it, `gemm` on the next diagonal tile, and again: that is the longest chain,
# and other products fill its gaps while there are enough of them. What is missing to the estimate
# is lost at the start, where one GPU has to wait for the other's `potrf`, and where a tile that is
# needed next is not there yet.

ap.show_timelines(
    gpus.timelines,
    "x5_tasks_that_depend",
    title="A Cholesky factorisation on two GPUs",
    caption="Tiles that the other GPU needs are copied as soon as they are finished.",
)

# %%
# On this machine
# ---------------
# The same function, with smaller tiles, on two CPU lanes. They share the memory, so there are no
# copies; what they gain is up to the cores. The estimate takes a core for each lane.

here = ap.observed(tiled, name="Cholesky on CPU lanes", parameters=HERE)
timeline = here.timelines[RUN]
together = sum(span.duration_s for span in timeline.spans) / timeline.busy_s()
estimates = {RUN: here.values["estimate_s"]}
caption = f"In {HERE['count']} x {HERE['count']} tiles, on two CPU lanes"
ap.show(
    ap.compare(here.measurements, limit_s=estimates, caption=caption, **ESTIMATE),
    ap.claim(
        "Tasks that don't depend on each other run at the same time on two lanes.",
        here.estimate(lambda _: together),  # of one timeline, so without an interval
        at_least=1.1,
        unit="at once",
    ),
)

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
