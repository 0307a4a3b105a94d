"""Known: what traced code computes from nothing but itself, so that it can decide by that."""

from __future__ import annotations

from typing import Any

import torch

from autopar.effects.memory import has_place, memory_key, tensors_of
from autopar.effects.operators import written_arguments
from autopar.torch_private import disable_current_modes, pytree

_MOST_NUMBERS = 1 << 16  # of a result: positions and masks of a few hundred tokens
_RANDOM = torch.Tag.nondeterministic_seeded


class Known:
    """Numbers in which no data, weight or chance is, as positions: computed beside the trace."""

    def __init__(self) -> None:
        # Of a tensor without memory, one with; and itself, as its number would be used again.
        self._values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._written = set[object]()  # the memory that operators write

    def has(self, args: Any) -> bool:
        """Whether all tensors among some arguments are known, and no number is of data."""
        of_data = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
        leaves = pytree.tree_leaves(args)
        return all(id(leaf) in self._values for leaf in leaves if isinstance(leaf, of_data))

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator makes of known tensors."""
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda tensor: self._values[id(tensor)][1], (args, kwargs)
        )
        with disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            return func(*args, **kwargs)

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note that an operator was called, whose results have no memory."""
        results, given = tensors_of(result), tensors_of((args, kwargs))
        written = tensors_of(written_arguments(func._schema, args, kwargs))
        are_plain = all(map(has_place, results + given))
        # A sparse tensor holds others' memory, which may be written by it.
        gone = {*map(memory_key, written if are_plain else given + results)}
        self._written |= gone
        if are_plain and self.has((args, kwargs)) and _depends_on_arguments(func, results):
            self._keep(results, tensors_of(self.call(func, args, kwargs)))
        elif gone:
            left = (both for both in self._values.values() if memory_key(both[0]) not in gone)
            self._values = {id(both[0]): both for both in left}

    def note_literal(self, result: torch.Tensor, number: torch.Tensor) -> None:
        """Note numbers in the code, unless they lie in another library's memory."""
        with disable_current_modes(), torch.inference_mode(False):
            if number.untyped_storage().resizable():
                self._keep([result], [number.clone()])

    def constants(self, results: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What each run may use as it is here, as nobody changes it, or gets it as a result."""
        changing = self._written.union(map(memory_key, tensors_of(results)))
        return [both for both in self._values.values() if memory_key(both[0]) not in changing]

    def _keep(self, results: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        for tensor, value in zip(results, values, strict=True):
            self._values[id(tensor)] = tensor, value


def _depends_on_arguments(func: Any, results: list[torch.Tensor]) -> bool:
    """Whether small results depend on nothing else: not so with programs' own operators."""
    name = func._schema.name
    small = all(tensor.numel() <= _MOST_NUMBERS for tensor in results)
    return small and name.startswith("aten::") and "empty" not in name and _RANDOM not in func.tags
