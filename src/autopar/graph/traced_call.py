"""Traced call: an operator that traced code has called, as a task can call it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from autopar.effects.memory import tensors_of
from autopar.graph.refused import Refused
from autopar.torch_private import pytree, to_copy, unsafe_view

# Of a result, a view instead of another shape in place: what comes after reads the view.
_VIEWS: dict[Any, Any] = {torch.ops.aten.as_strided_.default: torch.ops.aten.as_strided.default}
_QUICKER: dict[Any, Any] = {unsafe_view: torch.ops.aten.view.default}  # torch has a routine for it


class Call(NamedTuple):
    """One operator that the code has called."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]  # values, tensors of the caller's, and `torch.fx` nodes of other calls
    kwargs: dict[str, Any]
    device: torch.device | None  # where its results lie, or its first tensor, if it has none


def call_of(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Call:
    """The call that a node stands for, with values in place of those nodes that have one."""
    args, kwargs = filled(node.args, values), filled(node.kwargs, values)
    results = tensors_of(node.meta.get("val"))
    if not results:
        given = [values.get(other, other.meta.get("val")) for other in node.all_input_nodes]
        results = tensors_of(given)
    device = results[0].device if results else None
    if device and device.type == "meta":
        msg = (
            f"it calls {node.target} on 'meta', where tensors have no numbers. Name another device."
        )
        raise Refused(msg)
    if _only_moves(node, results):
        return Call(_arrived, (args[0],), {}, device)
    others = _VIEWS | _QUICKER if args and isinstance(args[0], torch.fx.Node) else _QUICKER
    return Call(others.get(node.target, node.target), tuple(args), dict(kwargs), device)


def _only_moves(node: torch.fx.Node, results: list[torch.Tensor]) -> bool:
    """Whether a call copies a tensor to another device, and changes nothing else."""
    if node.target is not to_copy:
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


def filled(arguments: Any, values: dict[torch.fx.Node, Any]) -> Any:
    """Arguments with values in place of those nodes that have one."""
    return pytree.tree_map_only(torch.fx.Node, lambda node: values.get(node, node), arguments)
