# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Let the graph find the parallelism
==================================

| **You'll do:** hand ordinary models to `TaskGraph.trace` and `capture`: a block of four paths, as
  in GoogLeNet, a model of two towers, and a plain chain.
| **You'll learn:** what a small model's time consists of, what CUDA graphs take out of it, what
  branches gain beyond that, and which code can't be traced.
| **You need:** nothing but this page; without a GPU it shows records and runs on CPU lanes.

**The claim.** Small models leave most of a GPU idle, since one kernel follows another. The branches
that `capture` finds in unchanged code gain much over a sequential CUDA graph of the same kernels,
on the block and on the towers. Where there is nothing to find, it loses little.
"""

# %%
# The work
# --------
# Two models with independent parts, written as anybody would write them.

import itertools
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import nn

import autopar as ap
from autopar.graph.schedule import Resource, schedule

BLOCK = {"channels": 192, "size": 28}
TOWERS = {"width": 256, "depth": 8, "batch": 64}
CHAIN_OF = {"width": 256, "depth": 40}
HERE = {"channels": 64, "size": 96}
EAGER, COMPILED = "eager, one stream", "torch.compile, reduce-overhead"
CHAIN, BRANCHES = "CUDA graph, one chain", "CUDA graph with branches"
TRIALS = "1 branches", "2 branches", "4 branches", "8 branches"
CALLS = 50  # in each sample, as one takes far less than a millisecond
WHY_NOT = "b6_towers_compile.txt"  # beside the record: what torch.compile said where it failed


class Block(nn.ModuleList):
    """Paths over one input, their results joined."""

    def forward(self, x):
        return torch.cat([path(x).relu() for path in self], 1)


class Towers(nn.ModuleList):
    """A path for each of two inputs, and a score of how well they match."""

    def forward(self, x, y):
        return (self[0](x) * self[1](y)).sum(-1)


def block(channels):
    """Four paths with kernels of different sizes."""
    torch.manual_seed(0)
    conv = nn.Conv2d
    middle = nn.Sequential(conv(channels, 96, 1), nn.ReLU(), conv(96, 128, 3, padding=1))
    large = nn.Sequential(conv(channels, 16, 1), nn.ReLU(), conv(16, 32, 5, padding=2))
    pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(channels, 32, 1))
    return Block([conv(channels, 64, 1), middle, large, pooled]).requires_grad_(False)


def towers(width, depth):
    """Two towers of linear layers."""
    torch.manual_seed(0)
    layers = [[(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)] for _ in range(2)]
    return Towers([nn.Sequential(*sum(each, ())) for each in layers]).requires_grad_(False)


# %%
# What the graph finds
# --------------------
# `trace` calls the model once, on tensors without memory, and notes its operators: each becomes a
# task, which depends on those whose results it takes. Nothing is computed, so this needs no GPU.
# Below, the block's tasks as `capture` deals them out to branches.

VIEWS = "t", "getitem"  # operators without a kernel


def on_branches(graph, branches=4):
    """Tasks on branches, if each kernel took one second."""
    jobs = [
        job._replace(resource="branch", cost_s=float(job.name.split("_")[0] not in VIEWS))
        for job in graph.plan().schedule.jobs
    ]
    return schedule(jobs, {"branch": Resource(branches, branches)})


x = torch.zeros(1, BLOCK["channels"], BLOCK["size"], BLOCK["size"])
pair = torch.zeros(2, TOWERS["batch"], TOWERS["width"])
of_block, _ = ap.TaskGraph.trace(block(BLOCK["channels"]), x)
of_towers, _ = ap.TaskGraph.trace(towers(TOWERS["width"], TOWERS["depth"]), *pair)
ap.plot.graph(SimpleNamespace(schedule=on_branches(of_block)), title="A block of four paths")
ap.plot.show("b6_let_the_graph_find_the_parallelism")

# %%
# Predict
# -------
# Were all kernels as long, and a GPU large enough for what can run at once, the longest chain would
# be all that is left. They are not, so this is a rough figure. The limit in the tables below is a
# harder one: the slowest path alone, at its fastest, measured as a CUDA graph of its own.

for name, graph in (("block", of_block), ("towers", of_towers)):
    made = on_branches(graph)
    kernels, longest = sum(job.cost_s for job in made.jobs), made.makespan_s
    print(f"{name}: {kernels:.0f} kernels, the longest chain has {longest:.0f}:", end=" ")
    print(f"{kernels / longest:.2f} x if all took as long")

# %%
# The ways
# --------
# Eager code launches kernel after kernel. `torch.compile` fuses some, and puts the rest into a CUDA
# graph. A CUDA graph by hand is the baseline that counts: it has no launches either, and the same
# kernels. With `capture` it takes two lines, and no stream or event.


def with_branches(fn, inputs):
    """A CUDA graph of what `fn` does, with branches where they pay, and its result as a task."""
    graph, result = ap.TaskGraph.trace(fn, *inputs)
    return graph.capture(inputs=inputs), result


def as_chain(fn, inputs):
    """An ordinary CUDA graph, one kernel after another."""
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


def against_each_other(fn, inputs, paths=(), compiles=False):
    """Every way of calling `fn`, and each of its paths alone, per call."""
    expected = fn(*inputs)
    chain, in_chain = as_chain(fn, inputs)
    captured, result = with_branches(fn, inputs)
    others = [torch.randn_like(each) for each in inputs]
    chain.replay()
    checks = {
        "one chain: equal": ap.workload.equal([in_chain], [expected]),
        "branches: equal": ap.workload.equal([captured.replay(*inputs)[result]], [expected]),
        "new inputs: equal": ap.workload.equal([captured.replay(*others)[result]], [fn(*others)]),
    }
    calls = {EAGER: lambda: fn(*inputs), CHAIN: chain.replay, BRANCHES: captured.replay}
    own = zip(paths, itertools.cycle(inputs), strict=False)
    alone = [as_chain(path, [x])[0] for path, x in own]
    calls |= {f"path {n} alone": each.replay for n, each in enumerate(alone, 1)}
    values, files = {"branches": captured.branches}, {}
    if compiles:
        quick, took, files = compiled(fn, inputs, expected)
        values |= took
        calls |= {COMPILED: lambda: quick(*inputs)} if quick else {}

    def repeated(call):
        def calls():
            for _ in range(CALLS):
                call()

        return calls

    ways = {label: repeated(call) for label, call in calls.items()}
    measured = ap.measure_in_turn(ways, devices=[ap.gpu(0)], repeats=15)
    per_call = [replace(one, values_s=tuple(s / CALLS for s in one.values_s)) for one in measured]
    return ap.Findings([*per_call, *captured.trials.values()], {}, checks, values, files)


def block_ways(channels, size):
    """The block, for a single image."""
    model = block(channels).to(ap.gpu(0))
    x = torch.randn(1, channels, size, size, device=ap.gpu(0))
    return against_each_other(model, [x], model)


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
# How long?
# ---------
# First the block, for one image: its kernels take microseconds, and launching them takes longer.


def table(record, caption):
    """The ways beside each other, with the slowest path alone as the limit."""
    paths = [each for label, each in record.measurements.items() if label.startswith("path")]
    limits = dict.fromkeys((CHAIN, BRANCHES), max(each.min_s for each in paths))
    calls = {label: each for label, each in record.measurements.items() if label not in TRIALS}
    parts = [path.label for path in paths]
    return ap.compare(calls, limit_s=limits, baseline=CHAIN, parts=parts, caption=caption)


in_block = ap.recorded(block_ways, name="b6_block", parameters=BLOCK)
ap.show(table(in_block, "The block of four paths, one image, per call"))

# %%
# And the towers.

in_towers = ap.recorded(towers_ways, name="b6_towers", parameters=TOWERS)
ap.show(table(in_towers, f"Two towers, {TOWERS['batch']} pairs, per call"))

# %%
# How many branches?
# ------------------
# `capture` tries several numbers, and keeps what is the quickest in a trial of its own, unless that
# gains less than a hundredth over the chain. For a chain of products it can't gain anything.

in_chain = ap.recorded(chain_ways, name="b6_chain", parameters=CHAIN_OF)
records = {"block": in_block, "towers": in_towers, "chain of products": in_chain}
rows = [
    (
        name,
        *(f"{1e6 * one.measurements[n].median_s:.1f} us" for n in TRIALS),
        f"{one.values['branches']:.0f}",
    )
    for name, one in records.items()
]
headers = ["branches", *(name.split()[0] for name in TRIALS), "kept"]
caption = "A replay, by the number of branches"
origins = [one.origin for one in records.values()]
ap.show(ap.tabulate(headers, rows, caption=caption, origin=origins))

# %%
# Over a chain is what branches gain; over eager code most is what any CUDA graph gains.

for name, one in records.items():
    gain, over = (
        one.measurements[BRANCHES].speedup_over(one.measurements[way]) for way in (CHAIN, EAGER)
    )
    print(f"{name}: {gain:.2f} x over one chain, {over:.1f} x over eager")
if COMPILED in in_towers.measurements:
    found = in_towers.values
    gain = in_towers.measurements[COMPILED].speedup_over(in_towers.measurements[CHAIN])
    print(f"torch.compile: {gain:.2f} x over one chain, after {found['compiling, s']:.1f} s, and")
    print(f"results are within {found['compiled, error']:.0e} of the largest.")
else:
    why_not = in_towers.files[WHY_NOT].decode().splitlines()[0]
    print(f"torch.compile is not among the ways, as it failed on that machine: {why_not}")

gains = [one.estimate(lambda s: s[CHAIN] / s[BRANCHES]) for one in records.values()]
ap.show(
    ap.claim(
        "Branches gain much over one chain on a block of four paths.",
        gains[0],
        at_least=1.3,
        unit="×",
    ),
    ap.claim("Branches gain much over one chain on two towers.", gains[1], at_least=1.3, unit="×"),
    ap.claim(
        "Where there is nothing to run at once, capture loses little.",
        gains[2],
        at_least=0.9,
        unit="×",
    ),
)

# %%
# What can't be traced
# --------------------
# A graph is what one call did. If that depends on the data there is no graph, and `trace` says at
# which line. Here `torch.where` would do: it takes both results, and picks. What depends on shapes,
# or on numbers that were given, stays as it was in that call.


def signed(x):
    if x.sum() > 0:
        return x.relu()
    return -x


try:
    ap.TaskGraph.trace(signed, torch.ones(4))
except ValueError as error:
    print(error)

# %%
# On this machine
# ---------------
# The same block on CPU lanes: paths run at the same time, as far as there are cores. The twin runs
# the same tasks one after another, with as many threads for each, so the bits are the same.


def block_here(channels, size):
    """The block's graph on CPU lanes, beside its twin and the model itself."""
    model, x = block(channels), torch.randn(1, channels, size, size)
    graph, result = ap.TaskGraph.trace(model, x)
    with graph:
        graph.measure()
        run, twin = graph.run(), graph.run_serial()
    checks = {
        "all bits as the twin's": torch.equal(run[result], twin[result]),
        "close to the model's": torch.allclose(run[result], model(x), rtol=1e-3, atol=1e-5),
    }
    return ap.Findings([], {"run": run.timeline}, checks)


here = ap.observed(block_here, name="the block on CPU lanes", parameters=HERE)
ap.show(
    ap.draw(
        here.timelines["run"],
        title="The block on CPU lanes",
        caption="Each lane takes the path that has most to come.",
    )
)

# %%
# When this does not help
# -----------------------
# Kernels that fill a GPU by themselves have nothing to gain from company, so larger images or
# batches take the gain away. So does a chain. A CUDA graph is of fixed shapes, and its inputs and
# results stay where they are: clone what is to be kept. Where kernels could be fused,
# `torch.compile` does what no order of them can; where launches are what takes the time, any CUDA
# graph helps, and most of what beats eager code is that.
#
# Now you
# -------
# Raise `batch` of the towers until the branches gain less than a tenth. How large is it, and how
# long is a kernel then? Make one tower twice as deep: what is the limit now, and what is gained?
