# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Measure every kind of copy
==========================

| **You'll do:** six small experiments, one for each question that a copy pipeline has to answer.
| **You'll learn:** how such a measurement is made, with its parts and its rivals in the same run.
| **You need:** 10 minutes, and no GPU: what needs some is shown from records. Read
  :doc:`plot_5_the_pipeline_against_its_limits` before;
  :doc:`/auto_gallery/one_device/plot_1_do_independent_products_run_at_once` comes next.

The subject of this page is the measurement itself. A time says nothing alone, so each experiment
times the parts that the limit is computed from, and what people write instead, in turn with the
pipeline and in one process. The full tables, with a goal for each, are on the page of
:doc:`benchmarks </benchmarks>`; the experiments are folded below.
"""

# %%
# Most copies hide behind computing
# ---------------------------------
# Products on a GPU, and their results to the host: by the pipeline into three kinds of memory, and
# in three usual ways. *Pinned* memory is what the GPU can write to by itself.

import torch

import autopar as ap

PARTS = ["compute", "copy"]


# %%


# Folded: the measurement
BEHIND = {"count": 30, "size": 4000}


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


def behind_computing(count, size):
    """Products and copies through the pipeline, and in three usual ways."""
    gpu = ap.gpu(0)
    x = ap.workload.matrix(size, gpu)
    y, outs = x.mm(x), [torch.zeros(size, size) for _ in range(count)]
    pinned = torch.empty(size, size).pin_memory()

    def products():
        return (x.mm(x) for _ in range(count))

    def copied_by(copy):
        return [copy(y) for y in products()]

    with ap.CopyPipeline(gpu) as pipeline:
        parts = {"compute": lambda: keep(products()), "copy": lambda: copies(pinned, y, count)}
        ways = {
            "pipeline, pin=True": lambda: keep(pipeline.to_host(products(), pin=True)),
            "pipeline, out": lambda: keep(pipeline.to_host(products(), out=outs)),
            "pipeline, fresh memory": lambda: keep(pipeline.to_host(products())),
            ".cpu() each": lambda: copied_by(torch.Tensor.cpu),
            ".to(non_blocking) each": lambda: copied_by(lambda y: y.to("cpu", non_blocking=True)),
            "pin, then copy": lambda: copied_by(
                lambda y: torch.empty(size, size, pin_memory=True).copy_(y)
            ),
        }
        return ap.race(
            ways,
            parts=parts,
            expected=[y] * count,
            reset=lambda: [out.fill_(torch.nan) for out in outs],
            devices=[gpu],
            repeats=5,
        )


# %%
# Look at the first two bars: they end near the limit, which is the time to compute and one copy. In
# the third row the caller asked for fresh memory, and the system clears each page of it first.

behind = ap.recorded(behind_computing, name="b5_behind_computing", parameters=BEHIND)
quick = [label for label in behind.measurements if label not in (*PARTS, ".cpu() each")]
ap.plot.bars(
    [behind.measurements[label] for label in quick],
    limit_s=behind.limit_s(PARTS, pieces=BEHIND["count"]),
    title=f"{BEHIND['count']} products, and their results to the host",
)
ap.plot.show("b5_behind_computing")

# %%
# The slowest way, `.cpu()` for each, would need ten times the width.

pinned, touched = (behind.hidden(f"pipeline, {where}", PARTS) for where in ("pin=True", "out"))
into_pinned = "The pipeline hides most copies into pinned memory."
into_touched = "The pipeline hides most copies into touched ordinary memory."
ap.show(
    ap.claim(into_pinned, pinned, at_least=0.8, unit="%"),
    ap.claim(into_touched, touched, at_least=0.6, unit="%"),
)

# %%
# All three regimes come near their limits
# ----------------------------------------
# `to_host` and `map`, over pinned memory: work that takes longer than its copies, as long, and next
# to no time. :doc:`plot_3_copy_both_ways_while_you_compute` draws the first of them.

# Folded: the measurement
REGIMES = {"count": 40, "sizes": {"compute-bound": 4000, "balanced": 1760}, "copy_size": 4000}


def duplex(pinned, on_gpu, count):
    """Copies in both directions at once: from one pair of tensors, and into the other."""
    streams = [torch.cuda.Stream(on_gpu[0].device) for _ in range(2)]
    for _ in range(count):
        with torch.cuda.stream(streams[0]):
            on_gpu[1].copy_(pinned[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            pinned[1].copy_(on_gpu[0], non_blocking=True)


def regimes(count, sizes, copy_size):
    """To the host, and there and back, for products of two sizes and for a sum."""
    gpu = ap.gpu(0)
    measurements, checks = [], {}
    for regime, size in {**sizes, "copy-bound": copy_size}.items():
        x = ap.workload.matrix(size, gpu)
        pinned = x.cpu().pin_memory()

        def work(batch, x=x, regime=regime):
            return batch + 1 if regime == "copy-bound" else batch.mm(x)

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
                equal = all(torch.equal(y.to(gpu), work(x)) for y in way())
                checks[f"{regime}, {way.__name__}: equal"] = equal
            measured = ap.measure_in_turn(ways, devices=[gpu], warmup=1, repeats=7)
            measurements += measured
    return ap.Findings(measurements, {}, checks)


# %%
# For each regime the parts are timed in the same rounds: the products, the copies to the host, and
# copies in both directions.

three = ap.recorded(regimes, name="b5_regimes", parameters=REGIMES)


def saved(seconds, regime):
    """Of what overlap can save, what `map` saves."""
    parts = [seconds[f"{regime}: {part}"] for part in ("compute", "copy", "copy")]
    return ap.hidden_share(parts, seconds[f"{regime}: map"])


names = (*REGIMES["sizes"], "copy-bound")
least = three.estimate(lambda s: min(saved(s, regime) for regime in names))
sentence = "In each of three regimes map saves most of what overlap can."
ap.show(ap.claim(sentence, least, at_least=0.7, unit="%"))

# %%
# Two slots keep everybody busy
# -----------------------------
# Results in *ordinary* memory pass through *slots*, pieces of pinned memory. While the GPU fills
# one, the CPU empties another, so one slot should be too few. Small slots pay the fixed cost of a
# copy over and over, and large ones cost pinned memory.

# Folded: the measurement
SLOTS = {"count": 24, "size": 4000, "slots": [1, 2, 3, 4], "slot_mib": [1, 4, 16, 32, 64]}


def sweeps(count, size, slots, slot_mib):
    """Results into touched memory, for several numbers and sizes of slots."""
    gpu = ap.gpu(0)
    x = ap.workload.matrix(size, gpu)
    y, outs = x.mm(x), [torch.zeros(size, size) for _ in range(count)]
    pinned = torch.empty(size, size).pin_memory()
    parts = {"compute": lambda: [x.mm(x) for _ in outs], "copy": lambda: copies(pinned, x, count)}
    measurements = [*ap.measure_in_turn(parts, devices=[gpu], warmup=1, repeats=5)]
    checks = {}
    for n, mib in [(n, 32) for n in slots] + [(3, mib) for mib in slot_mib if mib != 32]:
        with ap.CopyPipeline(gpu, slots=n, slot_bytes=mib << 20) as pipeline:

            def results(pipeline=pipeline):
                return keep(pipeline.to_host((x.mm(x) for _ in outs), out=outs))

            way = {f"{n} x {mib} MiB": results}
            raced = ap.race(way, expected=[y] * count, devices=[gpu], repeats=5)
        measurements += raced.measurements
        checks |= raced.checks
        for out in outs:
            out.fill_(torch.nan)
    return ap.Findings(measurements, {}, checks)


# %%
# Compare the first row with the second: the second slot brings the bar near to its end, and more
# of them only cost memory. In the last rows, look at the slots of one MiB: they are far too small.

swept = ap.recorded(sweeps, name="b2_slots", parameters=SLOTS)
limit_s = swept.limit_s(PARTS, pieces=SLOTS["count"])
ap.show(ap.compare(swept.measurements, limit_s=limit_s, parts=PARTS))

# %%
# How much slower the first and the second number of slots are than the best one:


def slower(seconds, slots):
    """The time with some slots, over the least with any number of them."""
    return seconds[f"{slots} x 32 MiB"] / min(seconds[f"{n} x 32 MiB"] for n in SLOTS["slots"])


one, two = (swept.estimate(lambda s, n=n: slower(s, n)) for n in (1, 2))
too_few = "One slot is too few: results take longer than with more."
ap.show(
    ap.claim(too_few, one, at_least=1.1, unit="×"),
    ap.claim("Two slots are nearly as good as more.", two, at_most=1.2, unit="×"),
)

# %%
# Two GPUs copy twice as much
# ---------------------------
# A pipeline for each, taken from by turns: each GPU has a bus of its own.

# Folded: the measurement
TWO = {"count": 40, "size": 4000}


def two_gpus(count, size):
    """Copies from one GPU and from two at once."""
    gpus = [ap.gpu(0), ap.gpu(1)]
    tensors = [ap.workload.matrix(size, gpu) for gpu in gpus]
    with ap.CopyPipeline(gpus[0]) as first, ap.CopyPipeline(gpus[1]) as second:

        def of(i):
            return (first, second)[i].to_host([tensors[i]] * count, pin=True)

        there = [x.cpu() for x in tensors]
        checks = {f"GPU {i}: equal": ap.workload.equal(of(i), [there[i]] * count) for i in (0, 1)}
        ways = {
            "GPU 0": lambda: run_through(of(0)),
            "GPU 1": lambda: run_through(of(1)),
            "both": lambda: run_through(zip(of(0), of(1), strict=True)),
        }
        measurements = ap.measure_in_turn(ways, warmup=1, repeats=7)
    return ap.Findings(measurements, {}, checks)


# %%
# Compare the last row with the two above it: twice as many copies take about as long.

pair = ap.recorded(two_gpus, name="b5_two_gpus", parameters=TWO, gpus=2)
twice = pair.estimate(lambda s: (s["GPU 0"] + s["GPU 1"]) / s["both"])
sentence = "With a pipeline each, two GPUs copy about twice as much as one."
ap.show(ap.compare(pair.measurements), ap.claim(sentence, twice, at_least=1.7, unit="×"))

# %%
# Small tensors travel together
# -----------------------------
# Many small tensors are limited by the number of copies, not by their bytes. The pipeline puts them
# together on the GPU, copies them in few large pieces, and takes them apart on the host.

# Folded: the measurement
SMALL = {"count": 10_000, "length": 1024}
ONE_BY_ONE, TOGETHER = ".to(non_blocking) each", "pipeline, pin=True"


def small_tensors(count, length):
    """Many small tensors, one by one and through the pipeline."""
    gpu = ap.gpu(0)
    tensors = [torch.full((length,), float(i), device=gpu) for i in range(count)]
    with ap.CopyPipeline(gpu) as pipeline:
        ways = {
            ".cpu() each": lambda: [x.cpu() for x in tensors],
            ONE_BY_ONE: lambda: [x.to("cpu", non_blocking=True) for x in tensors],
            TOGETHER: lambda: keep(pipeline.to_host(tensors, pin=True)),
            "pipeline": lambda: keep(pipeline.to_host(tensors)),
        }
        checks = {
            f"{way}: equal": torch.equal(torch.stack(ways[way]()), torch.stack(tensors).cpu())
            for way in (TOGETHER, "pipeline")
        }

        # Pinned memory that was dropped is sorted out at the next allocation: before the clock.
        def sort_out():
            torch.ones(1).pin_memory()

        given = {"devices": [gpu], "warmup": 1, "repeats": 5, "setup": sort_out}
        measurements = [ap.measure(way, label=label, **given) for label, way in ways.items()]
    return ap.Findings(measurements, {}, checks)


# %%
# Look at the speed-up of the last two rows, over copies that nobody waits for one by one.

many = ap.recorded(small_tensors, name="b5_small_tensors", parameters=SMALL)
gain = many.estimate(lambda s: s[ONE_BY_ONE] / s[TOGETHER])
sentence = "Many small tensors go faster together than one by one."
ap.show(
    ap.compare(many.measurements, baseline=ONE_BY_ONE, highlight=TOGETHER),
    ap.claim(sentence, gain, at_least=2, unit="×"),
)

# %%
# What a pipeline costs
# ---------------------
# It costs time on the host for each chunk, told from many that are too small to wait for, beside
# bare copies of as many bytes. And it costs pinned memory: as much as the slots of both directions,
# and none once they are there.

# Folded: the measurement
COST = {"count": 5000, "slot_bytes": 4096}


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
        measurements = ap.measure_in_turn(chunks, devices=[gpu], warmup=1, repeats=7)
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
    anew = after["num_host_alloc"] - warm["num_host_alloc"]
    values = {
        "bytes pinned": after["allocated_bytes.current"] - before["allocated_bytes.current"],
        "bytes of two rings": ring_bytes,
        "pinned allocations after the first round": anew,
    }
    checks = {"equal": all(torch.equal(out, x + 1) for out, x in zip(outs, inputs, strict=True))}
    return ap.Findings(measurements, {}, checks, values)


# %%
# Compare the first two rows with the last two: that is what a chunk of a pipeline takes of the
# host's time beside a bare copy.

spent = ap.recorded(cost, name="b5_cost", parameters=COST)
chunk_us = {label: 1e6 * one.median_s / COST["count"] for label, one in spent.measurements.items()}
rows = [(label, f"{cost_us:.1f} µs") for label, cost_us in chunk_us.items()]
ap.show(ap.tabulate(["one chunk", "host time"], rows, origin=spent.origin))

# %%
# When this does not help
# -----------------------
# These are figures of one machine, taken while it had nothing else to do. On another one the slots,
# the threads or the bus may be what decides, so run the page there. A figure without its parts, its
# rivals and its machine is no benchmark.
#
# On this machine
# ---------------
# Without a GPU a few of the same calls run on CPU lanes, where nothing can be gained from copies.


def on_cpu_lanes(count, size):
    """Products and their results, through a pipeline and plainly."""
    x = ap.workload.matrix(size)
    with ap.CopyPipeline("cpu") as pipeline:
        plain = {"clone each": lambda: [x.mm(x).clone() for _ in range(count)]}
        piped = {"pipeline": lambda: keep(pipeline.to_host(x.mm(x) for _ in range(count)))}
        return ap.race(plain | piped)


here = ap.observed(on_cpu_lanes, name="on the CPU", parameters={"count": 16, "size": 384})
ap.show(ap.compare(here.measurements, caption="16 products and their copies, on the CPU"))

# %%
# Now you
# -------
# The copies of 10,000 small tensors are limited by what one copy costs the host. From how many
# bytes on does the bus take longer than the host?
#
# .. dropdown:: A hint
#
#     The bus takes the bytes over its rate. The table above has what a copy costs the host.
#
# .. dropdown:: An answer
#
#     With 6 µs for a copy and a bus of 50 GB/s, from 300 kB on.
#
#     .. code-block:: python
#
#         def bytes_where_even(host_s, bytes_per_s):
#             return host_s * bytes_per_s
