# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Hold the pipeline against its rivals
====================================

| **You'll do:** bring the results of products to the host in six ways, beside the products alone.
| **You'll learn:** which usual ways hide nothing, and what the choice of memory costs.
| **You need:** 6 minutes, and no GPU: the GPUs' part is shown from records. Before this:
  :doc:`plot_5_the_pipeline_against_its_limits`. Next: :doc:`plot_7_reach_the_limit_with_few_slots`.

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
# `race` compares all results and times the ways in turn.

import collections
import functools

import torch

import autopar as ap


def copied_by(copy, products):
    """Each product, and its copy."""
    return [copy(y) for y in products]


def by_pipeline(pipeline, products, **where):
    """All copies, each beside the next products; `where` may be `pin=True` or `out=...`."""
    return list(pipeline.to_host(products, **where))


# %%

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
# In the picture at the top of this page, look at the mark of the limit: all products, and one copy
# that has no product to hide behind. The bars *.to(non_blocking) each* and *pin, then copy* hide
# nothing: they are as long as both parts together. With *fresh memory* the system has to clear each
# page first, for which a product may be too short. The other two come near.
behind = ap.recorded(behind_computing, name="b5_behind_computing", parameters=BEHIND)
least_s = behind.limit_s(PARTS, pieces=BEHIND["count"])
drawn = [one for label, one in behind.measurements.items() if label not in (*PARTS, SLOW)]
ap.plot.bars(drawn[::-1], limit_s=least_s, title="Results to the host")
ap.plot.show("b5_against_the_rivals")

# %%
# The table has *.cpu() each*, too: each copy waits for fresh memory. *Saved* is by the clock, a
# share of the copies' time. Ordinary memory needs the CPU, so its claim asks for 60 % only.

into_pinned = "Into pinned memory the pipeline saves most of the copies' time."
into_touched = "Into touched ordinary memory it saves most, too."
ap.show(
    ap.compare(behind.measurements, limit_s=least_s, parts=PARTS, baseline=SLOW, highlight=PIN),
    ap.claim(into_pinned, behind.hidden(PIN, PARTS), at_least=0.8, unit="%"),
    ap.claim(into_touched, behind.hidden(OUT, PARTS), at_least=0.6, unit="%"),
)

# %%
# Two GPUs copy more than one
# ---------------------------
# Each GPU has a bus of its own, so give each a pipeline. Compare the last row with the two above
# it: twice as many copies take little longer. Both buses share the host's memory.

# Folded: the measurement of two GPUs
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


pair = ap.recorded(two_gpus, name="b5_two_gpus", parameters=TWO, gpus=2)
twice = pair.estimate(lambda s: (s["GPU 0"] + s["GPU 1"]) / s["both"])
both = "With a pipeline each, two GPUs copy about twice as much as one."
table = ap.compare(pair.measurements, highlight="both")
ap.show(table, ap.claim(both, twice, at_least=1.7, unit="×"))

# %%
# When this does not help
# -----------------------
# Where a result is needed at once there is nothing to hide behind. On a CPU the same cores copy and
# compute: :doc:`plot_5_the_pipeline_against_its_limits` measures what that costs.
#
# Now you
# -------
# A result is used as soon as it is there, and then dropped. Which way needs the least memory?
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
