"""State: what a function can change beside its results; to compare, and to put back as it was.

Looking runs no code of the objects that are looked at, such as `__getattr__` and `__iter__`.

Looked into are attributes of objects and classes, lists, dictionaries and sets, variables of
closures, global names that are used, gradients, and generators of random numbers; the insides of
other libraries' objects are not, modules and optimizers excepted.
"""

from __future__ import annotations

import functools
import gc
import operator
import pickle
import random
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from autopar.effects.loads import ABSENT, LIBRARIES, is_library, names_in
from autopar.effects.memory import is_array, is_default
from autopar.effects.objects import IN_CELL, bind, content, dict_of, home, is_a, slots_of
from autopar.torch_private import FakeTensor

_Items = dict[Any, Any]

_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_OPEN = (  # of libraries' classes, those whose objects are looked into
    *(torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler),
    types.SimpleNamespace,
)
_OPEN_HOMES = {"argparse", "collections"}  # of these, all that are no builtins: plain holders
_CLOSED = (bytearray, memoryview, threading.local, torch.jit.ScriptModule)  # never looked into
_PARTS = {"_parameters", "_buffers", "_modules"}  # of a module: their items look like attributes

_SETTINGS = (
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("whether gradients are on", torch.is_grad_enabled, torch.set_grad_enabled),
)


class Change(NamedTuple):
    """Something that is not as it was; `old` or `new` is `ABSENT` where nothing was or is."""

    name: str  # where it is, as one would write it
    old: Any
    new: Any


class _Holder(NamedTuple):
    """What something held, by name."""

    label: Callable[[Any], str]
    read: Callable[[], _Items]
    write: Callable[[_Items], object]
    before: _Items


class State:
    """All that can be reached from some objects, each with its name, as it was when this was made.

    `tensors`, torch's `generators` of random numbers and `iterators` are listed by themselves: how
    far an iterator is, and what an array holds, can't be seen here.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.generators: dict[str, torch.Generator] = {}  # by what a change of one is called
        self.iterators: list[str] = []
        self._holders: list[_Holder] = []
        self._seen: dict[int, Any] = {}
        self._left = [*roots]
        for what, get, put in _SETTINGS:
            self._hold_value(what, get, put)
        while self._left:
            name, value = self._left.pop()
            if is_a(value, torch.Tensor):
                self.tensors.append((name, value))
            if not is_a(value, _PLAIN) and id(value) not in self._seen:
                self._seen[id(value)] = value  # kept, as its number would be used again
                self._look(name, value)

    def changes(self) -> Iterator[Change]:
        """What is not as it was."""
        for holder in self._holders:
            now = holder.read()
            for key in dict.fromkeys([*holder.before, *now]):
                old, new = holder.before.get(key, ABSENT), now.get(key, ABSENT)
                if not same(old, new):
                    yield Change(holder.label(key), old, new)
            if [*now] != [*holder.before] and now.keys() == holder.before.keys():
                yield Change(f"the order of {holder.label(next(iter(now)))} and others", b"", b"")

    def restore(self) -> None:
        """Put all back as it was."""
        for holder in self._holders:
            now, before = holder.read(), holder.before
            if not _all(same, now, before) or not _all(operator.is_, now.values(), before.values()):
                holder.write(before)

    def _look(self, name: str, value: Any) -> None:
        """Note what something holds, and what is to be looked at next."""
        if is_array(value) or is_a(value, _CLOSED):
            return
        if is_a(value, tuple):
            self._left += [(f"{name}[{i}]", part) for i, part in enumerate(tuple.__iter__(value))]
        elif is_a(value, dict):
            self._hold_dict(value, lambda key: f"{name}[{_label(key)}]")
        elif is_a(value, (list, deque)):
            kind: Any = list if is_a(value, list) else deque
            self._hold(
                lambda key: f"{name}[{key}]",
                lambda: dict(enumerate(kind.__iter__(value))),
                lambda old: (kind.clear(value), kind.extend(value, old.values())),
            )
        elif is_a(value, set):
            self._hold(
                lambda key: f"{name}[{_label(key)}]",
                lambda: dict.fromkeys(set.__iter__(value)),
                lambda old: (set.clear(value), set.update(value, old)),
            )
        elif is_a(value, types.CellType):
            self._hold_names(value, [IN_CELL], lambda key: name)
        elif is_a(value, torch.Tensor):
            for part in ("requires_grad", "grad") if value.is_leaf else ():
                read, write = (functools.partial(act, value, part) for act in (getattr, setattr))
                self._hold_value(f"{name}.{part}", read, write)
            if not is_a(value, FakeTensor):
                self._hold_object(name, value)
        elif is_a(value, types.FunctionType):
            self._look_at_function(value)
        elif is_a(value, type):
            self._look_at_class(value)
        elif (chance := _chance(value)) is not None:
            get, put = chance
            what = f"the state of {name}"
            if is_a(value, torch.Generator):
                if is_default(value):
                    return  # other threads draw from it, too
                self.generators[what] = value
            self._hold_value(what, lambda: pickle.dumps(get()), lambda old: put(pickle.loads(old)))
        elif _is_iterator(value) or is_a(value, (types.MethodType, functools.partial)):
            self.iterators += [name] if _is_iterator(value) else []
            self._left += [(name, part) for part in gc.get_referents(value)]
        elif is_a(value, _OPEN) or _is_own(type(value)) or home(type(value)) in _OPEN_HOMES:
            self._left.append((name, type(value)))
            self._hold_object(name, value)
            if is_a(value, torch.nn.Module):
                parts = [vars(value)[part] for part in _PARTS & vars(value).keys()]
                for part in parts:
                    if is_a(part, dict):  # not so in TorchScript
                        self._hold_dict(part, lambda key: _attribute(name, key))
        elif is_a(value, weakref.ref):
            self._left.append((name, value()))

    def _look_at_function(self, fn: types.FunctionType) -> None:
        self._left += zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        self._left += [(fn.__qualname__, held) for held in (fn.__defaults__, fn.__kwdefaults__)]
        if is_library(str(fn.__globals__.get("__name__"))):
            return
        self._left.append((fn.__qualname__, vars(fn)))
        names = names_in(fn.__code__)
        self._hold_names(fn.__globals__, names, str)
        left: list[tuple[str, Any]] = [(name, fn.__globals__.get(name)) for name in names]
        while left:
            path, module = left.pop()
            if not is_a(module, types.ModuleType) or is_library(module.__name__):
                continue
            if id(module) not in self._seen:
                self._seen[id(module)] = module
                self._hold_names(vars(module), names, f"{path}.{{}}".format)
                left += [(f"{path}.{name}", vars(module).get(name)) for name in names]

    def _look_at_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if not is_library(home(base)):
                kinds = {key: type(value) for key, value in vars(base).items() if key[:2] != "__"}
                names = [key for key, member in kinds.items() if not hasattr(member, "__get__")]
                self._hold_names(base, names, f"{base.__qualname__}.{{}}".format)
                for value in vars(base).values():
                    self._left += [("", part) for part in _functions_of(value)]

    def _hold_object(self, name: str, value: Any) -> None:
        kind: Any = type(value)
        if slots := slots_of(kind):
            self._hold_names(value, slots, lambda key: _attribute(name, key))
        if (attributes := dict_of(value)) is not None:
            self._hold_dict(attributes, lambda key: _attribute(name, key))

    def _hold_dict(self, value: _Items, label: Callable[[Any], str]) -> None:
        self._seen[id(value)] = value
        base = OrderedDict if is_a(value, OrderedDict) else dict

        def write(old: _Items) -> None:
            base.clear(value)
            for key, item in old.items():
                base.__setitem__(value, key, item)

        self._hold(label, lambda: dict(base.items(value)), write)

    def _hold_value(self, what: str, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self._hold(lambda key: what, lambda: {"": get()}, lambda old: put(old[""]))

    def _hold_names(self, holder: Any, names: Collection[str], label: Callable[[Any], str]) -> None:
        def write(old: _Items) -> None:
            now = content(holder, names)
            for name in {**now, **old}:
                if now.get(name, ABSENT) is not old.get(name, ABSENT):
                    bind(holder, name, old.get(name, ABSENT))

        self._hold(label, lambda: content(holder, names), write)

    def _hold(
        self,
        label: Callable[[Any], str],
        read: Callable[[], _Items],
        write: Callable[[_Items], object],
    ) -> None:
        before = read()
        self._holders.append(_Holder(label, read, write, before))
        self._left += [(label(key), item) for key, item in before.items() if not is_a(item, _PLAIN)]


def same(old: Any, new: Any) -> bool:
    """Whether two values are one object, or made of equal numbers, strings and such."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if is_a(old, _PLAIN):
        return bool(old == new)
    if is_a(old, (list, tuple)):
        return _all(same, old, new)
    if is_a(old, dict):
        return _all(same, old, new) and _all(same, old.values(), new.values())
    return False


def _all(alike: Callable[[Any, Any], bool], old: Collection[Any], new: Collection[Any]) -> bool:
    """Whether two collections are as long, and alike item by item."""
    return len(old) == len(new) and all(map(alike, old, new))


def tensors_in(value: Any) -> bool:
    """Whether tensors can be reached from something."""
    return bool(State([("", value)]).tensors)


def _chance(value: Any) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
    """How to read and to write the state of a generator of random numbers, if it is one."""
    if is_a(value, random.Random):
        return value.getstate, value.setstate
    if is_a(value, torch.Generator):
        return (
            lambda: value.get_state().numpy().tobytes(),
            lambda state: value.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
        )
    if home(type(value)).partition(".")[0] != "numpy":
        return None
    if type(value).__name__ == "RandomState":
        return value.get_state, value.set_state
    if hasattr(type(value), "bit_generator"):
        bits = value.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None


def _functions_of(member: Any) -> Iterator[Any]:
    """What is called where a class holds it by some name."""
    if is_a(member, property):
        yield from filter(None, (member.fget, member.fset))
    elif is_a(member, (classmethod, staticmethod)):
        yield member.__func__
    elif callable(member):
        yield member


def _is_iterator(value: Any) -> bool:
    """Whether something is one of Python's own iterators, generators and coroutines."""
    steps = ("__next__", "__anext__", "__await__")
    kind = type(value)
    return home(kind) in ("builtins", "itertools") and any(hasattr(kind, step) for step in steps)


def _is_own(kind: type) -> bool:
    """Whether objects of a class are to be looked into."""
    return home(kind).partition(".")[0] not in LIBRARIES


def _attribute(name: str, key: Any) -> str:
    return f"{name}[{key}]" if str(key).isdigit() else f"{name}.{key}"


def _label(key: Any) -> str:
    return repr(key) if is_a(key, _PLAIN) else f"a {type(key).__name__}"
