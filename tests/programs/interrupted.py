"""Interrupt waits for a lane or a task graph as Ctrl-C does, and print as JSON how that went.

Usage: python interrupted.py cpu|cuda|graph
"""

import functools
import json
import os
import signal
import sys
import threading
import time

import torch

import autopar

_KIND = sys.argv[1]
# Of 5 ms each: waiting them out would take seconds. What a GPU was given can't be dropped.
_TASKS, _TASK_S = {"cpu": 2_000, "cuda": 400, "graph": 1_000}[_KIND], 0.005
_DEVICE = torch.device("cuda" if _KIND == "cuda" else "cpu", 0 if _KIND == "cuda" else None)
_PROMPT_S = 0.5
begun = []


def busy(number=0):
    """A task of about 5 ms that leaves its thread or stream occupied."""
    begun.append(number)
    if _KIND == "cuda":
        torch.cuda._sleep(int(_TASK_S * 1.5e9))  # cycles of a clock between 1 and 2 GHz
    else:
        time.sleep(_TASK_S)


def new_lane():
    return autopar.cuda_lane(_DEVICE) if _KIND == "cuda" else autopar.cpu_lane()


def wait_for_lane(how, start, ended):
    with new_lane() as lane:
        handles = [lane.submit(busy) for _ in range(_TASKS)]
        start()
        if how != "leaving":
            try:
                handles[-1].result() if how == "result" else lane.wait()
            finally:
                ended()


def wait_for_graph(how, start, ended):
    graph = autopar.TaskGraph(cpu_lanes=2)
    tasks = [graph.add(busy, number, writes=(), cost_s=_TASK_S) for number in range(_TASKS)]
    graph.plan()  # which takes its time
    start()
    if how in ("run", "run_serial"):
        getattr(graph, how)()
    else:
        with graph.start() as run:
            if how == "waitall":
                graph.waitall()
            elif how == "result":
                run[tasks[-1]]


def interrupted(wait, how):
    """Seconds from the signal to the end of the wait, and how many tasks were begun later."""
    sent_s, ended_s = [], []

    def press():
        sent_s.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    def ended():
        ended_s.append(time.perf_counter())

    pressing = threading.Timer(0.3, press)
    try:
        wait(how, pressing.start, ended)
    except KeyboardInterrupt:
        ended()
        took_s = ended_s[0] - sent_s[0]
    else:
        took_s = None
    pressing.join()
    count = len(begun)
    time.sleep(0.05)
    return {"s": took_s, "later": len(begun) - count}


def promptest(wait, how):
    """The best of up to three: on a busy machine a thread may be late by itself."""
    found = interrupted(wait, how)
    for _ in range(2):
        if found["s"] is None or found["s"] < _PROMPT_S or found["later"]:
            break
        found = interrupted(wait, how)
    return found


def work():
    """What is computed before and after the interruption."""
    x = autopar.workload.matrix(64, _DEVICE)
    if _KIND == "graph":
        graph = autopar.TaskGraph(cpu_lanes=2)
        product = graph.add(torch.mm, graph.add(torch.mm, x, x), graph.add(torch.mm, x, x.t()))
        return graph.run()[product]
    with new_lane() as lane:
        y = lane.submit(torch.mm, x, x)
        return lane.submit(torch.mm, y, x).result().cpu()


def main():
    before, threads = work(), threading.active_count()
    # Work that a GPU was given can't be taken back, so leaving a CUDA lane has to wait for it.
    waits = ["result", "wait"] if _KIND == "cuda" else ["result", "wait", "leaving"]
    if _KIND == "graph":
        waits = ["run", "start", "waitall", "result", "run_serial"]
    wait = functools.partial(promptest, wait_for_graph if _KIND == "graph" else wait_for_lane)
    found = {"waits": {how: wait(how) for how in waits}}
    found["threads"] = threading.active_count() - threads
    found["equal"] = torch.equal(work(), before)
    print(json.dumps(found))


if __name__ == "__main__":
    # A shell has its background jobs ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
