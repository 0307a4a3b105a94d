"""Guard: whether tasks change what they did not say, by version counters and by observation.

every run          the version counters of what a task can reach are compared after it
where none tells   the task's operators are observed, the first time that it runs
a run in order     all tasks are observed once, and what they did not say is added
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from autopar.effects.access import ByteRange, Places
from autopar.effects.memory import is_whole, keys_of, memory_key, ranges_of
from autopar.effects.observer import Ground, Observer, Seen
from autopar.effects.reach import memory_in
from autopar.graph.hazards import Hazards, result_of
from autopar.graph.node import Node, Result
from autopar.graph.versions import Comparison, Noted
from autopar.torch_private import pytree


class Known:
    """What earlier runs have found of a graph's tasks.

    Attributes:
        observed: Numbers of those whose operators were observed in a run in order.
        settled: Those that no other run has to observe, without and with inference mode.
        found: Whether something was added to what tasks have said, since a plan was made.
        kept: What holds slots that tasks bind anew, by its number, which stands for it.
    """

    def __init__(self) -> None:
        self.observed: set[int] = set()
        self.settled: tuple[set[int], set[int]] = (set(), set())
        self.found = False
        self.kept: dict[int, Any] = {}


class Guard:
    """Compares what the tasks of a plan do with what they have said.

    Args:
        nodes: The tasks and copies.
        hazards: What they have said that they read and write.
        known: What earlier runs have found.

    Attributes:
        comparisons: By node; none where nothing has to be compared.
        tensors: By node, what it is given or reaches, but for others' results.
    """

    def __init__(self, nodes: Sequence[Node], hazards: Hazards, known: Known) -> None:
        self.nodes = nodes
        self.hazards = hazards
        self.known = known
        self.tensors = [_tensors_of(node) for node in nodes]
        self._places: dict[int, tuple[int, torch.Tensor]] = {}  # of tensors in `Noted`, by id
        distinct = {id(each): each for own in self.tensors for each in own}
        self._counted = {number for number, each in distinct.items() if _is_counted(each)}
        self._uncounted: set[int] = set()  # tasks that may change what no counter tells
        watched = [self._watched(node) for node in nodes]
        kept = {number for _, given in watched for number in given}
        self.comparisons = [
            self._comparison(node, tensors, given, node.number in kept, renewed)
            for node, (tensors, given), renewed in zip(
                nodes, watched, self._renewed(kept), strict=True
            )
        ]
        lasting = distinct.values() if hazards.writers() else ()
        self._lasting = [tensor for tensor in lasting if _has_address(tensor)]
        self._addresses = [*map(torch.Tensor.data_ptr, self._lasting)]

    def begin(self) -> Noted:
        """What is noted when a run begins."""
        return Noted([tensor for _, tensor in self._places.values()], len(self.nodes))

    def is_stale(self) -> bool:
        """Whether tensors lie elsewhere than when this was made."""
        return [*map(torch.Tensor.data_ptr, self._lasting)] != self._addresses

    def doubts(self, node: Node, results: Sequence[Any], inference: bool) -> bool:
        """Whether a task has to be observed, as version counters can't tell what it changes."""
        given = [results[leaf.node] for leaf in node.leaves if isinstance(leaf, Result)]
        return node.number in self._uncounted or any(
            inference or each._is_view()
            for each in memory_in(given)
            if isinstance(each, torch.Tensor)
        )

    def compare(
        self, node: Node, noted: Noted, results: Sequence[Any], beside: Iterable[int]
    ) -> None:
        """Refuse a change that a task has not said.

        Args:
            node: The task, which has just ended.
            noted: The versions noted in this run.
            results: All results so far.
            beside: Tasks that may be under way.

        Raises:
            RuntimeError: A version has moved; the message names the task and the argument.
        """
        comparison = self.comparisons[node.number]
        if comparison is None:
            return
        moved = noted.moved(comparison)
        told = self.values(self.hazards.writes_of(node.number), results) if moved else ()
        said = _sharing(told)
        for tensor in moved:
            # Of a view a part may be others', and all is observed; who has made a tensor smaller
            # has done that to this one alone.
            if (is_whole(tensor) or not tensor._is_view()) and not said(tensor):
                others = [number for number in beside if self._watches(number, tensor, noted)]
                raise RuntimeError(self._untold(node, tensor, results, others))
        noted.renew([place for _, place in comparison.watched], comparison.given)

    def observed(self, node: Node, results: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Run a task, and refuse what it does without having said so.

        Raises:
            RuntimeError: It writes what it did not say, or reads what others write.
        """
        ground = self.ground()
        for part in memory_in(list(results)):
            ground.add(part)
        value, seen = self.seen(node, results, ground, call)
        for each in self.unsaid(node, seen.outside(), results, ground):
            if each.key not in ground:
                continue  # random numbers, and memory that is nobody else's
            if each.written:
                raise RuntimeError(self._untold(node, each, results, []))
            for writer in self.hazards.writers():
                values = self.values(self.hazards.writes_of(writer), results)
                written = [lies for value in values for lies in ranges_of(value)]
                if writer != node.number and any(map(each.lies.meets, written)):
                    msg = (
                        f"task {node.name!r} reads a tensor of shape {each.shape} that it was not "
                        f"given, and task {self.nodes[writer].name!r} writes it; expected an "
                        f"argument. Pass it, or let graph.check() find what tasks read."
                    )
                    raise RuntimeError(msg)
        return value

    def ground(self) -> Ground:
        """What the tasks are given and reach, but for others' results."""
        return Ground(memory_in([(node.leaves, node.reached) for node in self.nodes]))

    def seen(
        self, node: Node, results: Sequence[Any], ground: Ground, call: Callable[[], Any]
    ) -> tuple[Any, Observer]:
        """Run a task, and observe its operators.

        Raises:
            RuntimeError: It gave a tensor other memory, where nobody looks for it.
        """
        given = memory_in([results[leaf.node] for leaf in node.leaves if isinstance(leaf, Result)])
        tensors = [*self.tensors[node.number], *filter(torch.is_tensor, given)]
        before = [*map(memory_key, tensors)]
        with Observer(ground) as seen:
            value = call()
        for tensor, key in zip(tensors, before, strict=True):
            if tensor.layout == torch.strided and memory_key(tensor) != key:
                msg = (
                    f"task {node.name!r} gave {_name(node, tensor, results)} other memory; "
                    f"expected tensors that stay where they are. Use copy_, or do it before."
                )
                raise RuntimeError(msg)
        return value, seen

    def unsaid(
        self, node: Node, done: Iterable[Seen], results: Sequence[Any], ground: Ground
    ) -> Iterator[Seen]:
        """What a task has read and written and did not say."""
        done = [*done]
        keys = {seen.key for seen in done}

        def places(said: Iterable[Any]) -> Places:
            found = Places()
            for value in self.values(said, results):
                if not isinstance(value, torch.Tensor) or ground.find(value) in keys:
                    for lies in ranges_of(value):
                        found.add(lies)
            return found

        written = places(self.hazards.writes_of(node.number))
        read = places(self.hazards.reads_of(node.number))
        for seen in done:
            lies = seen.lies
            if not (written.covers(lies) or (read.covers(lies) and not seen.written)):
                yield seen

    def values(self, values: Iterable[Any], results: Sequence[Any]) -> Iterator[Any]:
        """Tensors and ranges of bytes, in place of values that stand for results, too."""
        for value in values:
            number = result_of(value)
            if number is None:
                yield value
            else:
                yield from memory_in(results[number])

    def _watches(self, number: int, tensor: torch.Tensor, noted: Noted) -> bool:
        comparison = self.comparisons[number]
        if comparison is None:
            return False
        given = [each for number in comparison.given for each, _ in noted.results[number]]
        return _sharing([*given, *(each for each, _ in comparison.watched)])(tensor)

    def _untold(
        self, node: Node, what: torch.Tensor | Seen, results: Sequence[Any], beside: list[int]
    ) -> str:
        names = " or ".join(repr(each.name) for each in (node, *(self.nodes[n] for n in beside)))
        at_once = ", which ran at once," if beside else ""
        return (
            f"task {names}{at_once} changed {_name(node, what, results)}, and did not say so; "
            f"expected it in `writes`. Say it, or let graph.check() find what tasks write."
        )

    def _watched(self, node: Node) -> tuple[tuple[tuple[torch.Tensor, int], ...], tuple[int, ...]]:
        """Tensors, with their places, and nodes' results that a task must not change."""
        if node.complete:
            return (), ()
        writes = self.hazards.writes_of(node.number)
        said = {id(each) for each in writes}
        others = [each for each in self.tensors[node.number] if id(each) not in said]
        told = _sharing(writes)
        counted = [each for each in others if id(each) in self._counted and not told(each)]
        if node.uncounted or len(counted) < len(others):
            self._uncounted.add(node.number)
        for each in counted:
            self._places.setdefault(id(each), (len(self._places), each))
        given = {leaf.node for leaf in node.leaves if isinstance(leaf, Result)}
        return (
            tuple((each, self._places[id(each)][0]) for each in counted),
            tuple(sorted(given.difference(map(result_of, writes)))),
        )

    def _comparison(
        self,
        node: Node,
        watched: tuple[tuple[torch.Tensor, int], ...],
        given: tuple[int, ...],
        kept: bool,
        renewed: tuple[tuple[int, ...], tuple[int, ...]],
    ) -> Comparison | None:
        if not (kept or watched or given or any(renewed) or node.number in self._uncounted):
            return None
        short = not (given or any(renewed) or kept)
        return Comparison(watched, given, renewed if any(renewed) else None, kept, short)

    def _renewed(self, kept: set[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """What each task may change, as it says, of all that others watch: places, and nodes."""
        places: dict[object, set[int]] = {}
        numbers: dict[object, set[int]] = {}
        by_range = Places()
        tensors = [tensor for _, tensor in self._places.values()]
        for place, tensor in enumerate(tensors if self.hazards.writers() else ()):
            for key in keys_of(tensor):
                places.setdefault(key, set()).add(place)
            for lies in ranges_of(tensor):
                by_range.add(lies, place)
        for number in kept if self.hazards.writers() else ():
            for key in self._keys_of(Result(number)):
                numbers.setdefault(key, set()).add(number)
        for node in self.nodes:
            keys = set[object]()
            for value in self.hazards.writes_of(node.number):
                keys.update(self._keys_of(value))
                if isinstance(value, ByteRange):
                    keys.update(key for n in by_range.at(value) for key in keys_of(tensors[n]))
            yield (
                tuple(set[int]().union(*(places.get(key, ()) for key in keys))),
                tuple(set[int]().union(*(numbers.get(key, ()) for key in keys))),
            )

    def _keys_of(self, value: Any) -> Iterator[object]:
        """Keys of all memory that a value may lie in, and of results that may."""
        number = result_of(value)
        if number is None:
            yield from keys_of(value)
        else:
            for behind in self.hazards.behind(number):
                yield from [behind] if isinstance(behind, Result) else keys_of(behind)


def _tensors_of(node: Node) -> list[torch.Tensor]:
    found = [each for each in (*node.leaves, *node.reached) if isinstance(each, torch.Tensor)]
    return list({id(each): each for each in found}.values())


def _is_counted(tensor: torch.Tensor) -> bool:
    """Whether a version counter is this tensor's alone."""
    return is_whole(tensor) and not tensor.is_inference()


def _sharing(values: Iterable[Any]) -> Callable[[torch.Tensor], bool]:
    """What tells whether a tensor shares its memory with one of some, or meets a range of bytes."""
    keys, places = set[object](), Places()
    for each in values:
        keys.update(keys_of(each))
        if isinstance(each, ByteRange):
            places.add(each)
    if not keys and not places:
        return lambda tensor: False
    return lambda tensor: (
        not keys.isdisjoint(keys_of(tensor)) or any(map(places.meeting, ranges_of(tensor)))
    )


def _has_address(tensor: torch.Tensor) -> bool:
    try:
        tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # without memory of its own, as a sparse one
        return False
    return True


def _name(node: Node, what: torch.Tensor | Seen, results: Sequence[Any]) -> str:
    """What an argument is called, for people."""
    shape = tuple(what.shape or ())
    numbered = pytree.tree_unflatten(range(len(node.leaves)), node.spec)
    paths, _ = pytree.tree_flatten_with_path(numbered)
    for (path, _), leaf in zip(paths, node.leaves, strict=True):
        value = results[leaf.node] if isinstance(leaf, Result) else leaf
        memory = [*memory_in(value)]
        if isinstance(what, torch.Tensor):
            there = any(each is what for each in memory)
        else:
            there = any(each.meets(what.lies) for each in ranges_of(memory))
        if there:
            kind = "args" if pytree.keystr(path[:1]) == "[0]" else "kwargs"
            return f"{kind}{pytree.keystr(path[1:])}, a tensor of shape {shape}"
    return f"a tensor of shape {shape} that it reaches without being given it"
