# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Do independent products run at once?
====================================

| **You'll do:** exercise 1 of the chapter: do independent products run in parallel on one GPU?
| **You'll learn:** why streams gain nothing for large products, and make small ones slower.
| **You need:** 7 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy`. Next: :doc:`plot_2_small_operators`.

By itself PyTorch runs independent products one after another. On several streams large ones nearly
take turns, since each fills the GPU. Small ones leave room, but the host is too slow to use it.
"""

# %%
# One stream is a queue
# ---------------------
# The tempting way is a plain loop, as no product needs another. But launches go to the current
# *stream*, a queue of the GPU, which does one thing after the other.

from collections import ChainMap
from dataclasses import replace

import torch

import autopar as ap


def one_stream(xs):
    return [x.mm(x) for x in xs]


# %%
# Look at :timeline:`one stream`: each product begins when the one before it has ended.
#
# Several streams allow products to run at once
# ---------------------------------------------
# The products are dealt out to *side streams*. These first wait for the current stream, which makes
# the matrices, and at the end it waits for them.
def on_streams(xs, side):
    current, results = torch.cuda.current_stream(), []
    for stream in side:
        stream.wait_stream(current)
    for i, x in enumerate(xs):
        with torch.cuda.stream(side[i % len(side)]):
            results.append(x.mm(x))
    for stream in side:
        current.wait_stream(stream)
    return results


# %%
# Look at the stairs in :timeline:`several streams`: each product begins only towards the end of the
# one before it, though nothing makes it wait. One sweep compares these two at seven sizes, and two
# ways with a single launch for all products, which :doc:`plot_2_small_operators` is about.

# Folded: the sweep
ONE, STREAMS, BATCH, GRAPH = "one stream", "several streams", "a batch", "a CUDA graph"
SMALL, LARGE = 256, 4000  # sides of matrices; the large ones are the book's
COUNTS = [[size, 50] for size in (64, 128, 256, 512, 1024, 2048)] + [[LARGE, 8]]
SWEEP = {"work": COUNTS, "streams": 8, "seen": [SMALL, LARGE]}


def at_one_size(size, count, side, see):
    batch = torch.randn(count, size, size, device=side[0].device) / size**0.5
    xs, graph = batch.unbind(), ap.TaskGraph()
    tasks = [graph.add(torch.mm, x, x, name="product") for x in xs]
    captured = graph.capture()  # as one chain and with branches, of which it keeps the fastest
    ways = {
        f"{size}, {ONE}": lambda: one_stream(xs),
        f"{size}, {STREAMS}": lambda: on_streams(xs, side),
        f"{size}, {BATCH}": lambda: list(batch.bmm(batch)),
        f"{size}, {GRAPH}": lambda: captured.replay()[tasks],
    }
    close = {f"{size}, {BATCH}": 2e-5}  # it may add up in another order
    ys, seen = captured[tasks], [*ways] if see else []
    found = ap.race(ways, close=close, reset=lambda: [y.zero_() for y in ys], see=seen)
    more = [ap.Measurement(f"{size}, {n} branches", t.values_s) for n, t in captured.trials.items()]
    return replace(found, measurements=[*found.measurements, *more])


def one_device(work, streams, seen):
    side = [torch.cuda.Stream(ap.gpu(0)) for _ in range(streams)]
    by_size = [at_one_size(size, count, side, size in seen) for size, count in work]
    measurements = [one for found in by_size for one in found.measurements]
    rest = ([found.timelines, found.checks, found.values] for found in by_size)
    return ap.Findings(measurements, *(dict(ChainMap(*each)) for each in zip(*rest, strict=True)))


# %%
# Large products take turns on eight streams, too
# -----------------------------------------------
# A large product has more blocks of work than the GPU can hold at once, so the next one comes in
# when the last of them leave room.
gpu = ap.recorded(one_device, name="x1_one_device", parameters=SWEEP)
large = {way: gpu.timelines[f"{LARGE}, {way}"] for way in (ONE, STREAMS)}
ap.show_timelines(large, "x1_large_products", title=f"Products of {LARGE} × {LARGE}")

# %%
# Small products wait for the host
# --------------------------------
# Look at the gaps between the bars here. The GPU is done with a small product before the host has
# launched the next, so hardly any two overlap. Under the profiler the gaps are wider than without.
# The table may count two spans for a product, as a second kernel adds up parts of its result.
small = {way: gpu.timelines[f"{SMALL}, {way}"] for way in (ONE, STREAMS)}
ap.show(ap.draw(small, title=f"Products of {SMALL} × {SMALL}"))

# %%
# What streams gain at each size
# ------------------------------
# Small products leave room, so we had expected that they gain most. Compare the first row with the
# last: small ones lose, as a gain below 1 is a loss, and large ones change little. Between,
# little is gained: launches take the host about as long. *At once* is how many kernels ran.

# Folded: the table and the claims
rows = []
for size, count in COUNTS:
    one, several = (gpu.measurements[f"{size}, {way}"].median_s for way in (ONE, STREAMS))
    times = [f"{1e6 * taken_s / count:.1f} µs" for taken_s in (one, several)]
    rows.append([f"{size} × {size}", *times, f"{one / several:.2f} ×"])
best = max(rows, key=lambda row: float(row[-1].removesuffix(" ×")))[0]
given = {"origin": gpu.origin, "highlight": [*dict.fromkeys([rows[0][0], best])]}
headers = ["matrices", f"a product on {ONE}", f"on {STREAMS}", "gain"]
at_once = [sum(span.duration_s for span in t.spans) / t.busy_s() for t in small.values()]
in_turn, few = (gpu.estimate(lambda _, n=n: n) for n in at_once)  # of one run each
gain = gpu.estimate(lambda s: s[f"{LARGE}, {ONE}"] / s[f"{LARGE}, {STREAMS}"])
loss = gpu.estimate(lambda s: s[f"{SMALL}, {STREAMS}"] / s[f"{SMALL}, {ONE}"])
ap.show(
    ap.tabulate(headers, rows, caption="One GPU, eight streams", **given),
    ap.claim("By itself PyTorch runs one at a time.", in_turn, at_most=1.1, unit="at once"),
    ap.claim("Large products gain little on streams.", gain, at_most=1.2, unit="×"),
    ap.claim("On streams hardly two small ones overlap.", few, at_most=1.5, unit="at once"),
    ap.claim(f"At {SMALL} × {SMALL}, several take longer than one.", loss, at_least=1.2, unit="×"),
)

# %%
# When streams do help
# --------------------
# They pay for parts that use different hardware, as a copy beside a product does:
# :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy`. Nsight Compute shows why a large product
# fills a GPU: :doc:`/auto_gallery/tools/plot_1_verify_with_nsight`. PyTorch has `rules for streams
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams>`_.
#
# Now you
# -------
# The host needs 20 µs to launch a product and its waits, and a product takes 5 µs on the GPU. How
# many streams are needed until two products overlap?
#
# .. dropdown:: A hint
#
#     When does the second launch come, and is the first product still running by then?
#
# .. dropdown:: An answer
#
#     No number is enough, since each product ends long before the next is launched.
#
#     .. code-block:: python
#
#         def most_at_once(launch_us=20, product_us=5, streams=8):
#             return min(streams, max(1, product_us / launch_us))
