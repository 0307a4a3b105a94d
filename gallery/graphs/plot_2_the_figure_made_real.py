# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Train on a CPU and two GPUs
===========================

| **You'll do:** the chapter's figure, really run: a two-layer network trained on two GPUs, with its
  gradients added and its parameters updated on the CPU.
| **You'll learn:** how plain code becomes a graph of tasks, how the graph places and orders them by
  itself, and which part of a step nothing can hide.
| **You need:** nothing but this page; without two GPUs it shows a record and runs on CPU lanes.

**The claim.** Nobody has to write down what runs beside what: the dependencies say it. A step that
its graph runs is clearly faster than the same tasks one after another, and leaves the same bits.
The plan shows what the graph made of the step, and the timeline what came of it.
"""

# %%
# The work
# --------
# Each GPU has half of the batch and a replica of both layers' weights. It computes the loss of its
# half, and the gradients. These go to the CPU, which adds them, updates the weights, and sends
# them back. First in plain PyTorch, with care: launches return at once, so both GPUs compute at the
# same time, and copies to the host go into pinned memory.

import itertools
from types import SimpleNamespace

import torch
from torch.nn.functional import mse_loss

import autopar as ap
from autopar.graph.schedule import Entry, Job, Schedule

LAYERS = {"inputs": 4096, "hidden": 8192, "outputs": 1024}
BOOK = {"batch": 16384, **LAYERS, "steps": 5, "lanes": 1, "devices": ["cuda:0", "cuda:1"]}
SMALL = {"inputs": 256, "hidden": 256, "outputs": 64}
HERE = {"batch": 512, **SMALL, "steps": 3, "lanes": 2, "devices": ["cpu", "cpu"]}
ONE, PLAIN = "one GPU, no CPU", "plain PyTorch"
SERIAL, GRAPH = "tasks one after another", "task graph"


def loss_and_gradients(x, y, weights):
    """Forward and backward of one share of the batch."""
    loss = mse_loss((x @ weights[0]).relu() @ weights[1], y)
    return loss, torch.autograd.grad(loss, weights)


def on_each_gpu(shares):
    """The same for every share: inputs, labels, and the replica of the weights beside them."""
    return [loss_and_gradients(*share) for share in shares]


def one_gpu_step(share, rate):
    """A step on one GPU, with nobody else."""
    found = loss_and_gradients(*share)
    with torch.no_grad():
        for weight, gradient in zip(share[2], found[1], strict=True):
            weight.sub_(gradient, alpha=rate)
    return found


def plain_step(shares, weights, totals, rate):
    """A step on two GPUs and the CPU, in plain PyTorch."""
    found = on_each_gpu(shares)
    here = [[each.to("cpu", non_blocking=True) for each in gradients] for _, gradients in found]
    ap.synchronize()  # all copies are behind all computing
    with torch.no_grad():
        for n, (weight, total) in enumerate(zip(weights, totals, strict=True)):
            torch.add(here[0][n], here[1][n], out=total)
            weight.sub_(total, alpha=rate)
            for _, _, replica in shares:
                replica[n].copy_(weight, non_blocking=True)
    return found


# %%
# The graph
# ---------
# `add_traced` takes the operators out of the code above, backward passes included: each becomes a
# task on the device that its result lies on. The rest is added by hand. No line says what waits for
# what, or what is copied where: a gradient is on a GPU, its sum is wanted on the CPU, so the graph
# copies it, on a lane for copies. What is changed in place is named in `writes`, and keeps the
# order of the program: a replica is renewed only after the last product that reads it. The CPU
# gets a single lane, so that each addition has all of its threads.


def as_graph(shares, weights, totals, rate, lanes):
    """The same step as a graph, and its losses and gradients as tasks."""
    graph = ap.TaskGraph(cpu_lanes=lanes)
    found = graph.add_traced(on_each_gpu, shares)
    add, sub_, copy_ = torch.add, torch.Tensor.sub_, torch.Tensor.copy_
    for n, (weight, total) in enumerate(zip(weights, totals, strict=True)):
        parts, name = [gradients[n] for _, gradients in found], f"w{n + 1}"
        total = graph.add(add, *parts, out=total, device="cpu", writes=[total], name=f"add {name}")
        new = graph.add(sub_, weight, total, alpha=rate, writes=[weight], name=f"update {name}")
        for i, (_, _, replica) in enumerate(shares):
            own = replica[n]
            graph.add(copy_, own, new, writes=[own], name=f"renew {name} on {i}")
    return graph, found


# %%
# Predict
# -------
# Operations, bytes and rates give both times. One after another, everything adds up. At best, the
# GPUs compute at once, and only the first layer's way stays in sight, since its gradient comes
# last: to the host, added, subtracted, and back. The rates are round guesses for a large GPU and a
# server; put those of your machine in their place.

GPU_TFLOP_PER_S = 50  # of products in float32
BUS_GB_PER_S = 50  # of copies to and from pinned memory
CPU_GB_PER_S = 20  # of results of an addition in memory

flops_per_s = 1e12 * GPU_TFLOP_PER_S
bus_s, add_s = 1e-9 / BUS_GB_PER_S, 1e-9 / CPU_GB_PER_S  # for each byte
sizes = [LAYERS["inputs"] * LAYERS["hidden"], LAYERS["hidden"] * LAYERS["outputs"]]
# For each weight 2 forwards and 4 backwards; the inputs need no gradient.
compute_s = BOOK["batch"] / 2 * (4 * sizes[0] + 6 * sizes[1]) / flops_per_s
first, both = 4 * sizes[0], 4 * sum(sizes)  # bytes
serial_s = 2 * compute_s + both * (4 * bus_s + 2 * add_s)
best_s = compute_s + first * (2 * bus_s + 2 * add_s)
print(f"Parameters: {both / 1e6:.0f} MB, of which the first layer has {first / both:.0%}.")
print(f"A GPU computes {1e3 * compute_s:.1f} ms, the bus takes {1e3 * both * bus_s:.1f} ms a copy,")
print(f"an addition {1e3 * both * add_s:.1f} ms. One after another {1e3 * serial_s:.1f} ms,")
print(f"at best {1e3 * best_s:.1f} ms: {serial_s / best_s:.2f} x.")

# %%
# The experiment
# --------------
# From the same start, a step of the graph must leave the same bits as its twin, which runs the
# same tasks one after another. Then the losses of some steps are compared with those of one GPU
# that has the whole batch to itself. Only then are steps timed.


def setting(batch, inputs, hidden, outputs, devices):
    """Weights on the CPU, a share of the batch for each device, and all of it for the first."""
    torch.manual_seed(0)
    x = torch.randn(batch, inputs, device=devices[0])
    y = x @ torch.randn(inputs, outputs, device=devices[0]) / inputs**0.5
    pin = devices[0] != "cpu"
    shapes = (inputs, hidden), (hidden, outputs)
    weights = [torch.randn(shape, pin_memory=pin).div_(shape[0] ** 0.5) for shape in shapes]

    def share(x, y, device):
        replica = [each.to(device, copy=True).requires_grad_() for each in weights]
        return x.to(device), y.to(device), replica

    shares = list(map(share, x.chunk(2), y.chunk(2), devices))
    return weights, shares, share(x, y, devices[0])


def figure(batch, inputs, hidden, outputs, steps, lanes, devices):
    """What each way leaves, its losses over some steps, and the time of a step."""
    rate = outputs / hidden
    weights, shares, whole = setting(batch, inputs, hidden, outputs, devices)
    start, totals = [each.clone() for each in weights], [each.clone() for each in weights]
    owned = [*weights, *(each for share in (*shares, whole) for each in share[2])]
    graph, found = as_graph(shares, weights, totals, rate / 2, lanes)
    ways = {
        ONE: lambda: [one_gpu_step(whole, rate)],
        PLAIN: lambda: plain_step(shares, weights, totals, rate / 2),
        SERIAL: lambda: graph.run_serial()[found],
        GRAPH: lambda: graph.run()[found],
    }

    def restart():
        with torch.no_grad():
            for each, old in zip(owned, itertools.cycle(start), strict=False):
                each.copy_(old)

    def left_by(way):
        restart()
        results = [each for loss, gradients in ways[way]() for each in (loss, *gradients)]
        return [each.detach().clone() for each in results + owned]

    def losses(way):
        restart()
        each_step = [[loss.item() for loss, _ in ways[way]()] for _ in range(steps)]
        return [sum(each) / len(each) for each in each_step]

    with graph:
        graph.measure()  # each task alone, for the plan
        plan = graph.plan()
        checks = {"graph: all bits equal": ap.workload.equal(left_by(GRAPH), left_by(SERIAL))}
        in_steps = {way: losses(way) for way in (ONE, PLAIN, GRAPH)}
        for way in (PLAIN, GRAPH):
            close = torch.allclose(*map(torch.tensor, (in_steps[way], in_steps[ONE])), rtol=1e-5)
            checks[f"{way}: losses equal one GPU's to 1e-5"] = close
        checks["the loss falls"] = in_steps[GRAPH][-1] < in_steps[GRAPH][0]
        measurements = ap.measure_in_turn(ways, devices=set(devices), warmup=1, repeats=7)
        timeline = graph.run().timeline
    copies = any(span.kind == "copy" for span in timeline.spans)
    checks["copies only between devices"] = copies == (len(set(devices)) > 1)
    values = {f"{way}, loss {n}": each[n] for way, each in in_steps.items() for n in range(steps)}
    values |= {"estimate, s": plan.limit_s} | arrows(plan)
    return ap.Findings(measurements, {"a step": timeline}, checks, values)


def arrows(plan):
    """What comes after what, by name: 1 for a wait, 0 if the order on the lanes implies it."""
    jobs = plan.schedule.jobs
    return {
        f"{jobs[before].name} -> {jobs[each.job].name}": float(before in each.waits)
        for each in plan.schedule.entries
        for before in {*jobs[each.job].after, *each.waits}
    }


# %%
# Same answer?
# ------------
# The graph and its twin leave the same bits: that is one of the checks, without which there is no
# record. One GPU with the whole batch can't: it sums the products of all rows in one order, and two
# GPUs sum halves of them, added afterwards. Rounding differs, so here 1e-5 must do.

gpus = ap.recorded(figure, name="e4_the_figure_made_real", parameters=BOOK, gpus=2)
rows = [
    (str(n + 1), *(f"{gpus.values[f'{way}, loss {n}']:.8f}" for way in (ONE, PLAIN, GRAPH)))
    for n in range(BOOK["steps"])
]
caption = "Losses, step by step"
ap.show(ap.tabulate(["step", ONE, PLAIN, GRAPH], rows, caption=caption, origin=gpus.origin))

# %%
# How long?
# ---------
# The estimate is the plan's, from the tasks' own times, each measured alone: the longest chain of
# them, or all that one device has to do. A task may take less in company than it did alone, the
# CPU's above all, so a step can beat the estimate. The CPU needs the gradients of both GPUs before
# it can add.

estimates = dict.fromkeys((SERIAL, GRAPH), gpus.values["estimate, s"])
caption = "One step on a CPU and two GPUs"
ap.show(
    ap.compare(
        gpus.measurements,
        limit_s=estimates,
        limit_name="estimate",
        baseline=SERIAL,
        caption=caption,
    ),
    ap.claim(
        "The graph is clearly faster than its tasks one after another.",
        gpus.estimate(lambda s: s[SERIAL] / s[GRAPH]),
        at_least=1.3,
        unit="×",
    ),
)

# %%
# And against the other ways, and the prediction? Which of them is ahead is up to the machine.

taken = gpus.measurements
over = {way: taken[GRAPH].speedup_over(taken[way]) for way in (SERIAL, PLAIN, ONE)}
print(f"The graph is {over[SERIAL]:.2f} x as fast as its tasks one after another, where")
print(f"{serial_s / best_s:.2f} x was predicted; {over[PLAIN]:.2f} x as fast as the plain code;")
print(f"{over[ONE]:.2f} x as fast as one GPU with the whole batch.")

# %%
# See it
# ------
# The chapter's figure, as the graph has planned it: a box for each task, in the colour of its lane,
# and dashed ones for copies. It is drawn from the record's timeline and arrows.

timeline = gpus.timelines["a step"]
spans = timeline.spans
number = {span.name: n for n, span in enumerate(spans)}
ends = [(*name.split(" -> "), wait) for name, wait in gpus.values.items() if " -> " in name]


def before(span, least=0.0):
    """Numbers of all that a task comes after; with 1.0, of what it waits for."""
    return tuple(number[first] for first, then, wait in ends if then == span.name and wait >= least)


jobs = [Job(each.name, each.lane.partition(" #")[0], 0.0, before(each)) for each in spans]
entries = [
    Entry(n, each.lane, before(each, 1.0), each.start_s, each.end_s) for n, each in enumerate(spans)
]
plan = SimpleNamespace(schedule=Schedule(tuple(jobs), tuple(entries)))
ap.plot.graph(plan, title=f"A step of training on a CPU and {gpus.processors}")
ap.plot.show("e4_the_figure_made_real")

# %%
# And what came of it, each task at its time. *Hidden* is the share of a GPU's copying during which
# that GPU computes; copies beside the CPU's work don't count.

ap.show(
    ap.draw(
        timeline,
        title="A step on a CPU and two GPUs",
        caption="Both GPUs compute at once; what follows is the first layer's way over the CPU.",
    )
)

# %%
# On this machine
# ---------------
# The same function, with the CPU in place of all three: its lanes take the two shares. There is
# one memory, so the graph has nothing to copy.

here = ap.observed(figure, name="the figure on CPU lanes", parameters=HERE)
timeline = here.timelines["a step"]
ap.show(ap.draw(timeline, title="The figure on CPU lanes", caption="A lane for each share."))

# %%
# When this does not help
# -----------------------
# Plain PyTorch computes on both GPUs at once, too; written with care, it leaves the graph little to
# gain, or nothing: the table has both. What the graph spares is the care: pinned copies, waits, and
# an order that lets the CPU work while GPUs do. And however a step is ordered, each parameter
# passes the CPU: a batch that computes no longer than that is better left on one GPU. GPUs that
# reach each other directly can add gradients without a CPU.
#
# Now you
# -------
# Halve the batch, and predict first: which way is the fastest then? Cut the first layer's gradient
# into four parts (`graph.add(torch.narrow, gradient, 0, start, length)`), each with tasks of its
# own: how much of its way over the CPU hides?
