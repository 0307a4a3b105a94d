"""
Feed a training loop
====================

| **You'll do:** train a small network on the batches of a `DataLoader`, fed to the GPU in three
  ways, beside the same loop over data that is on the GPU already.
| **You'll learn:** what pinned batches gain and what they don't, what `prefetch` adds, and when
  no way of feeding can keep up.
| **You need:** nothing but this page, and `tqdm` for its progress bar; without a GPU it shows a
  record and trains on the CPU.

**The claim.** Where a step takes longer than the copy of its batch, a loop fed by `prefetch` keeps
at least 97 % of the speed that it has with all data on the GPU, and its losses are the same bit
for bit. The plain ways pay for every copy. The two timelines show where the copies go.
"""

# %%
# The work
# --------
# A network of linear layers learns to tell ten classes of images; each image is its class's
# pattern under noise. A wide network has more to compute for each image than a narrow one, and
# the same to copy. The loader's batches lie ready in the host's memory (`batch_size=None` takes
# each as it is), so that what is timed is their way to the GPU, and not how they were made.

import copy
import functools
import itertools
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autopar as ap

IMAGE, CLASSES, LEARNING_RATE = (3, 32, 32), 10, 0.1
WIDE = {"width": 4096, "batch": 1024, "batches": 50, "epochs": 2, "shown": 16}
NARROW = {"width": 64, "batch": 8192, "batches": 12, "epochs": 2, "shown": 0}
HERE = {"width": 128, "batch": 64, "batches": 16, "epochs": 1, "shown": 0, "device": "cpu"}


def images_and_labels(batch, batches, device):
    """Batches of images with their labels, made on a device, in the host's memory."""
    numbers = torch.Generator(device).manual_seed(0)
    patterns = 0.3 * torch.randn(CLASSES, *IMAGE, generator=numbers, device=device)
    labels = torch.randint(CLASSES, (batches, batch), generator=numbers, device=device)
    noise = torch.randn(batches, batch, *IMAGE, generator=numbers, device=device)
    return TensorDataset(noise.add_(patterns[labels]).cpu(), labels.cpu())


def network(width, device):
    """Two hidden layers."""
    torch.manual_seed(0)
    first, second = nn.Linear(math.prod(IMAGE), width), nn.Linear(width, width)
    last = nn.Linear(width, CLASSES)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last).to(device)


def train(model, batches):
    """A step for each batch; the losses stay on the device, since reading one would wait."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


# %%
# Predict
# -------
# The limit is the longer of computing and copying; what hides nothing takes their sum. Which is
# longer can be told beforehand: from the operations for each byte of an image, and from how many
# the GPU does in the time that it takes to copy one, as the chapter's experiment measured it.

e3 = ap.newest_record("e3_compute_and_copy")
copies_per_run = e3.measurements["copy"].median_s / e3.measurements["run"].median_s
size = e3.parameters["size"]
even = ap.workload.product_flops(size) / ap.workload.product_bytes(size) * copies_per_run
print(f"even: {even:,.0f} operations for each byte copied")
for name, each in (("wide network", WIDE), ("narrow network", NARROW)):
    # For each weight 2 forwards and 4 backwards; the first layer needs no gradient of its input.
    flops = 4 * math.prod(IMAGE) * each["width"] + 6 * each["width"] ** 2
    print(f"{name}: {flops / (4 * math.prod(IMAGE)):,.0f}")

# %%
# Three ways to feed it
# ---------------------
# `.to(device)` waits for each copy. From a pinned batch it can be `non_blocking`, and the host
# goes on; but the copy is on the stream of the computing, as the book's are. `prefetch` takes
# ordinary batches, passes them through pinned memory of its own, and copies the next ones on a
# side stream. Every run starts from the same weights, and first of all the losses are compared.

THERE, COPIES = "data on the device already", "the copies alone, pinned"
PLAIN, PINNED, PREFETCH = ".to(device)", "pin_memory=True, non-blocking", "prefetch"


def training_loops(width, batch, batches, epochs, shown, device="cuda:0"):
    """The same training fed in each way, and timelines of some steps from the middle."""
    device = torch.device(device)
    data = images_and_labels(batch, batches, device)
    loader = DataLoader(data, batch_size=None)
    pinning = DataLoader(data, batch_size=None, pin_memory=device.type == "cuda")
    there = [(x.to(device), y.to(device)) for x, y in loader]
    images, _ = next(iter(pinning))
    target = images.to(device, copy=True)
    model = network(width, device)
    start = copy.deepcopy(model.state_dict())

    def moved(loader, non_blocking=False):
        return ([each.to(device, non_blocking=non_blocking) for each in pair] for pair in loader)

    def run(feed):
        model.load_state_dict(start)
        return [loss for _ in range(epochs) for loss in train(model, feed())]

    def copies():
        for _ in range(epochs * batches):
            target.copy_(images, non_blocking=True)

    def from_the_middle(feed):
        coming = iter(feed())
        train(model, itertools.islice(coming, shown))
        return ap.timeline_of(lambda: train(model, itertools.islice(coming, shown)))

    with ap.CopyPipeline(device) as pipeline:
        feeds = {
            THERE: lambda: there,
            PLAIN: lambda: moved(loader),
            PINNED: lambda: moved(pinning, non_blocking=True),
            PREFETCH: lambda: pipeline.prefetch(loader),
        }
        losses = {way: run(feed) for way, feed in feeds.items()}
        checks = {
            f"{way}: losses equal": ap.workload.equal(losses[way], losses[THERE])
            for way in (PLAIN, PINNED, PREFETCH)
        }
        ways = {way: functools.partial(run, feed) for way, feed in feeds.items()}
        ways[COPIES] = copies
        measurements = ap.measure_in_turn(ways, devices=[device], warmup=1, repeats=7)
        seen = (PLAIN, PREFETCH) if shown else ()
        timelines = {way: from_the_middle(feeds[way]) for way in seen}
    first, *_, last = (loss.item() for loss in losses[PREFETCH])
    checks["the loss falls"] = last < first
    values = {"first loss": first, "last loss": last}
    return ap.Findings(measurements, timelines, checks, values)


# %%
# How long?
# ---------
# The wide network. Its limit is the loop with the data there already, from the same run.

wide = ap.recorded(training_loops, name="b3_training_loop", parameters=WIDE)
parts = [wide.measurements[each].median_s for each in (THERE, COPIES)]
limit_s = dict.fromkeys((PLAIN, PINNED, PREFETCH), max(parts))
caption = f"{WIDE['epochs']} epochs of {WIDE['batches']} batches, computing longer than copying"
ap.show(ap.compare(wide.measurements, limit_s=limit_s, caption=caption))

# %%
# The claim, on the numbers: this page does not build if it stops being true.

median_s = {way: wide.measurements[way].median_s for way in limit_s}
hidden = {way: ap.hidden_share(parts, each_s) for way, each_s in median_s.items()}
assert parts[0] > parts[1], "a step no longer takes longer than its copy"
reached = max(parts) / median_s[PREFETCH]
assert reached >= 0.97, f"prefetch reaches {reached:.1%} of the limit"
assert max(hidden[PLAIN], hidden[PINNED]) < 0.3, "the plain ways hide their copies after all"
for label, each_s in median_s.items():
    print(f"{label}: {1e3 * (each_s - max(parts)):,.1f} ms more than with the data there")
print(f"the copies alone: {1e3 * parts[1]:,.1f} ms")
loss_at_first, loss_at_last = (wide.values[f"{which} loss"] for which in ("first", "last"))
print(f"losses, the same in every way: from {loss_at_first:.3f} to {loss_at_last:.3f}")

# %%
# Pinning spares the host's part of a copy, but nothing hides: the copies still take their turn
# among the kernels.
#
# See it
# ------
# Some steps from the middle of an epoch. Above, no kernel runs while a batch is copied. Below,
# each copy runs under a step, for one of the steps after it.

timelines = wide.timelines
assert timelines[PLAIN].hidden() < 0.1, "`.to` copies while kernels run"
assert timelines[PREFETCH].hidden() > 0.9, "prefetch doesn't copy while kernels run"
title = f"{WIDE['shown']} training steps"
caption = "The same kernels, and copies of as many bytes; only the queue differs."
ap.show_timelines(
    timelines, "b3_feed_a_training_loop", title=f"{title}, fed in two ways", caption=caption
)

# %%
# When copying takes longer
# -------------------------
# The narrow network computes too little to hide its batches. Here the bus is the limit, and
# besides it what the host needs to get a batch into pinned memory. `prefetch` takes any iterable,
# also one that fills the same memory again for each batch, so it asks for the next one only after
# it has read the last; the loader's own thread need not wait, and comes nearer to the limit.

narrow = ap.recorded(training_loops, name="b3_copy_bound_loop", parameters=NARROW)
parts = [narrow.measurements[each].median_s for each in (THERE, COPIES)]
assert parts[1] > 1.3 * parts[0], "copying no longer takes longer than computing"
limit_s = dict.fromkeys((PLAIN, PINNED, PREFETCH), max(parts))
caption = f"{NARROW['epochs']} epochs of {NARROW['batches']} batches, copying longer than computing"
ap.show(ap.compare(narrow.measurements, limit_s=limit_s, caption=caption))

# %%
# On this machine
# ---------------
# The same function on the CPU. There the batches are where they are needed: `.to` does nothing,
# and `prefetch` copies from memory to memory, on the cores that train. Expect no gain from it,
# only the same losses, so that one program runs everywhere.

here = ap.observed(training_loops, name="training on the CPU", parameters=HERE)
shown = [here.measurements[way] for way in (THERE, PREFETCH)]
ap.show(ap.compare(shown, limit_s={PREFETCH: shown[0].median_s}, caption="On the CPU"))

# %%
# With a progress bar
# -------------------
# `prefetch` wraps any iterable, and `tqdm` wraps it in turn; an iterator has no length, so the bar
# is told it. The bar counts batches handed out. It can't run far ahead of the GPU: `prefetch`
# asks for few batches in advance, and makes its caller wait for room.

from tqdm import tqdm

device = ap.try_gpu()
loader = DataLoader(images_and_labels(HERE["batch"], HERE["batches"], device), batch_size=None)
with ap.CopyPipeline(device) as pipeline:
    bar = tqdm(pipeline.prefetch(loader), total=len(loader), unit="batch", ascii=True)
    losses = train(network(HERE["width"], device), bar)
print(bar)  # as it stood in the end; while it ran, it was on standard error

# %%
# When this does not help
# -----------------------
# Only copies hide. A loader that makes its batches too slowly holds up every way alike: give it
# workers first. Before the first steps `prefetch` asks for more and more batches, up to twice its
# `slots`, so a loop of few steps gains little. And data that fit into the GPU's memory are best
# left there.
#
# Now you
# -------
# Hand the pinned loader to `prefetch`: whose threads fill the pinned memory now, and does the
# narrow network's row change? Then find the width at which copying and computing take as long as
# each other, and predict what prefetch saves there.
