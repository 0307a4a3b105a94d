"""Reach: what a call can use without being given it, through closures, objects and globals."""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import inspect
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autopar.memory import MEMORY, is_array
from autopar.node import Task

_MOST = 50_000  # things to look at: who reaches more, reaches a whole program
_LIBRARIES = {"torch", "numpy", "autopar", "builtins", *sys.stdlib_module_names} - {"__main__"}
_SITES = {"site-packages", "dist-packages"}
_LEAVES = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device, torch.Generator)
_ALL = {"getattr", "vars", "__dict__", "__getattribute__", "setattr"}  # names say nothing then
_CALLED = {"__init__", "__new__", "__init_subclass__"}  # not by a call of what is there already


class Reach:
    """What some values lead to, and the names that the code among them loads.

    A function leads to its closure, its defaults and the globals that it loads; a method to its
    object; a module to all that it holds; another object to those of its attributes, and of its
    class's, that the code names. Libraries' own globals are left out.

    Attributes:
        memory: Tensors, arrays and storages.
        tasks: Tasks of graphs.
        names: Names of attributes and globals.
        whole: Whether nothing was left out because there was too much.
    """

    def __init__(self, *values: Any) -> None:
        self.memory: list[Any] = []
        self.tasks: list[Task] = []
        self.names: set[str] = set()
        self.whole = True
        self._seen: dict[int, Any] = {}  # by id, and kept, as ids are used again
        self._objects: list[Any] = []
        self._left: deque[Any] = deque(values)
        self._follow()

    def _follow(self) -> None:
        known = -1
        while self._left or known < len(self.names):
            if not self._left:  # new names: look at the objects once more
                known = len(self.names)
                for each in self._objects:
                    self._left.extend(_named_parts(each, self.names))
                continue
            each = self._left.popleft()
            if isinstance(each, _LEAVES) or id(each) in self._seen:
                continue
            if len(self._seen) == _MOST:
                self.whole = False
                return
            self._seen[id(each)] = each
            self._look_at(each)

    def _look_at(self, each: Any) -> None:
        if isinstance(each, MEMORY) or is_array(each):
            self.memory.append(each)
        elif isinstance(each, Task):
            self.tasks.append(each)
        elif isinstance(each, FunctionType):
            self._left.extend(_parts_of_function(each))
            if not _is_library(each):
                self.names |= _loads(each.__code__)[1]
        elif isinstance(each, ModuleType):
            if not _is_library(each):
                self._objects.append(each)
        elif not _is_library(type(each)) and not isinstance(each, torch.nn.Module):
            self._left.extend(_parts(each))
            if not dataclasses.is_dataclass(each):
                self._objects.append(each)
        else:
            self._left.extend(_parts(each))
            home = type(each).__module__.partition(".")[0]
            if home not in {"torch", "autopar"} and hasattr(each, "__dict__"):
                self._objects.append(each)


def _parts(each: Any) -> Iterator[Any]:
    """What a value leads to, whatever the code names."""
    if isinstance(each, Mapping):
        with contextlib.suppress(Exception):  # what only looks like a mapping
            yield from (*each.keys(), *each.values())
    elif isinstance(each, (list, tuple, set, frozenset, deque)):
        yield from tuple(each)
    elif isinstance(each, functools.partial):
        yield from (each.func, each.args, each.keywords)
    elif isinstance(each, MethodType):
        yield from (each.__self__, each.__func__)
    elif isinstance(each, (staticmethod, classmethod)):
        yield each.__func__
    elif isinstance(each, property):
        yield from (each.fget, each.fset)
    elif isinstance(each, functools.partialmethod):
        yield from (each.func, each.args, each.keywords)
    elif isinstance(each, weakref.ref):
        yield each()
    elif isinstance(each, torch.nn.Module):
        yield from (each for each in vars(each).values() if not isinstance(each, dict) or each)
        if isinstance(each, torch.jit.ScriptModule):
            yield from (*each.parameters(), *each.buffers())
    elif dataclasses.is_dataclass(each) and not isinstance(each, type):
        yield from (getattr(each, field.name, None) for field in dataclasses.fields(each))
    elif isinstance(each, torch.optim.Optimizer):
        yield from (each.param_groups, dict(each.state))
    elif type(each) in pytree.SUPPORTED_NODES:
        yield from pytree.tree_leaves(each)
    else:
        yield getattr(each, "__self__", None)  # a method of what is written in C
        yield getattr(each, "__wrapped__", None)
    if not isinstance(each, type):
        yield from _functions_of(type(each))


def _functions_of(kind: type) -> Iterator[Any]:
    """Functions of a class that are called without being named."""
    for own in kind.__mro__:
        if not _is_library(own):
            for name, value in vars(own).items():
                dunder = name.startswith("__") and name.endswith("__") and name not in _CALLED
                if (dunder or name == "forward") and isinstance(value, FunctionType):
                    yield value


def _named_parts(each: Any, names: set[str]) -> Iterator[Any]:
    """Attributes of an object, of its class, or of a module, that code names."""
    every = not names.isdisjoint(_ALL) and not isinstance(each, ModuleType)
    homes = each.__mro__ if isinstance(each, type) else (each, *type(each).__mro__)
    for home in homes:
        if isinstance(home, type) and _is_library(home):
            continue
        own = getattr(home, "__dict__", {})
        yield from (own[name] for name in (own if every else names) if name in own)
        if home is each:
            for name in getattr(type(each), "__slots__", ()):
                if every or name in names:
                    yield getattr(each, name, None)


def _parts_of_function(fn: FunctionType) -> Iterator[Any]:
    yield fn.__defaults__
    yield fn.__kwdefaults__
    yield getattr(fn, "__wrapped__", None)
    yield getattr(fn, "_partialmethod", None)
    for cell in fn.__closure__ or ():
        with contextlib.suppress(ValueError):  # a cell may be empty still
            yield cell.cell_contents
    if not _is_library(fn) and not _is_library(fn.__globals__.get("__name__")):
        for name in _loads(fn.__code__)[0]:
            yield fn.__globals__.get(name)


@functools.cache
def _loads(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Names that code, and code inside it, loads as globals, and all names that it loads."""
    names, own = set[str](), set[str]()
    for each in _codes(code):
        own.update(each.co_names)
        for step in dis.get_instructions(each):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(str(step.argval))
    return frozenset(names), frozenset(own)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if inspect.iscode(each):
            yield from _codes(each)


def _is_library(each: Any) -> bool:
    name = each if isinstance(each, str) else None
    if isinstance(each, ModuleType):
        name = each.__name__
    elif name is None:
        name = getattr(each, "__module__", None)
    return _is_installed(str(name).partition(".")[0])


@functools.cache
def _is_installed(root: str) -> bool:
    """Whether a package is Python's or was installed, so that it isn't the program's own."""
    place = str(getattr(sys.modules.get(root), "__file__", None))
    return root in _LIBRARIES or not _SITES.isdisjoint(Path(place).parts)


def hidden_tasks(leaves: Iterable[Any]) -> list[Task]:
    """Tasks in what is no container to look into, as a set, among the leaves of containers."""
    return Reach(*(leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, Task)))).tasks
