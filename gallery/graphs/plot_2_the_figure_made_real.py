# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Train on a CPU and two GPUs
===========================

| **You'll do:** run the step that the book only draws: a two-layer network is trained on two GPUs,
  and its parameters are updated on the CPU.
| **You'll learn:** how plain code becomes a graph of tasks, and what that is good for.
| **You need:** 10 minutes, and no GPU: what needs two is shown from a record. Read
  :doc:`plot_1_tasks_that_depend` first; :doc:`plot_3_let_the_graph_find_the_parallelism` comes
  next.

Plain PyTorch, written with care, is about as fast here as a graph. The graph is for the care: from
what tasks read and write it finds the copies, the waits and an order by itself, and draws the
`figure of the book <https://d2l.ai/chapter_computational-performance/auto-parallelism.html>`_.
"""

# %%
# Plain PyTorch is fast where every wait is right
# -----------------------------------------------
# Each GPU has half of the batch, and a copy of the weights of both layers, its *replica*. It
# computes the loss of its half, and the gradients.

import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch.nn.functional import mse_loss

import autopar as ap
from autopar.graph import Entry, Job, Schedule


def on_each_gpu(shares):
    results = []
    for x, y, weights in shares:
        loss = mse_loss((x @ weights[0]).relu() @ weights[1], y)
        results.append((loss, torch.autograd.grad(loss, weights)))
    return results


# %%
# The CPU adds the gradients, updates the weights, and sends them back. Both GPUs compute at the
# same time, since launches return at once.


def plain_step(shares, weights, totals, rate):
    results = on_each_gpu(shares)
    here = [[part.to("cpu", non_blocking=True) for part in parts] for _, parts in results]  # 1
    ap.synchronize()  # 2
    with torch.no_grad():
        for n, (weight, total) in enumerate(zip(weights, totals, strict=True)):
            torch.add(here[0][n], here[1][n], out=total)
            weight.sub_(total, alpha=rate)
            for _, _, replica in shares:
                replica[n].copy_(weight, non_blocking=True)  # 3
    return results


# %%
# Three lines of it take care. The copies must not stop the host, or GPU 1 waits for GPU 0 (1).
# Without the wait the CPU adds what has not arrived (2). The replicas may only change when no
# product reads them any more, which their *streams*, the queues of the GPUs, see to (3).
#
# The graph finds copies, waits and order
# ---------------------------------------
# `add_traced` takes the operators out of `on_each_gpu`, backward passes included. Each becomes a
# task, on the GPU where its result lies. The rest of the step is added by hand.


def as_graph(shares, weights, totals, rate, lanes):
    graph = ap.TaskGraph(cpu_lanes=lanes, streams=1)
    results, add = graph.add_traced(on_each_gpu, shares), graph.add
    for n, (weight, total) in enumerate(zip(weights, totals, strict=True)):
        parts, w = [gradients[n] for _, gradients in results], f"w{n + 1}"
        total = add(torch.add, *parts, out=total, device="cpu", writes=[total], name=f"sum {w}")
        new = add(torch.Tensor.sub_, weight, total, alpha=rate, writes=[weight], name=f"new {w}")
        for i, (_, _, replica) in enumerate(shares):
            old = replica[n]
            add(torch.Tensor.copy_, old, new, writes=[old], name=f"renew {w} on {i}")
    return graph, results


# %%
# No line of it says what waits for what, or what is copied. A gradient lies on a GPU, and its sum
# is wanted on the CPU, so the graph copies it. What a task changes is named in `writes`: a replica
# is renewed after the last product that reads it.
#
# `race` compares what all ways leave with the graph's *serial twin*, the same tasks one after
# another, and the losses with those of one GPU that has the whole batch.

# Folded: the measurement
LAYERS = {"inputs": 4096, "hidden": 8192, "outputs": 1024}
BOOK = {"batch": 16384, **LAYERS, "steps": 5, "lanes": 1, "devices": ["cuda:0", "cuda:1"]}
ONE, PLAIN = "one GPU, no CPU", "plain PyTorch"
SERIAL, GRAPH = "tasks one after another", "task graph"


def setting(batch, inputs, hidden, outputs, devices):
    """Weights on the CPU, a share of the batch for each device, and all of it for the first."""
    torch.manual_seed(0)
    x = torch.randn(batch, inputs, device=devices[0])
    y = x @ torch.randn(inputs, outputs, device=devices[0]) / inputs**0.5
    shapes, pin = [(inputs, hidden), (hidden, outputs)], devices[0] != "cpu"
    weights = [torch.randn(shape, pin_memory=pin).div_(shape[0] ** 0.5) for shape in shapes]

    def share(x, y, device):
        replica = [weight.to(device, copy=True).requires_grad_() for weight in weights]
        return x.to(device), y.to(device), replica

    shares = list(map(share, x.chunk(2), y.chunk(2), devices))
    return weights, shares, share(x, y, devices[0])


def one_gpu_step(share, rate):  # with the whole batch
    results = on_each_gpu([share])
    with torch.no_grad():
        for weight, gradient in zip(share[2], results[0][1], strict=True):
            weight.sub_(gradient, alpha=rate)
    return results


def figure(batch, inputs, hidden, outputs, steps, lanes, devices):
    rate = outputs / hidden
    weights, shares, whole = setting(batch, inputs, hidden, outputs, devices)
    start, totals = ([weight.clone() for weight in weights] for _ in range(2))
    replicas = [weight for share in (*shares, whole) for weight in share[2]]
    graph, tasks = as_graph(shares, weights, totals, rate / 2, lanes)
    one = {ONE: lambda: one_gpu_step(whole, rate)}
    ways = {
        SERIAL: lambda: [graph.run_serial()[tasks], weights, replicas],
        GRAPH: lambda: [graph.run()[tasks], weights, replicas],
        PLAIN: lambda: [plain_step(shares, weights, totals, rate / 2), weights, replicas],
    }

    def restart():
        with torch.no_grad():
            for weight, old in zip(weights + replicas, itertools.cycle(start), strict=False):
                weight.copy_(old)

    def losses(step):
        restart()
        each_step = [[loss.item() for loss, _ in step()] for _ in range(steps)]
        return torch.tensor(each_step).mean(1)

    with graph:
        graph.measure()  # each task alone, for the plan
        plan, alone = graph.plan(), losses(one[ONE])
        found = ap.race(ways, parts=one, close={PLAIN: 1e-5}, reset=restart, devices=devices)
        checks = {"the loss falls": bool(alone[-1] < alone[0]), **found.checks}
        for way in (PLAIN, GRAPH):
            same = torch.allclose(losses(lambda way=way: ways[way]()[0]), alone, rtol=1e-5)
            checks[f"{way}: losses equal one GPU's to 1e-5"] = same
        timeline = graph.run(timed=True).timeline
    copies = any(span.kind == "copy" for span in timeline.spans)
    checks["copies only between devices"] = copies == (len(set(devices)) > 1)
    values = {"estimate, s": plan.limit_s} | arrows(plan)
    return replace(found, timelines={"a step": timeline}, checks=checks, values=values)


def arrows(plan):
    """What comes after what, by name: 1 for a wait, 0 if the order on the lanes implies it."""
    jobs = plan.schedule.jobs
    return {
        f"{jobs[before].name} -> {jobs[entry.job].name}": float(before in entry.waits)
        for entry in plan.schedule.entries
        for before in {*jobs[entry.job].after, *entry.waits}
    }


# %%
# In the picture at the top, which is drawn from a run, look at the two outer columns: neither GPU
# waits for the other. They meet on the CPU, which needs both gradients of a layer for their sum.
# Follow the last gradient of GPU 0 to the last *renew*: this way over the CPU ends the step. Tasks
# that take next to no time are left out.

# Folded: the drawing
gpus = ap.recorded(figure, name="e4_the_figure_made_real", parameters=BOOK, gpus=2)
STEPS = "layer 1", "layer 2", "gradient w2", "back to layer 1", "gradient w1"
LEFT_OUT = r"(t|detach|ones_like|relu|threshold_backward|mse_loss\w*)(_\d+)?"


def shown_name(name):
    """What a task is called in the figure: products by what they are for, copies by what of."""
    name = re.sub(r" to (cpu|cuda:\d)$| on \d$", "", name)
    return re.sub(r"^mm(?:_(\d+))?$", lambda mm: STEPS[int(mm[1] or 0) % len(STEPS)], name)


spans = gpus.timelines["a step"].spans
number, jobs, entries = {span.name: n for n, span in enumerate(spans)}, [], []
arrow_waits = [(*name.split(" -> "), wait) for name, wait in gpus.values.items() if " -> " in name]
for span in spans:
    before = {number[a]: wait for a, b, wait in arrow_waits if b == span.name}
    waits = tuple(task for task, wait in before.items() if wait)
    jobs.append(Job(shown_name(span.name), span.lane.partition(" #")[0], 0.0, (*before,)))
    entries.append(Entry(number[span.name], span.lane, waits, span.start_s, span.end_s))
plan = SimpleNamespace(schedule=Schedule((*jobs,), (*entries,)))
tiny = [job.name for job in jobs if re.fullmatch(LEFT_OUT, job.name)]
ap.plot.graph(plan, title="A step of training on a CPU and two GPUs", columns=True, hide=tiny)
ap.plot.show("e4_the_figure_made_real")

# %%
# The graph is as fast as the careful code
# ----------------------------------------
# Compare the row *task graph* with the row *plain PyTorch*. The *estimate* is the longest chain of
# tasks, or the work of the busiest device. The *spread (IQR)* is how far the middle half of the
# samples lies apart.

estimates = dict.fromkeys((SERIAL, GRAPH, PLAIN), gpus.values["estimate, s"])
table = {"limit_name": "estimate", "baseline": SERIAL, "highlight": GRAPH}
gain = gpus.estimate(lambda s: s[SERIAL] / s[GRAPH])
ap.show(
    ap.compare(gpus.measurements, limit_s=estimates, **table),
    ap.claim("The graph is clearly faster than its tasks in order.", gain, at_least=1.3, unit="×"),
)

# %%
# In the timeline, look at the right end: the last gradients still have to be copied, added and
# subtracted, and the new weights copied back. No products are left to hide this.

ap.show_timelines(gpus.timelines["a step"], "e4_a_step", title="A step of training")

# %%
# When this does not help
# -----------------------
# If a batch takes no longer than the way of the parameters over the CPU, one GPU is better left
# alone. GPUs that reach each other directly add gradients without a CPU, as
# `DistributedDataParallel <https://docs.pytorch.org/docs/stable/notes/ddp.html>`_ does.
#
# On this machine
# ---------------
# The CPU takes the place of all three, with a share of the batch for each of two *lanes*, which are
# threads with a queue. Plain PyTorch hands nothing over, so it can be faster with tasks this small.

SMALL = {"inputs": 256, "hidden": 256, "outputs": 64}
HERE = {"batch": 512, **SMALL, "steps": 3, "lanes": 2, "devices": ["cpu", "cpu"]}
here = ap.observed(figure, name="the figure on CPU lanes", parameters=HERE)
ap.show(ap.compare(here.measurements, **table))

# %%
# Now you
# -------
# Let each weight have a velocity, as momentum asks for: it is multiplied by 0.9, the sum of the
# gradients is added, and the weight changes by the velocity. Which waits have to change?
#
# .. dropdown:: A hint
#
#     What is changed in place? Name it in `writes`.
#
# .. dropdown:: An answer
#
#     No line about waits changes. These tasks take the place of the one that is called *new*:
#
#     .. code-block:: python
#
#         def new_weight(graph, weight, velocity, total, rate):
#             mul_, add_, sub_ = torch.Tensor.mul_, torch.Tensor.add_, torch.Tensor.sub_
#             slower = graph.add(mul_, velocity, 0.9, writes=[velocity])
#             faster = graph.add(add_, slower, total, writes=[slower])
#             return graph.add(sub_, weight, faster, alpha=rate, writes=[weight])
