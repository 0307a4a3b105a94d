"""
Verify it with Nsight
=====================

| **You'll do:** exercise 4 of the chapter: E3's three ways under Nsight Systems, and one of their
  products under Nsight Compute.
| **You'll learn:** which of the two tools answers which question, and how to name what they show.
| **You need:** nothing but this page. Without a GPU and the tools it reads the report of a machine
  that has them.

**The claim.** Nsight Systems has a timeline: in it the book's second way hides no copy, and the
side stream hides all but the last and takes no longer than it must. Nsight Compute looks into a
kernel: one large product keeps the arithmetic units busy, so a second beside it has nothing to
gain.
"""

# %%
# The work
# --------
# E3's ways as a program of its own, as Nsight starts the program that it looks at. `annotate`
# names a range in it, for both tools. Each way runs once before, so that no kernel is loaded and no
# memory pinned in the range, and its results are compared. A range ends when the host leaves it:
# with the wait inside, it holds all of its work.

import contextlib
import csv
import io
import shlex
import sqlite3
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import autopar as ap

BOOK = {"count": 50, "size": 4000}
SINGLE = {"sizes": [256, 1024, 4000]}
FIRST, SECOND = "book 1: run, wait, copy", "book 2: run, copy non-blocking"
SIDE = "side stream, event per result"
WAYS = (FIRST, SECOND, SIDE)


def three_ways(count, size, names):
    """E3's ways, each in a range of its own; whether their results are right."""
    import torch

    import autopar as ap

    gpu = ap.gpu(0)
    x, side = ap.workload.matrix(size, gpu), torch.cuda.Stream(gpu)
    buffers = [torch.full((size, size), torch.nan).pin_memory() for _ in range(count)]

    def run_wait_copy():
        y = ap.workload.products(x, count)
        ap.synchronize(gpu)
        return [each.to("cpu") for each in y]

    def run_copy():
        y = ap.workload.products(x, count)
        return [each.to("cpu", non_blocking=True) for each in y]

    def on_side_stream():
        for buffer in buffers:
            y = x.mm(x)
            side.wait_event(torch.cuda.current_stream(gpu).record_event())
            with torch.cuda.stream(side):
                buffer.copy_(y, non_blocking=True)
            y.record_stream(side)
        return buffers

    product, equal = x.mm(x).cpu(), {}
    for name, way in zip(names, (run_wait_copy, run_copy, on_side_stream), strict=True):
        results = way()
        ap.synchronize(gpu)
        equal[f"{name}: equal"] = all(torch.equal(each, product) for each in results)
        del results
        with ap.annotate(name):
            results = way()
            ap.synchronize(gpu)
        del results  # outside of the range, as giving memory back takes time
    return equal


# %%
# Predict
# -------
# Efficient means near the limit: the time to compute, and one copy, which has nothing left to hide
# behind. A timeline has both. If the products fill the GPU, that limit can't be had any lower by
# running two of them at once: whether they do is a question to the kernel.
#
# Nsight Systems
# --------------
# Two commands: one runs the program and leaves a report, the other turns it into an SQLite file.
# Without the options that follow the trace it would sample the CPU too, and the file be very large.

NSYS = "nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --output={report}"
EXPORT = "nsys export --type=sqlite --output={report}.sqlite {report}.nsys-rep"

print(NSYS.format(report="x4"), "python three_ways.py")
print(EXPORT.format(report="x4"))

# %%
# The file has much that nobody needs here. What ran in the ranges is small enough to be downloaded:
# :download:`x4_nsight.sqlite <../../../src/autopar/recorded/2-x-nvidia-h200/x4_nsight.sqlite>`.

KERNELS, COPIES, CALLS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "RUNTIME"))
RANGES, KINDS, WORDS = "NVTX_EVENTS", "ENUM_CUDA_MEM_KIND", "StringIds"
NAMES = ((KERNELS, "demangledName"), (KERNELS, "shortName"), (CALLS, "nameId"), (RANGES, "textId"))


def shortened(export, ranges, small):
    """Write what an export has of some ranges as an export of its own."""
    times = [(round(1e9 * each.start_s), round(1e9 * each.end_s)) for each in ranges]
    inside = " OR ".join(f"start BETWEEN {start} AND {end}" for start, end in times)
    used = " UNION ".join(f"SELECT {column} FROM {table}" for table, column in NAMES)
    kept = dict.fromkeys((KERNELS, COPIES, CALLS, RANGES), inside)
    kept |= {KINDS: "TRUE", WORDS: f"id IN ({used})"}
    with contextlib.closing(sqlite3.connect(small)) as database, database:
        database.execute("ATTACH ? AS whole", [str(export)])
        for table, rows in kept.items():
            database.execute(f"CREATE TABLE {table} AS SELECT * FROM whole.{table} WHERE {rows}")
    return small


def nsight_systems(count, size):
    """The ways under Nsight Systems, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/x4"
        command = shlex.split(NSYS.format(report=report))
        equal = ap.in_fresh_process(three_ways, count, size, WAYS, under=command)
        subprocess.run(shlex.split(EXPORT.format(report=report)), check=True)
        whole = ap.read_trace(f"{report}.sqlite")
        ranges = [span for span in whole.select("host") if span.name in WAYS]
        small = shortened(f"{report}.sqlite", ranges, Path(folder, "x4_nsight.sqlite"))
        part, files = ap.read_trace(small), {small.name: small.read_bytes()}
    timelines = {way: whole.within(way)[0] for way in WAYS}
    same = all(timelines[way].spans == part.within(way)[0].spans for way in WAYS)
    return ap.Findings([], timelines, {**equal, "the small report says the same": same}, {}, files)


# %%
# On this machine
# ---------------
# Reading a report needs neither a GPU nor Nsight: `read_trace` does it here and now, and so does
# `python -m autopar timeline x4_nsight.sqlite`, which adds why there is no overlap where there is
# none. Its `--range` takes the names that were given to `annotate`.

systems = ap.recorded(nsight_systems, name="x4_nsight_systems", parameters=BOOK, programs=["nsys"])
with tempfile.TemporaryDirectory() as place:
    file = Path(place, "x4_nsight.sqlite")
    file.write_bytes(systems.files[file.name])
    report = ap.read_trace(file)
origin = f"{report.origin}, {systems.origin}"
seen = {way: replace(report.within(way)[0], origin=origin) for way in WAYS}
copy_s = seen[SIDE].busy_s("copy") / BOOK["count"]
limit_s = seen[SIDE].busy_s("compute") + copy_s
near = {way: limit_s / each.makespan_s for way, each in seen.items()}
rows = []
for way, each in seen.items():
    times = [f"{1e3 * s:.1f} ms" for s in (each.makespan_s, each.busy_s("compute"))]
    times.append(f"{1e3 * each.busy_s('copy'):.1f} ms")
    kind = each.select("copy")[0].name.partition("(")[2].rstrip(")")
    rows.append([way, *times, kind, f"{each.hidden():.1%}", f"{near[way]:.1%}"])
headers = ["way", "whole", "computing", "copying", "a copy goes", "copies hidden", "limit / time"]
notes = [f"The limit: computing, and one copy, {1e3 * limit_s:.1f} ms."]
caption = "What the report of Nsight Systems says"
ap.show(ap.tabulate(headers, rows, caption=caption, origin=systems.origin, notes=notes))

# %%
# Is the code efficient? The book's first way copies to pageable memory, which the report gives
# away. Its second way's copies are fast, and none runs beside a product. The side stream's do:

assert seen[SECOND].hidden() < 0.02, "the book's second way overlaps after all"
assert seen[SIDE].hidden() > 0.95, "the side stream doesn't hide the copies"
assert near[SIDE] > 0.95, "the side stream is far from the limit"
for way in WAYS:
    print(f"{way}: {near[way]:.1%} of what can be had")

# %%
# See it
# ------
# What Nsight Systems shows in its window, drawn from the report. The book's first way is left out:
# it takes so long that nothing could be seen of the others.

ap.show_timelines(
    {way: seen[way] for way in (SECOND, SIDE)},
    "x4_verify_with_nsight",
    title="Two ways, as Nsight Systems saw them",
    caption=f"The same {BOOK['count']} products in both, and copies of their results.",
    limit_s=limit_s,
)

# %%
# Nsight Compute
# --------------
# A timeline says that a kernel ran, not what it did with the GPU. For that the other tool runs one
# kernel over and over, and reads other counters each time. A filter keeps it to the range named
# `compute` (the slash says that the range was pushed and popped); without the first option the
# clocks would be held below their usual rate, and times differ from all others here.

NCU = (
    "ncu --clock-control none --nvtx --nvtx-include compute/ "
    "--section SpeedOfLight --section LaunchStats --section Occupancy --csv --log-file {log}"
)
SM, MEMORY = "Compute (SM) Throughput", "Memory Throughput"
TIME, BLOCKS, WAVES = "Duration", "Grid Size", "Waves Per SM"
OCCUPANCY = "Achieved Occupancy"
COUNTED = (TIME, BLOCKS, WAVES, OCCUPANCY, SM, MEMORY)
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def one_product(size):
    """A product in a range, and one before it, which loads the kernel."""
    import autopar as ap

    x = ap.workload.matrix(size, ap.gpu(0))
    x.mm(x)
    ap.synchronize()
    with ap.annotate("compute"):
        x.mm(x)
        ap.synchronize()


def figures(log):
    """What ncu's table says of the kernel that took longest, times in seconds."""
    kernels = {}
    for row in csv.DictReader(io.StringIO(log[log.find('"ID"') :])):  # messages stand before it
        if (name := row.get("Metric Name")) in COUNTED:
            unit = UNITS.get(row["Metric Unit"].removesuffix("econd"), 1.0)
            value = unit * float(row["Metric Value"].replace(",", ""))
            kernels.setdefault(row["ID"], {})[name] = value
    if not kernels:
        msg = f"ncu has no kernel of the range: {log[-2000:]}"
        raise RuntimeError(msg)
    return max(kernels.values(), key=lambda each: each[TIME])


def nsight_compute(sizes):
    """A product of each size under Nsight Compute."""
    values = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "x4.csv")
        for size in sizes:
            ap.in_fresh_process(one_product, size, under=shlex.split(NCU.format(log=log)))
            found = figures(log.read_text(encoding="utf-8"))
            values |= {f"{size}, {name}": value for name, value in found.items()}
    return ap.Findings([], values=values)


shown = NCU.format(log="x4.csv").replace(" --section", " \\\n  --section", 1)
shown = shown.replace(" --csv", " \\\n  --csv")
print(shown, "python one_product.py")

# %%
# What fills the GPU
# ------------------
# Speed of Light is the share of what the hardware could do at most. That of the multiprocessors
# leaves room for so many products at once, whatever runs them. Beside it stands what the branches
# of a CUDA graph gained in exercise 1.

kernels = ap.recorded(nsight_compute, name="x4_nsight_compute", parameters=SINGLE, programs=["ncu"])
before = ap.newest_record("x1_one_device")
rows, busy = [], {}
for size in SINGLE["sizes"]:
    of = {name: kernels.values[f"{size}, {name}"] for name in COUNTED}
    gained = before.values[f"{size}, chain, s"] / before.values[f"{size}, branches, s"]
    busy[size] = of[SM] / 100
    shares = [f"{of[WAVES]:.2f}", *(f"{of[name]:.1f} %" for name in (OCCUPANCY, SM, MEMORY))]
    rows.append([f"{size}", f"{1e6 * of[TIME]:.1f} us", f"{of[BLOCKS]:.0f}", *shares])
    rows[-1] += [f"{1 / busy[size]:.1f} x", f"{gained:.2f} x"]
headers = ["side", "takes", "blocks", "waves", "occupancy", "SM", "memory", "room for", "gained"]
notes = [f"Gained: {before.origin}."]
caption = "One product, as Nsight Compute saw it"
ap.show(ap.tabulate(headers, rows, caption=caption, origin=kernels.origin, notes=notes))

# %%
# The large product has blocks for every multiprocessor several times over, and keeps their
# arithmetic busy: that is the other side of exercise 1. The small one has too few blocks, or too
# little to do in each, and neither arithmetic nor memory is what holds it up. Occupancy, the warps
# that were there over those that could be, says less: a large product's are few, and busy. And both
# tools agree on how long a kernel takes:

small, large = min(SINGLE["sizes"]), max(SINGLE["sizes"])
assert busy[large] > 0.6, "a large product leaves room"
assert busy[small] < 0.4, "a small product fills the GPU"
by_systems_s = seen[FIRST].busy_s("compute") / BOOK["count"]
by_compute_s = kernels.values[f"{large}, {TIME}"]
assert abs(by_compute_s / by_systems_s - 1) < 0.1, "the tools disagree"
print(f"A product of {large} by Nsight Systems: {1e3 * by_systems_s:.3f} ms")
print(f"by Nsight Compute: {1e3 * by_compute_s:.3f} ms")

# %%
# When this does not help
# -----------------------
# Nsight Compute takes a program apart: kernels run alone, one after another, many times each. Never
# ask it about overlap. Many systems let only an administrator read the counters; then it says
# `ERR_NVGPUCTRPERM`. And a busy GPU may be busy with what need not be done: neither tool knows of a
# better algorithm.
#
# Now you
# -------
# Leave the wait out of the ranges: what does `read_trace` miss, and why does
# `python -m autopar timeline --range` still find it? Then look at a copy-bound way: products of
# 1000 x 1000. Which row of the report says what to do?
