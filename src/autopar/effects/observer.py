"""Observer: which memory torch's operators really read and write while a task runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from autopar.effects.access import ByteRange, Places
from autopar.effects.memory import extent_of, memory_key, parts_of, ranges_of
from autopar.effects.operators import draws, written_arguments
from autopar.torch_private import TorchDispatchMode


class Seen(NamedTuple):
    """A range of bytes that was read or written."""

    lies: ByteRange
    key: object  # what all tensors of its storage have in common
    written: bool
    shape: tuple[int, ...] | None  # for people; none for random numbers


class Ground:
    """Memory that stays there while tasks run, found by its storages and by where it lies.

    What other libraries make of an address, as `torch.from_numpy` does, has its own storage.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._keys: dict[object, object] = {}  # by storage
        self._blocks = Places()  # none of which meet each other
        self._key_of: dict[ByteRange, object] = {}
        self._kept: list[StorageWeakRef] = []
        extents = [(extent_of(part), part) for value in values for part in parts_of(value)]
        for _, part in sorted(extents, key=lambda pair: (pair[0].start, -pair[0].stop)):
            self.add(part)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def find(self, part: Any) -> object | None:
        """The key of the memory that something lies in, if it is known."""
        number = memory_key(part)
        if number in self._keys:
            return self._keys[number]
        blocks = self._blocks.meeting(extent_of(part))
        return self._key_of[blocks[0]] if blocks else None

    def add(self, part: Any) -> object | None:
        """Note memory, and return its key if it was not known."""
        known_key, number = self.find(part), memory_key(part)
        self._keys[number] = number if known_key is None else known_key
        if known_key is not None:
            return None
        lies = extent_of(part)
        self._blocks.add(lies)
        self._key_of[lies] = number
        return number

    def keep(self, number: object, alive: StorageWeakRef) -> None:
        """Note memory that may go, by its storage alone."""
        self._keys.setdefault(number, number)
        self._kept.append(alive)  # so that no number is used again


class Observer(TorchDispatchMode):
    """Notes what operators of this thread read and write, but for memory that is born inside.

    Memory of `ground` was there before. It takes up to 100 µs an operator. What NumPy does is no
    operator.

    >>> x = torch.ones(3)
    >>> with Observer(Ground([x])) as seen:
    ...     _ = (x + 1).add_(x)
    >>> [each.written for each in seen.outside()]
    [False]
    """

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self._ground = ground
        self._seen: dict[tuple[ByteRange, bool], Seen] = {}
        self._keys: dict[object, object] = {}
        self._alive: dict[object, StorageWeakRef] = {}  # also so that no number is used again
        self._born: set[object] = set()
        self.written: set[object] = set()

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
        changes = _may_change(func)
        written: set[int] = set()
        if changes:
            schema = func._schema  # type: ignore[attr-defined]
            written = {id(tensor) for tensor in _tensors(written_arguments(schema, args, kwargs))}
        literal = func is torch.ops.aten.lift_fresh.default  # how a literal becomes a tensor
        for tensor in given:
            for part in parts_of(tensor):
                self._note(part, id(tensor) in written, literal)
        result = func(*args, **kwargs)
        returned = _tensors((result,))
        for tensor in returned:
            for part in parts_of(tensor):
                self._key(part, born=True)
        if changes and draws(func, args, kwargs):
            device = str(next((tensor.device for tensor in [*returned, *given]), "cpu"))
            memory = random_numbers(device)  # as a generator that is given can't be told here
            self._seen[memory, True] = Seen(memory, memory.memory, True, None)
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

    def left(self) -> Iterator[tuple[object, StorageWeakRef]]:
        """Memory that was born and is still there, by its number."""
        there = ((key, self._alive[key]) for key in self._born & self._alive.keys())
        return ((key, alive) for key, alive in there if not alive.expired())

    def _note(self, part: torch.Tensor, is_written: bool, born: bool) -> None:
        key = self._key(part, born)
        if key in self._born:
            return
        if is_written:
            self.written.add(key)
        for lies in ranges_of(part):
            if (lies, is_written) not in self._seen:
                self._seen[lies, is_written] = Seen(lies, key, is_written, tuple(part.shape))

    def _key(self, part: torch.Tensor, born: bool) -> object:
        """What stands for the memory of a part; it may be new."""
        number = memory_key(part)
        if number not in self._keys:
            known_key = self._ground.find(part)
            self._keys[number] = number if known_key is None else known_key
            if isinstance(number, int):
                self._alive[number] = StorageWeakRef(part.untyped_storage())
            if born and known_key is None:
                self._born.add(number)
        return self._keys[number]


def random_numbers(source: str | torch.Generator) -> ByteRange:
    """What stands for the state of a device's random numbers, or a generator's: draws change it."""
    if isinstance(source, str):
        return ByteRange(("random numbers", source))
    return ByteRange(("state", id(source)))


def gradients(device: str) -> ByteRange:
    """What stands for the gradients of a device's tensors, which come and go."""
    return ByteRange(("gradients", device))


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors among an operator's arguments, which may be in lists."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += _tensors(value)
    return tensors


@functools.cache
def _may_change(func: Any) -> bool:
    """Whether an operator may change an argument, or draw random numbers."""
    random = torch.Tag.nondeterministic_seeded in func.tags
    stand_ins = range(1, len(func._schema.arguments) + 1)  # all of them true
    return random or any(written_arguments(func._schema, tuple(stand_ins), {}))
