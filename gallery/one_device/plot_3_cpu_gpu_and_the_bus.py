# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Use the CPU, a GPU and the bus at the same time
===============================================

| **You'll do:** exercise 3: products on a GPU, their results copied to the host, and products on
  the CPU, first one after another and then all at once.
| **You'll learn:** which of the three has to wait for which, and how little that costs.
| **You need:** nothing but this page; without a GPU it shows a record and runs on CPU lanes.

**The claim.** Three kinds of hardware do the work, so most of the two shorter parts hides behind
the longest. A lane for the CPU and a pipeline for the copies are enough. The timeline settles it:
three rows, all busy from the start.
"""

# %%
# The work
# --------
# The chapter's sizes: 50 products of 4000 x 4000 on the GPU, a copy of each result, and products
# of 2000 x 2000 on the CPU. The lane for these returns at once, so the program can go on.

import torch

import autopar as ap

BOOK = {"count": 50, "size": 4000, "cpu_count": 6, "cpu_size": 2000}
HERE = {"count": 12, "size": 512, "cpu_count": 12, "cpu_size": 448}
PRODUCTS, COPIES, ON_CPU = "products on the GPU", "copies to the host", "products on the CPU"
FIRST_LANE, LAST_LANE = "products on the first lane", "products on the last lane"
SERIAL, ONE_STREAM, AT_ONCE = "one after another", "CPU lane, one stream", "CPU lane, pipeline"


def on_lane(lane, x, count):
    """Queue products on a CPU lane."""
    return [lane.submit(x.mm, x, name="product") for _ in range(count)]


# %%
# Two ways to copy
# ----------------
# The tempting one queues each copy without waiting for it. But copy and product share a stream,
# which does one thing after another. The pipeline has a stream for the copies, and an event for
# each product. With `pin=True` results land in pinned memory, and no CPU thread has to move them.


def one_stream(x, count):
    """Queue each copy behind its product, and the next product behind the copy."""
    return [x.mm(x).to("cpu", non_blocking=True) for _ in range(count)]


def with_pipeline(pipeline, x, count):
    """Copy each product while the next ones are computed."""
    return list(pipeline.to_host((x.mm(x) for _ in range(count)), pin=True))


# %%
# Predict
# -------
# A copy needs its product, so the first product or the last copy stands alone. The CPU's part
# needs nothing of either. No order can beat the longer of the two.


def least_s(count, products_s, copies_s, cpu_s):
    """The least time that all three parts can take together."""
    chained_s = max(products_s, copies_s) + min(products_s, copies_s) / count
    return max(chained_s, cpu_s)


def three_parts(count, size, cpu_count, cpu_size):
    """The parts alone, one after another, and at once in two ways."""
    gpu = ap.gpu(0)
    x, u = ap.workload.matrix(size, gpu), ap.workload.matrix(cpu_size)
    y = ap.workload.products(x, count)
    # Half of the CPU's threads multiply: launching and waiting need some, too.
    threads = max(1, torch.get_num_threads() // 2)
    with ap.cpu_lane(threads, name="CPU lane") as lane, ap.CopyPipeline(gpu) as pipeline:

        def copied(results):
            return [each.to("cpu", non_blocking=True) for each in results]

        def serial():
            results = ap.workload.products(x, count)
            ap.synchronize(gpu)
            on_host = copied(results)
            ap.synchronize(gpu)
            return on_lane(lane, u, cpu_count), on_host

        ways = {
            SERIAL: serial,
            ONE_STREAM: lambda: (on_lane(lane, u, cpu_count), one_stream(x, count)),
            AT_ONCE: lambda: (on_lane(lane, u, cpu_count), with_pipeline(pipeline, x, count)),
        }

        def finished(way):
            handles, on_host = ways[way]()
            results = [handle.result() for handle in handles]
            ap.synchronize(gpu)
            return results + on_host

        def seen(way):
            """The CPU lane's part of the timeline; the profiler sees the GPU's."""
            return ap.timeline_of_handles(ways[way]()[0])

        together = (ONE_STREAM, AT_ONCE)
        expected = finished(SERIAL)
        checks = {f"{way}: equal": ap.workload.equal(finished(way), expected) for way in together}
        del expected
        timed = {
            PRODUCTS: lambda: ap.workload.products(x, count),
            COPIES: lambda: copied(y),
            ON_CPU: lambda: [handle.result() for handle in on_lane(lane, u, cpu_count)],
            **{way: lambda way=way: finished(way) for way in ways},
        }
        measurements = ap.measure_in_turn(timed, devices=[gpu], warmup=1, repeats=7)
        timelines = ap.timelines_of({way: lambda way=way: seen(way) for way in together})
    return ap.Findings(measurements, timelines, checks)


# %%
# How long?
# ---------
# The limit comes from the fastest runs of the three parts, measured in turn with all the rest.

PARTS = PRODUCTS, COPIES, ON_CPU
gpu = ap.recorded(three_parts, name="x3_cpu_gpu_and_the_bus", parameters=BOOK)
limit_s = least_s(BOOK["count"], *(gpu.measurements[part].min_s for part in PARTS))
limits = dict.fromkeys((SERIAL, ONE_STREAM, AT_ONCE), limit_s)
caption = f"{BOOK['count']} products, as many copies, and {BOOK['cpu_count']} products on the CPU"
ap.show(ap.compare(gpu.measurements, limit_s=limits, caption=caption))

# %%
# The claims are held against these numbers. *Hidden* is by the times here: what was saved, of the
# two shorter parts.


def hidden(way):
    """The hidden share of the shorter parts, with its interval."""
    return gpu.estimate(lambda s: ap.hidden_share([s[part] for part in PARTS], s[way]))


ap.show(
    ap.claim(
        "With a CPU lane and a pipeline most of the two shorter parts hides.",
        hidden(AT_ONCE),
        at_least=0.6,
        unit="%",
    ),
    ap.claim(
        "On one stream products and copies take as long as one after the other.",
        gpu.estimate(lambda s: s[ONE_STREAM] / (s[PRODUCTS] + s[COPIES])),
        at_least=0.9,
        unit="%",
    ),
)

# %%
# See it
# ------
# Above, one stream: the CPU computes meanwhile, but no copy runs beside a product. Below, a row for
# each kind of hardware, and only the last copy has nothing beside it. *Hidden* is by the timeline
# here: the share of the copying during which the GPU computes. What the CPU does beside it doesn't
# count.

ap.show_timelines(
    gpu.timelines,
    "x3_cpu_gpu_and_the_bus",
    title="The CPU, a GPU and the bus",
    caption="The same products and copies; only the copies' queue differs.",
    limit_s=limit_s,
)

# %%
# And the claims on the timelines, which are of single runs. Where copies take longer than products,
# the products are what hides.


def beside(timeline, one, other):
    """The share of the shorter one's busy time in which both ran."""
    return timeline.overlap_s(one, other) / min(timeline.busy_s(one), timeline.busy_s(other))


def products_lane(timeline):
    """The stream of the GPU's products."""
    return next(span.lane for span in timeline.select("compute") if span.lane != "CPU lane")


timeline = gpu.timelines[AT_ONCE]
stream = products_lane(timeline)
in_one = gpu.timelines[ONE_STREAM]
shares = {
    "one stream": beside(in_one, "copy", products_lane(in_one)),
    "copies": beside(timeline, "copy", stream),
    "CPU": beside(timeline, "CPU lane", stream),
    "busy": timeline.busy_s(stream),
}
ap.show(
    ap.claim(
        "On one stream no copy runs beside the GPU's products.",
        gpu.estimate(lambda _: shares["one stream"]),
        at_most=0.1,
        unit="%",
    ),
    ap.claim(
        "With a pipeline copies and the GPU's products run at the same time.",
        gpu.estimate(lambda _: shares["copies"]),
        at_least=0.7,
        unit="%",
    ),
    ap.claim(
        "The CPU's products run beside the GPU's.",
        gpu.estimate(lambda _: shares["CPU"]),
        at_least=0.6,
        unit="%",
    ),
    ap.claim(
        "The GPU is busy in the timeline for about as long as the clock says of its products.",
        gpu.estimate(lambda s: shares["busy"] / s[PRODUCTS]),
        between=(0.9, 1.1),
        unit="%",
    ),
)

# %%
# On this machine
# ---------------
# Three CPU lanes play the three parts: the first has the products that are copied, the second the
# copies, the last the other products. The first and the last want a core each. The estimate is the
# longer of the two; where cores are two hardware threads of one, the last column tells.


def three_lanes(count, size, cpu_count, cpu_size):
    """The same three parts on three CPU lanes."""
    x, u = ap.workload.matrix(size), ap.workload.matrix(cpu_size)
    buffers = [torch.full((size, size), torch.nan) for _ in range(count)]
    with (
        ap.cpu_lane(name="first lane") as first,
        ap.cpu_lane(name="copies", kind="copy") as copies,
        ap.cpu_lane(name="last lane") as last,
    ):

        def results(handles):
            return [handle.result() for handle in handles]

        def at_once():
            handles = on_lane(last, u, cpu_count) + on_lane(first, x, count)
            pairs = zip(buffers, handles[cpu_count:], strict=True)
            return handles + [copies.submit(to.copy_, each, name="copy") for to, each in pairs]

        ways = {
            FIRST_LANE: lambda: results(on_lane(first, x, count)),
            LAST_LANE: lambda: results(on_lane(last, u, cpu_count)),
            "on three lanes": lambda: results(at_once()),
        }
        products = ways[FIRST_LANE]()
        expected = ways[LAST_LANE]() + products + products
        checks = {"equal": ap.workload.equal(ways["on three lanes"](), expected)}
        measurements = ap.measure_in_turn(ways, repeats=9)
        timeline = ap.timeline_of_handles(at_once())
    return ap.Findings(measurements, {"on three lanes": timeline}, checks)


here = ap.observed(three_lanes, name="three CPU lanes", parameters=HERE)
longer_s = max(here.measurements[part].min_s for part in (FIRST_LANE, LAST_LANE))
here_at_once = beside(here.timelines["on three lanes"], "first lane", "last lane")
estimate = {"limit_s": {"on three lanes": longer_s}, "limit_name": "estimate"}
ap.show(
    ap.compare(here.measurements, caption="Three CPU lanes", **estimate),
    ap.claim(
        "Products on two of three CPU lanes run at the same time.",
        here.estimate(lambda _: here_at_once),  # of one timeline, so without an interval
        at_least=0.5,
        unit="%",
    ),
)

# %%
# When this does not help
# -----------------------
# Only the shorter parts can hide: where the GPU's products are the longest, a faster bus gains
# nothing. And the three are not quite independent. A CPU lane with all threads competes with the
# one that launches kernels, and results in ordinary memory take threads and memory bandwidth from
# the CPU's products.
#
# Now you
# -------
# Give the lane all threads, then leave out `pin=True`: which row of the timeline grows? Then double
# `cpu_count` until the CPU's part is the longest. What is the limit now?
