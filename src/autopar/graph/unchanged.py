"""Unchanged: what trials of tasks have to give back: tensors' values, and random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.parameter import is_lazy

from autopar.effects.state import State
from autopar.graph.node import Node

_SMALL_BYTES = 1 << 20  # of what lies elsewhere, as counters: no data sets are copied


@contextmanager
def unchanged(nodes: tuple[Node, ...]) -> Iterator[list[torch.Generator]]:
    """Give tensors that tasks write, and random numbers, back: trials are no runs.

    Yields the generators of the GPU's random numbers that tasks use, beside the default one.
    """
    gpu = nodes[0].device
    state = State((node.name, (node.fn, node.leaves)) for node in nodes)
    whole = [tensor for _, tensor in state.tensors if not is_lazy(tensor)]
    listed = {id(tensor): tensor for tensor in whole if tensor.device == gpu or _is_small(tensor)}
    tensors = [(tensor, tensor.detach().clone()) for tensor in listed.values()]
    defaults = [torch.default_generator, torch.cuda.default_generators[gpu.index]]
    states = [(generator, generator.get_state()) for generator in [*defaults, *state.generators]]

    def give_back() -> None:
        torch.cuda.synchronize(gpu)
        for generator, before in states:
            generator.set_state(before)
        for tensor, value in tensors:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if not _equal(tensor.detach(), value):
                    tensor.copy_(value)
        torch.cuda.synchronize(gpu)

    try:
        yield [generator for generator in state.generators if generator.device == gpu]
    except BaseException as error:
        try:
            give_back()
        except Exception as later:
            error.add_note(f"after that, tensors could not be given their values back: {later}")
        raise
    give_back()


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.itemsize <= _SMALL_BYTES


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return torch.equal(tensor, other)
    except (RuntimeError, NotImplementedError):  # some layouts and dtypes can't be compared
        return False
