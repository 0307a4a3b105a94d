"""Record what tests/trace_data hold: products, all-reduces beside them and copies, on two GPUs.

Usage: python -m torch.distributed.run --standalone --nproc_per_node 2 record_allreduce.py FOLDER
Afterwards the names of files and runs were cut from the traces.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

_STEPS, _WARMUP = 3, 3


def step(a, gradients, pageable, pinned, side):
    """Four products, each with an all-reduce beside it; one copy beside them and one after."""
    works = []
    with record_function("step"):
        for i, gradient in enumerate(gradients):
            _ = a @ a
            works.append(dist.all_reduce(gradient, async_op=True))
            if i == 1:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    pinned.copy_(gradients[0], non_blocking=True)
        for work in works:
            work.wait()
        pageable.copy_(gradients[1])
        torch.cuda.synchronize()


def main(folder):
    """Warm up, record, and write a trace for each rank."""
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    size = 4_000_000
    buffers = (
        torch.randn(3000, 3000, device="cuda"),
        [torch.randn(size, device="cuda") for _ in range(4)],
        torch.empty(size),
        torch.empty(size, pin_memory=True),
        torch.cuda.Stream(),
    )
    for _ in range(_WARMUP):
        step(*buffers)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as session:
        for _ in range(_STEPS):
            step(*buffers)
    session.export_chrome_trace(f"{folder}/allreduce_rank{rank}.json.gz")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
