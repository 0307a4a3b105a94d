# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Read three clocks, get one answer
=================================

| **You'll do:** the same work timed by the wall clock, by CUDA events, and by two profilers.
| **You'll learn:** from which length on they agree, what each of them sees, and what it costs.
| **You need:** nothing but this page; without a GPU it shows a record.

**The claim.** Where the GPU is what takes time, and for long enough, all clocks agree. For short
work they can't: the wall clock has the launch and the wait in it, events have part of the launch,
and only a profiler has the kernel alone. The figure shows where they part.
"""

# %%
# The work
# --------
# Ever more products, from one kernel to hundreds; products and copies on two streams; and
# products so small that the host can't launch them fast enough. It is a program of its own, as one
# of the tools has to start it. Each sample is read from all clocks at once. A range around it,
# named by `annotate`, tells the profilers which is which.

import shlex
import subprocess
import tempfile

import matplotlib.pyplot as plt

import autopar as ap

WORK = {"counts": [1, 4, 16, 64, 256], "size": 1024, "book": [20, 4000], "tiny": [64, 64]}
ROUNDS, WARM_UPS = 5, 2
LONG, TINY = "products and copies", "tiny products"
WALL, EVENTS, TRACE = "wall clock", "events", "its trace"
NONE, PROFILER, NSIGHT = "no tool", "torch.profiler", "Nsight Systems"
NSYS = "nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --output={report}"
EXPORT = "nsys export --type=sqlite --output={report}.sqlite {report}.nsys-rep"


def read_clocks(works, rounds, gpu):
    """Work -> clock -> seconds, in rounds of all works."""
    import time

    import torch

    import autopar as ap

    taken_s = {name: {"wall clock": [], "events": []} for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            ap.synchronize(gpu)
            with ap.annotate(name):
                before_s = time.perf_counter()
                start.record()
                kept = work()
                end.record()
                ap.synchronize(gpu)
                after_s = time.perf_counter()
            del kept
            taken_s[name]["wall clock"].append(after_s - before_s)
            taken_s[name]["events"].append(start.elapsed_time(end) / 1e3)
    return taken_s


def clocked(counts, size, book, tiny, names, rounds, warm_ups, trace):
    """What the clocks say in this process, and a trace of torch.profiler if it is to be written."""
    import functools

    import torch

    import autopar as ap

    gpu, products = ap.gpu(0), ap.workload.products
    x, large, small = (ap.workload.matrix(side, gpu) for side in (size, book[1], tiny[1]))
    buffers = [torch.full((book[1], book[1]), torch.nan).pin_memory() for _ in range(book[0])]
    stream = torch.cuda.Stream(gpu)

    def with_copies():
        for buffer in buffers:
            y = large.mm(large)
            stream.wait_event(torch.cuda.current_stream(gpu).record_event())
            with torch.cuda.stream(stream):
                buffer.copy_(y, non_blocking=True)
            y.record_stream(stream)
        torch.cuda.current_stream(gpu).wait_stream(stream)

    works = {f"{count} of {size}": functools.partial(products, x, count) for count in counts}
    works |= {names[0]: with_copies, names[1]: functools.partial(products, small, tiny[0])}
    taken_s = [read_clocks(works, warm_ups, gpu)]
    equal = ap.workload.equal(buffers, [large.mm(large)] * len(buffers))

    def again():
        taken_s.append(read_clocks(works, rounds, gpu))

    if trace:
        ap.write_trace(ap.timeline_of(again), trace)
    else:
        again()
    return taken_s[-1], equal


# %%
# Predict
# -------
# The wall clock starts before the first launch and stops after the wait: some tens of microseconds
# that are not the GPU's. The first of the events is reached while the GPU is idle, so the launch of
# the first kernel lies between them. A trace has when each kernel began and ended. None of that
# grows with the work: beyond 50 times as much, it is below 2 %. What a profiler costs the host does
# grow, by launch.


def three_clocks(counts, size, book, tiny, rounds):
    """All clocks without a tool and under each; seconds that the whole process took."""
    measurements, timelines, checks, values = [], {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/b9"
        traces = {NONE: "", PROFILER: f"{folder}/b9.json", NSIGHT: f"{report}.sqlite"}
        for tool, trace in traces.items():
            under = shlex.split(NSYS.format(report=report)) if tool == NSIGHT else []
            by_itself = trace if tool == PROFILER else ""
            arguments = counts, size, book, tiny, [LONG, TINY], rounds, WARM_UPS, by_itself
            timer = ap.Timer()
            taken_s, checks[f"{tool}: equal"] = ap.in_fresh_process(
                clocked, *arguments, uses=(read_clocks,), under=under
            )
            if tool == NSIGHT:
                subprocess.run(shlex.split(EXPORT.format(report=report)), check=True)
            if trace:
                timeline = ap.read_trace(trace)
                for name, of in taken_s.items():
                    of[TRACE] = [each.makespan_s for each in timeline.within(name)[-rounds:]]
                timelines[tool] = timeline.within(LONG)[-1]
            values[f"{tool}, s in all"] = timer.stop()
            for name, of in taken_s.items():
                for clock, values_s in of.items():
                    label = f"{tool}, {name}, {clock}"
                    measurements.append(ap.Measurement(label, tuple(values_s)))
    return ap.Findings(measurements, timelines, checks, values)


# %%
# How far apart?
# --------------
# First the work that takes long: products and copies.

parameters = {**WORK, "rounds": ROUNDS}
gpu = ap.recorded(three_clocks, name="b9_three_clocks", parameters=parameters, programs=["nsys"])
CLOCKS = [(tool, clock) for tool in (NONE, PROFILER, NSIGHT) for clock in (WALL, EVENTS)]
CLOCKS += [(PROFILER, TRACE), (NSIGHT, TRACE)]


def median_s(tool, work, clock):
    """What one clock said."""
    return gpu.measurements[f"{tool}, {work}, {clock}"].median_s


rows = []
for clock in (WALL, EVENTS, TRACE):
    read = [tool for tool in (NONE, PROFILER, NSIGHT) if (tool, clock) in CLOCKS]
    times = [f"{1e3 * median_s(tool, LONG, clock):.2f} ms" for tool in read]
    rows.append([clock, *["-"] * (3 - len(times)), *times])
caption = f"{WORK['book'][0]} products and copies by all clocks, medians of {ROUNDS}"
ap.show(ap.tabulate(["clock", NONE, PROFILER, NSIGHT], rows, caption=caption, origin=gpu.origin))

# %%
# The claims. Within a tool all clocks read the same runs, so only they can differ; between tools
# the runs differ as well.


def clocks_apart(seconds):
    """How far a clock is from the wall clock of the same runs, at worst."""
    pairs = [(f"{tool}, {LONG}, {clock}", f"{tool}, {LONG}, {WALL}") for tool, clock in CLOCKS]
    return max(abs(seconds[one] / seconds[wall] - 1) for one, wall in pairs)


def runs_apart(seconds):
    """By how much the largest of all readings is above the smallest."""
    all_s = [seconds[f"{tool}, {LONG}, {clock}"] for tool, clock in CLOCKS]
    return max(all_s) / min(all_s) - 1


within, between = gpu.estimate(clocks_apart), gpu.estimate(runs_apart)
ap.show(
    ap.claim("All clocks agree on long runs.", within, at_most=0.05, unit="%"),
    ap.claim("Long runs take as long under each of the tools.", between, at_most=0.1, unit="%"),
)

# %%
# Where they part
# ---------------
# Each clock against Nsight's trace, which has the kernels alone. The dashed line is at 2 %.

works = [f"{count} of {WORK['size']}" for count in WORK["counts"]]
length_us = [1e6 * median_s(NSIGHT, work, TRACE) for work in works]
lines = {"wall clock": (NONE, WALL), "events": (NONE, EVENTS), "torch.profiler": (PROFILER, TRACE)}
apart = {
    label: [abs(median_s(tool, work, clock) / median_s(NSIGHT, work, TRACE) - 1) for work in works]
    for label, (tool, clock) in lines.items()
}
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for (label, shares), marker in zip(apart.items(), "osD", strict=True):
    ax.plot(length_us, [max(100 * share, 0.01) for share in shares], marker=marker, label=label)
ax.axhline(2, linestyle="--", color="0.4")
ax.set(xscale="log", yscale="log", xlabel="kernels take, us", ylabel="apart from Nsight's trace, %")
ax.grid(alpha=0.3)
ax.legend()
figure.suptitle(gpu.origin, fontsize=7)
ap.plot.show("b9_three_clocks")

# %%
# A clock agrees from that length on after which it is never more than 2 % off:

for label, shares in apart.items():
    agrees = [us for i, us in enumerate(length_us) if max(shares[i:]) < 0.02]
    print(
        f"{label}: agrees "
        + (f"by {agrees[0]:,.0f} us at the latest" if agrees else "nowhere here")
    )


def from_nsight(seconds, clock, work):
    """How far a clock is above Nsight's trace."""
    return seconds[f"{NONE}, {work}, {clock}"] / seconds[f"{NSIGHT}, {work}, {TRACE}"] - 1


launch = gpu.estimate(lambda s: from_nsight(s, WALL, works[0]))
long = gpu.estimate(lambda s: max(abs(from_nsight(s, c, works[-1])) for c in (WALL, EVENTS)))
count = WORK["counts"][-1]
ap.show(
    ap.claim(
        "The wall clock has the launch in it: for one kernel that is much.",
        launch,
        at_least=0.2,
        unit="%",
    ),
    ap.claim(f"For {count} kernels the launch is next to nothing.", long, at_most=0.05, unit="%"),
)

# %%
# What each costs
# ---------------
# Reading the wall clock means to wait for the GPU, so nothing may run beside what is timed. Events
# need no wait until they are read. Tools cost twice: what they add to each launch, which tiny
# products show, for these take as long as their launches; and the time until the figures are there.

rows = []
for tool in (NONE, PROFILER, NSIGHT):
    slower = [median_s(tool, work, WALL) / median_s(NONE, work, WALL) for work in (LONG, TINY)]
    launch_us = 1e6 * median_s(tool, TINY, WALL) / WORK["tiny"][0]
    whole_s = gpu.values[f"{tool}, s in all"]
    more_s = whole_s - gpu.values[f"{NONE}, s in all"]
    rows.append([tool, *(f"{each:.2f} x" for each in slower), f"{launch_us:.1f} us"])
    rows[-1] += [f"{whole_s:.1f} s", f"{more_s:.1f} s"]
headers = ["tool", LONG, TINY, "a tiny product", "process", "more"]
caption = "The wall clock under each tool, and what the whole process takes"
ap.show(ap.tabulate(headers, rows, caption=caption, origin=gpu.origin))

# %%
# Where tiny products get slower, a profile is one of slower work: take its order, and no times.
#
# See it
# ------
# The products and copies in the traces of both tools.

ap.show_timelines(
    gpu.timelines,
    "b9_two_traces",
    title="The same work in two traces",
    caption="Two runs, in two processes. Streams are numbered by each tool for itself.",
)

# %%
# On this machine
# ---------------
# On a CPU there are two of these clocks: the wall clock, and the range in the profiler's trace. The
# range is begun before the wall clock is read and ended after, so it has both readings in it, and
# what the profiler takes to note the range itself. That does not grow with the work.


def on_this_cpu(counts, size, rounds):
    """Products by the wall clock, without the profiler and with it, and by its trace."""
    import time

    x, runs = ap.workload.matrix(size), []

    def run():
        taken_s = {f"{count} of {size}": [] for count in counts}
        for _ in range(rounds):
            for count, (name, values_s) in zip(counts, taken_s.items(), strict=True):
                with ap.annotate(name):
                    before_s = time.perf_counter()
                    ap.workload.products(x, count)
                    values_s.append(time.perf_counter() - before_s)
        runs.append(taken_s)

    run()
    run()
    timeline = ap.timeline_of(run)
    _, alone, profiled = runs
    measurements = []
    for name in alone:
        traced_s = [span.duration_s for span in timeline.spans if span.name == name]
        for clock, values_s in {
            WALL: alone[name],
            f"{WALL}, {PROFILER}": profiled[name],
            f"its trace, {PROFILER}": traced_s,
        }.items():
            measurements.append(ap.Measurement(f"{name}: {clock}", tuple(values_s)))
    return ap.Findings(measurements)


here = ap.observed(
    on_this_cpu, name="clocks here", parameters={"counts": [1, 16], "size": 128, "rounds": 7}
)
ap.show(ap.compare(here.measurements, caption="Products of 128 x 128 on this CPU, by two clocks"))

# %%
# When this does not help
# -----------------------
# Clocks that agree can all be wrong about the question: work on a GPU that another process shares,
# or at a clock rate that the next run won't have, is timed well and says little. And an event is
# passed when all before it on *its* stream is done: round work on several streams it needs a wait.
#
# Now you
# -------
# Leave the last `wait_stream` out of `with_copies`: which clock is off, and by how much? Then put
# the launches of 256 products into a CUDA graph: from which length on do the clocks agree now?
