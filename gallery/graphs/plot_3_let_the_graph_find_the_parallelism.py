# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Let the graph find the parallelism
==================================

| **You'll do:** hand a model of four paths to `TaskGraph.trace` and `capture`, and run its paths at
  the same time on one GPU.
| **You'll learn:** what branches of a CUDA graph gain over one chain, and what limits the gain.
| **You need:** 8 minutes, and no GPU: what needs one is shown from a record. Read
  :doc:`plot_2_the_figure_made_real` first; :doc:`plot_4_does_it_run_as_planned` comes next.

The kernels of a small model leave most of a GPU idle, and yet they run one after another. Two lines
find which of them don't need each other, in unchanged code, and run these at the same time. How
long the longest path takes is the limit.
"""

# %%
# A CUDA graph runs one kernel after another
# ------------------------------------------
# The model is a block of four paths over one image, as in GoogLeNet. Called as it is, it launches
# kernel after kernel, and a launch takes longer than a kernel. A `CUDA graph
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs>`_ is tempting: the launches are
# recorded once, and replayed as a whole.

import itertools
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import nn

import autopar as ap
from autopar.graph.schedule import Entry, Schedule

# %%


def as_chain(fn, inputs):
    """An ordinary CUDA graph, one kernel after another, and where its result lies."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):  # libraries set themselves up in the first calls
        for _ in range(3):
            fn(*inputs)
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fn(*inputs)
    return graph, result


# %%
# That removes the launches. But the kernels were launched to one stream, so in the graph each still
# waits for the one before it, though the paths don't need each other.
#
# Two lines find the branches
# ---------------------------
# `trace` calls the model once, on tensors without memory, and notes what each operator reads and
# writes. `capture` tries some numbers of branches, and keeps the fastest.


def with_branches(fn, inputs):
    """A CUDA graph of what `fn` does, with branches where they pay, and its result as a task."""
    graph, result = ap.TaskGraph.trace(fn, *inputs)
    return graph.capture(inputs=inputs), result


# %%
# Nothing is computed to find the tasks, so the picture at the top needs no GPU. Look at its
# columns, which are the four paths: only the last task waits for others. If the GPU is large enough
# for four kernels at once, the block takes as long as its longest path.

# Folded: the model and the drawing
BLOCK, CHAIN_OF = {"channels": 192, "size": 28}, {"width": 256, "depth": 40}
TOWERS = {"width": 256, "depth": 8, "batch": 64}


class Block(nn.ModuleList):
    """Paths over one input, their results joined."""

    def forward(self, x):
        return torch.cat([path(x).relu() for path in self], 1)


def block(channels):
    """Four paths with kernels of different sizes."""
    torch.manual_seed(0)
    conv = nn.Conv2d
    middle = nn.Sequential(conv(channels, 96, 1), nn.ReLU(), conv(96, 128, 3, padding=1))
    large = nn.Sequential(conv(channels, 16, 1), nn.ReLU(), conv(16, 32, 5, padding=2))
    pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(channels, 32, 1))
    return Block([conv(channels, 64, 1), middle, large, pooled]).requires_grad_(False)


x = torch.zeros(1, BLOCK["channels"], BLOCK["size"], BLOCK["size"])
graph, _ = ap.TaskGraph.trace(block(BLOCK["channels"]), x)
jobs = graph.plan().schedule.jobs
path_of, entries = [], []
for number, job in enumerate(jobs):  # a path begins where nothing comes before
    path_of.append(path_of[job.after[0]] if job.after else f"path {len({*path_of}) + 1}")
    waits = tuple(before for before in job.after if path_of[before] != path_of[number])
    entries.append(Entry(number, path_of[number], waits, 0.0, 0.0))
plan = SimpleNamespace(schedule=Schedule(jobs, tuple(entries)))
views = [job.name for job in jobs if job.name.startswith("getitem")]
ap.plot.graph(plan, title="A block of four paths, as traced", columns=True, hide=views)
ap.plot.show("b6_let_the_graph_find_the_parallelism")

# %%
# The longest path is the limit
# -----------------------------
# No number of branches makes the block faster than its slowest path, measured as a CUDA graph of
# its own. `race` compares all ways bit for bit with what the model returns, and times paths as
# `parts`; new inputs are compared as well. A replay takes microseconds, so each sample is of many,
# and the table has the time of one.

# Folded: all ways to call a model, its paths alone, and two more models
EAGER, COMPILED = "eager, one stream", "torch.compile, reduce-overhead"
CHAIN, BRANCHES = "CUDA graph, one chain", "CUDA graph with branches"
CALLS = 50  # in each sample, as one takes far less than a millisecond
WHY_NOT = "b6_towers_compile.txt"  # beside the record: what torch.compile said where it failed


def block_ways(channels, size):
    """The block, for a single image."""
    model = block(channels).to(ap.gpu(0))
    x = torch.randn(1, channels, size, size, device=ap.gpu(0))
    return against_each_other(model, [x], model)


def against_each_other(fn, inputs, paths=(), compiles=False):
    """Every way of calling `fn`, and each of its paths alone, per call."""
    expected = fn(*inputs)
    chain, in_chain = as_chain(fn, inputs)
    captured, task = with_branches(fn, inputs)
    in_branches = captured[task]
    ways = {
        EAGER: lambda: repeated(lambda: fn(*inputs)),
        CHAIN: lambda: repeated(chain.replay, in_chain),
        BRANCHES: lambda: repeated(captured.replay, in_branches),
    }
    values, files, close = {"branches": captured.branches}, {}, {}
    if compiles:
        quick, took, files = compiled(fn, inputs, expected)
        if quick:
            values |= took
            close = {COMPILED: 1e-3}
            ways[COMPILED] = lambda: repeated(lambda: quick(*inputs))
    alone = [
        as_chain(path, [x])[0] for path, x in zip(paths, itertools.cycle(inputs), strict=False)
    ]
    parts = {
        f"path {n} alone": lambda graph=graph: repeated(graph.replay)
        for n, graph in enumerate(alone, 1)
    }
    findings = ap.race(
        ways,
        parts=parts,
        expected=expected,
        close=close,
        reset=lambda: forget(in_chain, in_branches),
        devices=[ap.gpu(0)],
        repeats=15,
    )
    others = [torch.randn_like(given) for given in inputs]
    new = ap.workload.equal([captured.replay(*others)[task]], [fn(*others)])
    per_call = [
        replace(one, values_s=tuple(s / CALLS for s in one.values_s))
        for one in findings.measurements
    ]
    return ap.Findings(
        [*per_call, *captured.trials.values()],
        checks=findings.checks | {"new inputs: equal": new},
        values=values,
        files=files,
    )


def repeated(call, result=None):
    """Call many times; the last result, or the memory in which it lies."""
    for _ in range(CALLS - 1):
        call()  # no result is kept, as compiled code writes the next to the same memory
    last = call()
    return last if result is None else result


def forget(*results):
    """Let no way be right because of what another left."""
    for result in results:
        result.fill_(torch.nan)


def compiled(fn, inputs, expected):
    """The function compiled, how far it is off, and what it took; or why it doesn't work here."""
    from torch._inductor import config

    timer = ap.Timer()
    try:
        with config.patch(compile_threads=1), warnings.catch_warnings():
            # No processes that stay, and disturb what is timed; no advice to use other numbers.
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
            quick = torch.compile(fn, mode="reduce-overhead")
            results = [quick(*inputs).clone() for _ in range(3)]  # from the second call on a graph
        away = (results[-1] - expected).abs().max() / expected.abs().max()
    except Exception as error:  # it needs a compiler for C and Python's headers, among others
        said = re.sub(r"(/[^\s/'\"]+)+/", "", f"{type(error).__name__}: {error}")  # without paths
        return None, {}, {WHY_NOT: said[:400].encode()}
    return quick, {"compiling, s": timer.stop(), "compiled, error": away.item()}, {}


class Towers(nn.ModuleList):
    """A path for each of two inputs, and a score of how well they match."""

    def forward(self, x, y):
        return (self[0](x) * self[1](y)).sum(-1)


def towers(width, depth):
    """Two towers of linear layers."""
    torch.manual_seed(0)
    layers = [[(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)] for _ in range(2)]
    return Towers([nn.Sequential(*sum(one, ())) for one in layers]).requires_grad_(False)


def towers_ways(width, depth, batch):
    """The towers, and what `torch.compile` makes of them."""
    model = towers(width, depth).to(ap.gpu(0))
    inputs = torch.randn(2, batch, width, device=ap.gpu(0)).unbind()
    return against_each_other(model, inputs, model, compiles=True)


def chain_ways(width, depth):
    """A plain chain of products."""
    weight, x = (ap.workload.matrix(width, ap.gpu(0), seed=seed) for seed in range(2))

    def chain(x):
        for _ in range(depth):
            x = x @ weight
        return x

    return against_each_other(chain, [x])


# %%
# In the table, look at the grey rows first: together the four paths take about as long as the
# chain. The row with branches takes about half of that. It doesn't reach the slowest path alone, as
# the paths have to be joined, and share one GPU. What the chain gains over eager code, any CUDA
# graph gains. The *spread (IQR)* is how far the middle half of the samples lies apart.

in_block = ap.recorded(block_ways, name="b6_block", parameters=BLOCK)
PATHS = [f"path {number} alone" for number in range(1, 5)]
rows = {label: in_block.measurements[label] for label in [*PATHS, EAGER, CHAIN, BRANCHES]}
limits_s = dict.fromkeys((CHAIN, BRANCHES), in_block.limit_s(PATHS))
ap.show(ap.compare(rows, limit_s=limits_s, parts=PATHS, baseline=CHAIN, highlight=BRANCHES))

# %%
# Two more models show that it is not this block alone: two towers, which have two paths, and a
# chain of products, which has nothing to run at once. All their times are in :doc:`/benchmarks`.

in_towers = ap.recorded(towers_ways, name="b6_towers", parameters=TOWERS)
in_chain = ap.recorded(chain_ways, name="b6_chain", parameters=CHAIN_OF)
on_block, on_towers, on_chain = (
    record.estimate(lambda s: s[CHAIN] / s[BRANCHES]) for record in (in_block, in_towers, in_chain)
)
ap.show(
    ap.claim("Branches clearly gain on a block of four paths.", on_block, at_least=1.3, unit="×"),
    ap.claim("Branches clearly gain on two towers.", on_towers, at_least=1.3, unit="×"),
    ap.claim("Where nothing can run at once, little is lost.", on_chain, at_least=0.9, unit="×"),
)

# %%
# When this does not help
# -----------------------
# Kernels that fill a GPU by themselves gain nothing, so large images or batches take the gain away.
# A graph is what one call did: where that depends on the data, `trace` refuses, and names the line.
# The shapes of a CUDA graph are fixed, and its results are overwritten by the next replay: clone
# what is to be kept. Where kernels could be fused, `torch.compile
# <https://docs.pytorch.org/docs/stable/generated/torch.compile.html>`_ does what no order can.
#
# On this machine
# ---------------
# The same block runs on CPU lanes, for a larger image: its paths run at the same time, as far as
# there are cores. The results are the same bits as those of the tasks in turn.


def block_here(channels, size):
    graph, task = ap.TaskGraph.trace(block(channels), torch.randn(1, channels, size, size))
    with graph:
        graph.measure()
        in_turn = {"tasks one after another": lambda: graph.run_serial()[task]}
        return ap.race(in_turn | {"task graph": lambda: graph.run()[task]})


here = ap.observed(block_here, name="on CPU lanes", parameters={"channels": 64, "size": 96})
ap.show(ap.compare(here.measurements))

# %%
# Now you
# -------
# `trace` refuses `x.relu() if x.sum() > 0 else -x`. Write it so that both results are computed, and
# one of them is picked on the GPU.
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
#
#         graph, result = ap.TaskGraph.trace(picked, -torch.ones(4))
#         print(graph.run()[result])
