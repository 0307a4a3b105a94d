"""Loads: the names that a function's code loads, and what those stand for."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType

Chain = tuple[str, ...]  # a global name and its attributes, as in `ap.workload.matrix`
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_STEPS = ("LOAD_ATTR", "LOAD_METHOD")
LIBRARIES = {"torch", "numpy", "autopar", "builtins", *sys.stdlib_module_names} - {"__main__"}
_SITES = {"site-packages", "dist-packages"}
_SILENT = ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "NOP", "RESUME", "COPY_FREE_VARS")

ABSENT = object()  # where there is nothing


@functools.cache
def names_in(code: CodeType) -> frozenset[str]:
    """The names of globals, attributes and imports in code, and in code inside it.

    >>> sorted(names_in((lambda: print(sys.path)).__code__))
    ['path', 'print', 'sys']
    """
    return frozenset(name for part in codes(code) for name in part.co_names)


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


@functools.cache
def is_library(name: str) -> bool:
    """Whether a module is Python's or was installed, so that it isn't the program's own."""
    root = name.partition(".")[0]
    if root == "__main__":  # whatever was installed to run it
        return False
    place = str(getattr(sys.modules.get(root), "__file__", None))
    return root in LIBRARIES or not _SITES.isdisjoint(Path(place).parts)


def codes(code: CodeType) -> Iterator[CodeType]:
    """Code, and all code inside it."""
    yield code
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from codes(constant)
