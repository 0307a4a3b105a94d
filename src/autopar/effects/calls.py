"""Calls: one call in its plain form, and what it is known to write before anything runs."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from autopar.effects.chance import NEVER, chance_of, chance_of_operator, is_switched_off
from autopar.effects.memory import MEMORY, is_array
from autopar.effects.task import Task

Arguments = tuple[Any, ...]
Schemas = tuple[Any, ...]
Places = tuple[tuple[int, str], ...]

_written: dict[int, tuple[Any, Places, Places, Places]] = {}  # of declarations, by id
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
_C: Any = torch._C  # whose parts have no types
_HOMES = (torch, torch.Tensor, _C._nn, _C._linalg, _C._fft, _C._special)
_STATISTICS = {"running_mean", "running_var"}  # written when training, which no schema says
_TRAINING = ("training", "train", "use_input_stats")
_MOVES = {"aten::set_", "aten::set_data"}
_MOVE_MODULES = {"to", "to_empty", "type", "half", "bfloat16", "float", "double", "cpu", "cuda"}
_CHANGE_MODULES = {"train", "eval", "requires_grad_", "add_module", "compile"}
# What functions of torch.nn.utils change that is no layer of a module.
_PLAIN_UTILITIES = {"clip_grad", "convert_parameters", "rnn", "stateless"}
_CHANGING = {  # methods of containers, which make no sense for copies of them
    kind: {*dir(kind)} - {*dir(alike), "copy", "fromkeys", "__copy__", "__reversed__"}
    for kind, alike in ((list, tuple), (dict, types.MappingProxyType), (deque, tuple))
}
_BOUND = (types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType)
_ROUTINES = (*_BOUND, types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_CHANGE_GRADIENTS = {"backward", "zero_grad", "unscale_", "clip_grad_norm_", "clip_grad_value_"}


class Declared(NamedTuple):
    """What is known of a call before it is made.

    Args:
        writes: Arguments and other tensors that it changes in place.
        complete: Whether nothing else can be: torch's operators say all that they write.
        random: Whether it draws random numbers.
        gradients: `r` if it may read tensors' gradients, `w` if it may change them, too.
        fault: Why it can't be a task, if it can't.
    """

    writes: list[Any]
    complete: bool
    random: bool
    gradients: str
    fault: str


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
        owner = _bound_to(fn)
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
    """What a plain call writes, as far as its function says so.

    Args:
        fn: The function: an operator, a function, a module, a method of an optimizer.
        args: Its arguments.
        kwargs: The same, by name.
        names: What the code that it runs loads, by name.

    >>> x = torch.ones(2)
    >>> declared(torch.Tensor.add_, (x, 1), {}).writes[0] is x
    True
    >>> declared(torch.add, (x, 1), {})
    Declared(writes=[], complete=True, random=False, gradients='', fault='')
    """
    name, names = name_of(fn), set(names)
    operators, schemas = schemas_of(fn)
    found: list[Any] = [kwargs.get("out")]
    found += [each for schema in schemas for each in written_arguments(schema, args, kwargs)]
    if (type(fn) is types.BuiltinFunctionType and fn in _IN_PLACE) or (
        name in _IN_PLACE_METHODS and getattr(torch.Tensor, name, None) is fn
    ):
        found += args[:1]
    found += _written_in_python(fn, name, args, kwargs)
    found += _written_by_modules(fn, args, kwargs)
    found += _written_by_methods(fn, name, args)
    complete = operators.startswith("aten::") and type(fn) is not types.FunctionType
    gradients = "w" if (names | {name}) & _CHANGE_GRADIENTS else "r" if "grad" in names else ""
    if _owner(fn, torch.optim.Optimizer) is not None:
        gradients = "w"
    random = _draws(fn, operators, schemas, args, kwargs)
    fault = _fault(fn, name, operators, args, kwargs)
    return Declared(_distinct(found), complete, random, gradients, fault)


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
    if kind in _ROUTINES or str(kind.__module__).partition(".")[0] in _NAMING:
        return str(getattr(fn, "__name__", None) or kind.__name__)
    return fn.__name__ if issubclass(kind, type) else kind.__name__


@functools.cache
def _line_of(code: types.CodeType) -> str:
    return f"<lambda> in {Path(code.co_filename).name}:{code.co_firstlineno}"


def _fault(
    fn: Callable[..., Any], name: str, operators: str, args: Arguments, kwargs: dict[str, Any]
) -> str:
    """Why a call can't be a task, if it can't."""
    first, module = args[0] if args else None, _owner(fn, torch.nn.Module)
    changing = next((own for kind, own in _CHANGING.items() if type(first) is kind), set[str]())
    methods = (types.MethodDescriptorType, types.WrapperDescriptorType)
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
    if type(fn) is _C.ScriptMethod:
        return (
            "is a method of a TorchScript module, which does not tell whose it is; expected a "
            "module or a function. Pass a function that calls it"
        )
    place = getattr(fn, "__module__", None) if type(fn) is types.FunctionType else None
    moves = fn is torch.utils.swap_tensors or fn is torch.nn.utils.vector_to_parameters
    if moves or (operators in _MOVES and len(args) + len(kwargs) > 1):
        return (
            "is to give a tensor other memory, where others would not look for it; expected "
            "tensors that stay where they are. Use copy_, or do it before"
        )
    if module is not None and name in _MOVE_MODULES:
        return "is to give a module's tensors other memory; expected it done before"
    utility = str(place).removeprefix("torch.nn.utils.").partition(".")[0]
    if str(place).startswith("torch.nn.utils.") and utility not in _PLAIN_UTILITIES:
        return "is to change the layers of a module; expected it done before the graph is run"
    if module is not None and (name in _CHANGE_MODULES or name.startswith("register_")):
        return (
            "is to change how a module works, for all tasks that use it and in every later run; "
            "expected it done before. Call it yourself, between runs"
        )
    if _owner(fn, torch.optim.lr_scheduler.LRScheduler) is not None and name == "step":
        return (
            "is to change the rates of an optimizer, which are no tensors; expected it between "
            "runs. Call it yourself, after run()"
        )
    return ""


def written_arguments(schema: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Arguments that an operator changes in place, by its declaration.

    Batch norms change their statistics when they train; no declaration says so.
    """
    written, statistics, training = _writes(schema)
    if written or statistics:
        given = [*args, *[None] * (len(schema.arguments) - len(args))]
        trains = all(given[i] if i < len(args) else kwargs.get(name) for i, name in training)
        for i, name in (*written, *(statistics if trains else ())):
            yield given[i] if i < len(args) else kwargs.get(name)


def _writes(schema: Any) -> tuple[Places, Places, Places]:
    """Which arguments an operator writes, which when it trains, and which say so."""
    if id(schema) not in _written:
        places = list(enumerate(schema.arguments))
        marks = [each.alias_info is not None and each.alias_info.is_write for _, each in places]
        _written[id(schema)] = (
            schema,  # kept, as its number would be used again
            tuple((i, each.name) for i, each in places if marks[i]),
            tuple((i, each.name) for i, each in places if each.name in _STATISTICS),
            tuple((i, each.name) for i, each in places if each.name in _TRAINING),
        )
    return _written[id(schema)][1:]


def draws(called: Any, args: Arguments, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers."""
    tags = called.tags if isinstance(called, torch._ops.OpOverload) else ()
    random = torch.Tag.nondeterministic_seeded in tags
    return random and not _is_still(called._schema, args, kwargs)


def _draws(
    fn: Callable[..., Any],
    operators: str,
    schemas: Schemas,
    args: Arguments,
    kwargs: Mapping[str, Any],
) -> bool:
    """Whether a call of one of torch's functions draws from the generator that all share."""
    chance = chance_of_operator(operators) if operators else chance_of(fn)
    if chance == NEVER or kwargs.get("generator") is not None:
        return False
    if operators:
        return not any(_is_still(each, args, kwargs) for each in schemas)
    return not is_switched_off(_bound(fn, args, kwargs))


def _bound(fn: Any, args: Arguments, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, defaults too; none if a function can't be called so: the task says it."""
    try:
        bound = inspect.signature(fn).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    return dict(bound.arguments)


def _is_still(schema: Any, args: Arguments, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator that may draw random numbers is told not to, as by a dropout of 0."""
    given = {
        each.name: args[i] if i < len(args) else kwargs.get(each.name, each.default_value)
        for i, each in enumerate(schema.arguments)
    }
    off = any(given.get(name) is False for name in _TRAINING)
    return off or given.get("dropout_p") == 0


def schemas_of(fn: Callable[..., Any]) -> tuple[str, Schemas]:
    """The name of one of torch's operators and its declarations; nothing for other functions."""
    if str(type(fn).__module__).partition(".")[0] in ("torch", "autopar"):
        fn = getattr(fn, "_opoverload", fn)  # what torch.library.custom_op makes
    if type(fn) is torch._ops.OpOverload:
        return fn._schema.name, (fn._schema,)
    if type(fn) is torch._ops.OpOverloadPacket:
        return _of_packet(fn._qualified_op_name)
    owner = _bound_to(fn)
    if type(fn) not in _ROUTINES or type(owner) not in (type(None), types.ModuleType):
        return "", ()
    return ("", ()) if type(fn) is types.FunctionType and _is_own(fn) else _of_routine(fn)


@functools.cache
def _of_routine(fn: Callable[..., Any]) -> tuple[str, Schemas]:
    name = str(getattr(fn, "__name__", ""))
    if not name or all(getattr(home, name, None) is not fn for home in _HOMES):
        return "", ()
    return _of_packet(f"aten::{name}")


@functools.cache
def _of_packet(name: str) -> tuple[str, Schemas]:
    """All declarations of one name, but for those with `out`, and those of TorchScript alone."""
    schemas = tuple(
        each
        for each in torch._C._jit_get_schemas_for_operator(name)
        if torch._C._dispatch_has_kernel(qualified(each))
        and not any(argument.is_out for argument in each.arguments)
    )
    return (name, schemas) if schemas else ("", ())


def qualified(schema: Any) -> str:
    """The name that torch dispatches an operator by."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _written_in_python(
    fn: Callable[..., Any], name: str, args: Arguments, kwargs: dict[str, Any]
) -> list[Any]:
    """What functions in Python write, by torch's habits of naming."""
    if type(fn) is not types.FunctionType:
        return []
    of_torch = not _is_own(fn)
    parameters = fn.__code__.co_varnames[: fn.__code__.co_argcount + fn.__code__.co_kwonlyargcount]
    if of_torch and name.endswith("_") and not name.endswith("__"):
        return [*args[:1]] or [*kwargs.values()][:1]
    if not {"inplace", *_STATISTICS}.intersection(parameters):
        return []
    given, found = _bound(fn, args, kwargs), []
    if given.get("inplace") is True:
        found.append(next(iter(given.values())))
    if of_torch and all(given.get(each, True) for each in _TRAINING):
        found += [given[each] for each in _STATISTICS & given.keys()]
    return found


def _written_by_modules(
    fn: Callable[..., Any], args: Arguments, kwargs: dict[str, Any]
) -> list[Any]:
    """What a module writes: its input, if its first layer works in place, and statistics."""
    module = _owner(fn, torch.nn.Module)
    if module is None:
        return []
    found: list[Any] = []
    for each in module.modules():
        if each.training and getattr(each, "running_mean", None) is not None:
            found += each.buffers(recurse=False)
    first = module
    while isinstance(first, torch.nn.Sequential) and len(first):
        first = first[0]
    if getattr(first, "inplace", False) is True:
        found += [*args, *kwargs.values()][:1]
    return found


def _written_by_methods(fn: Callable[..., Any], name: str, args: Arguments) -> list[Any]:
    """What methods of optimizers and of tensors' storages write."""
    optimizer = _owner(fn, torch.optim.Optimizer)
    if optimizer is not None and name == "step":
        parameters = [group["params"] for group in optimizer.param_groups]
        return [parameters, dict(enumerate(optimizer.state.values()))]
    storage = _owner(fn, (torch.UntypedStorage, torch.TypedStorage))
    if storage is not None and (name.endswith("_") or name == "__setitem__"):
        return [storage]
    return []


def _owner(fn: Any, kind: Any) -> Any:
    """What a method is bound to, or what is called, if it is of a kind."""
    for each in (fn, _bound_to(fn)):
        if issubclass(type(each), kind):
            return each
    return None


def _bound_to(fn: Any) -> Any:
    """What a method is bound to; nothing that an object of the program's says of itself."""
    return fn.__self__ if type(fn) in _BOUND else None


def _is_own(fn: Callable[..., Any]) -> bool:
    """Whether a function is not torch's."""
    return str(fn.__module__).partition(".")[0] != "torch"


def _distinct(values: list[Any]) -> list[Any]:
    """Each leaf once, if it is memory or a task; others can't be written."""
    leaves = {id(leaf): leaf for leaf in pytree.tree_leaves(values)}
    return [leaf for leaf in leaves.values() if issubclass(type(leaf), _MEMORY) or is_array(leaf)]


_MEMORY = (*MEMORY, Task)
