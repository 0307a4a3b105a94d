# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Watch the front end return first
================================

| **You'll do:** time the same 50 matrix products twice: until the calls return, and until the
  results are there.
| **You'll learn:** what a clock around GPU code measures, and what `synchronize` waits for.
| **You need:** nothing but this page; without two GPUs it shows a record and runs on the CPU.

**The claim.** PyTorch's front end hands GPU work to a queue and returns long before the work is
done; and a bare `torch.cuda.synchronize()` waits for the *current* GPU only. Whoever forgets
either measures launches. The timeline shows the gap: a sliver of issuing, then a long wait.
"""

# %%
# The work
# --------
# 50 independent products of two independent arrays, on the second GPU, while the first is the
# current one: PyTorch's default, and the trap of this page.

import threading

import torch

import autopar as ap

BOOK = {"count": 50, "size": 4000}
HERE = {"count": 10, "size": 512}

# %%
# Predict
# -------
# A launch takes the host the same few microseconds however large the product; the products take
# as long as their arithmetic takes. So issuing should be a small share of the whole. On the CPU
# there is no such gap: an operator returns when its result is there.
#
# The bare wait is D2L's own. With the work on another GPU than the current one, it has nothing to
# wait for and should return at once. The last way names what it waits for.


def issue_and_wait(count, size):
    """The same work until issued, until a bare wait returns, and until it is done."""
    ap.synchronize()
    device = ap.gpu(1)
    x, u = (ap.workload.matrix(size, device, seed=seed) for seed in (0, 1))

    def issue():
        with ap.annotate("issue"):
            return [a.mm(a) for _ in range(count // 2) for a in (x, u)]

    def issue_and_wait_bare():
        results = issue()
        torch.cuda.synchronize()  # the current device: GPU 0
        return results

    def issue_and_wait_named():
        results = issue()
        with ap.annotate("wait"):
            ap.synchronize(device)
        return results

    expected = [a.cpu() @ a.cpu() for a in (x, u)]
    results = issue_and_wait_named()[-2:]
    close = all(
        torch.allclose(a.cpu(), b, atol=1e-4) for a, b in zip(results, expected, strict=True)
    )
    flops = ap.workload.product_flops(size, count)
    ways = {
        "until the calls return": issue,
        "until a bare wait returns": issue_and_wait_bare,
        "until done": issue_and_wait_named,
    }
    with torch.cuda.device(0):  # not the one that works
        measurements = ap.measure_in_turn(
            ways, devices=(), warmup=1, repeats=7, flops={"until done": flops}
        )
    timeline = ap.timeline_of(issue_and_wait_named)
    checks = {"results are those of the CPU": close}
    return ap.Findings(measurements, {"issue and wait": timeline}, checks)


# %%
# How long?
# ---------
# The estimate is the time that the GPU was busy with these kernels in one run under the profiler.
# It belongs to the last row; the first two lie far below, so they can't be times of the work.

gpus = ap.recorded(issue_and_wait, name="e0_the_front_end_returns_first", parameters=BOOK, gpus=2)
timeline = gpus.timelines["issue and wait"]
busy_s = timeline.busy_s("compute")
ap.show(
    ap.compare(
        gpus.measurements,
        limit_s={"until done": busy_s},
        limit_name="estimate",
        caption="50 products, three ways to time them",
    )
)

# %%
# The claims are held against these numbers. The last one is about the clocks: the timeline of one
# run under the profiler is about as long as the clock says of runs without it.

ISSUED, BARE, DONE = gpus.measurements
length_s = timeline.makespan_s
ap.show(
    ap.claim(
        "The calls return in a small share of the time that the work takes.",
        gpus.estimate(lambda s: s[ISSUED] / s[DONE]),
        at_most=0.1,
        unit="%",
    ),
    ap.claim(
        "A bare wait does not wait for a GPU that isn't the current one.",
        gpus.estimate(lambda s: s[BARE] / s[DONE]),
        at_most=0.1,
        unit="%",
    ),
    ap.claim(
        "The timeline is about as long as the clock says.",
        gpus.estimate(lambda s: length_s / s[DONE]),
        between=(0.9, 1.1),
        unit="%",
    ),
)

# %%
# See it
# ------
# The host's lane is what Python did. The kernels go on long after the last call has returned.

title = "The host issues, then waits; the GPU computes"
ap.show_timelines(
    timeline,
    "e0_the_front_end_returns_first",
    title=title,
    caption="All launches are issued in the sliver at the left of the host's lane.",
)

# %%
# On this machine
# ---------------
# CPU operators don't return first. A lane does: `submit` only queues the task. That it returns
# before the task is done is proven without a clock: the first task stands at a gate which opens
# only after `submit` has returned and the handle has said that it is not done.


def call_and_submit(count, size):
    """CPU operators return when done; a lane's submit returns before."""
    x = ap.workload.matrix(size)
    run, flops = ap.workload.products, ap.workload.product_flops(size, count)
    with ap.cpu_lane(torch.get_num_threads(), name="CPU lane") as lane:
        gate = threading.Event()
        handle = lane.submit(gate.wait)
        returned_first = not handle.done()
        gate.set()
        same = ap.workload.equal(lane.submit(run, x, count).result(), run(x, count))
        measurements = (
            ap.measure(
                lambda: run(x, count),
                label="operators, until they return",
                repeats=11,
                flops=flops,
            ),
            ap.measure(
                lambda: lane.submit(run, x, count),
                label="lane, until submitted",
                repeats=11,
                setup=lane.wait,
            ),
            ap.measure(
                lambda: lane.submit(run, x, count).result(),
                label="lane, until done",
                repeats=11,
                flops=flops,
            ),
        )
    checks = {"submit returned before the task was done": returned_first, "results equal": same}
    return ap.Findings(measurements, {}, checks)


here = ap.observed(call_and_submit, name="CPU operators and a CPU lane", parameters=HERE)
ap.show(ap.compare(here.measurements, caption="10 products on the CPU"))

# %%
# When this does not help
# -----------------------
# Returning first gains nothing by itself: it pays when the host has something else to issue, as
# in the pages that follow. And it can only last until the queue is full: then the next
# launch waits for the GPU.
#
# Now you
# -------
# Time one product instead of 50, until issued and until done, for sizes from 64 to 4000. From
# which size on does the GPU, not the host, decide how long a loop of products takes?
