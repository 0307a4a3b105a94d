"""Kinds: how to look at values of a type, and what they lead to.

Nothing of what is looked at is run: types say what a value is, whatever it says of itself, and the
garbage collector says what it holds.
"""

from __future__ import annotations

import abc
import contextvars
import functools
import gc
import operator
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol

import torch

from autopar.effects.chance import (
    ALWAYS,
    NEVER,
    SWITCHED,
    chance_of,
    is_switched_off,
    is_torchs,
    method_draws,
)
from autopar.effects.loads import (
    LIBRARIES,
    attribute,
    held_by,
    imported,
    is_library,
    loaded,
    loads_of,
)
from autopar.effects.memory import MEMORY, is_array
from autopar.effects.objects import attributes_of, home, is_own, mro, namespace
from autopar.effects.task import Task
from autopar.torch_private import (
    OpOverload,
    OpOverloadPacket,
    ScriptMethod,
    ScriptModule,
    pytree,
)

# Methods that are not called of what is there already.
_MADE = {"__init__", "__new__", "__init_subclass__", "__post_init__"}
# Python's own ways to all that there is.
_ANYWHERE = {"globals", "locals", "eval", "exec", "compile", "__import__"}
_ANYWHERE |= {"builtins", "ctypes", "gc", "importlib", "inspect", "sys"}
_QUIET = {"autopar", "logging", "re", "pathlib", "enum"}  # their objects hold nothing to look for
_BASES = {object, abc.ABC, Generic, Protocol}  # which use no attributes of those made of them
_HOLDS = 1 << 14  # of a type's flags: the garbage collector knows what its values hold
_MODES = {"train", "eval"}  # methods that change how a module works, and others put back
_ROUTINES = (types.BuiltinFunctionType, types.MethodDescriptorType)
_CODE = (types.FunctionType, *_ROUTINES)


class Notes:
    """What is noted of values that are looked at; with `code`, of what code loads, too."""

    def __init__(self, code: bool) -> None:
        self.code = code
        self.memory: list[Any] = []  # tensors, arrays and storages
        self.tasks: list[Task] = []
        self.states: list[Any] = []  # what each use changes: iterators, and generators of chance
        self.names: set[str] = set()  # of attributes and globals that code loads
        self.stores: set[tuple[str, str]] = set()  # what code binds anew
        self.namespaces: list[tuple[Mapping[str, Any], bool]] = []  # and whether of an object
        self.stands_in = False  # whether it calls modules with other tensors in place of theirs
        self.whole = True  # whether all of it was understood; otherwise there may be more
        self._draws = False  # whether the code draws random numbers, as far as its names tell
        self._asks_mode = False  # whether it does where it asks whether a module is in training
        self._modes: set[object] = set()  # of modules: whether they are in training
        self._classes: set[type] = set()

    @property
    def random(self) -> bool:
        """Whether the code draws random numbers: if a mode tells, it is that of all modules."""
        return self._draws or (self._asks_mode and self._modes != {False})

    def note_chance(self, chance: int, *, asks_mode: bool = False) -> None:
        """Note whether a function draws random numbers, and whether its caller asks for a mode."""
        if chance == SWITCHED and asks_mode:
            self._asks_mode = True
        else:
            self._draws |= chance != NEVER

    def note_module(self, module: torch.nn.Module, attributes: Mapping[str, Any]) -> None:
        """Note whether a module of torch's draws random numbers, unless it is told not to."""
        homes = map(namespace, mro(type(module)))
        forward = next(home["forward"] for home in homes if "forward" in home)
        chance = chance_of(forward)
        self._modes.add(attributes.get("training"))
        if not (chance == SWITCHED and is_switched_off(attributes)):
            self.note_chance(chance)

    def note_class(self, kind: type, *, made: bool = False) -> list[Any]:
        """Note what code may name of a class; return what is called without being named."""
        if kind in self._classes:
            return []
        self._classes.add(kind)
        bases = [base for base in mro(kind) if base is not object]
        inherited = {name for base in bases if not is_own(base) for name in namespace(base)}
        called = []
        for content in (namespace(base) for base in bases if is_own(base)):
            self.namespaces.append((content, True))
            for name, value in content.items():
                is_dunder = name.startswith("__") and name.endswith("__")
                is_code = type(value) in (types.FunctionType, staticmethod, classmethod)
                if is_code and (is_dunder or name in inherited) and (made or name not in _MADE):
                    called.append(value)
        return called


Look = Callable[[Notes, Any], Iterable[Any]] | None


def held(notes: Notes, value: Any) -> Iterable[Any]:
    """What the garbage collector says that a value holds."""
    return gc.get_referents(value)


def _memory(notes: Notes, value: Any) -> Iterable[Any]:
    notes.memory.append(value)
    return [value.tolist()] if is_array(value) and value.dtype.hasobject else ()


def _task(notes: Notes, task: Task) -> Iterable[Any]:
    notes.tasks.append(task)
    return ()


def _state(notes: Notes, value: Any) -> Iterable[Any]:
    notes.states.append(value)
    kind: Any = type(value)
    return _object(notes, value) if is_own(kind) else gc.get_referents(value)


def _unknown(notes: Notes, value: Any) -> Iterable[Any]:
    notes.whole = False
    return ()


def _getter(notes: Notes, getter: Any) -> Iterable[Any]:
    notes.names.add("attrgetter")
    return gc.get_referents(getter)


def _operator(notes: Notes, op: Any) -> Iterable[Any]:
    notes.note_chance(chance_of(op))
    return ()


def _custom_operator(notes: Notes, op: Any) -> Iterable[Any]:
    return (attributes_of(op).get("_init_fn"),)


def _variable(notes: Notes, variable: contextvars.ContextVar[Any]) -> Iterable[Any]:
    return (variable.get(None), *gc.get_referents(variable))


def _routine(notes: Notes, fn: Any) -> Iterable[Any]:
    """A function that is written in C: it leads to its object, but not to its module."""
    notes.note_chance(chance_of(fn, ()))
    owner = getattr(fn, "__self__", None)
    if type(owner) is not types.ModuleType:
        return (owner,)
    notes.whole &= _ANYWHERE.isdisjoint({owner.__name__} - {"builtins"} or {fn.__name__})
    return ()


def _method(notes: Notes, method: types.MethodType) -> Iterable[Any]:
    owner, fn = method.__self__, method.__func__
    # Modules of torch's tell by themselves whether they draw.
    return (owner,) if issubclass(type(owner), torch.nn.Module) and is_torchs(fn) else (owner, fn)


def _function(notes: Notes, fn: types.FunctionType) -> Iterable[Any]:
    values: list[Any] = [fn.__closure__, fn.__defaults__, fn.__kwdefaults__, fn.__dict__]
    home = str(dict.get(fn.__globals__, "__name__"))
    notes.stands_in |= fn.__name__ == "functional_call"
    if not notes.code or is_library(home):
        notes.whole &= home.partition(".")[0] not in _ANYWHERE
        notes.note_chance(chance_of(fn))
        return values
    loads = loads_of(fn.__code__)
    notes.names |= loads.names
    notes.stands_in |= "functional_call" in loads.names
    if fn.__name__ not in _MADE:
        notes.stores |= loads.stores
    if not _MODES.isdisjoint(loads.names - loads.globals):
        notes.stores.add(("attribute", "training"))
    if any(map(method_draws, loads.names)):
        notes.note_chance(ALWAYS)
    notes.whole &= all(name in fn.__globals__ for name in loads.globals & _ANYWHERE)
    for value in loaded(fn):
        if type(value) in _CODE:
            asks_mode = "training" in loads.names
            notes.note_chance(chance_of(value, loads.keywords), asks_mode=asks_mode)
        if value is sys.modules:
            notes.whole = False
        elif type(value) not in _CODE or not is_torchs(value):
            values.append(value)
    for module in imported(fn):
        if isinstance(module, str):
            notes.whole &= is_library(module)
        else:
            names = loads.names if is_library(module.__name__) else ()
            values += [module, *(attribute(module, name) for name in names)]
    return values


def _module(notes: Notes, module: types.ModuleType) -> Iterable[Any]:
    content = held_by(module)
    name = str(content.get("__name__"))
    notes.whole &= name.partition(".")[0] not in _ANYWHERE
    if name == "random":
        return (content["_inst"],)
    if notes.code and not is_library(name):
        notes.namespaces.append((content, False))
    return ()


def _class(notes: Notes, kind: type) -> Iterable[Any]:
    if not notes.code:
        return ()
    return [*notes.note_class(kind, made=True), *notes.note_class(type(kind))]


def _object(notes: Notes, value: Any) -> Iterable[Any]:
    """An object of a class of the program's."""
    if not notes.code:
        return gc.get_referents(value)
    kind = type(value)
    called = notes.note_class(kind)
    # Libraries look at all attributes of what is theirs in part, is a dataclass or a container.
    of_libraries = any(not is_own(base) and base not in _BASES for base in mro(kind))
    is_dataclass = any("__dataclass_fields__" in namespace(base) for base in mro(kind))
    if of_libraries or is_dataclass or kind in pytree.SUPPORTED_NODES:
        return [*called, *(part for part in gc.get_referents(value) if part is not kind)]
    notes.namespaces.append((attributes_of(value), True))
    return called


def _nn_module(notes: Notes, module: torch.nn.Module) -> Iterable[Any]:
    attributes, kind = attributes_of(module), type(module)
    notes.note_module(module, attributes)
    values = list(attributes.values())
    if torch.jit.ScriptModule in mro(kind):
        values += [*module.parameters(), *module.buffers()]
        notes.states += module.modules() if notes.code else ()  # what they bind anew isn't known
    return values + notes.note_class(kind) if notes.code else values


# By type, and by what a type is made of; others hold what the garbage collector knows of.
_BY_TYPE: dict[Any, Look] = {
    **dict.fromkeys((str, bytes, int, float, complex, bool, type(None), type(...))),
    **dict.fromkeys((torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)),
    **dict.fromkeys((types.CodeType, types.MemberDescriptorType, ScriptModule)),
    **dict.fromkeys(_ROUTINES, _routine),
    **dict.fromkeys((types.FrameType, weakref.ProxyType, weakref.CallableProxyType), _unknown),
    **dict.fromkeys((operator.attrgetter, operator.methodcaller), _getter),
    types.FunctionType: _function,
    types.MethodType: _method,
    types.CoroutineType: _state,
    bytearray: _unknown,
    contextvars.ContextVar: _variable,
}
_BY_BASE: dict[Any, Look] = {
    **dict.fromkeys(MEMORY, _memory),
    **dict.fromkeys((OpOverload, OpOverloadPacket), _operator),
    **dict.fromkeys((torch.Generator, random.Random), _state),
    torch.nn.Module: _nn_module,
    ScriptMethod: _unknown,
    Task: _task,
    type: _class,
    types.ModuleType: _module,
    weakref.ref: lambda notes, reference: (weakref.ref.__call__(reference),),
    threading.local: _unknown,
}
_BY_NAME: dict[tuple[str, str], Look] = {
    ("numpy", "ndarray"): _memory,
    ("numpy.random._generator", "Generator"): _state,
    ("numpy.random.mtrand", "RandomState"): _state,
    ("torch._library.custom_ops", "CustomOpDef"): _custom_operator,
    ("mmap", "mmap"): _unknown,
    ("array", "array"): _unknown,
    ("builtins", "PyCapsule"): _unknown,
    ("_ctypes", "_CData"): _unknown,
}


@functools.lru_cache(10_000)
def look_at(kind: Any) -> Look:
    """How to look at values of a type; nothing for those that lead nowhere."""
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    for base in mro(kind):
        name = str(home(base)), base.__name__
        if base in _BY_BASE or name in _BY_NAME:
            return _BY_BASE.get(base) or _BY_NAME[name]
    if any({"__next__", "__anext__"} & namespace(base).keys() for base in mro(kind)):
        return _state
    if is_own(kind):
        return _object
    root = str(home(kind)).partition(".")[0]
    if root in _QUIET:
        return None
    if kind.__flags__ & _HOLDS:
        return held
    return None if root in LIBRARIES - {"torch"} else _unknown
