# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Copy both ways while you compute
================================

| **You'll do:** matrices from the host to the GPU, a product of each, the results back to the host.
| **You'll learn:** what three queues at once are worth, how many slots a pipeline needs for it, and
  how large these should be.
| **You need:** nothing but this page; without a GPU it shows records and runs on CPU lanes.

**The claim.** The bus carries both directions at once, and the GPU computes meanwhile. So the time
of all three is little more than that of the longest, where one stream takes the sum of the three.
The timelines settle it.
"""

# %%
# The work
# --------
# The loop that everybody writes first: each line waits for the one before.

import matplotlib.pyplot as plt
import torch

import autopar as ap

BOTH = {"count": 20, "size": 4000}
SWEEP = {"count": 24, "size": 4000, "slots": [1, 2, 3, 4], "slot_mib": [1, 4, 16, 32, 64]}
HERE = {"count": 12, "size": 384}
COMPUTE, TO_HOST, BOTH_WAYS = "compute", "copy to the host", "copy both ways"
LOOP, ONE_STREAM = "plain loop", "non_blocking, one stream"
PINNED, ORDINARY = "map, pinned memory", "map, ordinary memory"


def plain_loop(fn, inputs, device):
    """Copy, compute, copy back, one after the other."""
    return [fn(x.to(device)).cpu() for x in inputs]


def one_stream(fn, inputs, device):
    """The same without waiting in between; one stream still runs it in order."""
    return [fn(x.to(device, non_blocking=True)).to("cpu", non_blocking=True) for x in inputs]


# %%
# The way that works
# ------------------
# One line. The pipeline copies the next inputs on one stream and the last results on another, with
# an event for each; `fn` runs on the caller's own stream.


def with_pipeline(pipeline, fn, inputs, **where):
    """All three at once."""
    return list(pipeline.map(fn, inputs, **where))


# %%
# Predict
# -------
# N equal items pass through three stations: to the device, compute, to the host. The first item
# needs all three; after that one leaves whenever the slowest station is done. With both directions
# busy a copy takes a little longer than alone. So the limit has the time of one copy alone for the
# first item on its way there and for the last on its way back, when nothing comes the other way,
# and that of both directions at once for all between.


def limit_s(count, one_way_s, compute_s, both_ways_s):
    """The least time that `count` items can take; the times are those of one item."""
    return 2 * one_way_s + compute_s + (count - 1) * max(compute_s, both_ways_s)


def copy_both_ways(streams, hosts, gpus, count):
    """Copy from one pair of tensors to the other, both ways at once, and compute nothing."""
    for _ in range(count):
        with torch.cuda.stream(streams[0]):
            gpus[1].copy_(hosts[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            hosts[1].copy_(gpus[0], non_blocking=True)


def both_ways(count, size):
    """The parts, the two plain ways, and `map` with pinned and with ordinary memory."""
    gpu = ap.gpu(0)
    weights = ap.workload.matrix(size, gpu, seed=1)
    inputs = [ap.workload.matrix(size, seed=i) for i in range(2)] * (count // 2)
    pinned = [x.pin_memory() for x in inputs[:2]] * (count // 2)
    hosts, gpus = [x.pin_memory() for x in inputs[:2]], [x.to(gpu) for x in inputs[:2]]
    streams = [torch.cuda.Stream(gpu) for _ in range(2)]
    outs = [torch.zeros_like(x) for x in inputs]

    def fn(x):
        return x.mm(weights)

    expected = plain_loop(fn, inputs[:2], gpu) * (count // 2)
    with ap.CopyPipeline(gpu) as pipeline:
        ways = {
            COMPUTE: lambda: [fn(gpus[0]) for _ in inputs],
            TO_HOST: lambda: [hosts[0].copy_(gpus[0], non_blocking=True) for _ in inputs],
            BOTH_WAYS: lambda: copy_both_ways(streams, hosts, gpus, count),
            LOOP: lambda: plain_loop(fn, inputs, gpu),
            ONE_STREAM: lambda: one_stream(fn, pinned, gpu),
            PINNED: lambda: with_pipeline(pipeline, fn, pinned, pin=True),
            ORDINARY: lambda: with_pipeline(pipeline, fn, inputs, out=outs),
        }
        chosen = (ONE_STREAM, PINNED, ORDINARY)
        checks = {}
        for way in chosen:
            results = ways[way]()
            ap.synchronize(gpu)
            checks[f"{way}: equal"] = ap.workload.equal(results, expected)
        measurements = ap.measure_in_turn(ways, devices=[gpu], warmup=1, repeats=5)
        timelines = {way: ap.timeline_of(ways[way]) for way in chosen[:2]}
    return ap.Findings(measurements, timelines, checks)


# %%
# How long?
# ---------
# The limit comes from the fastest runs of the three parts.

gpu = ap.recorded(both_ways, name="b2_both_ways", parameters=BOTH)
count, median_s = BOTH["count"], {label: one.median_s for label, one in gpu.measurements.items()}
parts = (gpu.measurements[label] for label in (TO_HOST, COMPUTE, BOTH_WAYS))
copy_s, compute_s, both_s = (part.min_s / count for part in parts)
least_s = limit_s(count, copy_s, compute_s, both_s)
limits = dict.fromkeys((LOOP, ONE_STREAM, PINNED, ORDINARY), least_s)
ap.show(
    ap.compare(
        gpu.measurements,
        limit_s=limits,
        baseline=LOOP,
        parts=(COMPUTE, TO_HOST, BOTH_WAYS),
        caption=f"{count} matrices of 64 MB there, multiplied, and back",
    )
)

# %%
# The claims. Copies both ways are two for each item. What overlap can save is all but the longest
# of the three stations.

print(f"A copy takes {both_s / compute_s:.0%} of a product, with both directions busy.")
print(f"One stream takes {median_s[ONE_STREAM] / least_s:.2f} x the limit, the plain loop")
print(f"{median_s[LOOP] / least_s:.1f} x: its copies go through pageable and fresh memory, too.")
duplex = gpu.estimate(lambda s: 2 * s[TO_HOST] / s[BOTH_WAYS])
saved = gpu.estimate(lambda s: ap.hidden_share([s[COMPUTE], s[TO_HOST], s[TO_HOST]], s[PINNED]))
kept = gpu.estimate(lambda _: gpu.timelines[ONE_STREAM].hidden())
ap.show(
    ap.claim(
        "The bus carries more in both directions at once than in turn.",
        duplex,
        at_least=1.3,
        unit="×",
    ),
    ap.claim(
        "Copying both ways while computing saves most of what overlap can.",
        saved,
        at_least=0.7,
        unit="%",
    ),
    ap.claim("On one stream no copy runs while a product does.", kept, at_most=0.05, unit="%"),
)

# %%
# See it
# ------
# Above, one stream: a single thing at a time. Below, three at once.

ap.show_timelines(
    gpu.timelines,
    "b2_copy_both_ways",
    title="There, multiplied, and back",
    caption="The same copies and products on one stream, and through the pipeline.",
    limit_s=least_s,
)

# %%
# How many slots, how large?
# --------------------------
# Inputs and results in *ordinary* memory pass through pinned slots: while one is copied by the
# GPU, another is filled or emptied by the CPU. So one slot should be too few. Small slots pay the
# fixed cost of a chunk over and over, and large ones cost pinned memory.


def sweeps(count, size, slots, slot_mib):
    """Results into touched memory, for several numbers and sizes of slots."""
    gpu = ap.gpu(0)
    x = ap.workload.matrix(size, gpu)
    outs = [torch.zeros(size, size) for _ in range(count)]
    pinned = torch.empty(size, size).pin_memory()
    expected = x.mm(x).cpu()
    choices = [(n, 32) for n in slots] + [(3, mib) for mib in slot_mib if mib != 32]

    def copy_all():
        for _ in range(count):
            pinned.copy_(x, non_blocking=True)

    parts = {"compute": lambda: ap.workload.products(x, count), "copy": copy_all}
    measurements = [*ap.measure_in_turn(parts, devices=[gpu], warmup=1, repeats=5)]
    checks = {}
    for n, mib in choices:
        label = f"{n} x {mib} MiB"
        with ap.CopyPipeline(gpu, slots=n, slot_bytes=mib << 20) as pipeline:

            def run(pipeline=pipeline):
                return list(pipeline.to_host((x.mm(x) for _ in outs), out=outs))

            measurements.append(ap.measure(run, label=label, warmup=1, repeats=5))
        checks[f"{label}: equal"] = all(torch.equal(out, expected) for out in outs)
        for out in outs:
            out.fill_(torch.nan)
    return ap.Findings(measurements, {}, checks)


swept = ap.recorded(sweeps, name="b2_slots", parameters=SWEEP)
parts_s = [swept.measurements[label].min_s for label in ("compute", "copy")]
best_s = max(parts_s) + min(parts_s) / SWEEP["count"]
by_slots = {n: swept.measurements[f"{n} x 32 MiB"] for n in SWEEP["slots"]}
by_size = {mib: swept.measurements[f"3 x {mib} MiB"] for mib in SWEEP["slot_mib"]}
chosen = dict.fromkeys([one.label for one in (*by_slots.values(), *by_size.values())], best_s)
ap.show(
    ap.compare(
        swept.measurements, limit_s=chosen, caption="Products into ordinary memory, by slots"
    )
)

# %%
# The dashed line is the limit. Look where the curves become level: more slots than that, or larger
# ones, gain nothing.

figure, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True, layout="constrained")
sides = ((by_slots, "slots of 32 MiB"), (by_size, "MiB in each of 3 slots"))
for ax, (found, what) in zip(axes, sides, strict=True):
    ax.plot(range(len(found)), [1e3 * one.median_s for one in found.values()], "o-")
    ax.axhline(1e3 * best_s, linestyle="--", color="0.4", label="limit")
    ax.set_xticks(range(len(found)), [str(value) for value in found])
    ax.set_xlabel(what)
axes[0].set(ylabel="ms", ylim=(0, None))
axes[0].legend()
figure.suptitle(swept.origin, fontsize=7)
ap.plot.show("b2_slots")

# %%
# How much slower the first and the second number of slots are than the best one:


def slower(seconds, slots):
    """The time with some slots, over the least with any number of them."""
    return seconds[f"{slots} x 32 MiB"] / min(seconds[f"{n} x 32 MiB"] for n in SWEEP["slots"])


one, two = (swept.estimate(lambda s, n=n: slower(s, n)) for n in (1, 2))
ap.show(
    ap.claim(
        "One slot is too few: results take longer than with more.", one, at_least=1.1, unit="×"
    ),
    ap.claim("Two slots are nearly as good as more.", two, at_most=1.2, unit="×"),
)

# %%
# On this machine
# ---------------
# The same calls on CPU lanes: the copies run on a lane of their own, while this thread computes.


def map_here(count, size):
    """`map` on the CPU beside the plain loop."""
    weights, inputs = ap.workload.matrix(size, seed=1), [ap.workload.matrix(size)] * count
    device = ap.cpu()

    def loop():
        return [x.clone().mm(weights).clone() for x in inputs]

    with ap.CopyPipeline(device) as pipeline:

        def mapped():
            return with_pipeline(pipeline, lambda x: x.mm(weights), inputs)

        checks = {"equal": ap.workload.equal(mapped(), loop())}
        measurements = ap.measure_in_turn({"plain loop": loop, "map": mapped}, warmup=1, repeats=5)
    return ap.Findings(measurements, {}, checks)


here = ap.observed(map_here, name="map on the CPU", parameters=HERE)
ap.show(ap.compare(here.measurements, caption="Copy, multiply, copy, on the CPU"))

# %%
# When this does not help
# -----------------------
# On a CPU a lane's thread makes the copies, on a core that could compute, and they are short beside
# the products: all that can be won is their time, and what the pipeline takes for itself may be
# more. On a GPU the longest of the three decides:
# once copies are longer than products, a faster kernel gains nothing, and fewer bytes do. Results
# in fresh ordinary memory are slower than any of this: the system clears every page first, so give
# `out`, or `pin=True`.
#
# Now you
# -------
# Halve `size` until a copy takes longer than its product: which station is the longest then, and
# does `map` still reach the limit? Let `fn` compute twice as much: what changes in the timeline?
