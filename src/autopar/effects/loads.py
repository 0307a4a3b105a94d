"""Loads: the names that a function's code loads, and what those stand for."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

Chain = tuple[str, ...]  # a global name and its attributes, as in `ap.workload.matrix`
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
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
        stores: What it binds anew, each with its name: an `attribute`, but for those of what a call
            there has just made, a `global`, or a `variable` of a closure.
        chains: Globals and variables of closures, each with the attributes that follow it.
        imports: Modules that it imports by itself.
        keywords: Names of the arguments that it gives by name.
    """

    globals: frozenset[str]
    names: frozenset[str]
    stores: frozenset[tuple[str, str]]
    chains: frozenset[Chain]
    imports: frozenset[str]
    keywords: frozenset[str]


@functools.cache
def loads_of(code: CodeType) -> Loads:
    """What code loads.

    >>> import torch
    >>> sorted(loads_of((lambda: torch.nn.Linear).__code__).chains)
    [('torch', 'nn', 'Linear')]
    """
    names, stores, imports, keywords = set[str](), set[tuple[str, str]](), set[str](), set[str]()
    for each in _codes(code):
        names.update(each.co_names)
        stores.update(_stored(each))
        steps = dis.get_instructions(each)
        imports.update(str(step.argval) for step in steps if step.opname == "IMPORT_NAME")
        constants = [value for value in each.co_consts if isinstance(value, tuple)]
        keywords.update(name for given in constants for name in given if isinstance(name, str))
    return Loads(
        frozenset(chain[0] for chain in chains(code)),
        frozenset(names),
        frozenset(stores),
        frozenset(chains(code, (*_GLOBALS, "LOAD_DEREF"))),
        frozenset(imports),
        frozenset(keywords),
    )


def chains(code: CodeType, roots: Iterable[str] = _GLOBALS) -> Iterator[Chain]:
    """The names that code loads as globals, with the attributes that it reads of them.

    Args:
        code: The code, with that inside it.
        roots: The instructions that load them.
    """
    for each in _codes(code):
        chain: Chain = ()
        for step in dis.get_instructions(each):
            if chain and step.opname in _STEPS:
                chain = (*chain, str(step.argval))
            elif step.opname not in _SILENT:
                if chain:
                    yield chain
                chain = (str(step.argval),) if step.opname in roots else ()


def loaded(fn: FunctionType) -> Iterator[Any]:
    """What the globals and closures that a function's code loads stand for.

    Attributes of modules are followed, those of other values are not. The program's own modules
    on the way are among it.
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
            if not is_library(value.__name__):
                yield value
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


def _stored(code: CodeType) -> Iterator[tuple[str, str]]:
    """What code binds anew, but for attributes of what it has just made."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SILENT]
    made, others = set[str](), {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
    for before, step in itertools.pairwise(steps):
        if step.opname.startswith("STORE_FAST"):
            of_call = step.opname == "STORE_FAST" and before.opname.startswith("CALL")
            (made if of_call else others).update(_locals(step))
    owner = set[str]()
    for before, step in itertools.pairwise([*steps[:1], *steps]):
        if step.opname.startswith("COPY") and before.opname.startswith("LOAD_FAST"):
            owner = {*_locals(before)[-1:]}  # as for `x.n += 1`
        if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
            loaded = before.opname.startswith("LOAD_FAST")
            own = {*_locals(before)[-1:]} if loaded else owner if before.opname == "SWAP" else set()
            if not own or not own <= made - others:
                yield "attribute", str(step.argval)
        elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield "global", str(step.argval)
        elif step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars:
            yield "variable", str(step.argval)


def _locals(step: dis.Instruction) -> tuple[str, ...]:
    """The local variables of an instruction, which has two of them sometimes."""
    return step.argval if isinstance(step.argval, tuple) else (str(step.argval),)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if inspect.iscode(each):
            yield from _codes(each)
