# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run the CPU and a GPU at the same time
======================================

| **You'll do:** the MXNet edition's experiment in PyTorch: ten products on the CPU and ten larger
  ones on a GPU, in both orders.
| **You'll learn:** why the order of two independent lines matters, and how lanes mend it.
| **You need:** 6 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`plot_2_two_devices_at_once`. Next: :doc:`plot_4_compute_and_copy`.

A CPU and a GPU can work at the same time, and two lines that need nothing of each other may run in
any order. In plain PyTorch the order decides all the same: if the line for the CPU comes first, the
GPU waits for it. On lanes this order runs in parallel, too, as it does in MXNet.
"""

# %%
# CPU work first: the GPU waits
# -----------------------------
# This is the book's order. A CPU operator returns when its result is there. Only then does the host
# come to the second line. `annotate` names its products in the timeline.
import torch

import autopar as ap

BOOK = {"count": 10, "cpu_size": 2000, "gpu_size": 6000}  # sides of the matrices, as in the book
ALONE = ["CPU alone", "GPU alone"]
CPU_FIRST, GPU_FIRST, LANES = "plain, CPU first", "plain, GPU first", "lanes, CPU first"


def cpu_first(x, u, count):
    """Products of x on the CPU, then of u on the GPU."""
    with ap.annotate("CPU products"):
        y = ap.workload.products(x, count)
    return y, ap.workload.products(u, count)


# %%
# Look at the GPU in :timeline:`plain, CPU first`: it begins where the CPU ends.
#
# GPU work first: both run
# ------------------------
# These are the same lines in the other order. Launches return at once, so the GPU computes while
# the CPU does its part. Whoever writes the program has to know this, for every pair of lines.


def gpu_first(x, u, count):
    """Products of u on the GPU, then of x on the CPU."""
    results = ap.workload.products(u, count)
    with ap.annotate("CPU products"):
        return ap.workload.products(x, count), results


# %%
# Lanes: the book's order runs in parallel
# ----------------------------------------
# A *lane* is a queue with a worker, here a thread for the CPU and a stream for the GPU. `submit`
# returns at once for both, so neither line waits for the other.


def on_lanes(x, u, count, cpu_lane, gpu_lane):
    run = ap.workload.products
    return cpu_lane.submit(run, x, count), gpu_lane.submit(run, u, count)


# %%
# In :timeline:`lanes, CPU first` both begin together, as they do in :timeline:`plain, GPU first`.
# The table below a timeline may count two spans for each product of the GPU: one fills memory for
# it. `race` compares all results, times the ways beside their parts, and takes timelines.


def cpu_and_gpu(count, cpu_size, gpu_size):
    """The three ways, and their parts."""
    x, u = ap.workload.matrix(cpu_size), ap.workload.matrix(gpu_size, ap.gpu(0))
    threads = torch.get_num_threads()
    with ap.cpu_lane(threads, name="CPU lane") as cpu, ap.cuda_lane(ap.gpu(0)) as gpu:
        ways = {
            CPU_FIRST: lambda: cpu_first(x, u, count),
            GPU_FIRST: lambda: gpu_first(x, u, count),
            LANES: lambda: on_lanes(x, u, count, cpu, gpu),
        }
        parts = zip(ALONE, (x, u), strict=True)
        alone = {label: lambda a=a: ap.workload.products(a, count) for label, a in parts}
        return ap.race(ways, parts=alone, see=[*ways], repeats=9)


# %%
# Here are the numbers of this run, or of the record of one.
record = ap.recorded(cpu_and_gpu, name="e2_cpu_and_gpu", parameters=BOOK)
limit_s = record.limit_s(ALONE)
ap.show_timelines(
    record.timelines,
    "e2_cpu_and_gpu",
    title="CPU work issued first, GPU work first, and lanes",
    limit_s=limit_s,
)

# %%
# In plain PyTorch the book's order takes the sum
# -----------------------------------------------
# Neither part needs anything of the other, so the limit is the longer of the two at its fastest.
look = {"parts": ALONE, "baseline": CPU_FIRST, "highlight": LANES}
ap.show(ap.compare(record.measurements, limit_s=limit_s, **look))

# %%
# Compare *plain, CPU first* with both parts, and the other ways with the longer one. *Saved* is the
# share of the shorter part's time. Where a claim is *too noisy to tell*, the CPU's part took longer
# in some runs than in others, as where the machine has other work.

first, second, lanes = (record.hidden(way, ALONE) for way in (CPU_FIRST, GPU_FIRST, LANES))
ap.show(
    ap.claim("Plain PyTorch saves little with CPU work first.", first, at_most=0.3, unit="%"),
    ap.claim("With GPU work first most is saved.", second, at_least=0.6, unit="%"),
    ap.claim("On lanes most is saved in the book's order.", lanes, at_least=0.6, unit="%"),
)

# %%
# When this does not help
# -----------------------
# Only the shorter part can hide: where the GPU works ten times as long as the CPU, the best that
# overlap can save is an eleventh. A CPU lane with all cores also competes with the thread that
# launches kernels. What MXNet's engine does by itself, in the book, a graph does in
# :doc:`/auto_gallery/graphs/plot_1_tasks_that_depend`.
#
# On this machine
# ---------------
# Two CPU lanes play the two parts, a short one and a long one, on one thread each. What runs when
# on two such lanes is drawn at the end of :doc:`plot_2_two_devices_at_once`.


def short_and_long(count, short_size, long_size):
    """The same function with one CPU lane for both parts, and with two."""
    x, u = ap.workload.matrix(short_size), ap.workload.matrix(long_size)
    with ap.cpu_lane() as one, ap.cpu_lane() as two:
        in_turn = {"one lane": lambda: on_lanes(x, u, count, one, one)}
        return ap.race(in_turn | {"two lanes": lambda: on_lanes(x, u, count, one, two)})


HERE = {"count": 10, "short_size": 384, "long_size": 512}
here = ap.observed(short_and_long, name="a short and a long part", parameters=HERE)
ap.show(ap.compare(here.measurements, highlight="two lanes"))

# %%
# Now you
# -------
# Double `cpu_size`. Predict which rows of the table grow, and what the limit is then.
#
# .. dropdown:: A hint
#
#     A product of twice the side has eight times the arithmetic.
#
# .. dropdown:: An answer
#
#     All rows grow but *GPU alone*. The limit is eight times what the CPU's part takes now.
#
#     .. code-block:: python
#
#         def doubled(count=2, size=128):
#             parts = [ap.workload.product_flops(side, count) for side in (size, 2 * size)]
#             return parts[1] / parts[0]
