"""Copy results back while computing: one function in plain PyTorch, one with autopar."""

import torch

import autopar as ap


def results_on_host(fn, batches, buffers, device):
    """Fill a pinned buffer with the result for each batch, while later results are computed."""
    side, landed = torch.cuda.Stream(device), []
    for batch, buffer in zip(batches, buffers, strict=True):
        y = fn(batch)
        side.wait_event(torch.cuda.current_stream(device).record_event())  # for this result alone
        with torch.cuda.stream(side):
            buffer.copy_(y, non_blocking=True)
            landed.append(side.record_event())
        y.record_stream(side)  # its memory is not given away before the copy has read it
    for buffer, event in zip(buffers, landed, strict=True):
        event.synchronize()  # the host reads this buffer next
        yield buffer


def results_by_pipeline(fn, batches, device):
    """The same, in memory that the pipeline provides."""
    with ap.CopyPipeline(device) as pipeline:
        yield from pipeline.to_host(fn(batch) for batch in batches)
