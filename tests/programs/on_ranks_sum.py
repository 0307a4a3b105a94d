"""A program for torchrun: what each rank returned, told by the first; a function may end a rank."""

import torch
import torch.distributed as dist

import autopar as ap


def total(device, number):
    x = torch.full((), number + dist.get_rank(), device=device)
    dist.all_reduce(x)
    return dist.get_rank(), x.item()


def alone(device):
    return dist.get_world_size()


ap.show([ap.on_ranks(total, 20, ranks=2), ap.on_ranks(alone, ranks=1)])
