# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
More devices, more speed?
=========================

| **You'll do:** give the chapter's products and a step of training to more and more GPUs, and copy
  between them.
| **You'll learn:** strong and weak scaling, what limits each, and which copies get in each other's
  way.
| **You need:** 8 minutes, and no GPU: what needs two or more is shown from a record. Read
  :doc:`plot_1_add_gradients_up_during_backward` first;
  :doc:`/auto_gallery/first_steps/plot_2_two_devices_at_once` has the products.

Two GPUs do a fixed amount of work in half of the time at best. This is *strong scaling*. Or they do
twice the work in the same time, which is *weak scaling*. Products reach both limits; training has
to exchange its gradients as well.
"""

# %%
# Work that is divided gets smaller, its gradients don't
# ------------------------------------------------------
# Each *rank*, a process with a GPU, gets a part of the work (1), or work of its own of full size
# (2). The network's gradients are as large in any case, and `DistributedDataParallel` adds them up.

import torch
import torch.distributed as dist
from torch import nn

import autopar as ap


def ways_to_scale(a, ddp, x, y, products, rank, ranks):
    part = x.chunk(ranks)[rank], y.chunk(ranks)[rank]
    return {
        f"products, divided by {ranks}": lambda: ap.workload.products(a, products // ranks),  # 1
        f"products, {ranks} times": lambda: ap.workload.products(a, products),  # 2
        f"steps, divided by {ranks}": lambda: loss_and_gradients(ddp, *part),
        f"steps, {ranks} times": lambda: loss_and_gradients(ddp, x, y),
    }


# %%
# `on_ranks` starts one process, then two, and so on, as far as there are GPUs. A sample is the time
# of the slowest rank.


# Folded: the measurement
def loss_and_gradients(ddp, x, y):
    """The loss of some rows, and new gradients, of which all ranks get the mean."""
    ddp.zero_grad()
    loss = nn.functional.mse_loss(ddp(x), y)
    loss.backward()
    return loss.detach()


def each_rank(device, products, size, width, layers, batch, repeats):
    """Products and steps on one rank, and whether all ranks together have the right loss."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential()
    for _ in range(layers):
        model.append(nn.Linear(width, width, bias=False, device=device)).append(nn.ReLU())
    a = ap.workload.matrix(size, device)
    x, y = torch.randn(2, batch, width, device=device)
    ddp = nn.parallel.DistributedDataParallel(
        model, device_ids=[device] if device.type == "cuda" else None
    )
    ways = ways_to_scale(a, ddp, x, y, products, rank, ranks)
    whole = loss_and_gradients(ddp, x, y)  # each rank has all rows, so their mean is the same
    expected = [p.grad.clone() for p in model.parameters()]
    loss = ways[f"steps, divided by {ranks}"]()
    dist.all_reduce(loss)
    pairs = zip([p.grad for p in model.parameters()], expected, strict=True)
    close = all(torch.allclose(p, q, rtol=0, atol=1e-4 * q.abs().max().item()) for p, q in pairs)
    checks = {
        f"{ranks} ranks: the loss is that of one": torch.allclose(loss / ranks, whole, rtol=1e-4),
        f"{ranks} ranks: the gradients are those of one": close,
    }
    if ranks == 1:  # then both ways are one
        ways = {f"{work} on one": ways[f"{work}, divided by 1"] for work in ("products", "steps")}
    given = {"setup": dist.barrier, "devices": device, "repeats": repeats}
    return ap.Findings(ap.measure_in_turn(ways, **given), checks=checks)


def by_ranks(counts, device, products, size, width, layers, batch, repeats):
    """Products and steps of training, on more and more devices."""
    args, most = (products, size, width, layers, batch, repeats), max(counts)
    most = ap.num_gpus() if device == "cuda" else most
    found = [
        ap.findings_of_ranks(ap.on_ranks(each_rank, *args, ranks=count, device=device))
        for count in counts
        if count <= most
    ]
    return ap.Findings(
        [one for findings in found for one in findings.measurements],
        checks={check: held for findings in found for check, held in findings.checks.items()},
    )


# %%
# The limit of divided work is the time on one device, divided by their number. The limit of work
# that is there several times is the time on one device.

NETWORK = {"width": 4096, "layers": 16, "batch": 1024}
BOOK = {"counts": [1, 2, 4], "device": "cuda", "products": 48, "size": 4000, **NETWORK}
scaled = ap.recorded(by_ranks, name="d2_scaling", parameters={**BOOK, "repeats": 7}, gpus=2)


def limits(record):
    """The least time of each way, from the times on one device."""
    limits_s = {}
    for label in record.measurements:
        work, _, how = label.removesuffix(" on one").partition(", ")
        alone_s = record.measurements[f"{work} on one"].min_s
        limits_s[label] = alone_s / int(how.split()[-1]) if how.startswith("divided") else alone_s
    return limits_s


ap.show(ap.compare(scaled.measurements, limit_s=limits(scaled)))

# %%
# Look at the column *limit / time*. Products lose nearly nothing. Steps lose a little where each
# rank has its own batch, and more where a batch is divided: there is less computing to hide the
# exchange behind. The more devices, the more so.

products = scaled.estimate(lambda s: s["products on one"] / s["products, divided by 2"])
divided = scaled.estimate(lambda s: s["steps on one"] / s["steps, divided by 2"])
each = scaled.estimate(lambda s: s["steps on one"] / s["steps, 2 times"])
ap.show(
    ap.claim("Two GPUs are nearly twice as fast at products.", products, at_least=1.8, unit="×"),
    ap.claim("Two GPUs are clearly faster at a batch.", divided, at_least=1.3, unit="×"),
    ap.claim("With a batch each they lose little.", each, at_least=0.8, unit="%"),
)

# %%
# Copies to a GPU are shorter than copies to the host
# ---------------------------------------------------
# NVLink joins the GPUs directly, and is faster than PCIe, by which each reaches the host. Both are
# used in the same way: a copy goes to a side stream of the GPU that has the data, and waits for an
# event behind its product.


def with_copies(x, buffers, side):
    for buffer in buffers:  # pinned memory of the host, or memory of another GPU
        y = x.mm(x)
        side.wait_event(torch.cuda.current_stream(x.device).record_event())
        with torch.cuda.stream(side):
            buffer.copy_(y, non_blocking=True)
        y.record_stream(side)
    return buffers


# %%
# At the end all GPUs copy at once: to the host, and each to the next.


# Folded: the measurement
TO_HOST, TO_GPU, PRODUCTS = "to the host", "to another GPU", "products alone"
ALONE, AT_ONCE = "one GPU alone", "all GPUs at once"


def copied_all(pairs):
    """Copies to several places, each queued on the GPU that has the data."""
    for place, y in pairs:
        with torch.cuda.device(y.device):
            place.copy_(y, non_blocking=True)


def copies_of_all(device, count, size, repeats):
    """Copies behind products, over NVLink and over PCIe; and the copies of all GPUs at once."""
    gpus = [ap.gpu(i) for i in range(ap.num_gpus())]
    x, side = ap.workload.matrix(size, device), torch.cuda.Stream(device)
    results = ap.workload.products(x, count)
    host = torch.empty(count, size, size, pin_memory=True)
    there = torch.empty(count, size, size, device=gpus[1])
    ways = {
        TO_HOST: lambda: with_copies(x, list(host), side),
        TO_GPU: lambda: with_copies(x, list(there), side),
    }
    sources = [torch.stack(results).to(gpu) for gpu in gpus]
    hosts = [torch.empty(count, size, size, pin_memory=True) for _ in gpus]
    others = [torch.empty(count, size, size, device=gpu) for gpu in (*gpus[1:], gpus[0])]
    parts = {PRODUCTS: lambda: ap.workload.products(x, count)}
    for label, places in ((TO_HOST, hosts), (TO_GPU, others)):
        pairs = list(zip(places, sources, strict=True))
        parts[f"{label}, {ALONE}"] = lambda pairs=pairs: copied_all(pairs[:1])
        parts[f"{label}, {AT_ONCE}"] = lambda pairs=pairs: copied_all(pairs)
    memory = [host, there, *hosts, *others]
    findings = ap.race(
        ways,
        parts=parts,
        expected=results,
        reset=lambda: [one.fill_(torch.nan) for one in memory],
        see=[TO_HOST, TO_GPU],
        repeats=repeats,
    )
    right = all(torch.equal(one.cpu(), host) for one in (*hosts, *others))
    checks = findings.checks | {"what all GPUs copied has arrived": right}
    values = findings.values | {"GPUs": len(gpus)}
    return ap.Findings(findings.measurements, findings.timelines, checks, values)


def copies_in_one_process(count, size, repeats):
    """Copies behind products and of all GPUs at once, over NVLink and over PCIe."""
    (findings,) = ap.on_ranks(copies_of_all, count, size, repeats, ranks=1, device="cuda")
    return findings


# %%
# Look at the orange bars in the picture at the top: they hide in both cases, and are much shorter
# between GPUs.

COPIES = {"count": 24, "size": 4000, "repeats": 7}
copies = ap.recorded(copies_in_one_process, name="d2_copies", parameters=COPIES, gpus=2)
title = "Products, and copies of their results"
ap.show_timelines(copies.timelines, "d2_copies", title=title)

# %%
# Then compare the two rows of each kind of copy. Every GPU has a bus and links of its own, so all
# can copy in the time of one. Where GPUs share a bus, they cannot.

# Folded: the rates
parts = [label for label in copies.measurements if label not in (TO_HOST, TO_GPU)]
gb, rows = COPIES["count"] * COPIES["size"] ** 2 * 4 / 1e9, []
for label in parts[1:]:
    many = copies.values["GPUs"] if label.endswith(AT_ONCE) else 1
    time_s = copies.measurements[label].median_s
    rows.append([label, f"{1e3 * time_s:.2f} ms", f"{many * gb / time_s:.1f}"])
ap.show(
    ap.compare(copies.measurements, parts=parts),
    ap.tabulate(["copies", "time", "GB/s in all"], rows, origin=copies.origin),
)

# %%
# What of it holds on other machines, too:

host, gpu = (copies.hidden(way, [PRODUCTS, f"{way}, {ALONE}"]) for way in (TO_HOST, TO_GPU))
faster = copies.estimate(lambda s: s[f"{TO_HOST}, {ALONE}"] / s[f"{TO_GPU}, {ALONE}"])
longer = copies.estimate(lambda s: s[f"{TO_HOST}, {AT_ONCE}"] / s[f"{TO_HOST}, {ALONE}"])
ap.show(
    ap.claim("Copies to the host hide behind products.", host, at_least=0.8, unit="%"),
    ap.claim("A GPU gets its copies several times as fast.", faster, at_least=3, unit="×"),
    ap.claim("All GPUs copy in the time of one.", longer, at_most=1.3, unit="×"),
)

# %%
# When this does not help
# -----------------------
# The records here are of two GPUs. On a machine with four, the same page measures four as well.
# What two do doesn't tell what four do: an exchange takes more messages, and buses may be shared.
# A batch that is too small for one GPU gains nothing from a second.
#
# On this machine
# ---------------
# Ranks on a CPU share its cores. The work of one rank has all of them already, so that more ranks
# seldom help.

SMALL = {"products": 12, "size": 384, "width": 256, "layers": 3, "batch": 256, "repeats": 5}
here = ap.observed(
    by_ranks, name="ranks on a CPU", parameters={"counts": [1, 2], "device": "cpu", **SMALL}
)
ap.show(ap.compare(here.measurements, limit_s=limits(here), limit_name="estimate"))

# %%
# Now you
# -------
# From the times of one device, how many GPUs divide a step before the exchange is its longest part?
#
# .. dropdown:: A hint
#
#     Computing is divided, and the exchange is not. Where are both equal?
#
# .. dropdown:: An answer
#
#     At the time of backward on one device, divided by that of the exchange, which the page
#     before this one has. Beyond it every further GPU only waits for gradients.
#
#     .. code-block:: python
#
#         def most_ranks(backward_s=0.02, exchange_s=0.004):
#             ranks = 1
#             while backward_s / ranks > exchange_s:
#                 ranks += 1
#             return ranks
