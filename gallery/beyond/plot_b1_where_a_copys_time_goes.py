"""
Where does a copy's time go?
============================

| **You'll do:** the copies of the chapter's second experiment in eight ways, then copies of every
  size from 4 KiB to 1 GiB, in both directions, for one GPU and for two.
| **You'll learn:** what pinning, a side stream and warm memory are each good for, and from which
  size on a copy is worth its fixed cost.
| **You need:** nothing but this page; without GPUs it shows records and copies within the host.

**The claim.** Of the eight ways one reaches the limit: from a side stream into pinned memory that
was there before. Take away any of the three, and no copy hides. The table of the eight settles it.
The table of the sizes adds that two GPUs have a bus each.
"""

# %%
# The work
# --------
# 50 products of 4000 x 4000 and a copy of each, 64 MB, into *pageable* or *pinned* memory, on the
# *same stream* as the products or on a *side stream*. *Warm* buffers have been written before.
# *Cold* ones are made on the way: of fresh pages, or pinned anew, for torch's pool is emptied.

import itertools
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch

import autopar as ap

BOOK = {"count": 50, "size": 4000, "checked": 10}
BUS = {"sizes": [4**power for power in range(6, 16)], "moved_bytes": 2**28, "most_copies": 1000}
HERE = {"size": 3000}  # 36 MB: glibc takes fresh pages for every block of more than 32 MiB
CHOICES = ("pageable", "pinned"), ("same stream", "side stream"), ("cold", "warm")
WAYS = [", ".join(chosen) for chosen in itertools.product(*CHOICES)]
UNPINNED, BEST = "pageable, side stream, warm", "pinned, side stream, warm"
CURVES = ["GPU to host", "2 GPUs to host", "host to GPU", "host to 2 GPUs"]


def page_faults():
    """How many pages the system has had to give this process so far; 0 where it doesn't count."""
    try:
        import resource
    except ImportError:  # Windows has no such module
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def compute_and_copy(x, buffers, copies):
    """Compute a product for each buffer, and copy it there on the stream `copies`."""
    filled = []
    for buffer in buffers:
        y = x.mm(x)
        copies.wait_event(torch.cuda.current_stream(x.device).record_event())
        with torch.cuda.stream(copies):
            buffer.copy_(y, non_blocking=True)
        y.record_stream(copies)  # or y's memory would be reused before the copy has read it
        filled.append(buffer)
    return filled


# %%
# Predict
# -------
# At best the products hide all copies but one, pinned. On the *same stream* a copy waits for its
# product and the next product for the copy: the sum of both. A *pageable* copy passes through a
# buffer of the driver's, and its call returns when all is there: meanwhile nobody issues the next
# product, and the side stream should gain nothing. *Cold* memory has to be handed out page by page,
# or pinned, while the clock runs.


def eight_ways(count, size, checked):
    """Products and copies in all combinations; the first few results of each are checked."""
    gpu = ap.gpu(0)
    x, side = ap.workload.matrix(size, gpu), torch.cuda.Stream(gpu)

    def buffers(pinned, number):
        return (torch.empty(size, size, pin_memory=pinned) for _ in range(number))

    def run(way, number=count):
        pinned = "pinned" in way
        into = buffers(pinned, number) if "cold" in way else warm[pinned][:number]
        return compute_and_copy(x, into, side if "side" in way else torch.cuda.current_stream(gpu))

    def forget():
        ap.synchronize(gpu)  # a pinned buffer is back in the pool when its copies are done
        ap.empty_pinned_pool()

    warm = {pinned: [b.zero_() for b in buffers(pinned, count)] for pinned in (False, True)}
    expected = [x.mm(x).cpu() for _ in range(checked)]
    checks, faults = {}, {}
    for way in WAYS:
        for buffer in warm["pinned" in way][:checked]:
            buffer.fill_(torch.nan)
        forget()
        before = page_faults()
        results = run(way, checked)
        ap.synchronize(gpu)
        faults[way] = (page_faults() - before) / checked
        checks[f"{way}: equal"] = ap.workload.equal(results, expected)
    in_turn = {
        "products alone": partial(ap.workload.products, x, count),
        "pinned copies alone": lambda: [b.copy_(x, non_blocking=True) for b in warm[True]],
        **{way: partial(run, way) for way in WAYS if "warm" in way},
    }
    measurements = [
        *ap.measure_in_turn(in_turn, devices=[gpu], warmup=1, repeats=3),
        *(
            ap.measure(partial(run, way), label=way, setup=forget, warmup=0, repeats=3)
            for way in WAYS
            if "cold" in way
        ),
    ]
    timelines = {way: ap.timeline_of(partial(run, way)) for way in (UNPINNED, BEST)}
    return ap.Findings(measurements, timelines, checks, faults)


# %%
# How long?
# ---------
# The limit is the products alone, and one of the pinned copies.

ablation = ap.recorded(eight_ways, name="b1_ablation", parameters=BOOK)
median_s = {label: each.median_s for label, each in ablation.measurements.items()}
parts_s = [median_s["products alone"], median_s["pinned copies alone"]]
limit_s = parts_s[0] + parts_s[1] / BOOK["count"]
limits_s = dict.fromkeys(WAYS, limit_s)
ap.show(ap.compare(ablation.measurements, limit_s=limits_s, caption="50 products, 50 copies"))

# %%
# The claim, on the numbers: this page does not build if it stops being true. *Hidden* is the share
# of the pinned copies' time that is saved. What the driver does to pin need not count as faults.

faults = ablation.values
hidden = {way: ap.hidden_share(parts_s, median_s[way]) for way in WAYS}
assert hidden[BEST] >= 0.9, f"only {hidden[BEST]:.0%} of the copies hide in the best way"
assert max(hidden[way] for way in WAYS if way != BEST) < 0.1, "another way hides copies"
if any(faults.values()):  # the system counts them
    assert faults["pageable, side stream, cold"] > faults[UNPINNED], "fresh pages don't fault"
for way in WAYS:
    over_ms = 1e3 * (median_s[way] - limit_s) / BOOK["count"]
    print(f"{way:29}{faults[way]:9,.0f} page faults, {over_ms:z6.2f} ms over the limit, per copy")
print(f"Of the copies' time, {hidden[BEST]:.1%} is hidden in the best way.")

# %%
# See it
# ------
# Both panels have warm memory and a side stream. Above it is pageable: a product starts only when
# the copy before it is done. Below it is pinned: the host has long queued them all.

timelines = ablation.timelines
for way, tolerance in ((UNPINNED, 0.1), (BEST, 0.02)):  # pageable copies are less steady
    assert abs(timelines[way].makespan_s / median_s[way] - 1) < tolerance, f"{way}: clocks disagree"
assert timelines[UNPINNED].hidden() < 0.1, "pageable copies run behind products"
assert timelines[BEST].hidden() >= 0.9, "pinned copies don't run behind products"
ap.show_timelines(
    timelines,
    "b1_where_a_copys_time_goes",
    title="A side stream, without and with pinning",
    caption="The same products, and copies of the same results; only the memory differs.",
    limit_s=limit_s,
)

# %%
# From which size on?
# -------------------
# Predict: pinned copies in a queue take at least the time to issue them, and at least the time of
# their bytes on the bus. So the rate is a slope below a ceiling. Two GPUs have a bus each, and
# should double the ceiling; not the slope, for one thread issues for both.


def queue_copies(pairs, times):
    """Queue copies of each pair, on the current stream of its GPU."""
    for _ in range(times):
        for target, source in pairs:
            target.copy_(source, non_blocking=True)


def every_size(sizes, moved_bytes, most_copies):
    """Pinned copies in both directions, for one GPU and for two at once."""
    gpus, most = (ap.gpu(0), ap.gpu(1)), max(sizes)
    there = [torch.randint(256, (most,), dtype=torch.uint8, device=gpu) for gpu in gpus]
    pinned = [torch.empty(most, dtype=torch.uint8, pin_memory=True) for _ in gpus]
    back = [torch.empty_like(each) for each in there]
    measurements, checks = [], {}
    for size in sizes:
        sent, held, got = ([each[:size] for each in memory] for memory in (there, pinned, back))
        down, up = list(zip(held, sent, strict=True)), list(zip(got, held, strict=True))
        for each in held + got:
            each.zero_()
        queue_copies(down + up, 1)
        checks[f"{size} bytes come back equal"] = all(map(torch.equal, got, sent))
        times = min(most_copies, max(1, moved_bytes // size))
        for curve, pairs in zip(CURVES, (down[:1], down, up[:1], up), strict=True):
            work, moved = partial(queue_copies, pairs, times), len(pairs) * times * size
            label = f"{curve}, {size} bytes"
            measurements.append(ap.measure(work, label=label, repeats=7, size_bytes=moved))
    return ap.Findings(measurements, {}, checks)


bus = ap.recorded(every_size, name="b1_bandwidth", parameters=BUS, gpus=2)
sizes = BUS["sizes"]
powers = [(n.bit_length() - 1) // 10 for n in sizes]
words = [f"{n >> 10 * i} {' KMG'[i]}iB" for n, i in zip(sizes, powers, strict=True)]
rates = {
    curve: np.array([bus.measurements[f"{curve}, {n} bytes"].gb_per_s for n in sizes])
    for curve in CURVES
}
notes = [
    f"{curve}: {sizes[0] / rates[curve][0] / 1e3:.1f} us for a copy of {words[0]}, "
    f"{rates[curve][-1]:.1f} GB/s for one of {words[-1]}; half of this rate from "
    f"{2 ** np.interp(rates[curve][-1] / 2, rates[curve], np.log2(sizes)) / 1024:,.0f} KiB on"
    for curve in CURVES[::2]
]
rows = [(words[i], *(f"{rates[c][i]:.1f}" for c in CURVES)) for i in range(len(sizes))]
caption = "GB/s of pinned copies, queued one after another"
ap.show(ap.tabulate(["one copy", *CURVES], rows, caption=caption, origin=bus.origin, notes=notes))

# %%
# The same as curves. Where they are level, two GPUs have twice the rate of one.

large = np.array(sizes) >= 2**26
gain = min((rates[CURVES[i + 1]] / rates[CURVES[i]])[large].min() for i in (0, 2))
assert gain >= 1.9, f"two GPUs copy only {gain:.2f} x as fast as one"
print(f"From 64 MiB on, two GPUs copy at least {gain:.2f} x as fast as one: they share no bus.")
ax = plt.subplots(layout="constrained")[1]
for curve, style in zip(CURVES, ("C0o-", "C0s-", "C1x--", "C1+--"), strict=True):
    ax.loglog(sizes, rates[curve], style, label=curve, markersize=4)
ax.set_xticks(sizes[::2], words[::2])
ax.set(title="Pinned copies of every size", xlabel=f"one copy\n{bus.origin}", ylabel="GB/s")
ax.legend()
ap.plot.show("b1_bandwidth")

# %%
# On this machine
# ---------------
# Fresh pages cost time without a GPU too: a copy within the host, into memory that nobody has
# touched yet, and into memory that was written before.


def within_the_host(size):
    """A matrix into fresh and into touched memory."""
    x = ap.workload.matrix(size)
    touched, size_bytes = torch.ones_like(x), ap.workload.product_bytes(size)
    ways = {"fresh": lambda: torch.empty_like(x).copy_(x), "touched": lambda: touched.copy_(x)}
    checks = {f"{label}: equal": ap.workload.equal([way()], [x]) for label, way in ways.items()}
    measurements, values = [], {}
    for label, way in ways.items():
        before = page_faults()
        way()
        values[label] = page_faults() - before
        measurements.append(ap.measure(way, label=label, repeats=10, size_bytes=size_bytes))
    return ap.Findings(measurements, {}, checks, values)


here = ap.observed(within_the_host, name="copies within the host", parameters=HERE)
counted = "not counted here"
if page_faults():
    assert here.values["fresh"] > here.values["touched"], "fresh pages don't fault"
    counted = " and ".join(f"{number:,.0f} ({label})" for label, number in here.values.items())
ap.show(ap.compare(here.measurements, caption=f"36 MB within the host; page faults: {counted}"))

# %%
# When this does not help
# -----------------------
# Pinning is for memory that is used again, and pinned pages can't be swapped out: keep a few
# buffers, and reuse them. Copies far below the size of half the rate gain little from any of the
# three: put small results together first, and copy them once.
#
# Now you
# -------
# Queue all products first, and only then the copies into warm pageable memory on the side stream.
# Do any hide now, and what does it take on the GPU? Then predict from the table how long 10,000
# copies of 4 KiB take, and one copy of them all.
