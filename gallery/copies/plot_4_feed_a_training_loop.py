# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Feed a training loop
====================

| **You'll do:** train a small network on the batches of a `DataLoader`, and change two lines of the
  loop so that the GPU need not wait for them.
| **You'll learn:** why pinned batches alone hide nothing, and when no way of feeding can keep up.
| **You need:** 8 minutes, and no GPU: what needs one is shown from records. Read
  :doc:`plot_3_copy_both_ways_while_you_compute` before;
  :doc:`plot_5_the_pipeline_against_its_limits` comes next.

Where a training step takes longer than the copy of its batch, a loop fed by `prefetch` keeps most
of the speed that it has with all data on the GPU already, and its losses are the same bit for bit.
The usual loop copies each batch when its step is due, and no kernel runs meanwhile.
"""

# %%
# Two lines make the difference
# -----------------------------
# The first two are what everybody writes. The last two copy the next batches while this one is
# computed. The pipeline is opened once, by `with ap.CopyPipeline(device) as pipeline:`.
#
# .. code-block:: diff
#
#     -for x, y in loader:
#     -    losses.append(step(x.to(device), y.to(device)))
#     +for x, y in pipeline.prefetch(loader):
#     +    losses.append(step(x, y))
#
# Why pinned batches alone hide nothing
# -------------------------------------
# The usual advice stands between the two: with `pin_memory=True` the loader puts batches into
# `pinned memory <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`__, which
# the GPU can read by itself, so that `non_blocking=True` lets the host go on. But the copy still
# stands in the *stream*, the queue of the GPU in which the steps stand as well.

import copy
import functools
import itertools
import math
from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autopar as ap

THERE, COPIES = "data on the device already", "the copies alone, pinned"
PLAIN, PINNED, PREFETCH = ".to(device)", "pin_memory=True, non-blocking", "prefetch"


def moved(loader, device, non_blocking=False):
    """Batches that are copied when they are asked for."""
    for x, y in loader:
        yield x.to(device, non_blocking=non_blocking), y.to(device, non_blocking=non_blocking)


# %%
# The network learns to tell ten classes of images, each its class's pattern under noise. The loader
# has its batches ready, so that what is timed is their way to the GPU, and not how they were made.


# Folded: images, network and training step
def images_and_labels(batch, batches, device, image=(3, 32, 32), classes=10):
    """Batches of images with their labels, made on a device, in the host's memory."""
    numbers = torch.Generator(device).manual_seed(0)
    patterns = 0.3 * torch.randn(classes, *image, generator=numbers, device=device)
    labels = torch.randint(classes, (batches, batch), generator=numbers, device=device)
    noise = torch.randn(batches, batch, *image, generator=numbers, device=device)
    return TensorDataset(noise.add_(patterns[labels]).cpu(), labels.cpu())


def network(width, device, image=(3, 32, 32), classes=10):
    """Two hidden layers."""
    torch.manual_seed(0)
    first, second = nn.Linear(math.prod(image), width), nn.Linear(width, width)
    last = nn.Linear(width, classes)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last).to(device)


def train(model, batches):
    """A step for each batch; the losses stay on the device, since reading one would wait."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


# %%
# Every run starts from the same weights. `race` compares the losses of all ways bit for bit with
# those of the loop that has its data on the GPU already, then times the ways in turn.


# Folded: the measurement
def training_loops(width, batch, batches, epochs, shown, device="cuda:0"):
    """The same training fed in each way, and timelines of some steps from the middle."""
    device = torch.device(device)
    data, model = images_and_labels(batch, batches, device), network(width, device)
    loader = DataLoader(data, batch_size=None)
    pinning = DataLoader(data, batch_size=None, pin_memory=device.type == "cuda")
    there, (images, _) = [*moved(loader, device)], next(iter(pinning))
    target, start = images.to(device, copy=True), copy.deepcopy(model.state_dict())

    def copies():
        for _ in range(epochs * batches):
            target.copy_(images, non_blocking=True)

    def losses(feed):
        model.load_state_dict(start)
        return [loss for _ in range(epochs) for loss in train(model, feed())]

    def from_the_middle(feed):
        coming = iter(feed())
        train(model, itertools.islice(coming, shown))
        seen = ap.timeline_of(lambda: train(model, itertools.islice(coming, shown)))
        # Without the ranges in which torch's loaders and optimizers note what the host does.
        return replace(seen, spans=[span for span in seen.spans if span.kind != "host"])

    with ap.CopyPipeline(device) as pipeline:
        feeds = {
            THERE: lambda: there,
            PLAIN: lambda: moved(loader, device),
            PINNED: lambda: moved(pinning, device, non_blocking=True),
            PREFETCH: lambda: pipeline.prefetch(loader),
        }
        ways = {way: functools.partial(losses, feed) for way, feed in feeds.items()}
        findings = ap.race(ways, parts={COPIES: copies}, devices=[device])
        first, *_, last = losses(feeds[PREFETCH])
        seen = (PLAIN, PREFETCH) if shown else ()
        timelines = {way: from_the_middle(feeds[way]) for way in seen}
    checks = {**findings.checks, "the loss falls": bool(last < first)}
    return replace(findings, timelines=timelines, checks=checks)


# %%
# The timelines are at the top of this page: some steps from the middle of an epoch. Above, look at
# the gaps between the kernels, with a copy in each. Below, the copies lie under the kernels of
# earlier steps.

WIDE = {"width": 4096, "batch": 1024, "batches": 50, "epochs": 2, "shown": 16}
wide = ap.recorded(training_loops, name="b3_training_loop", parameters=WIDE)
ap.show_timelines(
    wide.timelines,
    "b3_feed_a_training_loop",
    title=f"{WIDE['shown']} training steps, fed in two ways",
    caption="The same kernels, and copies of as many bytes from other memory, in another queue.",
)

# %%
# Prefetch comes near to no copies at all
# ---------------------------------------
# No way can be faster than the loop with its data there already, and the copy of one batch.

parts, shown = [THERE, COPIES], {"baseline": PLAIN, "highlight": PREFETCH}
limit_s = wide.limit_s(parts, pieces=WIDE["epochs"] * WIDE["batches"])
ap.show(ap.compare(wide.measurements, limit_s=limit_s, parts=parts, **shown))

# %%
# Compare the row in bold with *data on the device already*: little is left between them. The row of
# pinned batches is far better than the first, since the host's part of each copy is gone; what it
# still lacks is about the grey row of the copies, which all take their turn.

kept = wide.estimate(lambda s: s[THERE] / s[PREFETCH])
hidden = wide.estimate(lambda _: wide.timelines[PREFETCH].hidden())
plainly = wide.estimate(
    lambda s: max(ap.hidden_share([s[THERE], s[COPIES]], s[way]) for way in (PLAIN, PINNED))
)
saves = "The plain ways to feed a loop save little of the copies' time."
ap.show(
    ap.claim("A loop fed by prefetch keeps most of its speed.", kept, at_least=0.9, unit="%"),
    ap.claim("Most copies by prefetch run while kernels do.", hidden, at_least=0.8, unit="%"),
    ap.claim(saves, plainly, at_most=0.4, unit="%"),
)

# %%
# When this does not help
# -----------------------
# A narrow network computes too little to hide its batches, so here the copies are the limit.

NARROW = {"width": 64, "batch": 16384, "batches": 8, "epochs": 2, "shown": 0}
narrow = ap.recorded(training_loops, name="b3_copy_bound_loop", parameters=NARROW)
longer = narrow.estimate(lambda s: s[COPIES] / s[THERE])
bound = "Batches of the narrow network take longer to copy than to compute."
ap.show(
    ap.compare(narrow.measurements, limit_s=narrow.limit_s(parts), parts=parts, **shown),
    ap.claim(bound, longer, at_least=1.2, unit="×"),
)

# %%
# Compare the last two rows: the pinned loader comes nearer to the limit. `prefetch` takes any
# iterable, also one that fills the same memory again for each batch, so it asks for the next batch
# only after it has read the last. The loader's own thread need not wait.
#
# On this machine
# ---------------
# On the CPU the batches are where they are needed, so expect no gain, only the same losses.

HERE = {"width": 64, "batch": 32, "batches": 6, "epochs": 1, "shown": 0, "device": "cpu"}
here = ap.observed(training_loops, name="training on the CPU", parameters=HERE)
chosen = [here.measurements[way] for way in (THERE, PREFETCH)]
ap.show(ap.compare(chosen, baseline=THERE, caption="On the CPU"))

# %%
# Now you
# -------
# Put a progress bar around the loop. `tqdm` wraps any iterable, and so does `prefetch`: which of
# them goes inside, and what does the bar count?
#
# .. dropdown:: A hint
#
#     Whatever is inside is asked for batches ahead of the steps.
#
# .. dropdown:: An answer
#
#     `prefetch` goes inside, so that the bar counts batches handed out to steps. Outside it would
#     count batches asked for, which are a few more. An iterator has no length: tell it to the bar.
#
#     .. code-block:: python
#
#         def train_with_bar(model, loader, pipeline):
#             from tqdm import tqdm
#
#             return train(model, tqdm(pipeline.prefetch(loader), total=len(loader)))
