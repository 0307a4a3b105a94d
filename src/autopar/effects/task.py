"""Task: what stands for the result of a task that has not run yet."""

from __future__ import annotations

import torch

from autopar.refusal import NoValue


class Task(NoValue):
    """A task of a graph; among the arguments of others it stands for its result.

    >>> import autopar as ap
    >>> graph = ap.TaskGraph()
    >>> two = graph.add(max, 1, 2)
    >>> five = graph.add(max, two, 5)
    >>> graph.run()[five]
    5
    """

    __slots__ = ("device", "graph", "name", "number")
    _HOW = "run the graph and ask for it, as run[task], or add what needs it: graph.add(fn, task)."

    def __init__(self, graph: object, number: int, name: str, device: torch.device) -> None:
        self.graph = graph
        self.number = number
        self.name = name
        self.device = device

    def __repr__(self) -> str:
        return f"task {self.name!r} ({self.device})"
