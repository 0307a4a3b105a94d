# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Hold the pipeline against its limits
====================================

| **You'll do:** every kind of copy that `CopyPipeline` makes, beside its limit and its rivals.
| **You'll learn:** how near the limits it is, where it isn't, and what it costs in memory and time.
| **You need:** nothing but this page; without two GPUs it shows records and runs on CPU lanes.

**The claim.** Where memory is pinned, the pipeline saves most of what overlap can save: copies
behind computing, three at once, one GPU or two. Many small tensors go faster together than one by
one. Into ordinary memory a ring of slots beats torch's own copy, and how near it comes to the rate
into pinned memory is a matter of its slots and threads. The table of goals has each figure beside
the one that was set for it, and says which are missed.
"""

# %%
# The work
# --------
# All rows of a table come from one run, and so do the parts that their limits are computed from:
# the time to compute, and the time to copy from and to pinned memory, in one direction or in both.

import functools

import torch

import autopar as ap

BEHIND = {"count": 30, "size": 4000}
REGIMES = {"count": 40, "sizes": {"compute-bound": 4000, "balanced": 1760}, "copy_size": 4000}
RINGS = {
    "the default ring": {},
    "6 slots of 16 MiB, 24 threads": {"slots": 6, "slot_bytes": 16 << 20, "threads": 24},
    "6 slots of 16 MiB, 6 threads": {"slots": 6, "slot_bytes": 16 << 20, "threads": 6},
}
ORDINARY = {"total_bytes": 960_000_000, "sizes_mb": [16, 64], "rings": RINGS}
TWO = {"count": 40, "size": 4000}
SMALL = {"count": 10_000, "length": 1024}
COST = {"count": 5000, "slot_bytes": 4096}
COPY = "copy_ each"
ROUNDS, MANY_ROUNDS = 5, 7  # of what takes seconds, and of what doesn't


def keep(items):
    """All items, as a list."""
    return list(items)


def run_through(items):
    """Take each item, and let go of it."""
    for _ in items:
        pass


def copies(to, source, count):
    """The same copy over and over."""
    for _ in range(count):
        to.copy_(source, non_blocking=True)


def duplex(pinned, on_gpu, count):
    """Copies in both directions at once: from one pair of tensors, and into the other."""
    streams = [torch.cuda.Stream(on_gpu[0].device) for _ in range(2)]
    for _ in range(count):
        with torch.cuda.stream(streams[0]):
            on_gpu[1].copy_(pinned[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            pinned[1].copy_(on_gpu[0], non_blocking=True)


# %%
# Behind the computing
# --------------------
# The chapter's products and copies once more: into pinned results from torch's pool, and into
# ordinary memory that was touched before. Beside them what people write instead.


def behind_computing(count, size):
    """Products and copies through the pipeline, and in three usual ways."""
    gpu = ap.gpu(0)
    x = ap.workload.matrix(size, gpu)
    y, outs = x.mm(x), [torch.zeros(size, size) for _ in range(count)]
    pinned = torch.empty(size, size).pin_memory()

    def products():
        return (x.mm(x) for _ in range(count))

    with ap.CopyPipeline(gpu) as pipeline:
        ways = {
            "compute": lambda: keep(products()),
            "copy": lambda: copies(pinned, y, count),
            "pipeline, pin=True": lambda: keep(pipeline.to_host(products(), pin=True)),
            "pipeline, out": lambda: keep(pipeline.to_host(products(), out=outs)),
            "pipeline, fresh memory": lambda: keep(pipeline.to_host(products())),
            ".cpu() each": lambda: [each.cpu() for each in products()],
            ".to(non_blocking) each": lambda: [
                each.to("cpu", non_blocking=True) for each in products()
            ],
            "pin, then copy": lambda: [
                torch.empty(size, size, pin_memory=True).copy_(each) for each in products()
            ],
        }
        checks = {}
        for way in list(ways)[2:]:
            results = ways[way]()
            ap.synchronize(gpu)
            checks[f"{way}: equal"] = all(torch.equal(each.to(gpu), y) for each in results)
            del results
            for out in outs:
                out.fill_(torch.nan)
        measurements = ap.measure_in_turn(ways, devices=[gpu], warmup=1, repeats=ROUNDS)
    return ap.Findings(measurements, {}, checks)


def bounds(record, first, second, count):
    """The longer part at its fastest, and one item of the other."""
    parts = sorted(record.measurements[label].min_s for label in (first, second))
    return parts[1] + parts[0] / count


# %%
# *Hidden* is by the times here: of what overlap could save, the share that was saved.

behind = ap.recorded(behind_computing, name="b5_behind_computing", parameters=BEHIND)
least_s = bounds(behind, "compute", "copy", BEHIND["count"])
ways = [label for label in behind.measurements if label not in ("compute", "copy")]
title = f"{BEHIND['count']} products, and their results to the host"
limits = dict.fromkeys(ways, least_s)
hidden = {
    way: behind.estimate(lambda s, way=way: ap.hidden_share([s["compute"], s["copy"]], s[way]))
    for way in ways
}
ap.show(
    ap.compare(
        behind.measurements,
        limit_s=limits,
        baseline=".cpu() each",
        parts=("compute", "copy"),
        caption=title,
    ),
    ap.claim(
        "The pipeline hides most copies into pinned memory.",
        hidden["pipeline, pin=True"],
        at_least=0.8,
        unit="%",
    ),
    ap.claim(
        "The pipeline hides most copies into touched ordinary memory.",
        hidden["pipeline, out"],
        at_least=0.6,
        unit="%",
    ),
)

# %%
# Fresh memory is the caller's choice: the system clears each page before it hands it out.

# %%
# Compute-bound, balanced, copy-bound
# -----------------------------------
# `to_host` and `map`, over pinned memory: work that takes longer than its copies, as long, and
# next to no time.


def regimes(count, sizes, copy_size):
    """To the host, and there and back, for products of two sizes and for a sum."""
    gpu = ap.gpu(0)
    measurements, checks = [], {}
    for regime, size in {**sizes, "copy-bound": copy_size}.items():
        x = ap.workload.matrix(size, gpu)
        pinned = x.cpu().pin_memory()

        def work(each, x=x, regime=regime):
            return each + 1 if regime == "copy-bound" else each.mm(x)

        with ap.CopyPipeline(gpu) as pipeline:

            def there(x=x, pipeline=pipeline, work=work):
                return pipeline.to_host((work(x) for _ in range(count)), pin=True)

            def both(pinned=pinned, pipeline=pipeline, work=work):
                return pipeline.map(work, [pinned] * count, pin=True)

            hosts, gpus = (pinned, torch.empty_like(pinned).pin_memory()), (x, torch.empty_like(x))
            ways = {
                f"{regime}: compute": lambda x=x, work=work: [work(x) for _ in range(count)],
                f"{regime}: copy": lambda x=x, hosts=hosts: copies(hosts[1], x, count),
                f"{regime}: duplex": lambda hosts=hosts, gpus=gpus: duplex(hosts, gpus, count),
                f"{regime}: to_host": lambda there=there: run_through(there()),
                f"{regime}: map": lambda both=both: run_through(both()),
            }
            for way in (there, both):
                equal = all(torch.equal(each.to(gpu), work(x)) for each in way())
                checks[f"{regime}, {way.__name__}: equal"] = equal
            measured = ap.measure_in_turn(ways, devices=[gpu], warmup=1, repeats=MANY_ROUNDS)
            measurements += measured
    return ap.Findings(measurements, {}, checks)


# %%
# The limit of `map` is that of the page *Copy both ways while you compute*; `to_host` has one copy
# less, and nothing comes the other way.

three = ap.recorded(regimes, name="b5_regimes", parameters=REGIMES)
limits, others = {}, REGIMES["count"] - 1
in_regimes = (*REGIMES["sizes"], "copy-bound")
for regime in in_regimes:
    compute_s, copy_s, both_s = (
        three.measurements[f"{regime}: {part}"].min_s / REGIMES["count"]
        for part in ("compute", "copy", "duplex")
    )
    limits[f"{regime}: to_host"] = compute_s + copy_s + others * max(compute_s, copy_s)
    limits[f"{regime}: map"] = 2 * copy_s + compute_s + others * max(compute_s, both_s)


def saved(seconds, regime):
    """Of what overlap can save, what `map` saves."""
    parts = [seconds[f"{regime}: {part}"] for part in ("compute", "copy", "copy")]
    return ap.hidden_share(parts, seconds[f"{regime}: map"])


least = three.estimate(lambda s: min(saved(s, regime) for regime in in_regimes))
shown = [three.measurements[label] for label in limits]
ap.show(
    ap.compare(shown, limit_s=limits, caption="Three regimes, over pinned memory"),
    ap.claim(
        "In each of three regimes map saves most of what overlap can.",
        least,
        at_least=0.7,
        unit="%",
    ),
)

# %%
# Into ordinary memory
# --------------------
# Here the CPU must copy each byte once more, from a pinned slot to where it is to go. So the
# memory carries it three times at least: written by the bus, read by the CPU, and written again.
# Several threads share that work; how many are best, and how many slots keep them busy, differs
# from machine to machine. These are three rings to try.


def into_ordinary_memory(total_bytes, sizes_mb, rings):
    """Tensors of some sizes into touched memory, beside pinned memory in the same rounds."""
    gpu, measurements, checks = ap.gpu(0), [], {}
    for mb in sizes_mb:
        y = torch.arange(mb * 10**6 // 4, dtype=torch.int32, device=gpu)
        pinned, there = torch.empty_like(y, device="cpu").pin_memory(), y.cpu()
        outs = [torch.zeros_like(there) for _ in range(total_bytes // y.nbytes)]

        def from_each(source, outs=outs):
            for out in outs:
                out.copy_(source)

        def through(pipeline, y=y, outs=outs):
            run_through(pipeline.to_host([y] * len(outs), out=outs))

        def beside_pinned(way, label, mb=mb, y=y, pinned=pinned, outs=outs):
            ways = {f"{mb} MB, {label}: pinned": lambda: copies(pinned, y, len(outs))}
            ways[f"{mb} MB, {label}"] = way
            return ap.measure_in_turn(ways, devices=[gpu], warmup=1, repeats=ROUNDS)

        measurements += beside_pinned(functools.partial(from_each, pinned), "the CPU alone")
        measurements += beside_pinned(functools.partial(from_each, y), COPY)
        for label, ring in rings.items():
            with ap.CopyPipeline(gpu, **ring) as pipeline:
                for out in outs:
                    out.zero_()
                through(pipeline)
                checks[f"{mb} MB, {label}: equal"] = all(torch.equal(out, there) for out in outs)
                measurements += beside_pinned(functools.partial(through, pipeline), label)
    return ap.Findings(measurements, {}, checks)


def share(seconds, label):
    """Of the rate into pinned memory, in the same rounds."""
    return seconds[f"{label}: pinned"] / seconds[label]


def gain(seconds):
    """By how much the default ring is faster than torch's copy, for the size that gains least."""
    ring = next(iter(RINGS))
    return min(
        seconds[f"{mb} MB, {COPY}"] / seconds[f"{mb} MB, {ring}"] for mb in ORDINARY["sizes_mb"]
    )


plain = ap.recorded(into_ordinary_memory, name="b5_ordinary_memory", parameters=ORDINARY)
into_s = {label: one.median_s for label, one in plain.measurements.items()}
rows = [
    (way, f"{ORDINARY['total_bytes'] / into_s[way] / 1e9:.1f} GB/s", f"{share(into_s, way):.1%}")
    for way in into_s
    if not way.endswith(": pinned")
]
headers = ["into touched memory", "rate", "of that into pinned memory"]
faster = plain.estimate(gain)
ap.show(
    ap.tabulate(headers, rows, caption="Into ordinary memory", origin=plain.origin),
    ap.claim(
        "Into ordinary memory the default ring is faster than copy_.",
        faster,
        at_least=1.3,
        unit="×",
    ),
)

# %%
# What the default ring leaves, and which ring does best here:

shares = {}
for mb in ORDINARY["sizes_mb"]:
    of_ring = {ring: share(into_s, f"{mb} MB, {ring}") for ring in RINGS}
    best = max(of_ring, key=of_ring.get)
    shares[f"into ordinary memory, {mb} MB each, {best}"] = of_ring[best]
    print(
        f"{mb} MB: the default ring reaches {of_ring['the default ring']:.1%} of the pinned rate,"
    )
    print(f"and the best of these, {best}, {of_ring[best]:.1%}.")

# %%
# Two GPUs
# --------
# A pipeline for each, taken from by turns.


def two_gpus(count, size):
    """Copies from one GPU and from two at once."""
    gpus = [ap.gpu(0), ap.gpu(1)]
    tensors = [ap.workload.matrix(size, gpu) for gpu in gpus]
    with ap.CopyPipeline(gpus[0]) as first, ap.CopyPipeline(gpus[1]) as second:

        def of(i):
            return (first, second)[i].to_host([tensors[i]] * count, pin=True)

        there = [each.cpu() for each in tensors]
        checks = {f"GPU {i}: equal": ap.workload.equal(of(i), [there[i]] * count) for i in (0, 1)}
        ways = {
            "GPU 0": lambda: run_through(of(0)),
            "GPU 1": lambda: run_through(of(1)),
            "both": lambda: run_through(zip(of(0), of(1), strict=True)),
        }
        measurements = ap.measure_in_turn(ways, warmup=1, repeats=MANY_ROUNDS)
    return ap.Findings(measurements, {}, checks)


pair = ap.recorded(two_gpus, name="b5_two_gpus", parameters=TWO, gpus=2)
twice = pair.estimate(lambda s: (s["GPU 0"] + s["GPU 1"]) / s["both"])
ap.show(
    ap.compare(pair.measurements, caption=f"{TWO['count']} copies from each GPU"),
    ap.claim(
        "With a pipeline each, two GPUs copy about twice as much as one.",
        twice,
        at_least=1.7,
        unit="×",
    ),
)

# %%
# Many small tensors
# ------------------
# They are put together on the GPU, travel in few copies, and are taken apart on the host.


def small_tensors(count, length):
    """Many small tensors, one by one and through the pipeline."""
    gpu = ap.gpu(0)
    tensors = [torch.full((length,), float(i), device=gpu) for i in range(count)]
    with ap.CopyPipeline(gpu) as pipeline:
        ways = {
            ".cpu() each": lambda: [each.cpu() for each in tensors],
            ".to(non_blocking) each": lambda: [
                each.to("cpu", non_blocking=True) for each in tensors
            ],
            "pipeline, pin=True": lambda: keep(pipeline.to_host(tensors, pin=True)),
            "pipeline": lambda: keep(pipeline.to_host(tensors)),
        }
        checks = {}
        for way in list(ways)[2:]:
            checks[f"{way}: equal"] = torch.equal(
                torch.stack(ways[way]()), torch.stack(tensors).cpu()
            )
        # Pinned memory that was dropped is sorted out at the next allocation: before the clock.
        measurements = [
            ap.measure(
                way,
                label=label,
                devices=[gpu],
                warmup=1,
                repeats=ROUNDS,
                setup=lambda: torch.ones(1).pin_memory(),
            )
            for label, way in ways.items()
        ]
    return ap.Findings(measurements, {}, checks)


many = ap.recorded(small_tensors, name="b5_small_tensors", parameters=SMALL)
rival = ".to(non_blocking) each"
packed = many.estimate(lambda s: s[rival] / s["pipeline, pin=True"])
ap.show(
    ap.compare(many.measurements, baseline=rival, caption="10,000 tensors of 4 kB to the host"),
    ap.claim(
        "Many small tensors go faster together than one by one.", packed, at_least=2, unit="×"
    ),
)

# %%
# What it costs
# -------------
# Host time for a chunk, from many that are too small to wait for, beside bare copies of as many
# bytes; and pinned memory: as much as the two rings have, and none once they are there.


def cost(count, slot_bytes):
    """Host time for a chunk, and pinned memory."""
    gpu = ap.gpu(0)
    tensor = torch.zeros(count * slot_bytes, dtype=torch.uint8, device=gpu)
    out = torch.zeros(count * slot_bytes, dtype=torch.uint8)
    small, pinned = tensor[:slot_bytes], torch.zeros(slot_bytes, dtype=torch.uint8).pin_memory()
    with ap.CopyPipeline(gpu, slots=64, slot_bytes=slot_bytes) as pipeline:
        chunks = {
            "to the host": lambda: run_through(pipeline.to_host([tensor], out=[out])),
            "from the host": lambda: run_through(pipeline.prefetch([out])),
            "to the host, copy_": lambda: copies(pinned, small, count),
            "from the host, copy_": lambda: copies(small, pinned, count),
        }
        measurements = ap.measure_in_turn(chunks, devices=[gpu], warmup=1, repeats=MANY_ROUNDS)
    ap.empty_pinned_pool()
    before = torch.cuda.host_memory_stats()
    inputs, outs = ([torch.full((4000, 4000), fill) for _ in range(8)] for fill in (1.0, 0.0))
    with ap.CopyPipeline(gpu) as pipeline:

        def everything():
            run_through(pipeline.map(lambda x: x + 1, inputs, out=outs))

        everything()
        warm = torch.cuda.host_memory_stats()
        for _ in range(5):
            everything()
        after = torch.cuda.host_memory_stats()
        ring_bytes = 2 * pipeline.slots * pipeline.slot_bytes
    values = {
        "bytes pinned": after["allocated_bytes.current"] - before["allocated_bytes.current"],
        "bytes of two rings": ring_bytes,
        "pinned allocations after the first round": after["num_host_alloc"]
        - warm["num_host_alloc"],
    }
    checks = {"equal": all(torch.equal(out, x + 1) for out, x in zip(outs, inputs, strict=True))}
    return ap.Findings(measurements, {}, checks, values)


spent = ap.recorded(cost, name="b5_cost", parameters=COST)
each_us = {label: 1e6 * one.median_s / COST["count"] for label, one in spent.measurements.items()}
for way in ("to the host", "from the host"):
    print(
        f"A chunk {way} costs the host {each_us[way]:.1f} us, copy_ {each_us[f'{way}, copy_']:.1f}."
    )

# %%
# Reached, and the goal
# ---------------------
# How near the limits the pipeline is, by all the runs above. These are benchmarks of the pipeline:
# a busy machine has other figures, and none of them is claimed of yours.

GOALS, percent = {"pipeline, pin=True": 0.99, "pipeline, out": 0.97}, "{:.1%}".format
rows = [
    (f"{way}, of the limit", least_s / behind.measurements[way].median_s, "at least", goal, percent)
    for way, goal in GOALS.items()
]
rows += [
    (f"{way}, of the limit", limit / three.measurements[way].median_s, "at least", 0.97, percent)
    for way, limit in limits.items()
]
rows += [
    (f"{way}, of the pinned rate", reached, "at least", 0.9, percent)
    for way, reached in shares.items()
]
rows.append(("small tensors, over one by one", packed.value, "at least", 5, "{:.1f} x".format))
rows += [
    (f"host time for a chunk {way}", each_us[way], "at most", 20, "{:.1f} us".format)
    for way in ("to the host", "from the host")
]
pinned, rings, anew = spent.values.values()
mib = "{:.0f} MiB".format
rows.append(("pinned memory, for two rings", pinned / 2**20, "at most", rings / 2**20, mib))
rows.append(("pinned allocations after the first round", anew, "at most", 0, "{:.0f}".format))
origins = [behind.origin] * len(GOALS) + [three.origin] * len(limits)
origins += [plain.origin] * len(shares) + [many.origin] + [spent.origin] * 4
ap.show(ap.against_goals(rows, caption="The pipeline", origin=origins))

# %%
# See it
# ------
# Without the slowest way, which would need ten times the width.

quick = [label for label in ways if label != ".cpu() each"]
ap.plot.bars(
    [behind.measurements[label] for label in quick],
    limit_s=dict.fromkeys(quick, least_s),
    title=title,
)
ap.plot.show("b5_against_the_limits")

# %%
# On this machine
# ---------------
# A CPU has no engine for copies, and here is nothing to compute meanwhile that could hide them. So
# this is what the pipeline costs beside a plain copy.


def here_and_now(count, size):
    """Copies within the host, plain and through a pipeline."""
    tensors = [ap.workload.matrix(size, seed=i) for i in range(count)]
    outs = [torch.zeros(size, size) for _ in tensors]
    with ap.CopyPipeline("cpu") as pipeline:
        ways = {
            "copy_ each": lambda: [out.copy_(x) for out, x in zip(outs, tensors, strict=True)],
            "pipeline": lambda: keep(pipeline.to_host(tensors, out=outs)),
        }
        checks = {way: ap.workload.equal(ways[way](), tensors) for way in ways}
        measurements = ap.measure_in_turn(ways, repeats=7)
    return ap.Findings(measurements, {}, checks)


here = ap.observed(here_and_now, name="the pipeline here", parameters={"count": 16, "size": 1000})
ap.show(ap.compare(here.measurements, caption="16 matrices of 4 MB within the host"))

# %%
# When this does not help
# -----------------------
# A pipeline needs something to overlap. One tensor that is waited for at once takes the copy and a
# little more. And fresh ordinary memory stays slow whoever fills it.
#
# Now you
# -------
# Which row of the tables would change on a machine with a slower CPU, and which on one with a
# slower bus? Run this page there, and see.
