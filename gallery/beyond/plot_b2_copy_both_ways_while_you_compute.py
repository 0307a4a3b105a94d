"""
Copy both ways while you compute
================================

| **You'll do:** matrices from the host to the GPU, a product of each, the results back to the host.
| **You'll learn:** what three queues at once are worth, how many slots a pipeline needs for it, and
  how large these should be.
| **You need:** nothing but this page; without a GPU it shows records and runs on CPU lanes.

**The claim.** The bus carries both directions at once, and the GPU computes meanwhile. So the time
of all three is that of the longest: `CopyPipeline.map` reaches 97 % of that limit, where one
stream takes the sum of the three. The timelines settle it.
"""

# %%
# The work
# --------
# The loop that everybody writes first: each line waits for the one before.

import matplotlib.pyplot as plt
import torch

import autopar as ap

BOTH = {"count": 32, "size": 4000}
SWEEP = {"count": 48, "size": 4000, "slots": [1, 2, 3, 4, 6], "slot_mib": [1, 2, 4, 8, 16, 32, 64]}
HERE = {"count": 12, "size": 384}
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
# N equal items pass through three stations, which take H (to the device), K (compute) and D (to
# the host) each. The first item needs all three; after that one leaves every max(H, K, D). With
# both directions busy a copy takes a little longer than alone, so H and D come from a run in which
# both copy at once.


def limit_s(count, to_device_s, compute_s, to_host_s):
    """The least time that `count` items can take."""
    stations = to_device_s, compute_s, to_host_s
    return sum(stations) + (count - 1) * max(stations)


def both_directions(pinned, on_gpu, count):
    """Copy both ways at once, and compute nothing."""
    streams = [torch.cuda.Stream(on_gpu.device) for _ in range(2)]
    back, there = torch.empty_like(pinned).pin_memory(), torch.empty_like(on_gpu)
    for _ in range(count):
        with torch.cuda.stream(streams[0]):
            there.copy_(pinned, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            back.copy_(on_gpu, non_blocking=True)
    return streams


def both_ways(count, size):
    """The parts, the two plain ways, and `map` with pinned and with ordinary memory."""
    gpu = ap.gpu(0)
    weights = ap.workload.matrix(size, gpu, seed=1)
    inputs = [ap.workload.matrix(size, seed=i) for i in range(2)] * (count // 2)
    pinned = [x.pin_memory() for x in inputs[:2]] * (count // 2)
    on_gpu = inputs[0].to(gpu)
    outs = [torch.zeros(size, size) for _ in inputs]

    def fn(x):
        return x.mm(weights)

    expected = plain_loop(fn, inputs[:2], gpu) * (count // 2)
    with ap.CopyPipeline(gpu) as pipeline:
        ways = {
            "compute": lambda: [fn(on_gpu) for _ in inputs],
            "copy both ways": lambda: both_directions(pinned[0], on_gpu, count),
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

gpu = ap.recorded(both_ways, name="b2_both_ways", parameters=BOTH)
count, median_s = BOTH["count"], {label: one.median_s for label, one in gpu.measurements.items()}
copy_s, compute_s = median_s["copy both ways"] / count, median_s["compute"] / count
least_s = limit_s(count, copy_s, compute_s, copy_s)
limits = dict.fromkeys((LOOP, ONE_STREAM, PINNED, ORDINARY), least_s)
ap.show(
    ap.compare(
        gpu.measurements,
        limit_s=limits,
        baseline=LOOP,
        caption=f"{count} matrices of 64 MB there, multiplied, and back",
    )
)

# %%
# The claim, on the numbers:

assert least_s / median_s[PINNED] >= 0.97, "map is further from its limit than it was"
assert gpu.timelines[ONE_STREAM].hidden() < 0.01, "one stream overlaps after all"
print(f"A copy takes {copy_s / compute_s:.0%} of a product, with both directions busy.")
print(f"One stream takes {median_s[ONE_STREAM] / least_s:.2f} x the limit, the plain loop")
print(f"{median_s[LOOP] / least_s:.1f} x: its copies go through pageable and fresh memory, too.")

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

    measurements = [
        ap.measure(lambda: ap.workload.products(x, count), label="compute", repeats=5),
        ap.measure(copy_all, label="copy", repeats=5),
    ]
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
parts_s = {label: swept.measurements[label].median_s for label in ("compute", "copy")}
best_s = max(parts_s.values()) + min(parts_s.values()) / SWEEP["count"]
by_slots = {n: swept.measurements[f"{n} x 32 MiB"] for n in SWEEP["slots"]}
by_size = {mib: swept.measurements[f"3 x {mib} MiB"] for mib in SWEEP["slot_mib"]}
chosen = dict.fromkeys([one.label for one in (*by_slots.values(), *by_size.values())], best_s)
ap.show(
    ap.compare(
        swept.measurements, limit_s=chosen, caption="Products into ordinary memory, by slots"
    )
)

# %%
# The dashed line is the limit: from the second slot on, and above a few MiB, more gains nothing.

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
three_s = by_slots[3].median_s
assert best_s / three_s >= 0.97, "three slots no longer suffice"
assert by_slots[2].median_s < 1.03 * min(one.median_s for one in by_slots.values())
print(f"One slot takes {by_slots[1].median_s / three_s:.2f} x the time of three.")

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
        measurements = ap.measure_in_turn({"plain loop": loop, "map": mapped}, repeats=7)
    return ap.Findings(measurements, {}, checks)


here = ap.observed(map_here, name="map on the CPU", parameters=HERE)
ap.show(ap.compare(here.measurements, caption="Copy, multiply, copy, on the CPU"))

# %%
# When this does not help
# -----------------------
# On a CPU copies cost next to nothing and nobody else can make them, so there is little to win. On
# a GPU the longest of the three decides: once copies are longer than products, a faster kernel
# gains nothing, and fewer bytes do. Results in fresh ordinary memory are slower than any of this:
# the system clears every page first, so give `out`, or `pin=True`.
#
# Now you
# -------
# Halve `size` until a copy takes longer than its product: which station is the longest then, and
# does `map` still reach the limit? Let `fn` compute twice as much: what changes in the timeline?
