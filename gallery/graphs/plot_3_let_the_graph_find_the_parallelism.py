# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Let the graph find the parallelism
==================================

| **You'll do:** hand a model to `TaskGraph.trace` and `capture`, which run its paths at once.
| **You'll learn:** what branches of a CUDA graph gain over one chain, and what limits the gain.
| **You need:** 8 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`plot_2_the_figure_made_real`. Next: :doc:`plot_4_does_it_run_as_planned`.

The kernels of a small model leave most of a GPU idle, and yet they run one after another. Two lines
find those that don't need each other, in unchanged code, and run them at the same time.
"""

# %%
# A CUDA graph runs one kernel after another
# ------------------------------------------
# The model is a block of four paths over one image, as in GoogLeNet. A *kernel*, a function that
# runs on the GPU, takes less time here than its launch. So a `CUDA graph
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs>`_ records all launches once: on
# one *stream*, a queue of the GPU in which each kernel waits for the one before it.

import contextlib

import torch
from torch import nn

import autopar as ap


def as_chain(fn, inputs):
    fn(*inputs)  # the first call sets libraries up, which can't be recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fn(*inputs)
    return graph, result


# %%
# Two lines find the branches
# ---------------------------
# `trace` calls the model once, on tensors without memory, and notes what each operator reads and
# writes. `capture` tries some numbers of branches, and keeps the fastest.


def with_branches(fn, inputs):
    graph, result = ap.TaskGraph.trace(fn, *inputs)
    return graph.capture(inputs=inputs), result


# %%
# Look at the columns of the picture at the top, which are the four paths: only the last task waits
# for several. Nothing was computed to find that, so no GPU was needed.


# Folded: the model and the picture
class Paths(nn.ModuleList):
    def forward(self, x):
        return torch.cat([path(x).relu() for path in self], 1)


def block(channels):
    conv = nn.Conv2d
    middle = nn.Sequential(conv(channels, 96, 1), nn.ReLU(), conv(96, 128, 3, padding=1))
    large = nn.Sequential(conv(channels, 16, 1), nn.ReLU(), conv(16, 32, 5, padding=2))
    pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(channels, 32, 1))
    return Paths([middle, large, pooled, conv(channels, 64, 1)]).requires_grad_(False)


graph, _ = ap.TaskGraph.trace(block(192), torch.zeros(1, 192, 28, 28))
ap.plot.graph(graph.plan(), title="A block of four paths", hide=["getitem", "getitem_1"])
ap.plot.show("b6_let_the_graph_find_the_parallelism")

# %%
# The longest path is the limit
# -----------------------------
# No number of branches makes a model faster than its slowest path, measured alone. They stay behind
# it: forks and joins take time, and paths share the GPU. `race` compares all ways bit for bit.

# Folded: the measurement of three models
EAGER, CHAIN, BRANCHES = "eager, one stream", "CUDA graph, one chain", "CUDA graph with branches"


def against_each_other(model, x, compiles=False):
    model, x = model.requires_grad_(False).to(ap.gpu(0)), x.to(ap.gpu(0))
    (chain, in_chain), (captured, task) = as_chain(model, [x]), with_branches(model, [x])
    in_branches, ways = captured[task], {EAGER: lambda: model(x)}
    ways[CHAIN] = lambda: (chain.replay(), in_chain)[1]
    ways[BRANCHES] = lambda: (captured.replay(), in_branches)[1]
    if compiles:
        from torch._inductor import config

        with contextlib.suppress(Exception), config.patch(compile_threads=1):
            compiled = torch.compile(model, mode="reduce-overhead")
            compiled(x)  # works where there are a compiler for C and Python's headers
            ways["torch.compile, reduce-overhead"] = lambda: compiled(x)
    paths, both = enumerate(model, 1) if isinstance(model, Paths) else (), (in_chain, in_branches)
    parts = {f"path {n} alone": as_chain(path, [x])[0].replay for n, path in paths}
    given = {"calls": 50, "repeats": 15, "close": {one: 1e-3 for one in ways if "compile" in one}}
    found = ap.race(ways, parts=parts, reset=lambda: [y.fill_(torch.nan) for y in both], **given)
    found.checks["new inputs: equal"] = captured.replay(-x)[task].equal(model(-x))
    return found


def block_ways(channels, size):
    return against_each_other(block(channels), torch.randn(1, channels, size, size))


def towers_ways(width, depth, batch):
    pairs = [(nn.Linear(width, width), nn.ReLU()) for _ in range(2 * depth)]
    towers = [nn.Sequential(*sum(half, ())) for half in (pairs[:depth], pairs[depth:])]
    return against_each_other(Paths(towers), torch.randn(batch, width), compiles=True)


def chain_ways(width, depth):
    products = [nn.Linear(width, width, bias=False) for _ in range(depth)]
    return against_each_other(nn.Sequential(*products), torch.randn(width, width))


TOWERS = {"width": 256, "depth": 8, "batch": 64}
on_block = ap.recorded(block_ways, name="b6_block", parameters={"channels": 192, "size": 28})
on_towers = ap.recorded(towers_ways, name="b6_towers", parameters=TOWERS)
on_chain = ap.recorded(chain_ways, name="b6_chain", parameters={"width": 256, "depth": 40})

# %%
# In the table, compare the grey rows with the last two: the chain takes about as long as all four
# paths together. :doc:`/benchmarks` has two towers, a chain of products, and `torch.compile
# <https://docs.pytorch.org/docs/stable/generated/torch.compile.html>`_.

PATHS = [f"path {number} alone" for number in range(1, 5)]
rows = {label: on_block.measurements[label] for label in [*PATHS, EAGER, CHAIN, BRANCHES]}
limits_s = dict.fromkeys((CHAIN, BRANCHES), on_block.limit_s(PATHS))
gains = [one.estimate(lambda s: s[CHAIN] / s[BRANCHES]) for one in (on_block, on_towers, on_chain)]
ap.show(
    ap.compare(rows, limit_s=limits_s, parts=PATHS, baseline=CHAIN, highlight=BRANCHES),
    ap.claim("Branches clearly gain on a block of four paths.", gains[0], at_least=1.3, unit="×"),
    ap.claim("Branches clearly gain on two towers.", gains[1], at_least=1.3, unit="×"),
    ap.claim("Where nothing can run at once, little is lost.", gains[2], at_least=0.9, unit="×"),
)

# %%
# When this does not help
# -----------------------
# Kernels that fill a GPU by themselves gain nothing. A graph is what one call did, with its shapes:
# where that depends on the data, `trace` refuses, and names the line.
#
# Now you
# -------
# `trace` refuses `x.relu() if x.sum() > 0 else -x`. Compute both, and let the GPU pick one of them.
#
# .. dropdown:: A hint
#
#     `torch.where` takes a condition and two tensors.
#
# .. dropdown:: An answer
#
#     .. code-block:: python
#
#         def picked(x=torch.ones(4)):
#             return torch.where(x.sum() > 0, x.relu(), -x)
