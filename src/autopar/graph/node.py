"""Node: one task of a graph, or the copy of a result to another device."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from autopar import torch_private as private
from autopar.effects.memory import memory_in
from autopar.effects.operators import routine_of
from autopar.lanes.handle import cuda_tensors
from autopar.torch_private import OpOverload, pytree


class Result(NamedTuple):
    """Stands among a node's arguments for what another one returns."""

    node: int


_TENSORS = (torch.Tensor, Result)  # or what stands for them, where code was traced


@dataclass(frozen=True, eq=False)
class Node:
    """Something that a graph runs: a task, or a copy of its only argument to `device`."""

    number: int  # in the order of the program
    name: str
    fn: Callable[..., Any] | None  # none for a copy
    leaves: tuple[Any, ...]  # the arguments, taken out of their containers
    spec: pytree.TreeSpec  # the containers
    device: torch.device
    after: frozenset[int] = frozenset()  # nodes to end before, besides those it has results of
    cost_s: float | None = None  # where somebody has said so
    source: torch.device | None = None  # where a copy comes from
    # Names of the last arguments if no argument is a container, which spares a step in each run.
    keywords: tuple[str, ...] | None = None
    may_queue: bool = True  # whether it may use a GPU without saying so, as Python functions may
    traced: bool = False  # so that `device` is where its results are

    @functools.cached_property
    def resource(self) -> str:
        """What it takes its turn on."""
        return resource_of(self.device, self.source)

    @functools.cached_property
    def before(self) -> frozenset[int]:
        """Numbers of all nodes that it must come after."""
        return self.after.union([leaf.node for leaf in self.leaves if isinstance(leaf, Result)])

    @property
    def kind(self) -> str:
        """What it is in a timeline."""
        return "copy" if self.fn is None else "compute"

    @property
    def gpus(self) -> list[torch.device]:
        """The GPUs that it uses, with the one first whose streams it runs on."""
        return [device for device in (self.source, self.device) if device and device.type == "cuda"]

    @property
    def host(self) -> str | None:
        """The thread that issues it; none where a CPU lane's own worker runs it.

        What copies from the host waits for memory to be pinned, so it has a thread of its own.
        """
        if self.source is not None:
            return str(self.source) if self.source.type == "cuda" else self.resource
        return self.resource if self.device.type == "cuda" else None

    @functools.cached_property
    def prepared(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What runs it when it is called with some values, and what stands for those."""
        if self.fn is None:
            return functools.partial(pytree.tree_map, self._copied), self.leaves
        fn = self.fn
        if isinstance(fn, OpOverload):
            fn = self._operator(fn)
            if self.keywords is None and (lengths := self._lengths_of_lists()):
                return functools.partial(_with_lists, fn, lengths), self.leaves
        count = len(self.leaves) - len(self.keywords or ())
        options = self.leaves[count:]
        if self.keywords is None or any(isinstance(value, Result) for value in options):
            return functools.partial(self._unflattened, fn), self.leaves
        kwargs = dict(zip(self.keywords, options, strict=True))
        return functools.partial(fn, **kwargs) if kwargs else fn, self.leaves[:count]

    def call(self, results: Sequence[Any]) -> Any:
        """Run what is prepared, given all results so far."""
        call, leaves = self.prepared
        values = filled(leaves, results)
        if not (self.traced and private.autocast_is_on()):
            return call(*values)
        # What was cast when it was traced is part of the trace.
        with private.ExcludeDispatchKeyGuard(private.AUTOCAST):
            return call(*values)

    def _operator(self, operator: OpOverload) -> Callable[..., Any]:
        """What Python comes through the soonest: of what is called as it is, a routine of torch."""
        if self.traced and self.keywords == () and isinstance(self.leaves[0], _TENSORS):
            kinds = (*_TENSORS, int, float, list, tuple)  # which all forms understand alike
            if all(isinstance(leaf, kinds) and type(leaf) is not bool for leaf in self.leaves):
                return routine_of(operator, len(self.leaves)) or operator._op
        return operator._op

    def _lengths_of_lists(self) -> list[int]:
        """How many leaves are in each argument's list, 0 for one without, if that is all there is.

        So it is where torch puts tensors together, sooner than pytree does the lists.
        """
        args, kwargs = pytree.tree_unflatten([0] * len(self.leaves), self.spec)
        lengths = [len(arg) if isinstance(arg, list) else 0 for arg in args]
        told = all(arg == ([0] * n or 0) for arg, n in zip(args, lengths, strict=True))
        return lengths if told and not kwargs else []

    def _unflattened(self, fn: Callable[..., Any], *leaves: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return fn(*args, **kwargs)

    def _copied(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.device == self.device:
            return tensor
        if self.device.type == "cpu":
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            return host.copy_(tensor, non_blocking=True)
        if tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def _with_lists(fn: Callable[..., Any], lengths: list[int], *leaves: Any) -> Any:
    given = iter(leaves)
    return fn(*[[*itertools.islice(given, n)] if n else next(given) for n in lengths])


def filled(leaves: Iterable[Any], results: Sequence[Any]) -> list[Any]:
    """Arguments, with results in place."""
    return [results[leaf.node] if isinstance(leaf, Result) else leaf for leaf in leaves]


def resource_of(device: torch.device, source: torch.device | None = None) -> str:
    """What work on a device, or a copy to it from another, takes its turn on."""
    if source is None:
        return str(device)
    if device.type == "cpu":
        return f"{source} to host"
    return f"{device} from host" if source.type == "cpu" else f"{source} to {device}"


def on_gpus(value: Any) -> list[torch.Tensor]:
    """The CUDA tensors in a result, also in an object of its own kind."""
    if not torch.cuda.is_initialized():
        return []
    return [*cuda_tensors(value if isinstance(value, torch.Tensor) else [*memory_in(value)])]


def wait_for_gpus(value: Any = None) -> None:
    """Wait for the GPUs where a CPU task has made what it returns, or for all if that is none."""
    gpus: Iterable[torch.device | int] = {tensor.device for tensor in on_gpus(value)}
    if value is None and torch.cuda.is_initialized():
        gpus = range(torch.cuda.device_count())
    for gpu in gpus:
        torch.cuda.current_stream(gpu).synchronize()
