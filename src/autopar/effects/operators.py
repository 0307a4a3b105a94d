"""Operators: what torch's operators declare: what they write, and what they return."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

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
Positions = tuple[tuple[float, str], ...]  # of arguments: where each is, and its name

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
    """All declarations of one name, but for those of TorchScript alone."""
    schemas = tuple(schema for schema in schemas_for(name) if has_kernel(_dispatch_name(schema)))
    return (name, schemas) if schemas else ("", ())


def _dispatch_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def bound_to(fn: Any) -> Any:
    """What a method is bound to; nothing that an object of the program's says of itself."""
    return fn.__self__ if type(fn) in BOUND else None


class Declares(NamedTuple):
    """What one declaration of an operator says of its arguments."""

    written: Positions
    statistics: Positions  # which a batch norm writes when it trains; no declaration says so
    training: Positions  # which say whether it does
    names: frozenset[str]
    outputs: frozenset[str]  # names of those that results are put in


def declares(schema: Any) -> Declares:
    """What a declaration says; taken from it once."""
    if id(schema) not in _known:  # some schemas have no hash
        arguments = schema.arguments
        at = [(math.inf if one.kwarg_only else i, one.name) for i, one in enumerate(arguments)]
        marks = [one.alias_info for one in arguments]
        _known[id(schema)] = (
            schema,  # kept, as its number would be used again
            Declares(
                tuple(at[i] for i, mark in enumerate(marks) if mark is not None and mark.is_write),
                tuple(place for place in at if place[1] in STATISTICS),
                tuple(place for place in at if place[1] in TRAINING),
                frozenset(one.name for one in arguments),
                frozenset(one.name for one in arguments if one.is_out),
            ),
        )
    return _known[id(schema)][1]


_known: dict[int, tuple[Any, Declares]] = {}


def written_arguments(schema: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Arguments that an operator changes in place, by its declaration, or as it trains."""
    told = declares(schema)
    places = told.written
    if told.statistics and all(_given(place, args, kwargs) for place in told.training):
        places += told.statistics
    for place in places:
        yield _given(place, args, kwargs)


def outputs(schemas: Schemas, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that an operator puts results in: `out`, or what one of its overloads calls it."""
    names = {"out"}.union(*(declares(schema).outputs for schema in schemas))
    return {name: value for name, value in kwargs.items() if name in names and value is not None}


def strangers(schemas: Schemas, kwargs: Mapping[str, Any]) -> list[Any]:
    """What may be written under a name that no declaration has, as by `relu_(input=x)`."""
    told = [declares(schema) for schema in schemas]
    names = frozenset[str]().union(*(one.names for one in told))
    writes = kwargs.keys() - names and any(one.written and not one.outputs for one in told)
    return [value for name, value in kwargs.items() if name not in names] if writes else []


def _given(place: tuple[float, str], args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    i, name = place
    return args[int(i)] if i < len(args) else kwargs.get(name)


def may_draw(name: str, schemas: Schemas, args: Arguments, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator may draw random numbers, by its name, as in `aten::rand`.

    >>> name, schemas = schemas_of(torch.dropout)
    >>> may_draw(name, schemas, (torch.ones(1), 0.5, True), {})
    True
    >>> may_draw(name, schemas, (torch.ones(1), 0.5, False), {})
    False
    """
    return _is_random(name) and not all(_is_still(schema, args, kwargs) for schema in schemas)


@functools.cache
def _is_random(name: str) -> bool:
    namespace, _, own_name = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), own_name, None)
    tags = [getattr(packet, overload).tags for overload in packet.overloads()] if packet else []
    return any(torch.Tag.nondeterministic_seeded in some for some in tags)


def _is_still(schema: Any, args: Arguments, kwargs: Mapping[str, Any]) -> bool:
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

    Not so where they are called with `outputs`; of other functions, and of operators made of
    others, it is not known.

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
    makers = [schema for schema in schemas if not declares(schema).outputs]
    implicit = "CompositeImplicitAutograd"
    is_of_others = any(has_kernel_for(_dispatch_name(schema), implicit) for schema in makers)
    results = [result for schema in makers for result in schema.returns]
    tells = operator.startswith("aten::") and not is_of_others and bool(results)
    return tells and all(result.alias_info is None for result in results)
