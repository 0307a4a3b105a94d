# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Where does a copy's time go?
============================

| **You'll do:** the copies of the chapter's second experiment in eight ways, then copies of every
  size from 4 KiB to 1 GiB, in both directions, for one GPU and for two.
| **You'll learn:** what pinning, a side stream and warm memory are each good for, and from which
  size on a copy is worth its fixed cost.
| **You need:** nothing but this page; without GPUs it shows records and copies within the host.

**The claim.** Of the eight ways one hides most of the copies: from a side stream into pinned memory
that was there before. Take away any of the three, and few hide. The table of the eight
settles it. The table of the sizes adds that two GPUs have a bus each.
"""

# %%
# The work
# --------
# 20 products of 4000 x 4000 and a copy of each, 64 MB, into *pageable* or *pinned* memory, on the
# *same stream* as the products or on a *side stream*. *Warm* buffers have been written before.
# *Cold* ones are made on the way: of fresh pages, or pinned anew, for torch's pool is emptied.

import itertools
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch

import autopar as ap

BOOK = {"count": 20, "size": 4000, "checked": 5}
BUS = {"sizes": [4**power for power in range(6, 16)], "moved_bytes": 2**28, "most_copies": 1000}
HERE = {"size": 3000}  # 36 MB
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
        ap.empty_heap()

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
        *ap.measure_in_turn(in_turn, devices=[gpu], warmup=1, repeats=5),
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
# The limit: the longer of products and pinned copies alone, each at its fastest, and one item of
# the other, since the first copy has no product yet to hide behind.

ablation = ap.recorded(eight_ways, name="b1_ablation", parameters=BOOK)
median_s = {label: each.median_s for label, each in ablation.measurements.items()}
count, alone = BOOK["count"], ("products alone", "pinned copies alone")
shorter_s, longer_s = sorted(ablation.measurements[label].min_s for label in alone)
limit_s = longer_s + shorter_s / count
limits_s = dict.fromkeys(WAYS, limit_s)
caption = f"{count} products, {count} copies"
ap.show(ap.compare(ablation.measurements, limit_s=limits_s, caption=caption))

# %%
# *Hidden* is by the times here: the share of what overlap could save that was saved, and it could
# save nearly all of the time of the pinned copies. Below none is a way that takes longer than one
# after the other, pinned.


def hidden(seconds, way):
    """Of the shorter part's time, what a way saves."""
    return ap.hidden_share([seconds[label] for label in alone], seconds[way])


others = [way for way in WAYS if way != BEST]
in_best = ablation.estimate(lambda s: hidden(s, BEST))
elsewhere = ablation.estimate(lambda s: max(hidden(s, way) for way in others))
ap.show(
    ap.claim(
        "From a side stream into warm pinned memory most copies hide.",
        in_best,
        at_least=0.8,
        unit="%",
    ),
    ap.claim("Few copies hide in any of the seven other ways.", elsewhere, at_most=0.2, unit="%"),
)

# %%
# Where the time of the others goes: per copy, over the limit. Fresh memory is handed out by page
# faults; what the driver does to pin need not count as such, and some systems count none at all.

faults = ablation.values
rows = [
    (way, f"{faults[way]:,.0f}", f"{1e3 * (median_s[way] - limit_s) / count:z.2f} ms")
    for way in WAYS
]
headers = ["way", "page faults", "over the limit"]
ap.show(ap.tabulate(headers, rows, caption="Per copy", origin=ablation.origin))

# %%
# See it
# ------
# Both panels have warm memory and a side stream. Above it is pageable: a product starts only when
# the copy before it is done. Below it is pinned: the host has long queued them all.

timelines = ablation.timelines
ap.show_timelines(
    timelines,
    "b1_where_a_copys_time_goes",
    title="A side stream, without and with pinning",
    caption="The same products, and copies of the same results; only the memory differs.",
    limit_s=limit_s,
)

# %%
# The same by the timelines: the share of the copies' time in which a product ran.

unpinned, pinned = (
    ablation.estimate(lambda _, way=way: timelines[way].hidden()) for way in (UNPINNED, BEST)
)
ap.show(
    ap.claim(
        "By the timeline, few copies into pageable memory hide.",
        unpinned,
        at_most=0.3,
        unit="%",
    ),
    ap.claim(
        "By the timeline, most copies into pinned memory hide.", pinned, at_least=0.8, unit="%"
    ),
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
            measured = ap.measure(work, label=label, warmup=1, repeats=7, size_bytes=moved)
            measurements.append(measured)
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
    f"{rates[curve][-1]:.1f} GB/s for one of {words[-1]}; half of this rate is reached at "
    f"{words[np.argmax(rates[curve] >= rates[curve][-1] / 2)]}"
    for curve in CURVES[::2]
]
rows = [(words[i], *(f"{rates[c][i]:.1f}" for c in CURVES)) for i in range(len(sizes))]
caption = "GB/s of pinned copies, queued one after another"
ap.show(ap.tabulate(["one copy", *CURVES], rows, caption=caption, origin=bus.origin, notes=notes))

# %%
# The same as curves. Where they are level, two GPUs have twice the rate of one.

ax = plt.subplots(layout="constrained")[1]
for curve, style in zip(CURVES, ("C0o-", "C0s-", "C1x--", "C1+--"), strict=True):
    ax.loglog(sizes, rates[curve], style, label=curve, markersize=4)
ax.set_xticks(sizes[::2], words[::2])
ax.set(title="Pinned copies of every size", xlabel=f"one copy\n{bus.origin}", ylabel="GB/s")
ax.legend()
ap.plot.show("b1_bandwidth")

# %%
# From 64 MiB on, by the direction and size that gain least:


def gain(seconds):
    """By how much two GPUs copy faster than one: bytes over seconds, over those of one."""
    pairs = itertools.product((CURVES[:2], CURVES[2:]), [n for n in sizes if n >= 2**26])
    return min(
        2 * seconds[f"{one}, {n} bytes"] / seconds[f"{two}, {n} bytes"] for (one, two), n in pairs
    )


twice = bus.estimate(gain)
ap.show(ap.claim("Two GPUs copy about twice as fast as one.", twice, at_least=1.7, unit="×"))

# %%
# On this machine
# ---------------
# Fresh pages cost time without a GPU too: a copy within the host, into memory that nobody has
# touched yet, and into memory that was written before. What was freed goes back to the system
# first, or an earlier tensor's pages would be used again.


def within_the_host(size):
    """A matrix into fresh and into touched memory."""
    x = ap.workload.matrix(size)
    touched, size_bytes = torch.ones_like(x), ap.workload.product_bytes(size)
    ways = {"fresh": lambda: torch.empty_like(x).copy_(x), "touched": lambda: touched.copy_(x)}
    checks = {f"{label}: equal": ap.workload.equal([way()], [x]) for label, way in ways.items()}
    measurements, values = [], {}
    for label, way in ways.items():
        ap.empty_heap()
        before = page_faults()
        way()
        values[label] = page_faults() - before
        measurements.append(
            ap.measure(way, label=label, setup=ap.empty_heap, repeats=10, size_bytes=size_bytes)
        )
    return ap.Findings(measurements, {}, checks, values)


here = ap.observed(within_the_host, name="copies within the host", parameters=HERE)
counted = "not counted here"
if page_faults():
    counted = " and ".join(f"{number:,.0f} ({label})" for label, number in here.values.items())
slower = here.estimate(lambda s: s["fresh"] / s["touched"])
ap.show(
    ap.compare(here.measurements, caption=f"36 MB within the host; page faults: {counted}"),
    ap.claim(
        "A copy into fresh memory takes longer than into touched memory.",
        slower,
        at_least=1.2,
        unit="×",
    ),
)

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
