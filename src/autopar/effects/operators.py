"""Operators: what torch's operators declare: what they write, and what they return."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from autopar import torch_private as private

Arguments = tuple[Any, ...]
Schemas = tuple[Any, ...]

_STATISTICS = {"running_mean", "running_var"}  # written when training, which no schema says
_TRAINING = {"training", "train", "use_input_stats"}
BOUND = (types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType)
ROUTINES = (*BOUND, types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)

_HOMES = (torch, torch.Tensor, *private.OPERATOR_HOMES)
# Operators made of others declare nothing of their own; these are known to return fresh memory.
_FRESH = {"matmul", "linear", "softmax", "log_softmax", "conv1d", "conv2d", "conv3d"}
# These declare nothing, and may give their argument back, or a part of it.
_NOT_FRESH = {"dequantize", "to_dense", "conj_physical", "to_mkldnn", "lift"}
_NOT_FRESH_PARTS = ("unsafe", "dropout", "sparse", "nested")


def schemas_of(fn: Callable[..., Any]) -> tuple[str, Schemas]:
    """The name of one of torch's operators and its declarations; nothing for other functions."""
    if str(type(fn).__module__).partition(".")[0] == "torch":
        fn = getattr(fn, "_opoverload", fn)  # what torch.library.custom_op makes
    if type(fn) is private.OpOverload:
        return fn._schema.name, (fn._schema,)
    if type(fn) is private.OpOverloadPacket:
        return _of_packet(fn._qualified_op_name)
    if type(fn) not in ROUTINES or type(bound_to(fn)) not in (type(None), types.ModuleType):
        return "", ()
    name = str(getattr(fn, "__name__", ""))  # not kept by function: torch.mm equals torch.dsmm
    is_theirs = name and any(getattr(home, name, None) is fn for home in _HOMES)
    is_python = type(fn) is types.FunctionType
    return _of_packet(f"aten::{name}") if is_theirs and not is_python else ("", ())


@functools.cache
def routine_of(operator: private.OpOverload, count: int) -> Callable[..., Any] | None:
    """The routine of torch that does the same given so many tensors and numbers, if there is one.

    The first is a tensor. Python is through with it sooner than with the operator. It means some
    operator of this name, and no two of these names tell apart what they are given otherwise. What
    could be left out must be given: routines have defaults of their own.
    """
    schema, home = operator._schema, (torch, torch.Tensor)
    if count != sum(not one.kwarg_only for one in schema.arguments):
        return None
    kinds = [str(one.type) for one in (*schema.arguments[:1], *schema.returns)]
    if kinds != ["Tensor", "Tensor"] or schema.overload_name not in ("", "int", "Tensor"):
        return None
    space, _, name = schema.name.partition("::")
    found = [getattr(one, name, None) for one in home if space == "aten" and name[:2] != "__"]
    kept = (types.BuiltinFunctionType, types.MethodDescriptorType)  # and no functions of Python
    return next((fn for fn in found if type(fn) in kept), None)


@functools.cache
def _of_packet(name: str) -> tuple[str, Schemas]:
    """All declarations of one name, but for those of TorchScript alone."""
    schemas = tuple(one for one in private.schemas_for(name) if private.has_kernel(_full_name(one)))
    return (name, schemas) if schemas else ("", ())


def _full_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def bound_to(fn: Any) -> Any:
    """What a method is bound to; nothing that an object of the program's says of itself."""
    return fn.__self__ if type(fn) in BOUND else None


class Declares(NamedTuple):
    """What one declaration of an operator says of its arguments."""

    defaults: dict[str, Any]  # by their names
    positional: tuple[str, ...]  # those that need no name
    written: tuple[str, ...]
    outputs: tuple[str, ...]  # those that results are put in

    def values(self, args: Arguments, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by their names."""
        return {**self.defaults, **dict(zip(self.positional, args, strict=False)), **kwargs}


def declares(schema: Any) -> Declares:
    """What a declaration says; taken from it once."""
    if id(schema) not in _known:  # some schemas have no hash
        arguments = schema.arguments
        told = Declares(
            {one.name: one.default_value for one in arguments},
            tuple(one.name for one in arguments if not one.kwarg_only),
            tuple(one.name for one in arguments if one.alias_info and one.alias_info.is_write),
            tuple(one.name for one in arguments if one.is_out),
        )
        _known[id(schema)] = schema, told  # both, as its number would be used again
    return _known[id(schema)][1]


_known: dict[int, tuple[Any, Declares]] = {}


def written_arguments(schema: Any, args: Arguments, kwargs: Mapping[str, Any]) -> list[Any]:
    """Arguments that an operator changes in place, by its declaration, or as it trains."""
    told = declares(schema)
    trains = not _STATISTICS.isdisjoint(told.defaults)
    if not (told.written or trains):
        return []
    values = told.values(args, kwargs)
    names = set(told.written)
    if trains and all(values.get(name, True) for name in _TRAINING):
        names |= _STATISTICS
    return [value for name, value in values.items() if name in names]


@functools.cache
def is_random(name: str) -> bool:
    """Whether an operator may draw random numbers, by its name, as in `aten::rand`."""
    namespace, _, own_name = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), own_name, None)
    tags = [getattr(packet, overload).tags for overload in packet.overloads()] if packet else []
    return any(torch.Tag.nondeterministic_seeded in some for some in tags)


def is_still(values: Mapping[str, Any]) -> bool:
    """Whether arguments tell an operator not to draw random numbers, as by a dropout of 0."""
    rate = values.get("dropout_p")
    return values.get("training", values.get("train")) is False or (
        type(rate) in (int, float) and rate == 0
    )


@functools.cache
def returns_fresh(fn: Callable[..., Any]) -> bool:
    """Whether an operator's results never lie in the memory of its arguments, as far as is known.

    >>> returns_fresh(torch.mm), returns_fresh(torch.t)
    (True, False)
    """
    operator, schemas = schemas_of(fn)
    name = operator.rpartition("::")[2]
    if name in _FRESH:
        return True
    if name in _NOT_FRESH or any(part in name for part in _NOT_FRESH_PARTS):
        return False
    makers = [schema for schema in schemas if not declares(schema).outputs]
    implicit = "CompositeImplicitAutograd"
    is_of_others = any(private.has_kernel_for(_full_name(one), implicit) for one in makers)
    results = [result for schema in makers for result in schema.returns]
    tells = operator.startswith("aten::") and not is_of_others and bool(results)
    return tells and all(result.alias_info is None for result in results)
