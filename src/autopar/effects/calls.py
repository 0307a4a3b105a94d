"""Calls: one call in its plain form, and what it is known to write before anything runs."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from autopar.effects.chance import NEVER, chance_of, chance_of_operator, is_still, is_switched_off
from autopar.effects.memory import MEMORY, is_array
from autopar.effects.operators import (
    ROUTINES,
    STATISTICS,
    TRAINING,
    Arguments,
    Schemas,
    bound_to,
    is_of_torch,
    parameters_of,
    schemas_of,
    written_arguments,
)
from autopar.effects.task import Task
from autopar.torch_private import ScriptMethod, pytree

_NAMING = {"autopar", "functools", "operator", "torch"}  # whose objects may have names

# Python's own operators that change their first argument.
_IN_PLACE = {operator.setitem, operator.delitem} | {
    getattr(operator, f"i{name}")
    for name in (
        *("add", "and", "concat", "floordiv", "lshift", "matmul", "mod", "mul", "or"),
        *("pow", "rshift", "sub", "truediv", "xor"),
    )
}
_IN_PLACE_METHODS = {"__setitem__", "__delitem__"} | {f"__{fn.__name__}__" for fn in _IN_PLACE}
_CHANGING = {  # methods of containers, which make no sense for copies of them
    kind: {*dir(kind)} - {*dir(alike), "copy", "fromkeys", "__copy__", "__reversed__"}
    for kind, alike in ((list, tuple), (dict, types.MappingProxyType), (deque, tuple))
}
_MOVES = {"aten::set_", "aten::set_data"}
# Methods of modules that give their tensors other memory, or change how they work.
_CHANGE_MODULES = {
    *("to", "to_empty", "type", "half", "bfloat16", "float", "double", "cpu", "cuda"),
    *("train", "eval", "requires_grad_", "add_module", "compile"),
}
# What functions of torch.nn.utils change that is no layer of a module.
_PLAIN_UTILITIES = {"clip_grad", "convert_parameters", "rnn", "stateless"}
_CHANGE_GRADIENTS = {"backward", "zero_grad", "unscale_", "clip_grad_norm_", "clip_grad_value_"}


class Declared(NamedTuple):
    """What is known of a call before it is made."""

    writes: list[Any]  # arguments and other tensors that it changes in place
    complete: bool  # nothing else can be: torch's operators say all that they write
    random: bool
    gradients: str  # `r` if it may read tensors' gradients, `w` if it may change them, too
    fault: str  # why it can't be a task, if it can't


def plain(
    fn: Callable[..., Any], args: Arguments, kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], Arguments, dict[str, Any]]:
    """A call without partial functions and methods that are bound to tensors.

    >>> x = torch.ones(1)
    >>> plain(functools.partial(x.add, alpha=2), (3,), {})[1:]
    ((tensor([1.]), 3), {'alpha': 2})
    """
    given = dict(kwargs)
    while True:
        owner = bound_to(fn)
        if issubclass(type(fn), functools.partial):
            partial: Any = fn
            fn, args = partial.func, (*partial.args, *args)
            given = {**partial.keywords, **given}
        elif issubclass(type(owner), torch.Tensor) and hasattr(type(owner), fn.__name__):
            fn = getattr(fn, "__func__", None) or getattr(type(owner), fn.__name__)
            args = (owner, *args)
        else:
            return fn, args, given


def declared(
    fn: Callable[..., Any], args: Arguments, kwargs: dict[str, Any], names: Iterable[str] = ()
) -> Declared:
    """What a plain call writes, as far as its function says so; `names` are those its code loads.

    >>> x = torch.ones(2)
    >>> declared(torch.Tensor.add_, (x, 1), {}).writes[0] is x
    True
    >>> declared(torch.add, (x, 1), {})
    Declared(writes=[], complete=True, random=False, gradients='', fault='')
    """
    name, names = name_of(fn), {*names}
    operator_name, schemas = schemas_of(fn)
    written = [kwargs.get("out")]
    for schema in schemas:
        written += written_arguments(schema, args, kwargs)
    if (type(fn) is types.BuiltinFunctionType and fn in _IN_PLACE) or (
        name in _IN_PLACE_METHODS and getattr(torch.Tensor, name, None) is fn
    ):
        written += args[:1]
    written += _written_in_python(fn, name, args, kwargs)
    written += _written_by_objects(fn, name, args, kwargs)
    complete = operator_name.startswith("aten::") and type(fn) is not types.FunctionType
    gradients = "r" if "grad" in names else ""
    is_optimizer = _owner(fn, torch.optim.Optimizer) is not None
    if not _CHANGE_GRADIENTS.isdisjoint({*names, name}) or is_optimizer:
        gradients = "w"
    random = _draws(fn, operator_name, schemas, args, kwargs)
    fault = _fault(fn, name, operator_name, args, kwargs)
    return Declared(_distinct(written), complete, random, gradients, fault)


def name_of(fn: Callable[..., Any]) -> str:
    """What a function is called: a module by its class, a lambda by its line.

    >>> name_of(functools.partial(torch.add, 1)), name_of(torch.nn.ReLU())
    ('add', 'ReLU')
    """
    kind = type(fn)
    if kind is types.FunctionType:
        name = fn.__name__
        return _line_of(fn.__code__) if name == "<lambda>" else str(name)
    if issubclass(kind, functools.partial):
        return name_of(fn.func)  # type: ignore[attr-defined]
    if kind is types.MethodType:
        return name_of(fn.__func__)  # type: ignore[attr-defined]
    if kind in ROUTINES or str(kind.__module__).partition(".")[0] in _NAMING:
        return str(getattr(fn, "__name__", None) or kind.__name__)
    return fn.__name__ if issubclass(kind, type) else kind.__name__


@functools.cache
def _line_of(code: types.CodeType) -> str:
    return f"<lambda> in {Path(code.co_filename).name}:{code.co_firstlineno}"


def _fault(
    fn: Callable[..., Any], name: str, operator_name: str, args: Arguments, kwargs: dict[str, Any]
) -> str:
    """Why a call can't be a task, if it can't."""
    methods = (types.MethodDescriptorType, types.WrapperDescriptorType)
    changing = _CHANGING.get(type(args[0]), set[str]()) if args else set[str]()
    if (type(fn) in methods and name in changing) or (
        type(fn) is types.BuiltinFunctionType and fn in _IN_PLACE and changing
    ):
        return (
            "is to change a list or a dict, and each run makes new ones; expected a tensor. "
            "Return what it makes"
        )
    if fn is setattr or fn is delattr:
        return (
            "is to change an attribute, which others would read in any order; expected a tensor "
            "that is written. Use copy_, or return the value"
        )
    if type(fn) is ScriptMethod:
        return (
            "is a method of a TorchScript module, which does not tell whose it is; expected a "
            "module or a function. Pass a function that calls it"
        )
    moves = fn is torch.utils.swap_tensors or fn is torch.nn.utils.vector_to_parameters
    if moves or (operator_name in _MOVES and len(args) + len(kwargs) > 1):
        return (
            "is to give a tensor other memory, where others would not look for it; expected "
            "tensors that stay where they are. Use copy_, or do it before"
        )
    home = str(getattr(fn, "__module__", None)) if type(fn) is types.FunctionType else ""
    utility = home.removeprefix("torch.nn.utils.")
    changes_module = utility != home and utility.partition(".")[0] not in _PLAIN_UTILITIES
    if _owner(fn, torch.nn.Module) is not None:
        changes_module |= name in _CHANGE_MODULES or name.startswith("register_")
    if changes_module:
        return (
            "is to change a module, for all tasks that use it and in every later run; expected it "
            "done before. Call it yourself, between runs"
        )
    if name == "step" and _owner(fn, torch.optim.lr_scheduler.LRScheduler) is not None:
        return (
            "is to change the rates of an optimizer, which are no tensors; expected it between "
            "runs. Call it yourself, after run()"
        )
    return ""


def _draws(
    fn: Callable[..., Any],
    operator_name: str,
    schemas: Schemas,
    args: Arguments,
    kwargs: Mapping[str, Any],
) -> bool:
    """Whether a call of one of torch's functions draws from the generator that all share."""
    chance = chance_of_operator(operator_name) if operator_name else chance_of(fn)
    if chance == NEVER or kwargs.get("generator") is not None:
        return False
    if operator_name:
        return not any(is_still(schema, args, kwargs) for schema in schemas)
    return not is_switched_off(_by_name(fn, args, kwargs))


def _by_name(fn: Any, args: Arguments, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, defaults too; none if a function can't be called so: the task says it."""
    try:
        bound = inspect.signature(fn).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    return dict(bound.arguments)


def _written_in_python(
    fn: Callable[..., Any], name: str, args: Arguments, kwargs: dict[str, Any]
) -> list[Any]:
    """What functions in Python write, by torch's habits of naming."""
    if type(fn) is not types.FunctionType:
        return []
    of_torch = is_of_torch(fn)
    if of_torch and name.endswith("_") and not name.endswith("__"):
        return [*args, *kwargs.values()][:1]
    if not {"inplace", *STATISTICS}.intersection(parameters_of(fn)):
        return []
    given = _by_name(fn, args, kwargs)
    written = [*given.values()][:1] if given.get("inplace") is True else []
    if of_torch and all(given.get(name, True) for name in TRAINING):
        written += [given[name] for name in STATISTICS & given.keys()]
    return written


def _written_by_objects(
    fn: Callable[..., Any], name: str, args: Arguments, kwargs: dict[str, Any]
) -> list[Any]:
    """What modules, and methods of modules, optimizers and storages write."""
    written: list[Any] = []
    if (module := _owner(fn, torch.nn.Module)) is not None:
        for part in module.modules():
            if part.training and getattr(part, "running_mean", None) is not None:
                written += part.buffers(recurse=False)
        first = module
        while isinstance(first, torch.nn.Sequential) and len(first):
            first = first[0]
        if getattr(first, "inplace", False) is True:  # it works on its input
            written += [*args, *kwargs.values()][:1]
    optimizer = _owner(fn, torch.optim.Optimizer)
    if optimizer is not None and name == "step":
        written += [group["params"] for group in optimizer.param_groups]
        written.append(dict(enumerate(optimizer.state.values())))
    storage = _owner(fn, (torch.UntypedStorage, torch.TypedStorage))
    if storage is not None and (name.endswith("_") or name == "__setitem__"):
        written.append(storage)
    return written


def _owner(fn: Any, kind: Any) -> Any:
    """What a method is bound to, or what is called, if it is of a kind."""
    return next((one for one in (fn, bound_to(fn)) if issubclass(type(one), kind)), None)


def _distinct(values: list[Any]) -> list[Any]:
    """Each leaf once, if it is memory or a task; others can't be written."""
    leaves = {id(leaf): leaf for leaf in pytree.tree_leaves(values)}
    kinds = (*MEMORY, Task)
    return [leaf for leaf in leaves.values() if issubclass(type(leaf), kinds) or is_array(leaf)]
