# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Know what a pipeline costs
==========================

| **You'll do:** send thousands of chunks through a pipeline that are too small to wait for.
| **You'll learn:** how much host time and pinned memory a pipeline takes.
| **You need:** 4 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`plot_8_send_small_tensors_together`. Next: :doc:`plot_10_who_holds_the_gil`.

A pipeline is not free: it takes tens of microseconds of the host for each chunk that it copies, and
*pinned* memory, which the system can't move. Both are known before a program is written.
"""

# %%
# A chunk costs more than a bare copy
# -----------------------------------
# Data passes through a ring of *slots*, pieces of pinned memory that are used in turn. A *chunk* is
# what fits into one of them. A bare `copy_` is tempting, as nothing costs the host less. But if you
# copy like this, you have to wait for the copy before the memory is read or used again.

from dataclasses import replace
from functools import partial

import torch

import autopar as ap


def bare_copies(target, source, count):
    for _ in range(count):
        target.copy_(source, non_blocking=True)


# %%
# A pipeline waits for the right copy by itself. For each chunk it launches the copy, marks its end
# by an *event*, and waits for this mark before the slot is used again. If the other end is ordinary
# memory, as here, the CPU also copies between slot and memory.


def chunks_to_the_host(pipeline, tensor, out):
    return list(pipeline.to_host([tensor], out=[out]))


# %%
# A chunk is 4 KiB here, so the bus needs next to no time for it, and what is left is the host's.
# Memory is counted by PyTorch's own statistics, before the pipeline is there and after each round.

# Folded: the measurement
COST = {"count": 5000, "slot_bytes": 4096}
TO_HOST, FROM_HOST = "to the host", "from the host"


def host_time(count, slot_bytes):
    """Many chunks in both directions, by a pipeline and by bare copies."""
    tensor = torch.zeros(count * slot_bytes, dtype=torch.uint8, device=ap.gpu(0))
    out = torch.zeros_like(tensor, device="cpu")
    small, pinned = tensor[:slot_bytes], out[:slot_bytes].pin_memory()
    with ap.CopyPipeline(ap.gpu(0), slots=64, slot_bytes=slot_bytes) as pipeline:
        chunks = {
            TO_HOST: partial(chunks_to_the_host, pipeline, tensor, out),
            FROM_HOST: lambda: list(pipeline.prefetch([out])),
            "to the host, copy_": partial(bare_copies, pinned, small, count),
            "from the host, copy_": partial(bare_copies, small, pinned, count),
        }
        return ap.measure_in_turn(chunks, warmup=1, repeats=7)


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
    held, count = "allocated_bytes.current", "num_host_alloc"
    values = {
        "bytes pinned": stats[-1][held] - stats[0][held],
        "bytes of two rings": ring_bytes,
        "pinned allocations after the first round": stats[-1][count] - stats[1][count],
    }
    checks = {"equal": all(torch.equal(out, x + 1) for out, x in zip(outs, inputs, strict=True))}
    return ap.Findings(measurements, {}, checks, values)


# %%
# In the picture at the top, compare the first two bars with the last two, which are bare copies.
# The difference is what a pipeline adds to each chunk.

# Folded: the drawing
spent = ap.recorded(cost, name="b5_cost", parameters=COST)
samples = {one: [s / COST["count"] for s in one.values_s] for one in spent.measurements.values()}
per_chunk = [replace(one, values_s=tuple(values_s)) for one, values_s in samples.items()]
ap.plot.bars(per_chunk, title="Host time for a chunk of 4 KiB")
ap.plot.show("b5_cost", look=per_chunk[::2])

# %%
# The table has the memory of a pipeline that copies both ways, with a ring for each direction. Its
# last row says how often a pipeline has pinned more once its slots are there. Pinning takes time as
# well, so a pipeline that is kept open pays for it once.

held = spent.values
rows = [
    ("two rings of slots", f"{held['bytes of two rings'] / 2**20:.0f} MiB"),
    ("pinned", f"{held['bytes pinned'] / 2**20:.0f} MiB"),
    ("pinned later", f"{held['pinned allocations after the first round']:.0f} times"),
]
more = spent.estimate(lambda s: s[TO_HOST] / s[f"{TO_HOST}, copy_"])
ap.show(
    ap.tabulate(["memory", "how much"], rows, origin=spent.origin, highlight=["pinned later"]),
    ap.claim("A chunk costs the host more than a bare copy.", more, at_least=1, unit="×"),
)

# %%
# When this does not help
# -----------------------
# Chunks of megabytes hide these microseconds, and small tensors should be sent together, as in
# :doc:`plot_8_send_small_tensors_together`. What pinned memory costs once is the subject of
# :doc:`/auto_gallery/first_steps/plot_5_why_the_book_prints_a_gain`. The goals that a pipeline has
# are in :doc:`/benchmarks`.
#
# Now you
# -------
# From how many bytes on does the bus take longer for a chunk than the host?
#
# .. dropdown:: A hint
#
#     The bus takes the bytes over its rate. The picture has what a chunk costs the host.
#
# .. dropdown:: An answer
#
#     The bus takes longer once the bytes need as much time as the host does for a chunk. If that is
#     tens of microseconds, at 50 GB/s it is from one to three megabytes on. Into ordinary memory
#     the host copies each byte, too, and may stay slower. The function has the record's time.
#
#     .. code-block:: python
#
#         def bytes_where_even(way=TO_HOST, bytes_per_s=50e9):
#             return spent.measurements[way].median_s / COST["count"] * bytes_per_s
