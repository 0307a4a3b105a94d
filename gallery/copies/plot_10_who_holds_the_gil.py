# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Who holds the GIL?
==================

| **You'll do:** feed a loop whose launches keep the host busy, and put threads beside it.
| **You'll learn:** where the milliseconds of such a loop go, and which threads take them.
| **You need:** 7 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`plot_4_feed_a_training_loop`. Next:
  :doc:`/auto_gallery/one_device/plot_1_do_independent_products_run_at_once`.

Where a step has many small operators, the GPU waits for the thread that launches them. A thread
that feeds the loop may hold it up: both need the *GIL*, which one thread of Python has at a time.
"""

# %%
# A feeding thread needs the GIL, too
# -----------------------------------
# The loop calls operators from Python. Each lets the GIL go, and asks for it again at its end.
import torch
from torch import nn
from torch.utils.data import DataLoader

import autopar as ap


def train(model, batches):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for x, y in batches:
        with ap.annotate("step"):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    return losses


# %%
# A `DataLoader` with workers and `pin_memory=True` has a thread that copies batches to *pinned
# memory*, which the GPU reads. In PyTorch's `issue 77139
# <https://github.com/pytorch/pytorch/issues/77139>`_ it leaves the GPU idle for over 50 ms. Compare
# :timeline:`data on the device already`, :timeline:`DataLoader, pin_memory=True` and, with these
# changes, :timeline:`prefetch, data pinned once`, whose copies stand where the host launches them:
#
# .. code-block:: diff
#
#     -for x, y in DataLoader(data, batch_size=None, num_workers=4, pin_memory=True):
#     +data = [(x.pin_memory(), y.pin_memory()) for x, y in data]  # once, if it fits
#     +for x, y in pipeline.prefetch(data):

# Folded: the measurement
import threading
from functools import partial

LOOP = {"batch": 1536, "width": 384, "depth": 20, "steps": 40, "workers": 4}  # 19 MB a batch
THERE, LOADER = "data on the device already", "DataLoader, pin_memory=True"
PREFETCH, ONCE, NOBODY = "prefetch", "prefetch, data pinned once", "DataLoader, no workers"
SEEN = THERE, LOADER, ONCE
SLEEPS, COPIES, COUNTS = BESIDE = [f"a thread {does}" for does in ("sleeps", "copies", "counts")]


def launched(label, work, launch):  # while a thread does some work again and again
    stop = threading.Event()
    with ap.cpu_lane(1) as lane:
        lane.submit(lambda: [work() for _ in iter(stop.is_set, True)])
        try:
            return ap.measure(launch, label=label, devices=(), warmup=1, repeats=6)
        finally:
            stop.set()


def gil(batch, width, depth, steps, workers, device="cuda:0"):
    pairs = [(torch.randn(batch, 3072).share_memory_(), torch.arange(batch) % 10) for _ in range(8)]
    pin, there = device != "cpu", [(x.to(device), y.to(device)) for x, y in pairs]
    kept = pairs, list(DataLoader(pairs, None, pin_memory=pin)), there
    data, pinned, there = (each * (steps // len(pairs)) for each in kept)
    loader = DataLoader(data, None, num_workers=workers, pin_memory=pin, persistent_workers=True)
    inner = [nn.Sequential(nn.ReLU(), nn.Linear(width, width)) for _ in range(depth)]
    model = nn.Sequential(nn.Linear(3072, width), *inner, nn.Linear(width, 10)).to(device)
    restart = partial(model.load_state_dict, {k: v.clone() for k, v in model.state_dict().items()})
    to = partial(torch.Tensor.to, device=device, non_blocking=True)
    with ap.CopyPipeline(device) as pipeline:
        feeds = {THERE: lambda: there, LOADER: lambda: ((to(x), to(y)) for x, y in loader)}
        feeds[NOBODY] = lambda: ((to(x), to(y)) for x, y in DataLoader(data, None, pin_memory=pin))
        feeds[PREFETCH], feeds[ONCE] = (partial(pipeline.prefetch, it) for it in (data, pinned))
        ways = {way: lambda feed=feed: train(model, feed()) for way, feed in feeds.items()}
        found = ap.race(ways, devices=[device], setup=restart, see=SEEN)
    for way, whole in found.timelines.items():  # of which three steps of usual length stay
        starts_s = [span.start_s for span in whole.spans if span.name == "step"]
        three = sorted(zip(starts_s[8:], starts_s[11:], strict=False), key=lambda s: s[1] - s[0])
        found.timelines[way] = whole.between(*three[len(three) // 2])
    x, launch = pairs[0][0], partial(train, model, there[:2])
    nap, copy = partial(threading.Event().wait, 1e-3), partial(x.clone().copy_, x)
    works = nap, copy, lambda: sum(n for n in range(100_000))
    beside = [launched(*one, launch) for one in zip(BESIDE, works, strict=True)]
    return ap.Findings([*found.measurements, *beside], found.timelines, found.checks)


# %%
fed = ap.recorded(gil, name="b11_who_holds_the_gil", parameters=LOOP)
seen = {it: fed.timelines[it] for it in SEEN}
gpu_s = seen[THERE].busy_s("compute") / 3  # in a step; the same in all ways
ms = {it: 1e3 * (fed.measurements[it].median_s / LOOP["steps"] - gpu_s) for it in seen}
look = f"Look at the gaps. By the clock steps wait {', '.join(f'{ms[it]:.1f} ms' for it in ms)}."
ap.show_timelines(seen, "b11_who_holds_the_gil", title="Three steps each", caption=look)

# %%
# Data that is pinned once needs no copy on the host
# --------------------------------------------------
# Times are without the profiler. `prefetch` copies ordinary data to pinned memory, on the host.
ways = [one for one in fed.measurements.values() if one.label not in BESIDE]
slower = fed.estimate(lambda s: s[LOADER] / s[THERE])
kept = fed.estimate(lambda s: s[THERE] / s[ONCE])
ap.show(
    ap.compare(ways, baseline=THERE, highlight=ONCE),
    ap.claim("The loader's thread and workers cost the loop time.", slower, at_least=1.2, unit="×"),
    ap.claim("Prefetch of data pinned once keeps most speed.", kept, at_least=0.7, unit="%"),
)

# %%
# A thread that counts holds launches up
# --------------------------------------
# Compare launches of two steps beside a thread that copies, one that counts, and one that sleeps.
copies, counts = (fed.estimate(lambda s, it=it: s[it] / s[SLEEPS]) for it in (COPIES, COUNTS))
ap.show(
    ap.compare([fed.measurements[label] for label in BESIDE], highlight=COUNTS),
    ap.claim("A thread that copies holds launches up little.", copies, at_most=1.5, unit="×"),
    ap.claim("A thread that counts holds them up.", counts, at_least=2, unit="×"),
)

# %%
# When this does not help
# -----------------------
# Large operators hide all this. Data too large to pin at once is pinned by batch: :doc:`/recipes`.
#
# On this machine
# ---------------
# The CPU computes here, so each thread beside the loop takes a core from it, too.
HERE = {"batch": 32, "width": 64, "depth": 4, "steps": 16, "workers": 1, "device": "cpu"}
here = ap.observed(gil, name="the GIL on the CPU", parameters=HERE)
ap.show(ap.compare([here.measurements[label] for label in BESIDE], highlight=COUNTS))

# %%
# Now you
# -------
# A thread gives the GIL up 5 ms after another asks. A step may ask 160 times. How long is that?
#
# .. dropdown:: A hint
#
#     Each operator lets the GIL go, and has to ask for it again.
#
# .. dropdown:: An answer
#
#     About 800 ms. `sys.setswitchinterval` sets the 5 ms.
#
#     .. code-block:: python
#
#         def longest_ms(asked=160, interval_ms=5):
#             return asked * interval_ms
