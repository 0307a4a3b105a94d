"""Workload: the work that the chapter's experiments run, with its exact cost."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from autopar.device import present
from autopar.refusal import whole_number
from autopar.torch_private import spin


def matrix(size: int, device: torch.device | str = "cpu", *, seed: int = 0) -> torch.Tensor:
    """A random float32 matrix of shape (size, size), the same on every device for a seed.

    Its entries have variance 1 / size, so that products of it stay of the same magnitude.

    Raises:
        ValueError: The size is no whole number from 1 on, the seed none from 0 on, or the device is
            not here.

    >>> import autopar as ap
    >>> ap.workload.matrix(1_000).shape
    torch.Size([1000, 1000])
    """
    device = present(device)
    whole_number("seed", seed, 0)
    whole_number("size", size, of=", the side of a square matrix")
    generator = torch.Generator().manual_seed(seed)
    x: torch.Tensor = torch.randn(size, size, generator=generator) / size**0.5
    return x.to(device)


def products(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    """`count` independent products of a square matrix with itself, the chapter's `run`.

    >>> import autopar as ap
    >>> len(ap.workload.products(ap.workload.matrix(10), 3))
    3
    """
    return [x.mm(x) for _ in range(count)]


def network(width: int, layers: int, device: torch.device | str = "cpu") -> nn.Sequential:
    """Square layers without bias, and a ReLU between each two; one for a seed of torch's.

    Activations keep their magnitude, so that gradients of all layers matter.

    >>> import autopar as ap
    >>> [type(layer).__name__ for layer in ap.workload.network(8, 2)]
    ['Linear', 'ReLU', 'Linear']
    """
    model: list[nn.Module] = []
    for _ in range(layers):
        linear = nn.Linear(width, width, bias=False, device=device)
        nn.init.kaiming_normal_(linear.weight)
        model += [linear, nn.ReLU()]
    return nn.Sequential(*model[:-1])


def delay(device: torch.device | str | int, cycles: int) -> None:
    """Keep a GPU's current stream busy, so that what is queued behind it comes late.

    Who does not wait for it is then sure to come too early. A CPU is done with all that its
    operators were given when they return: it is not kept.

    Args:
        device: The GPU, or the CPU.
        cycles: Of the GPU's clock, which has about two billion a second.

    Raises:
        ValueError: A device that is not on this machine, or no whole number of cycles.

    >>> import autopar as ap
    >>> ap.workload.delay("cpu", 1_000)
    """
    whole_number("cycles", cycles, 0, of=" of the GPU's clock")
    if (gpu := present(device)).type == "cuda":
        with torch.cuda.device(gpu):
            spin(cycles)


def equal(results: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> bool:
    """Whether two sequences of tensors are the same bit for bit, wherever each lies.

    They are compared where the second sequence lies, so that large ones need not leave a GPU.

    Raises:
        ValueError: One sequence is longer than the other.

    >>> import autopar as ap
    >>> ap.workload.equal([ap.workload.matrix(2)], [ap.workload.matrix(2)])
    True
    """
    pairs = zip(results, expected, strict=True)
    return all(torch.equal(result.to(wanted.device), wanted) for result, wanted in pairs)


def product_flops(size: int, count: int = 1) -> float:
    """Floating-point operations of `count` products of two (size, size) matrices.

    Raises:
        ValueError: The size is no whole number from 1 on, or the count none from 0 on.

    >>> import autopar as ap
    >>> ap.workload.product_flops(1_000, 5)
    10000000000.0
    """
    return 2.0 * whole_number("size", size) ** 3 * whole_number("count", count, 0)


def product_bytes(size: int, count: int = 1) -> int:
    """Bytes of `count` float32 matrices of shape (size, size).

    Raises:
        ValueError: The size is no whole number from 1 on, or the count none from 0 on.

    >>> import autopar as ap
    >>> ap.workload.product_bytes(1_000, 5)
    20000000
    """
    return 4 * whole_number("size", size) ** 2 * whole_number("count", count, 0)
