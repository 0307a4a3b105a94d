# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Watch the front end return first
================================

| **You'll do:** time the same 50 matrix products three times: until the calls return, until a bare
  wait returns, and until the results are there.
| **You'll learn:** what a clock around GPU code measures, and what `synchronize` waits for.
| **You need:** 6 minutes, and no GPU: the part for two GPUs is shown from a record. This is the
  first page. Next: :doc:`plot_2_two_devices_at_once`.

A call of PyTorch's for a GPU only puts work into a queue. It returns long before the work is done,
so a clock that stops then has timed the queueing. The usual cure, `torch.cuda.synchronize()`, has
a trap of its own: it waits for one GPU, which need not be the one that works.
"""

# %%
# The calls return first
# ----------------------
# PyTorch's *front end* is its functions in Python. They call its *back end*, which launches a
# *kernel*, the program that the GPU runs, in some microseconds, however large the product.
import torch

import autopar as ap

BOOK = {"count": 50, "size": 4000}
ISSUED, BARE, DONE = "until the calls return", "until a bare wait returns", "until done"


def issue(x, u, count):
    with ap.annotate("issue"):
        return [a.mm(a) for _ in range(count // 2) for a in (x, u)][-2:]


# %%
# A clock around `issue` stops at the end of the narrow bar in the picture at the top, and products
# go on. The profiler that drew the bar slows each launch, so the time in the table is shorter.
#
# A bare wait may wait for nothing
# --------------------------------
# `Dive into Deep Learning <https://D2L.ai>`_, the book behind these pages, stops its clock after
# :func:`torch.cuda.synchronize`. This waits for the *current* GPU, usually GPU 0.
def issue_and_wait_bare(x, u, count):
    results = issue(x, u, count)
    torch.cuda.synchronize()
    return results


# %%
# With the work on GPU 1 there is nothing to wait for. The right wait names what it waits for.
def issue_and_wait(x, u, count):
    results = issue(x, u, count)
    with ap.annotate("wait"):
        ap.synchronize(x.device)
    return results


# %%
# Look at the narrow bar in :timeline:`until done`: the host has launched all products in it, and
# then only waits.
#
# `race` compares what each way returns with the products by the CPU, then times them in turn. With
# `devices=()` it waits for no device itself.


def three_clocks(count, size):
    x, u = (ap.workload.matrix(size, ap.gpu(1), seed=seed) for seed in (0, 1))
    ways = {
        ISSUED: lambda: issue(x, u, count),
        BARE: lambda: issue_and_wait_bare(x, u, count),
        DONE: lambda: issue_and_wait(x, u, count),
    }
    expected = [a.cpu() @ a.cpu() for a in (x, u)]
    with torch.cuda.device(0):  # not the one that works
        return ap.race(
            ways, expected=expected, close=dict.fromkeys(ways, 1e-5), see=[DONE], devices=()
        )


# %%
gpus = ap.recorded(three_clocks, name="e0_the_front_end_returns_first", parameters=BOOK, gpus=2)
timeline = gpus.timelines[DONE]
issued_ms = 1e3 * max(s.end_s - timeline.start_s for s in timeline.spans if s.name == "issue")
caption = f"Look at issue, the narrow bar at the left: it ends after {issued_ms:.1f} ms."
title = "The host issues; the GPU computes"
ap.show_timelines({DONE: timeline}, "e0_the_front_end_returns_first", title=title, caption=caption)

# %%
# Here is that bar on a scale of its own, beside the first kernel.
end_s = min(span.end_s for span in timeline.spans if span.kind == "compute")
early = timeline.between(timeline.start_s, end_s)
caption = f"Look at the ends: issue {issued_ms:.1f} ms, kernel {1e3 * early.makespan_s:.1f} ms."
ap.show(ap.draw(early, title="The first kernel's time", caption=caption))

# %%
# What the three clocks say
# -------------------------
# *Kernels* is how long they ran in the timeline, which is one of the last row.

busy = {"limit_s": {DONE: timeline.busy_s("compute")}, "limit_name": "kernels"}
ap.show(ap.compare(gpus.measurements, highlight=[ISSUED, BARE], **busy))

# %%
# Compare the rows in bold with the last: both clocks stop after a small share of the time. Which of
# the two is the shorter one is chance, as the bare wait has nothing to wait for.

issued, bare = (gpus.estimate(lambda s, way=way: s[way] / s[DONE]) for way in (ISSUED, BARE))
ap.show(
    ap.claim("The calls return long before the work is done.", issued, at_most=0.1, unit="%"),
    ap.claim("A bare wait does not wait for GPU 1.", bare, at_most=0.1, unit="%"),
)

# %%
# When this does not help
# -----------------------
# That calls return first pays when the host has something else to launch, as in
# :doc:`plot_2_two_devices_at_once`. Once the queue is full, the next launch waits for the GPU. The
# `book's section on asynchronous computation
# <https://d2l.ai/chapter_computational-performance/async-computation.html>`_ has more on it.
#
# On this machine
# ---------------
# A CPU operator returns when it is done. A *lane* is a queue with a worker thread. The clock of the
# row *submit* waits for nothing, and stops long before the lane is done.


def operators_and_lane(count, size):
    x, run = ap.workload.matrix(size), ap.workload.products
    with ap.cpu_lane(torch.get_num_threads(), name="CPU lane") as lane:
        ways = {"operators": lambda: run(x, count), "lane": lambda: lane.submit(run, x, count)}
        findings = ap.race(ways)
        given = {"label": "submit", "setup": lane.wait, "devices": ()}
        submit = ap.measure(lambda: lane.submit(run, x, count), **given)
    return ap.Findings([*findings.measurements, submit], checks=findings.checks)


here = ap.observed(operators_and_lane, name="CPU and lane", parameters={"count": 10, "size": 512})
ap.show(ap.compare(here.measurements, highlight="submit"))

# %%
# Now you
# -------
# Time products of sizes 64 to 4000 on a GPU. From which on does one take longer than its launch?
#
# .. dropdown:: A hint
#
#     A loop can't go faster than its launches. Where is one product shorter than one launch?
#
# .. dropdown:: An answer
#
#     One does from the size on where *done* begins to grow and *issued* does not. On a CPU both are
#     nearly the same, as a product's call returns when it is done.
#
#     .. code-block:: python
#
#         def one_product(device=ap.try_gpu(0), sizes=(64, 256, 1024, 4000)):
#             for size in sizes:
#                 x = ap.workload.matrix(size, device)
#                 for label, devices in (("issued", ()), ("done", [device])):
#                     print(ap.measure(lambda: x.mm(x), label=f"{label}, {size}", devices=devices))
