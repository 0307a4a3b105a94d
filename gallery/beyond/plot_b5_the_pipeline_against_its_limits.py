"""
Hold the pipeline against its limits
====================================

| **You'll do:** every kind of copy that `CopyPipeline` makes, beside its limit and its rivals.
| **You'll learn:** how near the limits it is, where it isn't, and what it costs in memory and time.
| **You need:** nothing but this page; without two GPUs it shows records and runs on CPU lanes.

**The claim.** Where memory is pinned, the pipeline is within 3 % of the limit: copies behind
computing, copies alone, three at once, one GPU or two. Small tensors go 5 times faster than one by
one, or more. Into ordinary memory the best ring reaches 90 % of the pinned rate or more, in a
process whose C library was told to write past the caches. Each is asserted.
"""

# %%
# The work
# --------
# All rows come from one run, and so do the parts that their limits are computed from: the time to
# compute, and the time to copy from and to pinned memory, in one direction or in both.

import torch

import autopar as ap

E3 = {"count": 50, "size": 4000}
REGIMES = {"count": 100, "sizes": {"compute-bound": 4000, "balanced": 1760}, "copy_size": 4000}
RINGS = ([3, 32, 16], [6, 16, 24], [6, 16, 6], [8, 16, 6])
PLAIN = {"total_bytes": 6_400_000_000, "sizes_mb": [16, 64], "rings": RINGS}
TWO = {"count": 100, "size": 4000}
SMALL = {"count": 10_000, "length": 1024}
COST = {"count": 5000, "slot_bytes": 4096}
AT_LEAST = 0.97
ROUNDS, MANY_ROUNDS = 5, 11  # of what takes seconds, and of what doesn't


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

# %%
# Fresh memory is the caller's choice: the system clears each page before it hands it out. The
# claim, on the numbers:

assert least_s / e3.measurements["pipeline, pin=True"].median_s >= 0.99
assert least_s / e3.measurements["pipeline, out"].median_s >= AT_LEAST

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
            measurements += ap.measure_in_turn(ways, devices=[gpu], repeats=MANY_ROUNDS)
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

# %%
# The claim, on the numbers:

for label, limit in limits.items():
    assert limit / three.measurements[label].median_s >= AT_LEAST, label

# %%
# Into ordinary memory
# --------------------
# Here the CPU must copy each byte once more, from a pinned slot to where it is to go. So the
# memory carries it three times: written by the bus, read by the CPU, and written again. By itself
# the C library makes that four: it reads each line of the cache that it is about to overwrite,
# unless what it copies is larger than a threshold, which it takes from the size of the caches. A
# process can be started with a lower one.

TOLD = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x40000"}
for name, value in TOLD.items():
    print(f"{name}={value} python train.py")


def into_ordinary_memory(total_bytes, sizes_mb, rings, rounds):
    """Tensors of some sizes into touched memory, beside pinned memory; seconds by round."""
    import torch

    import autopar as ap

    gpu, taken_s, checks = ap.gpu(0), {}, {}

    def beside(pinned, label, way):
        ways = {f"{label}: pinned": pinned, label: way}
        measured = ap.measure_in_turn(ways, devices=[gpu], warmup=2, repeats=rounds)
        taken_s.update({one.label: one.values_s for one in measured})

    for mb in sizes_mb:
        y = torch.arange(mb * 10**6 // 4, dtype=torch.int32, device=gpu)
        pinned, there = torch.empty_like(y, device="cpu").pin_memory(), y.cpu()
        outs = [torch.zeros_like(there) for _ in range(total_bytes // y.nbytes)]

        def into_pinned(pinned=pinned, y=y, outs=outs):
            for _ in outs:
                pinned.copy_(y, non_blocking=True)

        def by_cpu(pinned=pinned, outs=outs):
            for out in outs:
                out.copy_(pinned)

        def by_torch(y=y, outs=outs):
            for out in outs:
                out.copy_(y)

        beside(into_pinned, f"{mb} MB, the CPU alone", by_cpu)
        beside(into_pinned, f"{mb} MB, copy_ each", by_torch)
        for slots, mib, threads in rings:
            ring = {"slots": slots, "slot_bytes": mib << 20, "threads": threads}
            label = f"{mb} MB, {slots} slots of {mib} MiB, {threads} threads"
            with ap.CopyPipeline(gpu, **ring) as pipeline:

                def through(y=y, outs=outs, pipeline=pipeline):
                    for _ in pipeline.to_host([y] * len(outs), out=outs):
                        pass

                for out in outs:
                    out.zero_()
                through()
                checks[label] = ap.workload.equal(outs, [there] * len(outs))
                beside(into_pinned, label, through)
    return taken_s, checks


def as_it_is_and_told(total_bytes, sizes_mb, rings):
    """The same in two processes, of which one is told to write past the caches."""
    measurements, checks, work = [], {}, (total_bytes, sizes_mb, rings, ROUNDS)
    for process, environment in {"as it is": {}, "told": TOLD}.items():
        taken_s, equal = ap.in_fresh_process(into_ordinary_memory, *work, environment=environment)
        measurements += [ap.Measurement(f"{process}, {way}", s) for way, s in taken_s.items()]
        checks |= {f"{process}, {way}: equal": held for way, held in equal.items()}
    return ap.Findings(measurements, {}, checks)


def share(label):
    """Of the rate into pinned memory, in the same rounds."""
    pinned, one = (plain.measurements[each] for each in (f"{label}: pinned", label))
    return pinned.median_s / one.median_s


plain = ap.recorded(as_it_is_and_told, name="b5_ordinary_memory", parameters=PLAIN)
processes = "as it is", "told"
into = [label.removeprefix("told, ") for label in plain.measurements if label.startswith("told, ")]
into = [way for way in into if not way.endswith(": pinned")]
rows = []
for way in into:
    labels = [f"{process}, {way}" for process in processes]
    rates = [PLAIN["total_bytes"] / plain.measurements[label].median_s for label in labels]
    cells = [f"{rate / 1e9:.1f} GB/s" for rate in rates]
    rows.append([way, *cells, *(f"{share(label):.1%}" for label in labels)])
headers = ["into touched memory", *processes, *(f"{each}, of pinned" for each in processes)]
caption = "Rate, and its share of that into pinned memory in the same rounds"
ap.show(ap.tabulate(headers, rows, caption=caption, origin=plain.origin))

# %%
# Which ring does best differs from machine to machine: these are four to try, the default first.
# With no more threads than slots, each thread empties slots by the C library's copy; with more,
# several share a slot by torch's, which does not know of the threshold. The claim, on the numbers:

for mb in PLAIN["sizes_mb"]:
    rings = [way for way in into if way.startswith(f"{mb} MB") and "slots" in way]
    best = max(rings, key=lambda way: share(f"told, {way}"))
    print(f"{best}: {share(f'told, {best}'):.1%} of the pinned rate,")
    print(f"and in a process as it is {share(f'as it is, {best}'):.1%}.")
    assert share(f"told, {best}") >= 0.9, "the CPU holds the pipeline up"

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

        checks = {f"GPU {i}: equal": ap.workload.equal(of(i), [tensors[i]] * count) for i in (0, 1)}
        ways = {
            "GPU 0": lambda: run_through(of(0)),
            "GPU 1": lambda: run_through(of(1)),
            "both": lambda: run_through(zip(of(0), of(1), strict=True)),
        }
        measurements = ap.measure_in_turn(ways, repeats=MANY_ROUNDS)
    return ap.Findings(measurements, {}, checks)


pair = ap.recorded(two_gpus, name="b5_two_gpus", parameters=TWO, gpus=2)
median_s = {label: one.median_s for label, one in pair.measurements.items()}
gain = (median_s["GPU 0"] + median_s["GPU 1"]) / median_s["both"]
print(f"two GPUs at once: {gain:.2f} x one")
assert gain >= 1.95, "two GPUs get in each other's way"

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
                repeats=ROUNDS,
                setup=lambda: torch.ones(1).pin_memory(),
            )
            for label, way in ways.items()
        ]
    return ap.Findings(measurements, {}, checks)


many = ap.recorded(small_tensors, name="b5_small_tensors", parameters=SMALL)
rival = ".to(non_blocking) each"
packed = many.measurements[rival].median_s / many.measurements["pipeline, pin=True"].median_s
assert packed >= 5, "packing gains less than it did"
ap.show(ap.compare(many.measurements, baseline=rival, caption="10,000 tensors of 4 kB to the host"))

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
        measurements = ap.measure_in_turn(chunks, devices=[gpu], repeats=MANY_ROUNDS)
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
    assert each_us[way] <= 20
for name, value in spent.values.items():
    print(f"{name}: {value:,.0f}")
assert spent.values["bytes pinned"] <= spent.values["bytes of two rings"] + 2 * 2**20
assert spent.values["pinned allocations after the first round"] == 0

# %%
# See it
# ------
# Without the slowest way, which would need ten times the width.

quick = [label for label in ways if label != ".cpu() each"]
ap.plot.bars(
    [e3.measurements[label] for label in quick],
    limit_s=dict.fromkeys(quick, least_s),
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
