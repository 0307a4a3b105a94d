"""Loads: the names that a function's code loads, and what those stand for."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

_ROOTS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
_STEPS = ("LOAD_ATTR", "LOAD_METHOD")
LIBRARIES = {"torch", "numpy", "autopar", "builtins", *sys.stdlib_module_names} - {"__main__"}
_SITES = {"site-packages", "dist-packages"}
_SILENT = ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "NOP", "RESUME", "COPY_FREE_VARS")

NOTHING = object()
_module: Any = ModuleType
held_by = _module.__dict__["__dict__"].__get__  # what a module holds, whatever it says


class Loads(NamedTuple):
    """What code, and code inside it, loads.

    Args:
        globals: Names of globals.
        names: All names: of globals, attributes and what is imported.
        chains: Globals and variables of closures, each with the attributes that follow it.
        imports: Modules that it imports by itself.
        keywords: Names of the arguments that it gives by name.
    """

    globals: frozenset[str]
    names: frozenset[str]
    chains: frozenset[tuple[str, ...]]
    imports: frozenset[str]
    keywords: frozenset[str]


@functools.cache
def loads_of(code: CodeType) -> Loads:
    """What code loads.

    >>> import torch
    >>> sorted(loads_of((lambda: torch.nn.Linear).__code__).chains)
    [('torch', 'nn', 'Linear')]
    """
    found, names = set[str](), set[str]()
    chains, imports, keywords = set[tuple[str, ...]](), set[str](), set[str]()
    for each in _codes(code):
        names.update(each.co_names)
        chain: tuple[str, ...] = ()
        for step in dis.get_instructions(each):
            if step.opname in _STEPS and chain:
                chain = (*chain, str(step.argval))
            elif step.opname not in _SILENT:
                chains.add(chain)
                chain = (str(step.argval),) if step.opname in _ROOTS else ()
            if step.opname in _ROOTS and step.opname != "LOAD_DEREF":
                found.add(str(step.argval))
            elif step.opname == "IMPORT_NAME":
                imports.add(str(step.argval))
        constants = [value for value in each.co_consts if isinstance(value, tuple)]
        keywords.update(name for given in constants for name in given if isinstance(name, str))
    chains.discard(())
    parts = (frozenset(found), frozenset(names), frozenset(chains), frozenset(imports))
    return Loads(*parts, frozenset(keywords))


def loaded(fn: FunctionType) -> Iterator[Any]:
    """What the globals and closures that a function's code loads stand for.

    Attributes of modules are followed, those of other values are not.
    """
    namespace, cells = fn.__globals__, dict[str, Any]()
    for chain in loads_of(fn.__code__).chains:
        value = dict.get(namespace, chain[0], NOTHING)
        if value is NOTHING:
            cells = cells or dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
            value = _content(cells.get(chain[0]))
        for name in chain[1:]:
            if value is NOTHING or not issubclass(type(value), ModuleType):
                break
            value = attribute(value, name)
        if value is not NOTHING:
            yield value


def imported(fn: FunctionType) -> Iterator[ModuleType | str]:
    """The modules that a function's code imports by itself; the names of those not loaded yet."""
    package = str(dict.get(fn.__globals__, "__package__") or "")
    for name in loads_of(fn.__code__).imports:
        for full in filter(None, (name, f"{package}.{name}".strip("."), package)):
            if full in sys.modules:
                yield sys.modules[full]
                yield sys.modules[full.partition(".")[0]]
                break
        else:
            yield name


def attribute(module: ModuleType, name: str) -> Any:
    """What a module holds by a name, without asking it; torch's operators are held elsewhere."""
    held: Mapping[str, Any] = held_by(module)
    if name in held:
        return held[name]
    if type(module).__name__ == "VFModule" and module.__name__ == "torch._VF":
        return getattr(held["vf"], name, NOTHING)
    return NOTHING


def is_library(name: str) -> bool:
    """Whether a module is Python's or was installed, so that it isn't the program's own."""
    return _is_installed(name.partition(".")[0])


@functools.cache
def _is_installed(root: str) -> bool:
    place = str(getattr(sys.modules.get(root), "__file__", None))
    return root in LIBRARIES or not _SITES.isdisjoint(Path(place).parts)


def _content(cell: Any) -> Any:
    try:
        return NOTHING if cell is None else cell.cell_contents
    except ValueError:  # a cell may be empty still
        return NOTHING


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if inspect.iscode(each):
            yield from _codes(each)
