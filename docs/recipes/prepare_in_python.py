"""Prepare data in Python beside the model: one function in plain PyTorch, one with autopar."""

import torch
from torch.utils.data import DataLoader

import autopar as ap


def prepared(samples, prepare, size, workers=4):
    """Batches that `prepare` makes, each of some samples, in processes beside this one."""
    return DataLoader(
        samples,
        batch_size=size,
        collate_fn=prepare,  # which a worker calls: Python of its own, with a GIL of its own
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
    )


def prepared_on(device, samples, prepare, size, workers=4):
    """The same on a device: the next batches are prepared and copied while this one is used."""
    with ap.CopyPipeline(device) as pipeline:
        yield from pipeline.prefetch(prepared(samples, prepare, size, workers))
