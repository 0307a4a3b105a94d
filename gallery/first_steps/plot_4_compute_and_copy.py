# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Hide the copies behind the computing
====================================

| **You'll do:** compute 50 products on a GPU and copy their results to the CPU, first as the book
  does, then in a way that hides the copies.
| **You'll learn:** why `non_blocking=True` alone hides nothing, and which five lines do.
| **You need:** 8 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`plot_1_the_front_end_returns_first`. Next: :doc:`plot_5_why_the_book_prints_a_gain`.

A GPU computes with one part of its hardware and copies with another, so it can do both at once.
The book's code makes them take turns. On a second stream every copy but the last can hide.
"""

# %%
# One stream hides nothing
# ------------------------
# The tempting way is to queue all products, then all copies.

from functools import partial

import torch

import autopar as ap

BOOK = {"count": 50, "size": 4000}  # products of 4000 × 4000 in float32, 64 MB each
PARTS, ONE, TWO, LANE = ["products", "copies"], "one stream", "two streams", "a lane for copies"


def to_cpu(results):
    return [y.to("cpu", non_blocking=True) for y in results]


def one_stream(x, count):
    return to_cpu([x.mm(x) for _ in range(count)])


# %%
# Look at the orange bars in :timeline:`one stream`: all 50 copies follow the last product.
#
# `non_blocking=True` lets the *host* go on. On the GPU the copies go to the current *stream*, the
# queue in which the products stand as well. A stream does one thing after the other.
#
# Two streams hide all copies but one
# -----------------------------------
# The right way changes five lines. The results go to pinned memory, which the GPU can write to by
# itself, and which is made only once (1). A copy waits for an *event*, a mark behind one product,
# and not for all products (2). It goes to a stream of its own (3) and leaves the host free (4). The
# last line keeps a product's memory until its copy has read it (5). Before the host reads a buffer
# it has to wait, as by `side.synchronize()`; here `race` waits.


def two_streams(x, buffers, side):
    for buffer in buffers:  # 1: made before, by torch.empty(..., pin_memory=True)
        y = x.mm(x)
        side.wait_event(torch.cuda.current_stream(x.device).record_event())  # 2
        with torch.cuda.stream(side):  # 3
            buffer.copy_(y, non_blocking=True)  # 4
        y.record_stream(side)  # 5
    return buffers


# %%
# In :timeline:`two streams` each copy lies under a product, and only the last sticks out.
#
# A *lane* is a queue of autopar's, here with a stream, that waits and keeps memory by itself.
# `race` compares all results, bit by bit, and times all ways in turn.


# Folded: the same in two lines, and the measurement
def with_lane(x, buffers, lane):
    for buffer in buffers:
        lane.submit(buffer.copy_, x.mm(x), non_blocking=True)
    return buffers


def compute_and_copy(count, size):
    gpu = ap.gpu(0)
    x, side = ap.workload.matrix(size, gpu), torch.cuda.Stream(gpu)
    products = ap.workload.products(x, count)
    memory = torch.empty(count, size, size, pin_memory=True)
    with ap.cuda_lane(gpu, name="copies", kind="copy") as lane:
        ways = {
            ONE: lambda: one_stream(x, count),
            TWO: lambda: two_streams(x, list(memory), side),
            LANE: lambda: with_lane(x, list(memory), lane),
        }
        parts = {"products": lambda: [x.mm(x) for _ in memory], "copies": lambda: to_cpu(products)}
        given = {"reset": partial(memory.fill_, torch.nan), "see": [ONE, TWO]}
        return ap.race(ways, parts=parts, expected=products, **given)


# %%
gpu = ap.recorded(compute_and_copy, name="e3_compute_and_copy", parameters=BOOK)
limit_s = gpu.limit_s(PARTS, pieces=BOOK["count"])
title = "The same products and copies, on one stream and on two"
ap.show_timelines(gpu.timelines, "e3_compute_and_copy", title=title, limit_s=limit_s)

# %%
# How near to the limit?
# ----------------------
# The limit is the longer part and one piece of the shorter, timed alone; times have a spread, so a
# row may pass it. Compare *one stream* with the two parts above it: it takes the sum. The row in
# bold hardly takes more than *products*. *Saved* is a share of the copies' time, by the clock.

one, two = gpu.hidden(ONE, PARTS), gpu.hidden(TWO, PARTS)
ap.show(
    ap.compare(gpu.measurements, limit_s=limit_s, parts=PARTS, baseline=ONE, highlight=TWO),
    ap.claim("One stream saves next to nothing.", one, at_most=0.1, unit="%"),
    ap.claim("Two streams save most of the copies' time.", two, at_least=0.8, unit="%"),
)


# %%
# When this does not help
# -----------------------
# Only the shorter part can hide, so where the copies take longer the bus is the limit.
# :doc:`plot_5_why_the_book_prints_a_gain` says why the book prints a gain all the same.
#
# On this machine
# ---------------
# Lanes run on a CPU, too, each with one thread here. The copies are short: little can be gained.
def on_cpu_lanes(count, size):
    x, host = ap.workload.matrix(size), torch.empty(count, size, size)
    with ap.cpu_lane(name="products") as one, ap.cpu_lane(name="copies", kind="copy") as two:

        def to(lane):
            return [lane.submit(buffer.copy_, one.submit(torch.mm, x, x)) for buffer in host]

        ways = {"one lane": lambda: to(one), "two lanes": lambda: to(two)}
        return ap.race(ways, reset=host.zero_)


here = ap.observed(on_cpu_lanes, name="on CPU lanes", parameters={"count": 12, "size": 512})
ap.show(ap.compare(here.measurements, highlight="two lanes"))

# %%
# Now you
# -------
# Let the side stream wait once, for all products, before the first copy. How much is hidden?
#
# .. dropdown:: A hint
#
#     Which event does the first copy wait for now?
#
# .. dropdown:: An answer
#
#     Nothing is hidden: the side stream waits for the last product, as the one stream did.
#
#     .. code-block:: python
#
#         def wait_for_all(x, buffers, side):
#             results = ap.workload.products(x, len(buffers))
#             side.wait_stream(torch.cuda.current_stream(x.device))
#             with torch.cuda.stream(side):
#                 for buffer, y in zip(buffers, results):
#                     buffer.copy_(y, non_blocking=True)
#                     y.record_stream(side)
