"""Interrupt waits on a lane as Ctrl-C does, and print as JSON how that went.

Usage: python interrupted.py cpu|cuda
"""

import json
import os
import signal
import sys
import threading
import time

import torch

import autopar

_QUEUED = 2_000  # tasks of 5 ms each: waiting them out would take 10 s
_TASK_S = 0.005


def busy(device):
    """A task of about 5 ms that leaves its thread or stream occupied."""
    if device.type == "cuda":
        torch.cuda._sleep(int(_TASK_S * 1.5e9))  # cycles of a clock between 1 and 2 GHz
    else:
        time.sleep(_TASK_S)


def new_lane(device):
    return autopar.cuda_lane(device) if device.type == "cuda" else autopar.cpu_lane()


def work(device):
    """What is computed before and after the interruption."""
    x = autopar.workload.matrix(64, device)
    with new_lane(device) as lane:
        y = lane.submit(torch.mm, x, x)
        return lane.submit(torch.mm, y, x).result().cpu()


def interrupted(device, how):
    """How long after the signal the wait had ended, in seconds."""
    sent_s = []
    ended_s = None

    def press():
        sent_s.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    count = 400 if device.type == "cuda" else _QUEUED  # what is launched can't be dropped
    pressing = threading.Timer(0.3, press)
    try:
        with new_lane(device) as lane:
            handles = [lane.submit(busy, device) for _ in range(count)]
            pressing.start()
            if how == "leaving":
                pass
            else:
                try:
                    handles[-1].result() if how == "result" else lane.wait()
                finally:
                    ended_s = time.perf_counter()
    except KeyboardInterrupt:
        if ended_s is None:
            ended_s = time.perf_counter()
    else:
        return None
    finally:
        pressing.join()
    return ended_s - sent_s[0]


def main():
    device = torch.device("cuda", 0) if sys.argv[1] == "cuda" else torch.device("cpu")
    before = work(device)
    threads = threading.active_count()
    # Work that a GPU was given can't be taken back, so leaving a CUDA lane has to wait for it.
    waits = ("result", "wait") if device.type == "cuda" else ("result", "wait", "leaving")
    found = {how: interrupted(device, how) for how in waits}
    found["threads"] = threading.active_count() - threads
    found["equal"] = torch.equal(work(device), before)
    print(json.dumps(found))


if __name__ == "__main__":
    # A shell has its background jobs ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
