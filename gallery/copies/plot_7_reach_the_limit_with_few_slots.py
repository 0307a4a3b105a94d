# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Reach the limit with few slots
==============================

| **You'll do:** run a copy pipeline in three regimes; then give it one slot, two, and more.
| **You'll learn:** what the limit is in each case, and how many slots are enough.
| **You need:** 7 minutes, and no GPU: the GPU's part is shown from records. Before this:
  :doc:`plot_6_the_pipeline_against_its_rivals`. Next: :doc:`plot_8_send_small_tensors_together`.

Items pass through stations: to the GPU, computing, to the host. At best one leaves whenever the
slowest station is done. A pipeline comes near that, whichever station it is. For ordinary memory it
takes more than one slot of *pinned* memory, to which the GPU can write.
"""

# %%
# The slowest station sets the limit
# ----------------------------------
# `to_host` brings results back, and `map` takes its inputs there as well. It is tempting to look at
# the computing alone. But what computes little takes less time than a copy of its result, so then
# the copies are the slowest station: `torch.neg` is an example. `map` copies in both directions at
# the same time, which is called *duplex* here. The table has such a pair in a row of its own, as it
# may take longer than one copy.

from contextlib import ExitStack

import torch

import autopar as ap


def to_host(pipeline, work, x, count):  # inputs are on the GPU
    return list(pipeline.to_host((work(x) for _ in range(count)), pin=True))


def there_and_back(pipeline, work, pinned, count):
    return list(pipeline.map(work, [pinned] * count, pin=True))


# %%
# The first item passes all stations, one after another. Each later one adds the time of the slowest
# station, whatever the others do meanwhile. This is the *limit* in the table. Look at the grey rows
# of each regime: *compute* and *copy* are the stations of `to_host`, *compute* and *duplex* those
# of `map`. Where computing and copies are balanced, none has time to spare, so each wait counts.

# Folded: the measurement of three regimes, and the table
REGIMES = {"count": 40, "sizes": {"compute-bound": 4000, "balanced": 1760}, "copy_size": 4000}


def one_regime(regime, size, count, pipeline):
    x = ap.workload.matrix(size, pipeline.device)
    work = torch.neg if regime == "copy-bound" else x.mm
    pinned, back, there = x.cpu().pin_memory(), torch.empty(x.shape, pin_memory=True), x.clone()
    streams = [torch.cuda.Stream(x.device) for _ in range(2)]

    def duplex():
        for _ in range(count):
            for stream, to, of in zip(streams, (there, back), (pinned, x), strict=True):
                with torch.cuda.stream(stream):
                    to.copy_(of, non_blocking=True)

    parts = {
        f"{regime}: compute": lambda: [work(x) for _ in range(count)],
        f"{regime}: copy": lambda: [back.copy_(x, non_blocking=True) for _ in range(count)],
        f"{regime}: duplex": duplex,
    }
    ways = {f"{regime}: to_host": lambda: to_host(pipeline, work, x, count)}
    ways[f"{regime}: map"] = lambda: there_and_back(pipeline, work, pinned, count)
    return ap.race(ways, parts=parts, expected=[work(x)] * count)


def regimes(count, sizes, copy_size):
    sizes = {**sizes, "copy-bound": copy_size}
    with ap.CopyPipeline(ap.gpu(0)) as pipeline:
        raced = [one_regime(*regime, count, pipeline) for regime in sizes.items()]
    checks = {check: held for found in raced for check, held in found.checks.items()}
    return ap.Findings([one for found in raced for one in found.measurements], {}, checks)


three = ap.recorded(regimes, name="b5_regimes", parameters=REGIMES)
names, count, limits_s = (*REGIMES["sizes"], "copy-bound"), REGIMES["count"], {}
stations = "compute", "copy", "duplex"
for name in names:
    each_s = (three.measurements[f"{name}: {station}"].min_s / count for station in stations)
    compute_s, copy_s, both_s = each_s
    limits_s[f"{name}: to_host"] = compute_s + copy_s + (count - 1) * max(compute_s, copy_s)
    limits_s[f"{name}: map"] = compute_s + 2 * copy_s + (count - 1) * max(compute_s, both_s)
saved = [three.hidden(f"{n}: map", [f"{n}: compute", *2 * [f"{n}: copy"]]) for n in names]
least = min(saved, key=lambda share: share.value)
parts = [label for label in three.measurements if label.endswith(stations)]
ap.show(
    ap.compare(three.measurements, limit_s=limits_s, parts=parts),
    ap.claim("In each regime map saves most of what it can.", least, at_least=0.7, unit="%"),
)

# %%
# How many slots are enough?
# --------------------------
# Results in ordinary memory pass through *slots*, pieces of pinned memory. While the GPU fills one,
# the CPU empties another, so one should be too few. In the picture at the top, compare the bars *1
# x 32 MiB* and *2 x 32 MiB*. Then compare *3 x 1 MiB* with *3 x 32 MiB*: each copy has a fixed
# cost, which small slots pay more often, and slots of 1 MiB are emptied by the calling thread only.

# Folded: the measurement of slots, and the drawing
SLOTS = {"count": 24, "size": 4000, "slots": [1, 2, 3, 4], "slot_mib": [1, 4, 16, 32, 64]}


def sweep(count, size, slots, slot_mib):
    x, pinned = ap.workload.matrix(size, ap.gpu(0)), torch.empty(size, size, pin_memory=True)
    outs, ways = [torch.zeros(size, size) for _ in range(count)], {}
    parts = {"compute": lambda: ap.workload.products(x, count)}
    parts["copy"] = lambda: [pinned.copy_(x, non_blocking=True) for _ in outs]
    with ExitStack() as stack:
        for n, mib in [(n, 32) for n in slots] + [(3, mib) for mib in slot_mib if mib != 32]:
            ring = stack.enter_context(ap.CopyPipeline(x.device, slots=n, slot_bytes=mib << 20))
            ways[f"{n} x {mib} MiB"] = lambda ring=ring: list(
                ring.to_host((x.mm(x) for _ in outs), out=outs)
            )
        given = {"expected": [x.mm(x)] * count, "parts": parts}
        return ap.race(ways, reset=lambda: [out.fill_(torch.nan) for out in outs], **given)


swept = ap.recorded(sweep, name="b2_slots", parameters=SLOTS)
limit_s = swept.limit_s(("compute", "copy"), pieces=SLOTS["count"])
limits_s = {label: limit_s for label in swept.measurements if "MiB" in label}
ap.plot.bars(swept.measurements, limit_s=limits_s, title="By slots and MiB in each")
ap.plot.show("b2_slots", look=[swept.measurements[f"{n} x 32 MiB"] for n in (1, 2)])

# %%
one = swept.estimate(lambda s: s["1 x 32 MiB"] / min(s[f"{n} x 32 MiB"] for n in (2, 3, 4)))
two = swept.estimate(lambda s: s["2 x 32 MiB"] / min(s[f"{n} x 32 MiB"] for n in (3, 4)))
ap.show(
    ap.claim("One slot is too few: results take longer.", one, at_least=1.1, unit="×"),
    ap.claim("Two slots are nearly as good as more.", two, at_most=1.2, unit="×"),
)

# %%
# When this does not help
# -----------------------
# With nothing to compute, the CPU is the limit, and more slots may help it. So there are six by
# default: :doc:`plot_5_the_pipeline_against_its_limits`.
#
# Now you
# -------
# How much pinned memory does a pipeline take that copies both ways, with the six slots of 16 MiB
# in each direction that it has by default?
#
# .. dropdown:: A hint
#
#     Each direction has slots of its own.
#
# .. dropdown:: An answer
#
#     192 MiB: twice six slots. A slot whose size is no power of two is rounded down to one.
#
#     .. code-block:: python
#
#         def pinned_bytes(slots=6, slot_bytes=16 << 20):
#             return 2 * slots * (1 << (slot_bytes.bit_length() - 1))
