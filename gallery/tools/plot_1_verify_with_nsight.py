# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Verify it with Nsight
=====================

| **You'll do:** exercise 4 of the chapter: look at products and copies with Nsight's two profilers.
| **You'll learn:** which of the two tools answers which question, and how to ask it.
| **You need:** 8 minutes, and neither a GPU nor the tools: records show what they say. Before this:
  :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy`. Next:
  :doc:`plot_2_three_clocks_one_answer`.

Does anything wait that could run? Nsight Systems answers by a timeline of the whole program. Does
what runs use the GPU? Nsight Compute answers by counters of one *kernel*, a function on the GPU.
"""

# %%
# Name what you ask about
# -----------------------
# A profiler sees all that a program does, so the part in question needs a name. `annotate` gives it
# one: a *range*, which both tools know. The wait is inside, so that the range has all its work.
import tempfile
from pathlib import Path

import torch

import autopar as ap
from autopar.records import nsight


def named(name, way, *given):
    with ap.annotate(name):
        results = way(*given)
        ap.synchronize()
    return results


def one_stream(x, buffers, lane):
    return [y.to("cpu", non_blocking=True) for y in [x.mm(x) for _ in buffers]]


def two_streams(x, buffers, lane):
    return [lane.submit(buffer.copy_, x.mm(x), non_blocking=True) for buffer in buffers]


# %%
# Look at where copies begin: late in :timeline:`one stream`, early in :timeline:`two streams`.
#
# These commands run `Nsight Systems
# <https://docs.nvidia.com/nsight-systems/UserGuide/index.html>`__, export its report, and run
# `Nsight Compute <https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html>`__.
for command in (nsight.SYSTEMS, nsight.EXPORT, nsight.COMPUTE):
    program = "" if command == nsight.EXPORT else " \\\n    python program.py"
    print(command.format(report="x4", log="x4.csv").replace(" --", " \\\n    --") + program)

# %%
# Nsight Systems: does anything wait?
# -----------------------------------
# `python -m autopar timeline FILE` reads such a file (:doc:`/howto/profile_your_own_program`). Try
# :download:`ours <../../../src/autopar/recorded/2-x-nvidia-h100-80gb-hbm3/x4_nsight.sqlite>`.

# Folded: the program, under Nsight Systems
BOOK, SIDES = {"count": 20, "size": 4000}, {"sizes": [256, 1024, 4000]}
ONE, TWO, SIZES = "one stream", "two streams", SIDES["sizes"]


def both_ways(count, size):
    x, equal = ap.workload.matrix(size, ap.gpu(0)), {}
    buffers = [torch.full((size, size), torch.nan).pin_memory() for _ in range(count)]
    with ap.cuda_lane(ap.gpu(0), kind="copy") as lane:
        for name, way in ((ONE, one_stream), (TWO, two_streams)):
            named("first", way, x, buffers, lane)  # so that all memory is there
            filled = {ONE: named(name, way, x, buffers, lane), TWO: buffers}[name]
            equal[f"{name}: equal"] = ap.workload.equal(filled, [x.mm(x)] * count)
    return equal


def seen_by_systems(count, size):
    with tempfile.TemporaryDirectory() as folder:
        export, small = Path(folder, "x4.sqlite"), Path(folder, "x4_nsight.sqlite")
        equal = nsight.systems(both_ways, count, size, export=export)
        trace = ap.read_trace(nsight.cut(export, [ONE, TWO], small))
        files = {small.name: small.read_bytes()}
    return ap.Findings([], {way: trace.within(way)[0] for way in (ONE, TWO)}, equal, {}, files)


# %%
report = ap.recorded(seen_by_systems, name="x4_nsight_systems", parameters=BOOK, programs=["nsys"])
ap.show_timelines(report.timelines, "x4_verify_with_nsight", title="What Nsight Systems saw")

# %%
# A way *hides* the share of the shorter part's time in which the other one works as well.
one, two = (report.timelines[way] for way in (ONE, TWO))
least_s, hides = min(map(two.busy_s, ("compute", "copy"))), report.estimate(lambda _: one.hidden())
both = report.estimate(lambda _: two.overlap_s("copy", "compute") / least_s)
ap.show(
    ap.claim("By Nsight, one stream hides hardly any copy.", hides, at_most=0.1, unit="%"),
    ap.claim("Two streams hide most of the shorter part.", both, at_least=0.8, unit="%"),
)

# %%
# Nsight Compute: does what runs fill the GPU?
# --------------------------------------------
# It runs each kernel of the range `compute`, and no other, many times, to read counters. As many
# blocks of threads as fit on a GPU at once are a *wave*. Compare the first row with the last: the
# smallest product is a small part of a wave, and far from the peak. The largest one is near, so
# streams gain little: :doc:`/auto_gallery/one_device/plot_1_do_independent_products_run_at_once`.


# Folded: a product of each size under Nsight Compute, and the table
def one_product_each(sizes):
    work = [(ap.workload.matrix(n, ap.gpu(0)), torch.cuda.Stream(ap.gpu(0))) for n in sizes]
    for name in ("before", "compute"):
        with ap.annotate(name):
            for x, stream in work:
                with torch.cuda.stream(stream):
                    x.mm(x)
                ap.synchronize()


def seen_by_compute(sizes):
    counted = zip(sizes, nsight.compute(one_product_each, sizes), strict=True)
    return ap.Findings([], values={f"{n}, {key}": v for n, of in counted for key, v in of.items()})


kernels = ap.recorded(seen_by_compute, name="x4_nsight_compute", parameters=SIDES, programs=["ncu"])
BUSY, WAVES, headers = "Compute (SM) Throughput", "Waves Per SM", ["side", "of the peak", "waves"]
busy, waves = ([kernels.values[f"{n}, {what}"] for n in SIZES] for what in (BUSY, WAVES))
figures = zip(SIZES, busy, waves, strict=True)
rows = [[f"{n}", f"{100 * share:.1f} %", f"{count:.2f}"] for n, share, count in figures]
small, large = kernels.estimate(lambda _: busy[0]), kernels.estimate(lambda _: busy[-1])
ap.show(
    ap.tabulate(headers, rows, origin=kernels.origin, highlight=[rows[0][0], rows[-1][0]]),
    ap.claim("A large product comes near the processors' peak.", large, at_least=0.6, unit="%"),
    ap.claim("A small product reaches at most half of it.", small, at_most=0.5, unit="%"),
)

# %%
# When this does not help
# -----------------------
# Under Nsight Compute kernels run alone, so it can't tell what overlaps. Many systems let only an
# administrator read its counters. And neither tool knows of an algorithm that needs less work.
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
#                 ap.workload.products(x, count)
#             ap.synchronize()
