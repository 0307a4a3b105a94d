"""End processes that hold a pipeline in many ways, and print as JSON how each of them ended.

Usage: python pipeline_ends.py cpu|cuda [WAY ...]

Each runs in a fork, so that torch is imported once.
"""

import atexit
import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import CancelledError

last = []  # called when pipelines have been left: what is registered first comes last
atexit.register(lambda: [call() for call in last])

import torch  # noqa: E402

from autopar import CopyPipeline  # noqa: E402

_PATIENCE_S = 30
device = "cuda:0" if sys.argv[1] == "cuda" else "cpu"
held = []  # what the process holds to its end


def batches():
    """More than are under way at once, some in chunks."""
    for i in range(1000):
        yield torch.full((1 << (8 + 4 * (i % 3)),), float(i))


def loader():
    """A pipeline as it is usually written into a loader."""
    with CopyPipeline(device, slots=2, slot_bytes=1 << 16, threads=2) as pipeline:
        yield from pipeline.prefetch(batches())


def half_way():
    """A loader that is held half-way."""
    iterator = iter(loader())
    for i in range(3):
        assert next(iterator)[0].item() == i
    held.append(iterator)
    return iterator


def own_threads():
    return [thread for thread in threading.enumerate() if "host" in thread.name]


def held_by_a_generator():
    half_way()


def failed():
    half_way()
    raise ValueError("on purpose")


def dropped_in_a_cycle():
    iterator = half_way()
    held.clear()
    cycle = [iterator]
    cycle.append(cycle)
    del iterator, cycle
    gc.collect()
    assert not own_threads()


def in_a_thread_that_goes_on():
    told = threading.Event()

    def consume():
        try:
            for batch in loader():
                held.append(batch)
                time.sleep(1e-3)
        except (CancelledError, RuntimeError):
            pass  # the pipeline was left, before a copy or after it
        told.set()  # now that the tensors in the error's frames are gone, too
        while True:
            time.sleep(1e-3)

    # Python aborts if it ends while such a thread is somewhere inside torch.
    last.append(lambda: told.wait(_PATIENCE_S))
    threading.Thread(target=consume, daemon=True).start()
    while len(held) < 3:
        time.sleep(1e-3)


def never_left():
    pipeline = CopyPipeline(device)
    held.append(pipeline.__enter__())
    held.append(pipeline.to_host_async(torch.ones(1 << 20, device=device)))
    held.append(pipeline.prefetch(batches()))
    next(held[-1])


def never_left_and_forgotten():
    pipeline = CopyPipeline(device)
    next(pipeline.__enter__().prefetch(batches()))
    del pipeline
    gc.collect()
    give_up_s = time.monotonic() + _PATIENCE_S / 2
    while own_threads() and time.monotonic() < give_up_s:
        time.sleep(1e-3)
    assert not own_threads()


def forked():
    """A fork has no threads of the pipeline's; using it there is refused, and leaving it is not."""
    faulthandler.cancel_dump_traceback_later()  # in a fork, its end would wait for its thread
    with CopyPipeline("cpu") as pipeline:
        coming = pipeline.prefetch(batches())
        next(coming)
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 3
            assert next(coming)[0].item() == 1
            return
        refused = ""
        try:
            next(coming)
        except RuntimeError as error:
            refused = str(error)
        sys.exit(3 if "is another process's" in refused else 1)


WAYS = {
    way.__name__: way
    for way in (
        *(held_by_a_generator, failed, dropped_in_a_cycle, in_a_thread_that_goes_on),
        *(never_left, never_left_and_forgotten, forked),
    )
}


def ended(child):
    """The exit status of a child, or that it hangs."""
    give_up_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up_s:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(5e-3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def main():
    found = {}
    for name in sys.argv[2:] or WAYS:
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if not child:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                faulthandler.dump_traceback_later(_PATIENCE_S - 5, exit=True)
                return WAYS[name]
            status = ended(child)
            said.seek(0)
            found[name] = status, said.read().decode()
    print(json.dumps(found))
    return None


if __name__ == "__main__":
    way = main()
    if way is not None:
        way()
