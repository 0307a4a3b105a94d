"""Traced call: an operator that traced code has called, as a task can call it again."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch

from autopar.effects.memory import has_place, is_size, memory_key, tensors_of
from autopar.graph.refused import Refused
from autopar.torch_private import OpOverload, pytree, to_copy, unsafe_view

# Of a result, a view instead of another shape in place: what comes after reads the view.
_VIEWS: dict[Any, Any] = {torch.ops.aten.as_strided_.default: torch.ops.aten.as_strided.default}
_QUICKER: dict[Any, Any] = {unsafe_view: torch.ops.aten.view.default}  # torch has a routine for it
_IDLE = {operator.getitem, torch.ops.aten.empty.memory_format, torch.ops.aten.detach.default}


class Call(NamedTuple):
    """One operator that the code has called."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]  # values, tensors of the caller's, and `torch.fx` nodes of other calls
    kwargs: dict[str, Any]
    device: torch.device | None  # where its results lie, or its first tensor, if it has none


def call_of(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Call:
    """The call that a node stands for, with values in place of those nodes that have one."""
    args, kwargs = filled(node.args, values), filled(node.kwargs, values)
    results = tensors_of(node.meta.get("val")) or tensors_of(
        [values.get(other, other.meta.get("val")) for other in node.all_input_nodes]
    )
    device = results[0].device if results else None
    if device and device.type == "meta":
        msg = (
            f"it calls {node.target} on 'meta', where tensors have no numbers. Name another device."
        )
        raise Refused(msg)
    if _only_moves(node, results):
        return Call(itself, (args[0],), {}, device)
    others = _VIEWS | _QUICKER if args and isinstance(args[0], torch.fx.Node) else _QUICKER
    return Call(others.get(node.target, node.target), tuple(args), dict(kwargs), device)


def _only_moves(node: torch.fx.Node, results: list[torch.Tensor]) -> bool:
    """Whether a call copies a tensor to another device, and changes nothing else."""
    source = _tensor_of(node.args[0]) if node.args else None
    return (
        node.target is to_copy
        and source is not None
        and source.device != results[0].device
        and source.dtype == results[0].dtype
        and source.stride() == results[0].stride()
    )


def itself(value: Any) -> Any:
    """A value as it is, as what a graph's own copy has brought to the device where this runs."""
    return value


def filled(arguments: Any, values: Mapping[torch.fx.Node, Any]) -> Any:
    """Arguments with values in place of those nodes that have one."""
    kind, value = torch.fx.Node, lambda node: values.get(node, node)
    return pytree.tree_map_only(kind, value, arguments, is_leaf=is_size)


def remove_idle(graph: torch.fx.Graph) -> None:
    """Take out calls that do nothing but return what is there: parts of results, shapes, views."""
    for node in reversed(graph.nodes):
        repeats = _is_repeat(node)
        if repeats:
            node.replace_all_uses_with(node.args[0])
        is_shape = getattr(node.meta.get("val"), "is_meta", False)
        is_idle = repeats or is_shape or node.target in _IDLE
        if is_idle and not node.users:
            graph.erase_node(node)


def _is_repeat(node: torch.fx.Node) -> bool:
    """Whether a call only gives back what others have computed, as half of those of `matmul` do.

    One stays that the code returns, or gives another form; and so does one of a given tensor, which
    autograd may track where what is detached from it is not.
    """
    if type(node.target) is not OpOverload or node.target._schema.is_mutable or not node.args:
        return False
    form = _form(node)
    if form is None or form != _form(node.args[0]):
        return False
    origin = origin_of(node)
    if origin.op != "call_function" or origin.target is operator.getitem:  # of what, isn't known
        return False
    gives_form = torch.Tag.inplace_view
    return not any(
        user.op == "output" or gives_form in getattr(user.target, "tags", ()) for user in node.users
    )


def origin_of(node: torch.fx.Node, stop: object = None) -> torch.fx.Node:
    """Whose memory a call's tensor lies in: what is given, or the call that has made it."""
    while node.target is not stop and node.args and _memory(node) == _memory(node.args[0]):
        node = cast("torch.fx.Node", node.args[0])
    return node


def _tensor_of(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else node
    return value if isinstance(value, torch.Tensor) else None


def _memory(node: Any) -> object:
    tensor = _tensor_of(node)
    return node if tensor is None else memory_key(tensor)


def _form(node: Any) -> tuple[Any, ...] | None:
    """Where a call's tensor lies, and how, if that is known."""
    tensor = _tensor_of(node)
    if tensor is None or not has_place(tensor):
        return None
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    if any(type(number) is not int for number in numbers):  # as only a run has them
        return None
    return (memory_key(tensor), *numbers, tensor.dtype, tensor.is_conj(), tensor.is_neg())
