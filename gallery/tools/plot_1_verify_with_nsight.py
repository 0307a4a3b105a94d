# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Verify it with Nsight
=====================

| **You'll do:** exercise 4 of the chapter: look at products and copies with Nsight Systems, and at
  single products with Nsight Compute.
| **You'll learn:** which of the two tools answers which question, and how to ask it.
| **You need:** 8 minutes, and neither a GPU nor the tools: records show what they say. Read
  :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy` first;
  :doc:`plot_2_three_clocks_one_answer` comes next.

Is a program efficient? Two questions hide in this one. Does anything wait that could run? Nsight
Systems answers by a timeline of the whole program. Does what runs use the GPU? Nsight Compute
answers by counters of one *kernel*, a function that runs on the GPU.
"""

# %%
# Name what you ask about
# -----------------------
# A profiler sees all that a program does, so the part in question needs a name. `annotate` gives it
# one: a *range*, which both tools know. The wait is inside, so that the range holds all its work.

import tempfile
from pathlib import Path

import torch

import autopar as ap
from autopar.records import nsight


def one_stream(x, buffers, lane):
    return [y.to("cpu", non_blocking=True) for y in [x.mm(x) for _ in buffers]]


def two_streams(x, buffers, lane):
    return [lane.submit(buffer.copy_, x.mm(x), non_blocking=True) for buffer in buffers]


# %%
# Nsight Systems: does anything wait?
# -----------------------------------
# One command runs the program and leaves a report, another turns the report into an SQLite file.
# The `user guide <https://docs.nvidia.com/nsight-systems/UserGuide/index.html>`__ has all options.

print(nsight.SYSTEMS.format(report="x4"), "python program.py")
print(nsight.EXPORT.format(report="x4"))

# %%
# What ran in the two ranges is small enough to keep: :download:`x4_nsight.sqlite
# <../../../src/autopar/recorded/2-x-nvidia-h200/x4_nsight.sqlite>`. `read_trace` reads it, and
# `python -m autopar timeline x4_nsight.sqlite` says what it shows:
# :doc:`/howto/profile_your_own_program` goes through the answer.

# Folded: the program, under Nsight Systems
BOOK, SIZES = {"count": 20, "size": 4000}, [256, 1024, 4000]
ONE, TWO = "one stream", "two streams"


def both_ways(count, size):
    """Run both ways in ranges; return whether their results are right."""
    x, equal = ap.workload.matrix(size, ap.gpu(0)), {}
    buffers = [torch.full((size, size), torch.nan).pin_memory() for _ in range(count)]
    with ap.cuda_lane(ap.gpu(0), kind="copy") as lane:
        for name, way in (("one stream", one_stream), ("two streams", two_streams)):
            results = way(x, buffers, lane)
            ap.synchronize()
            results = buffers if way is two_streams else results
            equal[f"{name}: equal"] = ap.workload.equal(results, [x.mm(x)] * count)
            del results  # so that the next ones get the same memory
            with ap.annotate(name):
                way(x, buffers, lane)
                ap.synchronize()
    return equal


def seen_by_systems(count, size):
    """Both ways under Nsight Systems, with what its report has of them."""
    with tempfile.TemporaryDirectory() as folder:
        export, small = Path(folder, "x4.sqlite"), Path(folder, "x4_nsight.sqlite")
        equal = nsight.systems(both_ways, count, size, export=export)
        whole = ap.read_trace(export)
        part = ap.read_trace(nsight.cut(export, [ONE, TWO], small))
        files = {small.name: small.read_bytes()}
    seen = {way: whole.within(way)[0] for way in (ONE, TWO)}
    same = all(seen[way].spans == part.within(way)[0].spans for way in seen)
    return ap.Findings([], seen, {**equal, "the small report says the same": same}, {}, files)


# %%
# In the picture at the top, look for white space: on one stream the copies wait for all products.
# On two nothing waits, and all ends near the limit, the longer part and one piece of the other.

report = ap.recorded(seen_by_systems, name="x4_nsight_systems", parameters=BOOK, programs=["nsys"])
parts_s = sorted(report.timelines[TWO].busy_s(kind) for kind in ("compute", "copy"))
limit_s = parts_s[1] + parts_s[0] / BOOK["count"]
title = "The same products and copies, as Nsight Systems saw them"
ap.show_timelines(report.timelines, "x4_verify_with_nsight", title=title, limit_s=limit_s)

# %%
# *Hide* is the share of the shorter part's time in which the other one works as well.

one, two = (report.timelines[way] for way in (ONE, TWO))
hides = report.estimate(lambda _: one.hidden())
both = report.estimate(lambda _: two.overlap_s("copy", "compute") / parts_s[0])
near = report.estimate(lambda _: limit_s / two.makespan_s)
ap.show(
    ap.claim("By Nsight, one stream hides hardly any copy.", hides, at_most=0.1, unit="%"),
    ap.claim("Two streams hide most of the shorter part.", both, at_least=0.8, unit="%"),
    ap.claim("The limit is most of the time that two streams take.", near, at_least=0.8, unit="%"),
)

# %%
# Nsight Compute: does what runs fill the GPU?
# --------------------------------------------
# This tool runs one kernel over and over and reads other counters each time. So all that it gets is
# a product of each size, in a range named `compute`. The `first option
# <https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html>`__ keeps the GPU's clocks as
# they are in other programs.

command = f"{nsight.COMPUTE.format(log='x4.csv')} python program.py"
print(command.replace(" --", " \\\n    --"))

# %%
# In the table, compare the first row with the last. A small product has fewer blocks of threads
# than the GPU has room for, which is one *wave* of them, and leaves most arithmetic units idle. A
# large one keeps them busy, which is why
# :doc:`/auto_gallery/one_device/plot_1_do_independent_products_run_at_once` finds little gain.


# Folded: a product of each size under Nsight Compute, and the table
def one_product_each(sizes):
    streams = [
        (ap.workload.matrix(size, ap.gpu(0)), torch.cuda.Stream(ap.gpu(0))) for size in sizes
    ]
    for name in ("before", "compute"):
        with ap.annotate(name):
            for x, stream in streams:
                with torch.cuda.stream(stream):
                    x.mm(x)
                ap.synchronize()


def seen_by_compute(sizes):
    counted = zip(sizes, nsight.compute(one_product_each, sizes), strict=True)
    return ap.Findings([], values={f"{n}, {key}": v for n, of in counted for key, v in of.items()})


kernels = ap.recorded(
    seen_by_compute, name="x4_nsight_compute", parameters={"sizes": SIZES}, programs=["ncu"]
)
BUSY, WAVES = "Compute (SM) Throughput", "Waves Per SM"
busy, waves = ([kernels.values[f"{n}, {what}"] for n in SIZES] for what in (BUSY, WAVES))
figures = zip(SIZES, busy, waves, strict=True)
rows = [[f"{n}", f"{100 * share:.1f} %", f"{count:.2f}"] for n, share, count in figures]
headers = ["side of the matrix", "arithmetic units busy", "waves of blocks"]
small, large = (kernels.estimate(lambda _, share=share: share) for share in (busy[0], busy[-1]))
ap.show(
    ap.tabulate(headers, rows, origin=kernels.origin),
    ap.claim("A large product keeps most units busy.", large, at_least=0.6, unit="%"),
    ap.claim("A small product keeps at most half of them busy.", small, at_most=0.5, unit="%"),
)

# %%
# When this does not help
# -----------------------
# Under Nsight Compute kernels run alone, many times each, so never ask it about overlap. Many
# systems let only an administrator read its counters. And a busy GPU may be busy with what need not
# be done: neither tool knows of a better algorithm.
#
# Now you
# -------
# Take the wait out of the range. What does `read_trace(...).within(name)` miss?
#
# .. dropdown:: A hint
#
#     A launch returns before its kernel has run.
#
# .. dropdown:: An answer
#
#     All kernels that start after the range has ended, which are nearly all of them.
#
#     .. code-block:: python
#
#         def without_wait(x, count=8):
#             with ap.annotate("launches only"):
#                 results = [x.mm(x) for _ in range(count)]
#             ap.synchronize()
#             return results
