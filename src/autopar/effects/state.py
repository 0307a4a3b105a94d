"""State: what a function can change beside its results; to compare, and to put back as it was.

Looking calls no method of the objects that are looked at, such as `__getattr__` and `__iter__`.

Looked into are attributes of objects and classes that are written in Python, lists, dictionaries
and sets, variables of closures, global names that are used, and gradients. Not looked into are
torch's own objects, but for modules, optimizers and scalers, and what C keeps, such as bytearrays,
locks, and variables of threads and contexts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import pickle
import random
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from autopar.effects.loads import ABSENT, is_library, names_in
from autopar.effects.memory import is_array, is_default
from autopar.torch_private import DEFAULT_DEVICE, FakeTensor, disable_current_modes

HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # of a tensor
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_CONTAINERS: dict[Any, tuple[Callable[..., Any], Any]] = {
    # What one holds, by keys, and how to put each back, in order, once it was cleared.
    tuple: (lambda value: enumerate(tuple.__iter__(value)), None),  # which nobody changes
    frozenset: (lambda value: enumerate(frozenset.__iter__(value)), None),
    OrderedDict: (OrderedDict.items, OrderedDict.__setitem__),
    dict: (dict.items, dict.__setitem__),
    list: (lambda value: enumerate(list.__iter__(value)), list.insert),
    deque: (lambda value: enumerate(deque.__iter__(value)), deque.insert),
    set: (
        lambda value: ((item, None) for item in set.__iter__(value)),
        lambda value, item, _: set.add(value, item),
    ),
}
_LEADING_ON = (  # to what they hold, and never changed themselves
    *(property, classmethod, staticmethod, functools.partial),
    *(types.MethodType, types.BuiltinMethodType, types.MethodWrapperType),
)
_WRITTEN_IN_PYTHON = 1 << 9  # a flag of classes
_OPEN = (  # of torch's and Python's other classes, those whose objects are looked into
    *(torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler),
    *(torch.amp.GradScaler, types.SimpleNamespace),
)
_CLOSED = (bytearray, memoryview, threading.local, types.ModuleType, torch.jit.ScriptModule)
_PARTS = {"_parameters", "_buffers", "_modules"}  # of a module: their items look like attributes


def _setting(get: Callable[[], Any], put: Callable[[Any], Any]) -> property:
    return property(lambda _: get(), lambda _, value: put(value))


_SETTINGS = {  # what all code shares
    "the default dtype": _setting(torch.get_default_dtype, torch.set_default_dtype),
    "the default device": _setting(  # None where none was set, which is not the same as `cpu`
        lambda: (mode := getattr(DEFAULT_DEVICE, "device_context", None)) and str(mode.device),
        torch.set_default_device,
    ),
    "whether gradients are on": _setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "how many threads operators use": _setting(torch.get_num_threads, torch.set_num_threads),
    "whether algorithms are deterministic": _setting(
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    ),
}


class Change(NamedTuple):
    """Something that is not as it was; `old` or `new` is `ABSENT` where nothing was or is."""

    name: str  # where it is, as one would write it
    old: Any
    new: Any


_Label = Callable[[Any], str]
_Put = Callable[[Any, Any], object]  # something at a key; `ABSENT` takes away what is there


class _Holder(NamedTuple):
    label: _Label
    read: Callable[[], dict[Any, Any]]
    put: _Put
    clear: Callable[[], object] | None  # first, where the order of what is put counts
    before: dict[Any, Any]

    def restore(self) -> None:
        now, before = self.read(), self.before
        if _same([*now], [*before]) and all(map(operator.is_, now.values(), before.values())):
            return
        if self.clear is not None:
            self.clear()
            now = {}
        for key in {**before, **now}:
            if (old := before.get(key, ABSENT)) is not now.get(key, ABSENT):
                self.put(key, old)


class State:
    """All that can be reached from some objects, each with its name, as it was when this was made.

    `tensors`, torch's `generators` of random numbers but for its own, and `iterators` are listed by
    themselves: their values, and how far an iterator is, are not kept here.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.generators: list[torch.Generator] = []
        self.iterators: list[str] = []
        self._holders: list[_Holder] = []
        self._leaves: list[torch.Tensor] = []  # of autograd
        self._seen: dict[int, Any] = {}
        self._left = [*roots]
        self._hold_slots(torch, _SETTINGS, str)
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
                if not _same(old, new):
                    yield Change(holder.label(key), old, new)
            if [*now] != [*holder.before] and now.keys() == holder.before.keys():
                yield Change(f"the order of {holder.label(next(iter(now)))} and others", b"", b"")

    def restore(self) -> None:
        """Put all back as it was; what can't be is raised, once all else is back."""
        with contextlib.ExitStack() as back:
            for holder in reversed(self._holders):
                back.callback(holder.restore)
            for leaf in self._leaves:
                if not leaf.is_leaf:  # a change in place has made it none
                    leaf.detach_()

    def _look(self, name: str, value: Any) -> None:
        kind: Any = type(value)
        root = str(kind.__module__).partition(".")[0]
        if is_array(value) or is_a(value, _CLOSED):
            return
        if base := next((base for base in _CONTAINERS if is_a(value, base)), None):
            self._hold_items(value, base, lambda key: f"{name}[{_label(key)}]")
            if kind.__module__ != "builtins":  # it may have attributes
                self._hold_object(name, value)
        elif is_a(value, types.CellType):
            self._hold_slots(value, {"": types.CellType.cell_contents}, lambda _: name)
        elif is_a(value, torch.Tensor):
            self._leaves += [value] * value.is_leaf
            parts = (*HOOKS, "requires_grad", "grad") if value.is_leaf else HOOKS
            slots = {part: getattr(torch.Tensor, part) for part in parts}
            label = f"{name}.{{}}".format
            self._hold_slots(value, slots, label)
            if is_a(value, FakeTensor):  # that nobody uses later
                self._hold(label, functools.partial(attributes_of, value), vars(value).__setitem__)
            else:
                self._hold_object(name, value)
        elif is_a(value, types.FunctionType):
            self._look_at_function(value)
        elif is_a(value, type):
            self._look_at_class(value)
        elif is_a(value, torch.Generator):
            self.generators += [] if is_default(value) else [value]
        elif is_a(value, random.Random) or (
            root == "numpy" and kind.__name__ in ("RandomState", "Generator")
        ):
            get, put = value.__getstate__, value.__setstate__
            if bits := getattr(value, "bit_generator", None):  # whose seeds stay the same object
                get, put = (lambda: bits.state), functools.partial(setattr, bits, "state")
            seeds = getattr(bits, "seed_seq", None)
            self._hold(
                lambda _: f"the state of {name}",
                lambda: {"": pickle.dumps((get(), getattr(seeds, "n_children_spawned", 0)))},
                lambda _, old: put(pickle.loads(old)[0]),
            )
        elif _is_iterator(kind) or is_a(value, _LEADING_ON):
            self.iterators += [name] if _is_iterator(kind) else []
            self._left += [(name, part) for part in gc.get_referents(value)]
        elif is_a(value, weakref.ref):
            self._left.append((name, weakref.ref.__call__(value)))
            self._hold_object(name, value)
        elif is_a(value, _OPEN) or (
            kind.__flags__ & _WRITTEN_IN_PYTHON and root not in ("torch", "autopar")
        ):
            self._left.append((name, kind))
            self._hold_object(name, value)

    def _look_at_function(self, fn: types.FunctionType) -> None:
        self._left += zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        self._left += [(fn.__qualname__, held) for held in (fn.__defaults__, fn.__kwdefaults__)]
        if not is_library(str(fn.__globals__.get("__name__"))):
            self._left.append((fn.__qualname__, vars(fn)))
            self._hold_globals(names_in(fn.__code__), fn.__globals__, "{}", set())

    def _hold_globals(
        self, names: frozenset[str], namespace: dict[str, Any], path: str, seen: set[int]
    ) -> None:
        """Hold what lies at some names, and in attributes of the program's other modules there."""
        seen.add(id(namespace))

        def put(name: str, item: Any) -> None:
            namespace.pop(name) if item is ABSENT else namespace.update({name: item})

        self._hold_names(names, namespace.get, put, path.format)
        for name in names & namespace.keys():
            module = namespace[name]
            is_own = is_a(module, types.ModuleType) and not is_library(module.__name__)
            if is_own and id(vars(module)) not in seen:
                self._hold_globals(names, vars(module), f"{path.format(name)}.{{}}", seen)

    def _look_at_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if not is_library(str(base.__module__)):
                held, label = vars(base), f"{base.__qualname__}.{{}}".format
                code = [key for key, value in held.items() if hasattr(type(value), "__get__")]
                names = [key for key in held if key not in code and key[:2] != "__"]
                put = functools.partial(type.__setattr__, base)
                self._hold_names(names, held.get, put, label)
                self._left += [(label(key), held[key]) for key in code]

    def _hold_object(self, name: str, value: Any) -> None:
        kind: Any = type(value)

        def label(key: Any) -> str:
            return f"{name}[{key}]" if str(key).isdigit() else f"{name}.{key}"

        self._hold_slots(value, _slots_of(kind), label)
        with contextlib.suppress(AttributeError):  # of an object with slots alone
            attributes = object.__getattribute__(value, "__dict__")
            self._hold_items(attributes, dict, label)
            for part in _PARTS & attributes.keys() if is_a(value, torch.nn.Module) else ():
                if is_a(attributes[part], dict):  # not so in TorchScript
                    self._hold_items(attributes[part], dict, label)

    def _hold_items(self, value: Any, base: Any, label: _Label) -> None:
        """Hold what lies in a container of some kind, whatever a class made of it."""
        self._seen[id(value)] = value
        items, put = _CONTAINERS[base]
        self._hold(
            *(label, lambda: dict(items(value)), lambda key, item: put(value, key, item)),
            clear=lambda: base.clear(value),
        )

    def _hold_slots(self, value: Any, slots: Mapping[str, Any], label: _Label) -> None:
        """Hold what lies in slots of an object, or in a variable of a closure."""

        def get(name: str, default: Any) -> Any:
            try:
                return slots[name].__get__(value)
            except (AttributeError, ValueError):  # nothing is there yet
                return default

        def put(name: str, item: Any) -> None:
            slots[name].__delete__(value) if item is ABSENT else slots[name].__set__(value, item)

        self._hold_names(slots, get, put, label)

    def _hold_names(self, names: Collection[str], get: Any, put: _Put, label: _Label) -> None:
        """Hold what lies at some names, where others may lie that nobody uses."""
        if names:
            self._hold(label, lambda: {name: get(name, ABSENT) for name in names}, put)

    def _hold(self, label: _Label, read: Any, put: _Put, clear: Any = None) -> None:
        before = read()
        self._holders.append(_Holder(label, read, put, clear, before))
        there = ((key, item) for key, item in before.items() if item is not ABSENT)
        self._left += [(label(key), item) for key, item in there if not is_a(item, _PLAIN)]


def is_a(value: Any, kinds: Any) -> bool:
    """Whether an object's class is of some kinds: `isinstance` would ask the object, too."""
    return issubclass(type(value), kinds)


def attributes_of(tensor: FakeTensor) -> dict[str, Any]:
    """What a program has set on a tensor without memory, beside what torch has there."""
    with disable_current_modes():
        own = vars(tensor.fake_mode.from_tensor(torch.empty(0))).keys()
    return {name: value for name, value in vars(tensor).items() if name not in own}


def _same(old: Any, new: Any) -> bool:
    """Whether two values are one object, or made of equal numbers, strings and such."""
    if old is new or type(old) is not type(new):
        return old is new
    if is_a(old, _PLAIN):
        return bool(old == new)
    if is_a(old, dict):
        old, new = list(dict.items(old)), list(dict.items(new))
    return is_a(old, (list, tuple)) and len(old) == len(new) and all(map(_same, old, new))


def _is_iterator(kind: type) -> bool:
    steps = ("__next__", "__anext__", "__await__")
    return kind.__module__ in ("builtins", "itertools") and any(hasattr(kind, s) for s in steps)


@functools.lru_cache(10_000)
def _slots_of(kind: type) -> dict[str, Any]:
    """The slots that a class's objects have, by name, if it says so or is the program's."""
    return {
        name: descriptor
        for base in reversed(kind.__mro__)
        if "__slots__" in vars(base) or not is_library(str(base.__module__))
        for name, descriptor in vars(base).items()
        if type(descriptor) is types.MemberDescriptorType
    }


def _label(key: Any) -> str:
    return repr(key) if is_a(key, _PLAIN) else f"a {type(key).__name__}"
