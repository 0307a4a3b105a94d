"""Tracing: the operators that unmodified PyTorch code calls, one by one, with what they write."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

_BATCH_NORMS = {  # input, weight, bias, running mean, running variance, whether it trains, ...
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten.cudnn_batch_norm.default,
    torch.ops.aten.miopen_batch_norm.default,
}
_TORCH = Path(torch.__file__).parent


class Call(NamedTuple):
    """One operator that the code has called.

    Args:
        fn: The operator.
        args: Its arguments: values, tensors of the caller's, and `torch.fx` nodes of other calls.
        kwargs: Its keyword arguments.
        device: Where its results lie, or its first tensor, if it has no results.
        writes: Those of its arguments that it changes in place.
        random: Whether it draws random numbers.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device | None
    writes: tuple[Any, ...]
    random: bool


class Traced(NamedTuple):
    """What a function did when it was called.

    Args:
        calls: Its operators, each with the node that stands for its result.
        result: What it returned, with nodes in place of tensors.
    """

    calls: list[tuple[torch.fx.Node, Call]]
    result: Any


def traced(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    """Call a function on tensors without memory, and note the operators that it calls.

    Backward passes by `torch.autograd.grad` and changes in place are among them. Nothing is
    computed, and nothing changed. What it does that is no operator, and each number that it takes
    from a shape, is as it was in this call.

    Raises:
        ValueError: It can't be traced; the message has the reason and the line.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    form: list[pytree.TreeSpec] = []

    def on_tensors(*tensors: torch.Tensor) -> list[Any]:
        given = list(leaves)
        for i, tensor in zip(at, tensors, strict=True):
            given[i] = tensor
        own_args, own_kwargs = pytree.tree_unflatten(given, spec)
        results, result_spec = pytree.tree_flatten(fn(*own_args, **own_kwargs))
        form.append(result_spec)
        return results

    tensors = [leaves[i] for i in at]
    try:
        made = make_fx(on_tensors, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    except Exception as error:
        msg = f"can't trace {_name(fn)}: {_where(error)}{_reason(error)}"
        raise ValueError(msg) from error
    _refuse_gradients(made, fn)
    values: dict[torch.fx.Node, Any] = {}
    calls: list[tuple[torch.fx.Node, Call]] = []
    given = iter(tensors)
    for node in made.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = _constant(made, node)
        elif node.op == "output":
            results = _filled(node.args[0], values)
        else:
            calls.append((node, _call(node, values)))
    return Traced(calls, pytree.tree_unflatten(results, form[-1]))


def _call(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Call:
    args, kwargs = _filled(node.args, values), _filled(node.kwargs, values)
    found = [*_tensors(node.meta.get("val"))]
    if not found:
        found = [
            *_tensors([values.get(each, each.meta.get("val")) for each in node.all_input_nodes])
        ]
    if _only_moves(node, found):
        return Call(_arrived, (args[0],), {}, found[0].device, (), random=False)
    random, writes = False, ()
    if isinstance(node.target, torch._ops.OpOverload):
        random = torch.Tag.nondeterministic_seeded in node.target.tags
        writes = tuple(_written(node.target, args, kwargs))
        if node.target in _BATCH_NORMS:  # which don't declare it
            writes += tuple(each for each in args[3:5] if each is not None and args[5])
    device = found[0].device if found else None
    assert callable(node.target)
    return Call(node.target, tuple(args), dict(kwargs), device, writes, random)


def _only_moves(node: torch.fx.Node, results: list[torch.Tensor]) -> bool:
    """Whether a call copies a tensor to another device, and changes nothing else."""
    if node.target is not torch.ops.aten._to_copy.default:
        return False
    source = node.args[0].meta["val"] if isinstance(node.args[0], torch.fx.Node) else node.args[0]
    (result,) = results
    return (
        isinstance(source, torch.Tensor)
        and source.device != result.device
        and source.dtype == result.dtype
        and source.stride() == result.stride()
    )


def _arrived(tensor: torch.Tensor) -> torch.Tensor:
    """What a graph's own copy has brought to the device where this runs."""
    return tensor


def _filled(arguments: Any, values: dict[torch.fx.Node, Any]) -> Any:
    """Arguments with values in place of those nodes that have one."""
    return pytree.tree_map_only(torch.fx.Node, lambda node: values.get(node, node), arguments)


def _written(
    called: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Any]:
    for number, argument in enumerate(called._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in pytree.tree_leaves(value) if leaf is not None)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _constant(made: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    """A tensor that the function found by itself, as a module's parameters."""
    return operator.attrgetter(str(node.target))(made)


def _refuse_gradients(made: torch.fx.GraphModule, fn: Callable[..., Any]) -> None:
    """Refuse code that has left gradients without memory in tensors, and take them out."""
    found = [_constant(made, node) for node in made.graph.nodes if node.op == "get_attr"]
    left = [each for each in found if isinstance(getattr(each, "grad", None), FakeTensor)]
    for tensor in left:
        tensor.grad = None
    if left:
        msg = (
            f"can't trace {_name(fn)}: it calls backward(), which puts gradients into tensors; "
            f"expected torch.autograd.grad, which returns them."
        )
        raise ValueError(msg)


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__name__))


def _where(error: Exception) -> str:
    """The line that the error comes from: the last that isn't torch's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if _TORCH not in path.parents and path != Path(__file__):
            return f"line {frame.lineno} of {path.name}, `{frame.line}`: "
    return ""


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    first = text[0] if text else type(error).__name__
    if "data-dependent" in first:
        return f"what it does depends on the data ({first}). Compute both ways, or split it there."
    return first
