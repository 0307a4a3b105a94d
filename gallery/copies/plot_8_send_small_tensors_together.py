# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Send small tensors together
===========================

| **You'll do:** bring thousands of small tensors from a GPU to the host, one by one and together.
| **You'll learn:** why their bytes hardly matter, and what a pipeline itself costs.
| **You need:** 6 minutes, and no GPU: what needs one is shown from records. Read
  :doc:`plot_7_reach_the_limit_with_few_slots` first;
  :doc:`/auto_gallery/one_device/plot_1_do_independent_products_run_at_once` comes next.

Each copy costs the host some time, however few its bytes are. So thousands of small tensors are
limited by their number, not by the bus. A pipeline puts them together on the GPU, copies them in
few large pieces, and takes them apart on the host.
"""

# %%
# One by one, the host is the limit
# ---------------------------------
# The tempting way is a list comprehension. With `non_blocking=True` nobody waits in between, which
# helps. But there are as many copies, and the host has to launch each of them, which takes some
# microseconds. In that time the bus would carry many times the bytes of such a tensor.

from dataclasses import replace

import torch

import autopar as ap


def one_by_one(tensors):
    """A copy for each, without waiting."""
    return [x.to("cpu", non_blocking=True) for x in tensors]


# %%
# Together they are few copies
# ----------------------------
# The right way is the same pipeline as for large tensors. It packs by itself what is small: one
# kernel puts many tensors side by side, one copy takes them to the host, and each result is a view
# of its part. Nothing of that shows in the code.


def together(pipeline, tensors, **where):
    """All of them, packed."""
    return list(pipeline.to_host(tensors, **where))


# %%
# In the picture at the top of this page, look at the last bar: for the bytes of a tensor the bus
# needs next to nothing, at its rate for large pieces. One by one, the rest is the price of a copy.
# Even together most of the time is not the bus's, since each tensor is packed and taken apart.

# Folded: the measurement and the drawing
SMALL = {"count": 10_000, "length": 1024}  # 4 kB each
EACH, NOT_WAITING = ".cpu() each", ".to(non_blocking) each"
PACKED = TOGETHER, FRESH = "pipeline, pin=True", "pipeline"


def small_tensors(count, length):
    """Many small tensors, one by one and through the pipeline."""
    gpu = ap.gpu(0)
    tensors = [torch.full((length,), float(i), device=gpu) for i in range(count)]
    with ap.CopyPipeline(gpu) as pipeline:
        ways = {
            EACH: lambda: [x.cpu() for x in tensors],
            NOT_WAITING: lambda: one_by_one(tensors),
            TOGETHER: lambda: together(pipeline, tensors, pin=True),
            FRESH: lambda: together(pipeline, tensors),
        }
        y = torch.stack(tensors).cpu()
        checks = {f"{way}: equal": torch.equal(torch.stack(ways[way]()), y) for way in PACKED}
        given = {"devices": [gpu], "repeats": 5, "setup": lambda: torch.ones(1).pin_memory()}
        measurements = [
            ap.measure(way, label=label, warmup=1, **given) for label, way in ways.items()
        ]
    return ap.Findings(measurements, {}, checks)


many = ap.recorded(small_tensors, name="b5_small_tensors", parameters=SMALL)
bus = ap.newest_record("b1_bandwidth").measurements["GPU to host, 67108864 bytes"]
tensors = dict.fromkeys(many.measurements.values(), SMALL["count"])
tensors[replace(bus, label="the bus alone")] = bus.size_bytes / (4 * SMALL["length"])
bars = [
    replace(one, values_s=tuple(taken_s / count for taken_s in one.values_s))
    for one, count in tensors.items()
]
ap.plot.bars(bars, title="One tensor of 4 kB")
ap.plot.show("b5_small_tensors")

# %%
# In the table, look at the speed-up in bold: it is over copies that nobody waits for one by one.
# The row below it puts the results into ordinary memory, which the CPU has to copy to.

gain = many.estimate(lambda s: s[NOT_WAITING] / s[TOGETHER])
faster = "Many small tensors go faster together than one by one."
ap.show(
    ap.compare(many.measurements, baseline=NOT_WAITING, highlight=TOGETHER),
    ap.claim(faster, gain, at_least=2, unit="×"),
)

# %%
# What a pipeline costs
# ---------------------
# A chunk, which is what fits into a slot, costs the host time as well. That is told from many that
# are too small to wait for. Compare the first two rows with the last two, which are bare copies. A
# pipeline also costs pinned memory, and none once its slots are there: see the :doc:`benchmarks
# </benchmarks>`.

# Folded: the measurement of cost
COST = {"count": 5000, "slot_bytes": 4096}


def host_time(count, slot_bytes):
    """Many chunks in both directions, by a pipeline and by bare copies."""
    gpu, times = ap.gpu(0), range(count)
    tensor = torch.zeros(count * slot_bytes, dtype=torch.uint8, device=gpu)
    out = torch.zeros(count * slot_bytes, dtype=torch.uint8)
    small, pinned = tensor[:slot_bytes], torch.zeros(slot_bytes, dtype=torch.uint8).pin_memory()
    with ap.CopyPipeline(gpu, slots=64, slot_bytes=slot_bytes) as pipeline:
        chunks = {
            "to the host": lambda: list(pipeline.to_host([tensor], out=[out])),
            "from the host": lambda: list(pipeline.prefetch([out])),
            "to the host, copy_": lambda: [pinned.copy_(small, non_blocking=True) for _ in times],
            "from the host, copy_": lambda: [small.copy_(pinned, non_blocking=True) for _ in times],
        }
        return ap.measure_in_turn(chunks, devices=[gpu], warmup=1, repeats=7)


def cost(count, slot_bytes):
    """Host time for a chunk, and pinned memory."""
    measurements = host_time(count, slot_bytes)
    ap.empty_pinned_pool()
    stats = [torch.cuda.host_memory_stats()]
    inputs, outs = ([torch.full((4000, 4000), fill) for _ in range(8)] for fill in (1.0, 0.0))
    with ap.CopyPipeline(ap.gpu(0)) as pipeline:
        for _ in range(6):
            for _ in pipeline.map(lambda x: x + 1, inputs, out=outs):
                pass
            stats.append(torch.cuda.host_memory_stats())
        ring_bytes = 2 * pipeline.slots * pipeline.slot_bytes
    held, counts = (
        [of[key] for of in stats] for key in ("allocated_bytes.current", "num_host_alloc")
    )
    values = {"bytes pinned": held[-1] - held[0], "bytes of two rings": ring_bytes}
    values["pinned allocations after the first round"] = counts[-1] - counts[1]
    checks = {"equal": all(torch.equal(out, x + 1) for out, x in zip(outs, inputs, strict=True))}
    return ap.Findings(measurements, {}, checks, values)


spent = ap.recorded(cost, name="b5_cost", parameters=COST)
us = {label: 1e6 * one.median_s / COST["count"] for label, one in spent.measurements.items()}
rows = [(label, f"{chunk_us:.1f} µs") for label, chunk_us in us.items()]
ap.show(ap.tabulate(["one chunk", "host time"], rows, origin=spent.origin))

# %%
# When this does not help
# -----------------------
# Results that travelled together share one block of memory: clone what is to be kept alone. Tensors
# that are computed one by one are packed as well, but the first has to wait for those that it
# travels with. On a CPU a copy has no launch that could be saved.
#
# On this machine
# ---------------
# Packing is work without a gain here.


def on_the_cpu(count, length):
    """Many small tensors within the host, one by one and through a pipeline."""
    tensors = [torch.full((length,), float(i)) for i in range(count)]
    with ap.CopyPipeline("cpu") as pipeline:
        usual = {"clone each": lambda: [x.clone() for x in tensors]}
        return ap.race(usual | {FRESH: lambda: together(pipeline, tensors)})


here = ap.observed(on_the_cpu, name="packing on the CPU", parameters={"count": 500, "length": 1024})
ap.show(ap.compare(here.measurements, caption="Small tensors within the host"))

# %%
# Now you
# -------
# From how many bytes on does the bus take longer for a tensor than the host? Below that, it is the
# number of tensors that counts.
#
# .. dropdown:: A hint
#
#     The bus takes the bytes over its rate. The table has what a copy costs the host.
#
# .. dropdown:: An answer
#
#     With 6 µs for a copy and a bus of 50 GB/s, from 300 kB on.
#
#     .. code-block:: python
#
#         def bytes_where_even(host_s=6e-6, bytes_per_s=50e9):
#             return host_s * bytes_per_s
