# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Copy both ways while you compute
================================

| **You'll do:** send matrices to a GPU, multiply each, and bring the results back, all at once.
| **You'll learn:** what three queues at once are worth, and which of the three sets the limit.
| **You need:** 8 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`plot_2_five_wrong_answers`. Next: :doc:`plot_4_feed_a_training_loop`.

The bus between host and GPU carries both directions at once, and the GPU computes meanwhile. So
copying there, computing and copying back need little more time together than computing alone, if
that is the longest. One stream takes the sum of all three, even if the host waits for nothing.
"""

# %%
# One stream takes the sum
# ------------------------
# Two ways are tempting. In the loop that most people write first, each step waits for the one
# before. With `non_blocking=True` the host waits for nothing, but on the GPU all work stands in one
# queue, a *stream*: see :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy`.

import torch

import autopar as ap

BOTH = {"count": 20, "size": 4000}  # matrices of 64 MB
LOOP, ONE_STREAM, MAP = "plain loop", "non_blocking, one stream", "map, pinned memory"
PARTS = COMPUTE, TO_HOST, BOTH_WAYS = "compute", "copy to the host", "copy both ways"


def plain_loop(fn, inputs, device):
    """Copy, compute, copy back, one after the other."""
    return [fn(x.to(device)).cpu() for x in inputs]


def one_stream(fn, inputs, device):
    """The same without waiting in between."""
    return [fn(x.to(device, non_blocking=True)).to("cpu", non_blocking=True) for x in inputs]


# %%
# Look at :timeline:`non_blocking, one stream`: it has one bar at a time.
#
# Three streams use both directions
# ---------------------------------
# The right way is one line. :meth:`~autopar.CopyPipeline.map` copies the next inputs and the last
# results on two more streams, which wait by *events*, marks between the streams' work. With
# `pin=True` results land in *pinned* memory, which the GPU can write to by itself.


def three_streams(fn, inputs, pipeline):
    """Copy there, compute and copy back, all at once."""
    return list(pipeline.map(fn, inputs, pin=True))


# %%
# In :timeline:`map, pinned memory`, look at one of the first products: a later input and an earlier
# result are copied under it.
#
# `race` compares all results bit for bit, then times the ways in turn with their parts: products,
# copies to the host, and copies both ways with nothing to compute beside them.


# Folded: the measurement
def copy_both_ways(streams, hosts, gpus, count):
    """Copy from one pair of tensors to the other, both ways at once."""
    for _ in range(count):
        with torch.cuda.stream(streams[0]):
            gpus[1].copy_(hosts[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            hosts[1].copy_(gpus[0], non_blocking=True)


def both_ways(count, size):
    """The three ways, and the parts they are made of."""
    gpu, pair = ap.gpu(0), [ap.workload.matrix(size, seed=i) for i in range(2)]
    hosts, gpus = [x.pin_memory() for x in pair], [x.to(gpu) for x in pair]
    streams = [torch.cuda.Stream(gpu) for _ in pair]
    inputs, pinned = pair * (count // 2), [x.pin_memory() for x in pair] * (count // 2)
    fn = ap.workload.matrix(size, gpu, seed=2).mm
    with ap.CopyPipeline(gpu) as pipeline:
        parts = {
            COMPUTE: lambda: [fn(gpus[0]) for _ in inputs],
            TO_HOST: lambda: [hosts[0].copy_(gpus[0], non_blocking=True) for _ in inputs],
            BOTH_WAYS: lambda: copy_both_ways(streams, hosts, gpus, count),
        }
        ways = {
            LOOP: lambda: plain_loop(fn, inputs, gpu),
            ONE_STREAM: lambda: one_stream(fn, pinned, gpu),
            MAP: lambda: three_streams(fn, pinned, pipeline),
        }
        return ap.race(ways, parts=parts, see=[ONE_STREAM, MAP], devices=[gpu])


# %%
gpu = ap.recorded(both_ways, name="b2_both_ways", parameters=BOTH)
limit_s = gpu.limit_s([COMPUTE, TO_HOST, TO_HOST], pieces=BOTH["count"])
title = "There, multiplied, and back: the same work, in one stream and through the pipeline"
ap.show_timelines(gpu.timelines, "b2_copy_both_ways", title=title, limit_s=limit_s)

# %%
# Only the first copy and the last one stick out
# ----------------------------------------------
# The first input has to arrive before anything can run, and the last result leaves when all has
# run. So no way can be faster than the longest part and these two copies.
rows = {"parts": PARTS, "baseline": ONE_STREAM, "highlight": MAP}
ap.show(ap.compare(gpu.measurements, limit_s=limit_s, **rows))

# %%
# Look at the rows of copies: both directions at once take less time than in turn. The row in bold
# takes little more than *compute*. On the plain loop see :doc:`plot_1_where_a_copys_time_goes`.

both = gpu.estimate(lambda s: 2 * s[TO_HOST] / s[BOTH_WAYS])
saved = gpu.hidden(MAP, [COMPUTE, TO_HOST, TO_HOST])
more = "The bus carries more in both directions at once than in turn."
most = "Copying both ways while computing saves most of what overlap can."
ap.show(
    ap.claim(more, both, at_least=1.3, unit="×"),
    ap.claim(most, saved, at_least=0.7, unit="%"),
)


# %%
# When this does not help
# -----------------------
# Once copies take longer than products, a faster kernel gains nothing. Then send fewer bytes.
# To copy into ordinary memory takes the CPU, too: :doc:`plot_5_the_pipeline_against_its_limits`.
#
# On this machine
# ---------------
# On a CPU the same cores copy and compute, so `map` may gain nothing, or lose.
def on_the_cpu(count, size):
    """`map` on the CPU beside the plain loop."""
    fn, inputs = ap.workload.matrix(size, seed=1).mm, [ap.workload.matrix(size)] * count
    with ap.CopyPipeline("cpu") as pipeline:
        loop = {LOOP: lambda: [fn(x.clone()).clone() for x in inputs]}
        return ap.race(loop | {"map": lambda: three_streams(fn, inputs, pipeline)})


here = ap.observed(on_the_cpu, name="map on the CPU", parameters={"count": 12, "size": 384})
ap.show(ap.compare(here.measurements, caption="Copy, multiply, copy, on the CPU", highlight="map"))

# %%
# Now you
# -------
# At which size does a copy take as long as its product, with 50 TFLOP/s and 50 GB/s?
#
# .. dropdown:: A hint
#
#     A product of n by n matrices has 2 n³ operations, and its result has 4 n² bytes.
#
# .. dropdown:: An answer
#
#     At 2000. Below it the bus is the limit: :doc:`plot_7_reach_the_limit_with_few_slots`.
#
#     .. code-block:: python
#
#         def even_size(flops_per_s, bytes_per_s):
#             return 2 * flops_per_s / bytes_per_s  # where 2 n³ / flops_per_s = 4 n² / bytes_per_s
