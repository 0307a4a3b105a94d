"""Chance: which functions of torch's draw random numbers, by what their operators declare.

An operator declares it by a tag, and by an argument if it can be told not to. A function in Python
draws them if what its code loads does.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from autopar.effects.loads import loaded, loads_of
from autopar.effects.operators import Arguments, parameters_of
from autopar.torch_private import (
    STATIC_FUNCTIONS,
    TENSOR_METHODS,
    OpOverload,
    OpOverloadPacket,
    schemas_for,
)

NEVER, SWITCHED, ALWAYS = range(3)  # when random numbers are drawn; switched: unless told not to
_SWITCHES = {"training", "train", "dropout", "dropout_p"}  # which tell an operator not to draw
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
    if keywords is not None and _is_off_by_default(name) and _SWITCHES.isdisjoint(keywords):
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


def draws(operator: Any, args: Arguments, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers."""
    tags = operator.tags if isinstance(operator, OpOverload) else ()
    random = torch.Tag.nondeterministic_seeded in tags
    return random and not is_still(operator._schema, args, kwargs)


def is_still(schema: Any, args: Arguments, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator that may draw random numbers is told not to, as by a dropout of 0."""
    given = {
        one.name: args[i] if i < len(args) else kwargs.get(one.name, one.default_value)
        for i, one in enumerate(schema.arguments)
    }
    return is_switched_off(given, ["dropout_p"])


def is_switched_off(
    values: Mapping[str, Any], rates: Iterable[str] = ("p", "dropout", "dropout_p")
) -> bool:
    """Whether arguments, or attributes of a module, tell it to draw no random numbers."""
    if any(values.get(name) is False for name in ("training", "train")):
        return True
    given = [values.get(name) for name in rates]
    return any(type(rate) in (int, float) and rate == 0 for rate in given)


@functools.cache
def chance_of_operator(name: str) -> int:
    """Whether an operator draws random numbers, by its name, as in `aten::rand`."""
    schemas = schemas_for(name)
    namespace, _, own_name = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), own_name, None) if schemas else None
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    if all(torch.Tag.nondeterministic_seeded not in overload.tags for overload in overloads):
        return NEVER
    return SWITCHED if _switches(name) else ALWAYS


@functools.cache
def _is_off_by_default(name: str) -> bool:
    """Whether an operator has to be told to draw random numbers, as attention."""
    defaults = [switch.default_value for switch in _switches(name)]
    return bool(defaults) and all(value is not None and not value for value in defaults)


def _switches(name: str) -> list[Any]:
    arguments = [argument for schema in schemas_for(name) for argument in schema.arguments]
    return [argument for argument in arguments if argument.name in _SWITCHES]


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
    return chance if _SWITCHES.isdisjoint(parameters_of(fn)) else min(chance, SWITCHED)


_under_way: set[types.FunctionType] = set()
