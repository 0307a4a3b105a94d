"""A program for torchrun: what each rank returned, told by the first; a function may end a rank."""

import torch
import torch.distributed as dist

import autopar as ap


class Told(tuple):
    """What a rank returns: the same class for all."""


def total(device, number):
    x = torch.full((), number + dist.get_rank(), device=device)
    dist.all_reduce(x)
    return Told((dist.get_rank(), x.item()))


def alone(device):
    return dist.get_world_size()


each = ap.on_ranks(total, 20, ranks=2)
assert {type(one) for one in each} == {Told}
ap.show([each, ap.on_ranks(alone, ranks=1)])
