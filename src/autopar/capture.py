"""Capture: a graph as one CUDA graph with parallel branches, replayed with new inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autopar.handle import use_on_current_streams
from autopar.measurement import Measurement
from autopar.node import Node, Task
from autopar.schedule import Job, Resource, Schedule, schedule

BRANCHES = (2, 4, 8)  # as many streams are tried; a GPU has 8 hardware queues by default
_GAIN = 0.01  # branches must gain this much over one chain, or else the chain is kept
_ROUNDS = 15
_WARM_UPS = 2


class Captured:
    """A CUDA graph of a task graph's work; `replay` runs it as a whole.

    Attributes:
        branches: How many streams it was captured on; 1 is a chain, one task after another.
        trials: What replays took in the trial, by the number of branches.
    """

    def __init__(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        nodes: tuple[Node, ...],
        results: list[Any],
        inputs: list[torch.Tensor],
        branches: int,
    ) -> None:
        self.branches = branches
        self.trials: dict[int, Measurement] = {}
        self._cuda_graph = cuda_graph
        self._nodes = nodes  # whose tensors each replay reads where they lie
        self._results = results
        self._inputs = inputs

    def replay(self, *inputs: torch.Tensor) -> Captured:
        """Copy new inputs in, and run all tasks; returns at once, on the current stream.

        Args:
            *inputs: One for each that was named when it was captured, or none to keep the last.

        Raises:
            ValueError: They are not as many, or one has another shape or dtype.
        """
        if inputs and len(inputs) != len(self._inputs):
            msg = f"replay was given {len(inputs)} inputs; expected {len(self._inputs)}, or none."
            raise ValueError(msg)
        for number, (own, new) in enumerate(zip(self._inputs, inputs, strict=False)):
            if own.shape != new.shape or own.dtype != new.dtype:
                msg = (
                    f"inputs[{number}] is {tuple(new.shape)} of {new.dtype}; expected "
                    f"{tuple(own.shape)} of {own.dtype}. Capture the graph again for other shapes."
                )
                raise ValueError(msg)
            own.copy_(new, non_blocking=True)
        self._cuda_graph.replay()
        return self

    def __getitem__(self, task: Any) -> Any:
        """The result of a task, or of tasks in nested containers.

        It lies in memory that the next replay writes to again: clone it to keep it.
        """
        value = pytree.tree_map_only(Task, lambda each: self._results[each.number], task)
        use_on_current_streams(value)
        return value


def captured(
    nodes: tuple[Node, ...], costs_s: Sequence[float], inputs: Iterable[torch.Tensor]
) -> Captured:
    """Capture some nodes, on one stream and on several, and keep what is the quickest.

    Args:
        nodes: All on one GPU.
        costs_s: Seconds that each takes.
        inputs: Those of their tensors that `replay` is to be given anew.

    Raises:
        ValueError: A node is not on that GPU, or an input is none.
        RuntimeError: Something in a task can't be captured; the message names the task.
    """
    gpu = _gpu_of(nodes)
    held, static = _with_static(nodes, list(inputs))
    with torch.cuda.device(gpu), _unchanged(held):
        tries = [_capture(held, _ordered(held, costs_s, 1), static, 1)]
        for branches in (each for each in BRANCHES if each <= len(held)):
            tries.append(_capture(held, _ordered(held, costs_s, branches), static, branches))
        trials = _in_turn(tries)
    best = min(tries, key=lambda each: trials[each.branches].median_s)
    gains = trials[best.branches].median_s < (1 - _GAIN) * trials[tries[0].branches].median_s
    chosen = best if gains else tries[0]
    chosen.trials = trials
    return chosen


def _gpu_of(nodes: tuple[Node, ...]) -> torch.device:
    for node in nodes:
        gpu = nodes[0].device
        if node.device != gpu or node.source is not None or gpu.type != "cuda":
            where = node.device if node.source is None else f"{node.source} and {node.device}"
            msg = (
                f"task {node.name!r} is on {where}; expected all tasks on one GPU, as a CUDA graph "
                f"has them. Run this graph with run()."
            )
            raise ValueError(msg)
    if not nodes:
        msg = "the graph has no tasks; expected some to capture. Add them first."
        raise ValueError(msg)
    return nodes[0].device


def _with_static(
    nodes: tuple[Node, ...], inputs: list[torch.Tensor]
) -> tuple[tuple[Node, ...], list[torch.Tensor]]:
    """The nodes with memory of their own in place of the inputs."""
    static = {}
    for number, each in enumerate(inputs):
        if not any(leaf is each for node in nodes for leaf in node.leaves):
            msg = f"inputs[{number}] is no argument of a task; expected a tensor given to add."
            raise ValueError(msg)
        static[id(each)] = each.detach().clone()
    held = tuple(
        replace(node, leaves=tuple(static.get(id(leaf), leaf) for leaf in node.leaves))
        for node in nodes
    )
    return held, [static[id(each)] for each in inputs]


def _ordered(nodes: tuple[Node, ...], costs_s: Sequence[float], branches: int) -> Schedule:
    jobs = [
        Job(node.name, "gpu", costs_s[node.number], tuple(sorted(node.before))) for node in nodes
    ]
    return schedule(jobs, {"gpu": Resource(branches, branches)}, tries=0)


def _capture(
    nodes: tuple[Node, ...], order: Schedule, inputs: list[torch.Tensor], branches: int
) -> Captured:
    """Capture nodes in an order; its lanes become branches that fork from one stream and join."""
    streams = {lane: torch.cuda.Stream() for lane in order.lanes}
    for _ in range(_WARM_UPS):  # libraries make their workspaces, a set for each stream
        _issue(nodes, order, streams, torch.cuda.current_stream(), [])
        torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # the graph must have its own, as others may go
    cuda_graph = torch.cuda.CUDAGraph()
    first, before = streams[order.entries[0].lane], torch.cuda.current_stream()
    begun: list[str] = []
    try:
        with torch.cuda.graph(cuda_graph, stream=first):
            # Kept until the end, so that no branch gets memory that another one still reads.
            results = _issue(nodes, order, streams, first, begun)
    except Exception as error:
        torch.cuda.set_stream(before)  # where capturing fails, torch forgets to
        cause = error.__context__ or error
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        msg = (
            f"task {begun[-1]!r} can't be captured: {reason}. Leave out what makes it wait for the "
            f"GPU or depends on the CPU, or run the graph with run()."
        )
        raise RuntimeError(msg) from error
    finally:
        torch._C._cuda_clearCublasWorkspaces()  # nobody else is to work in the graph's
    return Captured(cuda_graph, nodes, results, inputs, branches)


def _issue(
    nodes: tuple[Node, ...],
    order: Schedule,
    streams: dict[str, torch.cuda.Stream],
    stream: torch.cuda.Stream,
    begun: list[str],
) -> list[Any]:
    """Queue all on their streams, after what a stream has, and before what it gets.

    Names of nodes are noted in `begun` as they are queued.
    """
    results: list[Any] = [None] * len(nodes)
    waited_for = {wait for entry in order.entries for wait in entry.waits}
    ends: dict[int, torch.cuda.Event] = {}
    fork = stream.record_event()
    forked: set[str] = set()
    for entry in order.entries:
        own = streams[entry.lane]
        with torch.cuda.stream(own):
            if entry.lane not in forked and own != stream:
                own.wait_event(fork)
            forked.add(entry.lane)
            for wait in entry.waits:
                own.wait_event(ends[wait])
            begun.append(nodes[entry.job].name)
            results[entry.job] = nodes[entry.job].call(results)
            if entry.job in waited_for:
                ends[entry.job] = own.record_event()
    for lane in forked:
        if streams[lane] != stream:
            stream.wait_stream(streams[lane])
    return results


@contextmanager
def _unchanged(nodes: tuple[Node, ...]) -> Iterator[None]:
    """Give tensors that tasks write to their values back: trials are no runs."""
    tensors = {id(leaf): leaf for node in nodes for leaf in node.leaves if _is_tensor(leaf)}
    before = {key: (each, each.detach().clone()) for key, each in tensors.items()}
    versions = {key: each._version for key, each in tensors.items() if not each.is_inference()}
    try:
        yield
    finally:
        with torch.no_grad():
            for key, (each, copy) in before.items():
                if versions.get(key) != (None if each.is_inference() else each._version):
                    each.copy_(copy)
        torch.cuda.synchronize()


def _in_turn(tries: list[Captured]) -> dict[int, Measurement]:
    """Time a replay of each, one round after the other."""
    samples: list[list[float]] = [[] for _ in tries]
    for _ in range(_ROUNDS):
        for own, each in zip(samples, tries, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            each.replay()
            start.record()
            each.replay()
            end.record()
            end.synchronize()
            own.append(start.elapsed_time(end) / 1e3)
    return {
        each.branches: Measurement(f"{each.branches} branches", tuple(own))
        for each, own in zip(tries, samples, strict=True)
    }


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
