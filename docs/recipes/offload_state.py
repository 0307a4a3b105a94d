"""Offload weights or optimizer state: two functions in plain PyTorch, two with autopar."""

import torch


def send_away(tensors, pinned, side):
    """Begin to copy tensors to pinned memory; the caller may drop them at once."""
    side.wait_stream(torch.cuda.current_stream(side.device))  # for what has written them
    with torch.cuda.stream(side):
        for x, buffer in zip(tensors, pinned, strict=True):
            buffer.copy_(x, non_blocking=True)
            x.record_stream(side)  # its memory is free once the copy has read it


def bring_back(pinned, side, meanwhile):
    """Copy them to the GPU while it does something else, such as the backward pass."""
    with torch.cuda.stream(side):  # the same stream: behind the copies to the host
        tensors = [buffer.to(side.device, non_blocking=True) for buffer in pinned]
    result, current = meanwhile(), torch.cuda.current_stream(side.device)
    current.wait_stream(side)  # before anybody uses them
    for x in tensors:
        x.record_stream(current)  # memory of one stream, used on another
    return tensors, result


def send_away_on(lane, tensors, pinned):
    """The same on a lane, such as `autopar.cuda_lane(device, kind="copy")`."""
    for x, buffer in zip(tensors, pinned, strict=True):
        lane.submit(buffer.copy_, x, non_blocking=True)


def bring_back_on(lane, pinned, meanwhile):
    """A lane does one copy after the other, keeps what they read, and its results wait."""
    copies = [lane.submit(b.to, lane.device, non_blocking=True, copy=True) for b in pinned]
    result = meanwhile()
    return [copy.result() for copy in copies], result
