"""Assignments: tensors that traced code has put in others' places, for each run to copy there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from autopar.effects.loads import ABSENT
from autopar.effects.memory import memory_key
from autopar.effects.state import Change, State, same
from autopar.graph.watch import Watch
from autopar.torch_private import pytree


def reassigned(changes: Iterable[Change]) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Tensors, and what is in their place now, with their names; all else is refused."""
    assigned = []
    for change in changes:
        old, form = pytree.tree_flatten(change.old)
        new, new_form = pytree.tree_flatten(change.new)
        if form != new_form or not all(map(_can_follow, old, new)):
            raise ValueError(_told(change))
        pairs = zip(old, new, strict=True)
        assigned += [(change.name, a, b) for a, b in pairs if isinstance(a, torch.Tensor)]
    return assigned


def _can_follow(old: Any, new: Any) -> bool:
    """Whether a run can put something in the place of something else."""
    if not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)):
        return same(old, new)
    return (old.shape, old.dtype, old.device, old.layout) == (
        *(new.shape, new.dtype, new.device),
        new.layout,
    )


def _told(change: Change) -> str:
    """Why something that the code has changed can't be changed by each run."""
    name, old, new = change
    if name.endswith(".grad"):
        return (
            f"it sets the gradient of {name.removesuffix('.grad')}, of which there is none before. "
            f"Use torch.autograd.grad, which returns gradients, or begin with gradients of zeros."
        )
    what = f"it changes {name} from {_brief(old)} to {_brief(new)}"
    if old is ABSENT or old is None:
        what = f"it sets {name}, which was {'None' if old is None else 'not there'}"
    elif new is ABSENT:
        what = f"it deletes {name}"
    elif isinstance(old, bytes):
        what = f"it changes {name}"
    return (
        f"{what}; a run only repeats operators. Call it once before, if it does so in its first "
        f"call only; return the value; or keep it in a tensor that is changed in place."
    )


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)} on {value.device}"
    plain = isinstance(value, (int, float, str, type(None), torch.dtype))
    return repr(value) if plain else f"one {type(value).__name__}"


def copied_back(
    reassigned: list[tuple[str, torch.Tensor, torch.Tensor]],
    before: State,
    results: list[Any],
    watch: Watch,
) -> list[Any]:
    """Let the code end with copying what it put in tensors' places into those.

    Returns the results; those that lie in what is overwritten then are copied before.
    """
    if not reassigned:
        return results

    def memory(tensor: torch.Tensor) -> object:
        return memory_key(watch.shown(tensor))

    with torch.no_grad():
        targets: dict[object, tuple[str, torch.Tensor]] = {}
        names = {name for name, _, _ in reassigned}
        others = [named for named in before.tensors if not _is_part(named[0], names)]
        for name, old, new in reassigned:
            first, by = targets.setdefault(memory(old), (name, new))
            others += [] if by is new else [(first, old)]
        for name, tensor in others:
            if tensor.layout == torch.strided and memory(tensor) in targets:
                first = targets[memory(tensor)][0]
                msg = (
                    f"it sets {first}, whose memory is also that of {name}: a run would change "
                    f"both. Call it once before, if that changes; or give each its own, by clone()."
                )
                raise ValueError(msg)
        kept = {memory(each): "its result" for each in results if isinstance(each, torch.Tensor)}
        kept |= {memory(each): name for name, each in others if each.layout == torch.strided}
        for name, old, new in reassigned:
            at = kept.setdefault(memory(new), name)
            if at != targets[memory(old)][0]:
                msg = (
                    f"it sets {name} to a tensor whose memory is also that of {at}: in a run, "
                    f"writes to one would not show in the other. Give each its own, by clone()."
                )
                raise ValueError(msg)
        news = [new.clone() for _, _, new in reassigned]
        results = [
            result.clone()
            if isinstance(result, torch.Tensor) and memory(result) in targets
            else result
            for result in results
        ]
        for (_, old, _), new in zip(reassigned, news, strict=True):
            old.copy_(new)
    return results


def _is_part(name: str, names: set[str]) -> bool:
    return any(
        name == changed or name.startswith((f"{changed}[", f"{changed}.")) for changed in names
    )
