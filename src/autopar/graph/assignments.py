"""Assignments: tensors that traced code has put in others' places, for each run to copy there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from autopar.effects.loads import ABSENT
from autopar.effects.memory import memory_key
from autopar.effects.state import Change, State
from autopar.graph.refused import Refused
from autopar.graph.watch import Watch


def assignments(changes: Iterable[Change]) -> list[Change]:
    """Those that each run can make by a copy, which must be all."""
    assigned = [*changes]
    for name, old, new in assigned:
        are_tensors = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)
        form = ("shape", "dtype", "device", "layout")
        if not (are_tensors and all(getattr(old, at) == getattr(new, at) for at in form)):
            raise Refused(_refusal(name, old, new))
    return assigned


def _refusal(name: str, old: Any, new: Any) -> str:
    if name.endswith(".grad"):
        return (
            f"it sets the gradient of {name.removesuffix('.grad')}, of which there is none before. "
            f"Use torch.autograd.grad, which returns gradients, or begin with gradients of zeros."
        )
    if old is ABSENT or old is None:
        what = f"it sets {name}, which was {'None' if old is None else 'not there'}"
    elif new is ABSENT:
        what = f"it deletes {name}"
    elif isinstance(old, bytes):
        what = f"it changes {name}"
    else:
        what = f"it changes {name} from {_brief(old)} to {_brief(new)}"
    return (
        f"{what}; a run only repeats operators. Call it once before, if it does so in its first "
        f"call only; return the value; or keep it in a tensor that is changed in place."
    )


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)} on {value.device}"
    plain = isinstance(value, (int, float, str, type(None), torch.dtype))
    return repr(value) if plain else f"one {type(value).__name__}"


def copy_back(assigned: list[Change], before: State, results: list[Any], watch: Watch) -> None:
    """Let the code end with copying what it put in tensors' places into those.

    Nothing else may lie in the memory of either: a copy would change that, or not show there.
    """
    if not assigned:
        return
    owners = [("its result", value) for value in results if isinstance(value, torch.Tensor)]
    owners += before.tensors + [(name, new) for name, _, new in assigned]
    lying = defaultdict[object, set[tuple[str, int]]](set)
    for name, tensor in owners:
        if tensor.layout == torch.strided:
            lying[memory_key(watch.shown(tensor))].add((name, id(tensor)))
    with torch.no_grad():
        for name, old, new in assigned:
            own = {(name, id(old)), (name, id(new))}
            beside = set().union(*(lying[memory_key(watch.shown(one))] for one in (old, new)))
            if others := beside - own:
                msg = (
                    f"it sets {name}, and what was or is there lies in memory that is also that of "
                    f"{min(others)[0]}: a run only copies the one into the other. Call it once "
                    f"before, if that changes it; or give each its own, by clone()."
                )
                raise Refused(msg)
            old.copy_(new)
