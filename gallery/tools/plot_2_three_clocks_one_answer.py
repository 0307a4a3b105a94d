# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Read three clocks, get one answer
=================================

| **You'll do:** time the same work by the wall clock, by CUDA events and by two profilers.
| **You'll learn:** from which length on they agree, and what each of them has in its time.
| **You need:** 8 minutes, and no GPU: the GPU's part is shown from a record. Before this:
  :doc:`plot_1_verify_with_nsight`. Next: :doc:`/auto_gallery/graphs/plot_1_tasks_that_depend`.

For long work all clocks agree. For short work the wall clock has the launch and the wait in its
time, a pair of events has part of the launch, and only a profiler has the kernel alone.
"""

# %%
# Around one kernel a clock times the launch, too
# -----------------------------------------------
# The tempting way to time a *kernel*, a function that runs on the GPU, is the wall clock. A pair of
# *events* seems better: the GPU stamps these marks with its time (see :class:`torch.cuda.Event`).

import tempfile
import time
from pathlib import Path

import torch

import autopar as ap
from autopar.records import nsight


def by_both(work):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    ap.synchronize()
    before_s = time.perf_counter()
    start.record()
    work()
    end.record()
    ap.synchronize()
    return {"wall clock": time.perf_counter() - before_s, "events": start.elapsed_time(end) / 1e3}


# %%
# The wall clock has the first launch and the wait in its time. The first event is reached while the
# GPU is idle, so the first launch lies between both. The shorter the work, the larger their
# share; the median of many runs has it, too.
#
# Ask a profiler for the kernel alone
# -----------------------------------
# A profiler is told by the GPU itself when each kernel began and ended. It makes launches slower,
# so the time of a whole program is better taken without it. The work is one kernel, then more, and
# at last products and copies, as in :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy`. It
# runs without a tool, under `torch.profiler <https://docs.pytorch.org/docs/stable/profiler.html>`_,
# and under Nsight.

# Folded: the program, and the measurement
WORK = {"counts": [1, 4, 16, 64, 256], "size": 1024, "book": [20, 4000], "rounds": 5}
LONG, PROFILER, NSIGHT = "products and copies", "torch.profiler", "Nsight Systems"


def clocked(counts, size, book, rounds, trace=""):
    x, large = (ap.workload.matrix(side, ap.gpu(0)) for side in (size, book[1]))
    buffers = [torch.full((book[1], book[1]), torch.nan).pin_memory() for _ in range(book[0])]
    works = {f"{n} of {size}": lambda n=n: ap.workload.products(x, n) for n in reversed(counts)}
    main, side, taken_s = torch.cuda.current_stream(), torch.cuda.Stream(), {}

    def with_copies():
        for buffer in buffers:
            y = large.mm(large)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                buffer.copy_(y, non_blocking=True)
            y.record_stream(side)
        main.wait_stream(side)  # or the last event would come too early

    def run():
        for _ in range(rounds):
            for name, work in {**works, LONG: with_copies}.items():
                with ap.annotate(name):
                    for clock, time_s in by_both(work).items():
                        taken_s.setdefault(f"no tool, {name}, {clock}", []).append(time_s)

    run()
    taken_s.clear()
    ap.write_trace(ap.timeline_of(run), trace) if trace else run()
    return taken_s, ap.workload.equal(buffers, [large.mm(large)] * len(buffers))


def three_clocks(counts, size, book, rounds):
    checks, work = {}, (counts, size, book, rounds)
    with tempfile.TemporaryDirectory() as folder:
        trace, export = f"{folder}/profiler.json", Path(folder, "nsight.sqlite")
        taken_s, checks["no tool: equal"] = ap.in_fresh_process(clocked, *work)
        _, checks[f"{PROFILER}: equal"] = ap.in_fresh_process(clocked, *work, trace)
        _, checks[f"{NSIGHT}: equal"] = nsight.systems(clocked, *work, export=export)
        traces = {PROFILER: ap.read_trace(trace), NSIGHT: ap.read_trace(export)}
    for name in [*(f"{n} of {size}" for n in counts), LONG]:
        for tool, trace in traces.items():
            runs = trace.within(name)[-rounds:]
            taken_s[f"{tool}, {name}, trace"] = [run.makespan_s for run in runs]
    seen = {tool: trace.within(LONG)[-1] for tool, trace in traces.items()}
    return ap.Findings([ap.Measurement(k, tuple(v)) for k, v in taken_s.items()], seen, checks)


# %%
# In the picture at the top, compare both panels: two independent tools see the same.
gpu = ap.recorded(three_clocks, name="b9_three_clocks", parameters=WORK, programs=["nsys"])
ap.show_timelines(gpu.timelines, "b9_two_traces", title="The same work in two traces")

# %%
# Long work brings all clocks together
# ------------------------------------
# In the first row in bold, compare the two clocks with the two profilers: for one kernel they have
# far more than the kernel in it. In the other one, and in the row below it, all are about alike.

# Folded: the table and the claims
WORKS = [f"{count} of {WORK['size']}" for count in WORK["counts"]] + [LONG]


CLOCKS = ["no tool, {}, wall clock", "no tool, {}, events"]
CLOCKS += [f"{tool}, {{}}, trace" for tool in (PROFILER, NSIGHT)]


def apart(s, work):
    times_s = [s[clock.format(work)] for clock in CLOCKS]
    return max(times_s) / min(times_s) - 1


us = {label: f"{1e6 * one.median_s:,.0f} µs" for label, one in gpu.measurements.items()}
rows = [[work, *(us[clock.format(work)] for clock in CLOCKS)] for work in WORKS]
headers = ["products of side", "wall clock", "events", PROFILER, NSIGHT]
one = gpu.estimate(lambda s: apart(s, WORKS[0]))
long = gpu.estimate(lambda s: max(apart(s, work) for work in WORKS[-2:]))
ap.show(
    ap.tabulate(headers, rows, caption="Median times", origin=gpu.origin, highlight=WORKS[::4]),
    ap.claim("For one kernel the clocks are at least a fifth apart.", one, at_least=0.2, unit="%"),
    ap.claim("From 256 kernels on they agree to a tenth.", long, at_most=0.1, unit="%"),
)

# %%
# When this does not help
# -----------------------
# An event is passed when all before it on *its* stream is done: wait for other streams first.
#
# Now you
# -------
# Leave out the last line with `wait_stream`. Which clock is off then, and by how much?
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
