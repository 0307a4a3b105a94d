# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Find out why the book prints a gain
===================================

| **You'll do:** copy results to the host in the book's two ways, and one result in three.
| **You'll learn:** why the second way is faster though it hides nothing, and what new memory costs.
| **You need:** 6 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`plot_4_compute_and_copy`. Next: :doc:`/auto_gallery/copies/plot_1_where_a_copys_time_goes`.

In the book, computing and copying takes less time with `non_blocking=True`. It looks like overlap,
but nothing overlaps: the first way copies to memory that the program has never used, and the system
is slow to give it.
"""

# %%
# The first way pays for new memory
# ---------------------------------
# `The book <https://d2l.ai/chapter_computational-performance/auto-parallelism.html>`_ computes all
# products, waits, and copies each result to the host.

from dataclasses import replace
from functools import partial

import torch

import autopar as ap
from autopar.machine import page_faults

FIRST, SECOND = "book 1: run, wait, copy", "book 2: run, copy non-blocking"


def first_way(x, count):
    results = ap.workload.products(x, count)
    ap.synchronize(x.device)
    return [y.to("cpu") for y in results]


# %%
# ``.to("cpu")`` makes a new tensor for each result. Its memory comes from the system page by page,
# each at its first use, by an interruption that is called a *page fault*.
#
# The second way keeps its memory
# -------------------------------
# The second way asks for `non_blocking=True`, and leaves out the wait. Its copies go to *pinned*
# memory, which stays in its place, so that the GPU can write to it. Making it takes long, but torch
# keeps it for the next results.


def second_way(x, count):
    return [y.to("cpu", non_blocking=True) for y in ap.workload.products(x, count)]


def book_ways(count, size):
    """Both ways, which `race` compares bit for bit and times in turn."""
    x = ap.workload.matrix(size, ap.gpu(0))
    ways = {FIRST: partial(first_way, x, count), SECOND: partial(second_way, x, count)}
    return ap.race(ways, expected=ap.workload.products(x, count), repeats=3)


# %%
# All of the second way's speed-up comes from memory, since this way hides nothing, as
# :doc:`plot_4_compute_and_copy` shows.
book = ap.recorded(book_ways, name="e3_book_ways", parameters={"count": 50, "size": 4000})
ap.show(ap.compare(book.measurements, baseline=FIRST, caption="50 products and 50 copies"))

# %%
# One result by itself shows both
# -------------------------------
# A result goes into fresh memory, into memory that was touched before, and into pinned memory. The
# first non-blocking copy is timed as well: it pins its memory.

# Folded: the measurement of one result
FRESH, TOUCHED = "into fresh memory, .to('cpu')", "into touched memory, copy_"
FAULTS, PINNING = f"page faults {FRESH}", "ms for the first non-blocking copy, which pins"


def one_result(size):
    y = ap.workload.matrix(size, ap.gpu(0))
    touched, pinned = torch.zeros(size, size), torch.zeros(size, size).pin_memory()
    ways = {FRESH: lambda: y.to("cpu"), TOUCHED: lambda: touched.copy_(y)}
    ways["into pinned memory, copy_"] = lambda: pinned.copy_(y)
    checks = {f"{label}: equal": way().equal(y.cpu()) for label, way in ways.items()}
    ap.empty_heap()
    before, kept = page_faults(), y.to("cpu")
    values = {FAULTS: page_faults() - before}
    ap.empty_pinned_pool()
    timer = ap.Timer()
    kept = y.to("cpu", non_blocking=True)
    ap.synchronize(y.device)
    values[PINNING] = 1e3 * timer.stop()
    checks["pinned just now: equal"] = kept.equal(y.cpu())
    given = {"setup": ap.empty_heap, "repeats": 9, "size_bytes": ap.workload.product_bytes(size)}
    measurements = [ap.measure(way, label=label, **given) for label, way in ways.items()]
    return ap.Findings(measurements, {}, checks, values)


# %%
# In the picture at the top, compare the first bar with the last, which goes at the speed of the
# bus. The table's caption says how many page faults the first one has, and what pinning costs.

one = ap.recorded(one_result, name="e3_one_result", parameters={"size": 4000})
names = {FRESH: "fresh", TOUCHED: "touched", "into pinned memory, copy_": "pinned"}
bars = [replace(one.measurements[label], label=name) for label, name in names.items()]
ap.plot.bars(bars, title="64 MB into memory")
ap.plot.show("e3_one_result", look=bars)

# %%

caption = (
    f"{one.values[FAULTS]:,.0f} page faults if fresh; {one.values[PINNING]:.0f} ms to pin once"
)
slower = one.estimate(lambda s: s[FRESH] / s[TOUCHED])
sentence = "A copy into fresh memory takes at least twice as long as one into touched memory."
ap.show(
    ap.compare(
        one.measurements, caption=caption, baseline=FRESH, highlight="into pinned memory, copy_"
    ),
    ap.claim(sentence, slower, at_least=2, unit="×"),
)

# %%
# When this does not help
# -----------------------
# A program that copies once pays for pinning, and has nothing to keep. The system can't move pinned
# pages, so a program that pins much leaves less to all others: PyTorch's `guide to pinned memory
# <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`_ tells when not to pin.
#
# On this machine
# ---------------
# New pages cost time without a GPU, too. Here a matrix of 36 MB is copied within the host.


def within_the_host(size):
    x = ap.workload.matrix(size)
    touched = torch.ones_like(x)
    return ap.race({"into touched memory": lambda: touched.copy_(x), "into fresh memory": x.clone})


here = ap.observed(within_the_host, name="copies within the host", parameters={"size": 3000})
ap.show(ap.compare(here.measurements, highlight="into touched memory"))

# %%
# Now you
# -------
# How many pages of 4 KiB has a result of 4000 × 4000 numbers in float32?
#
# .. dropdown:: A hint
#
#     A number has four bytes. The caption of the table above, with the page faults of fresh memory,
#     has nearly the answer.
#
# .. dropdown:: An answer
#
#     15,625, and each costs a page fault when it is new.
#
#     .. code-block:: python
#
#         def pages(size=4000, page_bytes=4096):
#             return ap.workload.product_bytes(size) / page_bytes
