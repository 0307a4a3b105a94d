# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Do independent products run at once?
====================================

| **You'll do:** exercise 1 of the chapter: an experiment that tells whether PyTorch runs the
  independent products of `run` in parallel on one device.
| **You'll learn:** why it doesn't, why streams alone seldom help, and what does.
| **You need:** nothing but this page; without a GPU it shows a record and runs on CPU lanes.

**The claim.** By itself PyTorch runs them one after another, for a stream is a queue. On several
streams large products gain little, as each fills the GPU, and small ones take longer, as the host
can't launch them fast enough. A CUDA graph with branches does run small ones at once. The figure
shows what each way gains, from small to large.
"""

# %%
# The work
# --------
# Two factors: the size of a product, and the way to run many of them. The chapter says 50 in one
# place, 10 or 8 in others, so the count is a parameter. Its size is 4000 x 4000, the last one here.

import os

import matplotlib.pyplot as plt
import torch

import autopar as ap

BOOK = {
    "count": 50,
    "sizes": [128, 256, 512, 1024, 2048, 4000],
    "streams": 8,
    "seen": [256, 1024, 4000],  # sizes whose timelines are kept
}
EAGER = "one stream", "several streams"
GRAPHS = "chain", "branches"
TORCH = "PyTorch, loop", "PyTorch, graph on 2 lanes"
CPU = {"count": 400, "size": 256, "rounds": 7}
HERE = {"count": 24, "size": 384, "rounds": 7}
MXNET = "AUTOPAR_MXNET_PYTHON"  # names a Python that has MXNet 1.9.1


# %%
# The ways
# --------
# One stream is the plain loop, `ap.workload.products`. Several streams fork from it, each waiting
# for an event, and join it in the same manner. A CUDA graph takes the host out of it: one call
# launches all products, as one chain or on branches. `capture` times both.


def on_streams(x, count, streams):
    """Deal `count` products out to several streams, then let the current one wait for them."""
    current, results = torch.cuda.current_stream(), []
    fork = current.record_event()
    for stream in streams:
        stream.wait_event(fork)
    for i in range(count):
        with torch.cuda.stream(streams[i % len(streams)]):
            results.append(x.mm(x))
    for stream in streams:
        current.wait_event(stream.record_event())
    return results


def in_a_graph(x, count):
    """The results of a replay, and what replays took as a chain and with the best branches."""
    graph = ap.TaskGraph()
    tasks = [graph.add(torch.mm, x, x, name="product") for _ in range(count)]
    captured = graph.capture()
    results = captured.replay()[tasks]
    ap.synchronize(x.device)
    chain, *branches = captured.trials.values()
    return results, chain, min(branches, key=lambda each: each.median_s)


def one_device(count, sizes, streams, seen):
    """Each size on one stream, on several, and in a CUDA graph with and without branches."""
    gpu = ap.gpu(0)
    side = [torch.cuda.Stream(gpu) for _ in range(streams)]
    measurements, looked_at, checks, values = [], {}, {}, {}
    for size in sizes:
        x = ap.workload.matrix(size, gpu)
        both = (
            lambda x=x: ap.workload.products(x, count),
            lambda x=x: on_streams(x, count, side),
        )
        ways = {f"{size}, {way}": run for way, run in zip(EAGER, both, strict=True)}
        # Before the product is computed, so that no leftover of it can be taken for a result.
        results = on_streams(x, count, side)
        in_graph = count if size < max(sizes) else streams  # many large ones would take long
        replayed, *trials = in_a_graph(x, in_graph)
        product = x.mm(x)
        checks[f"{size}: equal"] = all(torch.equal(each, product) for each in results + replayed)
        values[f"{size}, in a graph"] = in_graph
        for way, each in zip(GRAPHS, trials, strict=True):
            measurements.append(ap.Measurement(f"{size}, {way}", each.values_s))
        del results, replayed
        measurements += ap.measure_in_turn(ways, devices=[gpu], warmup=1, repeats=7)
        if size in seen:
            looked_at |= ways

    return ap.Findings(measurements, ap.timelines_of(looked_at), checks, values)


# %%
# Predict
# -------
# A GPU computes a product in blocks, of which each multiprocessor holds several at a time. Where a
# product's blocks are less than one *wave*, fewer than the whole GPU holds, others' find room
# beside them: :doc:`exercise 4 <plot_1_verify_with_nsight>` asks Nsight Compute for the waves. So
# small products should have much to gain, and large ones next to nothing. How much of a gain is
# this room, and how much the time that each kernel takes to begin and to end, is not told here.
#
# How long?
# ---------
# Beside the times stands what a product's arithmetic takes at the best rate that any way has
# reached at any size. The chain's time over it is what branches would gain at that rate.

gpu = ap.recorded(one_device, name="x1_one_device", parameters=BOOK)
sizes, streams, count = BOOK["sizes"], BOOK["streams"], BOOK["count"]
flops = ap.workload.product_flops
each_s, by_streams, by_branches = {}, {}, {}
for size in sizes:
    one_s, several_s = (gpu.measurements[f"{size}, {way}"].median_s / count for way in EAGER)
    in_graph = gpu.values[f"{size}, in a graph"]
    chain_s, branches_s = (gpu.measurements[f"{size}, {way}"].median_s / in_graph for way in GRAPHS)
    each_s[size] = [one_s, several_s, chain_s, branches_s]
    by_streams[size], by_branches[size] = one_s / several_s, chain_s / branches_s
rate = max(flops(size) / min(times_s) for size, times_s in each_s.items())
at_rate = {size: times_s[2] / (flops(size) / rate) for size, times_s in each_s.items()}
rows = []
for size, times_s in each_s.items():
    times = [f"{1e6 * taken_s:.2f}" for taken_s in (*times_s, flops(size) / rate)]
    gains = by_streams[size], by_branches[size], at_rate[size]
    rows.append([f"{size}", *times, *(f"{each:.2f} x" for each in gains)])
headers = ["side", *EAGER, *GRAPHS, "at the best rate"]
headers += ["streams gain", "branches gain", "at that rate"]
note = "Streams gain over one stream; branches of a CUDA graph gain over its chain."
caption = f"Microseconds for one of {count} products, {streams} streams"
ap.show(ap.tabulate(headers, rows, caption=caption, origin=gpu.origin, notes=[note]))

# %%
# See it
# ------
# What each way gains over its serial twin, and what branches would gain at the best rate.

figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.plot(sizes, by_streams.values(), "o-", label=f"{streams} streams")
ax.plot(sizes, by_branches.values(), "s-", label="branches of a graph")
ax.plot(sizes, at_rate.values(), "--", color="0.4", label="branches at the best rate")
ax.set(xscale="log", yscale="log", xlabel="side of the matrices", ylabel="gain")
ax.set_xticks(sizes, [str(size) for size in sizes])
ax.set_yticks([0.5, 1, 2, 4, 8, 16, 32], ["0.5 x", *(f"{2**n} x" for n in range(6))])
ax.minorticks_off()
ax.grid(axis="y", alpha=0.3)
ax.legend()
figure.suptitle(gpu.origin, fontsize=7)
ap.plot.show("x1_one_device")

# %%
# Did they run at once?
# ---------------------
# The profiler's timelines show it, of runs under the profiler. It makes launches slower: where
# these take the time, fewer kernels run at once in a timeline than do without it, and the gains
# above tell more. The kernels' times added up, over the time in which any of them ran, is how many
# ran at once. `busy` is the share of the whole in which any ran.


def at_once(timeline):
    """How many ran at once, averaged over the time in which any ran."""
    return sum(span.duration_s for span in timeline.spans) / timeline.busy_s()


rows = []
for label, timeline in gpu.timelines.items():
    kernels_us = 1e6 * sum(span.duration_s for span in timeline.spans) / count
    busy = f"{timeline.busy_s() / timeline.makespan_s:.0%}"
    rows.append([label, f"{at_once(timeline):.2f}", f"{kernels_us:.1f} us", busy])
headers = ["side, way", "at once", "a product's kernels", "busy"]
ap.show(ap.tabulate(headers, rows, caption="From the timelines", origin=gpu.origin))

# %%
# The answer. Large products may well be under way together on several streams, but they share the
# multiprocessors, and each takes longer by as much. In between may be sizes too small to fill the
# GPU that take long enough for the host to launch the next: which these are differs by machine.

small, large = min(BOOK["seen"]), max(sizes)
SMALL, LARGE = f"Products of {small} x {small}", f"Products of {large} x {large}"
one, several = EAGER
chain, branches = GRAPHS
in_order = max(at_once(gpu.timelines[f"{size}, {one}"]) for size in BOOK["seen"])
ap.show(
    ap.claim(
        "By itself PyTorch runs one product at a time.",
        gpu.estimate(lambda _: in_order),  # of one timeline, so without an interval
        at_most=1.1,
        unit="at once",
    ),
    ap.claim(
        f"{LARGE} gain little on several streams.",
        gpu.estimate(lambda s: s[f"{large}, {one}"] / s[f"{large}, {several}"]),
        at_most=1.2,
        unit="×",
    ),
    ap.claim(
        f"{LARGE} gain little on branches of a CUDA graph.",
        gpu.estimate(lambda s: s[f"{large}, {chain}"] / s[f"{large}, {branches}"]),
        at_most=1.2,
        unit="×",
    ),
    ap.claim(
        f"{SMALL} take longer on several streams than on one.",
        gpu.estimate(lambda s: s[f"{small}, {several}"] / s[f"{small}, {one}"]),
        at_least=1.1,
        unit="×",
    ),
    ap.claim(
        f"{SMALL} gain on branches of a CUDA graph.",
        gpu.estimate(lambda s: s[f"{small}, {chain}"] / s[f"{small}, {branches}"]),
        at_least=1.5,
        unit="×",
    ),
)

# %%
# And why? :doc:`Exercise 4 <plot_1_verify_with_nsight>` asks Nsight Compute what a single product
# does with the GPU: a large one keeps its arithmetic busy, and a small one leaves most of it idle.

most_streams, most_branches = (max(gain, key=gain.get) for gain in (by_streams, by_branches))
print(f"Streams gain most at {most_streams}: {by_streams[most_streams]:.2f} x.")
print(f"Branches gain most at {most_branches}: {by_branches[most_branches]:.2f} x.")

# %%
# Small products on several streams, under the profiler: the GPU is done with each before the host
# has launched the next, so the streams take turns.

shown = {way: gpu.timelines[f"{small}, {way}"] for way in EAGER}
together = at_once(shown[several])
ap.show(
    ap.draw(shown, title=f"{count} products of {small} x {small}", caption="As many launches."),
    ap.claim(
        f"{SMALL} hardly overlap on several streams.",
        gpu.estimate(lambda _: together),  # of one timeline, so without an interval
        at_most=1.5,
        unit="at once",
    ),
)

# %%
# And MXNet?
# ----------
# A CPU operator of PyTorch returns when it is done, so a loop can't overlap anything there either.
# MXNet, in which the chapter was first written, queues operators to an engine that knows what each
# reads and writes. Its last version runs on a CPU here, with one worker, as it does by itself, and
# with two; beside it are PyTorch's loop and a task graph on two lanes. All take one thread for
# each product.


def by_mxnet(count, size, rounds):
    """Seconds for all products, queued to MXNet's engine, by round."""
    import time

    import numpy

    for name, kind in {"bool": bool, "int": int, "float": float, "object": object}.items():
        if name not in vars(numpy):  # names that MXNet uses, and NumPy since 1.24 lacks
            setattr(numpy, name, kind)
    import mxnet

    x = mxnet.nd.random.uniform(0, 1, (size, size))
    outs = [mxnet.nd.zeros((size, size)) for _ in range(count)]
    taken_s = []
    for _ in range(rounds + 1):
        mxnet.nd.waitall()
        start_s = time.perf_counter()
        for out in outs:
            mxnet.nd.dot(x, x, out=out)
        mxnet.nd.waitall()
        taken_s.append(time.perf_counter() - start_s)
    return taken_s[1:]


def by_torch(count, size, rounds):
    """The same in a loop, and as tasks of a graph with two lanes; whether the results are right."""
    import torch

    import autopar as ap

    x, outs = ap.workload.matrix(size), [torch.zeros(size, size) for _ in range(count)]

    def loop():
        for out in outs:
            torch.mm(x, x, out=out)

    with ap.TaskGraph(cpu_lanes=2) as graph:
        for out in outs:
            graph.add(torch.mm, x, x, out=out, writes=[out])
        graph.run()
        right = all(torch.equal(out, x.mm(x)) for out in outs)
        ways = {"loop": loop, "graph": graph.run}
        in_loop, in_graph = ap.measure_in_turn(ways, warmup=1, repeats=rounds)
    return in_loop.values_s, in_graph.values_s, right


def engines(count, size, rounds, python):
    """Both libraries with one worker and with two; MXNet where its Python is named."""
    work, one_thread = (count, size, rounds), {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

    def mxnet_s(workers):
        environment = {**one_thread, "MXNET_CPU_WORKER_NTHREADS": f"{workers}"}
        return ap.in_fresh_process(by_mxnet, *work, python=python, environment=environment)

    *taken_s, right = ap.in_fresh_process(by_torch, *work, environment=one_thread)
    found = dict(zip(TORCH, taken_s, strict=True))
    if python:
        found |= {"MXNet, 1 worker": mxnet_s(1), "MXNet, 2 workers": mxnet_s(2)}
    measurements = [ap.Measurement(label, tuple(times_s)) for label, times_s in found.items()]
    return ap.Findings(measurements, {}, {"the graph's results are right": right})


def engines_there(count, size, rounds):
    """On a machine that has MXNet."""
    return engines(count, size, rounds, os.environ[MXNET])


# A machine without MXNet shows the record.
there = ap.recorded(engines_there, name="x1_engines", parameters=CPU, gpus=0, variables=[MXNET])
caption = f"{CPU['count']} products of {CPU['size']} x {CPU['size']} on a CPU"
ap.show(ap.compare(there.measurements, caption=caption))

# %%
# The answer on the CPU: by themselves neither does. MXNet's engine would, with more workers than it
# takes by itself; PyTorch needs the graph. Two lanes may gain little where the system puts
# both on the hardware threads of one core.

ap.show(
    ap.claim(
        "MXNet's engine runs products at once if it has two workers.",
        there.estimate(lambda s: s["MXNet, 1 worker"] / s["MXNet, 2 workers"]),
        at_least=1.3,
        unit="×",
    ),
    ap.claim(
        "A task graph on two lanes takes much less time for PyTorch's products.",
        there.estimate(lambda s: s[TORCH[0]] / s[TORCH[1]]),
        at_least=1.3,
        unit="×",
    ),
)

# %%
# On this machine
# ---------------
# The same, without MXNet. Two lanes take half the time at best.

here = there
if not there.live:
    here = ap.observed(engines, name="products here", parameters={**HERE, "python": ""})
loop, lanes = TORCH
limits = {lanes: here.measurements[loop].min_s / 2}
measured = [here.measurements[label] for label in TORCH]
ap.show(ap.compare(measured, limit_s=limits, caption="Products on this CPU"))

# %%
# When this does not help
# -----------------------
# Large products leave nothing to gain on one device, and small ones should first become larger:
# one `torch.bmm` takes a batch of them. Streams pay across devices, and for copies.
#
# Now you
# -------
# Set `count` to 10 and to 8, the chapter's other numbers: which gains change, and why not those of
# large products? Then try sizes between 1024 and 2048: where does the last of the gain go?
