"""Loads: the names that a function's code loads, and what those stand for."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

Chain = tuple[str, ...]  # a global name and its attributes, as in `ap.workload.matrix`
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_STEPS = ("LOAD_ATTR", "LOAD_METHOD")
_STORES = {"ATTR": "attribute", "GLOBAL": "global", "DEREF": "variable"}
LIBRARIES = {"torch", "numpy", "autopar", "builtins", *sys.stdlib_module_names} - {"__main__"}
_SITES = {"site-packages", "dist-packages"}
_SILENT = ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "NOP", "RESUME", "COPY_FREE_VARS")

ABSENT = object()  # where there is nothing
_module: Any = ModuleType
held_by = _module.__dict__["__dict__"].__get__  # what a module holds, whatever it says


class Loads(NamedTuple):
    """What code, and code inside it, loads."""

    globals: frozenset[str]
    names: frozenset[str]  # of globals, attributes and what is imported
    stores: frozenset[tuple[str, str]]  # an `attribute`, a `global` or a closure's `variable`
    chains: frozenset[Chain]  # globals and variables of closures, with the attributes that follow
    imports: frozenset[str]
    keywords: frozenset[str]  # names of the arguments that it gives by name


@functools.cache
def loads_of(code: CodeType) -> Loads:
    """What code loads.

    >>> import torch
    >>> sorted(loads_of((lambda: torch.nn.Linear).__code__).chains)
    [('torch', 'nn', 'Linear')]
    """
    names, stores, imports, keywords = set[str](), set[tuple[str, str]](), set[str](), set[str]()
    for part in codes(code):
        names.update(part.co_names)
        for step in dis.get_instructions(part):
            action, _, kind = step.opname.partition("_")
            if step.opname == "IMPORT_NAME":
                imports.add(str(step.argval))
            elif action in ("STORE", "DELETE") and (
                kind in ("ATTR", "GLOBAL") or (kind == "DEREF" and step.argval in part.co_freevars)
            ):
                stores.add((_STORES[kind], str(step.argval)))
        constants = [value for value in part.co_consts if isinstance(value, tuple)]
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
    """The names that code, and code inside it, loads as globals, with the attributes it reads."""
    for part in codes(code):
        chain: Chain = ()
        for step in dis.get_instructions(part):
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
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    for root, *attributes in loads_of(fn.__code__).chains:
        value = dict.get(fn.__globals__, root, ABSENT)
        if value is ABSENT:
            value = _content(cells.get(root))
        for name in attributes:
            if value is ABSENT or not issubclass(type(value), ModuleType):
                break
            if not is_library(value.__name__):
                yield value
            value = attribute(value, name)
        if value is not ABSENT:
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
    content: Mapping[str, Any] = held_by(module)
    if name in content:
        return content[name]
    if type(module).__name__ == "VFModule" and module.__name__ == "torch._VF":
        return getattr(content["vf"], name, ABSENT)
    return ABSENT


@functools.cache
def is_library(name: str) -> bool:
    """Whether a module is Python's or was installed, so that it isn't the program's own."""
    root = name.partition(".")[0]
    if root == "__main__":  # whatever was installed to run it
        return False
    place = str(getattr(sys.modules.get(root), "__file__", None))
    return root in LIBRARIES or not _SITES.isdisjoint(Path(place).parts)


def _content(cell: Any) -> Any:
    try:
        return ABSENT if cell is None else cell.cell_contents
    except ValueError:  # a cell may be empty still
        return ABSENT


def codes(code: CodeType) -> Iterator[CodeType]:
    """Code, and all code inside it."""
    yield code
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from codes(constant)
