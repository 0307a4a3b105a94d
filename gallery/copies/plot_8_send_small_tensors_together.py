# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Send small tensors together
===========================

| **You'll do:** bring thousands of small tensors from a GPU to the host, one by one and together.
| **You'll learn:** why their bytes hardly matter, and from which size on they do.
| **You need:** 6 minutes, and no GPU: the GPU's part is shown from records. Before this:
  :doc:`plot_7_reach_the_limit_with_few_slots`. Next: :doc:`plot_9_what_a_pipeline_costs`.

Each copy costs the host some time, however few its bytes are. So thousands of small tensors are
limited by their number, not by the bus. A pipeline puts them together on the GPU, copies them in
few large pieces, and takes them apart on the host.
"""

# %%
# One by one, the host is the limit
# ---------------------------------
# The tempting way is a list comprehension. With `non_blocking=True` nobody waits in between, only
# before the results are read, but the host launches as many copies, which takes microseconds each.

from functools import partial

import matplotlib.pyplot as plt
import torch

import autopar as ap


def one_by_one(tensors):
    return [x.to("cpu", non_blocking=True) for x in tensors]


# %%
# In the picture at the top, look at where the line bends. At the left a copy of four times the
# size takes hardly longer, so its bytes are nearly free. On the level part the bus is always busy.

# Folded: the measurement of all sizes, and the drawing
BUS = {"sizes": [4**power for power in range(6, 16)], "moved_bytes": 2**28, "most_copies": 1000}


def queue_copies(target, source, times):
    for _ in range(times):
        target.copy_(source, non_blocking=True)


def every_size(sizes, moved_bytes, most_copies):
    """Copies of each size from a GPU into pinned memory."""
    source = torch.randint(256, (max(sizes),), dtype=torch.uint8, device=ap.gpu(0))
    target, measurements, checks = torch.zeros_like(source, device="cpu").pin_memory(), [], {}
    for size in sizes:
        y, x, times = target[:size], source[:size], max(1, min(most_copies, moved_bytes // size))
        given = {"warmup": 1, "repeats": 7, "size_bytes": times * size}
        work, label = partial(queue_copies, y, x, times), f"GPU to host, {size} bytes"
        measurements.append(ap.measure(work, label=label, **given))
        checks[f"{size} bytes: equal"] = y.equal(x.cpu())
    return ap.Findings(measurements, {}, checks)


bus = ap.recorded(every_size, name="b1_bandwidth", parameters=BUS)
rates = [bus.measurements[f"GPU to host, {size} bytes"].gb_per_s for size in BUS["sizes"]]
_, ax = plt.subplots(layout="constrained")
ax.loglog(BUS["sizes"], rates, "o-")
ax.set_xticks(BUS["sizes"][::3], ["4 KiB", "256 KiB", "16 MiB", "1 GiB"])
ax.set_yticks([1, 10, 50], ["1", "10", "50"])
ax.set(title="Pinned copies, one after another", xlabel="one copy", ylabel="GB/s")
ap.plot.show("b1_bandwidth", bus.origin)


# %%
# Together they are few copies
# ----------------------------
# The right way is the same pipeline as for large tensors. It packs what is small: one kernel puts
# many tensors side by side, one copy takes them to the host, and each result is a view of its part.
def together(pipeline, tensors, **where):
    return list(pipeline.to_host(tensors, **where))


# %%
# With `pin=True` results are views of *pinned* memory, to which the GPU can write by itself.
# Without it the CPU copies them to ordinary memory, too.

# Folded: the measurement of many tensors
SMALL = {"count": 10_000, "length": 1024}  # 4 kB each
EACH, NOT_WAITING = ".cpu() each", ".to(non_blocking) each"
PINNED, FRESH = "pipeline, pin=True", "pipeline"


def small_tensors(count, length):
    """Many small tensors, one by one and through the pipeline."""
    tensors = [torch.full((length,), float(i), device=ap.gpu(0)) for i in range(count)]
    with ap.CopyPipeline(ap.gpu(0)) as pipeline:
        ways = {
            EACH: lambda: [x.cpu() for x in tensors],
            NOT_WAITING: lambda: one_by_one(tensors),
            PINNED: lambda: together(pipeline, tensors, pin=True),
            FRESH: lambda: together(pipeline, tensors),
        }
        setup = torch.ones(1).pin_memory  # lets torch reclaim pinned memory that is free
        return ap.race(ways, expected=tensors, setup=setup, repeats=5)


many = ap.recorded(small_tensors, name="b5_small_tensors", parameters=SMALL)

# %%
# In the table, look at the speed-up in bold: it is over copies that nobody waits for one by one. At
# the rate of large pieces the bus would need the time in the caption.

bus_s = 4096 * SMALL["count"] / 1e9 / rates[-1]
caption = f"10,000 tensors of 4 kB, for whose bytes the bus needs {1e3 * bus_s:.1f} ms"
gain = many.estimate(lambda s: s[NOT_WAITING] / s[PINNED])
ap.show(
    ap.compare(many.measurements, baseline=NOT_WAITING, highlight=PINNED, caption=caption),
    ap.claim("Many small tensors go faster together.", gain, at_least=2, unit="×"),
)

# %%
# When this does not help
# -----------------------
# Results that travelled together share one block of memory, and `torch.save` of one writes all of
# it: clone what is to be kept or saved alone. And of tensors that are computed one by one, the
# first has to wait for those that it travels with.
#
# On this machine
# ---------------
# On a CPU a copy has no launch that could be saved, so packing is work without a gain.


def on_the_cpu(count, length):
    tensors = [torch.full((length,), float(i)) for i in range(count)]
    with ap.CopyPipeline("cpu") as pipeline:
        usual = {"clone each": lambda: [x.clone() for x in tensors]}
        return ap.race(usual | {FRESH: lambda: together(pipeline, tensors)})


here = ap.observed(on_the_cpu, name="packing on the CPU", parameters={"count": 500, "length": 1024})
ap.show(ap.compare(here.measurements, caption="Small tensors within the host", highlight=FRESH))

# %%
# Now you
# -------
# A program copies 16,384 results of 4 KiB each from a GPU. How long does that take, and how long
# would one copy of them all take, of 64 MiB?
#
# .. dropdown:: A hint
#
#     Both are points of the line in the picture.
#
# .. dropdown:: An answer
#
#     The bytes are the same, 67 MB, but the rate is tens of times higher where the line is level
#     than where it begins. So the small copies take tens of milliseconds, and the large one little
#     more than one. `takes_s` has the rates of the record.
#
#     .. code-block:: python
#
#         def takes_s(copies, size_bytes):
#             rate = bus.measurements[f"GPU to host, {size_bytes} bytes"].gb_per_s
#             return copies * size_bytes / rate / 1e9
