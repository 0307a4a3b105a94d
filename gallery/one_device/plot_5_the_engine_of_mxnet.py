# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Get back what MXNet's engine does
=================================

| **You'll do:** give the same small products to MXNet, to PyTorch and to a graph, on two threads.
| **You'll learn:** what the engine of the chapter's first framework finds, and PyTorch doesn't.
| **You need:** 4 minutes, and neither a GPU nor MXNet: a record shows what it does. Before this:
  :doc:`plot_4_small_operators_on_a_cpu`. Next:
  :doc:`/auto_gallery/tools/plot_1_verify_with_nsight`.

The chapter was first written for MXNet, whose *engine* notes what each operator reads and writes,
and runs at once what it may. A graph of tasks gives this back to PyTorch.
"""

# %%
# PyTorch runs what it is told, in order
# --------------------------------------
# In the tempting loop no product needs another, but on a CPU PyTorch returns from each when it is
# done. So the next one can't begin earlier, whatever it needs.
#
# MXNet's calls look the same, and return at once. Each is noted with the arrays that it reads and
# those that it writes. The engine's workers are threads that take what waits for nothing any more,
# so two products run at the same time. Whoever reads a result has to wait for it.

import os

import torch

import autopar as ap


def loop(x, outs):
    for out in outs:
        torch.mm(x, x, out=out)


# %%
# Tasks that say what they write run at once
# ------------------------------------------
# The right way in PyTorch is a graph, here on two *lanes*, worker threads with a queue each.
# `writes` names what a task changes. All products read one matrix and write different ones, so none
# of them has to wait for another.


def as_graph(x, outs):
    graph = ap.TaskGraph(cpu_lanes=2)
    for out in outs:
        graph.add(torch.mm, x, x, out=out, writes=[out])
    return graph


# %%
# Each library measures in a process of its own, each product on a single thread. So a gain
# comes from products at the same time, and not from threads within one.

# Folded: the same products in MXNet
TORCH = ["PyTorch, loop", "PyTorch, graph on 2 lanes"]
MXNET = ["MXNet, 1 worker", "MXNet, 2 workers"]
PYTHON = "AUTOPAR_MXNET_PYTHON"  # names a Python that has MXNet 1.9.1


def by_mxnet(count, size, rounds):
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
    x, outs = ap.workload.matrix(size), [torch.zeros(size, size) for _ in range(count)]
    with as_graph(x, outs) as graph:
        graph.run()
        right = all(torch.equal(out, x.mm(x)) for out in outs)
        ways = {"loop": lambda: loop(x, outs), "graph": graph.run}
        in_loop, in_graph = ap.measure_in_turn(ways, warmup=1, repeats=rounds)
    return in_loop.values_s, in_graph.values_s, right


def engines(count, size, rounds):
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

# %%
# In the picture at the top, compare the two bars of each library, and each library with itself
# only, since they need not multiply by the same routine.

ap.plot.bars(there.measurements, title="400 products, by library")
ap.plot.show("x1_engines", look=there.measurements)

# %%
# The claims say by how much the second worker, and the second lane, make each library faster.

engine = there.estimate(lambda s: s[MXNET[0]] / s[MXNET[1]])
lanes = there.estimate(lambda s: s[TORCH[0]] / s[TORCH[1]])
ap.show(
    ap.claim("MXNet is faster with two workers than with one.", engine, at_least=1.3, unit="×"),
    ap.claim("A graph on two lanes is faster than PyTorch's loop.", lanes, at_least=1.3, unit="×"),
)

# %%
# When this does not help
# -----------------------
# Where each product fills all cores, neither gains anything. MXNet is retired, and its `last
# release <https://pypi.org/project/mxnet/1.9.1/>`_ needs an old Python.
# :doc:`/book_against_hardware` has the same times in a table, and
# :doc:`/auto_gallery/graphs/plot_1_tasks_that_depend` has tasks that do depend on each other.
#
# Now you
# -------
# Let each product add to one matrix, by `torch.addmm`. How many run at once then?
#
# .. dropdown:: A hint
#
#     What does each task write, and what does the next one read?
#
# .. dropdown:: An answer
#
#     One, as all write the same matrix.
#
#     .. code-block:: python
#
#         def in_a_chain(x=torch.eye(8), count=10):
#             graph, total = ap.TaskGraph(cpu_lanes=2), torch.zeros_like(x)
#             for _ in range(count):
#                 graph.add(torch.addmm, total, x, x, out=total, writes=[total])
#             graph.run()
#             return total
