# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Keep two devices busy at once
=============================

| **You'll do:** the chapter's first experiment: 50 matrix products on each of two GPUs, one GPU
  alone, then both with a single wait at the end.
| **You'll learn:** what makes them run at the same time, and what would stop it.
| **You need:** nothing but this page; without two GPUs it shows a record and runs on CPU lanes.

**The claim.** Work for two devices takes as long as the longer of the two alone, as long as
nothing waits in between. The timeline further down settles it: two lanes, both full, one above
the other.
"""

# %%
# The work
# --------
# The products are independent, and each is large enough to fill a GPU by itself. The book runs 50
# of 4000 x 4000 in float32; a laptop gets smaller ones.

from dataclasses import replace

import autopar as ap

BOOK = {"count": 50, "size": 4000}
HERE = {"count": 12, "size": 512}


# %%
# Predict
# -------
# A launch returns before its kernel has run, so the host can fill the queue of the second GPU
# while the first computes. Two GPUs of a kind should then need the time of one: half of what
# they need one after the other.
#
# The experiment below runs the serial way first, as the reference for the results. Only then
# does it time anything.


def two_gpus(count, size):
    """Each GPU alone, one after the other, and both with one wait at the end."""
    gpus = ap.gpu(0), ap.gpu(1)
    x, u = (ap.workload.matrix(size, device, seed=seed) for seed, device in enumerate(gpus))

    def run_first():
        return ap.workload.products(x, count)

    def run_second():
        return ap.workload.products(u, count)

    def serial():
        y = run_first()
        ap.synchronize(gpus[0])
        return y + run_second()

    def both():
        return run_first() + run_second()

    check = ap.workload.equal(serial(), both())
    flops = ap.workload.product_flops(size, count)
    ways = {
        "GPU1 alone": run_first,
        "GPU2 alone": run_second,
        "one after the other": serial,
        "both, one wait": both,
    }
    rates = dict(zip(ways, (flops, flops, 2 * flops, 2 * flops), strict=True))
    measurements = ap.measure_in_turn(ways, devices=gpus, warmup=1, repeats=7, flops=rates)
    timeline = ap.timeline_of(both)
    checks = {"results equal the serial ones": check}
    return ap.Findings(measurements, {"both": timeline}, checks)


# %%
# How long?
# ---------
# The fastest run of each GPU alone gives the limit: no order of the work beats the longer. The code
# above counts GPUs from 1, as the chapter's printed lines do. Its GPU1 is `gpu(0)`, here GPU 0.

FIRST, SECOND, SERIAL, BOTH = "GPU1 alone", "GPU2 alone", "one after the other", "both, one wait"
NAMES = {FIRST: "GPU 0 alone", SECOND: "GPU 1 alone"}
gpus = ap.recorded(two_gpus, name="e1_two_devices_at_once", parameters=BOOK, gpus=2)
limit_s = {BOTH: max(gpus.measurements[label].min_s for label in NAMES)}
shown = [replace(one, label=NAMES.get(label, label)) for label, one in gpus.measurements.items()]
ap.show(ap.compare(shown, limit_s=limit_s, caption="50 products on each GPU"))

# %%
# The claim is held against these numbers. On another machine it may not hold; then the box says so.

speedup = gpus.estimate(lambda s: s[SERIAL] / s[BOTH])
hidden = gpus.estimate(lambda s: ap.hidden_share([s[FIRST], s[SECOND]], s[BOTH]))
ap.show(
    ap.claim(
        "Two GPUs do the work in little more than half the time.", speedup, at_least=1.8, unit="×"
    ),
    ap.claim("The shorter run hides behind the longer.", hidden, at_least=0.8, unit="%"),
)

# %%
# See it
# ------
# A lane for each GPU, from the profiler's record of one run. The second lane starts a moment
# later: that is how long the host took to issue the first 50 launches.

timeline = gpus.timelines["both"]
ap.show_timelines(
    timeline,
    "e1_two_devices_at_once",
    title="Two GPUs, one wait at the end",
    caption="Neither GPU waits for the other, and the host waits once, for both.",
    limit_s=limit_s[BOTH],
)

# %%
# On this machine
# ---------------
# A CPU operator returns only when it is done, so two of them never overlap in one thread. Two CPU
# lanes give each its own worker. Two equal parts should take half the time: that is the estimate,
# and it takes a core for each lane. Two hardware threads of one core do barely more than one, and a
# virtual machine's cores may be two now and one a second later; then the last column says so.


def two_cpu_lanes(count, size):
    """The same experiment on two single-threaded CPU lanes."""
    x, u = ap.workload.matrix(size, seed=0), ap.workload.matrix(size, seed=1)
    run, flops = ap.workload.products, ap.workload.product_flops(size, count)
    with ap.cpu_lane(name="CPU lane 1") as one, ap.cpu_lane(name="CPU lane 2") as two:

        def serial():
            return one.submit(run, x, count).result() + two.submit(run, u, count).result()

        def both():
            return one.submit(run, x, count), two.submit(run, u, count)

        handles = both()
        check = ap.workload.equal(serial(), handles[0].result() + handles[1].result())
        ways = {
            "one after the other": serial,
            "both": lambda: [handle.result() for handle in both()],
        }
        rates = dict.fromkeys(ways, 2 * flops)
        measurements = ap.measure_in_turn(ways, repeats=11, flops=rates)
        timeline = ap.timeline_of_handles(both())
    checks = {"results equal the serial ones": check}
    return ap.Findings(measurements, {"both": timeline}, checks)


here = ap.observed(two_cpu_lanes, name="two CPU lanes", parameters=HERE)
half_s = here.measurements["one after the other"].min_s / 2
estimate = {"limit_s": {"both": half_s}, "limit_name": "estimate"}
ap.show(ap.compare(here.measurements, caption="Two CPU lanes", **estimate))

# %%
# However little two hardware threads gain, the lanes do run at the same time.

timeline = here.timelines["both"]
lanes = "CPU lane 1", "CPU lane 2"
share = timeline.overlap_s(*lanes) / min(timeline.busy_s(lane) for lane in lanes)
shared = here.estimate(lambda _: share)  # of one timeline, so without an interval
ap.show(
    ap.draw(timeline, title="Two CPU lanes", caption="Each lane is a worker thread."),
    ap.claim(
        "Most of the shorter lane's work runs beside the other's.", shared, at_least=0.5, unit="%"
    ),
)

# %%
# When this does not help
# -----------------------
# One device is not two: the same products on two streams of one GPU have little to gain, because
# a large product fills it. And any wait in between (`.item()`, `.cpu()`, `print` of a result) makes
# the host stop issuing, and the other device starve.
#
# Now you
# -------
# Give the second GPU matrices of half the side. Which number in the table stays as it is, and
# what is the hidden share now? Then move `ap.synchronize(gpus[0])` into `both`, between the two
# calls, and watch the second lane of the timeline.
