# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Aggregate gradients while backward still runs
=============================================

| **You'll do:** train one network on two GPUs, and add up their gradients in four ways.
| **You'll learn:** how to send gradients while others are still computed, in 40 lines, and what
  `DistributedDataParallel` does for you.
| **You need:** 12 minutes, and no GPU: what needs two is shown from a record. Read
  :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy` first;
  :doc:`plot_2_more_devices_more_speed` comes next.

Each GPU computes the gradients of its share of the batch, and all need the sum. Backward makes the
gradients of the last layer first. They can travel while it computes those of the other layers.
"""

# %%
# An exchange after backward hides nothing
# ----------------------------------------
# Every GPU has a process of its own, called a *rank*, with a copy of the network. A rank divides
# its loss by the rows of the whole batch, so the sum over ranks is right for shares of any size.

import copy
import pathlib
import statistics
import tempfile

import torch
import torch.distributed as dist
from torch import nn

import autopar as ap


def backward(model, x, y, rows):
    """A rank's part of the loss over all rows, with new gradients of it."""
    model.zero_grad()
    loss = nn.functional.mse_loss(model(x), y, reduction="sum") / (rows * y.shape[1])
    loss.backward()
    return loss.detach()


# %%
# The chapter adds gradients up on the CPU. NCCL, NVIDIA's library for communication of GPUs, does
# without it: an *all-reduce* leaves the sum over all ranks on each. Both begin after backward.


def on_the_cpu(model, x, y, rows):
    loss = backward(model, x, y, rows)
    for p in model.parameters():
        total = p.grad.cpu()
        dist.all_reduce(total)  # by Gloo, which does for CPUs what NCCL does for GPUs
        p.grad.copy_(total)
    return loss


def after_backward(model, x, y, rows):
    loss = backward(model, x, y, rows)
    total = nn.utils.parameters_to_vector(p.grad for p in model.parameters())
    dist.all_reduce(total)
    nn.utils.vector_to_parameters(total, [p.grad for p in model.parameters()])
    return loss


# %%
# Buckets travel during backward
# ------------------------------
# A message for each gradient would be many, and one for all comes at the end. So gradients are
# sent in *buckets*, groups of about one size, in the order in which backward ends them.


def in_buckets(model, least_bytes):
    """The parameters in groups of that size or more, those of the last layers first."""
    buckets = [[]]
    for p in reversed(list(model.parameters())):
        if sum(q.nbytes for q in buckets[-1]) >= least_bytes:
            buckets.append([])
        buckets[-1].append(p)
    return buckets


# %%
# The exchange goes to a *side stream*, a second queue of the GPU. It waits for the gradients that
# are there (1), and for nothing that comes later. There they are packed into one message (2), which
# NCCL sends while backward goes on (3). Gradients become views of the sum (4). Their old memory is
# kept until the message has been read (5).


def send(bucket, flat, side):
    gradients = [p.grad.flatten() for p in bucket]
    if side:  # a CPU has no streams
        side.wait_stream(torch.cuda.current_stream())  # 1
    with torch.cuda.stream(side):
        torch.cat(gradients, out=flat)  # 2
        work = dist.all_reduce(flat, async_op=True)  # 3
    for p, total in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        p.grad = total.view_as(p)  # 4
    return work, gradients  # 5


# %%
# Backward calls a *hook* when a gradient is there. The one of a bucket's last gradient sends it.


def when_filled(bucket, side, sent):
    made, flat = [], torch.empty(sum(p.numel() for p in bucket), device=bucket[0].device)

    def hook(p):
        made.append(p)
        if len(made) == len(bucket):
            made.clear()
            sent.append(send(bucket, flat, side))

    for p in bucket:
        p.register_post_accumulate_grad_hook(hook)


# %%
# At the end the stream that computes waits for all messages: whoever reads the sums comes later.


def bucketed(model, least_bytes, side):
    sent = []
    for bucket in in_buckets(model, least_bytes):
        when_filled(bucket, side, sent)

    def step(x, y, rows):
        loss = backward(model, x, y, rows)
        for work, _ in sent:
            work.wait()
        sent.clear()
        return loss

    return step


# %%
# `DistributedDataParallel` does the same, but takes the mean over ranks. With one bucket for all
# gradients its overlap is off.
#
# `on_ranks` starts a process for each rank. `race` compares gradients with those of one process
# that has the whole batch, and times all ways in turn. A sample is the time of the slower rank.

# Folded: the measurement
CPU, AFTER = "summed on the CPU", "one all-reduce after backward"
DDP, ONE_BUCKET = "DistributedDataParallel", "DistributedDataParallel, one bucket"
COMPUTING, FORWARD = "computing alone", "forward alone"
EXCHANGE, LAST = "all buckets alone", "the last bucket alone"
PARTS = [COMPUTING, FORWARD, EXCHANGE, LAST]
MIB, CLOSE, STEPS, RATE, SEEN = 2**20, 1e-4, 3, 0.02, 3


def buckets_of(size_mib):
    """The label of a size of buckets."""
    return f"buckets of {size_mib} MiB"


def network(width, layers, device):
    """Layers of one width; the same on each rank."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for _ in range(layers):
        model.append(nn.Linear(width, width, bias=False, device=device)).append(nn.ReLU())
        nn.init.kaiming_normal_(model[-2].weight)
    return model[:-1]


def in_ddp(model, device, **options):
    """A step with `DistributedDataParallel`, which takes the mean over ranks instead of the sum."""
    devices, ranks = [device] if device.type == "cuda" else None, dist.get_world_size()
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=devices, **options)
    return lambda x, y, rows: backward(ddp, x, y, rows / ranks) / ranks


def trained(model, step, share, everywhere):
    """The loss over some steps of training, summed over ranks if each has a share only."""
    losses = []
    for _ in range(STEPS):
        loss = step(*share)
        if everywhere:
            dist.all_reduce(loss)
        losses.append(loss)
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=RATE)
    return torch.stack(losses)


def figures_of(timeline):
    """What a rank's timeline tells of NCCL's kernels, of which one may wait for another rank."""
    sent = [span for span in timeline.spans if span.kind == "communication"]
    if not sent:
        return {}
    exposed_s = timeline.exposed_s("communication")
    return {
        "exposed, s": exposed_s,
        "exposed, share": exposed_s / timeline.busy_s("communication"),
        "exposed / last": exposed_s / sent[-1].duration_s,
    }


def seen(ways, rank):
    """Timelines of some steps of each way, what they tell of communication, and their trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "trace.json.gz")
        several = {f"{label}, step {i}": ways[label] for i in range(SEEN) for label in ways}
        every = ap.timelines_of(several, setup=dist.barrier, save=path)
        files = {f"d1_gradients_rank_{rank}.json.gz": path.read_bytes()}
    values = {
        f"{name}: {figure}": value
        for name, timeline in every.items()
        for figure, value in figures_of(timeline).items()
    }
    return {label: every[f"{label}, step {SEEN - 1}"] for label in ways}, values, files


def each_rank(device, width, layers, batch, sizes_mib, repeats):
    """All ways on one rank, against one process that has the whole batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = network(width, layers, device)
    x, y = torch.randn(2, batch, width, device=device)
    share = x.tensor_split(ranks)[rank], y.tensor_split(ranks)[rank], batch
    side = torch.cuda.Stream(device) if device.type == "cuda" else None
    one, cpu, after, ddp, single, *others = (
        copy.deepcopy(model) for _ in range(5 + len(sizes_mib))
    )
    models, steps = {CPU: cpu, AFTER: after, DDP: ddp, ONE_BUCKET: single}, {}
    steps[CPU] = lambda *share: on_the_cpu(cpu, *share)
    steps[AFTER] = lambda *share: after_backward(after, *share)
    for size_mib, other in zip(sizes_mib, others, strict=True):
        models[buckets_of(size_mib)] = other
        steps[buckets_of(size_mib)] = bucketed(other, size_mib * MIB, side)
    steps[DDP] = in_ddp(ddp, device)
    steps[ONE_BUCKET] = in_ddp(single, device, bucket_cap_mb=2 * layers * width**2 * 4 / MIB)

    def gradients(label):
        steps[label](*share)
        return [p.grad for p in models[label].parameters()]

    ways = {label: (lambda label=label: gradients(label)) for label in steps}
    buckets = in_buckets(one, sizes_mib[0] * MIB)
    sums = [torch.zeros(sum(p.numel() for p in bucket), device=device) for bucket in buckets]
    parts = {
        COMPUTING: lambda: backward(one, *share),
        FORWARD: lambda: one(share[0]),
        EXCHANGE: lambda: [dist.all_reduce(flat) for flat in sums],
        LAST: lambda: dist.all_reduce(sums[-1]),
    }
    backward(one, x, y, batch)
    expected = [p.grad.clone() for p in one.parameters()]
    given = {"expected": expected, "setup": dist.barrier, "devices": device}
    slow = {CPU: ways.pop(CPU)}
    close = dict.fromkeys(ways, CLOSE)
    findings = ap.race(ways, parts=parts, close=close, repeats=repeats, **given)
    slower = ap.race(slow, close={CPU: CLOSE}, repeats=3, warmup=0, **given)
    timelines, values, files = {}, {}, {}
    if device.type == "cuda":
        shown = AFTER, buckets_of(sizes_mib[0]), DDP, ONE_BUCKET
        timelines, values, files = seen({label: ways[label] for label in shown}, rank)
    alone = trained(one, lambda *whole: backward(one, *whole), (x, y, batch), False)
    checks = {"the loss falls": bool(alone[-1] < alone[0])}
    for label, step in steps.items():
        losses = trained(models[label], step, share, True)
        checks[f"{label}: losses equal one process's"] = torch.allclose(losses, alone, rtol=CLOSE)
    return ap.Findings(
        [*findings.measurements, *slower.measurements],
        timelines,
        {**findings.checks, **slower.checks, **checks},
        values,
        files,
    )


def gradients_of_ranks(ranks, device, width, layers, batch, sizes_mib, repeats):
    """Gradients of two GPUs, added up in four ways."""
    args = width, layers, batch, sizes_mib, repeats
    return ap.findings_of_ranks(ap.on_ranks(each_rank, *args, ranks=ranks, device=device))


# %%
# The limit follows from the parts. The message of the last bucket has nothing left to hide behind.
# Before it either backward takes longer, or the messages do, from the first full bucket on.

# Folded: the parameters and the limit
BOOK = {"ranks": 2, "device": "cuda", "width": 4096, "layers": 16, "batch": 1024}
SIZES = {"sizes_mib": [64, 128, 256, 512, 1024], "repeats": 11}
gpus = ap.recorded(gradients_of_ranks, name="d1_gradients", parameters={**BOOK, **SIZES}, gpus=2)
least = {label: one.min_s for label, one in gpus.measurements.items()}
total_mib = BOOK["layers"] * BOOK["width"] ** 2 * 4 / MIB
BUCKETS = buckets_of(SIZES["sizes_mib"][0])
first_s = (least[COMPUTING] - least[FORWARD]) * SIZES["sizes_mib"][0] / total_mib
sending_s = first_s + least[EXCHANGE] - least[LAST]
limit_s = max(least[COMPUTING], least[FORWARD] + sending_s) + least[LAST]

# %%
# In the picture at the top, which has the ranks above each other, look at the green bars. They are
# NCCL's *kernels*, programs that run on the GPU. In buckets most of them lie beside computing.

ap.show_timelines(
    {label: gpus.timelines[label] for label in (AFTER, BUCKETS)},
    "d1_gradients",
    title="A step of training on two ranks",
    caption="Each rank is a process with a GPU; both read the same clock.",
    limit_s=limit_s,
)

# %%
# As fast as the library
# ----------------------
# Compare the row in bold with *DistributedDataParallel*, and both with *computing alone*. With one
# bucket the library has nothing to hide its exchange behind.

rows = {"parts": PARTS, "baseline": AFTER, "highlight": BUCKETS}
ap.show(ap.compare(gpus.measurements, limit_s=limit_s, **rows))

# %%
# A hidden exchange costs some time, too: NCCL's kernels take multiprocessors of the GPU from
# backward. So the clock and the timeline say different things.


# Folded: what the timelines tell
def told(label, figure):
    """What the timelines of some steps tell, in the median, of the rank that exposes most."""
    return statistics.median(gpus.values[f"{label}, step {i}: {figure}"] for i in range(SEEN))


hidden = gpus.estimate(lambda _: 1 - told(BUCKETS, "exposed, share"))
beside = gpus.estimate(lambda _: 1 - told(AFTER, "exposed, share"))
gain = gpus.estimate(lambda s: s[AFTER] / s[BUCKETS])
by_cpu = gpus.estimate(lambda s: s[CPU] / s[AFTER])
ap.show(
    ap.claim("After backward next to nothing is hidden.", beside, at_most=0.1, unit="%"),
    ap.claim("Buckets hide most of the exchange.", hidden, at_least=0.6, unit="%"),
    ap.claim("Buckets make the step faster.", gain, at_least=1.02, unit="×"),
    ap.claim("By way of the CPU it takes many times longer.", by_cpu, at_least=3, unit="×"),
)

# %%
# How large should a bucket be?
# -----------------------------
# Look down the column *exposed*, the time beyond *computing alone*: the largest bucket comes last,
# when nothing is left to compute. Small ones pay for many messages.

# Folded: the table
rows = []
for size_mib in SIZES["sizes_mib"]:
    step_s = gpus.measurements[buckets_of(size_mib)].median_s
    exposed_s = step_s - gpus.measurements[COMPUTING].median_s
    last_s = least[EXCHANGE] * size_mib / total_mib
    times = (f"{1e3 * time_s:.2f} ms" for time_s in (step_s, exposed_s, last_s))
    rows.append([f"{size_mib} MiB", f"{total_mib / size_mib:.0f}", *times])
headers = ["bucket", "messages", "step", "exposed", "last message alone"]
ap.show(ap.tabulate(headers, rows, caption="The size of buckets", origin=gpus.origin))

# %%
# When this does not help
# -----------------------
# Where messages take longer than backward, as over a slow network, the rest is exposed. Then send
# less: larger batches, or fewer bits. :doc:`plot_2_more_devices_more_speed` goes on with more
# devices, and :doc:`/howto/from_one_machine_to_many` with more machines.
#
# On this machine
# ---------------
# `torchrun --nproc-per-node 2 FILE` runs this page on its ranks; a plain script starts its own. On
# a CPU ranks share the cores, so little can be gained. A run on GPUs keeps the traces of the ranks
# in `gpus.files`: written to a folder, `python -m autopar timeline FOLDER` tells the same of them.

# Folded: the measurement on ranks of the CPU
SMALL = {"width": 256, "layers": 4, "batch": 129, "sizes_mib": [0.25, 1], "repeats": 5}
here = ap.observed(
    gradients_of_ranks,
    name="gradients of two CPU ranks",
    parameters={"ranks": 2, "device": "cpu", **SMALL},
)
ap.show(ap.compare(here.measurements, parts=PARTS))

# %%
# Now you
# -------
# Send gradients as `bfloat16`, in half the bytes. What changes in `send`, and what is the price?
#
# .. dropdown:: A hint
#
#     A hook may do more than send. `DistributedDataParallel` calls it a communication hook.
#
# .. dropdown:: An answer
#
#     What is sent is rounded before it is added: the sums are right to two or three digits only.
#
#     .. code-block:: python
#
#         def send_half(bucket, flat, side):
#             gradients = [p.grad.flatten().bfloat16() for p in bucket]
#             if side:
#                 side.wait_stream(torch.cuda.current_stream())
#             with torch.cuda.stream(side):
#                 torch.cat(gradients, out=flat)
#                 return dist.all_reduce(flat, async_op=True), gradients
