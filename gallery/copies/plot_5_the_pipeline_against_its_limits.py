# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Hold the pipeline against its limits
====================================

| **You'll do:** copy tensors from a GPU to the host in six ways, beside the rate of the bus.
| **You'll learn:** how near a copy comes to the bus, and what stands in between.
| **You need:** 8 minutes, and no GPU: the GPU's part is shown from records. Before this:
  :doc:`plot_4_feed_a_training_loop`. Next: :doc:`plot_6_the_pipeline_against_its_rivals`.

A GPU writes to *pinned* memory by itself, since such pages stay where they are: there a pipeline
runs at the rate of the bus. Into ordinary memory the CPU has to copy each byte once more.
"""

# %%
# One line hides a second copy
# ----------------------------
# The tempting way is `out.copy_(y)`, as if the bus alone carried all. But `out` is ordinary memory:
# the driver lets the GPU write to a pinned buffer, and copies from there on the CPU. The memory
# carries each byte three times: written by the bus, read by the CPU, and written again.
#
# A ring of slots lets the CPU copy beside the bus
# ------------------------------------------------
# The right way takes both steps at once. While the bus fills one *slot*, a piece of pinned memory,
# several CPU threads empty another one.

import contextlib
import functools

import matplotlib.pyplot as plt
import torch

import autopar as ap


def copy_each(y, outs):
    """Copy a tensor into each of the host's."""
    return [out.copy_(y) for out in outs]


def through_ring(pipeline, y, outs):
    """The same through the slots of a pipeline."""
    return list(pipeline.to_host([y] * len(outs), out=outs))


# %%
# Three rings show what slots and threads are worth: the default one, of six slots and up to 24
# threads; one of half as many slots, each twice as large; and one of fewer threads. With `pin=True`
# results have pinned memory of their own, and with `.cpu()` fresh memory.

# Folded: the measurement
DEFAULT, THREE, FEW = "default ring", "ring of three slots", "ring of 6 threads"
RINGS = {DEFAULT: {}, THREE: {"slots": 3, "slot_bytes": 32 << 20}, FEW: {"threads": 6}}
BUS, CPU, BOTH = PARTS = ["the bus", "the CPU", "both at once"]
COPY, PINNED, FRESH = "copy_ each", "pin=True", ".cpu() each"


def into_the_host(size_mb, count, rings):
    """Copies to the host in several ways, beside their two steps, alone and side by side."""
    gpu = ap.gpu(0)
    y = torch.arange(size_mb * 250_000, dtype=torch.int32, device=gpu)
    pinned, other = (y.cpu().pin_memory() for _ in range(2))
    outs = [torch.zeros_like(y, device="cpu") for _ in range(count)]
    parts = {CPU: lambda: copy_each(pinned, outs)}
    parts[BUS] = lambda: [other.copy_(y, non_blocking=True) for _ in outs]
    parts[BOTH] = lambda: [(other.copy_(y, non_blocking=True), out.copy_(pinned)) for out in outs]
    ways = {COPY: lambda: copy_each(y, outs), FRESH: lambda: [y.cpu() for _ in outs]}
    with contextlib.ExitStack() as stack:
        for label, ring in rings.items():
            pipeline = stack.enter_context(ap.CopyPipeline(gpu, **ring))
            ways[label] = functools.partial(through_ring, pipeline, y, outs)
        ways[PINNED] = lambda: list(pipeline.to_host([y] * count, pin=True))  # needs no slots
        given = {"expected": [y] * count, "reset": lambda: [out.zero_() for out in outs]}
        return ap.race(ways, parts=parts, devices=[gpu], **given)


# %%
# How near they come
# ------------------
# In the figure at the top, look at the dashed line, the bus alone: `pin=True` ends near it. For
# `.cpu()` the system clears fresh memory, too:
# :doc:`/auto_gallery/first_steps/plot_5_why_the_book_prints_a_gain`.

LARGE = {"size_mb": 64, "count": 15, "rings": RINGS}
large = ap.recorded(into_the_host, name="b5_ordinary_memory", parameters=LARGE)
total_gb = LARGE["size_mb"] * LARGE["count"] / 1e3
rates = {label: total_gb / one.median_s for label, one in large.measurements.items()}

_, ax = plt.subplots(layout="constrained")
ways = [FRESH, COPY, FEW, THREE, DEFAULT, PINNED]
bars = ax.barh(ways, [rates[way] for way in ways])
ax.bar_label(bars, fmt="%.1f", padding=14, bbox={"fc": "white", "ec": "none", "pad": 1})
ax.axvline(rates[BUS], color="black", linestyle="--", linewidth=1.2)
ax.set(xlabel="GB/s (dashed: the bus alone)", title="To the host", xlim=(0, 1.3 * rates[BUS]))
ap.plot.show("b5_against_the_limits", large.origin)

# %%
# What stands in between
# ----------------------
# If bus and CPU worked at once, at no cost to each other, the slower at its fastest would be the
# limit. *Both at once* is a copy of each, side by side: they share the memory.

limits_s = dict.fromkeys([COPY, FRESH, *RINGS], large.limit_s([BUS, CPU]))
limits_s[PINNED] = large.limit_s([BUS])
ap.show(ap.compare(large.measurements, limit_s=limits_s, parts=PARTS, highlight=DEFAULT))

# %%
# Compare the row in bold with the grey ones. In these the CPU does one `copy_` after another; the
# workers of a ring copy several pieces at once, and may beat both. So this limit is an estimate.

SMALL = {"size_mb": 16, "count": 60, "rings": RINGS}
small = ap.recorded(into_the_host, name="b5_ordinary_memory_16_mb", parameters=SMALL)
reached = large.estimate(lambda s: s[BUS] / s[PINNED])
of_64, of_16 = (size.estimate(lambda s: s[COPY] / s[DEFAULT]) for size in (large, small))
faster = "Into ordinary memory the default ring is faster than copy_, with {} MB each."
ap.show(
    ap.claim("Into pinned memory, copies keep up with the bus.", reached, at_least=0.9, unit="%"),
    ap.claim(faster.format(LARGE["size_mb"]), of_64, at_least=1.3, unit="×"),
    ap.claim(faster.format(SMALL["size_mb"]), of_16, at_least=1.3, unit="×"),
)

# %%
# When this does not help
# -----------------------
# A single tensor of no more than a slot has nothing to overlap with. Behind computing there is
# time, and the default ring hides most: :doc:`plot_6_the_pipeline_against_its_rivals`.
#
# On this machine
# ---------------
# Without a GPU both steps are the CPU's, so this is what the pipeline costs beside a plain copy.


def in_the_host(count, size):
    """Copies within the host, plain and through a pipeline."""
    x, outs = ap.workload.matrix(size), [torch.zeros(size, size) for _ in range(count)]
    with ap.CopyPipeline("cpu") as pipeline:
        ways = {COPY: lambda: copy_each(x, outs), DEFAULT: lambda: through_ring(pipeline, x, outs)}
        return ap.race(ways, reset=lambda: [out.zero_() for out in outs])


here = ap.observed(in_the_host, name="the pipeline here", parameters={"count": 16, "size": 1000})
ap.show(ap.compare(here.measurements, caption="16 copies of 4 MB on the host", highlight=DEFAULT))

# %%
# Now you
# -------
# A CPU copies at half the rate of the bus, beside it or alone. How fast is a ring of one worker?
#
# .. dropdown:: A hint
#
#     At best both work at the same time, and at worst they take turns.
#
# .. dropdown:: An answer
#
#     For what the bus carries in 1 s: from 2 s to 3 s. A ring that takes 2.5 s hides half.
#
#     .. code-block:: python
#
#         def best_and_worst_s(bus_s, cpu_s):
#             return max(bus_s, cpu_s), bus_s + cpu_s
