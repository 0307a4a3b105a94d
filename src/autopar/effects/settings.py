"""Settings: what all code shares, and what objects of some kinds hold, to read and to put back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from autopar.torch_private import DEFAULT_DEVICE


def _default_device() -> str | None:
    """The default device, or None where none was set, which is not the same as `cpu`."""
    context = getattr(DEFAULT_DEVICE, "device_context", None)
    return None if context is None else str(context.device)


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (_default_device, torch.set_default_device),
    "whether gradients are on": (torch.is_grad_enabled, torch.set_grad_enabled),
    "how many threads operators use": (torch.get_num_threads, torch.set_num_threads),
    "whether algorithms are deterministic": (
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
}


def state_of_chance(value: Any) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
    """How to read and to write the state of a generator of random numbers that isn't torch's."""
    if issubclass(type(value), random.Random):
        return value.getstate, value.setstate
    if root_of(type(value)) == "numpy" and type(value).__name__ == "RandomState":
        return value.get_state, value.set_state
    if root_of(type(value)) == "numpy" and hasattr(type(value), "bit_generator"):
        bits = value.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None


def root_of(kind: type) -> str:
    """The package that a class is of."""
    return str(kind.__module__).partition(".")[0]
