"""Run pipelines under CSAN, torch's finder of races between streams; print as JSON what it says.

50 random pipelines that must have none, then races made on purpose. CSAN sees the operators of
threads that are told to show them, and compares accesses by the address at which a tensor begins.
So it sees a missing wait between the caller's stream and an item's first chunk. It does not see

- host memory: slots that are reused early, results that are handed out early;
- memory that is taken by `empty_like`, as for a batch of one tensor, before it is written to;
- the chunks of an item after the first, which begin elsewhere;
- freed memory that something still uses.

These are tested by poison and delays, in test_pipeline_gpu.py and its neighbours.

Usage: python transfer_csan.py
"""

import contextlib
import functools
import json
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import torch
from torch.cuda import _gpu_trace as gpu_trace
from torch.cuda import _sanitizer as csan
from torch.utils._python_dispatch import TorchDispatchMode

from autopar import CopyPipeline
from autopar.transfer import to_host as to_host_parcels
from autopar.transfer.copy_stream import CudaCopyStream

DEVICE = torch.device("cuda", 0)
LARGE = 2**22  # numbers: too large to travel with others
VERBS = ["to_host", "kept", "given", "out", "out pinned", "pin", "async", "prefetch", "map"]
VERBS.append("prefetch pinned")


# -- CSAN for many threads ------------------------------------------------------------------------


class Handler(csan.EventHandler):
    """CSAN's bookkeeping, one thread at a time; it counts reports and the pipelines' copies."""

    def __init__(self):
        super().__init__()
        self.lock = threading.RLock()  # a tensor that is freed meanwhile calls it again
        self.reports = 0
        self.copies = 0
        self.trouble = []  # torch only logs what goes wrong in here

    def _handle_kernel_launch(self, *args):
        errors = super()._handle_kernel_launch(*args)
        self.reports += len(errors)
        return errors


def _locked(method):
    @functools.wraps(method)
    def locked(self, *args):
        with self.lock:
            try:
                return method(self, *args)
            except Exception as error:
                self.trouble.append(f"{method.__name__}: {error!r}")
                raise

    return locked


for _name in dir(Handler):
    if _name.startswith("_handle_"):
        setattr(Handler, _name, _locked(getattr(Handler, _name)))


def new_dispatch():
    """CSAN's dispatch mode, with this handler as the only one that torch calls."""
    for registry in vars(gpu_trace).values():
        if isinstance(registry, gpu_trace.CallbackRegistry):
            registry.callback_list.clear()
    with mock.patch.object(csan, "EventHandler", Handler):
        return csan.CUDASanitizerDispatchMode()


class Shown(TorchDispatchMode):
    """Shows CSAN the operators of the thread that enters it: a mode holds for one thread."""

    def __init__(self, dispatch):
        super().__init__()
        self.dispatch = dispatch

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.record_stream.default:  # no access; some versions count it
            return func(*args, **(kwargs or {}))
        return self.dispatch.__torch_dispatch__(func, types, args, kwargs)


def shown_copies(dispatch):
    """Let CSAN see all copies of pipelines, whichever thread queues them."""
    copy, caller = CudaCopyStream.copy, threading.get_ident()

    def shown(stream, to, source):
        dispatch.event_handler.copies += 1
        own = contextlib.nullcontext() if threading.get_ident() == caller else Shown(dispatch)
        with own:
            copy(stream, to, source)

    return mock.patch.object(CudaCopyStream, "copy", shown)


def reports_of(handler, run):
    """How many races CSAN reports in a run, and what it returns; a report may end it."""
    before, value = handler.reports, None
    with contextlib.suppress(csan.CUDASanitizerErrors):
        value = run()
    torch.cuda.synchronize()  # what comes next begins with nothing under way
    return handler.reports - before, value


# -- random pipelines -----------------------------------------------------------------------------


def random_pipeline(seed):
    """Copy some tensors in a random way, and tell whether they came out right."""
    chance, verb = random.Random(seed), VERBS[seed % len(VERBS)]
    slot_bytes = chance.choice((2**10, 2**14, 2**20))
    most = chance.choice((64, slot_bytes, 3 * slot_bytes))
    sizes = [chance.randint(1, most) for _ in range(chance.randint(2, 7))]
    if chance.random() < 0.5:
        sizes = sizes[:1] * len(sizes)
    options = {"slots": chance.randint(1, 4), "threads": chance.randint(1, 4)}
    stream = torch.cuda.Stream(DEVICE) if chance.random() < 0.5 else torch.cuda.default_stream()
    hosts = [torch.full((n,), i + 1, dtype=torch.uint8) for i, n in enumerate(sizes)]
    with (
        torch.cuda.stream(stream),
        CopyPipeline(DEVICE, slot_bytes=slot_bytes, **options) as pipeline,
    ):
        results = [result.cpu() for result in copied(pipeline, verb, hosts)]
    return all(map(torch.equal, results, hosts)) and len(results) == len(hosts)


def copied(pipeline, verb, hosts):
    """The tensors, after they went through the pipeline."""
    if "prefetch" in verb:
        batches = ([pinned(x)] if "pinned" in verb else [x, x] for x in hosts)
        for batch in pipeline.prefetch(batches):
            yield torch.maximum(batch[0], batch[-1])
            batch[0].zero_()  # freed and reused afterwards
    elif verb == "map":
        yield from pipeline.map(lambda x: x + 0, iter(hosts))
    elif verb == "async":
        handles = [pipeline.to_host_async(x) for x in kept(hosts)]
        yield from (handle.result() for handle in handles)
    else:
        source = kept(hosts) if verb == "kept" else fresh(hosts)
        out = [pinned(x) if "pinned" in verb else x.clone() for x in hosts]
        for each in out:
            each.zero_()
        yield from pipeline.to_host(
            list(source) if verb == "given" else source,
            out=out if "out" in verb else None,
            pin=verb == "pin",
        )


def pinned(x):
    return torch.empty_like(x, pin_memory=True).copy_(x)


def fresh(hosts):
    """Tensors that the pipeline alone owns: they are freed and reused."""
    for x in hosts:
        yield x.to(DEVICE, copy=True) + 0


def kept(hosts):
    """Tensors that are overwritten once they were handed over."""
    for x in hosts:
        y = x.to(DEVICE, copy=True)
        yield y
        y.zero_()


# -- races made on purpose ------------------------------------------------------------------------


def to_host():
    with CopyPipeline(DEVICE, slots=2, threads=1) as pipeline:
        for result in pipeline.to_host(torch.full((LARGE,), i, device=DEVICE) for i in range(3)):
            result.clone()


def prefetch():
    """Two small tensors: CSAN sees how their block of memory is taken."""
    with CopyPipeline(DEVICE, slots=2, threads=1) as pipeline:
        for batch in pipeline.prefetch(iter([[torch.ones(1000), torch.ones(1000)]])):
            batch[0] + 1


def to_host_pinned():
    """Without slots."""
    with CopyPipeline(DEVICE, slots=2, threads=1) as pipeline:
        source = (torch.full((1000,), i, device=DEVICE) for i in range(3))
        for result in pipeline.to_host(source, pin=True):
            result.clone()


def overwrite():
    """Overwrite what was handed over before anybody has waited for its copy."""

    def source():
        y = torch.zeros(LARGE, device=DEVICE)
        for i in range(3):
            y.fill_(i)
            yield y

    with (
        mock.patch.object(torch.cuda.Event, "query", return_value=False),
        CopyPipeline(DEVICE, slots=2, threads=1) as pipeline,
    ):
        for result in pipeline.to_host(source()):
            result.clone()


def no_wait(stream, end):
    """Let the copies wait for the host alone."""
    if not isinstance(end, torch.cuda.Event):
        end.synchronize()


def no_receipt(stream, end, tensors):
    """Let the caller find the tensors as they are."""


def early_mark(stream, **options):
    """The end of nothing."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.Stream(stream.device))
    return event


def stale_mark():
    """The caller's first mark, for every item."""
    first, mark = [], CudaCopyStream.caller_mark

    def marked(stream):
        first.append(mark(stream))
        return first[0]

    return marked


def all_owned(source):
    return next(source), True


RACES = {
    "copies to the host don't wait": (to_host, CudaCopyStream, "wait", no_wait),
    "copies from the host don't wait": (prefetch, CudaCopyStream, "wait", no_wait),
    "the caller doesn't wait": (prefetch, CudaCopyStream, "caller_receives", no_receipt),
    "copies to pinned memory don't wait": (to_host_pinned, CudaCopyStream, "wait", no_wait),
    "marks come before their copies": (prefetch, CudaCopyStream, "mark", early_mark),
    "only the first item is waited for": (to_host, CudaCopyStream, "caller_mark", stale_mark()),
    "what others can write to is not cloned": (overwrite, to_host_parcels, "next_owned", all_owned),
}


def races(handler):
    """How many reports each program gives as it is, and with its race."""
    found = {}
    for name, (program, owner, attribute, fault) in RACES.items():
        without, _ = reports_of(handler, program)
        with mock.patch.object(owner, attribute, fault):
            with_it, _ = reports_of(handler, program)
        found[name] = without, with_it
    return found


def findings():
    """Everything, from a thread other than the main one, which polls: CSAN sees only waits."""
    dispatch = new_dispatch()
    handler = dispatch.event_handler
    pipelines = []
    with Shown(dispatch), shown_copies(dispatch):
        torch.zeros(1, device=DEVICE)
        for seed in range(50):
            before = handler.copies
            reports, equal = reports_of(handler, functools.partial(random_pipeline, seed))
            copies = handler.copies - before
            pipelines.append({"reports": reports, "equal": bool(equal), "copies": copies})
        return {"pipelines": pipelines, "races": races(handler), "trouble": handler.trouble}


def main(findings):
    with ThreadPoolExecutor(1) as other:
        found = other.submit(findings).result()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(findings)
