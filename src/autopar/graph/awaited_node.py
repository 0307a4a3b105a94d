"""Awaited node: a node that is carried out, as something that a thread waits for."""

from __future__ import annotations

from typing import Any

from autopar.lanes.handle import Awaited


class AwaitedNode:
    """What a thread waits for, so that no circle of threads does."""

    def __init__(self, execution: Any, number: int) -> None:  # one that makes these itself
        self._execution, self._number = execution, number

    def is_issued(self) -> bool:
        """Whether nobody has to wait for it any more."""
        return bool(self._execution.is_issued(self._number))

    def waits_for(self) -> int | Awaited | None:
        """The thread that has to come to it, or what that waits for."""
        workers, shares = self._execution.workers, self._execution.steps.values()
        for worker, share in zip(workers, shares, strict=False):  # some may not have begun
            if any(step.job == self._number for step in share):
                awaited: int | Awaited | None = worker.waits_for()
                return awaited
        return None

    def __str__(self) -> str:
        return f"task {self._execution.plan.nodes[self._number].name!r} of a graph"
