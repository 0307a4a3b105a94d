# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Feed a training loop
====================

| **You'll do:** train a small network, and change two lines so that the GPU need not wait for data.
| **You'll learn:** why pinned batches alone hide nothing, and when no way of feeding can keep up.
| **You need:** 8 minutes, and no GPU: the GPU's part is shown from records. Before this:
  :doc:`plot_3_copy_both_ways_while_you_compute`. Next:
  :doc:`plot_5_the_pipeline_against_its_limits`.

Where a training step takes longer than the copy of its batch, a loop fed by `prefetch` keeps most
of the speed that it has with all data on the GPU already. The usual loop copies each batch when its
step is due, and the GPU computes nothing meanwhile. Over pinned batches `prefetch` gains little.
"""

# %%
# Two lines make the difference
# -----------------------------
# The first two are what everybody writes; `step` trains on one batch. The last two, inside a `with
# ap.CopyPipeline(device) as pipeline:`, copy the next batches while this one is computed.
#
# .. code-block:: diff
#
#     -for x, y in loader:
#     -    losses.append(step(x.to(device), y.to(device)))
#     +for x, y in pipeline.prefetch(loader):
#     +    losses.append(step(x, y))
#
# Look for gaps with a copy in them in :timeline:`.to(device)` and in :timeline:`prefetch`.
#
# The usual advice, `pin_memory=True`, makes copies quick and hides none. The GPU reads `pinned
# memory <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`__ by itself, but
# copies and steps share a *stream*, which is a queue of the GPU.
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader

import autopar as ap


def train(model, batches):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


# %%
# The images are noise in the host's memory. `race` compares all losses bit for bit.

# Folded: the measurement
WIDE = {"width": 4096, "batch": 1024, "batches": 50, "epochs": 2, "shown": 16}
NARROW = {"width": 64, "batch": 16384, "batches": 8, "epochs": 2, "shown": 0}
THERE, COPIES = PARTS = "data on the device already", "the copies alone, pinned"
PLAIN, PINNED, PREFETCH = ".to(device)", "pin_memory=True, non-blocking", "prefetch"


def training_loops(width, batch, batches, epochs, shown, device="cuda:0"):
    images = torch.randn(batches, batch, 3 * 32 * 32, device=device).cpu()
    data = list(zip(images, torch.randint(10, (batches, batch)), strict=True))
    loader = DataLoader(data, batch_size=None)
    pinning = DataLoader(data, batch_size=None, pin_memory=device != "cpu")
    layers = [nn.Linear(*side) for side in itertools.pairwise((3 * 32 * 32, width, width, 10))]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).to(device)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    pinned, times = next(iter(pinning))[0], range(epochs * batches)
    target = pinned.to(device, copy=True)

    def moved(loader, **how):
        return ((x.to(device, **how), y.to(device, **how)) for x, y in loader)

    def losses(feed):
        model.load_state_dict(start)
        return [train(model, feed()) for _ in range(epochs)]

    def from_the_middle(feed):
        coming = iter(feed())
        train(model, itertools.islice(coming, shown))
        seen = ap.timeline_of(lambda: train(model, itertools.islice(coming, shown)))
        return ap.Timeline([span for span in seen.spans if span.kind != "host"])

    with ap.CopyPipeline(device) as pipeline:
        feeds = {
            THERE: [*moved(loader)].copy,  # the list of all batches
            PLAIN: lambda: moved(loader),
            PINNED: lambda: moved(pinning, non_blocking=True),
            PREFETCH: lambda: pipeline.prefetch(loader),
        }
        ways = {way: lambda feed=feed: losses(feed) for way, feed in feeds.items()}
        copies = {COPIES: lambda: [target.copy_(pinned, non_blocking=True) for _ in times]}
        raced = ap.race(ways, parts=copies, devices=[device])
        seen = {way: from_the_middle(feeds[way]) for way in (PLAIN, PREFETCH) if shown}
    return ap.Findings(raced.measurements, seen, raced.checks)


# %%
# Prefetch keeps most of the speed without copies
# -----------------------------------------------
wide = ap.recorded(training_loops, name="b3_training_loop", parameters=WIDE)
ap.show_timelines(wide.timelines, "b3_feed_a_training_loop", title="Steps fed in two ways")

# %%
rows = {"parts": PARTS, "baseline": PLAIN, "highlight": PREFETCH}
kept, gain = (wide.estimate(lambda s, it=it: s[it] / s[PREFETCH]) for it in (THERE, PINNED))
caption = f"Speed-ups over .to(device); over pinned batches that of prefetch is {gain.value:.2f} ×"
saved = max((wide.hidden(way, PARTS) for way in (PLAIN, PINNED)), key=lambda share: share.value)
ap.show(
    ap.compare(wide.measurements, limit_s=wide.limit_s(PARTS), caption=caption, **rows),
    ap.claim("A loop fed by prefetch keeps most of its speed.", kept, at_least=0.9, unit="%"),
    ap.claim("The plain ways save little of the copies' time.", saved, at_most=0.4, unit="%"),
)

# %%
# When this does not help
# -----------------------
# A narrow network computes too little to hide its batches. In the last two ways the CPU copies each
# batch to pinned memory first: the loader all of it, in the loop's thread, as it has no workers,
# and `prefetch` a slot at a time. That takes longer than the bus, and is the likely limit.
narrow = ap.recorded(training_loops, name="b3_copy_bound_loop", parameters=NARROW)
longer = narrow.estimate(lambda s: s[COPIES] / s[THERE])
kept_here = narrow.estimate(lambda s: s[THERE] / s[PREFETCH])
ap.show(
    ap.compare(narrow.measurements, limit_s=narrow.limit_s(PARTS), **rows | {"baseline": PINNED}),
    ap.claim("Its batches take longer to copy than to compute.", longer, at_least=1.2, unit="×"),
    ap.claim("Not even prefetch keeps the speed there.", kept_here, at_most=0.8, unit="%"),
)

# %%
# On this machine
# ---------------
# On a CPU batches are where they are needed: `prefetch` may gain nothing, or lose.
HERE = NARROW | {"batch": 32, "device": "cpu"}
here = ap.observed(training_loops, name="training on the CPU", parameters=HERE).measurements
ap.show(ap.compare([here[way] for way in (THERE, PREFETCH)], baseline=THERE, highlight=PREFETCH))

# %%
# Now you
# -------
# Put a progress bar around the loop: which goes inside, `tqdm` or `prefetch`?
#
# .. dropdown:: A hint
#
#     What is inside is asked for batches ahead of the steps. The bar should count steps.
#
# .. dropdown:: An answer
#
#     `prefetch` goes inside: the bar asks it for a batch only when a step is due.
#
#     .. code-block:: python
#
#         def train_with_bar(model, loader, pipeline):
#             from tqdm import tqdm
#             return train(model, tqdm(pipeline.prefetch(loader), total=len(loader)))
