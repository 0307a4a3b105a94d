# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Verify it with Nsight
=====================

| **You'll do:** exercise 4 of the chapter: E3's three ways under Nsight Systems, and one of their
  products under Nsight Compute.
| **You'll learn:** which of the two tools answers which question, and how to name what they show.
| **You need:** nothing but this page. Without a GPU and the tools it reads the report of a machine
  that has them.

**The claim.** Nsight Systems has a timeline: in it the book's second way hides no copy, and the
side stream hides most of them and comes near its limit. Nsight Compute looks into a kernel: one
large product keeps the arithmetic units busy, so a second beside it has little to gain.
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

BOOK = {"count": 20, "size": 4000}  # fewer than the book's 50, of the book's size
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
# behind; or, where copies take longer, the time to copy, and one product. A timeline has both. If
# the products fill the GPU, that limit can't be had any lower by running two of them at once:
# whether they do is a question to the kernel.
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


class ToolError(RuntimeError):
    """A tool is there, and does not work here."""


@contextlib.contextmanager
def working(tool):
    """Tell a tool that does not work here from results that are wrong."""
    try:
        yield
    except (RuntimeError, OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
        msg = f"{tool} does not work on this machine: {error}"
        raise ToolError(msg) from error


def nsight_systems(count, size):
    """The ways under Nsight Systems, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/x4"
        command = shlex.split(NSYS.format(report=report))
        with working("nsys"):
            equal = ap.in_fresh_process(three_ways, count, size, WAYS, under=command)
            export = shlex.split(EXPORT.format(report=report))
            subprocess.run(export, check=True, capture_output=True)
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

try:
    systems = ap.recorded(
        nsight_systems, name="x4_nsight_systems", parameters=BOOK, programs=["nsys"]
    )
except ToolError as error:
    print(f"{error}\nSo its record is shown.")
    systems = ap.newest_record("x4_nsight_systems")
with tempfile.TemporaryDirectory() as place:
    file = Path(place, "x4_nsight.sqlite")
    file.write_bytes(systems.files[file.name])
    report = ap.read_trace(file)
origin = f"{systems.origin}, {report.origin}"  # the first words tell a record from a live one
seen = {way: replace(report.within(way)[0], origin=origin) for way in WAYS}
parts_s = [seen[SIDE].busy_s(kind) for kind in ("compute", "copy")]
count = systems.parameters["count"]
limit_s = max(parts_s) + min(parts_s) / count
near = {way: limit_s / each.makespan_s for way, each in seen.items()}
rows = []
for way, each in seen.items():
    times = [f"{1e3 * s:.1f} ms" for s in (each.makespan_s, each.busy_s("compute"))]
    times.append(f"{1e3 * each.busy_s('copy'):.1f} ms")
    kind = each.select("copy")[0].name.partition("(")[2].rstrip(")")
    rows.append([way, *times, kind, f"{each.hidden():.1%}", f"{near[way]:.1%}"])
headers = ["way", "whole", "computing", "copying", "a copy goes", "copies hidden", "limit / time"]
notes = [
    f"The limit: the longer of computing and copying, and one piece of the other, "
    f"{1e3 * limit_s:.1f} ms, by the side stream's kernels and copies.",
    "Hidden: the share of the copying during which the GPU computes, by the timeline.",
]
caption = "What the report of Nsight Systems says"
ap.show(ap.tabulate(headers, rows, caption=caption, origin=systems.origin, notes=notes))

# %%
# Is the code efficient? The book's first way copies to pageable memory, which the report gives
# away. Its second way's copies are fast, and none runs beside a product. The side stream's do:

side_s = seen[SIDE].overlap_s("copy", "compute") / min(parts_s)
ap.show(
    ap.claim(
        "In Nsight's timeline the book's second way hides no copy.",
        systems.estimate(lambda _: seen[SECOND].hidden("copy", "compute")),
        at_most=0.1,
        unit="%",
    ),
    ap.claim(
        "In Nsight's timeline copies and products of the side stream run at the same time.",
        systems.estimate(lambda _: side_s),
        at_least=0.8,
        unit="%",
    ),
    ap.claim(
        "In Nsight's timeline the side stream comes near its limit.",
        systems.estimate(lambda _: near[SIDE]),
        at_least=0.8,
        unit="%",
    ),
)

# %%
# See it
# ------
# What Nsight Systems shows in its window, drawn from the report. The book's first way is left out:
# it takes so long that nothing could be seen of the others.

ap.show_timelines(
    {way: seen[way] for way in (SECOND, SIDE)},
    "x4_verify_with_nsight",
    title="Two ways, as Nsight Systems saw them",
    caption=f"The same {count} products in both, and copies of their results.",
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


def one_product_each(sizes):
    """A product of each size in a range, and one before it, which loads the kernel.

    Each size has a stream of its own, by which ncu's table tells them apart.
    """
    import torch

    import autopar as ap

    gpu = ap.gpu(0)
    made = [(ap.workload.matrix(size, gpu), torch.cuda.Stream(gpu)) for size in sizes]
    ap.synchronize(gpu)

    def multiply():
        for x, stream in made:
            with torch.cuda.stream(stream):
                x.mm(x)
            ap.synchronize(gpu)

    multiply()
    with ap.annotate("compute"):
        multiply()


def figures(log):
    """What ncu's table says for each stream of the kernel that took longest, times in seconds."""
    streams = {}
    for row in csv.DictReader(io.StringIO(log[log.find('"ID"') :])):  # messages stand before it
        if (name := row.get("Metric Name")) in COUNTED:
            unit = UNITS.get(row["Metric Unit"].removesuffix("econd"), 1.0)
            value = unit * float(row["Metric Value"].replace(",", ""))
            kernels = streams.setdefault(row["Stream"], {})
            kernels.setdefault(row["ID"], {})[name] = value
    return [max(each.values(), key=lambda one: one[TIME]) for each in streams.values()]


def nsight_compute(sizes):
    """A product of each size under Nsight Compute."""
    with tempfile.TemporaryDirectory() as folder, working("ncu"):
        log = Path(folder, "x4.csv")
        ap.in_fresh_process(one_product_each, sizes, under=shlex.split(NCU.format(log=log)))
        said = log.read_text(encoding="utf-8")
        found = figures(said)
        if len(found) != len(sizes):
            msg = f"its table has kernels of {len(found)} streams, not {len(sizes)}: {said[-500:]}"
            raise RuntimeError(msg)
    pairs = zip(sizes, found, strict=True)
    values = {f"{size}, {name}": one for size, each in pairs for name, one in each.items()}
    return ap.Findings([], values=values)


shown = NCU.format(log="x4.csv").replace(" --section", " \\\n  --section", 1)
shown = shown.replace(" --csv", " \\\n  --csv")
print(shown, "python one_product_each.py")

# %%
# What fills the GPU
# ------------------
# Speed of Light is the share of what the hardware could do at most. What the multiprocessors leave
# of it is room for others: for so many products in all, if their rate is the same.

try:
    kernels = ap.recorded(
        nsight_compute, name="x4_nsight_compute", parameters=SINGLE, programs=["ncu"]
    )
except ToolError as error:
    print(f"{error}\nSo its record is shown.")
    kernels = ap.newest_record("x4_nsight_compute")
rows, busy = [], {}
for size in SINGLE["sizes"]:
    of = {name: kernels.values[f"{size}, {name}"] for name in COUNTED}
    busy[size] = of[SM] / 100
    shares = [f"{of[WAVES]:.2f}", *(f"{of[name]:.1f} %" for name in (OCCUPANCY, SM, MEMORY))]
    rows.append([f"{size}", f"{1e6 * of[TIME]:.1f} us", f"{of[BLOCKS]:.0f}", *shares])
    rows[-1].append(f"{1 / busy[size]:.1f} x" if busy[size] else "-")
headers = ["side", "takes", "blocks", "waves", "occupancy", "SM", "memory", "room for"]
caption = "One product, as Nsight Compute saw it"
ap.show(ap.tabulate(headers, rows, caption=caption, origin=kernels.origin))

# %%
# The blocks are the library's choice: with tiles of 128 x 128 results, say, a product of 256 would
# have four. Waves are how often they fill the GPU. A large product keeps the arithmetic busy, and
# that is the other side of :doc:`exercise 1 <plot_1_do_independent_products_run_at_once>`; a small
# one leaves most of it idle. Occupancy, the warps that were there over those that could be, says
# less: few warps can keep the arithmetic busy.

small, large = min(SINGLE["sizes"]), max(SINGLE["sizes"])
ap.show(
    ap.claim(
        f"A product of {large} x {large} keeps the multiprocessors busy.",
        kernels.estimate(lambda _: busy[large]),
        at_least=0.6,
        unit="%",
    ),
    ap.claim(
        f"A product of {small} x {small} leaves most of the multiprocessors' rate unused.",
        kernels.estimate(lambda _: busy[small]),
        at_most=0.5,
        unit="%",
    ),
)

# %%
# And do both tools agree on how long a kernel takes? Where both looked on the same machine, they
# can be held against each other.

taken_s = {
    "Nsight Systems": seen[FIRST].busy_s("compute") / count,
    "Nsight Compute": kernels.values[f"{large}, {TIME}"],
}
rows = [[tool, f"{1e3 * each_s:.3f} ms"] for tool, each_s in taken_s.items()]
caption, origins = f"A product of {large} x {large}", [systems.origin, kernels.origin]
shown = [ap.tabulate(["by", "takes"], rows, caption=caption, origin=origins)]
if kernels.processors == systems.processors:
    by_systems_s, by_compute_s = taken_s.values()
    shown.append(
        ap.claim(
            "Both tools say about the same of a large product's time.",
            kernels.estimate(lambda _: by_compute_s / by_systems_s),
            between=(0.75, 1.25),
            unit="%",
        )
    )
ap.show(*shown)

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
