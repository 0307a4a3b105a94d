# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
How fine may tasks be?
======================

| **You'll do:** cut the same work into finer and finer tasks, and give them to two threads.
| **You'll learn:** below which length a task costs more than it brings.
| **You need:** 5 minutes, and no GPU: the part for many cores is shown from a record. Before this:
  :doc:`plot_1_tasks_that_depend`. Next: :doc:`plot_6_run_whole_models`. Goals: :doc:`/benchmarks`.

More tasks give a scheduler more to run at the same time, but each has its price: it is queued, a
worker wakes for it, and somebody hears of its end. If its work takes no longer than that, the work
gets half of the CPU at most.
"""

# %%
# A task for many rows pays once
# ------------------------------
# The rows of a matrix don't depend on each other, so it is tempting to give each row a task. The
# right way differs in a number: a task has many rows.

import contextlib
from concurrent import futures

import matplotlib.pyplot as plt
import numpy as np
import torch

import autopar as ap


def add_tasks(graph, x, out, rows=1):
    for piece, result in zip(x.split(rows), out.split(rows), strict=True):
        graph.add(torch.digamma, piece, out=result, writes=[result])


# %%
# If the work of a task takes the time *t*, and the task costs the time *c* beside it, the CPU works
# for *t* / (*t* + *c*) of the time. That is half where *t* = *c*.
#
# Tasks of some tens of microseconds keep half of the CPU
# -------------------------------------------------------
# Two threads share out the same rows, in pieces of 200 rows down to a single one. A piece is a task
# of a graph, or of Python's own `concurrent.futures
# <https://docs.python.org/3/library/concurrent.futures.html>`__. Bare threads, which call all
# pieces of their half in a loop, show what is lost without any scheduler.

# Folded: the measurement
FINE = {"count": 8000, "elements": 100, "rows": [200, 100, 50, 20, 10, 5, 1], "repeats": 9}
BARE, GRAPH, FUTURES = "bare threads", "task graph", "concurrent.futures"


def call_each(pieces):
    for x, out in pieces:
        torch.digamma(x, out=out)


def task_sizes(count, elements, rows, repeats):
    """The same rows in finer and finer pieces, by two threads in three ways."""
    x = 1 + torch.rand(count, elements)
    out, runs = torch.empty_like(x), {}
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(futures.ThreadPoolExecutor(2))
        for n in rows:
            graph = stack.enter_context(ap.TaskGraph(cpu_lanes=2))
            add_tasks(graph, x, out, n)
            pieces = list(zip(x.split(n), out.split(n), strict=True))
            halves, single = (pieces[::2], pieces[1::2]), [[piece] for piece in pieces]
            runs[f"{BARE}, pieces of {n}"] = lambda of=halves: list(pool.map(call_each, of))
            runs[f"{GRAPH}, pieces of {n}"] = graph.run
            runs[f"{FUTURES}, pieces of {n}"] = lambda of=single: list(pool.map(call_each, of))
        ways = {label: lambda run=run: (run(), out)[1] for label, run in runs.items()}
        return ap.race(ways, reset=lambda: out.fill_(torch.nan), repeats=repeats)


# %%
# In the picture at the top, look at where a line leaves the grey area: finer tasks are too fine for
# this scheduler. There work and cost take twice the work. That whole time is the METG of
# `Task Bench <https://arxiv.org/abs/1908.05790>`__, the *minimum effective task granularity*: about
# twice the legend's figure. Bare threads lose, too: each call needs the *GIL*, the lock of Python
# that one thread holds at a time. A pale band holds the middle half of the runs.

# Folded: the drawing
fine = ap.recorded(task_sizes, name="b7_task_sizes", parameters=FINE, gpus=0, threads=8)
ROWS, largest = FINE["rows"][::-1], f"{BARE}, pieces of {FINE['rows'][0]}"
row_us = 1e6 * 2 * fine.measurements[largest].median_s / FINE["count"]  # two threads share the rows


def kept(s, way):  # of the rate that bare threads have with the largest pieces
    return [s[largest] / s[f"{way}, pieces of {n}"] for n in ROWS]


def half_kept_us(s, way):  # the work of a task, where the line first comes up to a half
    shares = np.maximum.accumulate(kept(s, way))
    return row_us * np.exp(np.interp(0.5, shares, np.log(ROWS)))


_, ax = plt.subplots(layout="constrained")
median_s = {label: one.median_s for label, one in fine.measurements.items()}
for way, style in ((BARE, ":"), (GRAPH, "o-"), (FUTURES, "s-")):
    work_us, label = row_us * np.array(ROWS), f"half at {half_kept_us(median_s, way):.2g} µs"
    ax.plot(work_us, kept(median_s, way), style, label=f"{way}: {label}")
    each_s = [fine.measurements[f"{way}, pieces of {n}"].values_s for n in ROWS]
    ends = median_s[largest] / np.quantile(each_s, [0.75, 0.25], axis=1)
    ax.fill_between(work_us, *ends, alpha=0.15, linewidth=0)
ax.axhspan(0, 0.5, color="0.5", alpha=0.15, linewidth=0)
ax.text(0.98, 0.03, "in grey a task costs\nmore than it brings", transform=ax.transAxes, ha="right")
ax.set(xscale="log", ylim=(0, 1.3), xlabel="work in a task, µs")
ax.set_title("How much of the CPU do tasks keep?")
ax.set_xticks([1, 10, 100], ["1", "10", "100"])
ax.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
ax.legend(loc="upper left", fontsize="small")
both = ", ".join(f"{way!r} {half_kept_us(median_s, way):.2g} µs" for way in (GRAPH, FUTURES))
ap.plot.show("b7_how_fine_may_tasks_be", fine.origin, look=f"Look at where half is kept: {both}.")

# %%
# The share that is kept is compared with bare threads and pieces of 200 rows. The second claim is
# of the better scheduler, the third of the graph. Where a line falls again at the right end, the
# cost of a task does not explain it.
half = fine.estimate(lambda s: half_kept_us(s, GRAPH))
finest = fine.estimate(lambda s: max(kept(s, way)[0] for way in (GRAPH, FUTURES)))
coarse = fine.estimate(lambda s: kept(s, GRAPH)[-1])
ap.show(
    ap.claim("A graph keeps half with tasks of at most 100 µs.", half, at_most=100, unit="µs"),
    ap.claim("Tasks of one row keep at most half of the CPU.", finest, at_most=0.5, unit="%"),
    ap.claim("With 200 rows a task a graph keeps over half.", coarse, at_least=0.6, unit="%"),
)

# %%
# When this does not help
# -----------------------
# One task for all leaves the other workers idle, so take more tasks than workers. Where tasks
# depend on each other, a large one keeps more of them waiting. On a GPU there is another way out:
# :doc:`/auto_gallery/one_device/plot_2_small_operators`.
#
# On this machine
# ---------------
HERE = FINE | {"count": 2000, "rows": [100, 1]}
here = ap.observed(task_sizes, name="rows in tasks", parameters=HERE).measurements
ways = [here[f"{way}, pieces of {n}"] for way in (GRAPH, FUTURES) for n in (1, 100)]
ap.show(ap.compare(ways, baseline=ways[0].label, highlight=ways[1].label))

# %%
# Now you
# -------
# A row takes 20 µs, and a task costs 10 µs. How many rows must a task have to keep nine tenths of
# the CPU?
#
# .. dropdown:: A hint
#
#     Put the time of a task's rows for *t* into *t* / (*t* + *c*).
#
# .. dropdown:: An answer
#
#     Nine tenths are kept where *t* is nine times *c*, so with 4.5 rows, or five.
#
#     .. code-block:: python
#
#         def rows_of_a_task(row_us=20, cost_us=10, keep=0.9):
#             return keep / (1 - keep) * cost_us / row_us
