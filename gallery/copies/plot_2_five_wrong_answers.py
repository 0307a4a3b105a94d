# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Six wrong answers
=================

| **You'll do:** six programs that bring results from a GPU to the host, each wrong in one place,
  and each again with its mend.
| **You'll learn:** what each mistake looks like, which tool sees it, and which sees nothing.
| **You need:** nothing but this page; without two GPUs it shows a record and runs on a CPU lane.

**The claim.** Five of these programs return wrong numbers without any error; the sixth returns the
right ones late. CSAN, torch's own finder of races between streams, sees one of the six. Comparing
with the plain way finds four more, a clock finds the last, and each mend is a line or two.
"""

# %%
# Make the race lost
# ------------------
# A race that is lost now and then teaches nothing, so here each is lost every time: a kernel that
# only spins makes late what should have been waited for. And memory that may be read too early
# holds a number that is in no product of these matrices, so that it tells where it was read.

import contextlib
import functools
import io
import threading
from unittest import mock

import torch
from torch.cuda import _gpu_trace

import autopar as ap

BOOK = {"size": 1024, "count": 24, "large": 4000}
HERE = {"size": 256}
LATE_CYCLES = 200_000_000  # of the GPU's clock: a tenth of a second at 2 GHz
ON_HOST, ON_GPU, NEXT_USER, NEXT_RESULT = -1.0, -2.0, -3.0, -4.0  # old contents, and newer ones
TRANSLATED, PIPELINE = "MXNet code translated", "with CopyPipeline"


def on_host(x):
    """Pinned memory for a result, with old contents."""
    return torch.full(x.shape, ON_HOST, pin_memory=True)


def late_product(x):
    """The product of x with itself, in memory that keeps its old contents for a while."""
    with torch.cuda.device(x.device):
        y = torch.full_like(x, ON_GPU)
        ap.synchronize(x.device)
        torch.cuda._sleep(LATE_CYCLES)
        return torch.mm(x, x, out=y)


# %%
# Two between streams
# -------------------
# *Missing event*: nothing tells the second stream when the product is done, so it copies what was
# there before. *Source freed*: the order is right, but Python lets go of `y` while its copy is yet
# to come. Torch knows of `y` on its own stream only, takes the memory for free, and gives it to the
# next tensor there. What is done `if mended` is all that each lacks.


def missing_event(x, mended):
    """Copy on a second stream, beside the computing."""
    host, side = on_host(x), torch.cuda.Stream(x.device)
    y = late_product(x)
    if mended:
        side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):
        host.copy_(y, non_blocking=True)
    ap.synchronize(x.device)
    return host


def source_freed(x, mended):
    """Copy on a second stream, and free the source at once."""
    host, side = on_host(x), torch.cuda.Stream(x.device)
    y = x.mm(x)
    side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE_CYCLES)  # the copies before this one, say
        host.copy_(y, non_blocking=True)
        if mended:
            y.record_stream(side)
    del y
    torch.full_like(x, NEXT_USER)  # takes memory that is free, and writes to it at once
    ap.synchronize(x.device)
    return host


# %%
# Three between GPU and host
# --------------------------
# *Slot reused*: two results go through one pinned slot, and the host comes for the first when the
# second has landed; waiting before it reads doesn't help. *Read early*: `copy_`, and `.to` as well,
# returns before the copy has begun. *Wrong device*: a bare `torch.cuda.synchronize()` waits for the
# current GPU, and the work is on another.


def slot_reused(x, mended):
    """Copy two results, and take the first."""
    slots = [on_host(x) for _ in range(2 if mended else 1)]
    for i, y in enumerate([x.mm(x), torch.full_like(x, NEXT_RESULT)]):
        slots[i % len(slots)].copy_(y, non_blocking=True)
    ap.synchronize(x.device)
    return slots[0]


def read_early(x, mended):
    """Copy without blocking, and read."""
    host = on_host(x)
    host.copy_(late_product(x), non_blocking=True)
    if mended:
        ap.synchronize(x.device)
    return host.clone()


def wrong_device(x, mended):
    """Copy without blocking, wait, and read."""
    host = on_host(x)
    host.copy_(late_product(x), non_blocking=True)
    torch.cuda.synchronize(x.device if mended else None)  # None, as in (), is the current one
    return host.clone()


# %%
# One in time
# -----------
# MXNet's engine starts each copy when its product is there. The same lines in PyTorch, with
# `non_blocking=True`, put all copies on the stream of the products, behind the last of them. The
# results are right, if they are waited for, and the time is the sum. At best, all copies but the
# last hide behind the products.


def copy_to_cpu(y):
    """Copy every result to the CPU, as the book does."""
    return [each.to("cpu", non_blocking=True) for each in y]


def lost_time(count, size):
    """The parts, the translated code, and the same through a pipeline."""
    gpu = ap.gpu(0)
    x = ap.workload.matrix(size, gpu)
    y = ap.workload.products(x, count)
    with ap.CopyPipeline(gpu) as pipeline:
        ways = {
            "run": lambda: ap.workload.products(x, count),
            "copy": lambda: copy_to_cpu(y),
            TRANSLATED: lambda: copy_to_cpu(ap.workload.products(x, count)),
            PIPELINE: lambda: list(pipeline.to_host((x.mm(x) for _ in range(count)), pin=True)),
        }
        checks = {}
        for way in (TRANSLATED, PIPELINE):
            results = ways[way]()
            ap.synchronize(gpu)
            checks[f"{way}: equal"] = ap.workload.equal(results, y)
        measurements = ap.measure_in_turn(ways, devices=[gpu], warmup=1, repeats=7)
        timelines = {way: ap.timeline_of(ways[way]) for way in (TRANSLATED, PIPELINE)}
    return ap.Findings(measurements, timelines, checks)


# %%
# What finds them
# ---------------
# Each result is compared with that of the plain way. Then each program runs again under CSAN, which
# follows who reads and writes which memory of the GPU, on which stream, with what events and waits
# between. It needs no delay: it reports races that were won, too. `TORCH_CUDA_SANITIZER=1` turns it
# on for a whole program; here it is on for a block, in a process of its own, as torch goes on to
# trace all calls when the block is left: that would slow whatever this process measures later.


@contextlib.contextmanager
def csan():
    """CSAN's module, and its tracing of events and memory until the block is left."""
    with contextlib.ExitStack() as block:
        for registry in vars(_gpu_trace).values():
            if isinstance(registry, _gpu_trace.CallbackRegistry):
                block.enter_context(mock.patch.object(registry, "callback_list", []))
        from torch.cuda import _sanitizer  # importing it begins to trace

        yield _sanitizer


def csan_reports(way):
    """How many races CSAN reports; at the first operator that has one it ends the program."""
    with (
        csan() as sanitizer,
        contextlib.redirect_stderr(io.StringIO()),
        sanitizer.CUDASanitizerDispatchMode(),
    ):
        try:
            way()
        except sanitizer.CUDASanitizerErrors as found:
            return len(found.errors)
        finally:
            ap.synchronize()
    return 0


def all_ways(size):
    """Each program as a call, mended first: loading a kernel may wait for all streams."""
    near, far = (ap.workload.matrix(size, ap.gpu(i)) for i in (0, 1))
    programs = [(each, near) for each in (missing_event, source_freed, slot_reused, read_early)]
    ways = {TRANSLATED: lambda: copy_to_cpu(ap.workload.products(near, 2))}
    for program, x in [*programs, (wrong_device, far)]:
        for mended in (True, False):
            name = program.__name__.replace("_", " ") + (", mended" if mended else "")
            ways[name] = functools.partial(program, x, mended)
    return ways


def all_reports(size):
    """CSAN's reports by the program's name."""
    return {name: csan_reports(way) for name, way in all_ways(size).items()}


def six_wrong_answers(size, count, large):
    """Each program mended and as it is: what comes out, and what CSAN says."""
    checks = {"GPU 0 is the current device": torch.cuda.current_device() == 0}
    ways, values = all_ways(size), {}
    for name, way in ways.items():
        if name == TRANSLATED:
            continue
        x, mended = way.args
        result, expected = way(), x.mm(x).cpu()
        ap.synchronize()
        values[f"{name}: is"] = result[0, 0].item()
        values[f"{name}: should be"] = expected[0, 0].item()
        values[f"{name}: wrong share"] = (result != expected).double().mean().item()
        if mended:
            checks[f"{name}: equal"] = torch.equal(result, expected)
    timed, reports = lost_time(count, large), ap.in_fresh_process(all_reports, size)
    values |= {f"{name}: CSAN reports": found for name, found in reports.items()}
    return ap.Findings(timed.measurements, timed.timelines, {**checks, **timed.checks}, values)


# %%
# What comes out?
# ---------------
# The first number of each result, and what it should have been.

gpus = ap.recorded(six_wrong_answers, name="b4_six_wrong_answers", parameters=BOOK, gpus=2)
shorter_s, longer_s = sorted(gpus.measurements[part].min_s for part in ("run", "copy"))
limit_s = longer_s + shorter_s / BOOK["count"]
MENDS = {
    "missing event": "side.wait_stream(stream)",
    "source freed": "y.record_stream(side)",
    "slot reused": "another slot, or a wait before reuse",
    "read early": "a wait before reading",
    "wrong device": "naming the device",
}
reports = {label: gpus.values[f"{label}: CSAN reports"] for label in (*MENDS, TRANSLATED)}
rows = []
for mistake, mend in MENDS.items():
    number, right, wrong = (
        gpus.values[f"{mistake}: {of}"] for of in ("is", "should be", "wrong share")
    )
    finder = "CSAN" if reports[mistake] else "comparing" if wrong else "-"
    rows.append([mistake, f"{number:.4f}, not {right:.4f}", f"{wrong:.0%}", finder, mend])
lost_ms = 1e3 * (gpus.measurements[TRANSLATED].median_s - limit_s)
wrong = not gpus.checks[f"{TRANSLATED}: equal"]
finder = "CSAN" if reports[TRANSLATED] else "a clock"
rows.append([TRANSLATED, f"{lost_ms:.1f} ms late", f"{wrong:.0%}", finder, PIPELINE])
headers = ["mistake", "what comes out", "wrong numbers", "found by", "mend"]
ap.show(ap.tabulate(headers, rows, caption="Six mistakes and their mends", origin=gpus.origin))

# %%
# Read too early: -1 was on the host before the copy, -2 on the GPU before the product. Read too
# late: -3 is what the memory's next user wrote, -4 the next result. In a program of yours these
# numbers look as good as the right ones. That each mended program is right was checked as it ran.

least = min(gpus.values[f"{mistake}: wrong share"] for mistake in MENDS)
of_mends = sum(gpus.values[f"{mistake}, mended: CSAN reports"] for mistake in MENDS)
others = sum(count for mistake, count in reports.items() if mistake != "missing event")
wrong, found, missed, mended = (
    gpus.estimate(lambda _, value=value: value)
    for value in (least, reports["missing event"], others, of_mends)
)
ap.show(
    ap.claim(
        "Each of five mistakes makes most of its numbers wrong.", wrong, at_least=0.5, unit="%"
    ),
    ap.claim("CSAN reports the missing event.", found, at_least=1, unit="races"),
    ap.claim("CSAN reports none of the other five mistakes.", missed, at_most=0, unit="races"),
    ap.claim("CSAN reports none of the mends.", mended, at_most=0, unit="races"),
)

# %%
# CSAN does what it is for: it orders accesses to the GPU's memory by streams and events. Of host
# memory, of memory that was freed and given away, and of time it knows nothing.
#
# How long?
# ---------
# The sixth mistake by the clock. The pipeline holds what the other five lack, too: its copies wait
# for their source and keep it, no slot is reused before it was emptied, no result is handed out
# before it is there, and every wait names its device. *Hidden* is by the times here: of what
# overlap could save, the share that was saved.

limits = dict.fromkeys((TRANSLATED, PIPELINE), limit_s)
caption = f"{BOOK['count']} products and their copies"
translated, piped = (
    gpus.estimate(lambda s, way=way: ap.hidden_share([s["run"], s["copy"]], s[way]))
    for way in (TRANSLATED, PIPELINE)
)
ap.show(
    ap.compare(gpus.measurements, limit_s=limits, caption=caption),
    ap.claim(
        "MXNet code translated to PyTorch hides few of its copies.",
        translated,
        at_most=0.2,
        unit="%",
    ),
    ap.claim(
        "With CopyPipeline in place of that code, most copies hide.", piped, at_least=0.8, unit="%"
    ),
)

# %%
# See it
# ------
# Above, every copy waits behind all products. Below, each runs under the next product.

title = "The same products and copies: translated, and with a pipeline"
ap.show_timelines(
    gpus.timelines,
    "b4_six_wrong_answers",
    title=title,
    caption="What the translated code loses is the time of the copies.",
    limit_s=limit_s,
)

# %%
# Ask CSAN without a GPU
# ----------------------
# CSAN's bookkeeping knows streams, events and tensors by numbers only. So it can check a plan of
# what is to run, on any machine: here the first mistake and its mend.

STREAM, SIDE, Y, DONE = 0, 1, 100, 200


def races(events):
    """What CSAN says of a product on one stream and its copy on another, with events between."""
    from torch.cuda._sanitizer import EventHandler

    handler = EventHandler()
    handler._handle_kernel_launch(STREAM, set(), {Y}, {Y}, "mm", {Y: ["y"]})
    for event in events:
        handler._handle_event_record(event, STREAM)
        handler._handle_event_wait(event, SIDE)
    return [
        f"{access.operator} on stream {access.stream} is {access.type} y"
        for race in handler._handle_kernel_launch(SIDE, {Y}, set(), set(), "copy_", {Y: ["y"]})
        for access in (race.previous_access, race.current_access)
    ]


for events in ([], [DONE]):
    found = ap.in_fresh_process(races, events)
    print(f"events: {len(events)}, accesses in a race: {len(found)}", *found, sep="\n    ")

# %%
# On this machine
# ---------------
# The third mistake needs no GPU. A lane is to empty the slot, and stands at a gate: a host that has
# something else to do. The mend is to wait for it before the slot is filled again.


def slot_on_a_lane(size):
    """One slot for two results, emptied by a lane that is late."""
    x = ap.workload.matrix(size)
    expected, values, checks = x.mm(x), {}, {}
    for mended in (False, True):
        slot, gate = expected.clone(), threading.Event()
        with ap.cpu_lane(name="emptying", kind="copy") as lane:
            lane.submit(gate.wait)
            emptied = lane.submit(slot.clone)
            if mended:
                gate.set()
                emptied.wait()
            slot.fill_(NEXT_RESULT)
            gate.set()
            wrong = (emptied.result() != expected).double().mean().item()
        values["mended" if mended else "slot reused"] = wrong
        checks["mended: equal" if mended else "reused: all wrong"] = wrong == (not mended)
    return ap.Findings([], checks=checks, values=values)


here = ap.observed(slot_on_a_lane, name="a slot reused on a CPU lane", parameters=HERE)
rows = [(label, f"{share:.0%}") for label, share in here.values.items()]
ap.show(ap.tabulate(["one slot, two results", "wrong numbers"], rows, origin=here.origin))

# %%
# When this does not help
# -----------------------
# A delay shows the race that it was put beside, and no other. Comparing needs a plain way that is
# right, and a test that passes once proves little: without the delay most of these programs are
# right on most days. That is why the mends belong into one place that is tested with everything
# late in turn, and not into every program.
#
# Now you
# -------
# With a GPU, set `LATE_CYCLES` to 0. Which programs come out right now, and do they always? Then
# run this page with `TORCH_CUDA_SANITIZER=1`: where does it stop?
