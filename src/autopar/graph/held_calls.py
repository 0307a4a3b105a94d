"""Held calls: calls of tasks that are held to what the tasks have said that they write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from autopar.graph.audit import Audit
from autopar.graph.guard import Watched, counted_in, version_of
from autopar.graph.node import Node
from autopar.graph.plan import Plan
from autopar.ranges import annotate


class HeldCalls:
    """Calls the tasks of one run.

    Args:
        plan: What is run.
        results: By node, and what follows them in the run's memory.
        is_issued: Whether a node is behind it.
        audit: What observes the tasks, in a run in order.
        in_order: Whether one thread does all.
    """

    def __init__(
        self,
        plan: Plan,
        results: Sequence[Any],
        is_issued: Callable[[int], bool],
        *,
        audit: Audit | None,
        in_order: bool,
    ) -> None:
        self._plan, self._results, self._is_issued = plan, results, is_issued
        self._audit, self._in_order = audit, in_order

    def call(self, node: Node, *, closely: bool) -> Any:
        """Run a task in the calling thread, and hold it to what it has said that it writes.

        Args:
            node: The task.
            closely: Whether somebody looks: an audit, or tools which names are for.
        """
        watched = self._plan.guard.watched[node.number]

        def call() -> Any:
            return self._held(node, watched) if watched else node.call(self._results)

        if not closely:
            return call()
        if self._audit is not None:
            return self._audit.call(node, call, self._results)
        with contextlib.nullcontext() if self._in_order else annotate(node.name):
            return call()

    def _held(self, node: Node, watched: Watched) -> Any:
        """Run a task, and compare version counters of what it must not change."""
        results, (tensors, given) = self._results, watched
        self._plan.guard.require_as_planned(node, results)
        if given:
            tensors = (*tensors, *counted_in(map(results.__getitem__, given)))
        versions = [*map(version_of, tensors)]
        value = node.call(results)
        if [*map(version_of, tensors)] != versions:
            pairs = zip(tensors, versions, strict=True)
            moved = [tensor for tensor, version in pairs if tensor._version != version]
            self._plan.guard.compare(node, moved, results, self._beside(node))
        return value

    def _beside(self, node: Node) -> list[int]:
        """Other tasks that may be under way: the first on each lane that has not ended."""
        if self._in_order:
            return []
        lanes = self._plan.schedule.lanes.values()
        lefts = (
            [entry.job for entry in entries if not self._is_issued(entry.job)] for entries in lanes
        )
        return [left[0] for left in lefts if left and left[0] != node.number]
