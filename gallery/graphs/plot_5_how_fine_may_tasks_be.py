# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
How fine may tasks be?
======================

| **You'll do:** cut the same work into finer and finer tasks, and give them to five schedulers.
| **You'll learn:** below which length a task costs more than it brings.
| **You need:** 6 minutes, and no GPU. Read :doc:`plot_1_tasks_that_depend` first;
  :doc:`/benchmarks` has all numbers, and the goals that the graph has for them.

More tasks give a scheduler more to run at the same time, but each has its price: it is queued, a
worker wakes for it, and somebody hears of its end. If its work takes no longer than that, the work
gets half of the CPU at most.
"""

# %%
# A task for many rows pays once
# ------------------------------
# The rows of a matrix don't depend on each other, so it is tempting to give each row a task. The
# right way differs in a number: a task has many rows.

import matplotlib.pyplot as plt
import torch

import autopar as ap


def add_tasks(graph, x, out, rows=1):
    for piece, result in zip(x.split(rows), out.split(rows), strict=True):
        graph.add(torch.digamma, piece, out=result, writes=[result])


# %%
# If the work of a task takes the time *t*, and the task costs the time *c* beside it, the CPU works
# for *t* / (*t* + *c*) of the time. That is half where *t* = *c*.
#
# Where is half?
# --------------
# Hundreds of tasks, each one operator, go to two workers by each scheduler: a task graph, Python's
# `concurrent.futures <https://docs.python.org/3/library/concurrent.futures.html>`__, TorchScript's
# `fork <https://docs.pytorch.org/docs/stable/generated/torch.jit.fork.html>`__, Dask and MXNet.
# They are held against a few large operators on as many elements. Bare threads, which each call
# half of the small operators, show what is lost without any scheduler.

# Folded: the measurement
import contextlib
import itertools
import os
import statistics
import threading
import time
from concurrent import futures

MXNET = "AUTOPAR_MXNET_PYTHON"  # names a Python that has MXNet 1.9.1
WORK = {"sizes_us": [1, 5, 10, 20, 50, 100, 200], "count": 400, "starts": 6, "rounds": 1}
OURS = {"schedulers": ["by_graph", "by_futures", "by_fork"], **WORK, "workers": 2}
DASK = {"schedulers": ["by_dask"], **WORK, "count": 200, "workers": 2}
ENGINE = {**WORK, "workers": 2}


def bare(x, outs, workers):  # seconds of threads, each with its part of the work from the start
    def work(part):
        ready.wait()
        for out in part:
            torch.digamma(x, out=out)

    ready = threading.Barrier(workers + 1)
    threads = [threading.Thread(target=work, args=(outs[i::workers],)) for i in range(workers)]
    for thread in threads:
        thread.start()
    start_s = time.perf_counter()
    ready.wait()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start_s


def by_graph(x, outs, workers, stack):
    graph = stack.enter_context(ap.TaskGraph(cpu_lanes=workers))
    for out in outs:
        graph.add(torch.digamma, x, out=out, writes=[out])
    return graph.run


def by_futures(x, outs, workers, stack):
    pool = stack.enter_context(futures.ThreadPoolExecutor(workers))
    return lambda: futures.wait([pool.submit(torch.digamma, x, out=out) for out in outs])


def by_fork(x, outs, workers, stack):  # TorchScript's own threads, without Python
    def task(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.digamma(x, out=out)

    def forked(x: torch.Tensor, outs: list[torch.Tensor]) -> None:
        for future in [torch.jit.fork(task, x, out) for out in outs]:
            torch.jit.wait(future)

    if torch.get_num_interop_threads() != workers:  # it can be set but once
        torch.set_num_interop_threads(workers)
    task = torch.jit.script(task)
    run = torch.jit.script(forked)
    return lambda: run(x, outs)


def by_dask(x, outs, workers, stack):  # its graph is made before the clock runs
    import dask

    tasks = [dask.delayed(torch.digamma)(x, out=dask.delayed(out, traverse=False)) for out in outs]
    return lambda: dask.compute(*tasks, scheduler="threads", num_workers=workers)


def paired(names, sizes_us, count, starts, rounds, workers):
    """By scheduler and size in µs: seconds by round of large operators, bare threads and it."""

    def seconds(fn):
        start_s = time.perf_counter()
        fn()
        return time.perf_counter() - start_s

    every = {"by_graph": by_graph, "by_futures": by_futures, "by_fork": by_fork, "by_dask": by_dask}
    torch.set_num_threads(1)
    large = 1 + torch.rand(20_000)
    digamma = [seconds(lambda: torch.digamma(large)) for _ in range(50)]
    element_s = statistics.median(digamma) / len(large)
    large_outs = [torch.zeros_like(large)] * workers
    taken = {name: {"sizes": {}, "equal": True} for name in names}
    for us, name in itertools.product(sizes_us, names):
        x, rows = 1 + torch.rand(max(1, round(1e-6 * us / element_s))), []
        share = count * len(x) / (workers * len(large))  # of large operators, for each worker
        calls = max(20, round(share))
        for _ in range(starts):
            outs = [torch.zeros_like(x) for _ in range(count)]
            with contextlib.ExitStack() as stack:
                run = every[name](x, outs, workers, stack)
                run()
                taken[name]["equal"] &= all(torch.equal(out, torch.digamma(x)) for out in outs)
                for _ in range(rounds):
                    large_s = bare(large, large_outs * calls, workers) * share / calls
                    rows.append((large_s, bare(x, outs, workers), seconds(run)))
        columns = zip(*rows, strict=True)
        taken[name]["sizes"][us] = dict(zip(("large", "bare", "run"), columns, strict=True))
    return taken


def by_mxnet(sizes_us, count, starts, rounds, workers):
    """The same by MXNet's engine, which has no digamma: gamma, against its own large operators."""
    import numpy

    for name, kind in {"bool": bool, "int": int, "float": float, "object": object}.items():
        if name not in vars(numpy):  # names that MXNet uses, and NumPy since 1.24 lacks
            setattr(numpy, name, kind)
    import mxnet

    def seconds(x, outs):
        mxnet.nd.waitall()
        start_s = time.perf_counter()
        for out in outs:
            mxnet.nd.gamma(x, out=out)
        mxnet.nd.waitall()
        return time.perf_counter() - start_s

    def memory(elements, count):
        x = mxnet.nd.random.uniform(1, 2, (elements,))
        return x, [mxnet.nd.zeros((elements,)) for _ in range(count)]

    size = 500_000  # one operator's way through the engine is little beside it
    large, large_outs = memory(size, workers)
    element_s = statistics.median(seconds(large, large_outs[:1]) for _ in range(50)) / size
    sizes, equal = {}, True
    for us in sizes_us:
        x, outs = memory(max(1, round(1e-6 * us / element_s)), count)
        share = count * x.size / (workers * size)
        calls, rows = max(20, round(share)), []
        seconds(x, outs)
        y = mxnet.nd.gamma(x).asnumpy()
        equal &= all((out.asnumpy() == y).all() for out in outs)
        for _ in range(starts * rounds):
            large_s = seconds(large, large_outs * calls) * share / calls
            rows.append((large_s, seconds(x, outs)))
        sizes[us] = dict(zip(("large", "run"), zip(*rows, strict=True), strict=True))
    return {"by_mxnet": {"sizes": sizes, "equal": bool(equal)}}


def findings(taken):
    measurements = [
        ap.Measurement(f"{name}, {us} us: {way}", taken_s)
        for name, scheduler in taken.items()
        for us, ways in scheduler["sizes"].items()
        for way, taken_s in ways.items()
    ]
    checks = {f"{name}: equal": scheduler["equal"] for name, scheduler in taken.items()}
    return ap.Findings(measurements, {}, checks)


def scheduled(schedulers, sizes_us, count, starts, rounds, workers):
    environment = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL")}
    arguments = schedulers, sizes_us, count, starts, rounds, workers
    return findings(ap.in_fresh_process(paired, *arguments, environment=environment))


def engine(sizes_us, count, starts, rounds, workers):
    environment = {"OMP_NUM_THREADS": "1", "MXNET_CPU_WORKER_NTHREADS": f"{workers}"}
    python, arguments = os.environ[MXNET], (sizes_us, count, starts, rounds, workers)
    return findings(
        ap.in_fresh_process(by_mxnet, *arguments, python=python, environment=environment)
    )


there = {"gpus": 0, "modules": ["dask"]}  # where all schedulers are, they are measured anew
fine = ap.recorded(scheduled, name="b7_task_sizes", parameters=OURS, **there)
dask = ap.recorded(scheduled, name="b7_dask", parameters=DASK, **there)
mxnet = ap.recorded(engine, name="b7_mxnet", parameters=ENGINE, gpus=0, variables=[MXNET])

# %%
# In the picture at the top, look at where a line leaves the grey area: finer tasks are too fine for
# its scheduler. This point is called METG, the *minimum effective task granularity* of `Task Bench
# <https://arxiv.org/abs/1908.05790>`__. The dotted line of the bare threads begins low, too: a
# thread calls an operator only while it holds Python's lock, the GIL, which TorchScript's and
# MXNet's workers don't need.


# Folded: the drawing
def share(seconds, task, way="run"):
    """Of the rate of large operators."""
    return seconds[f"{task} us: large"] / seconds[f"{task} us: {way}"]


sizes, (_, ax) = WORK["sizes_us"], plt.subplots(layout="constrained")
lines = {"task graph": (fine, "by_graph"), "concurrent.futures": (fine, "by_futures")}
lines |= {"torch.jit.fork": (fine, "by_fork"), "Dask, threaded": (dask, "by_dask")}
lines |= {"MXNet's engine": (mxnet, "by_mxnet"), "bare threads": (fine, "by_graph", "bare")}
styles = ["o-", "s-", "D-", "^-", "v-", "C7:"]
for (label, (record, name, *way)), style in zip(lines.items(), styles, strict=True):
    median_s = {task: one.median_s for task, one in record.measurements.items()}
    ax.plot(sizes, [share(median_s, f"{name}, {us}", *way) for us in sizes], style, label=label)
ax.axhspan(0, 0.5, color="0.5", alpha=0.15, linewidth=0)
ax.text(1, 0.53, "in grey it costs more\nthan it brings", fontsize="small")
ax.set(xscale="log", ylim=(0, 1.8), xlabel="work in a task, µs")
ax.set_title("How much of the CPU do tasks keep?")
ax.set_xticks(sizes, [f"{us}" for us in sizes], minor=False)
ax.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
ax.minorticks_off()
ax.legend(loc="upper left", fontsize="small", ncols=2)
ap.plot.show("b7_how_fine_may_tasks_be", fine.origin, dask.origin, mxnet.origin)

# %%
# The first claim is of the best of the three schedulers without Dask and MXNet, and bare threads.

names = OURS["schedulers"]
finest = fine.estimate(
    lambda s: max(share(s, f"{name}, 1", way) for name in names for way in ("run", "bare"))
)
coarse = fine.estimate(lambda s: share(s, "by_graph, 200"))
ap.show(
    ap.claim("Tasks of 1 µs keep at most half of the CPU.", finest, at_most=0.5, unit="%"),
    ap.claim("A graph keeps most of the CPU at 200 µs.", coarse, at_least=0.6, unit="%"),
)

# %%
# When this does not help
# -----------------------
# One task for all leaves the other workers idle, so some dozens of tasks for each worker are a good
# number. Where tasks depend on each other, a large one keeps more of them waiting. On a GPU there
# is another way out: :doc:`/auto_gallery/one_device/plot_2_small_operators`.
#
# On this machine
# ---------------
# Compare the row in bold with the one above it. The *spread (IQR)* is how far the middle half of
# the samples lies apart.


def rows_in_tasks(count, elements, rows):
    """A task for each row, and a task for many."""
    x = 1 + torch.rand(count, elements)
    out = torch.empty_like(x)
    with ap.TaskGraph(cpu_lanes=2) as each_row, ap.TaskGraph(cpu_lanes=2) as many_rows:
        add_tasks(each_row, x, out)
        add_tasks(many_rows, x, out, rows)
        ways = {"a task for each row": lambda: (each_row.run(), out)[1]}
        ways["a task for many rows"] = lambda: (many_rows.run(), out)[1]
        return ap.race(ways, reset=lambda: out.fill_(torch.nan))


MATRIX = {"count": 2000, "elements": 200, "rows": 100}
here = ap.observed(rows_in_tasks, name="rows in tasks", parameters=MATRIX)
ap.show(ap.compare(here.measurements, highlight="a task for many rows"))

# %%
# Now you
# -------
# A row takes 20 µs, and a task costs 10 µs. How many rows must a task have to keep nine tenths of
# the CPU?
#
# .. dropdown:: A hint
#
#     Put the time of the whole task for *t* into *t* / (*t* + *c*).
#
# .. dropdown:: An answer
#
#     Nine tenths are kept where *t* is nine times *c*, so with five rows.
#
#     .. code-block:: python
#
#         import math
#
#
#         def rows_of_a_task(row_us=20, cost_us=10, keep=0.9):
#             return math.ceil(keep / (1 - keep) * cost_us / row_us)
