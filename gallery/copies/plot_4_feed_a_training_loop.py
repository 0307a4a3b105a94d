# pip install "autopar @ git+https://github.com/autopar/autopar"
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
most of the speed that it has with all data on the GPU, and its losses are the same bit for bit.
The plain ways pay for every copy. The two timelines show where the copies go.
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
NARROW = {"width": 64, "batch": 16384, "batches": 8, "epochs": 2, "shown": 0}
HERE = {"width": 64, "batch": 32, "batches": 6, "epochs": 1, "shown": 0, "device": "cpu"}


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
# At best a loop takes the longer of computing and copying; what hides nothing takes their sum.
# Which is longer can be told beforehand, from the operations for each byte of an image: a GPU of 50
# TFLOP/s on a bus of 50 GB/s does a thousand in the time that it takes to copy a byte.


def operations_per_byte(width):
    """2 for each weight forwards, 4 backwards; the first layer needs no gradient of its input."""
    return (4 * math.prod(IMAGE) * width + 6 * width**2) / (4 * math.prod(IMAGE))


for name, each in (("wide network", WIDE), ("narrow network", NARROW)):
    print(f"{name}: {operations_per_byte(each['width']):,.0f} operations for each byte copied")

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
        measurements = ap.measure_in_turn(ways, devices=[device], warmup=1, repeats=5)
        seen = (PLAIN, PREFETCH) if shown else ()
        timelines = {way: from_the_middle(feeds[way]) for way in seen}
    first, *_, last = (loss.item() for loss in losses[PREFETCH])
    checks["the loss falls"] = last < first
    values = {"first loss": first, "last loss": last}
    return ap.Findings(measurements, timelines, checks, values)


# %%
# How long?
# ---------
# The wide network. The other ways are held against the loop with the data there already, in the
# same run.

wide = ap.recorded(training_loops, name="b3_training_loop", parameters=WIDE)
caption = f"{WIDE['epochs']} epochs of {WIDE['batches']} batches, computing longer than copying"
ap.show(ap.compare(wide.measurements, baseline=THERE, parts=[COPIES], caption=caption))

# %%
# The claims. *Saved* is a share of the copies' time, alone and pinned.

median_s = {label: one.median_s for label, one in wide.measurements.items()}
for way in (PLAIN, PINNED, PREFETCH):
    print(f"{way}: {1e3 * (median_s[way] - median_s[THERE]):,.1f} ms more than with the data there")
even = operations_per_byte(WIDE["width"]) * median_s[COPIES] / median_s[THERE]
print(f"Computing and copying would take as long at {even:,.0f} operations for each byte.")
loss_at_first, loss_at_last = (wide.values[f"{which} loss"] for which in ("first", "last"))
print(f"losses, the same in every way: from {loss_at_first:.3f} to {loss_at_last:.3f}")


def saved(seconds, way):
    """Of the copies' time, what a way saves."""
    return ap.hidden_share([seconds[THERE], seconds[COPIES]], seconds[way])


longer = wide.estimate(lambda s: s[THERE] / s[COPIES])
plainly = wide.estimate(lambda s: max(saved(s, PLAIN), saved(s, PINNED)))
kept = wide.estimate(lambda s: s[THERE] / s[PREFETCH])
ap.show(
    ap.claim(
        "Steps of the wide network take longer than the copies of batches.",
        longer,
        at_least=2,
        unit="×",
    ),
    ap.claim(
        "The plain ways to feed a loop save little of the copies' time.",
        plainly,
        at_most=0.4,
        unit="%",
    ),
    ap.claim("A loop fed by prefetch keeps most of its speed.", kept, at_least=0.9, unit="%"),
)

# %%
# How near `prefetch` comes to the loop with the data there is a benchmark of its own:

name, percent = "prefetch, of the speed with the data there", "{:.1%}".format
ap.show(ap.against_goals([(name, kept.value, "at least", 0.97, percent)], origin=wide.origin))

# %%
# Pinning spares the host's part of a copy, but the copies still take their turn among the kernels.
#
# See it
# ------
# Some steps from the middle of an epoch. Above, no kernel runs while a batch is copied. Below,
# each copy runs under a step, for one of the steps after it.

timelines = wide.timelines
title = f"{WIDE['shown']} training steps"
caption = "The same kernels, and copies of as many bytes; only the queue differs."
ap.show_timelines(
    timelines, "b3_feed_a_training_loop", title=f"{title}, fed in two ways", caption=caption
)

# %%
# By these timelines, what is *hidden*: the share of the copies' time in which a kernel ran.

plain, ahead = (
    wide.estimate(lambda _, way=way: timelines[way].hidden()) for way in (PLAIN, PREFETCH)
)
ap.show(
    ap.claim("Copies by .to(device) run while no kernel does.", plain, at_most=0.2, unit="%"),
    ap.claim("Most copies by prefetch run while kernels do.", ahead, at_least=0.8, unit="%"),
)

# %%
# When copying takes longer
# -------------------------
# The narrow network computes too little to hide its batches. Here the copies, at their fastest, are
# the limit, and besides it what the host needs to get a batch into pinned memory. `prefetch` takes
# any iterable, also one that fills the same memory again for each batch, so it asks for the next
# one only after it has read the last; the loader's own thread need not wait, and comes nearer to
# the limit.

narrow = ap.recorded(training_loops, name="b3_copy_bound_loop", parameters=NARROW)
limits_s = dict.fromkeys((PLAIN, PINNED, PREFETCH), narrow.measurements[COPIES].min_s)
caption = f"{NARROW['epochs']} epochs of {NARROW['batches']} batches, copying longer than computing"
longer = narrow.estimate(lambda s: s[COPIES] / s[THERE])
ap.show(
    ap.compare(narrow.measurements, limit_s=limits_s, caption=caption),
    ap.claim(
        "Batches of the narrow network take longer to copy than to compute.",
        longer,
        at_least=1.2,
        unit="×",
    ),
)

# %%
# On this machine
# ---------------
# The same function on the CPU. There the batches are where they are needed: `.to` does nothing,
# and `prefetch` copies from memory to memory, on the cores that train. Expect no gain from it,
# only the same losses, so that one program runs everywhere.

here = ap.observed(training_loops, name="training on the CPU", parameters=HERE)
shown = [here.measurements[way] for way in (THERE, PREFETCH)]
ap.show(ap.compare(shown, baseline=THERE, caption="On the CPU"))

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
