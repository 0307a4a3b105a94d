"""Task: what stands for the result of a task that has not run yet."""

from __future__ import annotations

import torch

from autopar.refusal import NoValue


class Task(NoValue):
    """A task of a graph; among the arguments of others it stands for its result.

    Attributes:
        device: Where it runs.
        name: Its name.
        number: Its place in the order of the program, by which a run has its span and its cost.

    >>> import autopar as ap
    >>> graph = ap.TaskGraph()
    >>> two = graph.add(max, 1, 2)
    >>> five = graph.add(max, two, 5)
    >>> graph.run()[five]
    5
    """

    __slots__ = ("_graph", "device", "name", "number")
    _HOW = "run the graph and ask for it, as run[task], or add what needs it: graph.add(fn, task)."

    def __init__(self, graph: object, number: int, name: str, device: torch.device) -> None:
        self._graph = graph
        self.number = number
        self.name = name
        self.device = device

    def __repr__(self) -> str:
        return f"task {self.name!r} ({self.device})"
