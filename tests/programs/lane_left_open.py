"""End while a lane is open: held by a generator, or by the block of a thread.

Usage: python lane_left_open.py idle|blocked|exception|exit|thread|fork
"""

import os
import sys
import threading
import warnings

from autopar import cpu_lane

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


def main(how):
    loader = batches()
    next(loader).result()
    print("first", flush=True)
    if how == "blocked":  # for good: what the task waits for never comes
        other = batches(block)
        kept.append(other)
        next(other)
        begun.wait()
    elif how == "exception":
        try:
            raise ValueError
        except ValueError:
            other = batches()
            next(other)
            kept.append(other)
    elif how == "thread":
        threading.Thread(target=hold, daemon=True).start()
        begun.wait()
    elif how == "fork":
        lane = cpu_lane()
        lane.__enter__()
        held = lane.submit(block)
        begun.wait()
        warnings.simplefilter("ignore")  # Python 3.12 says that a lock may be held: none is
        child = os.fork()
        if not child:
            try:
                held.result()
            except RuntimeError as error:
                os._exit("another process" in str(error) and refused(lane))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        never.set()
    kept.append(loader)
    print("last", flush=True)
    if how == "exit":
        with cpu_lane() as lane:
            lane.submit(int)
            sys.exit(3)


def refused(lane):
    try:
        lane.submit(int)
    except RuntimeError:
        return 7
    return 1


kept = []
main(sys.argv[1])
