"""Targets: memory of the caller's that copies are under way to."""

from __future__ import annotations

import bisect

import torch

from autopar.transfer.layout import is_dense


class Targets:
    """Memory of the caller's that copies may be under way to, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: dict[int, tuple[int, str]] = {}  # and the names, by start

    def take(self, target: torch.Tensor, name: str) -> None:
        """Note one more, and refuse it if another lies there, too."""
        start, stop = target.data_ptr(), target.data_ptr() + target.nbytes
        if not target.numel():
            return
        at = bisect.bisect_left(self._starts, start)
        beside = self._starts[max(0, at - 1) : at + 1]
        dense = is_dense(target)
        for other in beside:
            other_stop, other_name = self._stops[other]
            if other == start or (dense and other < stop and start < other_stop):
                msg = (
                    f"{name} shares memory with {other_name}, whose item is still under way; "
                    f"expected memory of its own. Give one tensor for each, or as many in turn as "
                    f"are on their way at once, and one more."
                )
                raise ValueError(msg)
        self._starts.insert(at, start)
        self._stops[start] = (stop if dense else start), name

    def give_back(self, targets: list[torch.Tensor]) -> None:
        """Forget those whose items are there."""
        for target in filter(torch.Tensor.numel, targets):
            start = target.data_ptr()
            del self._stops[start]
            del self._starts[bisect.bisect_left(self._starts, start)]
