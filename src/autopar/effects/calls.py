"""Calls: one call in its plain form, and what torch's operators say that it writes."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from autopar.effects import operators
from autopar.effects.memory import MEMORY, is_array
from autopar.effects.operators import Arguments
from autopar.effects.task import Task
from autopar.torch_private import pytree

_WHERE = {"self", "size", "stride"}  # of a call that says where in memory it reads
_NAMING = {"autopar", "functools", "operator", "torch"}  # whose objects may have names

_MOVES = {"aten::set_", "aten::set_data", "aten::as_strided_"}  # and all that resize
_RESIZES = ("aten::resize", "aten::_resize", "aten::sparse_resize")  # and what begins so
_TENSOR_FUNCTION = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
_PLAIN = {
    *(Task, torch.UntypedStorage, torch.TypedStorage, torch.Generator, torch.Size),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, type(None), type(...)),
    *(bool, int, float, complex, str, bytes, range),
}


class Declared(NamedTuple):
    """What is known of a call before it is made."""

    writes: list[Any]  # arguments that it changes in place, generators among them
    random: bool  # whether it draws from the random numbers that all share
    fresh: bool  # whether its results never lie in the memory of its arguments
    complete: bool  # whether torch itself answers for it, so that nobody has to look
    beyond: bool = False  # whether it may leave the parts of memory that it is given


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
        owner = operators.bound_to(fn)
        if type(fn) is functools.partial:
            args, given = (*fn.args, *args), {**fn.keywords, **given}
            fn = fn.func
        elif issubclass(type(owner), torch.Tensor) and hasattr(type(owner), fn.__name__):
            fn = getattr(fn, "__func__", None) or getattr(type(owner), fn.__name__)
            args = (owner, *args)
        else:
            return fn, args, given


def is_plain(leaf: Any) -> bool:
    """Whether an operator that is given this does no more than it declares.

    Not so with objects that have code of their own, which it may run, also if they are tensors or
    arrays, and with containers of other kinds, whose tensors it may use.

    >>> is_plain(torch.ones(1)), is_plain(1.5), is_plain({1, 2})
    (True, True, False)
    """
    kind = type(leaf)
    if kind is slice:
        return all(type(bound) in _PLAIN for bound in (leaf.start, leaf.stop, leaf.step))
    if is_array(leaf):
        return kind.__mro__[1:] == (object,) and not leaf.dtype.hasobject
    if not issubclass(kind, torch.Tensor):
        return kind in _PLAIN
    if str(kind.__module__).partition(".")[0] != "torch":
        return False
    own = getattr(kind.__torch_function__, "__func__", _TENSOR_FUNCTION)
    return own is _TENSOR_FUNCTION and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def declared(
    task: str, fn: Callable[..., Any], args: Arguments, kwargs: dict[str, Any]
) -> Declared | None:
    """What a plain call of an operator writes, as the operator says; nothing is known of others.

    Nor is anything of arguments by other names than declarations have, as `relu_(input=x)`.

    Raises:
        ValueError: It gives a tensor other memory, where tasks would not look for it.

    >>> declared("sum", torch.add, (torch.ones(2), 1), {})
    Declared(writes=[], random=False, fresh=True, complete=True, beyond=False)
    """
    name, (operator_name, schemas) = name_of(fn), operators.schemas_of(fn)
    is_method = getattr(torch.Tensor, name, None) is fn
    if (
        fn is torch.utils.swap_tensors
        or fn is torch.nn.utils.vector_to_parameters
        or (operator_name in _MOVES and len(args) + len(kwargs) > 1)
        or operator_name.startswith(_RESIZES)
        or (is_method and "resize" in name)
    ):
        msg = (
            f"task {task!r} is to give a tensor other memory, where others would not look for it; "
            f"expected tensors that stay where they are. Use copy_, or do it before."
        )
        raise ValueError(msg)
    told = [operators.declares(schema) for schema in schemas]
    names = set[str]().union(*(one.defaults for one in told))
    if not schemas or kwargs.keys() - names - {"out"}:  # a name of Python's alone
        return None
    into = {"out"}.union(*(one.outputs for one in told)) & kwargs.keys()
    outputs = [kwargs[name] for name in into if kwargs[name] is not None]
    generator = kwargs.get("generator")
    written = [generator, *outputs]
    for schema in schemas:
        written += operators.written_arguments(schema, args, kwargs)
    draws = generator is None and operators.is_random(operator_name)
    random = draws and not all(operators.is_still(one.values(args, kwargs)) for one in told)
    fresh = not outputs and operators.returns_fresh(fn)
    complete = operator_name.startswith("aten::")
    beyond = any(one.defaults.keys() >= _WHERE for one in told)
    # Each leaf once, if it is memory, a generator or a task; others can't be written.
    leaves = {id(leaf): leaf for leaf in pytree.tree_leaves(written)}.values()
    kinds = (*MEMORY, torch.Generator, Task)
    writes = [leaf for leaf in leaves if issubclass(type(leaf), kinds) or is_array(leaf)]
    return Declared(writes, random, fresh, complete, beyond)


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
    if kind in operators.ROUTINES or str(kind.__module__).partition(".")[0] in _NAMING:
        return str(getattr(fn, "__name__", None) or kind.__name__)
    return fn.__name__ if issubclass(kind, type) else kind.__name__


@functools.cache
def _line_of(code: types.CodeType) -> str:
    return f"<lambda> in {Path(code.co_filename).name}:{code.co_firstlineno}"
