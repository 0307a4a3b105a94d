"""Feed a loop: one function in plain PyTorch, one with autopar."""

import itertools

import torch

import autopar as ap


def fed(loader, device):
    """Yield batches on the GPU, the next one copied meanwhile; each is a list of pinned tensors."""
    side, ready = torch.cuda.Stream(device), None
    for batch in itertools.chain(loader, [None]):
        torch.cuda.current_stream(device).wait_stream(side)  # for the copy of `ready`, no later one
        with torch.cuda.stream(side):
            coming = None if batch is None else [x.to(device, non_blocking=True) for x in batch]
        if ready is not None:
            for x in ready:
                x.record_stream(torch.cuda.current_stream(device))  # who uses it
            yield ready
        ready = coming


def fed_by_pipeline(loader, device):
    """The same for batches of any form, from ordinary memory, too."""
    with ap.CopyPipeline(device) as pipeline:
        yield from pipeline.prefetch(loader)
