# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Aggregate gradients while backward still runs
=============================================

| **You'll do:** train one network on two GPUs, and add up their gradients in four ways.
| **You'll learn:** how gradients travel while others are computed, and that hidden is not saved.
| **You need:** 12 minutes, and no GPU: the part for two GPUs is shown from a record. Before this:
  :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy`. Next:
  :doc:`plot_2_more_devices_more_speed`.

Each GPU computes the gradients of its share of the batch, and all need the sum. The backward pass
starts with the last layer, whose gradients can travel while it computes those of the others.
"""

# %%
# An exchange after backward hides nothing
# ----------------------------------------
# Each GPU has a process, a *rank*, with a copy of the network. It divides its loss by the rows of
# all ranks, so the sum is right. An *all-reduce* gives each the sum: by NVIDIA's NCCL among GPUs.
import torch
import torch.distributed as dist
from torch import nn

import autopar as ap


def backward(model, x, y, rows):
    model.zero_grad()
    loss = nn.functional.mse_loss(model(x), y, reduction="sum") / (rows * y.shape[1])
    loss.backward()
    return loss


def after_backward(model, *share, place):
    loss, gradients = backward(model, *share), [p.grad for p in model.parameters()]
    total = nn.utils.parameters_to_vector(gradients).to(place)  # a GPU, or the CPU
    dist.all_reduce(total)
    nn.utils.vector_to_parameters(total.to(loss.device), gradients)
    return loss


# %%
# Look at the green bars, NCCL's, in :timeline:`one all-reduce after backward`: they come last.
#
# Buckets travel during backward
# ------------------------------
# One message for all waits for the last gradient, and one for each is too many. So they are packed
# in *buckets* of about one size (1). NCCL sends a bucket on a *side stream*, a second queue of the
# GPU, while backward goes on (2). Then the gradients are views of the sums (3).
def send(made, sent):
    if made:
        flat = nn.utils.parameters_to_vector(p.grad for p in made)  # 1
        sent.append(dist.all_reduce(flat, async_op=True))  # 2
        nn.utils.vector_to_parameters(flat, (p.grad for p in made))  # 3
        made.clear()


# %%
# Backward calls a *hook*, a function of ours, for each new gradient. At the end the step waits.
def bucketed(model, mib):
    made, sent = [], []

    def hook(p):
        made.append(p)
        if sum(q.nbytes for q in made) >= mib * 2**20:
            send(made, sent)

    def step(*share):
        loss = backward(model, *share)
        send(made, sent)  # what is left
        while sent:
            sent.pop().wait()
        return loss

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    return step


# %%
# In :timeline:`buckets of 64 MiB` they lie beside computing. `race_of_steps` times the slower rank.

# Folded: the measurement
DDP, AFTER = "DistributedDataParallel", "one all-reduce after backward"
CPU, BUCKETS = "summed on the CPU", "buckets of 64 MiB"


def one_rank(device, width, layers, batch, sizes_mib, repeats):
    torch.manual_seed(0)
    model, data = ap.workload.network(width, layers, device), torch.randn(2, batch, width)
    last = torch.zeros(width**2, device=device)
    ways = {AFTER: lambda model: lambda *share: after_backward(model, *share, place=device)}
    for mib in sizes_mib:
        ways[f"buckets of {mib} MiB"] = lambda model, mib=mib: bucketed(model, mib)
    see, ddp = [*ways][:2], {DDP: {}, f"{DDP}, one bucket": {"bucket_cap_mb": 2**20}}
    ways[CPU] = lambda model: lambda *share: after_backward(model, *share, place="cpu")
    parts = {"the last bucket alone": lambda: dist.all_reduce(last)}
    given = {"ddp": ddp, "see": [*see, *ddp], "save": "d1_gradients", "repeats": repeats}
    return ap.race_of_steps(ways, backward, model, data.to(device), parts=parts, **given)


def gradients_of_ranks(ranks, device, **sizes):
    return ap.findings_of_ranks(ap.on_ranks(one_rank, *sizes.values(), ranks=ranks, device=device))


BOOK = {"width": 4096, "layers": 16, "batch": 4096, "sizes_mib": [64, 256, 1024], "repeats": 11}
BOOK = {"ranks": 2, "device": "cuda", **BOOK}
gpus = ap.recorded(gradients_of_ranks, name="d1_gradients", parameters=BOOK, gpus=2)
seen = {way: gpus.timelines[way] for way in (AFTER, BUCKETS)}
ap.show_timelines(seen, "d1_gradients", title="A step on two ranks")

# %%
# Hidden is not the same as saved
# -------------------------------
# The last bucket can't hide, so the limit has its time (:doc:`/benchmarks`). But each message takes
# a part of the GPU from computing. Compare *buckets* and PyTorch's `DistributedDataParallel` with
# the row after backward: they may save nothing, or cost time, a share below 0 %.
alone = {"parts": [way for way in gpus.measurements if "alone" in way], "baseline": AFTER}
limit_s = gpus.limit_s(["computing alone"]) + gpus.limit_s(["the last bucket alone"])
low, share, high = sorted(gpus.values[f"{BUCKETS}, step {i}: exposed, share"] for i in range(3))
hidden = ap.Estimate(1 - share, 1 - high, 1 - low, 3, gpus.origin, gpus.processors)
saved = gpus.estimate(lambda s: (s[AFTER] - s[BUCKETS]) / (s[AFTER] - s["computing alone"]))
ap.show(
    ap.compare(gpus.measurements, limit_s=limit_s, highlight=BUCKETS, **alone),
    ap.claim("By the timeline, most of the exchange is hidden.", hidden, at_least=0.6, unit="%"),
    ap.claim("By the clock, less than half of it is saved.", saved, at_most=0.5, unit="%"),
)

# %%
# When this does not help
# -----------------------
# Messages that take longer than backward stay exposed: :doc:`/howto/from_one_machine_to_many`.
#
# On this machine
# ---------------
# `torchrun --nproc-per-node 2 FILE` runs it, too. Ranks on a CPU share its cores.
SMALL = {"width": 256, "layers": 4, "batch": 129, "sizes_mib": [0.25, 1], "repeats": 5}
given = {"name": "two CPU ranks", "parameters": {"ranks": 2, "device": "cpu", **SMALL}}
ap.show(ap.compare(ap.observed(gradients_of_ranks, **given).measurements, highlight=DDP))

# %%
# Now you
# -------
# Send gradients as `bfloat16`, in half the bytes. Which line of `send` changes?
#
# .. dropdown:: A hint
#
#     What is rounded before it is added is right to two or three digits. Which dtype has `grad`?
#
# .. dropdown:: An answer
#
#     Line 1. Adam refuses such gradients: after the wait, `p.grad = p.grad.float()` mends that.
#
#     .. code-block:: python
#
#         def message(made):
#             return nn.utils.parameters_to_vector(p.grad.bfloat16() for p in made)
