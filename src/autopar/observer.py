"""Observer: which memory torch's operators really read and write while a task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.access import Stretch
from autopar.aliasing import keys_of, memory_key, parts_of, stretches_of
from autopar.calls import draws, written_arguments


class Seen(NamedTuple):
    """One stretch of memory that was read or written.

    Args:
        stretch: Where it lies.
        key: What all tensors of its storage have in common.
        written: Whether it was written.
        shape: The shape of the tensor, for people; none for random numbers.
    """

    stretch: Stretch
    key: object
    written: bool
    shape: tuple[int, ...] | None


class Observer(TorchDispatchMode):
    """Notes what operators of this thread read and write, but for memory that is born inside.

    It takes some 30 µs an operator. What NumPy does is no operator.

    >>> x = torch.ones(3)
    >>> with Observer() as seen:
    ...     _ = (x + 1).add_(x)
    >>> [each.written for each in seen.outside()]
    [False]
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[Stretch, bool], Seen] = {}
        self._alive: dict[object, StorageWeakRef] = {}  # also so that no key is used again
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
        schema = func._schema  # type: ignore[attr-defined]
        written = {id(each) for each in _tensors(list(written_arguments(schema, args, kwargs)))}
        given = [part for each in _tensors((args, kwargs)) for part in _with_owner(each, written)]
        if func is torch.ops.aten.lift_fresh.default:  # how a literal becomes a tensor
            self._bear(part for part, _ in given)
        for part, is_written in given:
            self._note(part, is_written)
        result = func(*args, **kwargs)
        old = {memory_key(part) for part, _ in given}
        found = [part for each in _tensors(result) for part in parts_of(each)]
        self._bear(part for part in found if memory_key(part) not in old)
        if draws(func, args, kwargs):
            device = str(next((each.device for each in [*found, *(p for p, _ in given)]), "cpu"))
            memory = random_numbers(device)
            self._seen[memory, True] = Seen(memory, memory.memory, True, None)
        return result

    def outside(self) -> Iterator[Seen]:
        """What was read and written and is still there: not what was born, or died, inside."""
        for each in self._seen.values():
            alive = self._alive.get(each.key)
            if alive is None or not alive.expired():
                yield each

    def wrote(self, tensor: torch.Tensor) -> bool:
        """Whether something in a tensor's memory was written."""
        keys = {*keys_of(tensor)}
        return any(each.written and each.key in keys for each in self._seen.values())

    def bore(self, key: object) -> bool:
        """Whether memory was born inside."""
        return key in self._born

    def left(self) -> list[object]:
        """The keys of memory that was born and is still there."""
        alive = self._alive
        return [key for key in self._born if key in alive and not alive[key].expired()]

    def _note(self, part: torch.Tensor, is_written: bool) -> None:
        key = memory_key(part)
        if key in self._born:
            return
        self._keep(key, part)
        for stretch in stretches_of(part):
            seen = Seen(stretch, key, is_written, tuple(part.shape))
            self._seen.setdefault((stretch, is_written), seen)

    def _bear(self, parts: Iterable[torch.Tensor]) -> None:
        for part in parts:
            key = memory_key(part)
            if key not in self._alive:
                self._born.add(key)
                self._keep(key, part)

    def _keep(self, key: object, part: torch.Tensor) -> None:
        if key not in self._alive and isinstance(key, int):
            self._alive[key] = StorageWeakRef(part.untyped_storage())


def random_numbers(device: str) -> Stretch:
    """What stands for the state of a device's random numbers: each draw changes it."""
    return Stretch(("random numbers", device))


def gradients(device: str) -> Stretch:
    """What stands for the gradients of a device's tensors, which come and go."""
    return Stretch(("gradients", device))


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _with_owner(tensor: torch.Tensor, written: set[int]) -> Iterator[tuple[torch.Tensor, bool]]:
    return ((part, id(tensor) in written) for part in parts_of(tensor))
