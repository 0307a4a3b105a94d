"""Failure: the first error of a run, which ends it, and who has got it."""

from __future__ import annotations

import threading

from autopar.graph.node import Node
from autopar.lanes.outcome import note


class Failure:
    """What has ended a run early, if anything.

    Attributes:
        error: The first error, or why the run was broken off; nothing is begun once it is there.
        node: Which has raised it.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.node: Node | None = None
        self._seen = set[int]()  # threads that have got it
        self._lock = threading.Lock()

    def set(self, node: Node, lane: str, error: BaseException) -> None:
        """Keep what a node has raised, if it is the first."""
        with self._lock:
            if self.error is None:
                note(error, f"in task {node.name!r} on lane {lane!r} ({node.device})")
                self.error, self.node = error, node

    def break_off(self) -> None:
        """Begin nothing more."""
        with self._lock:
            self.error = self.error or RuntimeError("the run was broken off")

    def raise_error(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            self._seen.add(threading.get_ident())
            raise self.error

    def is_seen(self) -> bool:
        """Whether the calling thread has got the error, if a task has raised it."""
        return self.node is None or threading.get_ident() in self._seen
