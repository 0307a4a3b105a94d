# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run small operators at once
===========================

| **You'll do:** exercise 2 of the
  `chapter <https://d2l.ai/chapter_computational-performance/auto-parallelism.html>`_: many small
  products on one GPU, in each way that may run several at once.
| **You'll learn:** up to which size parallelism pays on one GPU, and how to get it.
| **You need:** 5 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`plot_1_do_independent_products_run_at_once`. Next: :doc:`plot_3_cpu_gpu_and_the_bus`.

A small operator leaves room on a GPU for others beside it. Launches from Python come too slowly to
fill this room. One launch for all operators can fill it. Operators of one shape make a batch, and
any others a CUDA graph with branches.
"""

# %%
# A launch for each product keeps the GPU waiting
# -----------------------------------------------
# The tempting way is the plain loop. Each call *launches* a kernel, which is a function that runs
# on the GPU. From Python a launch takes tens of microseconds, whatever the kernel's size, and a
# small kernel takes less. So the GPU is done before the next kernel comes, and mostly waits.

import matplotlib.pyplot as plt
import torch

import autopar as ap


def one_by_one(batch):
    """One launch for each product."""
    return [x.mm(x) for x in batch]


# %%
# Look at the gaps in :timeline:`one stream`, between products of 256 × 256.
#
# One launch for all fills the GPU
# --------------------------------
# The right way launches once. `bmm` multiplies a whole batch of matrices. A *CUDA graph* is work
# that was captured before and is launched as a whole, so the host is out of its way. `capture`
# records the tasks as one chain, and then on several *branches*, which may run at once. It keeps
# the fastest.


def as_batch(batch):
    """One operator for all products."""
    return batch.bmm(batch)


def as_graph(batch):
    """One CUDA graph of all products, to be replayed at any time."""
    graph = ap.TaskGraph()
    for x in batch:
        graph.add(torch.mm, x, x, name="product")
    return graph.capture()


# %%
# Look at :timeline:`a batch`, one launch for all, and at :timeline:`a CUDA graph`, whose products
# follow one another or run side by side.
#
# All ways were timed in the sweep of :doc:`plot_1_do_independent_products_run_at_once`. In the
# picture at the top, one stream and several are above the others at the left end, because the host
# launches each product. To the right, where the GPU's work decides, all ways come together.

# Folded: the figure
gpu = ap.newest_record("x1_one_device")
counts = dict(gpu.parameters["work"])


def us(size, way):
    return 1e6 * gpu.measurements[f"{size}, {way}"].median_s / counts[size]


_, ax = plt.subplots(layout="constrained")
ways = ["one stream", "several streams", "a CUDA graph", "a batch"]
for way, marker in zip(ways, "os^D", strict=True):
    ax.plot([*counts], [us(size, way) for size in counts], marker=marker, label=way)
ax.set(xscale="log", yscale="log", xlabel="side of the matrices", ylabel="µs for a product")
ax.set_xticks([*counts], [str(size) for size in counts])
ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
ax.minorticks_off()
ax.set_title("Small products want one launch for all")
ax.legend(fontsize="small")
ends = ", ".join(f"{way!r} {us(min(counts), way):.2f} µs" for way in (ways[0], ways[-1]))
ap.plot.show("x2_small_operators", gpu.origin, look=f"Look at the left end: {ends}.")

# %%
# These are the timelines of small products. The profiler makes the gaps between launches wider.
own = {f"256, {way}": way for way in ("one stream", "a batch", "a CUDA graph")}
seen = {own[label]: run for label, run in gpu.timelines.items() if label in own}
ap.show_timelines(seen, "x2_products_of_256", title="Products of 256 × 256")

# %%
# In the table, compare the last two columns, which have the GPU's own time: where they come
# together, running at once pays no more. A chain saves the launches as well, but runs one product
# at a time, so the gain of branches over it is what running at once is worth. The other columns are
# by the host's clock. For a graph they include its launch, the wait, and a result for each product,
# which the host hands out; a batch has one result.

# Folded: the table and the claims
SMALL = (64, 128, 256)


def gain(s, size):
    """What the best number of branches gains over one chain."""
    return s[f"{size}, 1 branches"] / min(s[f"{size}, {number} branches"] for number in (2, 4, 8))


branches = gpu.estimate(lambda s: min(gain(s, size) for size in SMALL))
batch = gpu.estimate(lambda s: min(s[f"{n}, one stream"] / s[f"{n}, a batch"] for n in SMALL))
nothing = gpu.estimate(lambda s: gain(s, 4000))
headers = ["matrices", "a batch", "a CUDA graph", "on the GPU: a chain", "8 branches"]
shown = "a batch", "a CUDA graph", "1 branches", "8 branches"
given = {"origin": gpu.origin, "highlight": [f"{n} × {n}" for n in (min(counts), max(counts))]}
rows = [[f"{n} × {n}", *(f"{us(n, way):.2f} µs" for way in shown)] for n in counts]
ap.show(
    ap.tabulate(headers, rows, caption="Time for a product", **given),
    ap.claim(
        "Up to 256 × 256, branches are faster than a chain.", branches, at_least=1.5, unit="×"
    ),
    ap.claim("A batch of those is three times as fast as a loop.", batch, at_least=3, unit="×"),
    ap.claim("Branches gain large products little.", nothing, at_most=1.2, unit="×"),
)

# %%
# When this does not help
# -----------------------
# A batch needs operators of one shape, and a graph needs shapes that stay the same from replay to
# replay; PyTorch's page on `CUDA graphs
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs>`_ has the rules for captures.
# Neither helps operators that fill the device. For small operators on a CPU see
# :doc:`plot_4_small_operators_on_a_cpu`.
#
# Now you
# -------
# Capture products of which each needs the one before. What do branches gain over one chain?
#
# .. dropdown:: A hint
#
#     How many of them can run at the same time?
#
# .. dropdown:: An answer
#
#     Nothing, since only one can run at a time, and `capture` keeps the chain. The launches are
#     saved all the same.
#
#     .. code-block:: python
#
#         def depends(x, count):
#             graph = ap.TaskGraph()
#             task = x
#             for _ in range(count):
#                 task = graph.add(torch.mm, task, x)
#             return graph
