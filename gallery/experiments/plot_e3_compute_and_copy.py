# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Hide the copies behind the computing
====================================

| **You'll do:** the chapter's second experiment: 50 products on a GPU, their 50 results copied to
  the CPU, in the book's two ways and in one that works.
| **You'll learn:** why `non_blocking=True` overlaps nothing, where the book's gain comes from,
  and the four things that true overlap needs.
| **You need:** nothing but this page; without a GPU it shows a record and runs on CPU lanes.

**The claim.** Copy and compute use different hardware, so all copies but the last can hide. The
book's code hides none of them: both share one stream. On a side stream, with one event per result
and pinned buffers, they do hide. The two timelines settle it.
"""

# %%
# The work
# --------
# 50 products of 4000 x 4000 in float32, and as many copies of 64 MB. `copy_to_cpu` is the book's.

import torch

import autopar as ap

try:
    import resource
except ImportError:  # Windows has no such module
    resource = None

BOOK = {"count": 50, "size": 4000}
HERE = {"count": 12, "size": 512}
FIRST, SECOND = "book 1: run, wait, copy", "book 2: run, copy non-blocking"
SIDE, LANE = "side stream, event per result", "the same with a lane"


def copy_to_cpu(y, non_blocking=False):
    """Copy every result to the CPU, as the book does."""
    return [each.to("cpu", non_blocking=non_blocking) for each in y]


# %%
# The way that works
# ------------------
# True overlap needs four things, and each can be got wrong: a *side stream*; *pinned buffers* that
# are there before; an *event per result*, so that a copy starts when its own product is done; and
# the source *kept* until the copy has read it. First in plain PyTorch, then through a lane, which
# waits for what its caller has queued, and keeps what it reads.


def on_side_stream(x, buffers, side):
    """Copy each product into its buffer while the next one is computed."""
    for buffer in buffers:
        y = x.mm(x)
        side.wait_event(torch.cuda.current_stream(x.device).record_event())
        with torch.cuda.stream(side):
            buffer.copy_(y, non_blocking=True)
        y.record_stream(side)  # or y's memory would be reused before the copy has read it


def with_lane(x, buffers, copies):
    """The same in one line."""
    for buffer in buffers:
        copies.submit(buffer.copy_, x.mm(x), non_blocking=True)


# %%
# Predict
# -------
# Serial means computing plus copying. At best all copies but the last hide behind the computing, or
# all products but the first behind the copying, where that takes longer. So the limit is the longer
# part, and one piece of the shorter. Both parts are measured in the same run, below. First of all
# the results are compared, with buffers full of NaN to start from.


def compute_and_copy(count, size):
    """The parts, the book's two ways, and the two ways that overlap."""
    gpu = ap.gpu(0)
    x = ap.workload.matrix(size, gpu)
    y = ap.workload.products(x, count)
    buffers = [torch.full((size, size), torch.nan).pin_memory() for _ in range(count)]
    side = torch.cuda.Stream(gpu)

    def run_wait_copy():
        results = ap.workload.products(x, count)
        ap.synchronize(gpu)
        return copy_to_cpu(results)

    def run_copy():
        return copy_to_cpu(ap.workload.products(x, count), non_blocking=True)

    with ap.cuda_lane(gpu, name="copies", kind="copy") as copies:
        ways = {
            "run": lambda: ap.workload.products(x, count),
            "copy": lambda: copy_to_cpu(y, non_blocking=True),
            SECOND: run_copy,
            SIDE: lambda: on_side_stream(x, buffers, side),
            LANE: lambda: with_lane(x, buffers, copies),
        }
        checks = {}
        for way in (SECOND, SIDE, LANE):
            results = ways[way]() or buffers
            ap.synchronize(gpu)
            checks[f"{way}: equal"] = ap.workload.equal(results, y)
            for buffer in buffers:
                buffer.fill_(torch.nan)
        # By itself and only a few times, as it takes ten times as long as the others.
        slow = ap.measure(run_wait_copy, label=FIRST, devices=[gpu], warmup=0, repeats=3)
        run, copy, *others = ap.measure_in_turn(ways, devices=[gpu], warmup=1, repeats=7)
        timelines = ap.timelines_of({way: ways[way] for way in (SECOND, SIDE)})
    return ap.Findings([run, copy, slow, *others], timelines, checks)


# %%
# How long?
# ---------
# `copy` is the non-blocking one with its pinned memory already there.

gpu = ap.recorded(compute_and_copy, name="e3_compute_and_copy", parameters=BOOK)
fastest_s = [gpu.measurements[part].min_s for part in ("run", "copy")]
limit_s = max(fastest_s) + min(fastest_s) / BOOK["count"]
limits = dict.fromkeys((FIRST, SECOND, SIDE, LANE), limit_s)
ap.show(ap.compare(gpu.measurements, limit_s=limits, caption="50 products and 50 copies of 64 MB"))

# %%
# The claims are held against these numbers. *Hidden* is by the times here: what was saved, of the
# shorter part alone.


def hidden(way):
    """The hidden share of the shorter part, with its interval."""
    return gpu.estimate(lambda s: ap.hidden_share([s["run"], s["copy"]], s[way]))


ap.show(
    ap.claim("The book's second way hides next to nothing.", hidden(SECOND), at_most=0.1, unit="%"),
    ap.claim(
        "On a side stream most of the shorter part hides.", hidden(SIDE), at_least=0.8, unit="%"
    ),
    ap.claim(
        "With a lane most of the shorter part hides, too.", hidden(LANE), at_least=0.8, unit="%"
    ),
)

# %%
# See it
# ------
# Above, the book's second way: every copy waits behind all products, for both are on one stream.
# Below, each copy runs under the next product.

ap.show_timelines(
    gpu.timelines,
    "e3_compute_and_copy",
    title="50 products, 50 copies, on one stream and on two",
    caption="The same kernels and the same copies; only the queue differs.",
    limit_s=limit_s,
)

# %%
# The timelines are of single runs under the profiler. Are they what the clock timed without it?

length_s = {way: timeline.makespan_s for way, timeline in gpu.timelines.items()}
even_size = BOOK["size"] * fastest_s[1] / fastest_s[0]
print(f"Below a side of about {even_size:,.0f} a copy takes longer than its product.")
ap.show(
    ap.claim(
        "The timelines are about as long as the clock says.",
        gpu.estimate(lambda s: max(abs(length_s[way] / s[way] - 1) for way in length_s)),
        at_most=0.1,
        unit="%",
    )
)

# %%
# Where the book's gain comes from
# --------------------------------
# If nothing overlaps, why do the editions print a gain? Their first way copies into fresh memory,
# which the system hands out page by page, clearing each. Their second way makes torch pin its
# memory: that is paid for the first time only, for torch keeps the memory for the next copies.
# Neither has to do with overlap.


def page_faults():
    """How many this process has had, as far as the system tells."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else 0


def one_result(size):
    """One result into fresh, touched and pinned memory."""
    gpu = ap.gpu(0)
    y = ap.workload.matrix(size, gpu)
    touched, pinned = torch.zeros(size, size), torch.zeros(size, size).pin_memory()
    ap.empty_pinned_pool()
    first = ap.Timer()
    kept = y.to("cpu", non_blocking=True)
    ap.synchronize(gpu)
    values = {"ms for the first non-blocking copy, which pins": 1e3 * first.stop()}
    ways = {
        "into fresh memory, .to('cpu')": lambda: y.to("cpu"),
        "into touched memory, copy_": lambda: touched.copy_(y),
        "into pinned memory, copy_": lambda: pinned.copy_(y),
    }
    for label, way in ways.items():
        ap.empty_heap()
        before = page_faults()
        kept = way()
        values[f"page faults {label}"] = page_faults() - before
    size_bytes = ap.workload.product_bytes(size)
    measurements = [
        ap.measure(
            way,
            label=label,
            devices=[gpu],
            setup=ap.empty_heap,
            repeats=9,
            size_bytes=size_bytes,
        )
        for label, way in ways.items()
    ]
    same = ap.workload.equal([touched, pinned, kept], [y, y, y])
    return ap.Findings(measurements, {}, {"copies equal": same}, values)


one = ap.recorded(one_result, name="e3_one_result", parameters={"size": BOOK["size"]})
for name, value in one.values.items():
    print(f"{name}: {value:,.0f}")
FRESH, TOUCHED, PINNED = one.measurements
ap.show(
    ap.compare(one.measurements, caption="One result of 64 MB"),
    ap.claim(
        "A copy into fresh memory takes at least twice as long as one into touched memory.",
        one.estimate(lambda s: s[FRESH] / s[TOUCHED]),
        at_least=2,
        unit="×",
    ),
)

# %%
# On this machine
# ---------------
# Without a GPU, one CPU lane computes and another copies each result, as soon as it is there. The
# estimate is the computing alone: memory to memory, a copy costs next to nothing.


def lanes_compute_and_copy(count, size):
    """Products on one CPU lane, copies of them on another."""
    x = ap.workload.matrix(size)
    buffers = [torch.full((size, size), torch.nan) for _ in range(count)]
    with ap.cpu_lane(name="compute") as compute, ap.cpu_lane(name="copies", kind="copy") as copies:

        def serial():
            for buffer in buffers:
                copies.submit(buffer.copy_, compute.submit(x.mm, x)).wait()

        def overlapped():
            products = [compute.submit(x.mm, x, name="product") for _ in buffers]
            return products + [
                copies.submit(buffer.copy_, product, name="copy")
                for buffer, product in zip(buffers, products, strict=True)
            ]

        timeline = ap.timeline_of_handles(overlapped())
        checks = {
            "copies equal the products": ap.workload.equal(buffers, ap.workload.products(x, count))
        }
        ways = {
            "run": lambda: compute.submit(ap.workload.products, x, count).wait(),
            "one after the other": serial,
            "on two lanes": lambda: overlapped()[-1].wait(),
        }
        measurements = ap.measure_in_turn(ways, repeats=9)
    return ap.Findings(measurements, {"on two lanes": timeline}, checks)


here = ap.observed(lanes_compute_and_copy, name="compute and copy on CPU lanes", parameters=HERE)
estimate = {"limit_s": {"on two lanes": here.measurements["run"].min_s}, "limit_name": "estimate"}
ap.show(ap.compare(here.measurements, caption="Products and copies on the CPU", **estimate))

# %%
# Each copy runs while the next product is computed: here *hidden* is by the timeline, the share of
# the copying during which a product ran. The last copy has none.

timeline = here.timelines["on two lanes"]
share = timeline.hidden("copy", "compute")
ap.show(
    ap.draw(timeline, title="Two CPU lanes", caption="A copy starts when its product is done."),
    ap.claim(
        "Most of the copying runs while the other lane computes.",
        here.estimate(lambda _: share),  # of one timeline, so without an interval
        at_least=0.5,
        unit="%",
    ),
)

# %%
# When this does not help
# -----------------------
# Only the shorter of the two can hide. A product shrinks with the cube of its side and a copy with
# the square: below the side that was printed above, the bus is the limit. And results that
# fit into one copy at the end need no pipeline: what can't overlap is exactly the last copy.
#
# Now you
# -------
# Leave out `record_stream` and free each `y` at once: which check fails, and does it always? Then
# wait once at the end, before the first copy, in place of the event per result: what is hidden?
