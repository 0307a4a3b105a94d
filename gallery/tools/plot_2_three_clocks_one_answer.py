# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Read three clocks, get one answer
=================================

| **You'll do:** time the same work by the wall clock, by CUDA events and by two profilers.
| **You'll learn:** from which length on they agree, and what each of them has in its time.
| **You need:** 8 minutes, and no GPU: what needs one is shown from a record. Read
  :doc:`plot_1_verify_with_nsight` first; :doc:`/how_we_measure` says how all pages measure.

Where the GPU works for long enough, all clocks agree. For short work they can't: the wall clock has
the launch and the wait in its time, a pair of events has part of the launch, and only a profiler
has the kernel alone. A clock is not wrong then. It answers another question.
"""

# %%
# Two clocks around one kernel are too many
# -----------------------------------------
# The tempting way to time a *kernel*, a function that runs on the GPU, is to stop the wall clock
# before and after it. A pair of *events* seems better, marks that the GPU itself stamps with its
# time (see :class:`torch.cuda.Event`). Here both clocks stop for the same work.

import time

import torch

import autopar as ap


def by_both(work):
    """Seconds by the wall clock and by events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    ap.synchronize()
    before_s = time.perf_counter()
    start.record()
    work()
    end.record()
    ap.synchronize()
    return time.perf_counter() - before_s, start.elapsed_time(end) / 1e3


# %%
# The wall clock has the first launch and the wait in its time: some tens of microseconds that are
# not the GPU's. The first event is reached while the GPU is idle, so the first launch lies between
# both. Neither of the two grows with the work.
#
# Ask a profiler for the kernel alone
# -----------------------------------
# The work is one kernel, then ever more, and at last the products and copies of
# :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy`. The program runs three times: without a
# tool, under `torch.profiler <https://docs.pytorch.org/docs/stable/profiler.html>`_, and under
# Nsight Systems.

# Folded: the program, and the measurement
import tempfile
from dataclasses import replace
from pathlib import Path

from autopar.records import nsight

WORK = {"counts": [1, 4, 16, 64, 256], "size": 1024, "book": [20, 4000], "rounds": 5}
LONG, WALL, EVENTS, TRACE = "products and copies", "wall clock", "events", "trace"
NONE, PROFILER, NSIGHT = "no tool", "torch.profiler", "Nsight Systems"


def clocked(counts, size, book, rounds, trace):
    """Both clocks for each work, in rounds; and a trace of torch.profiler, if it has a path."""
    gpu, taken_s = ap.gpu(0), []
    x, large = (ap.workload.matrix(side, gpu) for side in (size, book[1]))
    buffers = [torch.full((book[1], book[1]), torch.nan).pin_memory() for _ in range(book[0])]
    works = {f"{count} of {size}": (lambda n=count: ap.workload.products(x, n)) for count in counts}
    side = torch.cuda.Stream(gpu)

    def with_copies():
        for buffer in buffers:
            y = large.mm(large)
            side.wait_event(torch.cuda.current_stream(gpu).record_event())
            with torch.cuda.stream(side):
                buffer.copy_(y, non_blocking=True)
            y.record_stream(side)
        torch.cuda.current_stream(gpu).wait_stream(side)  # or the last event would come too early

    def run():
        for _ in range(rounds):
            for name, work in works.items():
                with ap.annotate(name):
                    taken_s.append((name, *by_both(work)))

    works["products and copies"] = with_copies
    run()
    equal = ap.workload.equal(buffers, [large.mm(large)] * len(buffers))
    taken_s.clear()
    if trace:
        ap.write_trace(ap.timeline_of(run), trace)
    else:
        run()
    return taken_s, equal


def three_clocks(counts, size, book, rounds):
    """All clocks without a tool and under each."""
    measurements, timelines, checks = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        work, export = (counts, size, book, rounds), Path(folder, "nsight.sqlite")
        trace = f"{folder}/profiler.json"
        returned = {
            NONE: ap.in_fresh_process(clocked, *work, ""),
            PROFILER: ap.in_fresh_process(clocked, *work, trace),
            NSIGHT: nsight.systems(clocked, *work, "", export=export),
        }
        traces = {PROFILER: ap.read_trace(trace), NSIGHT: ap.read_trace(export)}
    for tool, (taken_s, equal) in returned.items():
        checks[f"{tool}: equal"] = equal
        for name, wall_s, events_s in taken_s:
            measurements.setdefault(f"{tool}, {name}, {WALL}", []).append(wall_s)
            measurements.setdefault(f"{tool}, {name}, {EVENTS}", []).append(events_s)
            if tool in traces:
                seen = traces[tool].within(name)[-rounds:]
                measurements[f"{tool}, {name}, {TRACE}"] = [run.makespan_s for run in seen]
    timelines = {tool: trace.within(LONG)[-1] for tool, trace in traces.items()}
    timed = [ap.Measurement(label, tuple(values_s)) for label, values_s in measurements.items()]
    return ap.Findings(timed, timelines, checks)


# %%
# In the picture at the top, compare both panels: the same rows, the same bars, about the same
# length. Two tools that were written apart see the same.

gpu = ap.recorded(three_clocks, name="b9_three_clocks", parameters=WORK, programs=["nsys"])
ap.show_timelines(gpu.timelines, "b9_two_traces", title="The same work in two traces")

# %%
# Long work: all clocks agree
# ---------------------------
# Compare the medians from top to bottom: they are nearly the same. The *spread (IQR)* is how far
# the middle half of the samples lies apart.

# Folded: the table of long work
CLOCKS = [(tool, clock) for tool in (NONE, PROFILER, NSIGHT) for clock in (WALL, EVENTS)]
CLOCKS += [(PROFILER, TRACE), (NSIGHT, TRACE)]
times = {f"{tool}, {LONG}, {clock}": f"{clock}, {tool}" for tool, clock in CLOCKS}
shown = [replace(gpu.measurements[label], label=name) for label, name in times.items()]


def apart(seconds):
    walls = {label: f"{label.split(', ')[0]}, {LONG}, {WALL}" for label in times}
    return max(abs(seconds[label] / seconds[wall] - 1) for label, wall in walls.items())


between = gpu.estimate(lambda s: max(s[t] for t in times) / min(s[t] for t in times) - 1)
ap.show(
    ap.compare(shown, caption="Products and copies by all clocks"),
    ap.claim("All clocks agree on long runs to 5 %.", gpu.estimate(apart), at_most=0.05, unit="%"),
    ap.claim("Long runs take about as long under each tool.", between, at_most=0.1, unit="%"),
)

# %%
# Short work: each clock has something else in it
# -----------------------------------------------
# Compare the first row with the last: for one kernel the wall clock and the events have far more
# than the kernel in their time, and for hundreds next to nothing is left of the difference. One
# kernel comes first in each round, right after the long work, and may pay for what that leaves
# behind; what this is was not measured.

# Folded: the table of short work
works = [f"{count} of {WORK['size']}" for count in WORK["counts"]]
columns = {"wall clock": (NONE, WALL), "events": (NONE, EVENTS), "Nsight's trace": (NSIGHT, TRACE)}
rows = []
for count, work in zip(WORK["counts"], works, strict=True):
    by = (gpu.measurements[f"{tool}, {work}, {clock}"].median_s for tool, clock in columns.values())
    rows.append([f"{count}", *(f"{1e6 * seconds:,.0f} µs" for seconds in by)])


def too_long(seconds, clock, work):
    return seconds[f"{NONE}, {work}, {clock}"] / seconds[f"{NSIGHT}, {work}, {TRACE}"] - 1


one = gpu.estimate(lambda s: too_long(s, WALL, works[0]))
many = gpu.estimate(lambda s: max(abs(too_long(s, c, works[-1])) for c in (WALL, EVENTS)))
more = "For one kernel the wall clock shows at least a fifth too much."
ap.show(
    ap.tabulate(["kernels", *columns], rows, caption="Medians", origin=gpu.origin),
    ap.claim(more, one, at_least=0.2, unit="%"),
    ap.claim("For 256 kernels both clocks have little else in them.", many, at_most=0.05, unit="%"),
)

# %%
# When this does not help
# -----------------------
# On a GPU that another process shares, a time says little of the next run, whichever clock it is
# of. And an event is passed when all before it on *its* stream is done, so work on several streams
# needs a wait before it.
#
# On this machine
# ---------------
# On a CPU there are two of these clocks: the wall clock, and the range in the profiler's trace.


def on_this_cpu(count, size, rounds):
    x, wall_s = ap.workload.matrix(size), []

    def run():
        for _ in range(rounds):
            with ap.annotate("products"):
                before_s = time.perf_counter()
                ap.workload.products(x, count)
                wall_s.append(time.perf_counter() - before_s)

    ranges = ap.timeline_of(run).select("host")
    traced = ap.Measurement(TRACE, tuple(span.duration_s for span in ranges))
    return ap.Findings([ap.Measurement(WALL, tuple(wall_s)), traced])


PRODUCTS = {"count": 16, "size": 128, "rounds": 7}
here = ap.observed(on_this_cpu, name="clocks here", parameters=PRODUCTS)
ap.show(ap.compare(here.measurements, caption="16 products of 128 x 128 on this CPU"))

# %%
# Now you
# -------
# Leave out the line with `wait_stream`. Which clock is off then, and by how much?
#
# .. dropdown:: A hint
#
#     On which stream is the last event, and on which are the copies?
#
# .. dropdown:: An answer
#
#     The events: the last one is passed with the last product, so they miss one copy.
#
#     .. code-block:: python
#
#         def missing_share(count, product_s, copy_s):
#             return copy_s / (count * product_s + copy_s)
