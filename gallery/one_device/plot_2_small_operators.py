# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run small operators at once
===========================

| **You'll do:** exercise 2 of the `chapter
  <https://d2l.ai/chapter_computational-performance/auto-parallelism.html>`_: many small products on
  one GPU and on one CPU, in every way that may run several at once.
| **You'll learn:** up to which size parallelism pays on one device, and how to get it.
| **You need:** 8 minutes, and no GPU: what needs one is shown from a record. Read
  :doc:`plot_1_do_independent_products_run_at_once` first; :doc:`plot_3_cpu_gpu_and_the_bus` comes
  next.

A small operator leaves room on a GPU for others beside it. Launches from Python come too slowly to
fill this room, on one stream and on several. One launch for all operators fills it: a batch, if
they have one shape, or a CUDA graph with branches for any others. Small ones then take a fraction
of the time.
"""

# %%
# A launch for each product keeps the GPU waiting
# -----------------------------------------------
# The tempting way is the plain loop. Each call *launches* a kernel, which is a function that runs
# on the GPU. A launch takes the host some microseconds, whatever the kernel's size, and a small
# kernel takes less.

import os

import matplotlib.pyplot as plt
import torch

import autopar as ap


def one_by_one(batch):
    """One launch for each product."""
    return [x.mm(x) for x in batch]


# %%
# One launch for all fills the GPU
# --------------------------------
# The right way launches once. `bmm` multiplies a whole batch of matrices. A *CUDA graph* is work
# that was captured before and is launched as a whole, so the host is out of its way. `capture`
# records the tasks as one chain and on several *branches*, which may run at once, and keeps what is
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
# All ways were timed in the sweep of :doc:`plot_1_do_independent_products_run_at_once`. Look at the
# left end of the picture at the top. The curves of one stream and of several are flat and far above
# the others: there the launches take the time. To the right the arithmetic takes over, and all ways
# come together.

# Folded: the figure
gpu = ap.newest_record("x1_one_device")
counts = dict(gpu.parameters["work"])
figure, ax = plt.subplots(layout="constrained")
ways = ["one stream", "several streams", "a CUDA graph", "a batch"]
for way, marker in zip(ways, "os^D", strict=True):
    us = [1e6 * gpu.measurements[f"{n}, {way}"].median_s / count for n, count in counts.items()]
    ax.plot([*counts], us, marker=marker, label=way)
ax.set(xscale="log", yscale="log", xlabel="side of the matrices", ylabel="µs for a product")
ax.set_xticks([*counts], [str(size) for size in counts])
ax.minorticks_off()
ax.set_title("Small products want one launch for all")
ax.legend(fontsize="small")
figure.supxlabel(gpu.origin, fontsize=7)
ap.plot.show("x2_small_operators")

# %%
# A chain of the same graph saves the launches, too, but runs one product at a time. So the gain of
# branches over the chain is what running at once is worth. The larger the products, the less room
# each of them leaves, and the less branches gain.

SMALL = (64, 128, 256)


def gain(s, size):
    """What the best number of branches gains over one chain."""
    return s[f"{size}, 1 branches"] / min(s[f"{size}, {number} branches"] for number in (2, 4, 8))


branches = gpu.estimate(lambda s: min(gain(s, size) for size in SMALL))
batch = gpu.estimate(lambda s: min(s[f"{n}, one stream"] / s[f"{n}, a batch"] for n in SMALL))
nothing = gpu.estimate(lambda s: gain(s, 4000))
ap.show(
    ap.claim(
        "Up to 256 x 256, branches are faster than a chain.", branches, at_least=1.5, unit="×"
    ),
    ap.claim("A batch of those is three times as fast as a loop.", batch, at_least=3, unit="×"),
    ap.claim("Branches gain large products little.", nothing, at_most=1.2, unit="×"),
)

# %%
# On a CPU, one thread for each product
# -------------------------------------
# A CPU has the same problem in another form: all its threads work inside one operator, and a small
# one has too little to do for them. The other way is a graph with one *lane* for each hardware
# thread, that is a queue whose tasks run on a thread of its own.

# Folded: the measurement
CPU = [[64, 512], [128, 512], [192, 512], [256, 512], [384, 256], [512, 128], [768, 48]]
ONE, INSIDE, LANES = "one thread", "all threads for each", "lanes of one thread"


def multiply(x, outs):
    """A product into each; fresh memory would have to be cleared, and that be timed, too."""
    for out in outs:
        torch.mm(x, x, out=out)


def on_cpu(work):
    """Each size by one thread, by all threads for each product, and on lanes of one thread."""
    measurements, checks, lanes = [], {}, os.cpu_count() or 1
    with ap.cpu_lane(1) as one, ap.cpu_lane(torch.get_num_threads()) as every:
        for size, count in work:
            x, graph = ap.workload.matrix(size), ap.TaskGraph(cpu_lanes=lanes)
            outs = [torch.full((size, size), torch.nan) for _ in range(count)]
            for out in outs:
                graph.add(torch.mm, x, x, out=out, writes=[out])
            ways = {  # threads inside an operator stay awake after it: no lanes right behind them
                f"{size}, {LANES}": graph.run,
                f"{size}, {INSIDE}": lambda x=x, outs=outs: every.submit(multiply, x, outs).wait(),
                f"{size}, {ONE}": lambda x=x, outs=outs: one.submit(multiply, x, outs).wait(),
            }
            with graph:
                graph.run()
                product = one.submit(torch.mm, x, x).result()
                checks[f"{size}: equal"] = all(torch.equal(out, product) for out in outs)
                measurements += ap.measure_in_turn(ways, warmup=1, repeats=5)
    return ap.Findings(measurements, {}, checks)


# %%
# Look at the first rows: a product that small takes less time than to hand it over, so both ways
# lose. From there the lanes rise sooner, since each product stays on one thread. The other column
# follows later, where there is enough inside a product for all threads. The claim is of a size at
# which lanes beat the better one of the other two ways.

cpu = ap.recorded(on_cpu, name="x2_on_cpu", parameters={"work": CPU})  # side, and how many
rows = []
for size, _ in CPU:
    one, *more = (cpu.measurements[f"{size}, {way}"].median_s for way in (ONE, INSIDE, LANES))
    rows.append([f"{size} x {size}", *(f"{one / way:.2f} ×" for way in more)])
caption = f"Gain over one thread, on {cpu.hardware['cpu']}"
best = cpu.estimate(
    lambda s: max(min(s[f"{n}, {INSIDE}"], s[f"{n}, {ONE}"]) / s[f"{n}, {LANES}"] for n, _ in CPU)
)
ap.show(
    ap.tabulate(["matrices", INSIDE, LANES], rows, caption=caption, origin=cpu.origin),
    ap.claim("At some size lanes of one thread win.", best, at_least=1.2, unit="×"),
)

# %%
# MXNet, in which the chapter was first written, has such lanes built in, as workers of its engine.
# :doc:`/book_against_hardware` sets it beside PyTorch, with what the next cell measures: the same
# products by each library, in a process of its own with one thread for each product.

# Folded: the same products in MXNet
TORCH = ["PyTorch, loop", "PyTorch, graph on 2 lanes"]
MXNET = ["MXNet, 1 worker", "MXNet, 2 workers"]
PYTHON = "AUTOPAR_MXNET_PYTHON"  # names a Python that has MXNet 1.9.1


def by_mxnet(count, size, rounds):
    """Seconds for all products, queued to MXNet's engine, by round."""
    import time

    import numpy

    for name, kind in {"bool": bool, "int": int, "float": float, "object": object}.items():
        if name not in vars(numpy):  # names that MXNet uses, and NumPy since 1.24 lacks
            setattr(numpy, name, kind)
    import mxnet

    x = mxnet.nd.random.uniform(0, 1, (size, size))
    outs = [mxnet.nd.zeros((size, size)) for _ in range(count)]
    taken_s = []
    for _ in range(rounds + 1):
        mxnet.nd.waitall()
        start_s = time.perf_counter()
        for out in outs:
            mxnet.nd.dot(x, x, out=out)
        mxnet.nd.waitall()
        taken_s.append(time.perf_counter() - start_s)
    return taken_s[1:]


def by_torch(count, size, rounds):
    """The same in a loop, and as tasks of a graph with two lanes; whether the results are right."""
    import torch

    import autopar as ap

    x, outs = ap.workload.matrix(size), [torch.zeros(size, size) for _ in range(count)]

    def loop():
        for out in outs:
            torch.mm(x, x, out=out)

    with ap.TaskGraph(cpu_lanes=2) as graph:
        for out in outs:
            graph.add(torch.mm, x, x, out=out, writes=[out])
        graph.run()
        right = all(torch.equal(out, x.mm(x)) for out in outs)
        ways = {"loop": loop, "graph": graph.run}
        in_loop, in_graph = ap.measure_in_turn(ways, warmup=1, repeats=rounds)
    return in_loop.values_s, in_graph.values_s, right


def engines(count, size, rounds):
    """Both libraries, with one thread for each product."""
    work, one_thread = (count, size, rounds), {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    *taken_s, right = ap.in_fresh_process(by_torch, *work, environment=one_thread)
    for workers in (1, 2):
        variables = {**one_thread, "MXNET_CPU_WORKER_NTHREADS": f"{workers}"}
        python = os.environ[PYTHON]
        taken_s.append(ap.in_fresh_process(by_mxnet, *work, python=python, environment=variables))
    labelled = zip([*TORCH, *MXNET], taken_s, strict=True)
    measurements = [ap.Measurement(label, tuple(times_s)) for label, times_s in labelled]
    return ap.Findings(measurements, {}, {"the graph's results are right": right})


FOUR = {"count": 400, "size": 256, "rounds": 7}
there = ap.recorded(engines, name="x1_engines", parameters=FOUR, gpus=0, variables=[PYTHON])
engine = there.estimate(lambda s: s[MXNET[0]] / s[MXNET[1]])
lanes = there.estimate(lambda s: s[TORCH[0]] / s[TORCH[1]])
ap.show(
    ap.claim("MXNet is faster with two workers than with one.", engine, at_least=1.3, unit="×"),
    ap.claim("A graph on two lanes is faster than PyTorch's loop.", lanes, at_least=1.3, unit="×"),
)

# %%
# When this does not help
# -----------------------
# A batch needs operators of one shape, and a graph needs shapes that stay the same from replay to
# replay; PyTorch's page on `CUDA graphs
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs>`_ has the rules for captures.
# Neither helps operators that fill the device. For how small a task on lanes may be, see
# :doc:`/auto_gallery/graphs/plot_5_how_fine_may_tasks_be`.
#
# On this machine
# ---------------
# The lanes gain no more than there are cores, and where a product takes less time than to hand it
# over they lose. The *spread (IQR)* is how far the middle half of the samples lies apart.

here = ap.observed(on_cpu, name="small products here", parameters={"work": [[64, 64], [256, 32]]})
ap.show(ap.compare(here.measurements, caption="Products on this CPU, by side"))

# %%
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
