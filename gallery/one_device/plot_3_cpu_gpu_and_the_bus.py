# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Use the CPU, a GPU and the bus at the same time
===============================================

| **You'll do:** exercise 3 of the chapter: products on a GPU, copies of their results to the host,
  and products on the CPU, first in turn and then all at once.
| **You'll learn:** which of the three has to wait for which, and how little that costs.
| **You need:** 6 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`plot_2_small_operators`. Next: :doc:`plot_4_small_operators_on_a_cpu`.

The CPU, the GPU and the bus, which is the link between their memories, can all work at once. A
*lane*, a queue with a thread of its own, keeps the CPU's products from holding up the program. A
pipeline gives the copies a queue, too. Then the whole takes hardly longer than its longest part.
"""

# %%
# A lane alone leaves the bus waiting
# -----------------------------------
# The tempting way hands the CPU's products to a lane and queues each copy behind its product,
# without waiting for it. But the copies are in the same *stream* as the products, a queue on the
# GPU, which does one thing after the other.

import torch

import autopar as ap

SERIAL, ONE_STREAM, PIPELINE = "one after another", "CPU lane, one stream", "CPU lane, pipeline"
PRODUCTS, COPIES, ON_CPU = "products on the GPU", "copies to the host", "products on the CPU"
PARTS = [PRODUCTS, COPIES, ON_CPU]


def on_lane(lane, u, count):
    return [lane.submit(u.mm, u, name="product") for _ in range(count)]


def one_stream(x, count):
    return [x.mm(x).to("cpu", non_blocking=True) for _ in range(count)]


# %%
# In :timeline:`CPU lane, one stream` the CPU works beside the GPU, but look at the copies: each
# pushes the next product back.
#
# A pipeline sets all three to work
# ---------------------------------
# The right way changes one line: a pipeline has a stream for the copies, and each waits for its own
# product alone. With `pin=True` the results land in *pinned* memory, to which the GPU can write by
# itself, so no CPU thread has to move them.


def with_pipeline(pipeline, x, count):
    return list(pipeline.to_host((x.mm(x) for _ in range(count)), pin=True))


# %%
# In :timeline:`CPU lane, pipeline` look at all three rows: they are busy from the start.
#
# `race` waits for what is on lanes, compares all results, and times the ways and their `parts` in
# turn. Half of the CPU's threads multiply, as launching and waiting need some, too.


# Folded: the measurement
def three_parts(count, size, cpu_count, cpu_size):
    def in_turn():
        results = ap.workload.products(x, count)
        ap.synchronize(gpu)
        on_host = [y.to("cpu", non_blocking=True) for y in results]
        ap.synchronize(gpu)
        return on_lane(lane, u, cpu_count), on_host

    gpu, threads = ap.gpu(0), max(1, torch.get_num_threads() // 2)
    x, u = ap.workload.matrix(size, gpu), ap.workload.matrix(cpu_size)
    products = ap.workload.products(x, count)
    with ap.cpu_lane(threads, name="CPU lane") as lane, ap.CopyPipeline(gpu) as pipeline:
        parts = {
            PRODUCTS: lambda: ap.workload.products(x, count),
            COPIES: lambda: [y.to("cpu", non_blocking=True) for y in products],
            ON_CPU: lambda: on_lane(lane, u, cpu_count),
        }
        ways = {
            SERIAL: in_turn,
            ONE_STREAM: lambda: (on_lane(lane, u, cpu_count), one_stream(x, count)),
            PIPELINE: lambda: (on_lane(lane, u, cpu_count), with_pipeline(pipeline, x, count)),
        }
        return ap.race(ways, parts=parts, devices=[gpu], see=[ONE_STREAM, PIPELINE])


# %%
# The GPU's sizes are the `chapter's
# <https://d2l.ai/chapter_computational-performance/auto-parallelism.html>`_. No order beats the
# longest part.
BOOK = {"count": 50, "size": 4000, "cpu_count": 6, "cpu_size": 2000}
gpu = ap.recorded(three_parts, name="x3_cpu_gpu_and_the_bus", parameters=BOOK)
limit_s = max(gpu.limit_s([PRODUCTS, COPIES], pieces=BOOK["count"]), gpu.limit_s([ON_CPU]))
title = "The CPU, a GPU and the bus"
ap.show_timelines(gpu.timelines, "x3_cpu_gpu_and_the_bus", title=title, limit_s=limit_s)

# %%
# The whole takes as long as its longest part
# -------------------------------------------
# Compare the row in bold with the parts alone, in grey: it takes hardly longer than the longest.
# The row above it takes as long as the GPU's products and the copies together. The *spread (IQR)*
# is how far the middle half of the samples lies apart.
ap.show(
    ap.compare(gpu.measurements, limit_s=limit_s, parts=PARTS, baseline=SERIAL, highlight=PIPELINE)
)

# %%
# *Saved* is by the clock: a share of the two shorter parts' time. *Beside* is by the timeline of
# one run: the share of a part during which the GPU computed, too.

# Folded: the claims
LANE = "CPU lane"  # in a timeline
timeline = gpu.timelines[PIPELINE]
stream = next(span.lane for span in timeline.select("compute") if span.lane != LANE)


def beside(other):
    share = timeline.overlap_s(stream, other) / min(map(timeline.busy_s, (stream, other)))
    return gpu.estimate(lambda _: share)  # of one run, so without an interval


saved = gpu.hidden(PIPELINE, PARTS)
chained = gpu.estimate(lambda s: s[ONE_STREAM] / (s[PRODUCTS] + s[COPIES]))
ap.show(
    ap.claim("Lane and pipeline save most of the shorter parts.", saved, at_least=0.6, unit="%"),
    ap.claim("One stream takes the sum of both parts on it.", chained, at_least=0.9, unit="%"),
    ap.claim("Most copies run beside the GPU's products.", beside("copy"), at_least=0.7, unit="%"),
    ap.claim("Most of the CPU's products do, too.", beside(LANE), at_least=0.6, unit="%"),
)

# %%
# When this does not help
# -----------------------
# Only the shorter parts can hide: where the GPU's products take longest, a faster bus gains
# nothing. A lane with all threads competes with the thread that launches kernels. And results in
# ordinary memory take threads from the CPU's products:
# :doc:`/auto_gallery/copies/plot_5_the_pipeline_against_its_limits`. PyTorch's `tutorial on pinned
# memory <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`_ has more on
# copies, and lanes run without a GPU in
# :doc:`/auto_gallery/first_steps/plot_2_two_devices_at_once`.
#
# Now you
# -------
# Give the CPU so many products that they take by far the longest. What is the limit then?
#
# .. dropdown:: A hint
#
#     What do the products on the CPU have to wait for?
#
# .. dropdown:: An answer
#
#     The CPU's part alone, since it needs nothing of the others.
#
#     .. code-block:: python
#
#         def least_s(count, products_s, copies_s, cpu_s):
#             chained_s = max(products_s, copies_s) + min(products_s, copies_s) / count
#             return max(chained_s, cpu_s)
