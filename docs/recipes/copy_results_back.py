"""Copy results back while computing: one function in plain PyTorch, one with autopar."""

import torch

import autopar as ap


@torch.no_grad()  # the host needs no gradients; on a generator it holds for each step
def results_on_host(results, buffers, device):
    """Fill a pinned buffer with each result of an iterator, while it computes later ones."""
    side, landed = torch.cuda.Stream(device), []
    for y, buffer in zip(results, buffers, strict=True):
        side.wait_event(torch.cuda.current_stream(device).record_event())  # for this result alone
        with torch.cuda.stream(side):
            buffer.copy_(y, non_blocking=True)
            landed.append(side.record_event())
        y.record_stream(side)  # its memory is not given away before the copy has read it
    for buffer, event in zip(buffers, landed, strict=True):
        event.synchronize()  # the host reads this buffer next
        yield buffer


@torch.no_grad()
def results_by_pipeline(results, device):
    """The same, in pinned memory that the pipeline provides for each result."""
    with ap.CopyPipeline(device) as pipeline:
        yield from pipeline.to_host(results, pin=True)
