# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Run the CPU and a GPU at the same time
======================================

| **You'll do:** the MXNet edition's experiment in PyTorch: ten products on the CPU, ten larger ones
  on a GPU, and both together, in the book's order.
| **You'll learn:** why the order of independent lines matters in PyTorch, and how lanes mend it.
| **You need:** nothing but this page; without a GPU it shows a record and runs on CPU lanes.

**The claim.** In plain PyTorch, CPU work issued first holds back the GPU: the two run one after the
other. Issued second, it hides. With a lane for the CPU the order stops mattering, and the book's
order runs in parallel, as in MXNet, whose engine knows what depends on what.
"""

# %%
# The work
# --------
# The book's sizes: 10 products of 2000 x 2000 on the CPU, 10 of 6000 x 6000 on the GPU.

import torch

import autopar as ap

BOOK = {"count": 10, "cpu_size": 2000, "gpu_size": 6000}
HERE = {"count": 10, "short_size": 384, "long_size": 512}
BOOKS_ORDER = "lanes, CPU first"


# %%
# Predict
# -------
# Neither part needs anything of the other, so the limit is the longer of the two. Plain PyTorch
# reaches it in one order only: a CPU operator returns when it is done, and whatever comes after it
# in the program is issued after that. A lane returns at once, so both orders should reach it.


def cpu_and_gpu(count, cpu_size, gpu_size):
    """CPU work and GPU work alone, in both plain orders, and on lanes in the book's order."""
    run, gpu = ap.workload.products, ap.gpu(0)
    x, u = ap.workload.matrix(cpu_size), ap.workload.matrix(gpu_size, gpu)

    def on_cpu():
        with ap.annotate("products on the CPU"):
            return run(x, count)

    def on_gpu():
        return run(u, count)

    def cpu_first():
        return on_cpu() + on_gpu()

    def gpu_first():
        results = on_gpu()
        return on_cpu() + results

    with (
        ap.cpu_lane(torch.get_num_threads(), name="CPU lane") as cpu_lane,
        ap.cuda_lane(gpu, name="GPU lane") as gpu_lane,
    ):

        def lanes():
            return [cpu_lane.submit(run, x, count), gpu_lane.submit(run, u, count)]

        def finished():
            return [result for handle in lanes() for result in handle.result()]

        def seen():
            """The CPU lane's part of the timeline; the profiler sees the GPU's."""
            handles = lanes()
            return ap.timeline_of_handles(handles[:1])

        check = ap.workload.equal(cpu_first(), gpu_first()) and ap.workload.equal(
            cpu_first(), finished()
        )
        cpu_flops, gpu_flops = (ap.workload.product_flops(n, count) for n in (cpu_size, gpu_size))
        ways = {
            "CPU alone": on_cpu,
            "GPU alone": on_gpu,
            "plain, CPU first": cpu_first,
            "plain, GPU first": gpu_first,
            BOOKS_ORDER: finished,
        }
        rates = {"CPU alone": cpu_flops, "GPU alone": gpu_flops}
        measurements = ap.measure_in_turn(ways, warmup=1, repeats=9, flops=rates)
        timelines = {
            "plain, CPU first": ap.timeline_of(cpu_first),
            BOOKS_ORDER: ap.timeline_of(seen),
        }
    return ap.Findings(measurements, timelines, {"results equal the serial ones": check})


# %%
# How long?
# ---------
# The limit of the last three rows is the longer of the first two, each at its fastest in this run.

gpu = ap.recorded(cpu_and_gpu, name="e2_cpu_and_gpu", parameters=BOOK)
least_s = max(gpu.measurements[f"{each} alone"].min_s for each in ("CPU", "GPU"))
together = ["plain, CPU first", "plain, GPU first", BOOKS_ORDER]
limit_s = dict.fromkeys(together, least_s)
cpu = f"{gpu.hardware['cpu_cores']} threads of {gpu.hardware['cpu']}"
caption = f"Ten products each, on {cpu} and on a GPU"
ap.show(ap.compare(gpu.measurements, limit_s=limit_s, caption=caption))

# %%
# The claims are held against these numbers. *Hidden* is by the times here: what was saved, of the
# shorter part alone.

ALONE = "CPU alone", "GPU alone"


def hidden(way):
    """The hidden share of the shorter part, with its interval."""
    return gpu.estimate(lambda s: ap.hidden_share([s[part] for part in ALONE], s[way]))


ap.show(
    ap.claim(
        "Plain PyTorch hides little if the CPU's work is issued first.",
        hidden("plain, CPU first"),
        at_most=0.3,
        unit="%",
    ),
    ap.claim(
        "Issued second, CPU work runs beside the GPU's, and most of the shorter part hides.",
        hidden("plain, GPU first"),
        at_least=0.6,
        unit="%",
    ),
    ap.claim(
        "On lanes most of the shorter part hides, in the book's order.",
        hidden(BOOKS_ORDER),
        at_least=0.6,
        unit="%",
    ),
)

# %%
# See it
# ------
# Above, the GPU's queue stays empty until the CPU is done. Below, the same two lines in the same
# order, on lanes: both start at once. These are two single runs, and CPU work takes now more, now
# less, so their lengths are not the medians of the table.

timelines = gpu.timelines
ap.show_timelines(
    timelines,
    "e2_cpu_and_gpu",
    title="CPU work issued first: plain PyTorch, then lanes",
    caption="In plain PyTorch the order of the program is the order of the work.",
    limit_s=least_s,
)

# %%
# The GPU's part takes the same time whoever looks: kernels by the profiler, launches and all by the
# clock.


def gpu_busy_s(timeline):
    """How long the GPU computed."""
    kernels = (span for span in timeline.spans if span.lane.startswith("GPU"))
    return ap.Timeline(tuple(kernels)).busy_s("compute")


busy_s = gpu_busy_s(timelines[BOOKS_ORDER])
ap.show(
    ap.claim(
        "The GPU is busy in the timeline for about as long as the clock says of it alone.",
        gpu.estimate(lambda s: busy_s / s["GPU alone"]),
        between=(0.9, 1.1),
        unit="%",
    )
)

# %%
# On this machine
# ---------------
# Two CPU lanes play the two parts: a short one and a long one, one thread each. The estimate is
# the longer part, with a core for each lane: two hardware threads of one core don't reach it.


def short_and_long(count, short_size, long_size):
    """A short and a long part, one after the other and on two lanes."""
    x, u = ap.workload.matrix(short_size), ap.workload.matrix(long_size)
    run = ap.workload.products
    with ap.cpu_lane(name="lane of the short") as one, ap.cpu_lane(name="lane of the long") as two:

        def lanes():
            return [one.submit(run, x, count), two.submit(run, u, count)]

        def finished():
            return [result for handle in lanes() for result in handle.result()]

        def serial():
            return one.submit(run, x, count).result() + two.submit(run, u, count).result()

        check = ap.workload.equal(serial(), finished())
        ways = {
            "short alone": lambda: one.submit(run, x, count).result(),
            "long alone": lambda: two.submit(run, u, count).result(),
            "one after the other": serial,
            "on lanes": finished,
        }
        measurements = ap.measure_in_turn(ways, repeats=11)
        timeline = ap.timeline_of_handles(lanes())
    checks = {"results equal the serial ones": check}
    return ap.Findings(measurements, {"on lanes": timeline}, checks)


here = ap.observed(short_and_long, name="a short and a long part", parameters=HERE)
alone_s = [here.measurements[f"{each} alone"].min_s for each in ("short", "long")]
timeline = here.timelines["on lanes"]
estimate = {"limit_s": {"on lanes": max(alone_s)}, "limit_name": "estimate"}
lanes = "lane of the short", "lane of the long"
share = timeline.overlap_s(*lanes) / min(timeline.busy_s(lane) for lane in lanes)
shared = here.estimate(lambda _: share)  # of one timeline, so without an interval
ap.show(
    ap.compare(here.measurements, caption="Two CPU lanes", **estimate),
    ap.claim(
        "Most of the short lane's work runs beside the long one's.", shared, at_least=0.5, unit="%"
    ),
)

# %%
# When this does not help
# -----------------------
# The shorter part is all that can be hidden: with a GPU part ten times the CPU's, the best that
# overlap can save is an eleventh. And a CPU lane with all cores competes with whatever else the
# host has to do, such as launching kernels for the GPU.
#
# Now you
# -------
# Double `cpu_size`. Predict both plain orders and the limit first. Which of the three rows grow?
