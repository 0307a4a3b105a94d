"""Copy results back while computing, in plain PyTorch and with autopar; a source that trains."""

import torch

import autopar as ap


def results_on_host(results, buffers, device):
    """Fill a pinned buffer with each result of an iterator, while it computes later ones."""
    side, landed = torch.cuda.Stream(device), []
    for y, buffer in zip(results, buffers, strict=True):
        side.wait_event(torch.cuda.current_stream(device).record_event())  # for this result alone
        with torch.cuda.stream(side):
            buffer.copy_(y.detach(), non_blocking=True)  # the host needs no gradients
            landed.append(side.record_event())
        y.record_stream(side)  # its memory is not given away before the copy has read it
    for buffer, event in zip(buffers, landed, strict=True):
        event.synchronize()  # the host reads this buffer next
        yield buffer


def results_by_pipeline(results, device):
    """The same, in pinned memory that the pipeline provides for each result."""
    with ap.CopyPipeline(device) as pipeline:
        yield from pipeline.to_host((y.detach() for y in results), pin=True)


def outputs_of_training(model, optimizer, loss_of, batches):
    """A source of results that trains: each output, when its step has been launched."""
    for x, target in batches:
        y = model(x)
        optimizer.zero_grad()
        loss_of(y, target).backward()
        optimizer.step()
        yield y
