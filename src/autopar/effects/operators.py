"""Operators: what torch's operators declare: what they write, and what they return."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from autopar.torch_private import (
    OPERATOR_HOMES,
    OpOverload,
    OpOverloadPacket,
    has_kernel,
    has_kernel_for,
    schemas_for,
)

Arguments = tuple[Any, ...]
Schemas = tuple[Any, ...]
Positions = tuple[tuple[int, str], ...]  # of arguments: where each is, and its name

STATISTICS = {"running_mean", "running_var"}  # written when training, which no schema says
TRAINING = ("training", "train", "use_input_stats")
BOUND = (types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType)
ROUTINES = (*BOUND, types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)

_HOMES = (torch, torch.Tensor, *OPERATOR_HOMES)
# Operators made of others declare nothing of their own; these are known to return fresh memory.
_FRESH = {"matmul", "linear", "softmax", "log_softmax", "conv1d", "conv2d", "conv3d"}
# These declare nothing, and may give their argument back, or a part of it.
_NOT_FRESH = {"dequantize", "to_dense", "conj_physical", "to_mkldnn", "lift"}
_NOT_FRESH_PARTS = ("unsafe", "dropout", "sparse", "nested")


def schemas_of(fn: Callable[..., Any]) -> tuple[str, Schemas]:
    """The name of one of torch's operators and its declarations; nothing for other functions."""
    if str(type(fn).__module__).partition(".")[0] in ("torch", "autopar"):
        fn = getattr(fn, "_opoverload", fn)  # what torch.library.custom_op makes
    if type(fn) is OpOverload:
        return fn._schema.name, (fn._schema,)
    if type(fn) is OpOverloadPacket:
        return _of_packet(fn._qualified_op_name)
    if type(fn) not in ROUTINES or type(bound_to(fn)) not in (type(None), types.ModuleType):
        return "", ()
    return ("", ()) if type(fn) is types.FunctionType else _of_routine(fn)


def _of_routine(fn: Callable[..., Any]) -> tuple[str, Schemas]:
    name = str(getattr(fn, "__name__", ""))  # not kept by function: torch.mm equals torch.dsmm
    if not name or all(getattr(home, name, None) is not fn for home in _HOMES):
        return "", ()
    return _of_packet(f"aten::{name}")


@functools.cache
def _of_packet(name: str) -> tuple[str, Schemas]:
    """All declarations of one name, but for those with `out`, and those of TorchScript alone."""
    schemas = tuple(
        schema
        for schema in schemas_for(name)
        if has_kernel(_dispatch_name(schema))
        and not any(argument.is_out for argument in schema.arguments)
    )
    return (name, schemas) if schemas else ("", ())


def _dispatch_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def bound_to(fn: Any) -> Any:
    """What a method is bound to; nothing that an object of the program's says of itself."""
    return fn.__self__ if type(fn) in BOUND else None


def written_arguments(schema: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Arguments that an operator changes in place, by its declaration.

    Batch norms change their statistics when they train; no declaration says so.
    """
    written, statistics, training = _places(schema)
    if statistics and all(_given(place, args, kwargs) for place in training):
        written += statistics
    for place in written:
        yield _given(place, args, kwargs)


def _given(place: tuple[int, str], args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    i, name = place
    return args[i] if i < len(args) else kwargs.get(name)


def _places(schema: Any) -> tuple[Positions, Positions, Positions]:
    """Which arguments an operator writes, which when it trains, and which say so."""
    if id(schema) not in _known_places:  # some schemas have no hash
        names = [(i, argument.name) for i, argument in enumerate(schema.arguments)]
        marks = [argument.alias_info for argument in schema.arguments]
        _known_places[id(schema)] = (
            schema,  # kept, as its number would be used again
            tuple(names[i] for i, mark in enumerate(marks) if mark is not None and mark.is_write),
            tuple(place for place in names if place[1] in STATISTICS),
            tuple(place for place in names if place[1] in TRAINING),
        )
    return _known_places[id(schema)][1:]


_known_places: dict[int, tuple[Any, Positions, Positions, Positions]] = {}


def may_draw(name: str, schemas: Schemas, args: Arguments, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator may draw random numbers, by its name, as in `aten::rand`.

    >>> name, schemas = schemas_of(torch.dropout)
    >>> may_draw(name, schemas, (torch.ones(1), 0.5, True), {})
    True
    >>> may_draw(name, schemas, (torch.ones(1), 0.5, False), {})
    False
    """
    return _is_random(name) and not any(is_still(schema, args, kwargs) for schema in schemas)


@functools.cache
def _is_random(name: str) -> bool:
    namespace, _, own_name = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), own_name, None)
    tags = [getattr(packet, overload).tags for overload in packet.overloads()] if packet else []
    return any(torch.Tag.nondeterministic_seeded in some for some in tags)


def draws(operator: Any, args: Arguments, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator's overload draws random numbers."""
    tags = operator.tags if isinstance(operator, OpOverload) else ()
    random = torch.Tag.nondeterministic_seeded in tags
    return random and not is_still(operator._schema, args, kwargs)


def is_still(schema: Any, args: Arguments, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator that may draw random numbers is told not to, as by a dropout of 0."""
    values = {
        one.name: args[i] if i < len(args) else kwargs.get(one.name, one.default_value)
        for i, one in enumerate(schema.arguments)
    }
    rate = values.get("dropout_p")
    return values.get("training", values.get("train")) is False or (
        type(rate) in (int, float) and rate == 0
    )


def returns_fresh(fn: Callable[..., Any]) -> bool:
    """Whether results never lie in the memory of arguments: torch's operators declare it.

    Not so where they are called with `out`; of other functions, and of operators made of others, it
    is not known.

    >>> returns_fresh(torch.mm), returns_fresh(torch.t), returns_fresh(lambda x: x)
    (True, False, False)
    """
    operator, schemas = schemas_of(fn)
    return bool(schemas) and _operator_returns_fresh(fn, operator)


@functools.cache
def _operator_returns_fresh(fn: Callable[..., Any], operator: str) -> bool:
    schemas = schemas_of(fn)[1]
    name = operator.rpartition("::")[2]
    if name in _FRESH:
        return True
    if name in _NOT_FRESH or any(part in name for part in _NOT_FRESH_PARTS):
        return False
    is_of_others = has_kernel_for(_dispatch_name(schemas[0]), "CompositeImplicitAutograd")
    results = [result for schema in schemas for result in schema.returns]
    declares = operator.startswith("aten::") and not is_of_others and bool(results)
    return declares and all(result.alias_info is None for result in results)
