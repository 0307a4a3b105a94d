"""A task of the CPU is the first to use CUDA: the task that reads what it has queued finds it done.

python first_use_of_cuda.py LANES run|run_serial
"""

import sys

import torch

from autopar import TaskGraph

CYCLES = 100_000_000  # of a GPU's clock: 50 ms and more, in which nobody may read
COUNT = 1 << 20


def queue():
    """Queue work on the current stream, and wait for none of it."""
    ones = torch.ones(COUNT, device="cuda")
    host = torch.zeros(COUNT, pin_memory=True)
    torch.cuda._sleep(CYCLES)
    done = host.copy_(ones, non_blocking=True), torch.cuda.Event()
    done[1].record()
    return done


def read(queued):
    host, copied = queued
    return copied.query(), host.sum().item()


def main(lanes, run):
    graph = TaskGraph(cpu_lanes=lanes)
    queued = graph.add(queue, writes=())
    found = [graph.add(read, queued, writes=()) for _ in range(lanes)]
    assert len(graph.plan().schedule.lanes) == lanes
    assert not torch.cuda.is_initialized(), "the task is not the first to use CUDA"
    for result in getattr(graph, run)()[found]:
        assert result == (True, COUNT), f"{result}: it was read before it was there"


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
