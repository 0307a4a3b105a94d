# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Reach the limit with few slots
==============================

| **You'll do:** run a copy pipeline in three regimes; then give it one slot, two, and more.
| **You'll learn:** what the limit is in each case, and how many slots are enough.
| **You need:** 7 minutes, and no GPU: the GPU's part is shown from records. Read
  :doc:`plot_6_the_pipeline_against_its_rivals` first; :doc:`plot_8_send_small_tensors_together`
  comes next.

Items pass through stations: to the GPU, computing, to the host. At best one leaves whenever the
slowest station is done. How near a pipeline comes depends on which station that is. For
ordinary memory it takes two slots of *pinned* memory, to which the GPU can write.
"""

# %%
# The slowest station sets the limit
# ----------------------------------
# `to_host` brings results back, and `map` takes its inputs there as well. It is tempting to look at
# the computing alone. But with smaller products the copies are the slowest station. Copies in both
# directions at once, called *duplex* here, are slower yet.

import collections
import contextlib

import torch

import autopar as ap


def there_and_back(work, inputs, device, slots):
    with ap.CopyPipeline(device, slots=slots) as pipeline:
        return list(pipeline.map(work, inputs))


# %%
# The first item needs all stations, and after that the slowest one is the limit. In the table,
# compare each regime's ways with the grey rows above. Where they are balanced, each wait shows.

# Folded: the measurement of three regimes, and the table
REGIMES = {"count": 40, "sizes": {"compute-bound": 4000, "balanced": 1760}, "copy_size": 4000}


def duplex(streams, pinned, on_gpu, count):
    for _ in range(count):
        with torch.cuda.stream(streams[0]):
            on_gpu[1].copy_(pinned[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            pinned[1].copy_(on_gpu[0], non_blocking=True)


def one_regime(regime, work, x, count):
    pinned, streams = x.cpu().pin_memory(), [torch.cuda.Stream(x.device) for _ in range(2)]
    hosts, gpus = (pinned, torch.empty_like(pinned).pin_memory()), (x, torch.empty_like(x))
    with ap.CopyPipeline(x.device) as pipeline:
        both = {
            "to_host": lambda: pipeline.to_host((work(x) for _ in range(count)), pin=True),
            "map": lambda: pipeline.map(work, [pinned] * count, pin=True),
        }
        ways = {
            "compute": lambda: [work(x) for _ in range(count)],
            "copy": lambda: [hosts[1].copy_(x, non_blocking=True) for _ in range(count)],
            "duplex": lambda: duplex(streams, hosts, gpus, count),
            "to_host": lambda: collections.deque(both["to_host"](), maxlen=0),  # keeps none
            "map": lambda: collections.deque(both["map"](), maxlen=0),
        }
        named = {f"{regime}: {label}": way for label, way in ways.items()}
        equal = {way: ap.workload.equal(both[way](), [work(x)] * count) for way in both}
        measured = ap.measure_in_turn(named, devices=[x.device], warmup=1, repeats=7)
    return measured, {f"{regime}, {way}: equal": same for way, same in equal.items()}


def regimes(count, sizes, copy_size):
    measurements, checks = [], {}
    for regime, size in {**sizes, "copy-bound": copy_size}.items():
        x = ap.workload.matrix(size, ap.gpu(0))
        measured, equal = one_regime(regime, x.mm if regime in sizes else torch.neg, x, count)
        measurements += measured
        checks |= equal
    return ap.Findings(measurements, {}, checks)


three = ap.recorded(regimes, name="b5_regimes", parameters=REGIMES)
names, count = (*REGIMES["sizes"], "copy-bound"), REGIMES["count"]
parts = [f"{name}: {part}" for name in names for part in ("compute", "copy", "duplex")]
limits_s = {}
for i, name in enumerate(names):
    stations = parts[3 * i : 3 * i + 3]
    compute_s, copy_s, both_s = (three.measurements[part].min_s / count for part in stations)
    limits_s[f"{name}: to_host"] = compute_s + copy_s + (count - 1) * max(compute_s, copy_s)
    limits_s[f"{name}: map"] = compute_s + 2 * copy_s + (count - 1) * max(compute_s, both_s)
saved = [three.hidden(f"{n}: map", [f"{n}: compute", *2 * [f"{n}: copy"]]) for n in names]
least = min(saved, key=lambda share: share.value)
ap.show(
    ap.compare(three.measurements, limit_s=limits_s, parts=parts),
    ap.claim("In each regime map saves most of what it can.", least, at_least=0.7, unit="%"),
)

# %%
# Two slots are nearly as good as more
# ------------------------------------
# Results in ordinary memory pass through *slots*, pieces of pinned memory. While the GPU fills one,
# the CPU empties another, so one should be too few. In the picture at the top, compare the bars *1
# x 32 MiB* and *2 x 32 MiB*. Small slots pay a copy's fixed cost too often, as *3 x 1 MiB* shows.

# Folded: the measurement of slots, and the drawing
SLOTS = {"count": 24, "size": 4000, "slots": [1, 2, 3, 4], "slot_mib": [1, 4, 16, 32, 64]}


def sweeps(count, size, slots, slot_mib):
    x, pinned = ap.workload.matrix(size, ap.gpu(0)), torch.empty(size, size).pin_memory()
    y, outs = x.mm(x), [torch.zeros(size, size) for _ in range(count)]
    parts = {"compute": lambda: ap.workload.products(x, count)}
    parts["copy"] = lambda: [pinned.copy_(x, non_blocking=True) for _ in outs]
    with contextlib.ExitStack() as stack:

        def through(n, mib):
            ring = stack.enter_context(ap.CopyPipeline(x.device, slots=n, slot_bytes=mib << 20))
            return lambda: list(ring.to_host((x.mm(x) for _ in outs), out=outs))

        choices = [(n, 32) for n in slots] + [(3, mib) for mib in slot_mib if mib != 32]
        ways = {f"{n} x {mib} MiB": through(n, mib) for n, mib in choices}
        given = {"expected": [y] * count, "reset": lambda: [out.fill_(torch.nan) for out in outs]}
        return ap.race(ways, parts=parts, devices=[x.device], **given)


swept = ap.recorded(sweeps, name="b2_slots", parameters=SLOTS)
limit_s = swept.limit_s(("compute", "copy"), pieces=SLOTS["count"])
limits_s = dict.fromkeys([label for label in swept.measurements if "MiB" in label], limit_s)
ap.plot.bars(swept.measurements, limit_s=limits_s, title="By slots and MiB in each")
ap.plot.show("b2_slots")
one = swept.estimate(lambda s: s["1 x 32 MiB"] / min(s[f"{n} x 32 MiB"] for n in (2, 3, 4)))
two = swept.estimate(lambda s: s["2 x 32 MiB"] / min(s[f"{n} x 32 MiB"] for n in (3, 4)))
ap.show(
    ap.claim("One slot is too few: results take longer.", one, at_least=1.1, unit="×"),
    ap.claim("Two slots are nearly as good as more.", two, at_most=1.2, unit="×"),
)

# %%
# When this does not help
# -----------------------
# With nothing to compute, the CPU is the limit: :doc:`plot_5_the_pipeline_against_its_limits`.
#
# Now you
# -------
# How much pinned memory does a pipeline take that copies both ways?
#
# .. dropdown:: A hint
#
#     Each direction has slots of its own, whose size is a power of two.
#
# .. dropdown:: An answer
#
#     192 MiB, as it has by default three slots of 32 MiB in each direction.
#
#     .. code-block:: python
#
#         def pinned_bytes(slots=3, slot_bytes=32 << 20):
#             return 2 * slots * (1 << (slot_bytes.bit_length() - 1))
