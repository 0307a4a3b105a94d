# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Keep two devices busy at once
=============================

| **You'll do:** the chapter's first experiment: 50 matrix products on each of two GPUs, with a wait
  in between, and with a single wait at the end.
| **You'll learn:** why two GPUs run at the same time, and what stops them.
| **You need:** 6 minutes, and no GPU: the part for two GPUs is shown from a record. Before this:
  :doc:`plot_1_the_front_end_returns_first`. Next: :doc:`plot_3_cpu_and_gpu`.

Work for two GPUs takes as long as the longer of the two alone, if nothing waits in between. One
wait at the wrong place doubles the time, and the results of the program don't show it.
"""

# %%
# One wait in between stops the second GPU
# ----------------------------------------
# The careful way is to compute on GPU 0, wait until it is done, and go on with GPU 1. The wait need
# not be called `synchronize`: `print`, `.item()` and `.cpu()` of a result wait as well.
import autopar as ap

BOOK = {"count": 50, "size": 4000}
ALONE, WAIT, NONE = ["GPU 0 alone", "GPU 1 alone"], "a wait in between", "one wait at the end"


def wait_in_between(x, u, count):
    """Products on one GPU, a wait, and products on the other, as a list of both."""
    y = ap.workload.products(x, count)
    ap.synchronize(x.device)
    return y + ap.workload.products(u, count)


# %%
# Look at GPU 1 in :timeline:`a wait in between`: it begins where GPU 0 ends. While the host waits
# it launches nothing, so the queue of GPU 1 stays empty.
#
# Without it both compute
# -----------------------
# The right way leaves out one line. A launch returns before its kernel has run, so the host fills
# the queue of GPU 1 while GPU 0 computes, and waits for both when it needs the results.


def wait_at_the_end(x, u, count):
    """Products on both GPUs; the caller waits for the results."""
    return ap.workload.products(x, count) + ap.workload.products(u, count)


# %%
# In :timeline:`one wait at the end` GPU 1 begins a moment after GPU 0, once the host has launched
# the first 50.
#
# `race` compares the results of both ways, bit by bit, times them beside each GPU alone, and takes
# their timelines.


def two_gpus(count, size):
    """Both ways, and their parts."""
    x, u = (ap.workload.matrix(size, ap.gpu(number), seed=number) for number in (0, 1))
    run, flops = ap.workload.products, ap.workload.product_flops(size, count)
    ways = {
        WAIT: lambda: wait_in_between(x, u, count),
        NONE: lambda: wait_at_the_end(x, u, count),
    }
    parts = {ALONE[0]: lambda: run(x, count), ALONE[1]: lambda: run(u, count)}
    rates = {**dict.fromkeys(parts, flops), **dict.fromkeys(ways, 2 * flops)}
    return ap.race(ways, parts=parts, see=[WAIT, NONE], flops=rates)


# %%
# Here are the numbers of this run, or of the record of one.
gpus = ap.recorded(two_gpus, name="e1_two_devices_at_once", parameters=BOOK, gpus=2)
limit_s = gpus.limit_s(ALONE)
ap.show_timelines(
    gpus.timelines,
    "e1_two_devices_at_once",
    title="50 products on each of two GPUs",
    caption="The kernels are the same; only the place of the wait differs.",
    limit_s=limit_s,
)

# %%
# Half the time, and no more to gain
# ----------------------------------
# Neither GPU needs anything from the other, so the limit is the longer of both alone, each at its
# fastest.
ap.show(ap.compare(gpus.measurements, limit_s=limit_s, parts=ALONE, baseline=WAIT, highlight=NONE))

# %%
# Compare the row *one wait at the end* with each GPU alone: the work of the second GPU costs hardly
# any time.
speedup, saved = gpus.estimate(lambda s: s[WAIT] / s[NONE]), gpus.hidden(NONE, ALONE)
ap.show(
    ap.claim(
        "Two GPUs at once are nearly twice as fast as in turn.", speedup, at_least=1.8, unit="×"
    ),
    ap.claim("Most of the shorter run's time is saved.", saved, at_least=0.8, unit="%"),
)

# %%
# When this does not help
# -----------------------
# Two queues of one GPU are not two GPUs: a large product fills a GPU by itself, as
# :doc:`/auto_gallery/one_device/plot_1_do_independent_products_run_at_once` shows. And a CPU has
# no queue, so its work does hold the host up: that is the subject of :doc:`plot_3_cpu_and_gpu`. The
# book's version is in its chapter `Automatic Parallelism
# <https://d2l.ai/chapter_computational-performance/auto-parallelism.html>`_.
#
# On this machine
# ---------------
# Two *lanes*, worker threads with a queue each, stand for the queues of GPUs. The estimate is half
# of the serial time. Two hardware threads of one core may both be busy, and save nothing.


# Folded: the measurement on CPU lanes
def two_cpu_lanes(count, size):
    """Products one after the other, and on two CPU lanes."""
    x, u = (ap.workload.matrix(size, seed=number) for number in (0, 1))
    run = ap.workload.products
    with ap.cpu_lane(name="CPU lane 1") as one, ap.cpu_lane(name="CPU lane 2") as two:
        ways = {
            "one lane": lambda: (one.submit(run, x, count), one.submit(run, u, count)),
            "two lanes": lambda: (one.submit(run, x, count), two.submit(run, u, count)),
        }
        return ap.race(ways, see=list(ways), repeats=11)


here = ap.observed(two_cpu_lanes, name="two CPU lanes", parameters={"count": 12, "size": 512})
half_s = {"two lanes": here.measurements["one lane"].min_s / 2}
seen, lanes = here.timelines["two lanes"], ("CPU lane 1", "CPU lane 2")
shared = here.estimate(lambda _: seen.overlap_s(*lanes) / min(map(seen.busy_s, lanes)))
ap.show(
    ap.compare(here.measurements, limit_s=half_s, limit_name="estimate", highlight="two lanes"),
    ap.draw(here.timelines, title="One CPU lane and two"),
    ap.claim("Most of one lane's work runs beside the other's.", shared, at_least=0.5, unit="%"),
)

# %%
# Now you
# -------
# Give GPU 1 matrices of half the side. Which rows of the table stay, and what is the limit?
#
# .. dropdown:: A hint
#
#     A product of half the side has an eighth of the arithmetic.
#
# .. dropdown:: An answer
#
#     *GPU 0 alone* stays, and is the limit. *One wait at the end* hardly changes, as it takes
#     little more than that before and after. *A wait in between* falls to about nine eighths of the
#     limit.
#
#     .. code-block:: python
#
#         def uneven(size=4000, count=50):
#             x, u = ap.workload.matrix(size, ap.gpu(0)), ap.workload.matrix(size // 2, ap.gpu(1))
#             ways = {WAIT: wait_in_between, NONE: wait_at_the_end}
#             calls = {ALONE[0]: lambda: ap.workload.products(x, count)}
#             calls |= {label: lambda way=way: way(x, u, count) for label, way in ways.items()}
#             return ap.compare(ap.measure_in_turn(calls))
