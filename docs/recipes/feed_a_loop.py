"""Feed a loop: one function in plain PyTorch, one with autopar."""

import itertools

import torch

import autopar as ap


def fed(loader, device):
    """Yield each batch on the GPU, while the next one is copied; batches are pinned tensors."""
    side, ready = torch.cuda.Stream(device), None
    for batch in itertools.chain(loader, [None]):
        torch.cuda.current_stream(device).wait_stream(side)  # for the copy of `ready`, no later one
        with torch.cuda.stream(side):
            coming = None if batch is None else batch.to(device, non_blocking=True)
        if ready is not None:
            ready.record_stream(torch.cuda.current_stream(device))  # who uses it, and until when
            yield ready
        ready = coming


def fed_by_pipeline(loader, device):
    """The same for batches of any form, from ordinary memory, too."""
    with ap.CopyPipeline(device) as pipeline:
        yield from pipeline.prefetch(loader)
