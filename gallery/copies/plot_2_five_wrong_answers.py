# pip install "autopar @ git+https://github.com/autopar/autopar"
"""
Spot the missing line: five wrong answers
=========================================

| **You'll do:** run five short programs that copy a result to the host, and lack one line each.
| **You'll learn:** how each mistake looks, which real project has made it, and what finds it.
| **You need:** 10 minutes, and no GPU: what needs two is shown from a record. Read
  :doc:`plot_1_where_a_copys_time_goes` first, :doc:`plot_3_copy_both_ways_while_you_compute` next.

No line of these programs looks wrong, and none of them raises an error. Each copies without
blocking, and does not wait for something that it needs. What looks like perfect overlap in the
picture is a copy of a product that is not there yet.
"""

# %%
# A race that is lost every time
# ------------------------------
# In a *race* the result depends on who comes first. Here the product is made to come late, so that
# each race is lost. What may be read too early holds a number that no product has.

from functools import partial

import torch

import autopar as ap

BOOK = {"size": 1024, "large": 4000}
LATE_CYCLES = 200_000_000  # of the GPU's clock: a tenth of a second at 2 GHz
ON_HOST, ON_GPU, NEXT_USER, NEXT_RESULT = -1.0, -2.0, -3.0, -4.0  # two old, two newer


def on_host(x):
    return torch.full(x.shape, ON_HOST, pin_memory=True)


def late_product(x):  # into memory that keeps its old contents for a while
    y = torch.full_like(x, ON_GPU)
    ap.synchronize(x.device)
    ap.workload.delay(x.device, LATE_CYCLES)
    return torch.mm(x, x, out=y)


# %%
# 1: nothing tells the copy when to begin
# ---------------------------------------
# Two *streams* are two queues of a GPU, and neither waits for the other by itself. This program and
# the next ones lack what they do ``if mended``.


def missing_event(x, mended, product=late_product):
    host, side = on_host(x), torch.cuda.Stream(x.device)
    y = product(x)
    if mended:
        side.wait_stream(torch.cuda.current_stream(x.device))  # <- the missing line
    with torch.cuda.stream(side):
        host.copy_(y, non_blocking=True)
    ap.synchronize(x.device)
    return host


# %%
# The copy brings ``ON_GPU``, the old contents. In the wild: a `proposed mend
# <https://github.com/huggingface/diffusers/pull/13502>`_ of diffusers adds this wait, and `without
# one <https://github.com/ROCm/pytorch/issues/3194>`_ products were wrong.
#
# 2: the source is gone before it is read
# ---------------------------------------
# Python frees ``y`` while its copy is yet to come. Torch knows of the stream on which ``y`` was
# made, and of no other, so it gives the memory to the next tensor there.


def source_freed(x, mended):
    host, side = on_host(x), torch.cuda.Stream(x.device)
    y = x.mm(x)
    side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):
        ap.workload.delay(x.device, LATE_CYCLES)  # as if copies stood before this one
        host.copy_(y, non_blocking=True)
        if mended:
            y.record_stream(side)  # <- the missing line
    del y
    torch.full_like(x, NEXT_USER)
    ap.synchronize(x.device)
    return host


# %%
# The copy brings ``NEXT_USER``. In the wild: in `torchrec
# <https://github.com/meta-pytorch/torchrec/pull/4231>`_ the lack of this line gave NaN.
#
# 3: the next result takes the same place
# ---------------------------------------
# Two results go through one buffer, a *slot*. The host comes for the first when the second has
# landed, and its wait before it reads doesn't help.


def slot_reused(x, mended):
    slots = [on_host(x)]
    if mended:
        slots.append(on_host(x))  # <- the missing line
    for i, y in enumerate([x.mm(x), torch.full_like(x, NEXT_RESULT)]):
        slots[i % len(slots)].copy_(y, non_blocking=True)
    ap.synchronize(x.device)
    return slots[0]


# %%
# The slot holds ``NEXT_RESULT``. In the wild: vLLM could write to tensors that were being copied. A
# `first mend <https://github.com/vllm-project/vllm/pull/24527>`_ did not wait for all copies, and a
# `second one <https://github.com/vllm-project/vllm/pull/25279>`_ followed.
#
# 4: the host reads before the copy
# ---------------------------------
# With ``non_blocking=True`` a copy to the host returns before it has begun.


def read_early(x, mended):
    host = on_host(x)
    host.copy_(late_product(x), non_blocking=True)
    if mended:
        ap.synchronize(x.device)  # <- the missing line
    return host.clone()


# %%
# The host reads ``ON_HOST``. In the wild: `vLLM <https://github.com/vllm-project/vllm/pull/36013>`_
# could read the number of accepted tokens before its copy had arrived.
#
# 5: the wait is for another GPU
# ------------------------------
# A bare :func:`torch.cuda.synchronize` waits for the *current* GPU, GPU 0. Here ``x`` is on GPU 1.


def wrong_device(x, mended):
    host = on_host(x)
    host.copy_(late_product(x), non_blocking=True)
    torch.cuda.synchronize(x.device if mended else None)  # <- x.device is missing
    return host.clone()


# %%
# The host reads ``ON_HOST`` again. In the wild: `gpt-fast
# <https://github.com/meta-pytorch/gpt-fast/pull/113>`_ waited like this for any GPU.
#
# Five wrong answers, and no error
# --------------------------------
# Each result is compared with the plain product. Each program runs under `CSAN
# <https://docs.pytorch.org/docs/stable/cuda._sanitizer.html>`_, too, a tool of torch's that follows
# what streams read and write. In the table, look at the last column: only the row *missing event*
# has CSAN, which follows neither the host's memory nor memory that was freed and given away.


# Folded: the measurement and the table
def programs():
    five = (missing_event, source_freed, slot_reused, read_early, wrong_device)
    return {program.__name__.replace("_", " "): program for program in five}


def outcome(name, mended, size):
    x = ap.workload.matrix(size, ap.gpu(1 if name == "wrong device" else 0))
    result, expected = programs()[name](x, mended), x.mm(x).cpu()
    ap.synchronize()
    firsts = {"is": result[0, 0].item(), "should be": expected[0, 0].item()}
    return firsts | {"wrong share": (result != expected).double().mean().item()}


def square(x):
    return x.mm(x)


def is_reported(*arguments):  # whether CSAN ends the program, in a process of its own
    try:
        ap.in_fresh_process(outcome, *arguments, environment={"TORCH_CUDA_SANITIZER": "1"})
    except RuntimeError as error:
        if "CUDASanitizerErrors" not in str(error):
            raise
        return True
    return False


def five_wrong_answers(size, large):
    checks, values = {"GPU 0 is the current device": torch.cuda.current_device() == 0}, {}
    for name in programs():  # mended first, as to load a kernel may wait for streams
        for label, mended in ((f"{name}, mended", True), (name, False)):
            brought = outcome(name, mended, size)
            brought["CSAN reports"] = is_reported(name, mended, size)
            values |= {f"{label}: {what}": number for what, number in brought.items()}
        checks[f"{name}, mended: equal"] = values[f"{name}, mended: wrong share"] == 0
    x = ap.workload.matrix(large, ap.gpu(0))
    checks["large, mended: equal"] = missing_event(x, True, square).equal(square(x).cpu())
    ways = {"missing event": False, "missing event, mended": True}
    seen = {label: partial(missing_event, x, mended, square) for label, mended in ways.items()}
    return ap.Findings([], ap.timelines_of(seen), checks, values)


gpus = ap.recorded(five_wrong_answers, name="b4_five_wrong_answers", parameters=BOOK, gpus=2)
rows, values = [], gpus.values
for name in programs():
    first, right = (f"{values[f'{name}: {which}']:.4f}" for which in ("is", "should be"))
    finder = "CSAN, comparing" if values[f"{name}: CSAN reports"] else "comparing"
    rows.append([name, first, right, f"{values[f'{name}: wrong share']:.0%}", finder])
headers = ["mistake", "first number", "right", "wrong numbers", "found by"]
least = gpus.estimate(lambda _: min(values[f"{name}: wrong share"] for name in programs()))
reports = sum(number for label, number in values.items() if label.endswith("CSAN reports"))
found = values["missing event: CSAN reports"]
race, others = (gpus.estimate(lambda _, n=n: n) for n in (found, reports - found))
ap.show(
    ap.tabulate(headers, rows, caption="Five mistakes", origin=gpus.origin),
    ap.claim("Each mistake makes most of its numbers wrong.", least, at_least=0.5, unit="%"),
    ap.claim("CSAN reports the missing event.", race, at_least=1, unit="races"),
    ap.claim("It reports no other mistake, and no mend.", others, at_most=0, unit="races"),
)

# %%
# In the picture at the top, compare where the orange bar begins in the two panels. No delay is
# needed here, for a large product takes long enough by itself.

title = "A copy that does not wait for its product, and one that does"
ap.show_timelines(gpus.timelines, "b4_five_wrong_answers", title=title)

# %%
# When this does not help
# -----------------------
# A delay shows the race that it was put beside, and no other. So such waits belong in one place
# that is tested for all: the pipeline of :doc:`plot_3_copy_both_ways_while_you_compute`. A sixth
# mistake is only slow: :doc:`/auto_gallery/first_steps/plot_4_compute_and_copy`.
#
# On this machine
# ---------------
# The third mistake needs no GPU: a *lane*, a queue with a thread of its own, empties the slot.


def on_a_lane(size):
    x, is_right = ap.workload.matrix(size), {}
    for label in ("as it is", "mended"):
        slot = x.mm(x)
        with ap.cpu_lane(name="emptying", kind="copy") as lane:
            lane.submit(ap.workload.products, x, 100)  # makes the lane late
            emptied = lane.submit(slot.clone)
            if label == "mended":
                emptied.wait()  # <- the missing line
            slot.fill_(NEXT_RESULT)
            is_right[label] = emptied.result().equal(x.mm(x))
    return ap.Findings([], checks={"mended": is_right["mended"]}, values=is_right)


here = ap.observed(on_a_lane, name="a slot on a CPU lane", parameters={"size": 256})
rows = [(label, "right" if is_right else "wrong") for label, is_right in here.values.items()]
ap.show(ap.tabulate(["one slot, two results", "first result"], rows, origin=here.origin))

# %%
# Now you
# -------
# Write a function that sends many results through one slot to a lane. When has it to wait?
#
# .. dropdown:: A hint
#
#     What must be over before the slot is written to? Right after ``submit`` is too early to wait.
#
# .. dropdown:: An answer
#
#     Just before it writes: it can make its next result while the lane empties the slot.
#
#     .. code-block:: python
#
#         def send(results, slot, lane):
#             emptied = []
#             for result in results:
#                 if emptied:
#                     emptied[-1].wait()
#                 slot.copy_(result)
#                 emptied.append(lane.submit(slot.clone))
#             return [handle.result() for handle in emptied]
