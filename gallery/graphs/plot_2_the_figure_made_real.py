# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Train on a CPU and two GPUs
===========================

| **You'll do:** run the step of training that the book only draws, on a CPU and two GPUs.
| **You'll learn:** how plain code becomes a graph of tasks, and what that is good for.
| **You need:** 10 minutes, and no GPU: the part for two GPUs is shown from a record. Before this:
  :doc:`plot_1_tasks_that_depend`. Next: :doc:`plot_3_let_the_graph_find_the_parallelism`.

Plain PyTorch with all waits right is about as fast here as a graph. The graph finds copies, waits
and an order by itself, from what tasks read and write, and draws the `figure of the book
<https://d2l.ai/chapter_computational-performance/auto-parallelism.html>`_.
"""

# %%
# Plain PyTorch is fast where every wait is right
# -----------------------------------------------
# Each GPU has half of the batch and its *replica*, a copy of the weights. It computes gradients.
import torch

import autopar as ap


def on_each_gpu(shares):
    gradients = []
    for x, y, weights in shares:
        loss = torch.nn.functional.mse_loss((x @ weights[0]).relu() @ weights[1], y)
        gradients.append(torch.autograd.grad(loss, weights))
    return gradients


# %%
# The CPU adds the gradients, updates the weights, and sends them back. Both GPUs compute at the
# same time, since launches return at once.
def plain_step(shares, weights, totals, rate):
    here = [[it.to("cpu", non_blocking=True) for it in part] for part in on_each_gpu(shares)]  # 1
    ap.synchronize()  # 2
    with torch.no_grad():
        for n, (weight, total) in enumerate(zip(weights, totals, strict=True)):
            torch.add(here[0][n], here[1][n], out=total)
            weight.sub_(total, alpha=rate)
            for _, _, replica in shares:
                replica[n].copy_(weight, non_blocking=True)  # 3


# %%
# The copies must not stop the host, or GPU 1 waits for GPU 0 (1). Without the wait the CPU adds
# what has not arrived (2). New products queue behind the new weights (3).
#
# The graph finds copies, waits and order
# ---------------------------------------
# `add_traced` makes a task of each operator of `on_each_gpu`, backward passes included.


def as_graph(shares, weights, totals, rate, lanes):
    graph = ap.TaskGraph(cpu_lanes=lanes, streams=1)
    gradients, add = graph.add_traced(on_each_gpu, shares), graph.add
    for n, (weight, total) in enumerate(zip(weights, totals, strict=True)):
        parts, w = [part[n] for part in gradients], f"w{n + 1}"
        total = add(torch.add, *parts, out=total, device="cpu", writes=[total], name=f"sum {w}")
        new = add(torch.Tensor.sub_, weight, total, alpha=rate, writes=[weight], name=f"new {w}")
        for i, (_, _, replica) in enumerate(shares):
            add(torch.Tensor.copy_, replica[n], new, writes=[replica[n]], name=f"renew {w} on {i}")
    return graph


# %%
# No line says what waits for what. All ways must leave the weights of one GPU with the whole batch.

# Folded: the measurement
LAYERS = {"inputs": 4096, "hidden": 8192, "outputs": 1024}
BOOK = {"batch": 16384, **LAYERS, "steps": 5, "lanes": 1, "devices": ["cuda:0", "cuda:1"]}
SERIAL, GRAPH, PLAIN = "tasks one after another", "task graph", "plain PyTorch"


def figure(batch, inputs, hidden, outputs, steps, lanes, devices):
    """A step of training on two devices and the CPU, by hand and as a graph."""
    x, y = (torch.randn(batch, size, device=devices[0]) for size in (inputs, outputs))
    shapes, pin = [(inputs, hidden), (hidden, outputs)], devices[0] != "cpu"
    weights = [torch.randn(shape, pin_memory=pin).div_(shape[0] ** 0.5) for shape in shapes]
    start, totals = ([w.clone() for w in weights] for _ in range(2))

    def share(x, y, gpu):
        return x.to(gpu), y.to(gpu), [w.to(gpu, copy=True).requires_grad_() for w in weights]

    def on_one():
        return [w.detach() - 0.1 * g for w, g in zip(both[2], on_each_gpu([both])[0], strict=True)]

    both, shares = share(x, y, devices[0]), list(map(share, x.chunk(2), y.chunk(2), devices))
    left = [*weights, *shares[0][2], *shares[1][2]]  # what a step leaves
    graph, plain = as_graph(shares, weights, totals, 0.05, lanes), (weights, totals, 0.05)
    each = {SERIAL: graph.run_serial, GRAPH: graph.run, PLAIN: lambda: plain_step(shares, *plain)}
    ways = {label: lambda step=step: (step(), left)[1] for label, step in each.items()}
    given = {"expected": 3 * on_one(), "close": dict.fromkeys(ways, 1e-6), "devices": devices}
    given["reset"] = lambda: [w.data.copy_(o) for w, o in zip(left, 3 * start, strict=True)]
    with graph:
        graph.measure()  # each task alone, for the plan
        found = ap.race(ways, parts={"one GPU, no CPU": on_one}, repeats=steps, **given)
        found.timelines["a step"] = graph.run(timed=True).timeline
    found.values.update({"estimate, s": graph.plan().limit_s} | graph.plan().arrows)
    return found


gpus = ap.recorded(figure, name="e4_the_figure_made_real", parameters=BOOK, gpus=2)
run, title = gpus.timelines["a step"], "A step on a CPU and two GPUs"
large = "mm", "sum", "new", "renew"
shown = {"hide": [one.name for one in run.spans if not one.name.startswith(large)]}
STEPS = "layer 1", "layer 2", "gradient w2", "back to layer 1", "gradient w1"
products = {f"mm_{n}" if n else "mm": STEPS[n % len(STEPS)] for n in range(2 * len(STEPS))}
shown["names"] = lambda name: products.get(bare := name.split(" to ")[0].split(" on ")[0], bare)
ap.plot.graph(run, arrows=gpus.values, columns=True, title=title, **shown)
look = "Look at gradient w1 → sum w1 → new w1 → renew w1, the end of the longest chain of tasks."
ap.plot.show("e4_the_figure_made_real", look=look)

# %%
# The graph is about as fast as the careful code
# -------------------------------------------------
# In the picture at the top neither GPU, in the outer columns, waits for the other. In the table,
# compare *task graph* with *plain PyTorch*. The *estimate* uses the times of tasks alone.
estimates = dict.fromkeys((SERIAL, GRAPH, PLAIN), gpus.values["estimate, s"])
table = {"limit_name": "estimate", "baseline": SERIAL, "highlight": GRAPH}
gain = gpus.estimate(lambda s: s[SERIAL] / s[GRAPH])
ap.show(
    ap.compare(gpus.measurements, limit_s=estimates, **table),
    ap.claim("The graph is clearly faster than its tasks in order.", gain, at_least=1.3, unit="×"),
)

# %%
# When this does not help
# -----------------------
# If a batch takes no longer than the way over the CPU, one GPU alone is faster. In
# :doc:`/auto_gallery/distributed/plot_1_add_gradients_up_during_backward` no CPU is on the way.
#
# On this machine
# ---------------
# The CPU takes the place of all three, with two *lanes*, threads with a queue.
HERE = BOOK | {"batch": 512, "inputs": 256, "hidden": 256, "lanes": 2, "devices": ["cpu", "cpu"]}
here = ap.observed(figure, name="on CPU lanes", parameters=HERE).measurements
ap.show(ap.compare([here[way] for way in estimates], **table))

# %%
# Now you
# -------
# Give each weight a velocity, as momentum asks for. Which waits have to change?
#
# .. dropdown:: A hint
#
#     What is changed in place? Name it in `writes`.
#
# .. dropdown:: An answer
#
#     None has to: the graph finds them from `writes`.
#
#     .. code-block:: python
#
#         def new_velocity(graph, velocity, total):
#             slower = graph.add(torch.Tensor.mul_, velocity, 0.9, writes=[velocity])
#             return graph.add(torch.Tensor.add_, slower, total, writes=[slower])
