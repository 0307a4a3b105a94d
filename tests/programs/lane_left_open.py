"""End while a lane or a graph's run is open: held by a generator, or by the block of a thread.

Usage: python lane_left_open.py HOW, as in `main`.
"""

import os
import sys
import threading
import time
import warnings

import torch

from autopar import TaskGraph, cpu_lane

never, begun = threading.Event(), threading.Event()


def batches(task=int):
    with cpu_lane() as lane:
        while True:
            yield lane.submit(task)


def block():
    begun.set()
    never.wait()


def hold():
    with cpu_lane() as lane:
        lane.submit(block).result()


def runs(task, *args):
    """Results of a graph with far more to do than the end of a process waits for."""
    graph = TaskGraph(cpu_lanes=2)
    tasks = [graph.add(task, *args, writes=()) for _ in range(3000)]
    with graph.start() as run:
        for task in tasks:
            yield run[task]


def waits():
    with cpu_lane() as lane:
        handles = [lane.submit(time.sleep, 0.2) for _ in range(100)]
        try:
            yield handles[0]
        finally:
            handles[-1].wait()


def main(how):
    loader = batches()
    next(loader).result()
    print("first", flush=True)
    if how == "blocked":  # for good: what the task waits for never comes
        other = batches(block)
        kept.append(other)
        next(other)
        begun.wait()
    elif how == "many":
        for lane in [cpu_lane() for _ in range(60)]:
            kept.append(lane.__enter__())
            lane.submit(block)
        begun.wait()
    elif how == "exception":
        try:
            raise ValueError
        except ValueError:
            other = batches()
            next(other)
            kept.append(other)
    elif how == "queue":  # of operators, out of which a thread must not come too late
        lane = cpu_lane()
        kept.append(lane.__enter__())
        for _ in range(3000):
            lane.submit(torch.mm, matrix, matrix)
    elif how in ("run", "operators", "waits"):
        others = {"run": runs(time.sleep, 0.2), "operators": runs(torch.mm, matrix, matrix)}
        kept.append(others.get(how) or waits())
        next(kept[-1])
    elif how == "thread":
        threading.Thread(target=hold, daemon=True).start()
        begun.wait()
    elif how == "fork":
        lane = cpu_lane()
        lane.__enter__()
        held = lane.submit(block)
        begun.wait()
        graph = TaskGraph()
        task = graph.add(never.wait, writes=())
        warnings.simplefilter("ignore")  # Python 3.12 says that a lock may be held: none is
        with graph.start() as run:
            child = os.fork()
            if not child:
                asked = (held.result, lambda: run[task], lambda: lane.submit(int))
                os._exit(7 if all(map(refused, asked)) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            never.set()
    kept.append(loader)
    print("last", flush=True)
    if how == "exit":
        with cpu_lane() as lane:
            lane.submit(int)
            sys.exit(3)


def refused(ask):
    try:
        ask()
    except RuntimeError as error:
        return "another process" in str(error)
    return False


kept, matrix = [], torch.ones(500, 500)
main(sys.argv[1])
