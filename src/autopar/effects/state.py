"""State: what a function can change beside its results; to compare, and to put back as it was.

Looked into are attributes of objects and classes, lists, dictionaries and sets, variables of
closures, global names that are used, gradients, and generators of random numbers; the insides of
other libraries' objects are not, modules and optimizers excepted.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import operator
import pickle
import random
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from autopar.effects.loads import LIBRARIES, is_library, loads_of
from autopar.effects.objects import dict_of, slots_of
from autopar.torch_private import FakeTensor

_Items = dict[Any, Any]

_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_OF_TORCH = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_PARTS = {"_parameters", "_buffers", "_modules"}  # of a module: their items look like attributes

_SETTINGS = (
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("whether gradients are on", torch.is_grad_enabled, torch.set_grad_enabled),
)

NOTHING = object()  # where there is nothing


class Change(NamedTuple):
    """Something that is not as it was.

    Args:
        name: Where it is, as one would write it.
        old: What it was, or `NOTHING`.
        new: What it is, or `NOTHING`.
    """

    name: str
    old: Any
    new: Any


class _Held(NamedTuple):
    """What something held, by name."""

    named: Callable[[Any], str]
    read: Callable[[], _Items]
    write: Callable[[_Items], object]
    before: _Items


class State:
    """All that can be reached from some objects, as it was when this was made.

    Args:
        roots: The objects, by name.

    Attributes:
        tensors: Those that were found, each with its name.
        generators: torch's generators of random numbers that were found.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.generators: list[torch.Generator] = []
        self._held: list[_Held] = []
        self._seen: dict[int, Any] = {}
        self._left = [*roots]
        for what, get, put in _SETTINGS:
            self._hold_value(what, get, put)
        while self._left:
            name, value = self._left.pop()
            if isinstance(value, torch.Tensor):
                self.tensors.append((name, value))
            if not isinstance(value, _PLAIN) and id(value) not in self._seen:
                self._seen[id(value)] = value  # kept, as its number would be used again
                self._find(name, value)

    def changes(self) -> Iterator[Change]:
        """What is not as it was."""
        for held in self._held:
            now = held.read()
            for key in dict.fromkeys([*held.before, *now]):
                old, new = held.before.get(key, NOTHING), now.get(key, NOTHING)
                if not same(old, new):
                    yield Change(held.named(key), old, new)

    def restore(self) -> None:
        """Put all back as it was."""
        for held in self._held:
            now = held.read()
            if not _all(same, now, held.before) or not _all(
                operator.is_, now.values(), held.before.values()
            ):
                held.write(held.before)

    def _find(self, name: str, value: Any) -> None:
        """Note what something holds, and what is to be looked at next."""
        if isinstance(value, tuple):
            self._left += [(f"{name}[{i}]", each) for i, each in enumerate(value)]
        elif isinstance(value, dict):
            self._hold_dict(value, lambda key: f"{name}[{_label(key)}]")
        elif isinstance(value, (list, deque)):
            self._hold(
                lambda key: f"{name}[{key}]",
                lambda: dict(enumerate(value)),
                _refill(value, lambda old: value.extend(old.values())),
            )
        elif isinstance(value, set):
            self._hold(
                lambda key: f"{name}[{_label(key)}]",
                lambda: dict.fromkeys(value),
                _refill(value, value.update),
            )
        elif isinstance(value, types.CellType):
            self._hold(lambda key: name, *_slots(value, ["cell_contents"]))
        elif isinstance(value, torch.Tensor):
            if value.is_leaf:
                self._hold(lambda key: f"{name}.{key}", *_slots(value, ["requires_grad", "grad"]))
            if not isinstance(value, FakeTensor):
                self._hold_object(name, value)
        elif isinstance(value, types.FunctionType):
            self._find_in_function(value)
        elif isinstance(value, types.MethodType):
            self._left += [(name, value.__self__), (name, value.__func__)]
        elif isinstance(value, functools.partial):
            self._left += [(name, part) for part in (value.func, value.args, value.keywords)]
        elif isinstance(value, type):
            self._find_in_class(value)
        elif (chance := _chance(value)) is not None:
            get, put = chance
            self.generators += [value] if isinstance(value, torch.Generator) else []
            self._hold_value(
                f"the state of {name}",
                lambda: pickle.dumps(get()),
                lambda old: put(pickle.loads(old)),
            )
        elif hasattr(type(value), "__next__") and not _is_own(type(value).__module__):
            self._find_in_iterator(name, value)
        elif isinstance(value, torch.nn.Module):
            self._left.append((name, type(value)))
            self._hold_object(name, value)
            for part in _PARTS & vars(value).keys():
                if isinstance(vars(value)[part], dict):  # not so in TorchScript
                    self._hold_dict(vars(value)[part], lambda key: _attribute(name, key))
        elif isinstance(value, _OF_TORCH) or _is_own(type(value).__module__):
            self._left.append((name, type(value)))
            self._hold_object(name, value)

    def _find_in_function(self, fn: types.FunctionType) -> None:
        self._left += zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        self._left += [(fn.__qualname__, each) for each in (fn.__defaults__, fn.__kwdefaults__)]
        if is_library(str(fn.__globals__.get("__name__"))):
            return
        self._left.append((fn.__qualname__, vars(fn)))
        names = {*loads_of(fn.__code__).names}
        self._hold_names(fn.__globals__, names, "")
        for name in names:
            module = fn.__globals__.get(name)
            if isinstance(module, types.ModuleType) and not is_library(module.__name__):
                self._hold_names(vars(module), names, f"{name}.")

    def _find_in_iterator(self, name: str, value: Any) -> None:
        """Note how far an iterator is, which nothing can put back, and what it goes through."""
        self._hold_value(
            f"how far {name} is", lambda: str(_position(value)).encode(), lambda old: None
        )
        self._left += [(name, each) for each in gc.get_referents(value)]
        self._hold_object(name, value)

    def _find_in_class(self, kind: type) -> None:
        for each in kind.__mro__:
            if not is_library(each.__module__):
                own = [key for key, value in vars(each).items() if not hasattr(value, "__get__")]
                own = [key for key in own if not key.startswith("__")]
                self._hold(f"{each.__qualname__}.{{}}".format, *_slots(each, own))
                for value in vars(each).values():
                    parts = [getattr(value, part, None) for part in ("__func__", "fget", "fset")]
                    self._left += [("", part) for part in (value, *parts) if callable(part)]

    def _hold_object(self, name: str, value: object) -> None:
        """Note the attributes of an object."""
        kind: Any = type(value)
        if names := slots_of(kind):
            self._hold(lambda key: _attribute(name, key), *_slots(value, names))
        if (attributes := dict_of(value)) is not None:
            self._hold_dict(attributes, lambda key: _attribute(name, key))

    def _hold_dict(self, value: _Items, named: Callable[[Any], str]) -> None:
        self._seen[id(value)] = value
        base = OrderedDict if isinstance(value, OrderedDict) else dict  # whose methods don't refuse

        def write(old: _Items) -> None:
            base.clear(value)
            for key, each in old.items():
                base.__setitem__(value, key, each)

        self._hold(named, lambda: dict(value), write)

    def _hold_value(self, what: str, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self._hold(lambda key: what, lambda: {"": get()}, lambda old: put(old[""]))

    def _hold_names(self, namespace: _Items, names: set[str], prefix: str) -> None:
        def write(old: _Items) -> None:
            for name in names - old.keys():
                namespace.pop(name, None)
            namespace.update(old)

        def read() -> _Items:
            return {name: namespace[name] for name in names if name in namespace}

        self._hold(lambda key: f"{prefix}{key}", read, write)

    def _hold(
        self,
        named: Callable[[Any], str],
        read: Callable[[], _Items],
        write: Callable[[_Items], object],
    ) -> None:
        before = read()
        self._held.append(_Held(named, read, write, before))
        self._left += [
            (named(key), each) for key, each in before.items() if not isinstance(each, _PLAIN)
        ]


def same(old: Any, new: Any) -> bool:
    """Whether two values are one object, or made of equal numbers, strings and such."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, _PLAIN):
        return bool(old == new)
    if isinstance(old, (list, tuple)):
        return _all(same, old, new)
    if isinstance(old, dict):
        return _all(same, old, new) and _all(same, old.values(), new.values())
    return False


def _all(alike: Callable[[Any, Any], bool], old: Collection[Any], new: Collection[Any]) -> bool:
    """Whether two collections are as long, and alike item by item."""
    return len(old) == len(new) and all(map(alike, old, new))


def tensors_in(value: Any) -> bool:
    """Whether tensors can be reached from something."""
    return bool(State([("", value)]).tensors)


def _refill(value: Any, fill: Callable[[_Items], object]) -> Callable[[_Items], object]:
    """How to write a container: anew."""

    def write(old: _Items) -> None:
        value.clear()
        fill(old)

    return write


def _slots(
    value: Any, names: Iterable[str]
) -> tuple[Callable[[], _Items], Callable[[_Items], object]]:
    """How to read and to write some attributes of an object, by themselves."""
    names = list(names)

    def read() -> _Items:
        found = {}
        for name in names:
            try:
                found[name] = getattr(value, name)
            except (AttributeError, ValueError):  # there is nothing in it
                continue
        return found

    def write(old: _Items) -> None:
        for name, now in read().items():
            if name not in old:
                delattr(value, name)
            elif now is not old[name]:
                setattr(value, name, old[name])
        for name in old.keys() - read().keys():
            setattr(value, name, old[name])

    return read, write


def _chance(value: Any) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
    """How to read and to write the state of a generator of random numbers, if it is one."""
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    if isinstance(value, torch.Generator):
        return (
            lambda: value.get_state().numpy().tobytes(),
            lambda state: value.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
        )
    if type(value).__name__ == "RandomState":
        return value.get_state, value.set_state
    bits = getattr(value, "bit_generator", None)
    if type(value).__module__.startswith("numpy") and bits is not None:
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None


def _position(value: Any) -> Any:
    """How far an iterator is, as far as Python's own ones and generators tell."""
    if isinstance(value, tuple):
        return [_position(each) for each in value]
    if isinstance(value, (types.GeneratorType, types.CoroutineType)):
        frame = value.gi_frame if isinstance(value, types.GeneratorType) else value.cr_frame
        return frame and (frame.f_lasti, [*map(id, gc.get_referents(value))])
    if isinstance(value, (itertools.count, itertools.repeat, range)):
        return repr(value)
    if isinstance(value, list):  # a new one of what is left, for some
        return len(value)
    if type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__"):
        with warnings.catch_warnings():  # some are not to be copied so any more
            warnings.simplefilter("ignore", DeprecationWarning)
            with contextlib.suppress(TypeError):
                return _position(value.__reduce__())
    return value if isinstance(value, int) else id(value)


def _is_own(module: str) -> bool:
    """Whether objects of a module's classes are to be looked into."""
    return module.partition(".")[0] not in LIBRARIES


def _attribute(name: str, key: Any) -> str:
    return f"{name}[{key}]" if str(key).isdigit() else f"{name}.{key}"


def _label(key: Any) -> str:
    return repr(key) if isinstance(key, _PLAIN) else f"a {type(key).__name__}"
