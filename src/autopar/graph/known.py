"""Known: what traced code computes from nothing but itself, so that it can decide by that."""

from __future__ import annotations

from typing import Any

import torch

from autopar.effects.memory import memory_key
from autopar.effects.operators import written_arguments
from autopar.torch_private import disable_current_modes, pytree

_MOST_NUMBERS = 1 << 16  # of a result: positions and masks of a few hundred tokens
_RANDOM = torch.Tag.nondeterministic_seeded


class Known:
    """Numbers that each run has anew as they are here: no data, weight or chance is in them.

    So are positions, counted from zero. They are computed at once, beside the trace.
    """

    def __init__(self) -> None:
        # Of a tensor without memory, one with; and itself, as its number would be used again.
        self._values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def has(self, args: Any) -> bool:
        """Whether all tensors among some arguments are known."""
        return self._values.keys() >= {id(tensor) for tensor in _tensors(args)}

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator makes of known tensors."""
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda tensor: self._values[id(tensor)][1], (args, kwargs)
        )
        with disable_current_modes(), torch.no_grad():
            return func(*args, **kwargs)

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note that an operator was called, whose results have no memory."""
        results = _tensors(result)
        if (
            self.has((args, kwargs))
            and not (_RANDOM in func.tags or "empty" in func._schema.name)
            and all(tensor.numel() <= _MOST_NUMBERS for tensor in results)
        ):
            values = _tensors(self.call(func, args, kwargs))
            for tensor, value in zip(results, values, strict=True):
                self._values[id(tensor)] = tensor, value
        else:
            written = _tensors([*written_arguments(func._schema, args, kwargs)])
            gone = {memory_key(tensor) for tensor in written}
            for number, (tensor, _) in [*self._values.items()] if gone else ():
                if memory_key(tensor) in gone:
                    del self._values[number]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
