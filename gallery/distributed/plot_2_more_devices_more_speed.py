# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
More devices, more speed?
=========================

| **You'll do:** give the chapter's products and a step of training to one GPU, and to more.
| **You'll learn:** strong and weak scaling, and what limits each.
| **You need:** 6 minutes, and no GPU: the part for several GPUs is shown from a record. Before
  this: :doc:`/auto_gallery/first_steps/plot_2_two_devices_at_once`, which has the products, and
  :doc:`plot_1_add_gradients_up_during_backward`. Next: :doc:`plot_3_copies_between_gpus`.

Two GPUs do a fixed amount of work in half of the time at best. This is *strong scaling*. Or they do
twice the work in the same time, which is *weak scaling*. Products reach both limits; training has
to exchange its gradients as well.
"""

# %%
# Work that is divided gets smaller, its gradients don't
# ------------------------------------------------------
# Each *rank*, a process with a GPU, computes the gradients of some rows. It is tempting to expect
# half of the time from twice the GPUs. But the network's gradients are as large in any case.

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

import autopar as ap


def step(model, x, y, rows):
    model.zero_grad()
    loss = nn.functional.mse_loss(model(x), y, reduction="sum") / (rows * y.shape[1])
    loss.backward()
    return loss


# %%
# A rank has a part of the work (1), or work of its own of full size (2). `DistributedDataParallel`,
# in short DDP, adds the gradients up. `race_of_steps` gives it a part of the batch, and compares
# its gradients and losses with those of one process.
def by_rank(a, model, x, y, products, ranks):
    ddp = nn.parallel.DistributedDataParallel(model)
    return {
        f"products, divided by {ranks}": lambda: ap.workload.products(a, products // ranks),  # 1
        f"products, {ranks} times": lambda: ap.workload.products(a, products),  # 2
        f"steps, {ranks} times": lambda: step(ddp, x, y, len(x)),  # 2
    }


# %%
# `on_ranks` starts one process, then two, and so on, as far as there are GPUs. A sample is the time
# of the slowest rank.


# Folded: the measurement
def one_rank(device, products, size, width, layers, batch, repeats):
    torch.manual_seed(0)
    model, ranks = ap.workload.network(width, layers, device), dist.get_world_size()
    a, (x, y) = ap.workload.matrix(size, device), torch.randn(2, batch, width).to(device)
    other = ap.workload.network(width, layers, device)
    given = {"parts": by_rank(a, other, x, y, products, ranks), "repeats": repeats}
    return ap.race_of_steps(
        {}, step, model, (x, y), ddp={f"steps, divided by {ranks}": {}}, **given
    )


def by_ranks(counts, device, **sizes):
    """Products and steps of training, on more and more devices."""
    measurements, checks = [], {}
    for ranks in counts:
        if device == "cpu" or ranks <= ap.num_gpus():
            each = ap.on_ranks(one_rank, *sizes.values(), ranks=ranks, device=device)
            found = ap.findings_of_ranks(each)
            for one in found.measurements:
                if not one.label.endswith(("alone", "1 times")):
                    label = one.label.replace(", divided by 1", " on one")
                    measurements.append(replace(one, label=label))
            checks |= {f"{ranks} ranks, {check}": held for check, held in found.checks.items()}
    return ap.Findings(measurements, checks=checks)


NETWORK = {"width": 4096, "layers": 16, "batch": 1024}
BOOK = {"counts": [1, 2, 4], "device": "cuda", "products": 48, "size": 4000, **NETWORK}
scaled = ap.recorded(by_ranks, name="d2_scaling", parameters={**BOOK, "repeats": 7}, gpus=2)

# %%
# The limit of divided work is the time on one device, divided by their number. The limit of work
# that is there several times is the time on one device. In the picture at the top, look at how far
# a bar goes beyond its mark, the limit.


def limits(measurements):
    limits_s = {}
    for label in measurements:
        work, _, how = label.removesuffix(" on one").partition(", ")
        alone_s = measurements[f"{work} on one"].min_s
        limits_s[label] = alone_s / int(how.split()[-1]) if how.startswith("divided") else alone_s
    return limits_s


limits_s = limits(scaled.measurements)
ap.plot.bars(scaled.measurements, limit_s=limits_s, title="On one GPU, and on more")
steps = [scaled.measurements[way] for way in ("steps on one", "steps, divided by 2")]
ap.plot.show("d2_scaling", look=steps)

# %%
# Products scale, and training less
# ---------------------------------
# Look at *limit / time*. Products lose nearly nothing. Steps lose a little with a batch each, and
# more where a batch is divided: what an exchange adds is then a larger part of a shorter step.

products = scaled.estimate(lambda s: s["products on one"] / s["products, divided by 2"])
divided = scaled.estimate(lambda s: s["steps on one"] / s["steps, divided by 2"])
each = scaled.estimate(lambda s: s["steps on one"] / s["steps, 2 times"])
ap.show(
    ap.compare(scaled.measurements, limit_s=limits_s, highlight="steps, divided by 2"),
    ap.claim("Two GPUs are nearly twice as fast at products.", products, at_least=1.8, unit="×"),
    ap.claim("Two GPUs are clearly faster at a batch.", divided, at_least=1.3, unit="×"),
    ap.claim("With a batch each they lose little.", each, at_least=0.8, unit="%"),
)

# %%
# When this does not help
# -----------------------
# On a machine with four GPUs the same page measures four as well (:doc:`/benchmarks`). What two do
# doesn't tell what four do: an exchange takes more messages, and buses may be shared. A batch that
# is too small for one GPU gains nothing from a second.
#
# On this machine
# ---------------
# Ranks on a CPU share its cores with one another, and with all else that runs there. So these times
# vary, and tell little of more devices.

SMALL = {"products": 12, "size": 384, "width": 256, "layers": 3, "batch": 256, "repeats": 5}
SMALL = {"counts": [1, 2], "device": "cpu", **SMALL}
here = ap.observed(by_ranks, name="ranks on a CPU", parameters=SMALL).measurements
ap.show(ap.compare(here, highlight="steps, divided by 2"))

# %%
# Now you
# -------
# A step's backward takes 20 ms on one device, and the exchange always 4 ms. From how many GPUs on
# is computing no longer than the exchange?
#
# .. dropdown:: A hint
#
#     Computing is divided, and the exchange is not. Where are both equal?
#
# .. dropdown:: An answer
#
#     From five on, as 20 ms / 5 = 4 ms. Further GPUs only wait for gradients.
#
#     .. code-block:: python
#
#         def most_ranks(backward_s=0.02, exchange_s=0.004):
#             return int(backward_s / exchange_s)
