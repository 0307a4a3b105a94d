# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run small operators at once
===========================

| **You'll do:** exercise 2 of the chapter: many products of small matrices on one GPU and on one
  CPU, in every way that may run several at once.
| **You'll learn:** up to which size parallelism pays on one device, and what stands in its way.
| **You need:** nothing but this page; without a GPU it shows records, and runs on CPU lanes.

**The claim.** An operator too small to fill a device leaves room for others beside it. On a GPU
the branches of a CUDA graph use that room. Eager streams can't, where launching takes longer than
the work. On a CPU with many cores lanes of one thread each do better at some sizes than all threads
inside each operator. The two figures show at which.
"""

# %%
# The work
# --------
# Each product is a single call of an operator. On the CPU there are so many of a size that they
# take long enough to be timed: pairs of a size and a count.

import itertools
import math
import os
from dataclasses import replace

import matplotlib.pyplot as plt
import torch

import autopar as ap

GPU = {"count": 64, "sizes": [64, 128, 256, 512, 1024, 2048], "streams": 8}
CPU = [[64, 512], [128, 512], [192, 512], [256, 512], [384, 256], [512, 128], [768, 48]]
HERE = [[64, 64], [128, 96], [192, 64], [256, 32], [384, 12], [512, 8]]
EAGER = "one by one", "streams", "bmm"
WAYS = "all threads for each", "lanes of one thread"
SMALL = GPU["sizes"][:3]  # so small that launching takes longer than the work
BRANCHES = (2, 4, 8)  # the numbers of branches that `capture` tries
LEAST = 1.1  # whoever gains less than a tenth can do without


# %%
# The ways on a GPU
# -----------------
# One by one; dealt out to streams; as a batch, which is a single operator; and captured, as a
# chain and with branches, whose times `trials` has.


def on_streams(each, streams):
    """Products dealt out to several streams, which the current one waits for."""
    current, results = torch.cuda.current_stream(), []
    for stream in streams:
        stream.wait_stream(current)
    for x, stream in zip(each, itertools.cycle(streams), strict=False):
        with torch.cuda.stream(stream):
            results.append(x.mm(x))
    for stream in streams:
        current.wait_stream(stream)
    return results


def on_gpu(count, sizes, streams):
    """Each size in every way; the graphs by the number of branches."""
    gpu = ap.gpu(0)
    side = [torch.cuda.Stream(gpu) for _ in range(streams)]
    measurements, checks = [], {}
    for size in sizes:
        batch = torch.randn(count, size, size, device=gpu) / size**0.5
        each = batch.unbind()
        ways = (
            lambda each=each: [x.mm(x) for x in each],
            lambda each=each: on_streams(each, side),
            lambda batch=batch: torch.bmm(batch, batch),
        )
        in_streams = ways[1]()  # first, so that it finds no results of others in its memory
        graph = ap.TaskGraph()
        tasks = [graph.add(torch.mm, x, x, name="product") for x in each]
        captured = graph.capture()
        wanted = ways[0]()
        checks[f"{size}, streams: equal"] = all(map(torch.equal, in_streams, wanted))
        checks[f"{size}, graph: equal"] = all(map(torch.equal, captured.replay()[tasks], wanted))
        checks[f"{size}, bmm: close"] = torch.allclose(ways[2](), torch.stack(wanted), atol=1e-5)
        for trial in captured.trials.values():
            measurements.append(ap.Measurement(f"{size}, {trial.label}", trial.values_s))
        named = {f"{size}, {way}": fn for way, fn in zip(EAGER, ways, strict=True)}
        measurements += ap.measure_in_turn(named, devices=[gpu], warmup=1, repeats=7)
    return ap.Findings(measurements, {}, checks)


# %%
# Predict
# -------
# A small product leaves most multiprocessors idle. Branches can use them, until one product fills
# the GPU by itself. What the host launches one by one gets no faster than it launches. Beside the
# times stands what a product's arithmetic takes at the best rate that any way reached at any size.

gpu = ap.recorded(on_gpu, name="x2_on_gpu", parameters=GPU)
count, sizes, flops = GPU["count"], GPU["sizes"], ap.workload.product_flops
GRAPHS = "graph, chain", "graph, branches"
each_s, gain = {}, {}
for size in sizes:
    trial_s = [gpu.measurements[f"{size}, {n} branches"].median_s for n in (1, *BRANCHES)]
    totals_s = [gpu.measurements[f"{size}, {way}"].median_s for way in EAGER]
    totals_s += [trial_s[0], min(trial_s[1:])]
    each_s[size] = {way: s / count for way, s in zip(EAGER + GRAPHS, totals_s, strict=True)}
    gain[size] = trial_s[0] / min(trial_s[1:])
rate = max(flops(size) / min(times_s.values()) for size, times_s in each_s.items())
rows = []
for size, times_s in each_s.items():
    times = [f"{1e6 * taken_s:.2f}" for taken_s in (*times_s.values(), flops(size) / rate)]
    rows.append([f"{size}", *times, f"{gain[size]:.2f} x"])
headers = ["side", *EAGER, *GRAPHS, "at the best rate", "branches gain"]
caption = f"Microseconds for one of {count} products on a GPU, {GPU['streams']} streams"
notes = ["Graphs are timed on the GPU, without their one launch. The gain is over the chain."]
ap.show(ap.tabulate(headers, rows, caption=caption, origin=gpu.origin, notes=notes))

# %%
# Up to which size?
# -----------------
# Between two sizes the gain is taken to be straight on logarithmic scales.


def crossing(gain, level):
    """The size from which on a gain stays below a level; None if it is below, or never is."""
    above = [size for size in gain if gain[size] >= level]
    if not above or above[-1] == max(gain):
        return None
    larger = min(size for size in gain if size > above[-1])
    high, low = gain[above[-1]], gain[larger]
    return above[-1] * (larger / above[-1]) ** (math.log(high / level) / math.log(high / low))


crossover, best = crossing(gain, LEAST), max(gain, key=gain.get)
print(f"Branches gain most at {best}: {gain[best]:.2f} x over the chain.")
if crossover:
    print(f"Beyond {crossover:.0f} they gain less than {LEAST - 1:.0%}.")
else:
    print(f"There is no size beyond which they gain less than {LEAST - 1:.0%}.")

# %%
# The claims are held against these numbers. They speak of the small sizes, each of them; which of a
# batch and of branches is ahead of the other differs from machine to machine, and from run to run.

shown = ", ".join(f"{size}" for size in SMALL)
one, streams, batch = EAGER
ap.show(
    ap.claim(
        f"Branches of a CUDA graph run small products at once (sides {shown}).",
        gpu.estimate(
            lambda s: min(
                s[f"{size}, 1 branches"] / min(s[f"{size}, {n} branches"] for n in BRANCHES)
                for size in SMALL
            )
        ),
        at_least=1.5,
        unit="×",
    ),
    ap.claim(
        f"On eager streams small products take longer than one by one (sides {shown}).",
        gpu.estimate(
            lambda s: min(s[f"{size}, {streams}"] / s[f"{size}, {one}"] for size in SMALL)
        ),
        at_least=1.2,
        unit="×",
    ),
    ap.claim(
        f"A batch is far faster than small products one by one (sides {shown}).",
        gpu.estimate(lambda s: min(s[f"{size}, {one}"] / s[f"{size}, {batch}"] for size in SMALL)),
        at_least=3,
        unit="×",
    ),
)

# %%
# See it
# ------
# From each size to the next the arithmetic becomes eight times as much. Where a curve rises far
# less, something else takes the time: launching, where products go one by one.

figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for way, marker in zip(EAGER + GRAPHS, "osD^v", strict=True):
    ax.plot(sizes, [1e6 * each_s[size][way] for size in sizes], marker=marker, label=way)
at_rate_us = [1e6 * flops(size) / rate for size in sizes]
ax.plot(sizes, at_rate_us, "--", color="0.4", label="at the best rate")
if crossover:
    ax.axvline(crossover, color="0.6", linestyle=":", label="branches gain a tenth")
ax.set(xscale="log", yscale="log", xlabel="side of the matrices", ylabel="us for a product")
ax.set_xticks(sizes, [str(size) for size in sizes])
ax.minorticks_off()
ax.legend(fontsize="small")
figure.suptitle(gpu.origin, fontsize=7)
ap.plot.show("x2_small_operators")

# %%
# The ways on a CPU
# -----------------
# One thread for everything; all threads inside each product; and a task graph's lanes with one
# thread each, as many as there are hardware threads. Lanes let go of Python's lock only while an
# operator runs, so a task is one operator, which should take long. Results go to memory that is
# there: clearing fresh pages would be timed too. Beside the gains stands how many cores' worth of
# work a probe found before or after, whichever is more. It estimates what can be gained: a probe
# sees its own moment only, and where cores are virtual the next may be another.


def run(x, outs):
    """A product into each."""
    for out in outs:
        torch.mm(x, x, out=out)


def on_cpu(work):
    """Each size by one thread, by all threads for each product, and on lanes of one thread."""
    measurements, checks, lanes = [], {}, os.cpu_count() or 1
    cores = ap.capacity(lanes).cores
    with ap.cpu_lane(1) as one, ap.cpu_lane(torch.get_num_threads()) as every:
        for size, count in work:
            x, graph = ap.workload.matrix(size), ap.TaskGraph(cpu_lanes=lanes)
            outs = [torch.full((size, size), torch.nan) for _ in range(count)]
            for out in outs:
                graph.add(torch.mm, x, x, out=out, writes=[out])
            ways = {  # threads inside an operator stay awake after it: no lanes right behind them
                f"{size}, {WAYS[1]}": graph.run,
                f"{size}, {WAYS[0]}": lambda x=x, outs=outs: every.submit(run, x, outs).wait(),
                f"{size}, one thread": lambda x=x, outs=outs: one.submit(run, x, outs).wait(),
            }
            with graph:
                graph.run()
                product = one.submit(torch.mm, x, x).result()
                checks[f"{size}: equal"] = all(torch.equal(out, product) for out in outs)
                measurements += ap.measure_in_turn(ways, warmup=1, repeats=5)
    values = {"lanes": lanes, "cores": max(cores, ap.capacity(lanes).cores)}
    return ap.Findings(measurements, {}, checks, values)


def gains(record, way):
    """Size to gain over one thread."""
    of, found = record.measurements, {}
    for size, _ in record.parameters["work"]:
        found[size] = of[f"{size}, {way}"].speedup_over(of[f"{size}, one thread"])
    return found


there = ap.recorded(on_cpu, name="x2_on_cpu", parameters={"work": CPU})
here = ap.observed(on_cpu, name="small products on this CPU", parameters={"work": HERE})
records = {"GPU machine": there, "this machine": here}
found = {f"{where}, {way}": gains(records[where], way) for where in records for way in WAYS}
rows = []
for size, _ in CPU:
    rows.append([f"{size}", *(f"{of[size]:.2f} x" if size in of else "-" for of in found.values())])
cores = {where: record.values["cores"] for where, record in records.items()}
rows.append(["a probe", *(f"{cores[where]:.2f} x" for where in records for _ in WAYS)])
notes = [
    f"{where}: {record.values['lanes']:.0f} lanes, {record.hardware['cpu']}"
    for where, record in records.items()
]
caption = "What many products on a CPU gain over one thread"
about = "a probe: how many cores' worth of work it found in its moment; gains may be more"
origins = tuple(record.origin for record in records.values())
table = ap.tabulate(["side", *found], rows, caption=caption, notes=[*notes, about])
ap.show(replace(table, origins=origins))

# %%
# Lanes gain where an operator takes longer than handing it over, and all threads inside it where
# there is enough for each of them to do. On the GPU machine's CPU:


def ahead(seconds, size):
    """What lanes gain over one thread or all threads inside, whichever is faster."""
    inside_s, lanes_s, one_s = (seconds[f"{size}, {way}"] for way in (*WAYS, "one thread"))
    return min(inside_s, one_s) / lanes_s


inside, lanes = (found[f"GPU machine, {way}"] for way in WAYS)
median_s = {label: each.median_s for label, each in there.measurements.items()}
best = max(lanes, key=lambda size: ahead(median_s, size))
later = [size for size in lanes if size > best and lanes[size] < inside[size]]
print(f"Lanes are furthest ahead at {best}: {lanes[best]:.1f} x one thread,")
print(f"where all threads inside each product make {inside[best]:.1f} x. These are")
print(f"faster from {later[0]} on." if later else f"faster at no larger size up to {max(lanes)}.")
ap.show(
    ap.claim(
        "At some size lanes of one thread are faster than one thread and than all threads inside.",
        there.estimate(lambda s: max(ahead(s, size) for size in lanes)),
        at_least=1.2,
        unit="×",
    )
)

# %%
# The dashed line is what the probe found.

figure, axes = plt.subplots(1, 2, figsize=(7, 3), sharex=True, layout="constrained")
for ax, where in zip(axes, records, strict=True):
    for way, marker in zip(WAYS, "os", strict=True):
        ax.plot(*zip(*found[f"{where}, {way}"].items(), strict=True), marker=marker, label=way)
    ax.axhline(cores[where], linestyle="--", color="0.4")
    ax.set(xscale="log", title=where, xlabel="side of the matrices", ylim=(0, None))
    ax.set_xticks([64, 128, 256, 512], ["64", "128", "256", "512"])
    ax.minorticks_off()
axes[0].set_ylabel("gain over one thread")
axes[0].legend(fontsize="small")
said = (f"{where}: {origin}" for where, origin in zip(records, origins, strict=True))
figure.suptitle("\n".join(said), fontsize=7)
ap.plot.show("x2_on_cpu")

# %%
# When this does not help
# -----------------------
# A batch, where all operators are of one shape, is one launch and needs no queues: try it first.
# Operators smaller than their launch, or than handing them to a lane, gain nothing by more queues:
# make fewer of them. And those that fill the device are best run one after another.
#
# Now you
# -------
# Let tasks on CPU lanes make ten products each, in a Python loop: what is lost at 64, and why not
# at 512? Then capture a chain of 64 products, each of the one before: what do branches gain?
