# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Spot the missing line: five wrong answers
=========================================

| **You'll do:** run five short programs that copy a result to the host, and lack one line each.
| **You'll learn:** how each mistake looks, which real project has made it, and what finds it.
| **You need:** 10 minutes, and no GPU: the part for two GPUs is shown from a record. Before this:
  :doc:`plot_1_where_a_copys_time_goes`. Next: :doc:`plot_3_copy_both_ways_while_you_compute`.

All five run without an error, and give wrong numbers. Callers of 1 to 3 wait for the copy at once.
"""

# %%
# 1: nothing tells the copy when to begin
# ---------------------------------------
# Two *streams* are two queues of a GPU, and neither waits for the other: in `diffusers
# <https://github.com/huggingface/diffusers/pull/13502>`_ it was computing that did not wait.
import torch

import autopar as ap


def missing_event(x, mended):
    host, side, y = on_host(x), torch.cuda.Stream(x.device), late_product(x)  # on_host: pinned
    if mended:
        side.wait_stream(torch.cuda.current_stream(x.device))  # <- the missing line
    with torch.cuda.stream(side):
        return host.copy_(y, non_blocking=True)


# %%
# In :timeline:`missing event` the copy begins before its product ends, and in
# :timeline:`missing event, mended` it waits.
#
# 2: the source is gone before it is read
# ---------------------------------------
# Torch knows only the stream on which ``y`` was made. Once the program drops ``y``, the next tensor
# there gets its memory. `torchrec <https://github.com/meta-pytorch/torchrec/pull/4218>`_ got NaN.
def source_freed(x, mended):
    host, side, y = on_host(x), torch.cuda.Stream(x.device), x.mm(x)
    side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):
        ap.workload.delay(x.device, LATE_CYCLES)  # a tenth of a second, as if copies stood here
        host.copy_(y, non_blocking=True)
        if mended:
            y.record_stream(side)  # <- the missing line
    del y
    torch.zeros_like(x)
    return host


# %%
# 3: the next result takes the same place
# ---------------------------------------
# Two results go through one buffer, a *slot*. `vLLM
# <https://github.com/vllm-project/vllm/pull/25279>`__ mended this twice, for its inputs.
def slot_reused(x, mended):
    slots = [on_host(x) for _ in range(2 if mended else 1)]  # <- one is missing
    for i, y in enumerate([x.mm(x), torch.zeros_like(x)]):
        slots[i % len(slots)].copy_(y, non_blocking=True)
    return slots[0]


# %%
# 4 and 5: the host reads before the copy
# ---------------------------------------
# The call returns before the copy has begun. `vLLM
# <https://github.com/vllm-project/vllm/pull/36013>`__ read the result in its next step. `gpt-fast
# <https://github.com/meta-pytorch/gpt-fast/pull/113>`_ waited for the *current* GPU, then timed.
def read_early(x, mended):
    host = on_host(x).copy_(late_product(x), non_blocking=True)
    if mended:
        ap.synchronize(x.device)  # <- the missing line
    return host.clone()


def wrong_device(x, mended):  # x is on GPU 1
    host = on_host(x).copy_(late_product(x), non_blocking=True)
    torch.cuda.synchronize(x.device if mended else None)  # <- x.device is missing
    return host.clone()


# %%
# Five wrong answers, and no error
# --------------------------------

# Folded: the measurement
BOOK, LATE_CYCLES = {"size": 1024, "large": 4000}, 200_000_000  # a tenth of a second at 2 GHz


def on_host(x):
    return torch.full(x.shape, torch.nan, pin_memory=True)


def late_product(x):  # a large one takes long by itself
    y = torch.full_like(x, torch.nan)
    ap.synchronize(x.device)
    ap.workload.delay(x.device, LATE_CYCLES if len(x) < 4000 else 1)
    return torch.mm(x, x, out=y)


def wrong_share(name, mended, size):
    five = (missing_event, source_freed, slot_reused, read_early, wrong_device)
    x = ap.workload.matrix(size, ap.gpu(1 if name == "wrong device" else 0))
    result = {one.__name__.replace("_", " "): one for one in five}[name](x, mended)
    ap.synchronize()
    return (result != x.mm(x).cpu()).double().mean().item()


def five_wrong_answers(size, large):
    values, x = {}, ap.workload.matrix(large, ap.gpu(0))
    for name in FIVE:  # mended first, as to load a kernel may wait for streams
        for label, mended in {f"{name}, mended": True, name: False}.items():
            values[f"{label}: wrong share"] = wrong_share(name, mended, size)
            reports = ap.csan_reports(wrong_share, name, mended, size)
            values[f"{label}: CSAN reports"] = int(reports)
    checks = {f"{name}, mended": values[f"{name}, mended: wrong share"] == 0 for name in FIVE}
    ways = {"missing event": lambda: missing_event(x, False)}
    ways["missing event, mended"] = lambda: missing_event(x, True)
    return ap.Findings([], ap.timelines_of(ways), checks, values)


FIVE = "missing event", "source freed", "slot reused", "read early", "wrong device"
gpus = ap.recorded(five_wrong_answers, name="b4_five_wrong_answers", parameters=BOOK, gpus=2)
beside = [f"{way!r}: {100 * run.hidden():.0f} %" for way, run in gpus.timelines.items()]
look = f"Look at how much of the copy runs beside computing: {'; '.join(beside)}."
ap.show_timelines(gpus.timelines, "b4_five_wrong_answers", title="Read too early", caption=look)

# %%
# Reports are those of CSAN, PyTorch's CUDA Sanitizer: where there are 0, it missed a wrong program.
wrong = {name: gpus.values[f"{name}: wrong share"] for name in FIVE}
rows = [[it, f"{wrong[it]:.0%}", f"{gpus.values[f'{it}: CSAN reports']:g}"] for it in FIVE]
least = gpus.estimate(lambda _: min(wrong.values()))
reported = max(FIVE, key=lambda it: gpus.values[f"{it}: CSAN reports"])
ap.show(
    ap.tabulate(["mistake", "wrong", "reports"], rows, origin=gpus.origin, highlight=[reported]),
    ap.claim("Each mistake makes most of its numbers wrong.", least, at_least=0.5, unit="%"),
)

# %%
# When this does not help
# -----------------------
# The third fails by itself, the others because each run delays their product or copy. In a real
# program chance decides.
#
# Now you
# -------
# Mend the third program another way: one slot is enough, if the host reads it in time.
#
# .. dropdown:: A hint
#
#     A copy that is not `non_blocking` returns when all is there. What would `clone` do then?
#
# .. dropdown:: An answer
#
#     .. code-block:: python
#
#         def read_in_time(x, slot):
#             return [slot.copy_(y).clone() for y in (x.mm(x), torch.zeros_like(x))][0]
