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

from autopar.effects.chance import chance_of, is_switched_off, is_torchs, method_draws
from autopar.effects.loads import (
    LIBRARIES,
    attribute,
    held_by,
    imported,
    is_library,
    loaded,
    loads_of,
)
from autopar.effects.memory import MEMORY
from autopar.effects.objects import attributes_of, home, is_own, mro, namespace
from autopar.effects.operators import ALWAYS, NEVER, SWITCHED
from autopar.effects.task import Task
from autopar.torch_private import (
    OpOverload,
    OpOverloadPacket,
    ScriptMethod,
    ScriptModule,
    inline,
    parse_schema,
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
    """What is noted of values that are looked at.

    Args:
        code: Whether to look at what code loads, not only at what values hold.

    Attributes:
        memory: Tensors, arrays and storages.
        tasks: Tasks of graphs.
        states: What each use changes: iterators, and generators of random numbers.
        names: Names of attributes and globals.
        stores: What the code binds anew, with its name.
        stands_in: Whether it calls modules with other tensors in place of theirs.
        whole: Whether all of it was understood; otherwise there may be more.
        draws: Whether the code draws random numbers, whatever mode it is in.
        methods: Functions of modules, by their numbers.
        namespaces: What has names that code may load, and whether it is an object's or a class's.
    """

    def __init__(self, code: bool) -> None:
        self.memory: list[Any] = []
        self.tasks: list[Task] = []
        self.states: list[Any] = []
        self.names: set[str] = set()
        self.stores: set[tuple[str, str]] = set()
        self.stands_in = False
        self.whole = True
        self.code = code
        self.draws = self._draws_in_training = self._trains = False
        self.methods: set[int] = set()  # functions of modules, by id
        self._classes: set[type] = set()
        self.namespaces: list[tuple[Mapping[str, Any], bool]] = []  # and whether of an object

    @property
    def random(self) -> bool:
        """Whether the code draws random numbers, as far as its names tell."""
        return self.draws or (self._draws_in_training and self._trains)

    def note_chance(self, chance: int, loader: Any) -> None:
        """Note that a function draws random numbers, and which one loads it."""
        if chance == SWITCHED and id(loader) in self.methods:
            self._draws_in_training = True
        else:
            self.draws |= chance != NEVER

    def note_module(self, each: torch.nn.Module, attributes: Mapping[str, Any]) -> None:
        """Note whether a module draws random numbers, which those in evaluation mode don't."""
        forward = next(
            namespace(kind)["forward"] for kind in mro(type(each)) if "forward" in namespace(kind)
        )
        chance, is_off = chance_of(forward), is_switched_off(attributes)
        self.draws |= chance == ALWAYS or (chance == SWITCHED and not is_off)
        self._trains |= not is_off and not is_torchs(forward)

    def note_class(self, kind: type, *, made: bool = False) -> list[Any]:
        """Note what code may name of a class; return what is called without being named."""
        if kind in self._classes:
            return []
        self._classes.add(kind)
        bases = mro(kind)
        homes = [namespace(each) for each in bases if not is_own(each) and each is not object]
        found = []
        for own in (namespace(each) for each in bases if is_own(each)):
            self.namespaces.append((own, True))
            for name, value in own.items():
                if torch.nn.Module in bases:
                    self.methods.add(id(value))
                is_dunder = name.startswith("__") and name.endswith("__")
                is_code = type(value) in (types.FunctionType, staticmethod, classmethod)
                if is_code and (is_dunder or any(name in home for home in homes)):
                    found += [value] if made or name not in _MADE else []
        return found


Look = Callable[[Notes, Any], Iterable[Any]] | None


def held(notes: Notes, each: Any) -> Iterable[Any]:
    """What the garbage collector says that a value holds."""
    return gc.get_referents(each)


def _memory(notes: Notes, each: Any) -> Iterable[Any]:
    notes.memory.append(each)
    return ()


def _array(notes: Notes, each: Any) -> Iterable[Any]:
    notes.memory.append(each)
    return [each.tolist()] if each.dtype.hasobject else ()


def _task(notes: Notes, each: Task) -> Iterable[Any]:
    notes.tasks.append(each)
    return ()


def _state(notes: Notes, each: Any) -> Iterable[Any]:
    notes.states.append(each)
    return _object(notes, each) if is_own(type(each)) else gc.get_referents(each)  # type: ignore[arg-type]


def _unknown(notes: Notes, each: Any) -> Iterable[Any]:
    notes.whole = False
    return ()


def _variable(notes: Notes, each: contextvars.ContextVar[Any]) -> Iterable[Any]:
    return (each.get(None), *gc.get_referents(each))


def _reference(notes: Notes, each: Any) -> Iterable[Any]:
    return (weakref.ref.__call__(each),)


def _getter(notes: Notes, each: Any) -> Iterable[Any]:
    notes.names.add("attrgetter")
    return gc.get_referents(each)


def _operator(notes: Notes, each: Any) -> Iterable[Any]:
    notes.note_chance(chance_of(each), None)
    return ()


def _custom_operator(notes: Notes, each: Any) -> Iterable[Any]:
    return (attributes_of(each).get("_init_fn"),)


def _routine(notes: Notes, each: Any) -> Iterable[Any]:
    """A function that is written in C: it leads to its object, but not to its module."""
    notes.note_chance(chance_of(each, ()), None)
    owner = getattr(each, "__self__", None)
    if type(owner) is not types.ModuleType:
        return (owner,)
    names = {owner.__name__} - {"builtins"} or {each.__name__}
    notes.whole &= _ANYWHERE.isdisjoint(names)
    return ()


def _method(notes: Notes, each: types.MethodType) -> Iterable[Any]:
    if torch.nn.Module in mro(type(each.__self__)):
        notes.methods.add(id(each.__func__))
    return (each.__self__, each.__func__)


def _function(notes: Notes, each: types.FunctionType) -> Iterable[Any]:
    found: list[Any] = [each.__closure__, each.__defaults__, each.__kwdefaults__, each.__dict__]
    home = str(dict.get(each.__globals__, "__name__"))
    notes.stands_in |= each.__name__ == "functional_call"
    if not notes.code or is_library(home):
        notes.whole &= home.partition(".")[0] not in _ANYWHERE
        notes.note_chance(chance_of(each), each)
        return found
    loads = loads_of(each.__code__)
    notes.names |= loads.names
    notes.stands_in |= "functional_call" in loads.names
    if each.__name__ not in _MADE:
        notes.stores |= loads.stores
    if not _MODES.isdisjoint(loads.names - loads.globals):
        notes.stores.add(("attribute", "training"))
    notes.draws |= any(map(method_draws, loads.names))
    notes.whole &= all(name in each.__globals__ for name in loads.globals & _ANYWHERE)
    for value in loaded(each):
        if type(value) in _CODE:
            notes.note_chance(chance_of(value, loads.keywords), each)
        if value is sys.modules:
            notes.whole = False
        elif type(value) not in _CODE or not is_torchs(value):
            found.append(value)
    for module in imported(each):
        if isinstance(module, str):
            notes.whole &= is_library(module)
        else:
            names = loads.names if is_library(module.__name__) else ()
            found += [module, *(attribute(module, name) for name in names)]
    return found


def _module(notes: Notes, each: types.ModuleType) -> Iterable[Any]:
    own = held_by(each)
    name = str(own.get("__name__"))
    notes.whole &= name.partition(".")[0] not in _ANYWHERE
    if name == "random":
        return (own["_inst"],)
    if notes.code and not is_library(name):
        notes.namespaces.append((own, False))
    return ()


def _class(notes: Notes, each: type) -> Iterable[Any]:
    if not notes.code:
        return ()
    return [*notes.note_class(each, made=True), *notes.note_class(type(each))]


def _object(notes: Notes, each: Any) -> Iterable[Any]:
    """An object of a class of the program's."""
    if not notes.code:
        return gc.get_referents(each)
    kind, found = type(each), notes.note_class(type(each))
    if any(not is_own(base) and base not in _BASES for base in mro(kind)) or _is_open(kind):
        return [*found, *gc.get_referents(each)]
    notes.namespaces.append((attributes_of(each), True))
    return found


def _nn_module(notes: Notes, each: torch.nn.Module) -> Iterable[Any]:
    own, kind = attributes_of(each), type(each)
    notes.note_module(each, own)
    found = list(own.values())
    if torch.jit.ScriptModule in mro(kind):
        found += [*each.parameters(), *each.buffers()]
        notes.states += filter(_assigns, each.modules() if notes.code else ())
    return found + notes.note_class(kind) if notes.code else found


def _assigns(each: Any) -> bool:
    """Whether a TorchScript module binds its attributes anew, or changes lists in them."""
    for name in each._c._method_names():
        code = each._c._get_method(name).graph.copy()
        inline(code)
        if code.findAllNodes("prim::SetAttr", True):
            return True
        held = [get.output() for get in code.findAllNodes("prim::GetAttr", True)]
        lists = (each for each in held if each.type().kind() in ("ListType", "DictType"))
        for use in (use for each in lists for use in each.uses()):
            schema = use.user.schema()
            info = schema.startswith("aten::") and parse_schema(schema)
            if info and (alias := info.arguments[use.offset].alias_info) and alias.is_write:
                return True
    return False


# By type, and by what a type is made of; others hold what the garbage collector knows of.
_BY_TYPE: dict[Any, Look] = {
    **dict.fromkeys((str, bytes, int, float, complex, bool, type(None), type(...))),
    **dict.fromkeys((torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)),
    **dict.fromkeys((types.CodeType, ScriptModule)),
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
    weakref.ref: _reference,
    threading.local: _unknown,
}
_BY_NAME: dict[tuple[str, str], Look] = {
    ("numpy", "ndarray"): _array,
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


def _is_open(kind: type) -> bool:
    """Whether libraries look at all attributes of a class's objects."""
    dataclass = any("__dataclass_fields__" in namespace(base) for base in mro(kind))
    return dataclass or kind in pytree.SUPPORTED_NODES
