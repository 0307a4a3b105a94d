# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Give each CPU thread its own operator
=====================================

| **You'll do:** the other half of exercise 2 of the
  `chapter <https://d2l.ai/chapter_computational-performance/auto-parallelism.html>`_: many small
  products on one CPU, with all threads inside each product, and with a thread for each.
| **You'll learn:** from which size on parallelism pays on one CPU, and how to get it.
| **You need:** 5 minutes, and no GPU: the part for many cores is shown from a record. Before this:
  :doc:`plot_3_cpu_gpu_and_the_bus`. Next: :doc:`plot_5_the_engine_of_mxnet`.

PyTorch's threads all work inside one operator at a time. A small one has too little to do for them.
With a thread of its own for each of several operators, all threads have work.
"""

# %%
# All threads inside a small product find little to do
# ----------------------------------------------------
# The tempting way is the plain loop: torch spreads each product over its threads by itself.

import os

import matplotlib.pyplot as plt
import torch

import autopar as ap


def multiply(x, outs):
    """A product into each; the system would have to clear fresh memory, and that be timed, too."""
    for out in outs:
        torch.mm(x, x, out=out)


# %%
# A product is shared out, all threads wait for the last one, and then the next product begins. The
# shares of a small product are too small for that.
#
# A lane for each thread takes whole products
# -------------------------------------------
# The right way is a graph with one *lane* for each hardware thread, that is a queue whose tasks run
# on a thread of its own. Each product stays on one thread.


def as_tasks(x, outs, lanes):
    """A graph with a task for each product."""
    graph = ap.TaskGraph(cpu_lanes=lanes)
    for out in outs:
        graph.add(torch.mm, x, x, out=out, writes=[out])
    return graph


# %%
# The lanes' products are compared with that of one thread. The ways are timed in turn at 7 sizes.

# Folded: the measurement
CPU = [[64, 512], [128, 512], [192, 512], [256, 512], [384, 256], [512, 128], [768, 48]]
ONE, INSIDE, LANES = "one thread", "all threads for each", "lanes of one thread"


def on_cpu(work):
    """Each size by one thread, by all threads for each product, and on lanes of one thread."""
    measurements, checks = [], {}
    with ap.cpu_lane(1) as one, ap.cpu_lane(torch.get_num_threads()) as every:
        for size, count in work:
            x, outs = ap.workload.matrix(size), torch.full((count, size, size), torch.nan).unbind()
            with as_tasks(x, outs, lanes=os.cpu_count() or 1) as graph:
                ways = {  # threads inside an operator stay awake after it: no lanes right behind
                    f"{size}, {LANES}": graph.run,
                    f"{size}, {INSIDE}": lambda x=x, y=outs: every.submit(multiply, x, y).wait(),
                    f"{size}, {ONE}": lambda x=x, y=outs: one.submit(multiply, x, y).wait(),
                }
                graph.run()
                product = one.submit(torch.mm, x, x).result()
                checks[f"{size}: equal"] = all(torch.equal(out, product) for out in outs)
                measurements += ap.measure_in_turn(ways, warmup=1, repeats=5)
    return ap.Findings(measurements, {}, checks)


# %%
# In the picture at the top, find where each curve crosses the dashed line: from that size on it
# pays. Smaller products take less time than it takes to hand them to a lane, or to share them out.
# The curve of the lanes crosses first.

# Folded: the drawing
given = {"work": CPU}  # side, and how many
cpu = ap.recorded(on_cpu, name="x2_on_cpu", parameters=given, gpus=0, threads=8)
sizes, median_s = [size for size, _ in CPU], {k: v.median_s for k, v in cpu.measurements.items()}
_, ax = plt.subplots(layout="constrained")
for way, style in ((LANES, "o-"), (INSIDE, "s-")):
    pairs = [[cpu.measurements[f"{size}, {each}"] for each in (ONE, way)] for size in sizes]
    ax.plot(sizes, [one.median_s / other.median_s for one, other in pairs], style, label=way)
ax.axhline(1, color="0.5", linestyle="--")
ax.set(xscale="log", xlabel="side of the matrices", ylabel="gain over one thread, ×")
ax.set_xticks(sizes, [f"{size}" for size in sizes])
ax.minorticks_off()
ax.set_title("What many threads gain")
ax.legend()
gained, n = max((median_s[f"{n}, {ONE}"] / median_s[f"{n}, {LANES}"], n) for n in sizes)
look = f"Look at where {LANES!r} gain most: {gained:.1f} × at {n} × {n}."
ap.plot.show("x2_on_cpu", cpu.origin, look=look)


# %%
# The claim is of the size at which lanes are furthest ahead of the better one of the other ways.
def ahead(s, n):
    return min(s[f"{n}, {INSIDE}"], s[f"{n}, {ONE}"]) / s[f"{n}, {LANES}"]


best = max(sizes, key=lambda n: ahead(median_s, n))
gain = cpu.estimate(lambda s: ahead(s, best))
sentence = f"Lanes of one thread win clearly at {best} × {best}."
ap.show(ap.claim(sentence, gain, at_least=1.2, unit="×"))

# %%
# When this does not help
# -----------------------
# Larger products may fill all threads by themselves. For how small a task on lanes may be, see
# :doc:`/auto_gallery/graphs/plot_5_how_fine_may_tasks_be`. PyTorch's notes on `CPU threading
# <https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html>`_ tell which
# threads there are.
#
# On this machine
# ---------------
# The lanes gain no more than there are cores. The *spread (IQR)* is how far the middle half of the
# samples lies apart.

here = ap.observed(on_cpu, name="small products here", parameters={"work": [[64, 64], [256, 32]]})
ap.show(ap.compare(here.measurements, caption="Products here, by side", highlight=f"64, {LANES}"))

# %%
# Now you
# -------
# A CPU has 8 threads. 100 products take 1 ms each on one of them. How long do they take on 8 lanes?
#
# .. dropdown:: A hint
#
#     How many products has the busiest lane?
#
# .. dropdown:: An answer
#
#     13 ms at least: four lanes have 13 products, and the other four wait at the end.
#
#     .. code-block:: python
#
#         def least_ms(count=100, lanes=8, product_ms=1):
#             return -(-count // lanes) * product_ms
