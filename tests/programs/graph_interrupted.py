"""Interrupt waits for a task graph as Ctrl-C does, and print as JSON how that went.

Usage: python graph_interrupted.py
"""

import json
import os
import signal
import threading
import time

import torch

import autopar

_TASKS = 1_000  # of 5 ms each, on two lanes: waiting them out would take 2.5 s
_TASK_S = 0.005


def new_graph(begun):
    def nap(number):
        begun.append(number)
        time.sleep(_TASK_S)

    graph = autopar.TaskGraph(cpu_lanes=2)
    tasks = [graph.add(nap, number, cost_s=_TASK_S) for number in range(_TASKS)]
    graph.plan()  # which takes its time
    return graph, tasks[-1]


def work():
    """What is computed before and after the interruption."""
    x = autopar.workload.matrix(64)
    graph = autopar.TaskGraph(cpu_lanes=2)
    y, z = graph.add(torch.mm, x, x), graph.add(torch.mm, x, x.t())
    product = graph.add(torch.mm, y, z)
    return graph.run()[product]


def interrupted(how):
    """Seconds from the signal to the end of the wait, and how many tasks were begun later."""
    begun, sent_s = [], []
    graph, last = new_graph(begun)

    def press():
        sent_s.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Timer(0.3, press)
    pressing.start()
    ended_s = None
    try:
        if how in ("run", "run_serial"):
            getattr(graph, how)()
        else:
            with graph.start() as run:
                if how == "waitall":
                    graph.waitall()
                elif how == "result":
                    run[last]
    except KeyboardInterrupt:
        ended_s = time.perf_counter()
    pressing.join()
    count = len(begun)
    time.sleep(0.05)
    took_s = None if ended_s is None else ended_s - sent_s[0]
    return {"s": took_s, "later": len(begun) - count}


def main():
    before = work()
    threads = threading.active_count()
    hows = ("run", "start", "waitall", "result", "run_serial")
    found = {how: interrupted(how) for how in hows}
    found["threads"] = threading.active_count() - threads
    found["equal"] = torch.equal(work(), before)
    print(json.dumps(found))


if __name__ == "__main__":
    # A shell has its background jobs ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
