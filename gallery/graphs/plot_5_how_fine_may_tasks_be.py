# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
How fine may tasks be?
======================

| **You'll do:** the same work cut into finer and finer tasks, by five schedulers.
| **You'll learn:** what a task costs beside its work, and at which size half of the CPU is lost.
| **You need:** nothing but this page; where Dask or MXNet is missing, it shows their records.

**The claim.** What a task costs its scheduler decides how fine tasks may be: of tasks of 1 us each
loses more than half of the CPU, bare threads that schedule nothing among them. With tasks of 200 us
a task graph keeps three fifths of it at least.
"""

# %%
# The work
# --------
# A task is one operator on its own part of memory, and depends on nothing: whatever a scheduler
# loses here, it loses by itself. Bare threads, each with its half of the tasks, are the probe: what
# two cores can do at most, with Python's own cost of a call.

import itertools
import math
import os

import matplotlib.pyplot as plt

import autopar as ap

MXNET = "AUTOPAR_MXNET_PYTHON"  # names a Python that has MXNet 1.9.1
WORK = {"sizes_us": [1, 5, 10, 20, 50, 100, 200], "count": 400, "starts": 6, "rounds": 1}
HERE = {"sizes_us": [1, 10, 100, 200], "count": 200, "starts": 3, "rounds": 1}
WORKERS = 2
FINE_US, COARSE_US, HALF = 100, 200, 0.5
NAMES = {
    "by_graph": "task graph",
    "by_futures": "concurrent.futures",
    "by_fork": "torch.jit.fork",
    "by_dask": "Dask, threaded",
    "by_mxnet": "MXNet's engine",
}


def bare(x, outs, workers):
    """Seconds that threads take, each with its part of the work from the start."""
    import threading
    import time

    import torch

    def work(own):
        ready.wait()
        for out in own:
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


# %%
# Four schedulers from Python. Each gets all tasks at once, and two workers.


def by_graph(x, outs, workers, stack):
    """A task graph on CPU lanes."""
    import torch

    import autopar as ap

    graph = ap.TaskGraph(cpu_lanes=workers)
    for out in outs:
        graph.add(torch.digamma, x, out=out, writes=[out])
    stack.enter_context(graph)
    return graph.run


def by_futures(x, outs, workers, stack):
    """concurrent.futures: a queue that the workers share."""
    from concurrent.futures import ThreadPoolExecutor, wait

    import torch

    pool = stack.enter_context(ThreadPoolExecutor(workers))
    return lambda: wait([pool.submit(torch.digamma, x, out=out) for out in outs])


def by_fork(x, outs, workers, stack):
    """TorchScript's own threads, without Python."""
    import torch

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


def by_dask(x, outs, workers, stack):
    """Dask's threaded scheduler; its graph is made before the clock runs."""
    import dask
    import torch

    tasks = [dask.delayed(torch.digamma)(x, out=dask.delayed(out, traverse=False)) for out in outs]
    return lambda: dask.compute(*tasks, scheduler="threads", num_workers=workers)


# %%
# They run in a process of their own, in which operators take one thread. How many elements take
# so many microseconds is measured first. In every round bare threads do as many elements by a few
# large operators, then the same tasks, and then it is the scheduler's turn. All are started anew a
# few times, as threads that meet on one core are slow whoever schedules them.


SCHEDULERS = {run.__name__: run for run in (by_graph, by_futures, by_fork, by_dask)}


def paired(schedulers, sizes_us, count, starts, rounds, workers):
    """By scheduler and size in us: seconds by round of large operators, bare threads and it."""
    import contextlib
    import itertools
    import statistics
    import time

    import torch

    def seconds(fn):
        start_s = time.perf_counter()
        fn()
        return time.perf_counter() - start_s

    torch.set_num_threads(1)
    large = 1 + torch.rand(20_000)
    digamma = [seconds(lambda: torch.digamma(large)) for _ in range(50)]
    element_s = statistics.median(digamma) / len(large)
    large_outs = [torch.zeros_like(large)] * workers
    found = {scheduler: {"sizes": {}, "equal": True} for scheduler in schedulers}
    for us, (scheduler, its) in itertools.product(sizes_us, found.items()):
        x = 1 + torch.rand(max(1, round(1e-6 * us / element_s)))
        share = count * len(x) / (workers * len(large))  # of large operators, for each worker
        calls = max(20, round(share))
        y, rows = torch.digamma(x), []
        for _ in range(starts):
            outs = [torch.zeros_like(x) for _ in range(count)]
            with contextlib.ExitStack() as stack:
                run = SCHEDULERS[scheduler](x, outs, workers, stack)
                run()
                its["equal"] &= all(torch.equal(out, y) for out in outs)
                for _ in range(rounds):
                    large_s = bare(large, large_outs * calls, workers) * share / calls
                    rows.append((large_s, bare(x, outs, workers), seconds(run)))
        its["sizes"][us] = dict(zip(("large", "bare", "run"), zip(*rows, strict=True), strict=True))
    return found


# %%
# MXNet has no digamma, so its engine gets another function, and is timed against its own large
# operators.


def by_mxnet(sizes_us, count, starts, rounds, workers):
    """The same by MXNet's engine."""
    import statistics
    import time

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


# %%
# Those that torch brings along, and the two that have to be installed:

SCHEDULERS = {each.__name__: each for each in (by_graph, by_futures, by_fork, by_dask)}


def findings(found):
    """What a process returns, as measurements and checks."""
    measurements = [
        ap.Measurement(f"{name}, {us} us: {way}", taken_s)
        for name, each in found.items()
        for us, ways in each["sizes"].items()
        for way, taken_s in ways.items()
    ]
    checks = {f"{name}: equal": each["equal"] for name, each in found.items()}
    return ap.Findings(measurements, {}, checks)


def scheduled(schedulers, sizes_us, count, starts, rounds, workers):
    """Some schedulers from Python, in one process."""
    uses = (bare, *(SCHEDULERS[name] for name in schedulers))
    environment = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL")}
    arguments = schedulers, sizes_us, count, starts, rounds, workers
    return findings(ap.in_fresh_process(paired, *arguments, uses=uses, environment=environment))


def engine(sizes_us, count, starts, rounds, workers):
    """MXNet's engine, by a Python that has it."""
    environment = {"OMP_NUM_THREADS": "1", "MXNET_CPU_WORKER_NTHREADS": f"{workers}"}
    python, arguments = os.environ[MXNET], (sizes_us, count, starts, rounds, workers)
    return findings(
        ap.in_fresh_process(by_mxnet, *arguments, python=python, environment=environment)
    )


# %%
# Predict
# -------
# Say that a task costs its scheduler the time c. Then tasks of the time t reach t / (t + c) of what
# can be had, and half of it where t = c. Counted with its cost, such a task takes 2 c: this is the
# METG, the minimum effective task granularity, of `Task Bench <https://arxiv.org/abs/1908.05790>`__.
# What c is, the smallest tasks tell, which are nearly nothing else.
#
# The experiment
# --------------
# A time here is the median of the rounds. A share is the time of large operators over that of the
# tasks, and for tasks of 100 us also that of bare threads for the same calls. Both are probes, no
# limits: neither is the best that the machine can do, and a scheduler can come out above 100 % of
# them.


class Scheduler:
    """What a record says of a scheduler: by size, what a task takes, and shares of two probes."""

    def __init__(self, record, name):
        def task_s(us, way):
            return record.measurements[f"{name}, {us} us: {way}"].median_s / tasks

        tasks = record.parameters["count"] / record.parameters["workers"]
        self.origin = record.origin
        self.sizes_us = record.parameters["sizes_us"]
        self.takes_s = [task_s(us, "run") for us in self.sizes_us]
        self.shares = [task_s(us, "large") / task_s(us, "run") for us in self.sizes_us]
        bare = f"{name}, {FINE_US} us: bare" in record.measurements
        self.of_bare = task_s(FINE_US, "bare") / task_s(FINE_US, "run") if bare else None
        self.cost_s = self.takes_s[0] * (1 - self.shares[0])

    def metg_s(self):
        """What a task takes where half is reached; straight on logarithmic scales between sizes."""
        for low, high in itertools.pairwise(zip(self.takes_s, self.shares, strict=True)):
            if low[1] < HALF <= high[1]:
                part = math.log(HALF / low[1]) / math.log(high[1] / low[1])
                return low[0] * (high[0] / low[0]) ** part
        return math.inf if self.shares[-1] < HALF else self.takes_s[0]


def seen(*records):
    """Each scheduler, by its name."""
    names = {label.split(",")[0]: one for one in records for label in one.measurements}
    return {name: Scheduler(one, name) for name, one in names.items()}


def microseconds(seconds):
    """A time as text; `-` for one that nothing tells."""
    return f"{1e6 * seconds:.1f} us" if math.isfinite(seconds) else "-"


def table(schedulers, caption):
    """All schedulers, the prediction beside what was measured."""
    rows = []
    for name, each in schedulers.items():
        times = [microseconds(s) for s in (each.cost_s, 2 * each.cost_s, each.metg_s())]
        if math.isinf(each.metg_s()):
            times[-1] = f"over {each.sizes_us[-1]} us"
        guess = FINE_US / (FINE_US + 1e6 * each.cost_s)
        reached = each.shares[each.sizes_us.index(FINE_US)]
        bare = "-" if each.of_bare is None else f"{each.of_bare:.1%}"
        rows.append([NAMES[name], *times, f"{guess:.1%}", f"{reached:.1%}", bare])
    at = f"{FINE_US} us"
    headers = ["scheduler", "c", "METG: 2 c", "METG", f"{at}: t / (t + c)"]
    headers += [f"{at}, of large operators", f"{at}, of bare threads"]
    origins = [each.origin for each in schedulers.values()]
    return ap.tabulate(headers, rows, caption=caption, origin=origins)


work = {**WORK, "workers": WORKERS}
own = {"schedulers": ["by_graph", "by_futures", "by_fork"], **work}
there = {"gpus": 0, "modules": ["dask"]}  # where all schedulers are, they are measured anew
fine = ap.recorded(scheduled, name="b7_task_sizes", parameters=own, **there)
slow = {"schedulers": ["by_dask"], **work, "count": 200}
dask = ap.recorded(scheduled, name="b7_dask", parameters=slow, **there)
mxnet = ap.recorded(engine, name="b7_mxnet", parameters=work, gpus=0, variables=[MXNET])
schedulers = seen(fine, dask, mxnet)
ap.show(table(schedulers, "Hundreds of tasks that depend on nothing"))

# %%
# Tasks of 1 us suffer most from each other, as their workers ask for Python's lock all the time. So
# c, which they tell, predicts larger tasks only roughly.


def share(seconds, name, us, way="run"):
    """Of the rate of large operators."""
    return seconds[f"{name}, {us} us: large"] / seconds[f"{name}, {us} us: {way}"]


def best_at_1_us(seconds):
    """The best of the three schedulers, and bare threads."""
    return max(
        share(seconds, name, 1, way) for name in own["schedulers"] for way in ("run", "bare")
    )


finest = fine.estimate(best_at_1_us)
coarse = fine.estimate(lambda s: share(s, "by_graph", COARSE_US))
ap.show(
    ap.claim(
        "With tasks of 1 us bare threads and what torch brings along lose over half of the CPU.",
        finest,
        at_most=0.5,
        unit="%",
    ),
    ap.claim(
        f"With tasks of {COARSE_US} us a task graph keeps three fifths of the CPU at least.",
        coarse,
        at_least=0.6,
        unit="%",
    ),
)

# %%
# What the graph itself costs is a benchmark of it. Neighbours on the machine make it worse.

graph = schedulers["by_graph"]
rows = [
    (f"graph at {FINE_US} us, of bare threads", graph.of_bare, "at least", 0.95, "{:.1%}".format),
    ("its METG", graph.metg_s(), "at most", 25e-6, microseconds),
]
ap.show(ap.against_goals(rows, origin=fine.origin))

# %%
# See it
# ------
# What each reaches of the rate of large operators. To call an operator takes Python's lock, and a
# thread that finds it taken sleeps. TorchScript's and MXNet's workers don't need it.
#
# Over 100 % no scheduler is ahead of its machine: the probe was not the best there is. MXNet does
# some tasks faster than its large operators. And bare threads have their halves from the start, so
# the slower core decides; workers that take what is left, as TorchScript's do, can pass them.

figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for (name, each), marker in zip(schedulers.items(), "osD^v", strict=True):
    ax.plot(each.sizes_us, each.shares, marker=marker, label=NAMES[name])
ax.axhline(HALF, linestyle=":", color="0.4")
ax.set(xscale="log", xlabel="us that a task needs", ylabel="of large operators", ylim=(0, None))
ax.set_xticks(WORK["sizes_us"], [str(us) for us in WORK["sizes_us"]])
ax.minorticks_off()
ax.legend(fontsize="small")
origins = dict.fromkeys(each.origin for each in schedulers.values())
figure.suptitle("\n".join(origins), fontsize=7)
ap.plot.show("b7_how_fine_may_tasks_be")

# %%
# On this machine
# ---------------
# Fewer tasks and sizes, without MXNet and Dask. Where two workers share one core, shares say less.

small = {"schedulers": own["schedulers"], **HERE, "workers": WORKERS}
live = fine if fine.live else ap.observed(scheduled, name="task sizes here", parameters=small)
count = live.parameters["count"]
ap.show(table(seen(live), f"{count} tasks that depend on nothing, here"))

# %%
# When this does not help
# -----------------------
# Tasks of a few microseconds are too fine for every scheduler here, and for bare threads: make
# fewer of them, each a batch. A task of many small operators takes Python's lock for each of them,
# whoever schedules it. And the graph's plan is made before it runs: where something else slows a
# core, its lane keeps its tasks all the same.
#
# Now you
# -------
# Let each task depend on the one 2 before it, so that there are two chains: what changes for the
# graph, and why would the futures need another way to wait? Then give all of them four workers.
