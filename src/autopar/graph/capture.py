"""Capture: a graph as one CUDA graph with parallel branches, replayed with new inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from autopar.device import new_stream
from autopar.effects.memory import Closed, is_size
from autopar.effects.state import State
from autopar.graph.node import Node
from autopar.graph.plan import Plan
from autopar.graph.run import results_of
from autopar.graph.schedule import Resource, Schedule, schedule
from autopar.timing.measurement import Measurement
from autopar.torch_private import clear_workspaces, end_allocating_to, pytree, release_pool

BRANCHES = (2, 4, 8)  # as many streams are tried; a GPU has 8 hardware queues by default
_GAIN = 0.01  # branches must gain this much over one chain, or else the chain is kept
_ROUNDS = 15
_WARM_UPS = 2
_Nodes = tuple[Node, ...]
_Tensors = list[torch.Tensor]
_Streams = dict[str, torch.cuda.Stream]
_Generators = list[torch.Generator]
_SMALL_BYTES = 1 << 20  # of what lies elsewhere, as counters: no data sets are copied


@dataclass(eq=False, repr=False)
class Captured(Closed):
    """A CUDA graph of a task graph's work; `replay` runs it as a whole.

    Attributes:
        branches: How many streams it was captured on; 1 is a chain, one task after another.
        trials: What replays took in the trial, by the number of branches.

    >>> import torch
    >>> import autopar as ap
    >>> graph = ap.TaskGraph()
    >>> ones = torch.ones(2, device=ap.try_gpu())
    >>> twos = graph.add(torch.add, ones, 1)
    >>> if ones.is_cuda:
    ...     captured = graph.capture().replay()
    """

    _cuda_graph: torch.cuda.CUDAGraph
    _nodes: tuple[Node, ...]  # whose tensors each replay reads where they lie
    _results: list[Any]
    _inputs: list[torch.Tensor]
    branches: int
    trials: dict[int, Measurement] = field(default_factory=dict)

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
        for number, (old, new) in enumerate(zip(self._inputs, inputs, strict=False)):
            if old.shape != new.shape or old.dtype != new.dtype:
                msg = (
                    f"inputs[{number}] is {tuple(new.shape)} of {new.dtype}; expected "
                    f"{tuple(old.shape)} of {old.dtype}. Capture the graph again for other shapes."
                )
                raise ValueError(msg)
            old.copy_(new, non_blocking=True)
        self._cuda_graph.replay()
        return self

    def __getitem__(self, task: Any) -> Any:
        """The result of a task, or of tasks in nested containers.

        It lies in memory that the next replay writes to again: clone it to keep it.

        Raises:
            KeyError: It is no task, or lies where it can't be replaced.
        """
        return results_of(task, lambda one: self._results[one.number])


def captured(plan: Plan, inputs: Iterable[torch.Tensor]) -> Captured:
    """Capture a plan's nodes, on one stream and on several, and keep what is the quickest."""
    jobs = [job._replace(resource="gpu") for job in plan.schedule.jobs]
    with torch.cuda.device(gpu_of(plan.nodes)):
        held, static = _with_static(plan.nodes, list(inputs))
        with _unchanged(held) as generators:
            tries = []
            for branches in (1, *BRANCHES):
                if branches <= len(held):
                    order = schedule(jobs, {"gpu": Resource(branches, branches)}, tries=0)
                    tries.append(_capture(held, order, static, branches, generators))
            trials = _in_turn(tries)
    chain, best = tries[0], min(tries, key=lambda attempt: trials[attempt.branches].median_s)
    gains = trials[best.branches].median_s < (1 - _GAIN) * trials[chain.branches].median_s
    return replace(best if gains else chain, trials=trials)


def gpu_of(nodes: tuple[Node, ...]) -> torch.device:
    """The GPU that all nodes are on, and on which a capture can begin."""
    for node in nodes:
        gpu = nodes[0].device
        if node.device != gpu or node.source is not None or gpu.type != "cuda":
            where = node.device if node.source is None else f"{node.source} and {node.device}"
            msg = (
                f"task {node.name!r} is on {where}; expected all tasks on one GPU, as a CUDA graph "
                f"has them. Make what it takes there, by `device=`, or run this graph with run()."
            )
            raise ValueError(msg)
    if not nodes:
        msg = "the graph has no tasks; expected some to capture. Add them first."
        raise ValueError(msg)
    torch.cuda.init()
    with torch.cuda.device(nodes[0].device):
        if torch.cuda.is_current_stream_capturing():
            msg = "the current stream is being captured; expected capture() outside of it."
            raise RuntimeError(msg)
    return nodes[0].device


def _with_static(nodes: _Nodes, inputs: _Tensors) -> tuple[_Nodes, _Tensors]:
    """The nodes with memory of their own in place of the inputs."""
    static = {}
    for number, tensor in enumerate(inputs):
        if not any(leaf is tensor for node in nodes for leaf in pytree.tree_leaves(node.leaves)):
            msg = f"inputs[{number}] is no argument of a task; expected a tensor given to add."
            raise ValueError(msg)
        static[id(tensor)] = tensor.detach().clone()

    def held_in(leaf: Any) -> Any:
        """The same with memory of its own; what holds none of them stays the object that it is."""
        if static.keys().isdisjoint(map(id, pytree.tree_leaves(leaf))):
            return leaf
        return pytree.tree_map(lambda part: static.get(id(part), part), leaf, is_leaf=is_size)

    held = tuple(replace(node, leaves=tuple(map(held_in, node.leaves))) for node in nodes)
    return held, [static[id(tensor)] for tensor in inputs]


@contextmanager
def _unchanged(nodes: tuple[Node, ...]) -> Iterator[list[torch.Generator]]:
    """Give tensors that tasks write, and random numbers, back: trials are no runs.

    Yields the generators of the GPU's random numbers that tasks use, beside the default one.
    """
    gpu = nodes[0].device
    state = State((node.name, (node.fn, node.leaves)) for node in nodes)
    listed = {
        id(tensor): tensor
        for _, tensor in state.tensors
        if not is_lazy(tensor)
        and (tensor.device == gpu or tensor.numel() * tensor.itemsize <= _SMALL_BYTES)
    }
    tensors = [(tensor, tensor.detach().clone()) for tensor in listed.values()]
    defaults = [torch.default_generator, torch.cuda.default_generators[gpu.index]]
    states = [(generator, generator.get_state()) for generator in [*defaults, *state.generators]]

    def give_back() -> None:
        torch.cuda.synchronize(gpu)
        for generator, before in states:
            generator.set_state(before)
        for tensor, value in tensors:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if not _equal(tensor.detach(), value):
                    tensor.copy_(value)
        torch.cuda.synchronize(gpu)

    try:
        yield [generator for generator in state.generators if generator.device == gpu]
    except BaseException as error:
        try:
            give_back()
        except Exception as later:
            error.add_note(f"after that, tensors could not be given their values back: {later}")
        raise
    give_back()


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return torch.equal(tensor, other)
    except (RuntimeError, NotImplementedError):  # some layouts and dtypes can't be compared
        return False


def _capture(
    nodes: _Nodes, order: Schedule, inputs: _Tensors, branches: int, generators: _Generators
) -> Captured:
    """Capture nodes in an order; its lanes become branches that fork from one stream and join."""
    streams = {lane: new_stream(nodes[0].device) for lane in order.lanes}
    begun: list[str] = []
    try:
        for _ in range(_WARM_UPS):  # libraries make their workspaces, a set for each stream
            _issue(nodes, order, streams, torch.cuda.current_stream(), begun)
            torch.cuda.synchronize()
    except BaseException as error:
        error.add_note(f"in task {begun[-1]!r}, which was tried before it was captured")
        raise
    clear_workspaces()  # the graph must have its own, as others may go
    torch.cuda.empty_cache()
    cuda_graph, first = torch.cuda.CUDAGraph(), streams[order.entries[0].lane]
    try:
        with torch.cuda.stream(first), _recorded(cuda_graph, generators):
            # Kept until the end, so that no branch gets memory that another one still reads.
            results = _issue(nodes, order, streams, first, begun)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        msg = (
            f"task {begun[-1]!r} can't be captured: {reason}. Leave out what makes it wait for the "
            f"GPU or depends on the CPU, or run the graph with run()."
        )
        raise RuntimeError(msg) from error
    finally:
        clear_workspaces()  # nobody else is to work in the graph's
    return Captured(cuda_graph, nodes, results, inputs, branches)


@contextmanager
def _recorded(cuda_graph: torch.cuda.CUDAGraph, generators: _Generators) -> Iterator[None]:
    """Capture what the current stream is given; if that fails, leave all as it was.

    What the block raises is never replaced by what ending the capture raises after it.
    """
    pool = torch.cuda.graph_pool_handle()
    for generator in generators:
        cuda_graph.register_generator_state(generator)
    try:
        cuda_graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        except BaseException:
            with suppress(Exception):
                cuda_graph.capture_end()
            raise
        cuda_graph.capture_end()
    except BaseException:
        with suppress(Exception):
            _mend(cuda_graph, pool, generators)
        raise


def _mend(cuda_graph: torch.cuda.CUDAGraph, pool: Any, generators: _Generators) -> None:
    """Undo what torch leaves undone where a capture fails to end.

    The allocator goes on to note that one is under way, and so do the generators of random
    numbers, until the next capture ends well. To give them other states instead would cut them off
    from graphs that were captured before.
    """
    with suppress(RuntimeError):
        cuda_graph.pool()  # raises if the capture has not ended
        return
    gpu = torch.device("cuda", torch.cuda.current_device())
    with suppress(RuntimeError):  # it may have ended this, depending on where it failed
        end_allocating_to(gpu.index, pool)
    with suppress(RuntimeError):
        release_pool(gpu.index, pool)
    number, good = torch.zeros(1, device=gpu), torch.cuda.CUDAGraph()
    for generator in generators:
        good.register_generator_state(generator)
    torch.cuda.synchronize()
    with torch.cuda.stream(new_stream(gpu)):
        good.capture_begin(capture_error_mode="thread_local")
        number.zero_()
        good.capture_end()


def _issue(
    nodes: _Nodes, order: Schedule, streams: _Streams, stream: torch.cuda.Stream, begun: list[str]
) -> list[Any]:
    """Queue all on their streams, after what a stream has, and before what it gets."""
    results: list[Any] = [None] * len(nodes)
    ends: dict[int, torch.cuda.Event] = {}
    fork = stream.record_event()
    forked: set[torch.cuda.Stream] = set()
    try:
        for entry in order.entries:
            branch = streams[entry.lane]
            begun.append(nodes[entry.job].name)
            with torch.cuda.stream(branch):
                if branch not in forked and branch != stream:
                    branch.wait_event(fork)
                    forked.add(branch)
                for wait in entry.waits:
                    branch.wait_event(ends[wait])
                results[entry.job] = nodes[entry.job].call(results)
                ends[entry.job] = branch.record_event()  # fails if the task has broken the capture
    except BaseException:
        for branch in forked:  # what is forked has to join: else the capture can't end
            with suppress(Exception):
                stream.wait_stream(branch)
        raise
    for branch in forked:
        stream.wait_stream(branch)
    return results


def _in_turn(tries: list[Captured]) -> dict[int, Measurement]:
    """Time a replay of each, one round after the other."""
    samples: dict[int, list[float]] = {attempt.branches: [] for attempt in tries}
    for _ in range(_ROUNDS):
        for attempt in tries:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            attempt.replay()
            start.record()
            attempt.replay()
            end.record()
            end.synchronize()
            samples[attempt.branches].append(start.elapsed_time(end) / 1e3)
    return {n: Measurement(f"{n} branches", tuple(times_s)) for n, times_s in samples.items()}
