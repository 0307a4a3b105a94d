"""
Hold the pipeline against its limits
====================================

| **You'll do:** every kind of copy that `CopyPipeline` makes, beside its limit and its rivals.
| **You'll learn:** how near the limits it is, where it isn't, and what it costs in memory and time.
| **You need:** nothing but this page; without two GPUs it shows records and runs on CPU lanes.

**The claim.** Where memory is pinned, the pipeline is within 3 % of the limit: copies behind
computing, copies alone, three at once, one GPU or two. Small tensors go many times faster than one
by one. Ordinary memory is as fast as the CPU can copy. Each row below is asserted.
"""

# %%
# The work
# --------
# All rows come from one run, and so do the parts that their limits are computed from: the time to
# compute, and the time to copy from and to pinned memory, in one direction or in both.

import os

import torch

import autopar as ap

E3 = {"count": 50, "size": 4000}
REGIMES = {"count": 48, "sizes": {"compute-bound": 4000, "balanced": 1760}, "copy_size": 4000}
PLAIN = {"total_bytes": 2_400_000_000, "threads": 24, "slots": {"16": [6, 16], "64": [3, 32]}}
SMALL = {"count": 10_000, "length": 1024}
COST = {"count": 5000, "slot_bytes": 4096}
AT_LEAST = 0.97
ROUNDS = 5


def keep(items):
    """All items, as a list."""
    return list(items)


def run_through(items):
    """Take each item, and let go of it."""
    for _ in items:
        pass


def copies(pinned, on_gpu, count):
    """The same copy to the host over and over."""
    for _ in range(count):
        pinned.copy_(on_gpu, non_blocking=True)


def duplex(pinned, on_gpu, count):
    """Copies in both directions at once."""
    back, there = torch.empty_like(pinned).pin_memory(), torch.empty_like(on_gpu)
    streams = [torch.cuda.Stream(on_gpu.device) for _ in range(2)]
    for _ in range(count):
        with torch.cuda.stream(streams[0]):
            there.copy_(pinned, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            back.copy_(on_gpu, non_blocking=True)


# %%
# Behind the computing
# --------------------
# E3's products and copies once more: into pinned results from torch's pool, and into ordinary
# memory that was touched before. Beside them what people write instead.


def behind_computing(count, size):
    """E3 through the pipeline, and in four usual ways."""
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
    """The longer part, and one item of the other."""
    parts = sorted(record.measurements[label].median_s for label in (first, second))
    return parts[1] + parts[0] / count


e3 = ap.recorded(behind_computing, name="b5_behind_computing", parameters=E3)
least_s = bounds(e3, "compute", "copy", E3["count"])
ways = [label for label in e3.measurements if label not in ("compute", "copy")]
table = ap.compare(
    e3.measurements,
    limit_s=dict.fromkeys(ways, least_s),
    baseline=".cpu() each",
    caption="50 products, and their results to the host",
)
ap.show(table)
assert least_s / e3.measurements["pipeline, pin=True"].median_s >= 0.99
assert least_s / e3.measurements["pipeline, out"].median_s >= AT_LEAST

# %%
# Fresh memory is the caller's choice: the system clears each page before it hands it out.
#
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
                return keep(pipeline.to_host((work(x) for _ in range(count)), pin=True))

            def both(pinned=pinned, pipeline=pipeline, work=work):
                return keep(pipeline.map(work, [pinned] * count, pin=True))

            spare = torch.empty_like(pinned).pin_memory()
            ways = {
                f"{regime}: compute": lambda x=x, work=work: [work(x) for _ in range(count)],
                f"{regime}: copy": lambda x=x, spare=spare: copies(spare, x, count),
                f"{regime}: duplex": lambda x=x, pinned=pinned: duplex(pinned, x, count),
                f"{regime}: to_host": there,
                f"{regime}: map": both,
            }
            for way in (there, both):
                results = way()
                equal = all(torch.equal(each.to(gpu), work(x)) for each in results)
                checks[f"{regime}, {way.__name__}: equal"] = equal
            measurements += ap.measure_in_turn(ways, devices=[gpu], repeats=ROUNDS)
    return ap.Findings(measurements, {}, checks)


three = ap.recorded(regimes, name="b5_regimes", parameters=REGIMES)
limits = {}
for regime in (*REGIMES["sizes"], "copy-bound"):
    item_s = {
        part: three.measurements[f"{regime}: {part}"].median_s / REGIMES["count"]
        for part in ("compute", "copy", "duplex")
    }
    others = REGIMES["count"] - 1
    stations = item_s["compute"], item_s["copy"]
    limits[f"{regime}: to_host"] = sum(stations) + others * max(stations)
    stations = item_s["duplex"], item_s["compute"], item_s["duplex"]
    limits[f"{regime}: map"] = sum(stations) + others * max(stations)
shown = [three.measurements[label] for label in limits]
ap.show(ap.compare(shown, limit_s=limits, caption="Three regimes, over pinned memory"))
for label, limit in limits.items():
    assert limit / three.measurements[label].median_s >= AT_LEAST, label

# %%
# Into ordinary memory
# --------------------
# Here the CPU must copy each byte once more, from a pinned slot to where it is to go. So there are
# two limits: the bus, and what the CPU's threads copy from memory to memory in the same run.


def into_ordinary_memory(total_bytes, threads, slots):
    """Tensors of several sizes into touched memory, beside pinned copies and the CPU's own."""
    gpu = ap.gpu(0)
    threads = min(threads, os.cpu_count())
    measurements, checks = [], {}
    for mb, (number, mib) in ((int(mb), each) for mb, each in slots.items()):
        count, length = total_bytes // (mb * 10**6), mb * 10**6 // 4
        y = torch.arange(length, dtype=torch.int32, device=gpu)
        pinned = torch.empty_like(y, device="cpu").pin_memory()
        outs = [torch.zeros(length, dtype=torch.int32) for _ in range(count)]

        def by_cpu(outs=outs, pinned=pinned):
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            for out in outs:
                out.copy_(pinned)
            torch.set_num_threads(before)

        ring = {"slots": number, "slot_bytes": mib << 20, "threads": threads}
        with ap.CopyPipeline(gpu, **ring) as pipeline:

            def through(y=y, outs=outs, pipeline=pipeline):
                run_through(pipeline.to_host([y] * len(outs), out=outs))

            through()
            checks[f"{mb} MB: equal"] = all(torch.equal(out, y.cpu()) for out in outs)
            ways = {
                f"{mb} MB: pinned copies": lambda pinned=pinned, y=y, n=count: copies(pinned, y, n),
                f"{mb} MB: the CPU alone": by_cpu,
                f"{mb} MB: copy_ each": lambda outs=outs, y=y: [out.copy_(y) for out in outs],
                f"{mb} MB: pipeline": through,
            }
            measurements += ap.measure_in_turn(ways, devices=[gpu], warmup=1, repeats=ROUNDS)
    return ap.Findings(measurements, {}, checks)


plain = ap.recorded(into_ordinary_memory, name="b5_ordinary_memory", parameters=PLAIN)
limits = {
    label: plain.measurements[f"{label.partition(':')[0]}: pinned copies"].median_s
    for label in plain.measurements
    if "pinned" not in label
}
ap.show(ap.compare(plain.measurements, limit_s=limits, caption="2.4 GB into touched memory"))
for mb in PLAIN["slots"]:
    parts = {
        label: plain.measurements[f"{mb} MB: {label}"].median_s
        for label in ("pinned copies", "the CPU alone", "copy_ each", "pipeline")
    }
    slower_s = max(parts["pinned copies"], parts["the CPU alone"])
    print(f"{mb} MB: {slower_s / parts['pipeline']:.0%} of the slower of bus and CPU")
    assert parts["pipeline"] < parts["copy_ each"], "torch's own copies are faster"

# %%
# Two GPUs, many small tensors, and the cost
# ------------------------------------------
# One pipeline and one thread for each GPU. 10,000 tensors of 4 kB, packed into few copies. And
# what a chunk costs the host, where nothing has to be waited for.


def two_gpus(count, size):
    """Copies from one GPU and from two at once."""
    gpus = [ap.gpu(0), ap.gpu(1)]
    tensors = [ap.workload.matrix(size, gpu) for gpu in gpus]
    with ap.CopyPipeline(gpus[0]) as first, ap.CopyPipeline(gpus[1]) as second:

        def one(i):
            return keep((first, second)[i].to_host([tensors[i]] * count, pin=True))

        def both():
            pairs = [[tensor] * count for tensor in tensors]
            return keep(
                zip(
                    first.to_host(pairs[0], pin=True),
                    second.to_host(pairs[1], pin=True),
                    strict=True,
                )
            )

        checks = {
            f"GPU {i}: equal": ap.workload.equal(one(i), [tensors[i]] * count) for i in (0, 1)
        }
        ways = {"GPU 0": lambda: one(0), "GPU 1": lambda: one(1), "both": both}
        measurements = ap.measure_in_turn(ways, repeats=ROUNDS)
    return ap.Findings(measurements, {}, checks)


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
                repeats=ROUNDS,
                setup=lambda: torch.ones(1).pin_memory(),
            )
            for label, way in ways.items()
        ]
    return ap.Findings(measurements, {}, checks)


def cost(count, slot_bytes):
    """Host time for a chunk, and pinned memory."""
    gpu = ap.gpu(0)
    tensor = torch.zeros(count * slot_bytes, dtype=torch.uint8, device=gpu)
    out = torch.zeros(count * slot_bytes, dtype=torch.uint8)
    with ap.CopyPipeline(gpu, slots=64, slot_bytes=slot_bytes) as pipeline:
        chunks = {
            "to the host": lambda: run_through(pipeline.to_host([tensor], out=[out])),
            "from the host": lambda: run_through(pipeline.prefetch([out])),
        }
        measurements = ap.measure_in_turn(chunks, devices=[gpu], repeats=ROUNDS)
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


pair = ap.recorded(two_gpus, name="b5_two_gpus", parameters=E3, gpus=2)
many = ap.recorded(small_tensors, name="b5_small_tensors", parameters=SMALL)
spent = ap.recorded(cost, name="b5_cost", parameters=COST)
median_s = {label: one.median_s for label, one in pair.measurements.items()}
gain = (median_s["GPU 0"] + median_s["GPU 1"]) / median_s["both"]
rival = ".to(non_blocking) each"
ap.show(ap.compare(many.measurements, baseline=rival, caption="10,000 tensors of 4 kB to the host"))
packed = many.measurements[rival].median_s / many.measurements["pipeline, pin=True"].median_s
print(f"Two GPUs at once: {gain:.2f} x one. Small tensors: {packed:.1f} x faster than one by one.")
for label, one in spent.measurements.items():
    print(f"A chunk {label} costs the host {1e6 * one.median_s / COST['count']:.1f} us.")
for name, value in spent.values.items():
    print(f"{name}: {value:,.0f}")
assert gain >= 1.95, "two GPUs get in each other's way"
assert packed >= 5, "packing gains less than it did"
assert spent.values["bytes pinned"] <= spent.values["bytes of two rings"] + 2 * 2**20
assert spent.values["pinned allocations after the first round"] == 0

# %%
# See it
# ------

ap.plot.bars(
    [e3.measurements[label] for label in ways],
    limit_s=dict.fromkeys(ways, least_s),
    title="50 products, and their results to the host",
)
ap.plot.show("b5_against_the_limits")

# %%
# On this machine
# ---------------
# A CPU has no second engine to copy with, so the pipeline can gain nothing here; this is what it
# costs beside a plain copy.


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
