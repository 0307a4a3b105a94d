# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Use the CPU, a GPU and the bus at the same time
===============================================

| **You'll do:** exercise 3 of the chapter: products on a GPU, copies of their results to the host,
  and products on the CPU, first in turn and then all at once.
| **You'll learn:** which of the three has to wait for which, and how little that costs.
| **You need:** 6 minutes, and no GPU: what needs one is shown from a record. Read
  :doc:`plot_2_small_operators` first; :doc:`plot_4_small_operators_on_a_cpu` comes next.

The CPU, the GPU and the bus, which is the link between their memories, can all work at once. A
*lane*, which is a queue with a thread of its own, keeps the CPU's products from holding up the
program. A pipeline gives the copies a queue of their own. Then the whole takes hardly longer than
its longest part.
"""

# %%
# A lane alone leaves the bus waiting
# -----------------------------------
# The tempting way hands the CPU's products to a lane and queues each copy behind its product,
# without waiting for it. But the copies are in the same *stream* as the products, a queue on the
# GPU, which does one thing after the other.

from functools import partial

import torch

import autopar as ap

SERIAL, ONE_STREAM, PIPELINE = "one after another", "CPU lane, one stream", "CPU lane, pipeline"
PRODUCTS, COPIES, ON_CPU = "products on the GPU", "copies to the host", "products on the CPU"
PARTS = [PRODUCTS, COPIES, ON_CPU]


def on_lane(lane, u, count):
    """Queue products of u on a CPU lane, which returns at once."""
    return [lane.submit(u.mm, u, name="product") for _ in range(count)]


def one_stream(x, count):
    """Queue each copy behind its product, and the next product behind the copy."""
    return [x.mm(x).to("cpu", non_blocking=True) for _ in range(count)]


# %%
# A pipeline sets all three to work
# ---------------------------------
# The right way changes one line: a pipeline has a stream for the copies, and each of them waits for
# its own product alone. With `pin=True` the results land in pinned memory, to which the GPU can
# write by itself, so no CPU thread has to move them. Half of the CPU's threads multiply, as
# launching and waiting need some, too.


def with_pipeline(pipeline, x, count):
    """Copy each product while the next one is computed."""
    return list(pipeline.to_host((x.mm(x) for _ in range(count)), pin=True))


# %%
# `race` waits for what is on lanes, compares all results, and times the ways and their `parts` in
# turn. In the slowest of the ways each part waits for the one before it.


# Folded: the parts in turn, and the measurement
def in_turn(lane, x, u, count, cpu_count):
    """Products on the GPU, then their copies, then products on the CPU."""
    results = ap.workload.products(x, count)
    ap.synchronize(x.device)
    on_host = [y.to("cpu", non_blocking=True) for y in results]
    ap.synchronize(x.device)
    return on_lane(lane, u, cpu_count), on_host


def three_parts(count, size, cpu_count, cpu_size):
    """The parts alone, in turn, and at once in two ways."""
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
            SERIAL: lambda: in_turn(lane, x, u, count, cpu_count),
            ONE_STREAM: lambda: (on_lane(lane, u, cpu_count), one_stream(x, count)),
            PIPELINE: lambda: (on_lane(lane, u, cpu_count), with_pipeline(pipeline, x, count)),
        }
        return ap.race(ways, parts=parts, devices=[gpu], see=[ONE_STREAM, PIPELINE])


# %%
# The sizes are the `chapter's
# <https://d2l.ai/chapter_computational-performance/auto-parallelism.html>`_. No order beats the
# longest part. Copies need products, so the first product or the last copy stands alone; the CPU's
# part needs nothing of either. Look at the lower half of the picture at the top: three rows, all of
# them busy from the start. In the upper half the CPU works beside the GPU as well, but each copy
# pushes the next product back.

BOOK = {"count": 50, "size": 4000, "cpu_count": 6, "cpu_size": 2000}
gpu = ap.recorded(three_parts, name="x3_cpu_gpu_and_the_bus", parameters=BOOK)
limit_s = max(gpu.limit_s([PRODUCTS, COPIES], pieces=BOOK["count"]), gpu.limit_s([ON_CPU]))
title = "The CPU, a GPU and the bus"
ap.show_timelines(gpu.timelines, "x3_cpu_gpu_and_the_bus", title=title, limit_s=limit_s)

# %%
# The whole takes as long as its longest part
# -------------------------------------------
# The parts alone, in grey, tell the limit of the whole. Compare the row in bold with them: it takes
# hardly longer than the longest. The row above it takes as long as the GPU's products and the
# copies together, so its lane hides the CPU's part and nothing else. The *spread (IQR)* is how far
# the middle half of the samples lies apart.

ap.show(
    ap.compare(gpu.measurements, limit_s=limit_s, parts=PARTS, baseline=SERIAL, highlight=PIPELINE)
)

# %%
# *Hidden* is by the clock: what was saved, of the two shorter parts. *Beside* is by the timeline of
# one run: the share of a part during which the GPU computed, too.

# Folded: the claims
LANE = "CPU lane"  # in a timeline
timeline = gpu.timelines[PIPELINE]
stream = next(span.lane for span in timeline.select("compute") if span.lane != LANE)


def beside(other):
    """The share of the shorter one's busy time in which the GPU computed beside it."""
    share = timeline.overlap_s(stream, other) / min(map(timeline.busy_s, (stream, other)))
    return gpu.estimate(lambda _: share)  # of one run, so without an interval


hidden = gpu.hidden(PIPELINE, PARTS)
chained = gpu.estimate(lambda s: s[ONE_STREAM] / (s[PRODUCTS] + s[COPIES]))
ap.show(
    ap.claim("Lane and pipeline hide most of the shorter parts.", hidden, at_least=0.6, unit="%"),
    ap.claim(
        "One stream takes about as long as both parts on it.", chained, at_least=0.9, unit="%"
    ),
    ap.claim("Most copies run beside the GPU's products.", beside("copy"), at_least=0.7, unit="%"),
    ap.claim(
        "Most of the CPU's products run beside them, too.", beside(LANE), at_least=0.6, unit="%"
    ),
)

# %%
# When this does not help
# -----------------------
# Only the shorter parts can hide: where the GPU's products take longest, a faster bus gains
# nothing. And the three are not quite independent. A lane with all threads competes with the thread
# that launches kernels. Results in ordinary memory take threads and memory bandwidth from the CPU's
# products, as :doc:`/auto_gallery/copies/plot_5_the_pipeline_against_its_limits` shows. PyTorch's
# `tutorial on pinned memory
# <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`_ has more on copies.
#
# On this machine
# ---------------
# Three CPU lanes play the three parts. On three lanes the first and the last one compute at the
# same time, if two cores are free. The claim is of the time in which the less busy one of them
# computes. It says that they run at once, not that they save time.


# Folded: the three parts on CPU lanes
def three_lanes(count, size):
    """Products that are copied, the copies, and other products, on one lane and on three."""
    x, buffers = ap.workload.matrix(size), torch.empty(count, size, size)
    with (
        ap.cpu_lane(name="first lane") as first,
        ap.cpu_lane(name="copies", kind="copy") as copies,
        ap.cpu_lane(name="last lane") as last,
    ):

        def all_parts(products_on, copies_on, others_on):
            others, products = on_lane(others_on, x, count), on_lane(products_on, x, count)
            copied = map(copies_on.submit, [to.copy_ for to in buffers], products)
            return others, products, list(copied)

        ways = {
            "one lane": lambda: all_parts(first, first, first),
            "three lanes": lambda: all_parts(first, copies, last),
        }
        forget = partial(buffers.fill_, torch.nan)
        return ap.race(ways, reset=forget, see=list(ways), repeats=9)


here = ap.observed(three_lanes, name="three CPU lanes", parameters={"count": 12, "size": 512})
seen, lanes = here.timelines["three lanes"], ("first lane", "last lane")
shared = here.estimate(lambda _: seen.overlap_s(*lanes) / min(map(seen.busy_s, lanes)))
ap.show(
    ap.compare(here.measurements),
    ap.draw(here.timelines, title="Three parts on one lane and on three"),
    ap.claim(
        "Two of three CPU lanes compute at once half of the time.", shared, at_least=0.5, unit="%"
    ),
)

# %%
# Now you
# -------
# Double the number of products on the CPU until they are the longest part. What is the limit then?
#
# .. dropdown:: A hint
#
#     What do the products on the CPU have to wait for?
#
# .. dropdown:: An answer
#
#     The CPU's part alone, since it needs nothing of the others. All of the GPU's products and all
#     copies then hide behind it.
#
#     .. code-block:: python
#
#         def least_s(count, products_s, copies_s, cpu_s):
#             chained_s = max(products_s, copies_s) + min(products_s, copies_s) / count
#             return max(chained_s, cpu_s)
