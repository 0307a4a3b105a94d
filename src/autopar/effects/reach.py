"""Reach: what a call can use without being given it, through closures, objects and globals.

Nothing of what is looked at is run: types say what a value is, whatever it says of itself, and the
garbage collector says what it holds.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
import functools
import gc
import operator
import random
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol

import torch
from torch.utils import _pytree as pytree

from autopar.effects.chance import (
    ALWAYS,
    NEVER,
    ROUTINES,
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
from autopar.effects.memory import MEMORY
from autopar.effects.task import Task

_MOST = 200_000  # things to look at: who reaches more, reaches a whole program
# Names in code that may use attributes by names that it does not have.
BY_ANY_NAME = {"getattr", "setattr", "vars", "__dict__", "__getattribute__"}
BY_ANY_NAME |= {"attrgetter", "methodcaller"}
# Methods that are not called of what is there already.
_MADE = {"__init__", "__new__", "__init_subclass__", "__post_init__"}
# Python's own ways to all that there is.
_ANYWHERE = {"globals", "locals", "eval", "exec", "compile", "__import__"}
_ANYWHERE |= {"builtins", "ctypes", "gc", "importlib", "inspect", "sys"}
_QUIET = {"autopar", "logging", "re", "pathlib", "enum"}  # their objects hold nothing to look for
_BASES = {object, abc.ABC, Generic, Protocol}  # which use no attributes of those made of them
_HOLDS = 1 << 14  # of a type's flags: the garbage collector knows what its values hold
# What nothing is hidden in, so that most leaves cost no more than a look at their type.
OPEN = {type(None), bool, int, float, complex, str, bytes, range, type}
ONCE = (types.GeneratorType, map, filter, zip)  # made as they are iterated over
_MODES = {"train", "eval"}  # methods that change how a module works, and others put back
_DICTS = (dict, OrderedDict, defaultdict)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)  # as of SimpleNamespace
_CODE = (types.FunctionType, *ROUTINES)

_mro, _vars = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__
_home = type.__dict__["__module__"].__get__


class Reach:
    """What some values lead to, and the names that the code among them loads.

    Values lead to all that they hold. Where code is looked at, too, a function leads to its
    closure, its defaults and the globals that it loads, and an object of the program's to those
    of its attributes, and of its class's, that the code names. Globals that libraries' own code
    loads are left out.

    Args:
        *values: Where to begin.
        code: Whether to look at what code loads, not only at what values hold.

    Attributes:
        memory: Tensors, arrays and storages.
        tasks: Tasks of graphs.
        states: What each use changes: iterators, and generators of random numbers.
        names: Names of attributes and globals.
        stores: What the code binds anew, with its name.
        stands_in: Whether it calls modules with other tensors in place of theirs.
        whole: Whether all of it was understood; otherwise there may be more.
        seen: All that was looked at, by its number.
    """

    def __init__(self, *values: Any, code: bool = False) -> None:
        self.memory: list[Any] = []
        self.tasks: list[Task] = []
        self.states: list[Any] = []
        self.names: set[str] = set()
        self.stores: set[tuple[str, str]] = set()
        self.stands_in = False
        self.whole = True
        self.seen: dict[int, Any] = {}  # by id, and kept, as ids are used again
        self.code = code
        self._draws = self._draws_in_training = self._trains = False
        self._methods: set[int] = set()  # functions of modules, by id
        self._classes: set[type] = set()
        self._namespaces: list[tuple[Mapping[str, Any], bool]] = []  # and whether of an object
        self._asked: tuple[int, set[str], bool] = (0, set(), False)
        self._follow(values)
        if "seed" in self.names:
            self.states += _generators()

    @property
    def random(self) -> bool:
        """Whether the code draws random numbers, as far as its names tell."""
        return self._draws or (self._draws_in_training and self._trains)

    def _follow(self, values: Iterable[Any]) -> None:
        seen = self.seen
        left: Iterable[Any] = values
        while left:
            held: list[Any] = []
            more: list[Any] = []
            for each in left:
                look = _look_at(type(each))  # type: ignore[arg-type]
                if look is None or id(each) in seen:
                    continue
                seen[id(each)] = each
                if look is _held:
                    held.append(each)
                else:
                    more += look(self, each)
            if len(seen) > _MOST:
                self.whole = False
                return
            left = [*more, *gc.get_referents(*held)] or self._named()

    def _named(self) -> list[Any]:
        """What objects, classes and modules have by the names of the code, but for that before."""
        count, asked, had_all = self._asked
        new, has_all = self.names - asked, not self.names.isdisjoint(BY_ANY_NAME)
        self._asked = len(self._namespaces), set(self.names), has_all
        found: list[Any] = []
        for place, (own, of_object) in enumerate(self._namespaces):
            is_new = place >= count
            names = self.names if is_new else new
            if of_object and has_all and (is_new or not had_all):
                found += own.values()
            elif len(own) < len(names):
                found += [own[name] for name in own if name in names]
            else:
                found += [own[name] for name in names if name in own]
        return found

    def note_chance(self, chance: int, loader: Any) -> None:
        """Note that a function draws random numbers, and which one loads it."""
        if chance == SWITCHED and id(loader) in self._methods:
            self._draws_in_training = True
        else:
            self._draws |= chance != NEVER

    def note_module(self, each: torch.nn.Module, attributes: Mapping[str, Any]) -> None:
        """Note whether a module draws random numbers, which those in evaluation mode don't."""
        forward = next(
            _vars(kind)["forward"] for kind in _mro(type(each)) if "forward" in _vars(kind)
        )
        chance, is_off = chance_of(forward), is_switched_off(attributes)
        self._draws |= chance == ALWAYS or (chance == SWITCHED and not is_off)
        self._trains |= not is_off and not is_torchs(forward)

    def note_class(self, kind: type, *, made: bool = False) -> list[Any]:
        """Note what code may name of a class; return what is called without being named."""
        if kind in self._classes:
            return []
        self._classes.add(kind)
        bases = _mro(kind)
        homes = [_vars(each) for each in bases if not is_own(each) and each is not object]
        found = []
        for own in (_vars(each) for each in bases if is_own(each)):
            self._namespaces.append((own, True))
            for name, value in own.items():
                if torch.nn.Module in bases:
                    self._methods.add(id(value))
                is_dunder = name.startswith("__") and name.endswith("__")
                is_code = type(value) in (types.FunctionType, staticmethod, classmethod)
                if is_code and (is_dunder or any(name in home for home in homes)):
                    found += [value] if made or name not in _MADE else []
        return found


# -- how to look at values of a type --------------------------------------------------------------


def _held(reach: Reach, each: Any) -> Iterable[Any]:
    return gc.get_referents(each)


def _memory(reach: Reach, each: Any) -> Iterable[Any]:
    reach.memory.append(each)
    return ()


def _array(reach: Reach, each: Any) -> Iterable[Any]:
    reach.memory.append(each)
    return [each.tolist()] if each.dtype.hasobject else ()


def _task(reach: Reach, each: Task) -> Iterable[Any]:
    reach.tasks.append(each)
    return ()


def _state(reach: Reach, each: Any) -> Iterable[Any]:
    reach.states.append(each)
    return _object(reach, each) if is_own(type(each)) else gc.get_referents(each)  # type: ignore[arg-type]


def _unknown(reach: Reach, each: Any) -> Iterable[Any]:
    reach.whole = False
    return ()


def _variable(reach: Reach, each: contextvars.ContextVar[Any]) -> Iterable[Any]:
    return (each.get(None), *gc.get_referents(each))


def _reference(reach: Reach, each: Any) -> Iterable[Any]:
    return (weakref.ref.__call__(each),)


def _getter(reach: Reach, each: Any) -> Iterable[Any]:
    reach.names.add("attrgetter")
    return gc.get_referents(each)


def _operator(reach: Reach, each: Any) -> Iterable[Any]:
    reach.note_chance(chance_of(each), None)
    return ()


def _custom_operator(reach: Reach, each: Any) -> Iterable[Any]:
    return (attributes_of(each).get("_init_fn"),)


def _routine(reach: Reach, each: Any) -> Iterable[Any]:
    """A function that is written in C: it leads to its object, but not to its module."""
    reach.note_chance(chance_of(each, ()), None)
    owner = getattr(each, "__self__", None)
    if type(owner) is not types.ModuleType:
        return (owner,)
    names = {owner.__name__} - {"builtins"} or {each.__name__}
    reach.whole &= _ANYWHERE.isdisjoint(names)
    return ()


def _method(reach: Reach, each: types.MethodType) -> Iterable[Any]:
    if torch.nn.Module in _mro(type(each.__self__)):
        reach._methods.add(id(each.__func__))
    return (each.__self__, each.__func__)


def _function(reach: Reach, each: types.FunctionType) -> Iterable[Any]:
    found: list[Any] = [each.__closure__, each.__defaults__, each.__kwdefaults__, each.__dict__]
    home = str(dict.get(each.__globals__, "__name__"))
    reach.stands_in |= each.__name__ == "functional_call"
    if not reach.code or is_library(home):
        reach.whole &= home.partition(".")[0] not in _ANYWHERE
        reach.note_chance(chance_of(each), each)
        return found
    loads = loads_of(each.__code__)
    reach.names |= loads.names
    reach.stands_in |= "functional_call" in loads.names
    if each.__name__ not in _MADE:
        reach.stores |= loads.stores
    if not _MODES.isdisjoint(loads.names - loads.globals):
        reach.stores.add(("attribute", "training"))
    reach._draws |= any(map(method_draws, loads.names))
    reach.whole &= all(name in each.__globals__ for name in loads.globals & _ANYWHERE)
    for value in loaded(each):
        if type(value) in _CODE:
            reach.note_chance(chance_of(value, loads.keywords), each)
        if value is sys.modules:
            reach.whole = False
        elif type(value) not in _CODE or not is_torchs(value):
            found.append(value)
    for module in imported(each):
        if isinstance(module, str):
            reach.whole &= is_library(module)
        else:
            names = loads.names if is_library(module.__name__) else ()
            found += [module, *(attribute(module, name) for name in names)]
    return found


def _module(reach: Reach, each: types.ModuleType) -> Iterable[Any]:
    own = held_by(each)
    name = str(own.get("__name__"))
    reach.whole &= name.partition(".")[0] not in _ANYWHERE
    if name == "random":
        return (own["_inst"],)
    if reach.code and not is_library(name):
        reach._namespaces.append((own, False))
    return ()


def _class(reach: Reach, each: type) -> Iterable[Any]:
    if not reach.code:
        return ()
    return [*reach.note_class(each, made=True), *reach.note_class(type(each))]


def _object(reach: Reach, each: Any) -> Iterable[Any]:
    """An object of a class of the program's."""
    if not reach.code:
        return gc.get_referents(each)
    kind, found = type(each), reach.note_class(type(each))
    if any(not is_own(base) and base not in _BASES for base in _mro(kind)) or _is_open(kind):
        return [*found, *gc.get_referents(each)]
    reach._namespaces.append((attributes_of(each), True))
    return found


def _nn_module(reach: Reach, each: torch.nn.Module) -> Iterable[Any]:
    own, kind = attributes_of(each), type(each)
    reach.note_module(each, own)
    found = list(own.values())
    if torch.jit.ScriptModule in _mro(kind):
        found += [*each.parameters(), *each.buffers()]
        reach.states += filter(_assigns, each.modules())
    return found + reach.note_class(kind) if reach.code else found


def _assigns(each: Any) -> bool:
    """Whether a TorchScript module binds its attributes anew, or changes lists in them."""
    for name in each._c._method_names():
        code = each._c._get_method(name).graph.copy()
        torch._C._jit_pass_inline(code)
        if code.findAllNodes("prim::SetAttr", True):
            return True
        held = [get.output() for get in code.findAllNodes("prim::GetAttr", True)]
        lists = (each for each in held if each.type().kind() in ("ListType", "DictType"))
        for use in (use for each in lists for use in each.uses()):
            schema = use.user.schema()
            info = schema.startswith("aten::") and torch._C.parse_schema(schema)
            if info and (alias := info.arguments[use.offset].alias_info) and alias.is_write:
                return True
    return False


_Look = Callable[[Reach, Any], Iterable[Any]] | None
# By type, and by what a type is made of; others hold what the garbage collector knows of.
_BY_TYPE: dict[Any, _Look] = {
    **dict.fromkeys((str, bytes, int, float, complex, bool, type(None), type(...))),
    **dict.fromkeys((torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)),
    **dict.fromkeys((types.CodeType, torch._C.ScriptModule)),
    **dict.fromkeys(ROUTINES, _routine),
    **dict.fromkeys((types.FrameType, weakref.ProxyType, weakref.CallableProxyType), _unknown),
    **dict.fromkeys((operator.attrgetter, operator.methodcaller), _getter),
    types.FunctionType: _function,
    types.MethodType: _method,
    types.CoroutineType: _state,
    bytearray: _unknown,
    contextvars.ContextVar: _variable,
}
_BY_BASE: dict[Any, _Look] = {
    **dict.fromkeys(MEMORY, _memory),
    **dict.fromkeys((torch._ops.OpOverload, torch._ops.OpOverloadPacket), _operator),
    **dict.fromkeys((torch.Generator, random.Random), _state),
    torch.nn.Module: _nn_module,
    torch._C.ScriptMethod: _unknown,
    Task: _task,
    type: _class,
    types.ModuleType: _module,
    weakref.ref: _reference,
    threading.local: _unknown,
}
_BY_NAME: dict[tuple[str, str], _Look] = {
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
def _look_at(kind: Any) -> _Look:
    """How to look at values of a type; nothing for those that lead nowhere."""
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    for base in _mro(kind):
        name = str(_home(base)), base.__name__
        if base in _BY_BASE or name in _BY_NAME:
            return _BY_BASE.get(base) or _BY_NAME[name]
    if any({"__next__", "__anext__"} & _vars(base).keys() for base in _mro(kind)):
        return _state
    if is_own(kind):
        return _object
    root = str(_home(kind)).partition(".")[0]
    if root in _QUIET:
        return None
    if kind.__flags__ & _HOLDS:
        return _held
    return None if root in LIBRARIES - {"torch"} else _unknown


def attributes_of(each: Any) -> Mapping[str, Any]:
    """What an object holds by name, without asking it."""
    found: dict[str, Any] = {}
    for kind in _mro(type(each)):
        for name, value in _vars(kind).items():
            if name == "__dict__" and type(value) in _DESCRIPTORS:
                held = value.__get__(each)
                found = {**found, **held} if found else held
            elif type(value) is types.MemberDescriptorType and is_own(kind):
                with contextlib.suppress(AttributeError):  # nothing is there yet
                    found = {**found, name: value.__get__(each)}
    return found


def _generators() -> Iterator[Any]:
    """Generators of random numbers that Python's and NumPy's functions share."""
    yield vars(random)["_inst"]
    if numpys := sys.modules.get("numpy.random.mtrand"):
        yield vars(numpys)["_rand"]


def _is_open(kind: type) -> bool:
    """Whether libraries look at all attributes of a class's objects."""
    dataclass = any("__dataclass_fields__" in _vars(base) for base in _mro(kind))
    return dataclass or kind in pytree.SUPPORTED_NODES


@functools.lru_cache(10_000)
def is_own(kind: Any) -> bool:
    """Whether a class is the program's."""
    return not is_library(str(_home(kind)))


def hidden_tasks(leaves: Iterable[Any]) -> list[Task]:
    """Tasks in what is no container to look into, as a set, among the leaves of containers."""
    return Reach(*(leaf for leaf in leaves if type(leaf) not in (torch.Tensor, Task))).tasks


def require_tasks_seen(values: object, leaves: Iterable[Any], name: str) -> None:
    """Refuse arguments of a task that hold other tasks where nobody looks for them.

    Args:
        values: The arguments.
        leaves: What is left of their containers, but for tasks and tensors.
        name: The task's.

    Raises:
        TypeError: Something makes what it holds only as it is iterated over.
        ValueError: There are some, as in a set.
    """
    for leaf in leaves:
        if type(leaf) in ONCE:
            msg = (
                f"task {name!r} holds a {type(leaf).__name__}; expected containers whose tasks are "
                f"there already. Pass list(x) of it."
            )
            raise TypeError(msg)
    for hidden in Reach(*leaves, *keys_in(values)).tasks:
        msg = (
            f"{hidden!r}, given to task {name!r}, lies in a container of another kind; expected "
            f"lists, tuples and dicts. Pass it in one of these, or by itself."
        )
        raise ValueError(msg)


def keys_in(values: Any) -> Iterator[object]:
    """Keys of the dicts among nested containers, each time as something that holds them."""
    if type(values) in _DICTS:
        if not set(map(type, values)) <= OPEN:
            yield set(values)
        values = values.values()
    elif not issubclass(type(values), (list, tuple, deque)):
        return
    for value in values:
        yield from keys_in(value)
