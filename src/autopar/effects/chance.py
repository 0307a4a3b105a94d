"""Chance: which functions of torch's draw random numbers, by what their operators declare.

An operator declares it by a tag, and by an argument if it can be told not to. A function in Python
draws them if what its code loads does.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Collection, Mapping
from typing import Any

import torch

from autopar.effects.loads import loaded, loads_of
from autopar.effects.operators import (
    ALWAYS,
    NEVER,
    SWITCHED,
    SWITCHES,
    chance_of_operator,
    is_off_by_default,
    parameters_of,
)
from autopar.torch_private import STATIC_FUNCTIONS, TENSOR_METHODS, OpOverload, OpOverloadPacket

_SAMPLES = {"sample", "rsample", "sample_n"}  # of torch.distributions
_OPERATORS = (OpOverload, OpOverloadPacket)


def chance_of(fn: Any, keywords: Collection[str] | None = None) -> int:
    """Whether one of torch's functions draws random numbers: never, unless switched off, or always.

    `keywords` are those of the calls that may be its, if they are known: an operator that has to be
    told to draw, such as attention, isn't then.

    >>> import torch.nn.functional as F
    >>> chance_of(F.linear), chance_of(F.dropout), chance_of(torch.rand)
    (0, 1, 2)
    """
    if not is_torchs(fn):
        return NEVER
    if type(fn) is types.FunctionType:
        return _of_function(fn)
    if type(fn) in _OPERATORS:
        name = fn._schema.name if type(fn) is OpOverload else fn._qualified_op_name
    else:
        name = f"aten::{fn.__name__}"
    if keywords is not None and is_off_by_default(name) and SWITCHES.isdisjoint(keywords):
        return NEVER
    return chance_of_operator(name)


def is_torchs(fn: Any) -> bool:
    """Whether a function is one of torch's."""
    if type(fn) is types.FunctionType:
        return str(dict.get(fn.__globals__, "__name__")).partition(".")[0] == "torch"
    if type(fn) in _OPERATORS:
        return True
    if type(fn) is types.MethodDescriptorType:
        return issubclass(torch.Tensor, fn.__objclass__) and fn.__objclass__ is not object
    if type(fn) is not types.BuiltinFunctionType:
        return False
    owner = fn.__self__
    if type(owner) is types.ModuleType:
        return owner.__name__.partition(".")[0] == "torch"
    if owner is None:  # a static method of a class in C
        return hasattr(STATIC_FUNCTIONS, fn.__name__)
    return issubclass(type(owner), torch.Tensor)


def method_draws(name: str) -> bool:
    """Whether a name is that of a method of tensors or distributions that draws random numbers."""
    is_method = name in TENSOR_METHODS
    return name in _SAMPLES or (is_method and chance_of_operator(f"aten::{name}") == ALWAYS)


def is_switched_off(values: Mapping[str, Any]) -> bool:
    """Whether arguments, or attributes of a module, tell it to draw no random numbers."""
    if any(values.get(name) is False for name in ("training", "train")):
        return True
    rates = [values[name] for name in ("p", "dropout", "dropout_p") if name in values]
    return any(type(rate) in (int, float) and rate == 0 for rate in rates)


@functools.cache
def _of_function(fn: types.FunctionType) -> int:
    if fn in _under_way:  # it calls itself
        return NEVER
    loads = loads_of(fn.__code__)
    _under_way.add(fn)
    try:
        cells = fn.__closure__ or ()
        parts = [*loaded(fn), *gc.get_referents(*cells), fn.__dict__.get("__wrapped__")]
        chance = max(chance_of(part, loads.keywords) for part in parts)
    finally:
        _under_way.discard(fn)
    if any(map(method_draws, loads.names)):
        chance = ALWAYS
    return chance if SWITCHES.isdisjoint(parameters_of(fn)) else min(chance, SWITCHED)


_under_way: set[types.FunctionType] = set()
