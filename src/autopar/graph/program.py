"""Program: a graph's tasks and copies, in the order in which they were added."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from autopar.device import cpu, present
from autopar.effects.access import ANYWHERE
from autopar.effects.calls import Declared, declared, is_plain, name_of, plain
from autopar.effects.memory import (
    is_array,
    is_size,
    memory_in,
    random_numbers,
    require_none_hidden,
)
from autopar.effects.task import Task
from autopar.graph.hazards import Hazards, Uses
from autopar.graph.node import Node, Result
from autopar.graph.traced_call import filled, itself
from autopar.lanes.handle import Handle
from autopar.lanes.lane import require_text
from autopar.refusal import refuse_no_value, what
from autopar.torch_private import pytree

if TYPE_CHECKING:
    from autopar.graph.tracing import Traced  # which imports what nothing else needs

_LYING = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage, torch.Generator)


class Program:
    """Nodes, and what they read and write, as tasks are added."""

    def __init__(self, graph: object) -> None:
        self.nodes: list[Node] = []
        self.hazards = Hazards()
        self._graph = graph
        self._weights: list[tuple[dict[str, Any], str, torch.Tensor]] = []  # of traced modules
        self._dtype: torch.dtype | None = None  # the default one when code was traced
        self._copies: dict[tuple[Any, ...], int] = {}  # by value, device and who wrote it last
        self.inner = set[int]()  # nodes whose results nobody can ask for

    def add(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        device: torch.device | str | int | None = None,
        name: str | None = None,
        writes: Iterable[Task | torch.Tensor] | None = None,
        cost_s: float | None = None,
        traced: bool = False,
    ) -> Task:
        """Add a task, and the copies that it needs; see `TaskGraph.add`.

        Of what was traced all is known: what is no operator takes a part of a result, or hands on.
        Of the program's own functions nothing is, but what they hold, and what `writes` says.
        """
        if not callable(fn):
            msg = f"fn is {what(fn)}; expected a function. Write add(fn, x), not add(fn(x))."
            raise TypeError(msg)
        fn, args, kwargs = plain(fn, args, kwargs)
        name = name_of(fn) if name is None or name == "" else name
        require_text("name", name)
        _require_list(writes, name)
        _require_seconds(cost_s, name)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        for leaf in leaves:
            self._require_own(leaf, name)
        others = [leaf for leaf in leaves if not issubclass(type(leaf), (Task, torch.Tensor))]
        require_none_hidden((args, kwargs), others, Task, f"task {name!r}", "tasks")
        told = declared(name, fn, args, kwargs)
        is_own = not traced and (told is None or not all(map(is_plain, leaves)))
        if is_own or told is None:
            told = Declared([], random=False, fresh=False, complete=traced)
        said = [*(writes or ()), *told.writes]
        place = self._place(device, [*leaves, *said], fn, name)
        written = [self._written(value, leaves, place, name) for value in said]
        written += [random_numbers(str(place))] if told.random else []
        flat = [*args, *kwargs.values()]
        if not _are_same(flat, leaves):
            leaves, spec = self._kept(args, kwargs, place)
        given = tuple(self._given(leaf, place, shared=told.fresh) for leaf in leaves)
        reads: list[Any] = [leaf for leaf in given if issubclass(type(leaf), (Result, *_LYING))]
        if told.beyond and not traced:  # a trace has the whole tensor among its arguments
            reads.append(ANYWHERE)
        holders = [leaf for leaf in given if type(leaf) is not Result and not is_plain(leaf)]
        if traced:  # nobody else has these containers, and most hold shapes
            holders = [leaf for leaf in holders if [*memory_in(leaf)]]
        changes, unknown = {*map(id, told.writes)}, is_own and writes is None
        written_in = [one for one in holders if changes & {*map(id, pytree.tree_leaves(one))}]
        uses = Uses(
            reads=[*reads, *filter(is_array, given)],
            writes=written,
            holders=[fn, *holders] if is_own else holders,
            written_holders=written_in,
            fresh=told.fresh,
            unknown=unknown,
            said=not (unknown or told.complete),
        )
        number = self._append(
            *(uses, name, fn, given, spec, place),
            cost_s=cost_s,
            keywords=tuple(kwargs) if _are_same(flat, leaves) else None,
            may_queue=is_own,
            traced=traced,
        )
        return Task(self._graph, number, name, place)

    def add_traced(self, code: Traced) -> Any:
        """Add the operators of traced code; return its result with tasks in place of tensors."""
        tasks: dict[torch.fx.Node, Task] = {}
        self._weights += code.weights
        self.hazards.may_track = False
        self._dtype = torch.get_default_dtype()
        for node, call in code.calls:
            given = filled((call.args, call.kwargs), tasks)
            tasks[node] = self.add(call.fn, *given, device=call.device, name=node.name, traced=True)
        result = filled(code.result, tasks)
        shown = {leaf.number for leaf in pytree.tree_leaves(result) if isinstance(leaf, Task)}
        self.inner.update({task.number for task in tasks.values()} - shown)
        is_value = all(one is result for one in pytree.tree_leaves(result, is_leaf=is_size))
        if is_value and not isinstance(result, Task):  # it may be nothing
            return self.add(itself, (result,), {}, name="result", writes=())
        return result

    def require_as_traced(self) -> None:
        """Refuse to go on without the weights that modules have got since, or by another dtype."""
        if self._dtype not in (None, torch.get_default_dtype()):
            msg = (
                f"torch's default dtype is {torch.get_default_dtype()}, and code was traced with "
                f"{self._dtype}, of which its operators make tensors; expected the same. Set it "
                f"back, or trace the code again."
            )
            raise RuntimeError(msg)
        for module, name, tensor in self._weights:
            if module.get(name) is not tensor:
                msg = (
                    f"a module that was traced has another tensor as its {name} now, of shape "
                    f"{tuple(tensor.shape)} then; expected the one that the trace uses, with other "
                    f"values. Use copy_, or load_state_dict without `assign`, or trace it again."
                )
                raise RuntimeError(msg)

    def order(self, first: Task, then: Task) -> None:
        """Let a task wait for another."""
        for task in (first, then):
            if not isinstance(task, Task):
                expected = "expected two tasks, as graph.add returns them."
                msg = f"order was given {what(task)}; {expected}"
                raise TypeError(msg)
            self._require_own(task, "order")
        old = self.nodes[then.number]
        self.nodes[then.number] = replace(old, after=old.after | {first.number})

    def in_order(self) -> list[Node]:
        """The nodes, each with those that it comes after by what both read and write."""
        all_before = self.hazards.before()
        return [
            replace(node, after=node.after | before) if before else node
            for node, before in zip(self.nodes, all_before, strict=True)
        ]

    def _append(self, uses: Uses, *what: Any, **options: Any) -> int:
        self.hazards.note(uses)
        self.nodes.append(Node(len(self.nodes), *what, **options))
        return len(self.nodes) - 1

    def _kept(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
    ) -> tuple[list[Any], pytree.TreeSpec]:
        """Arguments out of those containers that hold a task or are to be copied: others stay."""
        outermost = [(args, kwargs), args, kwargs]

        def stays(value: Any) -> bool:
            if any(value is one for one in outermost):
                return False
            leaves = pytree.tree_leaves(value)
            return not any(type(leaf) is Task or _is_elsewhere(leaf, device) for leaf in leaves)

        return pytree.tree_flatten(outermost[0], is_leaf=stays)

    def _given(self, leaf: Any, device: torch.device, *, shared: bool) -> Any:
        """What to put among a node's arguments: a value, a result, or that of a copy.

        Tasks share a copy if none of them can hand it on, for others to change.
        """
        is_task = type(leaf) is Task
        value = Result(leaf.number) if is_task else leaf
        if not _is_elsewhere(leaf, device):
            return value
        key = (value if is_task else id(leaf), device, self.hazards.writers(value))
        if shared and key in self._copies:
            return Result(self._copies[key])
        _, spec = pytree.tree_flatten((value,))
        name = f"{leaf.name if is_task else 'tensor'} to {device}"
        what = Uses([value]), name, None, (value,), spec, device
        number = self._append(*what, source=leaf.device)
        if shared:
            self._copies[key] = number
        return Result(number)

    def _place(
        self, device: torch.device | str | int | None, leaves: list[Any], fn: Any, name: str
    ) -> torch.device:
        """Where a task runs: with what it is given first, or with all tensors that it holds."""
        if device is not None:
            try:
                return present(device)
            except ValueError as error:
                error.add_note(f"in task {name!r}")
                raise
        for leaf in leaves:
            if issubclass(type(leaf), (Task, torch.Tensor)):
                return torch.device(leaf.device)
        if not torch.cuda.is_initialized():
            return cpu()
        held = {part.device for part in memory_in(fn) if isinstance(part, torch.Tensor)}
        return torch.device(held.pop()) if len(held) == 1 else cpu()

    def _written(self, value: Any, leaves: list[Any], device: torch.device, name: str) -> Any:
        if not isinstance(value, (Task, torch.Tensor)):
            if isinstance(value, _LYING) or is_array(value):
                return value
            msg = f"writes of task {name!r} holds {what(value)}; expected tasks and tensors."
            raise TypeError(msg)
        self._require_own(value, name)
        given = any(leaf is value for leaf in leaves)
        if isinstance(value, Task) and not given:
            msg = f"writes of task {name!r} holds {what(value)}; expected one of its arguments."
            raise ValueError(msg)
        if given and value.device != device:
            msg = (
                f"task {name!r} on {device} is to write to {what(value)} on {value.device}; "
                f"expected both on one device, as a copy's changes would be lost. Run it there."
            )
            raise ValueError(msg)
        return Result(value.number) if isinstance(value, Task) else value

    def _require_own(self, value: Any, name: str) -> None:
        if type(value) is Task and value._graph is not self._graph:
            msg = (
                f"{value!r}, given to task {name!r}, is of another graph; expected one of this "
                f"graph. Add it here, or pass its result."
            )
            raise ValueError(msg)
        if issubclass(type(value), Handle):
            refuse_no_value(Handle, name)


def _require_list(writes: Any, name: str) -> None:
    is_one = isinstance(writes, (Task, str, *_LYING)) or is_array(writes)
    if is_one or not isinstance(writes, Iterable | None):
        kind = type(writes).__name__
        msg = f"writes of task {name!r} is one {kind}; expected a list. Pass [x]."
        raise TypeError(msg)


def _require_seconds(cost_s: Any, name: str) -> None:
    is_number = isinstance(cost_s, numbers.Real) and not isinstance(cost_s, bool)
    if cost_s is not None and not (is_number and 0 <= cost_s < float("inf")):
        msg = f"cost_s of task {name!r} is {what(cost_s)}; expected seconds, from 0 up."
        raise ValueError(msg)


def _is_elsewhere(leaf: Any, device: torch.device) -> bool:
    """Whether something has to be copied to a device; torch takes numbers from the CPU anywhere."""
    if not issubclass(type(leaf), (Task, torch.Tensor)) or leaf.device == device:
        return False
    return isinstance(leaf, Task) or bool(leaf.dim()) or leaf.device.type != "cpu"


def _are_same(values: list[Any], others: list[Any]) -> bool:
    return len(values) == len(others) and all(map(operator.is_, values, others))
