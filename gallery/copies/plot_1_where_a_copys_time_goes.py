# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Find where a copy's time goes
=============================

| **You'll do:** copy the results of a GPU to the host in eight ways, and see what each costs.
| **You'll learn:** what pinned memory, memory that is used again, and a stream for the copies are
  each good for, and why the book prints a gain though it hides nothing.
| **You need:** 10 minutes, and no GPU: what needs one is shown from a record. Read
  :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy` first; :doc:`plot_2_five_wrong_answers`
  comes next.

A copy can run while the GPU computes the next result, but only if three things come together: the
host's memory is pinned, it was there before, and the copies have a stream of their own. Take away
any one of them and next to nothing is hidden. New memory costs most, and that has to do with
neither the GPU nor the bus between it and the host.
"""

# %%
# A second stream is not enough
# -----------------------------
# The tempting way copies on a second stream, a queue of the GPU's beside that of the products. The
# memory is made when it is needed: ``copy_each(x, memory("pageable", 20, 4000), side)``.

import itertools
from functools import partial

import matplotlib.pyplot as plt
import torch

import autopar as ap


def copy_each(x, buffers, stream):
    filled = []
    for buffer in buffers:
        y = x.mm(x)
        stream.wait_event(torch.cuda.current_stream(x.device).record_event())
        with torch.cuda.stream(stream):
            buffer.copy_(y, non_blocking=True)
        y.record_stream(stream)  # keeps y's memory until its copy has read it
        filled.append(buffer)
    return filled


# %%
# This is among the slowest of eight ways, for two reasons that no stream removes:
#
# - The memory is *cold*. The system gives it to the program page by page, each at its first use,
#   by an interruption that is called a *page fault*. *Warm* memory has been written to before.
# - The memory is *pageable*: the system may move it. So the driver copies to *pinned* memory of
#   its own, which stays in its place, and from there on. The call returns when all has arrived,
#   and the host can't launch the next product meanwhile.
#
# The right way differs in one word and in one habit: it asks for pinned memory, and makes it once.


def memory(kind, count, size):
    """Memory for results, made when its turn comes."""
    return (torch.empty(size, size, pin_memory=kind == "pinned") for _ in range(count))


# %%
# Take one away, and the copies show
# ----------------------------------
# All eight are timed in turn, and each has to give the bits of the plain products first. Before
# each sample, outside of the clock, all spare memory goes back to the system.

# Folded: the measurement
BOOK = {"count": 20, "size": 4000}  # products of 4000 x 4000 in float32, 64 MB each
CHOICES = ("pageable", "pinned"), ("same stream", "side stream"), ("cold", "warm")
WAYS = [", ".join(chosen) for chosen in itertools.product(*CHOICES)]
UNPINNED, BEST = "pageable, side stream, warm", "pinned, side stream, warm"
PARTS = ["products alone", "pinned copies alone"]


def eight_ways(count, size):
    """The three choices in all combinations."""
    gpu = ap.gpu(0)
    x, side = ap.workload.matrix(size, gpu), torch.cuda.Stream(gpu)
    streams = {"same stream": torch.cuda.current_stream(gpu), "side stream": side}
    warm = {kind: list(memory(kind, count, size)) for kind in ("pageable", "pinned")}

    def run(kind, stream, age):
        buffers = warm[kind] if age == "warm" else memory(kind, count, size)
        return copy_each(x, buffers, streams[stream])

    def copies():
        return [buffer.copy_(x, non_blocking=True) for buffer in warm["pinned"]]

    def forget():
        ap.synchronize(gpu)  # a pinned buffer is back in torch's pool when its copies are done
        for buffer in [*warm["pageable"], *warm["pinned"]]:
            buffer.fill_(torch.nan)
        ap.empty_pinned_pool()
        ap.empty_heap()

    ways = {way: partial(run, *way.split(", ")) for way in WAYS}
    products = partial(ap.workload.products, x, count)
    settings = {"reset": forget, "setup": forget, "see": [UNPINNED, BEST], "repeats": 5}
    parts = dict(zip(PARTS, (products, copies), strict=True))
    return ap.race(ways, parts=parts, expected=products(), **settings)


# %%
# Look at the topmost row of the picture. It alone has all three dots, and it alone reaches the
# limit: the time of the products, and of one copy that has no product to hide behind. The rows
# without the dot for *warm* are the longest by far.

# Folded: the drawing
eight = ap.recorded(eight_ways, name="b1_ablation", parameters=BOOK)
limit_s = eight.limit_s(PARTS, pieces=BOOK["count"])
ways = sorted(WAYS, key=lambda way: eight.measurements[way].median_s)
chosen_ways = [eight.measurements[way] for way in ways]
ax = ap.plot.bars(chosen_ways, limit_s=limit_s, title="20 products and 20 copies")
ax.tick_params(left=False, labelleft=False)
beside = {"transform": ax.get_yaxis_transform(), "clip_on": False}  # left of the bars
for x, (_, choice) in zip((-0.36, -0.22, -0.08), CHOICES, strict=True):
    ax.text(x, -0.6, choice.replace(" ", "\n"), ha="center", fontsize=7.5, **beside)
    for y, way in enumerate(ways):
        colour = "C0" if choice in way else "none"
        ax.scatter(x, y, s=80, edgecolor="C0", facecolor=colour, **beside)
ap.plot.show("b1_where_a_copys_time_goes")

# %%
# *Hidden* is the share of the copies' time that a way saves.

elsewhere = eight.estimate(
    lambda s: max(
        ap.hidden_share([s[part] for part in PARTS], s[way]) for way in WAYS if way != BEST
    )
)
best, words = eight.hidden(BEST, PARTS), "From a side stream into warm pinned memory most copies"
ap.show(
    ap.claim(f"{words} hide.", best, at_least=0.8, unit="%"),
    ap.claim("Few copies hide in any of the seven other ways.", elsewhere, at_most=0.2, unit="%"),
)

# %%
# Both panels have warm memory and a side stream. Look at the gaps between the blue bars in the
# upper one: the host launches a product when the copy before it is done. In the lower one it has
# launched all of them long before.

title = "Copies on a side stream, into pageable and into pinned memory"
ap.show(ap.draw(eight.timelines, title=title, limit_s=limit_s))

# %%
# Why the book prints a gain
# --------------------------
# `The book <https://d2l.ai/chapter_computational-performance/auto-parallelism.html>`_ has two ways,
# and its second is faster, though :doc:`it hides nothing
# </auto_gallery/first_steps/plot_4_compute_and_copy>`. Look at the speed-up in the second row. It
# comes from memory alone: ``.to("cpu")`` asks for new pages each time. With ``non_blocking=True``
# torch pins memory instead, and keeps it, so that only the first time is slow.

FIRST, SECOND = "book 1: run, wait, copy", "book 2: run, copy non-blocking"


def book_ways(count, size):
    x = ap.workload.matrix(size, ap.gpu(0))
    run = partial(ap.workload.products, x, count)

    def first():
        results = run()
        ap.synchronize(x.device)
        return [y.to("cpu") for y in results]

    ways = {FIRST: first, SECOND: lambda: [y.to("cpu", non_blocking=True) for y in run()]}
    return ap.race(ways, expected=run(), repeats=3)


book = ap.recorded(book_ways, name="e3_book_ways", parameters={"count": 50, "size": 4000})
ap.show(ap.compare(book.measurements, baseline=FIRST, caption="50 products and 50 copies"))

# %%
# One result by itself shows both. Compare the first row with the last, which goes at the speed of
# the bus. The time in the caption has the pinning in it, which is paid for only once.

# Folded: the measurement of one result
from autopar.machine import page_faults


def one_result(size):
    """One result into fresh, touched and pinned memory."""
    gpu, size_bytes = ap.gpu(0), ap.workload.product_bytes(size)
    y = ap.workload.matrix(size, gpu)
    touched, pinned = torch.zeros(size, size), torch.zeros(size, size).pin_memory()
    ap.empty_pinned_pool()
    timer = ap.Timer()
    kept = y.to("cpu", non_blocking=True)
    ap.synchronize(gpu)
    values = {"ms for the first non-blocking copy, which pins": 1e3 * timer.stop()}
    ways = {
        "into fresh memory, .to('cpu')": lambda: y.to("cpu"),
        "into touched memory, copy_": lambda: touched.copy_(y),
        "into pinned memory, copy_": lambda: pinned.copy_(y),
    }
    for label, way in ways.items():
        ap.empty_heap()
        before = page_faults()
        kept = way()
        values[f"page faults {label}"] = page_faults() - before
    settings = {"devices": [gpu], "setup": ap.empty_heap, "repeats": 9, "size_bytes": size_bytes}
    measurements = [ap.measure(way, label=label, **settings) for label, way in ways.items()]
    same = ap.workload.equal([touched, pinned, kept], [y, y, y])
    return ap.Findings(measurements, {}, {"copies equal": same}, values)


one = ap.recorded(one_result, name="e3_one_result", parameters={"size": BOOK["size"]})
pinning_ms, faults, *_ = one.values.values()
caption = f"One result: {faults:,.0f} page faults if fresh, {pinning_ms:.0f} ms if pinned just now"
fresh, touched, _ = one.measurements
slower = one.estimate(lambda s: s[fresh] / s[touched])
sentence = "A copy into fresh memory takes at least twice as long as one into touched memory."
ap.show(
    ap.compare(one.measurements, caption=caption, baseline=fresh),
    ap.claim(sentence, slower, at_least=2, unit="×"),
)

# %%
# Small copies pay for their launch
# ---------------------------------
# Pinned copies have a fixed cost, too: the host takes some microseconds to launch each. Look at
# where the line bends. At the foot of the slope a copy of four times the size takes hardly longer,
# so its bytes are nearly free. On the level to the right the bus is always busy.

# Folded: the measurement of all sizes
BUS = {"sizes": [4**power for power in range(6, 16)], "moved_bytes": 2**28, "most_copies": 1000}


def queue_copies(target, source, times):
    for _ in range(times):
        target.copy_(source, non_blocking=True)


def every_size(sizes, moved_bytes, most_copies):
    """Copies of each size from a GPU into pinned memory."""
    memory_of = {"size": (max(sizes),), "dtype": torch.uint8}
    source = torch.randint(256, device=ap.gpu(0), **memory_of)
    target, back = torch.empty(pin_memory=True, **memory_of), torch.empty_like(source)
    measurements, checks = [], {}
    for size in sizes:
        some, times = (target[:size].zero_(), source[:size]), min(most_copies, moved_bytes // size)
        work = partial(queue_copies, *some, max(1, times))
        settings = {"warmup": 1, "repeats": 7, "size_bytes": max(1, times) * size}
        measurements += [ap.measure(work, label=f"GPU to host, {size} bytes", **settings)]
        checks[f"{size} bytes: equal"] = back[:size].copy_(some[0]).equal(some[1])
    return ap.Findings(measurements, {}, checks)


bus = ap.recorded(every_size, name="b1_bandwidth", parameters=BUS)
rates = [bus.measurements[f"GPU to host, {size} bytes"].gb_per_s for size in BUS["sizes"]]
figure, ax = plt.subplots(layout="constrained")
ax.loglog(BUS["sizes"], rates, "o-")
ax.set_xticks(BUS["sizes"][::3], ["4 KiB", "256 KiB", "16 MiB", "1 GiB"])
ax.set(title="Pinned copies, one after another", xlabel="one copy", ylabel="GB/s")
figure.supxlabel(bus.origin, fontsize=7)
ap.plot.show("b1_bandwidth")

# %%
# When this does not help
# -----------------------
# The system can't move pinned pages, so a program that pins much leaves less to all others: keep a
# few buffers, and use them again. PyTorch's `guide to pinned memory
# <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`_ tells when not to pin.
#
# On this machine
# ---------------
# New pages cost time without a GPU, too. Here a matrix is copied within the host.


def within_the_host(size):
    x = ap.workload.matrix(size)
    touched = torch.ones_like(x)
    return ap.race({"into touched memory": lambda: touched.copy_(x), "into fresh memory": x.clone})


here = ap.observed(within_the_host, name="copies within the host", parameters={"size": 3000})
ap.show(ap.compare(here.measurements, caption="36 MB within the host"))

# %%
# Now you
# -------
# A program copies 16,384 results of 4 KiB each from a GPU. How long does that take, and how long
# would one copy of them all take, of 64 MiB?
#
# .. dropdown:: A hint
#
#     Both are points of the line in the last figure.
#
# .. dropdown:: An answer
#
#     Ask for ``takes_s(16_384, 2**12)`` and ``takes_s(1, 2**26)``. Their bytes are the same, so it
#     is the rates that differ. Put small results together on the GPU, and copy them once.
#
#     .. code-block:: python
#
#         def takes_s(copies, size_bytes):
#             rate = bus.measurements[f"GPU to host, {size_bytes} bytes"].gb_per_s
#             return copies * size_bytes / rate / 1e9
