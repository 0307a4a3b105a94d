# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Hold the pipeline against its rivals
====================================

| **You'll do:** bring the results of products to the host in six ways, beside the products alone.
| **You'll learn:** which usual ways hide nothing, and what the choice of memory costs.
| **You need:** 6 minutes, and no GPU: what needs some is shown from records. Read
  :doc:`plot_5_the_pipeline_against_its_limits` first; :doc:`plot_7_reach_the_limit_with_few_slots`
  comes next.

A product takes longer than the copy of its result, so nearly all copies can hide behind the next
product. The ways that people write hide none of them. A pipeline does, into *pinned* memory, which
the GPU can write to by itself, and into ordinary memory that was used before.
"""

# %%
# The usual ways hide nothing
# ---------------------------
# The tempting ways take one line: `y.cpu()`, or the same with `non_blocking=True`, or a buffer that
# is pinned on the spot. In all of them the copy stands in the queue of the products, as
# :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy` shows. A pipeline takes one line, too.

import collections
import functools

import matplotlib.pyplot as plt
import torch

import autopar as ap


def copied_by(copy, products):
    """Each product, and its copy."""
    return [copy(y) for y in products]


def by_pipeline(pipeline, products, **where):
    """All copies, each beside the next products; `where` may be `pin=True` or `out=...`."""
    return list(pipeline.to_host(products, **where))


# %%
# `race` compares all results bit for bit, then times the ways in turn with their parts.

# Folded: the measurement
BEHIND = {"count": 30, "size": 4000}
PARTS = "compute", "copy"
PIN, OUT, FRESH = (f"pipeline, {where}" for where in ("pin=True", "out", "fresh memory"))
SLOW = ".cpu() each"


def behind_computing(count, size):
    """Products and copies through the pipeline, and in three usual ways."""
    gpu = ap.gpu(0)
    x = ap.workload.matrix(size, gpu)
    y, outs = x.mm(x), [torch.zeros(size, size) for _ in range(count)]
    pinned = torch.empty(size, size).pin_memory()

    def products():
        return (x.mm(x) for _ in range(count))

    def not_waiting(y):
        return y.to("cpu", non_blocking=True)

    def to_new_buffer(y):
        return torch.empty(size, size, pin_memory=True).copy_(y)

    with ap.CopyPipeline(gpu) as pipeline:
        parts = {
            "compute": lambda: list(products()),
            "copy": lambda: [pinned.copy_(y, non_blocking=True) for _ in outs],
        }
        ways = {
            PIN: lambda: by_pipeline(pipeline, products(), pin=True),
            OUT: lambda: by_pipeline(pipeline, products(), out=outs),
            FRESH: lambda: by_pipeline(pipeline, products()),
            SLOW: lambda: copied_by(torch.Tensor.cpu, products()),
            ".to(non_blocking) each": lambda: copied_by(not_waiting, products()),
            "pin, then copy": lambda: copied_by(to_new_buffer, products()),
        }
        forget, expected = (lambda: [out.fill_(torch.nan) for out in outs]), [y] * count
        return ap.race(ways, parts=parts, expected=expected, reset=forget, devices=[gpu])


# %%
# In the picture at the top of this page, look at the dashed line: where a bar ends there, the whole
# copy is added to its product, and nothing hides. The longest bars are cut, with their times in
# white: these ways wait for fresh memory besides.

# Folded: the drawing
behind = ap.recorded(behind_computing, name="b5_behind_computing", parameters=BEHIND)
ms = {label: 1e3 * one.median_s / BEHIND["count"] for label, one in behind.measurements.items()}
edge = 1.5 * ms["copy"]
figure, ax = plt.subplots(layout="constrained")
for way in sorted(ms.keys() - set(PARTS), key=ms.get, reverse=True):
    more = ms[way] - ms["compute"]
    ax.barh(way, more, color="C0")
    place, colour = (edge, "w") if more > edge else (max(0, more), ax.xaxis.label.get_color())
    ax.text(place, way, f" {more:.2f} ms", va="center", color=colour)
ax.axvline(ms["copy"], color="black", linestyle="--", linewidth=1.2)
ax.set(xlim=(0, 1.8 * edge), xlabel="ms (dashed: a copy alone)", title="What a copy adds")
figure.supxlabel(behind.origin, fontsize=7)
ap.plot.show("b5_against_the_rivals")

# %%
# No way can be faster than all products and one copy. Look at the first two rows below the parts:
# they come near to it. In the third the system clears each page of fresh memory first.

limit_s = behind.limit_s(PARTS, pieces=BEHIND["count"])
ap.show(ap.compare(behind.measurements, limit_s=limit_s, parts=PARTS, baseline=SLOW, highlight=PIN))

# %%
# *Hidden* is the share of the copies' time that was saved: the sum of both parts, less what a way
# took, over the shorter part. Ordinary memory needs the CPU's help for each byte, so its bound is
# lower; it should have been touched before, as a buffer has that is used again.

into_pinned = "The pipeline hides most copies into pinned memory."
into_touched = "The pipeline hides most copies into touched ordinary memory."
ap.show(
    ap.claim(into_pinned, behind.hidden(PIN, PARTS), at_least=0.8, unit="%"),
    ap.claim(into_touched, behind.hidden(OUT, PARTS), at_least=0.6, unit="%"),
)

# %%
# Two GPUs copy twice as much
# ---------------------------
# Each GPU has a bus of its own, so two of them should copy as fast as each alone. One pipeline is
# for one GPU. With a pipeline for each, results are taken from both by turns, and while the host
# waits for one of them the other goes on.

# Folded: the measurement
TWO = {"count": 40, "size": 4000}
taken = functools.partial(collections.deque, maxlen=0)  # takes each item, and lets go of it


def two_gpus(count, size):
    """Copies from one GPU and from two at once."""
    tensors = [ap.workload.matrix(size, ap.gpu(i)) for i in (0, 1)]
    with ap.CopyPipeline(ap.gpu(0)) as first, ap.CopyPipeline(ap.gpu(1)) as second:

        def of(i):
            return (first, second)[i].to_host([tensors[i]] * count, pin=True)

        checks = {f"GPU {i}: equal": ap.workload.equal(of(i), [tensors[i]] * count) for i in (0, 1)}
        ways = {"GPU 0": lambda: taken(of(0)), "GPU 1": lambda: taken(of(1))}
        ways["both"] = lambda: taken(zip(of(0), of(1), strict=True))
        return ap.Findings(ap.measure_in_turn(ways, warmup=1, repeats=7), {}, checks)


# %%
# Compare the last row with the two above it: twice as many copies take about as long.

pair = ap.recorded(two_gpus, name="b5_two_gpus", parameters=TWO, gpus=2)
twice = pair.estimate(lambda s: (s["GPU 0"] + s["GPU 1"]) / s["both"])
both = "With a pipeline each, two GPUs copy about twice as much as one."
ap.show(ap.compare(pair.measurements), ap.claim(both, twice, at_least=1.7, unit="×"))

# %%
# When this does not help
# -----------------------
# Where a result is needed at once there is nothing to hide behind, and `y.cpu()` is as good. Where
# copies take longer than products, the bus is the limit, as the next page shows.
#
# On this machine
# ---------------
# On a CPU the same cores copy and compute, so there is nothing to hide a copy behind. Expect no
# gain, or a loss.


def on_the_cpu(count, size):
    """Products and their copies, in a usual way and through a pipeline."""
    x = ap.workload.matrix(size)

    def products():
        return (x.mm(x) for _ in range(count))

    with ap.CopyPipeline("cpu") as pipeline:
        usual = {"clone each": lambda: copied_by(torch.Tensor.clone, products())}
        return ap.race(usual | {FRESH: lambda: by_pipeline(pipeline, products())})


here = ap.observed(on_the_cpu, name="rivals on the CPU", parameters={"count": 12, "size": 384})
ap.show(ap.compare(here.measurements, caption="Products and their copies, on the CPU"))

# %%
# Now you
# -------
# A result is used as soon as it is there, and then dropped. Which way needs least memory for that?
#
# .. dropdown:: A hint
#
#     `to_host` is an iterator: it asks for few products ahead of the result that it hands out.
#
# .. dropdown:: An answer
#
#     The pipeline, if its results are not kept in a list:
#
#     .. code-block:: python
#
#         def largest(pipeline, products):
#             return max(y.max().item() for y in pipeline.to_host(products))
