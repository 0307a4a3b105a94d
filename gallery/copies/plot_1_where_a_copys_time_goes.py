# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Find where a copy's time goes
=============================

| **You'll do:** copy the results of a GPU to the host in eight ways, and see what each costs.
| **You'll learn:** what pinned memory, memory used again, and a stream for the copies are good for.
| **You need:** 8 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`/auto_gallery/first_steps/plot_5_why_the_book_prints_a_gain`. Next:
  :doc:`plot_2_five_wrong_answers`.

A copy can run while the GPU computes the next result, if three things come together: the host's
memory is pinned, it was there before, and the copies have a stream of their own.

.. index:: ! pinned
"""

# %%
# A second stream is not enough
# -----------------------------
# The tempting way copies on a second *stream*, a queue of the GPU's beside that of the products.
# The memory is made when it is needed: ``copy_each(x, memory("pageable", 20, 4000), side)``.

import itertools
from functools import partial

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
# Two things make this slow, and no stream removes them. The memory is *cold*: the system gives it
# to the program page by page, each at its first use. *Warm* memory has been used before. And it is
# *pageable*: the system may move it. So the driver copies to *pinned* memory of its own, which
# stays in its place, and from there on. The host can't go on meanwhile.
#
# The right way asks for pinned memory, and makes all of it once, before the first copy:
# ``buffers = list(memory("pinned", 20, 4000))``. Without `list` each is made when its turn comes.
def memory(kind, count, size):
    """Memory for results, made when its turn comes."""
    return (torch.empty(size, size, pin_memory=kind == "pinned") for _ in range(count))


# %%
# Take one away, and the copies show
# ----------------------------------
# Three choices give eight ways. `race` compares all results bit by bit, and times the ways in turn.
# Before each sample all spare memory goes back to the system.

# Folded: the measurement
BOOK = {"count": 20, "size": 4000}  # products of 4000 × 4000 in float32, 64 MB each
KINDS, STREAMS, AGES = ("pageable", "pinned"), ("same stream", "side stream"), ("cold", "warm")
WAYS = [", ".join(chosen) for chosen in itertools.product(KINDS, STREAMS, AGES)]
UNPINNED, BEST = "pageable, side stream, warm", "pinned, side stream, warm"
PARTS = ["products alone", "pinned copies alone"]


def eight_ways(count, size):
    """The three choices in all combinations."""
    gpu = ap.gpu(0)
    x, warm = ap.workload.matrix(size, gpu), {kind: [*memory(kind, count, size)] for kind in KINDS}
    main, side = torch.cuda.current_stream(gpu), torch.cuda.Stream(gpu)
    streams = {"same stream": main, "side stream": side}

    def run(kind, stream, age):
        buffers = warm[kind] if age == "warm" else memory(kind, count, size)
        return copy_each(x, buffers, streams[stream])

    def copies():
        return [buffer.copy_(x, non_blocking=True) for buffer in warm["pinned"]]

    def forget():
        ap.synchronize(gpu)  # a pinned buffer is back in torch's pool when its copies are done
        for buffer in itertools.chain(*warm.values()):
            buffer.fill_(torch.nan)
        ap.empty_pinned_pool()
        ap.empty_heap()

    ways = {way: partial(run, *way.split(", ")) for way in WAYS}
    products = partial(ap.workload.products, x, count)
    settings = {"reset": forget, "setup": forget, "see": [UNPINNED, BEST], "repeats": 5}
    parts = dict(zip(PARTS, (products, copies), strict=True))
    return ap.race(ways, parts=parts, expected=products(), **settings)


eight = ap.recorded(eight_ways, name="b1_ablation", parameters=BOOK)
limit_s = eight.limit_s(PARTS, pieces=BOOK["count"])

# %%
# In the picture at the top the row with all three dots alone reaches the limit, which is the time
# of the products and of one copy that has no product to hide behind. Then compare rows that differ
# in one dot alone.

# Folded: the drawing
best_first = sorted(WAYS, key=lambda way: eight.measurements[way].median_s)
bars = [eight.measurements[way] for way in best_first]
ax = ap.plot.bars(bars, limit_s=limit_s, title="20 products and 20 copies")
ax.tick_params(left=False, labelleft=False)
beside = {"transform": ax.get_yaxis_transform(), "clip_on": False}  # left of the bars
for x, choice in {-0.36: "pinned", -0.22: "side stream", -0.08: "warm"}.items():
    ax.text(x, -0.6, choice.replace(" ", "\n"), ha="center", fontsize=7.5, **beside)
    for y, way in enumerate(best_first):
        colour = "C0" if choice in way else "none"
        ax.scatter(x, y, s=80, edgecolor="C0", facecolor=colour, **beside)
ap.plot.show("b1_where_a_copys_time_goes", look=bars[:2])

# %%
# *Saved* is a share of the copies' time, by the clock.

*others, best = sorted((eight.hidden(way, PARTS) for way in WAYS), key=lambda share: share.value)
ap.show(
    ap.claim("The best way saves most of the copies' time.", best, at_least=0.8, unit="%"),
    ap.claim("The second best saves little.", others[-1], at_most=0.2, unit="%"),
)

# %%
# Both panels have warm memory and a side stream. In the upper one, look at the gaps between the
# blue bars: the host launches a product only when the copy before it is done.

title = "Copies on a side stream, into pageable and into pinned memory"
ap.show(ap.draw(eight.timelines, title=title, limit_s=limit_s))

# %%
# When this does not help
# -----------------------
# The system can't move pinned pages, so a program that pins much leaves less to all others: keep a
# few buffers, and use them again. PyTorch's `guide to pinned memory
# <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`_ tells when not to pin.
# For small results neither is the limit: :doc:`plot_8_send_small_tensors_together`.
#
# Now you
# -------
# How much memory has to be pinned for 50 results that are needed one after another?
#
# .. dropdown:: A hint
#
#     When may the buffer of the first result be used again?
#
# .. dropdown:: An answer
#
#     As much as two results take: while one is copied, the host reads the other.
#
#     .. code-block:: python
#
#         def pinned_bytes(size=4000, buffers=2):
#             return ap.workload.product_bytes(size, buffers)
