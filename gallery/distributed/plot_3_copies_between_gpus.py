# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Copy from one GPU to the next
=============================

| **You'll do:** copy results of products to the host and to another GPU; then from all at once.
| **You'll learn:** that both hide behind products alike, and which copies get in each other's way.
| **You need:** 6 minutes, and no GPU: the part for two GPUs is shown from a record. Before this:
  :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy` and
  :doc:`plot_2_more_devices_more_speed`.

What one GPU has made and another one needs can go by way of the host, or directly. The direct way
is used like the other one, and is several times faster.
"""

# %%
# By way of the host it takes two copies
# --------------------------------------
# It is tempting to bring results to the host, from which all can get them. They take PCIe to the
# host, and PCIe again to the other GPU. A copy goes to a *side stream*, a second queue of the GPU
# that has the data, and waits for an event behind its product. So the next product need not wait.
import torch

import autopar as ap


def on_host(shape):
    return torch.empty(shape, pin_memory=True)  # which the GPU writes to by itself


def with_copies(x, buffers, side):
    for buffer in buffers:
        y = x.mm(x)
        side.wait_event(torch.cuda.current_stream(x.device).record_event())
        with torch.cuda.stream(side):
            buffer.copy_(y, non_blocking=True)
        y.record_stream(side)
    return buffers


# %%
# Look at the orange bars in :timeline:`to the host`: they hide behind products.
#
# NVLink joins the GPUs directly
# ------------------------------
# The right way differs in where a buffer lies. The same copies then take NVLink.
def on_gpu(shape, gpu):
    return torch.empty(shape, device=gpu)


# %%
# In :timeline:`to another GPU` the orange bars hide as well, and are much shorter.
#
# `race` compares what arrives bit by bit. Then all GPUs copy at once, by `copied_all`: to the host,
# and each to the next. One GPU does so alone, too, as they may share a part of the way.

# Folded: the measurement
TO_HOST, TO_GPU, PRODUCTS = "to the host", "to another GPU", "products alone"
ALONE, AT_ONCE = "one GPU alone", "all GPUs at once"
COPIES = {"count": 24, "size": 4000, "repeats": 7}


def copied_all(pairs):
    for place, y in pairs:
        with torch.cuda.device(y.device):
            place.copy_(y, non_blocking=True)  # queued on the GPU that has the data


def copies_of_all(count, size, repeats):
    """Copies behind products and of all GPUs at once, over NVLink and over PCIe."""
    gpus = [ap.gpu(i) for i in range(ap.num_gpus())]
    x, side = ap.workload.matrix(size, gpus[0]), torch.cuda.Stream(gpus[0])
    results, shape = ap.workload.products(x, count), (count, size, size)
    sources = [torch.stack(results).to(gpu) for gpu in gpus]
    hosts = [on_host(shape) for _ in gpus]
    others = [on_gpu(shape, gpu) for gpu in (*gpus[1:], gpus[0])]
    ways, parts = {}, {PRODUCTS: lambda: ap.workload.products(x, count)}
    for label, places in ((TO_HOST, hosts), (TO_GPU, others)):
        pairs = list(zip(places, sources, strict=True))
        ways[label] = lambda place=places[0]: with_copies(x, list(place), side)
        parts[f"{label}, {ALONE}"] = lambda pairs=pairs: copied_all(pairs[:1])
        parts[f"{label}, {AT_ONCE}"] = lambda pairs=pairs: copied_all(pairs)
    memory = [*hosts, *others]
    given = {"expected": results, "reset": lambda: [one.fill_(torch.nan) for one in memory]}
    found = ap.race(ways, parts=parts, see=[*ways], repeats=repeats, **given)
    copied_all(zip(memory, 2 * sources, strict=True))
    ap.synchronize()
    right = all(torch.equal(one.cpu(), hosts[0]) for one in memory)
    found.checks["what all GPUs copied has arrived"] = right
    found.values["GPUs"] = len(gpus)
    return found


# %%
copies = ap.recorded(copies_of_all, name="d2_copies", parameters=COPIES, gpus=2)
ap.show_timelines(copies.timelines, "d2_copies", title="Products, and copies of their results")

# %%
# Together they bring more to the host, but hardly more to each other
# -------------------------------------------------------------------
# A copy to the host is only the first of the two that the way by the host takes, and takes longer
# already. In the second table compare the rows *one GPU alone* and *all GPUs at once*; its last
# column counts the bytes of all copies. To the host, two GPUs reach twice as much together if each
# has a bus of its own. More may get in each other's way where they share a part of it, or the
# host's memory is busy. From GPU to GPU they reach hardly more, as if they took turns. PyTorch lets
# the current streams of both GPUs wait for such a copy, which may be why; nothing here tests it.

# Folded: the rates
rows, count = [], copies.values["GPUs"]
gb = COPIES["count"] * COPIES["size"] ** 2 * 4 / 1e9
for way in (TO_HOST, TO_GPU):
    for who, gpus in ((ALONE, 1), (AT_ONCE, count)):
        time_s = copies.measurements[f"{way}, {who}"].median_s
        rows.append([f"{way}, {who}", f"{1e3 * time_s:.2f} ms", f"{gpus * gb / time_s:.1f}"])
at_once = [row[0] for row in rows if row[0].endswith(AT_ONCE)]
host, gpu = (copies.hidden(way, [PRODUCTS, f"{way}, {ALONE}"]) for way in (TO_HOST, TO_GPU))
faster = copies.estimate(lambda s: s[f"{TO_HOST}, {ALONE}"] / s[f"{TO_GPU}, {ALONE}"])
more, hardly = (
    copies.estimate(lambda s, way=way: count * s[f"{way}, {ALONE}"] / s[f"{way}, {AT_ONCE}"])
    for way in (TO_HOST, TO_GPU)
)
ap.show(
    ap.compare(copies.measurements, parts=[PRODUCTS, *(row[0] for row in rows)], highlight=TO_GPU),
    ap.tabulate(["copies", "time", "GB/s in all"], rows, origin=copies.origin, highlight=at_once),
    ap.claim("Most of the time of copies to the host is saved.", host, at_least=0.8, unit="%"),
    ap.claim("So is most of that of copies to a GPU.", gpu, at_least=0.8, unit="%"),
    ap.claim("A GPU gets its copies several times as fast.", faster, at_least=3, unit="×"),
    ap.claim("Together GPUs bring clearly more to the host.", more, at_least=1.5, unit="×"),
    ap.claim("To each other they bring hardly more.", hardly, at_most=1.3, unit="×"),
)

# %%
# When this does not help
# -----------------------
# Without NVLink, a copy between GPUs takes PCIe, too. Gradients that all GPUs need are better left
# to NCCL, as in :doc:`plot_1_add_gradients_up_during_backward`, than copied by hand.
#
# Now you
# -------
# Let two GPUs copy to each other at the same time.
#
# .. dropdown:: A hint
#
#     What waits for a copy, beside the stream on which it is queued?
#
# .. dropdown:: An answer
#
#     The current stream of the GPU that gets a copy waits for it. So all side streams take their
#     place behind the products before the first copy is queued, and no copy waits for another.
#
#     .. code-block:: python
#
#         def at_once(pairs):
#             sides = [torch.cuda.Stream(y.device) for _, y in pairs]
#             for side in sides:
#                 side.wait_stream(torch.cuda.current_stream(side.device))  # which made y
#             for side, (place, y) in zip(sides, pairs, strict=True):
#                 with torch.cuda.stream(side):
#                     place.copy_(y, non_blocking=True)
#                 y.record_stream(side)
