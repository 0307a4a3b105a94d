"""Observer: which memory torch's operators really read and write while a task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from autopar.effects.access import ByteRange
from autopar.effects.memory import memory_key, parts_of, ranges_of
from autopar.effects.operators import written_arguments
from autopar.torch_private import TorchDispatchMode


class Seen(NamedTuple):
    """A range of bytes that was read or written."""

    lies: ByteRange
    key: object  # what all tensors of its storage have in common
    written: bool
    shape: tuple[int, ...] | None  # for people; none for random numbers


class Observer(TorchDispatchMode):
    """Notes what operators of this thread read and write, but for memory that is born inside.

    It takes up to 100 µs an operator. What NumPy does is no operator.

    >>> x = torch.ones(3)
    >>> with Observer() as seen:
    ...     _ = (x + 1).add_(x)
    >>> [each.written for each in seen.outside()]
    [False]
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[ByteRange, bool], Seen] = {}
        self._alive: dict[object, StorageWeakRef] = {}  # also so that no number is used again
        self._born: set[object] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call an operator, and note what it is given and returns."""
        kwargs = kwargs or {}
        given = _tensors((*args, *kwargs.values()))
        schema = func._schema  # type: ignore[attr-defined]
        written = {id(tensor) for tensor in _tensors(written_arguments(schema, args, kwargs))}
        literal = func is torch.ops.aten.lift_fresh.default  # how a literal becomes a tensor
        for tensor in given:
            for part in parts_of(tensor):
                self._note(part, is_written=id(tensor) in written, born=literal)
        result = func(*args, **kwargs)
        for tensor in _tensors((result,)):
            for part in parts_of(tensor):
                self._key(part, born=True)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would load its compiler, which takes seconds

    def outside(self) -> Iterator[Seen]:
        """What was read and written and is still there: not what was born, or died, inside."""
        for access in self._seen.values():
            alive = self._alive.get(access.key)
            if alive is None or not alive.expired():
                yield access

    def note_reads(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note what is read by no operator, as what a task returns."""
        for tensor in tensors:
            for part in parts_of(tensor):
                self._note(part, is_written=False, born=False)

    def _note(self, part: torch.Tensor, *, is_written: bool, born: bool) -> None:
        key = self._key(part, born)
        if key in self._born:
            return
        for lies in ranges_of(part):
            if (lies, is_written) not in self._seen:
                self._seen[lies, is_written] = Seen(lies, key, is_written, tuple(part.shape))

    def _key(self, part: torch.Tensor, born: bool) -> object:
        """What stands for the memory of a part; it may be new."""
        key = memory_key(part)
        if isinstance(key, int) and key not in self._alive:
            self._alive[key] = StorageWeakRef(part.untyped_storage())
            if born:
                self._born.add(key)
        return key


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors among an operator's arguments, which may be in lists."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += _tensors(value)
    return tensors
